"""Rate-limit buckets: their charges, the waiting callers, and which owners are alive.

bucket_rows.py     the rows of a bucket, its waiting callers, and its owners
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.limits.bucket_rows import (
        Ahead,
        BucketRow,
        Head,
        ListedBucket,
        charge,
        correct,
        cut_back,
        drop_owner,
        join,
        last_expiry,
        leave,
        line_heads,
        list_buckets,
        lock_buckets,
        prune,
        renew_owner,
        rows_from,
        server_time,
        shift,
        store,
        sweep,
        take_tickets,
        those_ahead,
        unpack_rows,
        version,
    )
else:
    front_door(
        __name__,
        {
            "bucket_rows": """
                Ahead BucketRow Head ListedBucket charge correct cut_back drop_owner join
                last_expiry leave line_heads list_buckets lock_buckets prune renew_owner rows_from
                server_time shift store sweep take_tickets those_ahead unpack_rows version
            """,
        },
    )

__all__ = [
    "Ahead",
    "BucketRow",
    "Head",
    "ListedBucket",
    "charge",
    "correct",
    "cut_back",
    "drop_owner",
    "join",
    "last_expiry",
    "leave",
    "line_heads",
    "list_buckets",
    "lock_buckets",
    "prune",
    "renew_owner",
    "rows_from",
    "server_time",
    "shift",
    "store",
    "sweep",
    "take_tickets",
    "those_ahead",
    "unpack_rows",
    "version",
]

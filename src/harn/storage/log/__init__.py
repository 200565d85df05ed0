"""The event log: topics of numbered records, which everything else is folded from.

events.py          append, read, and consumers' cursors
export.py          a store as JSONL, and back
trim.py            removing old records: what must stay, and what is missing afterwards
rebuild.py         verify the indexes against the log, or fold them again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.log.events import (
        PAGE,
        append,
        head,
        list_topics,
        newest,
        read,
        record_at,
        records,
        skip_offsets,
    )
    from harn.storage.log.export import Importer, export
    from harn.storage.log.rebuild import Difference, compare, rebuild
    from harn.storage.log.trim import first_since_oldest, first_where, oldest_kept, trim
else:
    front_door(
        __name__,
        {
            "events": "PAGE append head list_topics newest read record_at records skip_offsets",
            "export": "Importer export",
            "rebuild": "Difference compare rebuild",
            "trim": "first_since_oldest first_where oldest_kept trim",
        },
    )

__all__ = [
    "PAGE",
    "Difference",
    "Importer",
    "append",
    "compare",
    "export",
    "first_since_oldest",
    "first_where",
    "head",
    "list_topics",
    "newest",
    "oldest_kept",
    "read",
    "rebuild",
    "record_at",
    "records",
    "skip_offsets",
    "trim",
]

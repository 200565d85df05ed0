"""Operations on rate-limit buckets: their state, their charged rows, and their waiting callers.

A bucket's own row holds the sums and the last few charges (see `ratelimit/window.py` for what they
mean), `limit_rows` holds the charges before those, `limit_line` the tickets of the waiting
callers, lowest first. Reading a bucket locks it for other processes until the transaction ends.
Buckets are not in the log, because reservations are short-lived. Times are microseconds.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from harn.storage.operations import Operation, Row, Rows, ask, ask_many

BucketRow = tuple[Any, ...]
"""id, key, live, kept, head, next, head_us, tail_us, paused_us, the longest rule (limit, span),
when the last rule ends, other rules, how many rows are in `limit_rows`, the rows in the bucket
itself, whether the line must be read."""

ROW = ("bucket", "seq", "expires", "units")
PLACE = ("bucket", "ticket", "owner", "charge", "lines")
STATE = (
    "bucket",
    "live",
    "kept",
    "head",
    "next",
    "head_us",
    "tail_us",
    "paused_us",
    "rule_limit",
    "rule_us",
    "rule_until_us",
    "other_rules",
    "spilled",
    "recent",
)


class Head(NamedTuple):
    """The first ticket in a bucket's line, and when the lease of its owner expires."""

    ticket: int
    owner: str
    until_us: int | None


class ListedBucket(NamedTuple):
    """A bucket as an operator sees it: the units that count now, and how many callers wait."""

    key: str
    limit: int
    span_us: int
    until_us: int
    other_rules: str
    paused_us: int
    used: int
    frees_us: int | None
    rows: int
    waiting: int


def lock_buckets(keys: Sequence[str]) -> Operation[list[BucketRow]]:
    """Read and lock the buckets of *keys*, sorted and without repeats; missing ones are made."""
    while True:
        if len(keys) == 1:
            rows: Rows = yield ask("limit_bucket", key=keys[0])
        else:
            rows = yield ask("limit_buckets", keys=_as_json(keys))
        if len(rows) == len(keys):
            return rows
        yield ask("limit_make", keys=_as_json(keys))


def version() -> Operation[int]:
    """Return a number that changes when another connection has written to the file."""
    [(number,)] = yield ask("limit_version")
    return int(number)


def _as_json(keys: Sequence[str]) -> str:
    return msgspec.json.encode(keys).decode()


def line_heads(ids: Sequence[int]) -> Operation[tuple[int | None, dict[int, Head]]]:
    """Return the store's own time, where it has one, and the first of each line."""
    rows = yield ask("limit_heads", ids=str(list(ids)))
    heads = {
        bucket: Head(ticket, owner, until)
        for bucket, _, ticket, owner, until in rows
        if bucket is not None
    }
    return (rows[0][1] if rows else None), heads


def rows_from(bucket: int, first: int, count: int) -> Operation[list[tuple[int, int, int]]]:
    """Read at most *count* charged rows from number *first* on: number, expiry, units."""
    rows = yield ask("limit_rows", bucket=bucket, first=first, count=count)
    return rows


def last_expiry(bucket: int, first: int) -> Operation[int | None]:
    """Return when the last row with units expires, from number *first* on."""
    rows = yield ask("limit_last", bucket=bucket, first=first)
    return int(rows[0][0]) if rows else None


def charge(rows: Sequence[Row]) -> Operation[None]:
    """Write charged rows: bucket, number, expiry, units."""
    yield ask_many("limit_insert_rows", ROW, rows)


def correct(bucket: int, seq: int, units: int) -> Operation[None]:
    """Set the units that a row was charged."""
    yield ask("limit_set_units", bucket=bucket, seq=seq, units=units)


def cut_back(bucket: int, latest: int) -> Operation[None]:
    """Let no row of *bucket* expire after *latest*."""
    yield ask("limit_cut_back", bucket=bucket, latest=latest)


def shift(bucket: int, first: int, by: int) -> Operation[None]:
    """Let every row of *bucket* from number *first* on expire *by* microseconds later."""
    yield ask("limit_shift", bucket=bucket, first=first, by=by)


def prune(bucket: int, below: int) -> Operation[None]:
    """Remove the rows of *bucket* before number *below*."""
    yield ask("limit_prune", bucket=bucket, below=below)


def store(states: Sequence[Row]) -> Operation[None]:
    """Write the state of buckets, in the order of `STATE`."""
    yield ask_many("limit_store", STATE, states)


def take_tickets(count: int) -> Operation[int]:
    """Take the next *count* numbers of the line and return the first."""
    [(last,)] = yield ask("limit_take_tickets", count=count)
    return int(last) - count + 1


def join(places: Sequence[Row]) -> Operation[None]:
    """Add tickets to lines: bucket, ticket, owner, charge, and in how many lines the ticket is."""
    yield ask_many("limit_join", PLACE, places)


def leave(places: Sequence[tuple[int, int]]) -> Operation[None]:
    """Remove tickets from lines: bucket, ticket."""
    yield ask_many("limit_leave", PLACE[:2], places)


class Ahead(NamedTuple):
    """The tickets ahead in a line: their charges, how many, and the most lines that one is in."""

    charge: int
    tickets: int
    lines: int


def those_ahead(bucket: int, ticket: int, most: int) -> Operation[Ahead]:
    """Sum up the first *most* tickets ahead of *ticket* in the line of *bucket*."""
    [(charge, count, lines)] = yield ask("limit_ahead", bucket=bucket, ticket=ticket, most=most)
    return Ahead(int(charge), int(count), int(lines))


def renew_owner(owner: str, until: int) -> Operation[bool]:
    """Renew the lease of *owner* until *until*; False if the owner had been removed."""
    known = yield ask("limit_owner", owner=owner)
    yield ask("limit_lease", owner=owner, until=until)
    return bool(known)


def drop_owner(owner: str) -> Operation[None]:
    """Remove *owner* and all its tickets."""
    yield ask("limit_drop_line", owner=owner)
    yield ask("limit_drop_owner", owner=owner)


def sweep(before: int) -> Operation[int]:
    """Remove some buckets unused since *before*, with their rows; return how many."""
    gone = yield ask("limit_sweep", before=before)
    for (bucket,) in gone:
        yield ask("limit_prune", bucket=bucket, below=2**62)
    yield ask("limit_drop_silent", before=before)
    return len(gone)


def server_time() -> Operation[int]:
    """Return the server's time; only a store with a server has one."""
    [(now,)] = yield ask("limit_now")
    return int(now)


def list_buckets(instant: int) -> Operation[list[ListedBucket]]:
    """List every bucket as it stands at *instant*."""
    rows = yield ask("limit_list", instant=instant)
    return [_use(row, instant) for row in rows]


def _use(row: Row, instant: int) -> ListedBucket:
    key, limit, span, until, others, paused, head, spilled, recent, used, frees, count, waiting = (
        row
    )
    inline = unpack_rows(recent)
    for number in range(max(0, head - spilled), len(inline) // 2):
        expires, units = inline[2 * number], inline[2 * number + 1]
        if expires > instant:
            used, count = used + units, count + 1
            if frees is None and units:
                frees = expires
    return ListedBucket(key, limit, span, until, others, paused, used, frees, count, waiting)


def unpack_rows(recent: bytes) -> array[int]:
    """Read the rows in a bucket itself: expiry and units alternate, little-endian."""
    rows = array("q")
    rows.frombytes(recent)
    if sys.byteorder != "little":
        rows.byteswap()
    return rows

"""Which consumers are alive: each renews one lease, and what it claimed ends when the lease does.

A consumer's lease is taken once and never again: a consumer that wakes too late takes another one.
So a claim, which names its lease, can be ended without harm as soon as that lease has expired.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harn.storage.operations import Operation, ask

LISTED_MS = 86_400_000
"""How long an expired consumer stays listed."""
BATCH = 100
"""Expired consumers that one look returns at most."""


class ConsumerLease(msgspec.Struct, frozen=True):
    """What a consumer says of itself when it renews its lease."""

    lease: str
    consumer_id: str
    host: str
    pid: int
    functions: dict[str, list[str] | None]
    """The queues that it serves, and the functions that it runs there; None for every job."""
    ttl_ms: int


class ExpiredConsumer(msgspec.Struct, frozen=True):
    """A consumer whose lease has expired, and the queues it may hold claims of."""

    lease: str
    consumer_id: str
    queues: list[str]


class Looked(msgspec.Struct, frozen=True):
    """Which consumers were found dead, and when to look again."""

    expired: list[ExpiredConsumer]
    next_expiry_in_ms: int | None
    """When the next lease expires, unless it is renewed."""
    changed_nothing: bool


class ConsumerRow(msgspec.Struct, frozen=True):
    """A consumer as it is listed."""

    lease: str
    consumer_id: str
    host: str
    pid: int
    queues: list[str]
    functions: dict[str, list[str] | None]
    started_at: int
    seen_at: int
    expires_at: int
    now: int


def keep_consumer(mine: ConsumerLease) -> Operation[bool]:
    """Renew a consumer's lease, or take it; False if it expired and its claims are being ended.

    An expired lease that no other consumer has noticed is as good as before.
    """
    rows = yield ask(
        "keep_consumer",
        lease=mine.lease,
        consumer=mine.consumer_id,
        host=mine.host,
        pid=mine.pid,
        queues=msgspec.json.encode(sorted(mine.functions)).decode(),
        functions=msgspec.json.encode(mine.functions).decode(),
        ttl=mine.ttl_ms,
    )
    return bool(rows)


def next_consumer_expiry() -> Operation[int | None]:
    """Return in how many milliseconds the next lease expires, unless it is renewed."""
    [(soonest, now)] = yield ask("next_consumer_expiry")
    return None if soonest is None else soonest - now


def take_expired_consumers() -> Operation[Looked]:
    """Return consumers whose lease has expired; it cannot be renewed any more.

    Their claims are to be ended, then `end_consumer` says so. A process that dies in between leaves
    that to the next one.
    """
    yield ask("take_expired_consumers")
    rows = yield ask("expired_consumers", limit=BATCH)
    expired = [ExpiredConsumer(lease, consumer, _names(queues)) for lease, consumer, queues in rows]
    soonest = yield from next_consumer_expiry()
    return Looked(expired, soonest, changed_nothing=not expired)


def end_consumer(lease: str) -> Operation[None]:
    """Note that an expired consumer's claims have been ended; forget those no longer listed."""
    yield ask("end_consumer", lease=lease)
    [(now,)] = yield ask("now")
    yield ask("forget_consumers", before=now - LISTED_MS)


def drop_consumer(lease: str) -> Operation[None]:
    """Forget a consumer that has stopped in order and holds no claim any more."""
    yield ask("drop_consumer", lease=lease)


def list_consumers(limit: int) -> Operation[list[ConsumerRow]]:
    """Return consumers, alive or expired within the last day, the oldest first."""
    rows = yield ask("list_consumers", limit=limit)
    found = []
    for lease, consumer, host, pid, queues, functions, *times in rows:
        known = msgspec.json.decode(functions, type=dict[str, list[str] | None])
        found.append(ConsumerRow(lease, consumer, host, pid, _names(queues), known, *times))
    return found


def _names(queues: Any) -> list[str]:
    return msgspec.json.decode(queues, type=list[str])

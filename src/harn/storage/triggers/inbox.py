"""The inbox: events on their way to a binding, each in an envelope with an owner.

Every change is a record of the log first; the tables are its fold (`trigger_fold.py`), kept by the
same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harn import topics
from harn.storage.codec import draft
from harn.storage.contract import Draft
from harn.storage.log import head
from harn.storage.operations import Operation, ask
from harn.storage.triggers.owners import renewal
from harn.storage.triggers.trigger_fold import lock, write

LAST = 2**62
"""An envelope after every other."""


def settle_envelope(envelope: int, owner: str, drafts: Sequence[Draft]) -> Operation[bool]:
    """Write the outcome of an envelope; false, and nothing written, if *owner* no longer has it.

    One of *drafts* is an outbox record that carries the envelope's number.
    """
    yield from lock(topics.TRIGGER_CLAIMS)
    if (yield ask("trigger_inbox_owner", envelope=envelope)) != [(owner,)]:
        return False
    yield from write(drafts)
    return True


def note_retry(
    envelope: int, owner: str, attempt: int, delay_ms: int, error: str
) -> Operation[bool]:
    """Note that *attempt* follows in *delay_ms*; false if *owner* no longer has the envelope."""
    if (yield ask("trigger_inbox_owner", envelope=envelope)) != [(owner,)]:
        return False
    [(now,)] = yield ask("now")
    payload = {
        "envelope": envelope,
        "attempt": attempt,
        "delay_ms": delay_ms,
        "due_ms": now + delay_ms,
        "error": error,
    }
    yield from write([draft(topics.TRIGGER_ATTEMPTS, "retry_scheduled", payload)])
    return True


class Orphan(msgspec.Struct, frozen=True):
    """An envelope that was taken over: where its dispatch stood."""

    envelope: int
    attempt: int
    due_ms: int
    taken: int
    """How many owners it has had, this one included and without those that left in order."""


def take_over(
    owner: str, bindings: frozenset[str], limit: int = 100, only: int | None = None
) -> Operation[list[Orphan]]:
    """Make *owner* the owner of envelopes of *bindings* whose owner is gone, oldest first.

    *only* is the one envelope to take, where no other is wanted. An owner that died counts in
    `taken`; one that left in order gives its attempt back.
    """
    yield from lock(topics.TRIGGER_CLAIMS)
    rows = yield ask(
        "trigger_inbox_orphans",
        bindings=msgspec.json.encode(sorted(bindings)).decode(),
        first=0 if only is None else only,
        last=LAST if only is None else only,
        limit=limit,
    )
    found = [
        (Orphan(envelope, attempt, due_ms, taken + died), bool(died))
        for envelope, attempt, due_ms, taken, died in rows
    ]
    if found:
        [(now,)] = yield ask("now")
        drafts = yield from renewal(owner, now)
        drafts += [
            draft(
                topics.TRIGGER_CLAIMS,
                "envelope_taken",
                {"envelope": each.envelope, "owner": owner, "died": died},
            )
            for each, died in found
        ]
        yield from write(drafts)
    return [each for each, _ in found]


class Pending(msgspec.Struct, frozen=True):
    """An envelope that is not settled."""

    envelope: int
    binding_id: str
    event_id: str
    owner: str
    attempt: int
    due_ms: int
    taken: int


class Inbox(msgspec.Struct, frozen=True):
    """The inbox in numbers, and its oldest envelopes."""

    now_ms: int
    unsettled: int
    waiting: int
    """Of the unsettled, those that wait for another attempt."""
    claims: int
    """Records ever written to the topic of claims. Of the delivery claims among them that were not
    removed, `held` are in force and `expired` have expired."""
    envelopes: int
    held: int
    expired: int
    oldest: list[tuple[Pending, bool]]
    """The oldest unsettled envelopes, and whether their owner is alive."""


def inbox(limit: int = 100) -> Operation[Inbox]:
    """Return the state of the whole inbox, all of one moment."""
    [(unsettled, waiting, now)] = yield ask("trigger_inbox_tally")
    [(held, expired)] = yield ask("trigger_dedupe_tally")
    claims = yield from head(topics.TRIGGER_CLAIMS)
    envelopes = yield from head(topics.TRIGGER_ENVELOPES)
    rows = yield ask("trigger_inbox_states", limit=limit)
    return Inbox(
        now_ms=int(now),
        unsettled=int(unsettled),
        waiting=int(waiting),
        claims=claims,
        envelopes=envelopes,
        held=int(held),
        expired=int(expired),
        oldest=[(Pending(*row[:7]), row[7] is not None and row[7] > now) for row in rows],
    )


def pending(limit: int = 100) -> Operation[tuple[int, list[Pending]]]:
    """Return how many envelopes are not settled, and the oldest of them."""
    [(count, _)] = yield ask("trigger_inbox_counts")
    rows = yield ask("trigger_inbox_pending", limit=limit)
    return int(count), [Pending(*row) for row in rows]

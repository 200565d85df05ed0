"""Operations of the triggers: the inbox, what is known already, schedules, dead letters.

Every change is a record of the log first; the tables are its fold (`trigger_fold.py`), kept by the
same transaction. What gates and circuits decide is in `triggergates.py`.

An event is taken in with the claim on its delivery id in one transaction: either it is known and
will be dispatched, or nothing happened at all. Who dispatches is an *owner*, a process that says
now and then that it lives; what a dead one leaves behind is taken over by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harn import topics
from harn.ids import digest
from harn.storage.codec import draft
from harn.storage.contract import Draft
from harn.storage.log import head
from harn.storage.operations import Operation, ask
from harn.storage.triggers.trigger_fold import lock, write

OWNER_MS = 30_000
"""How long an owner is believed to live after it last said so."""
KEEP_REPLAYS_MS = 10 * 365 * 86_400_000
"""How long the number of a replay is known: longer than any pool keeps its idempotency keys."""
LEFT = 0
"""Until when an owner lives that has said goodbye."""


class DedupeClaim(msgspec.Struct, frozen=True):
    """A delivery that must be taken in once: *key* in *scope*, with the digest of what it said."""

    scope: str
    key: str
    digest: str
    keep_ms: int


class Delivery(msgspec.Struct, frozen=True):
    """An event on its way to one binding; *claim* is the binding's own, where it has one."""

    binding_id: str
    binding_version: int
    claim: DedupeClaim | None = None


class NewEvent(msgspec.Struct, frozen=True):
    """An event to take in: its JSON-ready record, and everything to write with it."""

    id: str
    record: dict[str, Any]
    owner: str
    deliveries: tuple[Delivery, ...]
    claim: DedupeClaim | None = None
    instant: tuple[str, int] | None = None
    """For a schedule: its trigger and the instant, which must be later than the last one."""
    beside: tuple[Draft, ...] = ()
    """Records to write only if the event is new."""
    replay_of: str | None = None
    """The event that this one repeats; the replays of an event to a binding are numbered."""
    headers: dict[str, str] = {}


class TakenIn(msgspec.Struct, frozen=True):
    """What became of a new event: an envelope for each delivery, None where it was known."""

    envelopes: tuple[int | None, ...] = ()
    known_as: str | None = None
    """The event that holds the delivery id: this one is a repetition and was not taken in."""
    conflict: bool = False
    """A repetition in name only: what it says differs."""
    late: bool = False
    """The instant had fired before."""
    replay: int = 0
    """Which replay of its event to its binding this is, from 1; 0 for none."""


def take_in(event: NewEvent) -> Operation[TakenIn]:
    """Write *event* down for all its deliveries, unless it is known already."""
    yield from lock(topics.TRIGGER_CLAIMS)
    [(now,)] = yield ask("now")
    if event.claim is not None:
        held = yield from _held(event.claim)
        if held is not None:
            return TakenIn(known_as=held[0], conflict=held[1] != event.claim.digest)
    if event.instant is not None:
        rows = yield ask("trigger_cron_last", trigger_id=event.instant[0])
        if rows and rows[0][0] >= event.instant[1]:
            return TakenIn(late=True)
    drafts = list(event.beside)
    again: dict[str, Any] = {}
    if event.replay_of is not None:
        number, counted = yield from _numbered(event, event.replay_of, now)
        again = {"replay_of_event_id": event.replay_of, "replay": number}
        drafts.append(counted)
    if event.claim is not None:
        drafts.append(_claim_draft(event.claim, event.id, now))
    if event.instant is not None:
        drafts.append(_cron_draft(*event.instant))
    wanted: list[bool] = []
    for delivery in event.deliveries:
        known = delivery.claim is not None and (yield from _held(delivery.claim))
        wanted.append(not known)
        if known:
            continue
        if delivery.claim is not None:
            drafts.append(_claim_draft(delivery.claim, event.id, now))
        drafts.append(
            draft(
                topics.TRIGGER_ENVELOPES,
                "event_ingested",
                {
                    "trigger_id": delivery.binding_id,
                    "binding_version": delivery.binding_version,
                    "owner": event.owner,
                    "event": event.record,
                    **again,
                },
                event.headers,
            )
        )
    if any(wanted):
        drafts += yield from renewed(event.owner, now)
    placed = yield from write(drafts)
    envelopes = iter(
        id for item, id in zip(drafts, placed, strict=True) if item.kind == "event_ingested"
    )
    return TakenIn(
        tuple(next(envelopes) if each else None for each in wanted),
        replay=again.get("replay", 0),
    )


def _numbered(event: NewEvent, replay_of: str, now: int) -> Operation[tuple[int, Draft]]:
    """Find the next number of a replay, and the record that takes it.

    A claim holds each number, so that no other process gives the same one.
    """
    [delivery] = event.deliveries
    scope = f"replay:{delivery.binding_id}"
    number = 1
    while True:
        claim = DedupeClaim(scope, digest(replay_of, str(number)), "", KEEP_REPLAYS_MS)
        if (yield from _held(claim)) is None:
            return number, _claim_draft(claim, event.id, now)
        number += 1


def _held(claim: DedupeClaim) -> Operation[tuple[str, str] | None]:
    rows = yield ask("trigger_dedupe_find", scope=claim.scope, key=claim.key)
    return (rows[0][0], rows[0][1]) if rows else None


def _claim_draft(claim: DedupeClaim, event_id: str, now: int) -> Draft:
    return draft(
        topics.TRIGGER_CLAIMS,
        "dedupe_claim",
        {
            "scope": claim.scope,
            "key": claim.key,
            "event_id": event_id,
            "digest": claim.digest,
            "until_ms": now + claim.keep_ms,
        },
    )


def _cron_draft(trigger_id: str, instant: int) -> Draft:
    payload = {"trigger_id": trigger_id, "last_fired_at_ms": instant}
    return draft(topics.CRON_STATE, "cron_fired", payload)


def settle_envelope(envelope: int, owner: str, drafts: Sequence[Draft]) -> Operation[bool]:
    """Write what became of an envelope; false, and nothing written, if it is no longer ours.

    One of *drafts* is an outbox record that carries the envelope's number.
    """
    yield from lock(topics.TRIGGER_CLAIMS)
    rows = yield ask("trigger_inbox_get", envelope=envelope)
    if not rows or rows[0][0] != owner:
        return False
    yield from write(drafts)
    return True


def note_retry(
    envelope: int, owner: str, attempt: int, delay_ms: int, error: str
) -> Operation[bool]:
    """Note that *attempt* follows in *delay_ms*; false if the envelope is no longer ours."""
    rows = yield ask("trigger_inbox_get", envelope=envelope)
    if not rows or rows[0][0] != owner:
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
    """How many owners it has had, this one included."""


def take_over(owner: str, bindings: frozenset[str], limit: int = 100) -> Operation[list[Orphan]]:
    """Give envelopes of *bindings* whose owner is gone to *owner*, oldest first."""
    yield from lock(topics.TRIGGER_CLAIMS)
    rows = yield ask("trigger_inbox_orphans", limit=limit * 10)
    found = [
        Orphan(envelope, attempt, due_ms, taken + 1)
        for envelope, binding_id, attempt, due_ms, taken in rows
        if binding_id in bindings
    ][:limit]
    if found:
        [(now,)] = yield ask("now")
        drafts = yield from renewed(owner, now)
        drafts += [
            draft(
                topics.TRIGGER_CLAIMS, "envelope_taken", {"envelope": each.envelope, "owner": owner}
            )
            for each in found
        ]
        yield from write(drafts)
    return found


def keep_alive(owner: str) -> Operation[None]:
    """Say that *owner* lives, and clear away what has run out meanwhile."""
    yield from lock(topics.TRIGGER_OWNERS)
    [(now,)] = yield ask("now")
    rows = yield ask("trigger_owner_until", owner=owner)
    if rows and rows[0][0] == LEFT:
        return  # a late sign of life of somebody who has left
    drafts = [_alive(owner, now)]
    [(expired,)] = yield ask("trigger_dedupe_expired", before=now)
    if expired:
        drafts.append(draft(topics.TRIGGER_CLAIMS, "dedupe_pruned", {"before_ms": now}))
    [(gone,)] = yield ask("trigger_marks_expired", before=now)
    if gone:
        drafts.append(draft(topics.TRIGGER_FLOW, "marks_expired", {"before_ms": now}))
    for (silent,) in (yield ask("trigger_owners_stale", before=now - 100 * OWNER_MS)):
        drafts.append(draft(topics.TRIGGER_OWNERS, "owner_forgotten", {"owner": silent}))
    yield from write(drafts)


def leave(owner: str) -> Operation[None]:
    """Say that *owner* ends: what it leaves behind may be taken over at once."""
    yield from lock(topics.TRIGGER_OWNERS)
    rows = yield ask("trigger_owner_until", owner=owner)
    if rows:
        yield from write([draft(topics.TRIGGER_OWNERS, "owner_left", {"owner": owner})])


def renewed(owner: str, now: int) -> Operation[list[Draft]]:
    """Return a sign of life, unless there was one lately."""
    rows = yield ask("trigger_owner_until", owner=owner)
    if rows and (rows[0][0] > now + OWNER_MS // 2 or rows[0][0] == LEFT):
        return []
    return [_alive(owner, now)]


def _alive(owner: str, now: int) -> Draft:
    payload = {"owner": owner, "until_ms": now + OWNER_MS}
    return draft(topics.TRIGGER_OWNERS, "owner_alive", payload)


def cron_last(trigger_id: str) -> Operation[int | None]:
    """Return the last instant of a schedule that fired or was given up, or None."""
    rows = yield ask("trigger_cron_last", trigger_id=trigger_id)
    return int(rows[0][0]) if rows else None


def give_up(trigger_id: str, instant: int) -> Operation[None]:
    """Note that the instants of a schedule up to *instant* are not worth firing any more."""
    last = yield from cron_last(trigger_id)
    if last is None or last < instant:
        yield from write([_cron_draft(trigger_id, instant)])


class DeadLetter(msgspec.Struct, frozen=True):
    """Where a dead letter's latest record is, and how it stands."""

    id: str
    entry: int
    event_id: str
    binding_id: str
    state: str


def dead_letter(id: str) -> Operation[DeadLetter | None]:
    """Find the dead letter *id*."""
    rows = yield ask("trigger_dead_get", id=id)
    return DeadLetter(id, *rows[0]) if rows else None


def dead_letters(after: int = 0, limit: int = 100) -> Operation[tuple[int, list[DeadLetter]]]:
    """Return how many dead letters wait for somebody, and the oldest of them after *after*."""
    [(count, _)] = yield ask("trigger_dead_count")
    rows = yield ask("trigger_dead_pending", after=after, limit=limit)
    return int(count), [
        DeadLetter(id, entry, event_id, binding_id, "pending")
        for id, entry, event_id, binding_id in rows
    ]


def change_letter(id: str, expected: str, entry: Draft) -> Operation[bool]:
    """Write the new record *entry* of a dead letter if its state is still *expected*."""
    yield from lock(topics.TRIGGER_DLQ)
    rows = yield ask("trigger_dead_get", id=id)
    if not rows or rows[0][3] != expected:
        return False
    yield from write([entry])
    return True


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
    """How the inbox stands: what is under way, what waits, whose owner has gone."""

    now_ms: int
    unsettled: int
    waiting: int
    """Of the unsettled, those that wait for another attempt."""
    claims: int
    """Delivery claims ever written; `held` of them still hold, `expired` have run out."""
    envelopes: int
    held: int
    expired: int
    oldest: list[tuple[Pending, bool]]
    """The oldest unsettled envelopes, and whether their owner is alive."""


def inbox(limit: int = 100) -> Operation[Inbox]:
    """Look at the whole inbox at one moment."""
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

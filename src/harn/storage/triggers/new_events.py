"""A new event is written down, once.

An event is taken in with the claim on its delivery id in one transaction: either it is known and
will be dispatched, or nothing happened at all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harn import topics
from harn.ids import digest
from harn.storage.codec import draft
from harn.storage.contract import Draft
from harn.storage.operations import Operation, ask
from harn.storage.triggers.owners import renewal
from harn.storage.triggers.schedules import cron_last, fired_draft
from harn.storage.triggers.trigger_fold import lock, write

KEEP_REPLAYS_MS = 10 * 365 * 86_400_000
"""How long the number of a replay is known: longer than any pool keeps its idempotency keys."""


class DedupeClaim(msgspec.Struct, frozen=True):
    """A delivery that must be taken in once: *key* in *scope*, with the digest of its body."""

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
    """The outcome of `take_in`: an envelope for each delivery, None where it was known."""

    envelopes: tuple[int | None, ...] = ()
    known_as: str | None = None
    """The event that holds the delivery id: this one is a repetition and was not taken in."""
    conflict: bool = False
    """Whether the delivery id is known but the body differs."""
    late: bool = False
    """Whether the instant had fired before."""
    replay: int = 0
    """Which replay of its event to its binding this is, from 1; 0 for none."""


def take_in(event: NewEvent) -> Operation[TakenIn]:
    """Write *event* down for all its deliveries, unless it is known already."""
    yield from lock(topics.TRIGGER_CLAIMS)
    known = yield from _known(event)
    if known is not None:
        return known
    [(now,)] = yield ask("now")
    drafts = list(event.beside)
    again: dict[str, Any] = {}
    if event.replay_of is not None:
        number, counted = yield from _number_replay(event, event.replay_of, now)
        again = {"replay_of_event_id": event.replay_of, "replay": number}
        drafts.append(counted)
    if event.claim is not None:
        drafts.append(_claim_draft(event.claim, event.id, now))
    if event.instant is not None:
        drafts.append(fired_draft(*event.instant))
    wanted: list[bool] = []
    for delivery in event.deliveries:
        is_known = delivery.claim is not None and (yield from _held(delivery.claim))
        wanted.append(not is_known)
        if is_known:
            continue
        if delivery.claim is not None:
            drafts.append(_claim_draft(delivery.claim, event.id, now))
        drafts.append(_envelope_draft(event, delivery, again))
    if any(wanted):
        drafts += yield from renewal(event.owner, now)
    placed = yield from write(drafts)
    envelopes = iter(
        id for item, id in zip(drafts, placed, strict=True) if item.kind == "event_ingested"
    )
    return TakenIn(
        tuple(next(envelopes) if each else None for each in wanted),
        replay=again.get("replay", 0),
    )


def _known(event: NewEvent) -> Operation[TakenIn | None]:
    """Say why *event* is not to be taken in, or None if it is new."""
    if event.claim is not None:
        held = yield from _held(event.claim)
        if held is not None:
            return TakenIn(known_as=held[0], conflict=held[1] != event.claim.digest)
    if event.instant is not None:
        last = yield from cron_last(event.instant[0])
        if last is not None and last >= event.instant[1]:
            return TakenIn(late=True)
    return None


def _envelope_draft(event: NewEvent, delivery: Delivery, again: dict[str, Any]) -> Draft:
    payload = {
        "trigger_id": delivery.binding_id,
        "binding_version": delivery.binding_version,
        "owner": event.owner,
        "event": event.record,
        **again,
    }
    return draft(topics.TRIGGER_ENVELOPES, "event_ingested", payload, event.headers)


def _number_replay(event: NewEvent, replay_of: str, now: int) -> Operation[tuple[int, Draft]]:
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

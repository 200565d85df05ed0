"""The triggers' tables as a fold of the log.

Every operation appends its records and applies them to the tables in one step (`write`). The same
functions fold the log when the tables are rebuilt, and when the file engine, which has no shared
tables, reads what other processes wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harn import topics
from harn.storage.contract import TAKE_OFFSETS, Draft, Event
from harn.storage.indexes import Table
from harn.storage.log import append, first_since_oldest, first_where
from harn.storage.operations import Operation, ask


def lock(topic: str) -> Operation[None]:
    """Keep every other operation on *topic* waiting until the commit."""
    yield ask(TAKE_OFFSETS, topic=topic, count=0, largest=0)


def write(drafts: Sequence[Draft], *, places: bool = True) -> Operation[list[int]]:
    """Append *drafts* and apply them to the tables; return their offsets if they are wanted."""
    if not drafts:
        return []
    if not places and not any(item.topic in _FOLDS for item in drafts):
        yield from append(drafts, places=False)
        return []
    placed = yield from append(drafts)
    for item, (id, at) in zip(drafts, placed, strict=True):
        if item.topic in _FOLDS:
            payload = msgspec.json.decode(item.payload)
            event = Event(id, item.topic, item.kind, payload, {}, at)
            yield from _FOLDS[item.topic](event)
    return [id for id, _ in placed]


def _add_envelope(event: Event) -> Operation[None]:
    payload = event.payload
    yield ask(
        "trigger_inbox_add",
        envelope=event.id,
        binding_id=payload["trigger_id"],
        event_id=payload["event"]["id"],
        owner=payload["owner"],
    )


def _drop_envelope(event: Event) -> Operation[None]:
    if event.payload.get("envelope"):
        yield ask("trigger_inbox_drop", envelope=event.payload["envelope"])


def _set_retry(event: Event) -> Operation[None]:
    if event.kind == "retry_scheduled":
        fields = {name: event.payload[name] for name in ("envelope", "attempt", "due_ms")}
        yield ask("trigger_inbox_retry", **fields)


def _set_fired(event: Event) -> Operation[None]:
    payload = event.payload
    last = payload["last_fired_at_ms"]
    yield ask("trigger_cron_fire", trigger_id=payload["trigger_id"], last_ms=last)


def _set_owner(event: Event) -> Operation[None]:
    payload = event.payload
    if event.kind == "owner_alive":
        yield ask("trigger_owner_alive", owner=payload["owner"], until_ms=payload["until_ms"])
    elif event.kind == "owner_left":
        yield ask("trigger_owner_alive", owner=payload["owner"], until_ms=0)
    else:
        yield ask("trigger_owner_gone", owner=payload["owner"])


def _put_dead_letter(event: Event) -> Operation[None]:
    if event.kind == "dlq_entry":
        payload = event.payload
        yield ask(
            "trigger_dead_put",
            id=payload["id"],
            entry=event.id,
            event_id=payload.get("event_id") or "",
            binding_id=payload.get("binding_id") or "",
            state=payload["state"],
            at_ms=event.occurred_at_ms,
        )


def _apply_claim(event: Event) -> Operation[None]:
    kind, payload = event.kind, event.payload
    if kind == "dedupe_claim":
        names = ("scope", "key", "event_id", "digest", "until_ms")
        yield ask("trigger_dedupe_claim", **{name: payload[name] for name in names})
    elif kind == "dedupe_pruned":
        yield ask("trigger_dedupe_prune", before=payload["before_ms"])
    elif kind == "envelope_taken":
        died = int(payload.get("died", True))  # older records do not say it
        envelope, owner = payload["envelope"], payload["owner"]
        yield ask("trigger_inbox_take", envelope=envelope, owner=owner, died=died)


def _apply_flow(event: Event) -> Operation[None]:
    payload = event.payload
    if event.kind == "circuit_changed":
        if not payload["failures"]:
            yield ask("trigger_circuit_drop", destination=payload["destination"])
        else:
            yield ask("trigger_circuit_put", **payload)
        return
    if event.kind == "marks_expired":
        yield ask("trigger_marks_expire", before=payload["before_ms"])
        return
    gate, does = payload["gate"], payload["does"]
    if does in ("clear", "replace"):
        yield ask("trigger_marks_clear", gate=gate)
    if does in ("add", "replace"):
        if payload["prune_ms"]:
            before = payload["at_ms"] - payload["prune_ms"]
            yield ask("trigger_marks_prune", gate=gate, before=before)
        yield ask(
            "trigger_mark_add",
            gate=gate,
            ticket=event.id,
            owner="" if payload["prune_ms"] else payload["owner"],
            rank=payload["prune_ms"] or payload["rank"],
            held=int(payload["held"]),
            envelope=payload["envelope"],
            at_ms=payload["at_ms"],
        )
    elif does == "hold":
        for ticket in payload["tickets"]:
            yield ask("trigger_mark_hold", gate=gate, ticket=ticket, rank=payload["rank"])
    elif does == "drop":
        for ticket in payload["tickets"]:
            yield ask("trigger_mark_drop", gate=gate, ticket=ticket)


_FOLDS: dict[str, Callable[[Event], Operation[None]]] = {
    topics.TRIGGER_ENVELOPES: _add_envelope,
    topics.TRIGGER_CLAIMS: _apply_claim,
    topics.TRIGGER_OUTBOX: _drop_envelope,
    topics.TRIGGER_ATTEMPTS: _set_retry,
    topics.CRON_STATE: _set_fired,
    topics.TRIGGER_OWNERS: _set_owner,
    topics.TRIGGER_FLOW: _apply_flow,
    topics.TRIGGER_DLQ: _put_dead_letter,
}
"""What a record of each topic changes in the tables."""
_CIRCUIT = ("failures", "open_until_ms", "probing_until_ms")


def _table(name: str, table: str, columns: str) -> Table:
    return Table(
        table,
        tuple(columns.split()),
        f"trigger_dump_{name}",
        f"trigger_clear_{name}",
        f"trigger_restore_{name}",
    )


class TriggerIndex:
    """The fold of everything above."""

    name = "triggers"
    keeps_latest = False
    tables: tuple[Table, ...] = (
        _table("inbox", "trigger_inbox", "envelope binding_id event_id owner attempt due_ms taken"),
        _table("dedupe", "trigger_dedupe", "scope key event_id digest until_ms"),
        _table("cron", "trigger_cron", "trigger_id last_ms"),
        _table("owners", "trigger_owners", "owner until_ms"),
        _table("marks", "trigger_marks", "gate ticket owner rank held envelope at_ms"),
        _table(
            "circuits", "trigger_circuits", "destination failures open_until_ms probing_until_ms"
        ),
        _table("dead", "trigger_dead", "id entry event_id binding_id state at_ms"),
    )

    def wants(self, topic: str) -> bool:
        """Tell whether records of *topic* change these tables."""
        return topic in _FOLDS

    def fold(self, event: Event) -> Operation[None]:
        """Apply *event*."""
        return _FOLDS[event.topic](event)

    def forget(self, topic: str, below: int) -> Operation[None]:
        """Keep what is there: rows of settled events go when their keys expire."""
        return
        yield

    def held(self, topic: str, below: int, dedupe_ms: int) -> Operation[int | None]:
        """Return the oldest record that is needed: an unsettled envelope, a waiting dead letter or
        mark, a circuit with failures, an outcome whose envelope is still there, a key, an owner or
        an instant in force.
        """
        if topic == topics.TRIGGER_ENVELOPES:
            [(_, oldest)] = yield ask("trigger_inbox_counts")
        elif topic == topics.TRIGGER_DLQ:
            [(_, oldest)] = yield ask("trigger_dead_count")
        elif topic == topics.TRIGGER_FLOW:
            oldest = yield from _oldest_of_flow()
        elif topic == topics.CRON_STATE:
            oldest = yield from _newest_instants()
        else:
            oldest = yield from self._held_beside(topic, below)
        return None if oldest is None else int(oldest)

    def _held_beside(self, topic: str, below: int) -> Operation[int | None]:
        if topic == topics.TRIGGER_OWNERS:
            return (yield from _oldest_owner())
        held = [(yield from first_since_oldest(topic, topics.TRIGGER_ENVELOPES, below))]
        if topic == topics.TRIGGER_CLAIMS:
            [(now,)] = yield ask("now")
            held.append((yield from first_where(topic, lambda it: it.get("until_ms", 0) > now)))
        return min((each for each in held if each is not None), default=None)


def _oldest_owner() -> Operation[int | None]:
    """Return the first record that still holds of an owner that is not forgotten."""
    until: dict[Any, Any] = dict((yield ask("trigger_dump_owners")))
    return (
        yield from first_where(
            topics.TRIGGER_OWNERS, lambda it: until.get(it.get("owner")) == it.get("until_ms", 0)
        )
    )


def _oldest_of_flow() -> Operation[int | None]:
    [(mark,)] = yield ask("trigger_marks_oldest")
    circuits = {
        destination: tuple(row) for destination, *row in (yield ask("trigger_circuits_all"))
    }
    if not circuits:
        return None if mark is None else int(mark)
    circuit = yield from first_where(
        topics.TRIGGER_FLOW,
        lambda it: circuits.get(it.get("destination")) == tuple(it.get(name) for name in _CIRCUIT),
    )
    return min((int(each) for each in (mark, circuit) if each is not None), default=None)


def _newest_instants() -> Operation[int | None]:
    last = {trigger: ms for trigger, ms, *_ in (yield ask("trigger_dump_cron"))}
    return (
        yield from first_where(
            topics.CRON_STATE,
            lambda it: it.get("last_fired_at_ms", 0) >= last.get(it.get("trigger_id"), 0),
        )
    )

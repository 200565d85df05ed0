"""The triggers of a runtime: register them, accept events for them, fire them by hand.

An event is written to the store, with an envelope for each binding that it reaches, before any
handler sees it. The dispatches of one event start in the order of binding id and version and then
run concurrently: one that waits for a full pool does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from harn import topics
from harn.clock import REAL_TIME, resolve
from harn.current import current_frame
from harn.errors import did_you_mean
from harn.naming import check_data
from harn.storage import Draft, draft
from harn.storage.triggers import DedupeClaim, NewEvent, TakenIn, take_in
from harn.teardown import retrieve
from harn.telemetry.metrics import Metrics, Sample
from harn.telemetry.spans import current_ids, trace_headers
from harn.triggers.binding import Binding, State, TriggerBinding
from harn.triggers.dedupe_claims import claim_of_emit, delivery_to
from harn.triggers.dispatch_state import Dispatch, DispatchHandle
from harn.triggers.dispatcher import Dispatcher, traced
from harn.triggers.duplicate_count import Repetitions
from harn.triggers.event import TriggerEvent, check_field, check_tenant, event_at
from harn.triggers.matching import check_channel, route
from harn.triggers.not_found import NotFound
from harn.triggers.recovery import Recovery
from harn.triggers.secrets import without_credentials
from harn.triggers.sources import Sources

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.triggers.emit_receipt import EmitReceipt

EMIT_WAIT = 1.0
"""The longest time, in real seconds, that an emit waits for its handlers."""


class Accepted(msgspec.Struct, frozen=True):
    """The result of `Triggers.accept`."""

    event: TriggerEvent
    dispatches: tuple[Dispatch, ...] = ()
    known_as: str | None = None
    conflict: bool = False
    late: bool = False


class Triggers:
    """The triggers of a runtime: `runtime.service(Triggers)`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.dispatcher: Dispatcher = Dispatcher(runtime)
        self.sources: Sources = Sources(runtime, self)
        self.recovery: Recovery = Recovery(runtime, self)
        self.by_hand = False
        """Whether events come only from callers, as in a command that ends soon: no schedule or
        topic is followed, and no events of other processes are taken over."""
        self.taken_in: int = 0
        self._repetitions = runtime.service(Repetitions)
        self._active: dict[str, Binding] = {}
        self._draining: dict[str, Binding] = {}
        self._versions: dict[str, int] = {}
        self._store = self.dispatcher.store
        self._log = runtime.event_log
        runtime.service(Metrics).add(self._samples)

    # -- registration --------------------------------------------------------------------------

    def register(self, binding: Binding) -> TriggerBinding:
        """Register *binding*; a different definition of the same id is its next version."""
        self.runtime.warn_if_nothing_is_kept("trigger_register")
        before = self._active.get(binding.id)
        if before is not None and before.is_same(binding):
            return before.shown("active")
        version = self._versions.get(binding.id, 0) + 1
        self._versions[binding.id] = version
        binding = binding.at_version(version)
        if before is not None:
            self._retire(before)
        self._active[binding.id] = binding
        self._tell("trigger_registered", binding)
        if not self.by_hand:
            self.sources.begin(binding)
            self.recovery.begin()
        return binding.shown("active")

    def unregister(self, id: str) -> bool:
        """Remove a trigger; dispatches under way finish."""
        binding = self._active.pop(id, None)
        if binding is None:
            return False
        self.sources.end(id)
        self._retire(binding)
        return True

    def listed(self) -> list[TriggerBinding]:
        """Return every registered trigger and every draining version, by id and version."""
        self._forget_drained()
        shown = [(binding, "active") for binding in self._active.values()]
        shown += [(binding, "draining") for binding in self._draining.values()]
        shown.sort(key=lambda pair: (pair[0].id, pair[0].version))
        return [binding.shown(_state(state)) for binding, state in shown]

    def get(self, id: str) -> Binding:
        """Return the trigger *id*, or raise `TriggerError` with the nearest name."""
        found = self._active.get(id)
        if found is None:
            raise NotFound(f"no trigger {id!r}{did_you_mean(id, self._active)}")
        return found

    def find(self, id: str) -> Binding | None:
        """Return the trigger *id* if it is registered."""
        return self._active.get(id)

    def active(self) -> list[Binding]:
        """Return the registered triggers."""
        return list(self._active.values())

    def _retire(self, binding: Binding) -> None:
        self._draining[binding.key] = binding
        self._tell("trigger_draining", binding)
        self._forget_drained()

    def _forget_drained(self) -> None:
        for key in [key for key in self._draining if not self.dispatcher.is_running(key)]:
            self._tell("trigger_terminated", self._draining.pop(key))

    def _tell(self, kind: str, binding: Binding) -> None:
        shown = binding.shown(_state(kind.removeprefix("trigger_"))).as_dict()
        self._log.record(topics.TRIGGER_LIFECYCLE, kind, shown)

    # -- events --------------------------------------------------------------------------------

    def new_event(
        self,
        *,
        provider: str,
        kind: str,
        payload: dict[str, Any],
        occurred_ms: int | None = None,
        tenant_id: str | None = None,
        **fields: Any,
    ) -> TriggerEvent:
        """Return a new event, received now."""
        received_at = event_at(self.runtime.clock.now_ms())
        tenant = tenant_id or current_frame().task.ambient.tenant_id
        if tenant is not None:
            check_tenant(tenant)
        return TriggerEvent(
            id=fields.pop("id", None) or self.runtime.ids.new("trigger_evt"),
            provider=provider,
            kind=kind,
            received_at=received_at,
            occurred_at=fields.pop("occurred_at", None)
            or (received_at if occurred_ms is None else event_at(occurred_ms)),
            trace_id=fields.pop("trace_id", None) or current_ids()[0],
            tenant_id=tenant,
            provider_payload=payload,
            **fields,
        )

    def reached(self, event: TriggerEvent) -> list[Binding]:
        """Return the registered triggers that *event* reaches, in the order of dispatch."""
        return route(self._active.values(), event)

    async def accept(
        self,
        event: TriggerEvent,
        bindings: Sequence[Binding],
        *,
        claim: DedupeClaim | None = None,
        instant: tuple[str, int] | None = None,
        beside: Sequence[Draft] = (),
        replay_of: str | None = None,
    ) -> Accepted:
        """Write *event* for *bindings* and start its dispatches, unless the event is known.

        The event is durable on return. Cancelling before it is written means that nothing
        happened; afterwards its dispatches run.
        """
        self.runtime.warn_if_nothing_is_kept("a trigger's event")
        event = self._without_credentials(event)
        # The envelope's headers hold the span's ids: a dispatch belongs to this trace even if
        # another process runs it later.
        with traced("trigger.accept", {"event_id": event.id, "reached": len(bindings)}):
            new = NewEvent(
                id=event.id,
                record=event.as_dict(),
                owner=self.dispatcher.owner,
                deliveries=tuple(delivery_to(binding, event, replay_of) for binding in bindings),
                claim=claim,
                instant=instant,
                beside=tuple(beside),
                replay_of=replay_of,
                headers={
                    "event_id": event.id,
                    "provider": event.provider,
                    "kind": event.kind,
                    **trace_headers(),
                },
            )
            # In its own task: a cancel between the commit and the start would leave the event
            # undispatched until another process took it over.
            accepting = asyncio.ensure_future(self._write_and_start(new, event, bindings))
            self.runtime.own(accepting)
            return await asyncio.shield(accepting)

    def _without_credentials(self, event: TriggerEvent) -> TriggerEvent:
        """Remove headers that may contain a secret, also from an event that is replayed."""
        kept = without_credentials(event.headers, self.runtime.settings.credential_headers)
        return event if kept == event.headers else msgspec.structs.replace(event, headers=kept)

    async def _write_and_start(
        self, new: NewEvent, event: TriggerEvent, bindings: Sequence[Binding]
    ) -> Accepted:
        taken: TakenIn = await self._store.run(partial(take_in, new))
        self.taken_in += 1
        if taken.known_as is not None or taken.late:
            self._repetitions.refused += 1
            return Accepted(event, (), taken.known_as, taken.conflict, taken.late)
        dispatches = []
        for binding, envelope in zip(bindings, taken.envelopes, strict=True):
            known = envelope is None
            dispatch = Dispatch(
                binding,
                event,
                envelope or 0,
                replay_of=new.replay_of,
                replay=taken.replay,
                known=known,
                came_with=new.headers,
            )
            dispatches.append(dispatch)
            if not known:
                self.dispatcher.start(dispatch)
        if self._store.is_memory and self.taken_in % 1000 == 0:
            await self.recovery.bound_memory()
        self.recovery.begin()
        return Accepted(event, tuple(dispatches))

    async def fire(self, id: str, payload: Any = None, **fields: Any) -> DispatchHandle:
        """Fire one trigger by hand and wait for the end; see `trigger_fire`.

        Cancelling stops waiting; a dispatch whose event has been written still runs.
        """
        binding = self.get(id)
        fields.setdefault("kind", binding.first_event())
        for name, value in fields.items():
            check_field(name, value)
        provided: dict[str, Any] = {"payload": payload}
        if binding.kind == "channel.emit":
            provided["name"] = _channel_of(binding)
            fields["kind"] = "channel.emit"
        event = self.new_event(provider=binding.provider, payload=provided, **fields)
        accepted = await self.accept(event, [binding])
        return await accepted.dispatches[0].wait()

    async def emit(self, name: str, payload: Any, *, id: str | None = None) -> EmitReceipt:
        """Emit on a channel; see `channel_emit`.

        Cancelling before the event is written means that nothing happened; afterwards its
        dispatches run.
        """
        from harn.triggers.emit_receipt import EmitReceipt  # its class takes a while to make

        check_channel(name)
        if id is not None:
            check_data("id", id, 500)
        provided = {"name": name, "payload": payload}
        event = self.new_event(
            provider="channel", kind="channel.emit", payload=provided, dedupe_key=id
        )
        bindings = self.reached(event)
        claim = None if id is None else claim_of_emit(event, name, id)
        accepted = await self.accept(
            event, bindings, claim=claim, beside=_emit_records(event, name, payload, bindings)
        )
        if accepted.known_as is not None:
            return EmitReceipt(accepted.known_as, name, True)
        await self.wait_briefly(accepted.dispatches)
        return EmitReceipt(event.id, name, False, tuple(d.handle() for d in accepted.dispatches))

    async def wait_briefly(self, dispatches: Sequence[Dispatch]) -> None:
        """Wait until every dispatch has ended or is parked, for `EMIT_WAIT` seconds at most.

        Cancelling leaves the dispatches alone.
        """
        if all(each.outcome is not None for each in dispatches):
            return
        for _ in range(3):  # many handlers end within a few turns of the loop
            await asyncio.sleep(0)
        waiting = asyncio.gather(*(each.wait_or_park() for each in dispatches))
        enough = asyncio.get_running_loop().create_future()
        timer = REAL_TIME.call_at(REAL_TIME.monotonic() + EMIT_WAIT, partial(resolve, enough))
        try:
            await asyncio.wait((waiting, enough), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiting.cancel()
            waiting.add_done_callback(retrieve)  # asyncio would log the cancel as an error

    async def replay(self, event: TriggerEvent, binding_id: str) -> Dispatch:
        """Dispatch *event* again to one trigger, as a new event that names the old one."""
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        fields["id"] = self.runtime.ids.new("trigger_evt")
        fields["received_at"] = event_at(self.runtime.clock.now_ms())
        accepted = await self.accept(
            TriggerEvent(**fields), [self.get(binding_id)], replay_of=event.id
        )
        return accepted.dispatches[0]

    async def aclose(self) -> None:
        """End this process's lease, so that its unfinished events can be taken over at once."""
        if self.taken_in or self.recovery.recovered:
            await self.recovery.leave()

    def _samples(self) -> list[Sample]:
        counts = self.dispatcher.counts
        return [
            *(Sample("harn_trigger_dispatches_total", n, (name,)) for name, n in counts.items()),
            Sample("harn_trigger_in_flight", len(self.dispatcher.running)),
            Sample("harn_trigger_duplicates_total", self._repetitions.refused),
        ]


def _emit_records(
    event: TriggerEvent, name: str, payload: Any, bindings: Sequence[Binding]
) -> list[Draft]:
    headers = {"event_id": event.id}
    receipt = {
        "event_id": event.id,
        "name_resolved": name,
        "tenant_id": event.tenant_id,
        "id": event.dedupe_key,
        "reached": [binding.id for binding in bindings],
    }
    return [
        draft(topics.channel_topic(name), "channel.emit", payload, headers),
        draft(topics.CHANNEL_AUDIT, "channel_emit_receipt", receipt, headers),
    ]


def _channel_of(binding: Binding) -> str:
    for name in binding.match.events:
        if name.startswith("channel:"):
            return name.removeprefix("channel:")
    return ""


def _state(word: str) -> State:
    return "draining" if word == "draining" else "terminated" if word == "terminated" else "active"

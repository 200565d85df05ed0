"""A dispatch from its envelope to its outcome: gates, attempts, and the final records.

A dispatch begins when its envelope is in the store and ends with an outbox record that settles the
envelope, in one transaction with the dead letter if there is one. If a process dies in between,
another one takes the envelope over: a handler may see an event twice, but sees it at least once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from harn import topics
from harn.clock import from_iso, resolve, sleep_until
from harn.context import Task
from harn.errors import StorageError
from harn.graceful_stop import request_stop
from harn.plurals import counted
from harn.storage import Store
from harn.storage.log import read
from harn.storage.triggers import settle_envelope
from harn.tasks import launch
from harn.telemetry.spans import fail_span, span, span_after, tracing
from harn.triggers.attempts import Attempts, Stopped
from harn.triggers.dispatch_state import Dispatch, Outcome
from harn.triggers.event import TriggerEvent, event_from
from harn.triggers.gates import Entrant, Gates
from harn.triggers.handler_failure import failure_of
from harn.triggers.outcomes import headers_of, outcome_records
from harn.triggers.secrets import Secrets
from harn.triggers.stored_circuits import Circuits
from harn.unsettled_sources import PartialHandoff, QueuedTrigger, UnsettledSources

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.triggers")

MOST_TAKEN = 5
"""Processes that may die while they dispatch one event, before it becomes a dead letter. Those that
stop in order do not count."""
SETTLE_ATTEMPTS = 5
WORN_OUT = "its handler has ended {ended} before this one"


class Dispatcher:
    """Runs dispatches; each runtime has one."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.owner: str = runtime.ids.new("owner")
        self.store: Store = runtime.service(Store)
        self.running: dict[int, Dispatch] = {}
        """Dispatches that have not ended, by envelope."""
        self.counts: dict[str, int] = dict.fromkeys(
            ("succeeded", "failed", "dlq", "skipped", "cancelled"), 0
        )
        self.gates: Gates = Gates(runtime, self.owner)
        self.circuits: Circuits = Circuits(runtime)
        self._attempts = Attempts(runtime, self.owner, self.gates, self.circuits)
        self._secrets = runtime.service(Secrets)
        self._idle: list[asyncio.Future[None]] = []
        unsettled = runtime.service(UnsettledSources)
        unsettled.add("queued_triggers", self._queued)
        unsettled.add("partial_handoffs", self._handoffs)

    def start(self, dispatch: Dispatch) -> None:
        """Start *dispatch* as a task of the runtime."""
        binding, event, root = dispatch.binding, dispatch.event, self.runtime.root
        ambient = msgspec.structs.replace(
            root.ambient,
            trigger_id=binding.id,
            trigger_event_id=event.id,
            binding_key=binding.key,
            tenant_id=event.tenant_id or root.ambient.tenant_id,
            provider=event.provider,
        )
        task = Task(self.runtime, root.child_id("trigger"), binding.key, root, ambient=ambient)
        dispatch.task = task
        self.running[dispatch.envelope] = dispatch
        launch(task, self._carry_out, (dispatch,))

    def request_stop(self) -> None:
        """Ask the handlers to stop: each gets `TaskCancelled` once, in a wait of this library.

        If the handler does not catch it, its event stays in the inbox, as after a cancel.
        """
        for dispatch in list(self.running.values()):
            if dispatch.task is not None:
                request_stop(dispatch.task)

    async def idle(self) -> None:
        """Wait until no dispatch runs. Cancelling changes nothing."""
        while self.running:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(woken)
            await woken

    async def changed(self) -> None:
        """Wait until a running dispatch ends or is parked. Cancelling changes nothing."""
        waits = [asyncio.ensure_future(each.next_change()) for each in self.running.values()]
        try:
            if waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def is_running(self, binding_key: str) -> bool:
        """Tell whether a version of a trigger still has a running dispatch."""
        return any(each.binding.key == binding_key for each in self.running.values())

    def _queued(self) -> list[QueuedTrigger]:
        return [
            QueuedTrigger(
                trigger_id=each.binding.id,
                binding_key=each.binding.key,
                event_id=each.event.id,
                attempt=each.attempt,
                tenant_id=each.event.tenant_id,
                received_at=each.event.received_at,
                age_ms=self._age_ms(each.event),
            )
            for each in self.running.values()
            if each.is_parked
        ]

    def _handoffs(self) -> list[PartialHandoff]:
        return [
            PartialHandoff(
                kind="dispatch",
                id=each.event.id,
                name=each.binding.id,
                attempt=each.attempt,
                tenant_id=each.event.tenant_id,
                consumer_id=None,
                age_ms=self._age_ms(each.event),
            )
            for each in self.running.values()
            if not each.is_parked
        ]

    def _age_ms(self, event: TriggerEvent) -> int:
        return max(0, self.runtime.clock.now_ms() - from_iso(event.received_at))

    async def _carry_out(self, dispatch: Dispatch) -> None:
        outcome = Outcome("cancelled")
        try:
            name = f"trigger.dispatch {dispatch.binding.id}"
            about = headers_of(dispatch) if tracing() else None
            with span_after(name, dispatch.came_with, about):
                outcome = await self._to_outcome(dispatch)
                if outcome.status in ("failed", "dlq"):
                    fail_span(outcome.error or "failed")
        except Stopped:
            pass  # the envelope stays in the inbox, and the next process dispatches it
        except Exception as error:
            # The store failed. The envelope is not settled, so a process takes it over later.
            failure = failure_of(error, self._secrets)
            outcome = Outcome("failed", error=failure.text)
            logger.error(
                "%s: event %s: %s\n%s",
                *(dispatch.binding.key, dispatch.event.id, failure.text, failure.traceback),
            )
        finally:
            self.running.pop(dispatch.envelope, None)
            self.counts[outcome.status] += 1
            logger.info(
                "%s: event %s %s, attempts: %d",
                *(dispatch.binding.key, dispatch.event.id, outcome.status, outcome.attempt_count),
            )
            dispatch.end(outcome)
            if not self.running:
                idle, self._idle = self._idle, []
                for woken in idle:
                    resolve(woken)

    async def _to_outcome(self, dispatch: Dispatch) -> Outcome:
        if dispatch.taken > MOST_TAKEN:
            worn_out = WORN_OUT.format(ended=counted(dispatch.taken - 1, "process", "processes"))
            return await self._settle(dispatch, self._attempts.dead(dispatch, 0, worn_out, ()))
        binding = dispatch.binding
        entrant = Entrant(
            binding.id, dispatch.event, dispatch.envelope, binding.flow, dispatch.park
        )
        passage = await self.gates.enter(entrant)
        try:
            if passage.skipped is not None:
                return await self._settle(dispatch, Outcome("skipped", skip=passage.skipped))
            if passage.members:
                dispatch.event = await self._with_batch(dispatch.event, passage.members)
            outcome = await self._attempts.run(dispatch, entrant, passage)
            return await self._settle(dispatch, outcome)
        finally:
            await self.gates.leave(entrant, passage)

    async def _with_batch(self, event: TriggerEvent, envelopes: tuple[int, ...]) -> TriggerEvent:
        members = [await self.event_of(envelope) for envelope in envelopes]
        return _with(event, batch=tuple(member for member in members if member is not None))

    async def event_of(self, envelope: int) -> TriggerEvent | None:
        """Read the event of an envelope; None if it is no longer there or cannot be read."""
        found, _ = await self.store.run(
            lambda: read(topics.TRIGGER_ENVELOPES, envelope - 1, 1), write=False
        )
        if not found or found[0].id != envelope:
            return None
        try:
            return event_from(found[0].payload["event"])
        except (ValueError, KeyError, TypeError):
            return None

    # -- outcome -------------------------------------------------------------------------------

    async def _settle(self, dispatch: Dispatch, outcome: Outcome) -> Outcome:
        """Write the outcome; retry a few times while the store cannot be reached."""
        clock = self.runtime.clock
        drafts = outcome_records(dispatch, outcome, clock.now_ms())
        for attempt in range(1, SETTLE_ATTEMPTS + 1):
            try:
                ours = await self.store.run(
                    partial(settle_envelope, dispatch.envelope, self.owner, drafts)
                )
            except StorageError:
                if attempt == SETTLE_ATTEMPTS:
                    raise
                await sleep_until(clock, clock.monotonic() + 0.1 * 2**attempt)
                continue
            if not ours:
                logger.warning("event %s: another process has taken it over", dispatch.event.id)
            return outcome
        raise AssertionError("unreachable")


def traced(name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Open a span around the block, if spans are exported; it holds no payload."""
    return span(name, attributes) if tracing() else nullcontext()


def _with(event: TriggerEvent, **changes: Any) -> TriggerEvent:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return TriggerEvent(**{**fields, **changes})

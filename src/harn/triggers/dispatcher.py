"""From an event that is known to a result that is known: gates, circuit, attempts, outcome.

A dispatch begins when its envelope is in the store and ends with an outbox record that settles the
envelope, in one transaction with the dead letter if there is one. A process that dies in between
leaves the envelope to another: handlers may see an event twice, never not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.clock import from_iso, resolve, sleep_until
from harn.context import Task
from harn.errors import HarnError, StorageError
from harn.graceful import is_stop, request_stop
from harn.storage import Store
from harn.storage.log import read
from harn.storage.triggers import (
    CircuitRow,
    at_circuit,
    has_no_failures,
    note_retry,
    settle_envelope,
)
from harn.tasks import launch
from harn.telemetry.failures import traceback_text
from harn.telemetry.logs import FAILED_WORK
from harn.telemetry.spans import fail_span, note_exception, span, span_after, tracing
from harn.triggers.binding import Binding
from harn.triggers.circuit import Circuit, admit, after_failure, after_success
from harn.triggers.dispatch_state import Dispatch, Outcome
from harn.triggers.event import TriggerEvent, event_at, event_from
from harn.triggers.gates import Entrant, Gates, Passage
from harn.triggers.outcomes import headers_of, outcome_records, plain
from harn.triggers.secrets import Secrets
from harn.triggers.targets import Call, NotRetryable
from harn.unsettled import PartialHandoff, QueuedTrigger, UnsettledSources
from harn.workers import Failure

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger = logging.getLogger("harn.triggers")

MOST_TAKEN = 5
"""Processes that may die over one event before it is set aside."""
TRUSTED = 1.0
"""Seconds for which a destination without failures is not looked up again."""
SETTLE_ATTEMPTS = 5
MOST_ERROR = 4000
WORN_OUT = "its handler has ended {n} processes before this one"
OPENED = "destination circuit opened: {n} failures in a row, the last: {error}"
IS_OPEN = "destination circuit is open: the handler failed again and again; it is tried in a minute"


class Dispatcher:
    """Carries dispatches out; one for each runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.owner = runtime.ids.new("owner")
        self.store = runtime.service(Store)
        self.running: dict[int, Dispatch] = {}
        """Dispatches under way, by envelope."""
        self.counts = {"succeeded": 0, "failed": 0, "dlq": 0, "skipped": 0, "cancelled": 0}
        self.gates = Gates(runtime, self.owner)
        self._log = runtime.event_log
        self._secrets = runtime.service(Secrets)
        self._working: dict[str, float] = {}
        """Until when a destination counts as working without a look at the store."""
        self._idle: list[asyncio.Future[None]] = []
        unsettled = runtime.service(UnsettledSources)
        unsettled.add("queued_triggers", self._queued)
        unsettled.add("partial_handoffs", self._handoffs)

    def start(self, dispatch: Dispatch) -> None:
        """Begin; the dispatch runs as a task of the runtime."""
        binding, event, root = dispatch.binding, dispatch.event, self.runtime.root
        ambient = replace(
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
        """Ask the handlers to stop: each is told in a wait of this library, once.

        The event of a handler that lets the stop pass stays in the inbox, as after a cancel.
        """
        for dispatch in list(self.running.values()):
            if dispatch.task is not None:
                request_stop(dispatch.task)

    async def idle(self) -> None:
        """Wait until nothing is under way. Cancelling leaves everything alone."""
        while self.running:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(woken)
            await woken

    async def changed(self) -> None:
        """Wait until a dispatch under way ends or begins to wait. Cancelling changes nothing."""
        waits = [asyncio.ensure_future(each.next_change()) for each in self.running.values()]
        try:
            if waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def is_running(self, binding_key: str) -> bool:
        """Tell whether a version of a trigger still has work under way."""
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
            with span_after(name, dispatch.came_with, headers_of(dispatch)):
                outcome = await self._to_outcome(dispatch)
                if outcome.status in ("failed", "dlq"):
                    fail_span(outcome.error or "failed")
        except _Stopped:
            pass  # the envelope stays in the inbox, and the next process dispatches it
        except Exception as error:
            # The store failed: the envelope stays, and the process that takes it over tries again.
            outcome = Outcome("failed", error=self.text_of(error))
            logger.error(
                "%s: event %s: %s\n%s",
                dispatch.binding.key,
                dispatch.event.id,
                outcome.error,
                self.failure_of(error).traceback,
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
            worn_out = WORN_OUT.format(n=dispatch.taken - 1)
            return await self._settle(dispatch, self._dead(dispatch, 0, worn_out, ()))
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
            outcome = await self._attempts(dispatch, entrant, passage)
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

    # -- attempts ------------------------------------------------------------------------------

    async def _attempts(self, dispatch: Dispatch, entrant: Entrant, passage: Passage) -> Outcome:
        retry = dispatch.binding.retry
        history: list[dict[str, Any]] = []
        await self._wait_until_due(dispatch, entrant, passage)
        for attempt in range(dispatch.attempt, max(retry.max, dispatch.attempt) + 1):
            if not await self.may_try(dispatch.binding):
                return self._dead(dispatch, attempt - 1, IS_OPEN, history)
            error: BaseException | None = None
            failure: Failure | None = None
            dispatch.go_on()
            if dispatch.task is not None and dispatch.task.cancel_requested:
                raise _Stopped  # no attempt begins after the stop
            try:
                result = await dispatch.binding.target.deliver(self._call(dispatch, attempt))
            except (Exception, SystemExit) as raised:
                if dispatch.task is not None and is_stop(dispatch.task, raised):
                    raise _Stopped from raised
                error, failure = raised, self.failure_of(raised)
            self._note_attempt(dispatch, attempt, error, failure, history)
            if error is None or failure is None:
                await self.note_result(dispatch.binding, None)
                return Outcome("succeeded", attempt, plain(result), history=tuple(history))
            text = failure.text
            if isinstance(error, NotRetryable | NotImplementedError):
                return self._dead(dispatch, attempt, text, history, failure)
            if await self.note_result(dispatch.binding, error):
                opened = OPENED.format(n=5, error=text)
                return self._dead(dispatch, attempt, opened, history, failure)
            if attempt < retry.max:
                await self._back_off(dispatch, entrant, passage, attempt + 1, text)
        return self._dead(dispatch, retry.max, text, history, failure)

    def _call(self, dispatch: Dispatch, attempt: int) -> Call:
        binding = dispatch.binding
        return Call(
            self.runtime,
            dispatch.event,
            binding.id,
            binding.key,
            binding.version,
            binding.priority,
            attempt,
            dispatch.replay_of,
            dispatch.replay,
        )

    async def _back_off(
        self, dispatch: Dispatch, entrant: Entrant, passage: Passage, attempt: int, error: str
    ) -> None:
        delay = dispatch.binding.retry.before(attempt)
        if not delay:
            return
        dispatch.attempt = attempt
        dispatch.due_ms = self.runtime.clock.now_ms() + round(delay * 1000)
        await self.store.run(
            partial(
                note_retry, dispatch.envelope, self.owner, attempt, round(delay * 1000), error[:500]
            )
        )
        await self._wait_until_due(dispatch, entrant, passage)

    async def _wait_until_due(self, dispatch: Dispatch, entrant: Entrant, passage: Passage) -> None:
        clock = self.runtime.clock
        left = (dispatch.due_ms - clock.now_ms()) / 1000
        if left <= 0:
            return
        await self.gates.pause(entrant, passage)
        dispatch.park()
        await sleep_until(clock, clock.monotonic() + left)
        await self.gates.resume(entrant, passage)

    async def may_try(self, binding: Binding) -> bool:
        """Tell whether the circuit of *binding*'s destination lets a dispatch through."""

        def decide(row: CircuitRow, now: int) -> tuple[bool, CircuitRow]:
            admitted, after = admit(_circuit(row), now)
            return admitted, _row(after)

        if await self._is_working(binding.destination):
            return True
        return bool(await self.store.run(lambda: at_circuit(binding.destination, decide)))

    async def _is_working(self, destination: str) -> bool:
        """Tell whether no failure of a destination is known, as of a second ago at most.

        The circuits are in the store, for all processes. Most destinations never fail, so a
        dispatch does not read the store each time: what another process learns is seen within
        `TRUSTED` seconds, and a failure of this process at once.
        """
        now = self.runtime.clock.monotonic()
        if self._working.get(destination, 0.0) > now:
            return True
        if await self.store.run(lambda: has_no_failures(destination), write=False):
            self._working[destination] = now + TRUSTED
            return True
        return False

    async def note_result(self, binding: Binding, error: BaseException | None) -> bool:
        """Count a success or a failure; tell whether the circuit is open now."""

        def decide(row: CircuitRow, now: int) -> tuple[bool, CircuitRow]:
            circuit = _circuit(row)
            after = after_success(circuit) if error is None else after_failure(circuit, now)
            return after.state(now) == "open", _row(after)

        if error is not None:
            self._working.pop(binding.destination, None)
        elif await self._is_working(binding.destination):
            return False
        return bool(await self.store.run(lambda: at_circuit(binding.destination, decide)))

    def _note_attempt(
        self,
        dispatch: Dispatch,
        attempt: int,
        error: BaseException | None,
        failure: Failure | None,
        history: list[dict[str, Any]],
    ) -> None:
        at = event_at(self.runtime.clock.now_ms())
        text = None if failure is None else failure.text
        timed_out = isinstance(error, TimeoutError)
        status = "success" if error is None else "timeout" if timed_out else "failed"
        history.append({"attempt": attempt, "at": at, "status": status, "error": text})
        self._log.record(
            topics.TRIGGER_ATTEMPTS,
            "attempt_recorded",
            {
                "trigger_id": dispatch.binding.id,
                "binding_key": dispatch.binding.key,
                "event_id": dispatch.event.id,
                "attempt": attempt,
                "outcome": status,
                "error_msg": text,
                **({} if failure is None else failure.as_dict()),
            },
        )
        if failure is not None:
            note_exception(failure.as_dict())
            logger.warning(
                "%s: event %s failed in attempt %d: %s\n%s",
                *(dispatch.binding.key, dispatch.event.id, attempt, text, failure.traceback),
                extra=FAILED_WORK,
            )

    def text_of(self, error: BaseException) -> str:
        """Return what an error says, without secrets."""
        try:
            said = str(error)
        except Exception:
            said = "(its text cannot be shown)"
        if isinstance(error, HarnError):
            text = said
        else:
            text = f"handler raised {type(error).__name__}: {said}"
        return self._secrets.mask(text)[:MOST_ERROR]

    def failure_of(self, error: BaseException) -> Failure:
        """Describe what a handler raised, without secrets."""
        mask = self._secrets.mask
        try:
            message = mask(str(error))[:MOST_ERROR]
        except Exception:
            message = "(its text cannot be shown)"
        trace = mask(traceback_text(error))
        return Failure(self.text_of(error), type(error).__name__, message, trace)

    # -- the end -------------------------------------------------------------------------------

    def _dead(
        self,
        dispatch: Dispatch,
        attempts: int,
        error: str,
        history: Any,
        failure: Failure | None = None,
    ) -> Outcome:
        entry_id = self.runtime.ids.new("dlq")
        logger.error(
            "%s: event %s is a dead letter now, %s: %s",
            *(dispatch.binding.key, dispatch.event.id, entry_id, error),
            extra=FAILED_WORK,
        )
        return Outcome("dlq", attempts, None, error, entry_id, None, tuple(history), failure)

    async def _settle(self, dispatch: Dispatch, outcome: Outcome) -> Outcome:
        """Write the outcome down; a store that is away is asked again for a while."""
        clock = self.runtime.clock
        drafts = outcome_records(dispatch, outcome, event_at(clock.now_ms()))
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


class _Stopped(Exception):
    """The handler let a graceful stop pass: the attempt does not count."""


def traced(name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Open a span around the block, if anybody listens; payloads are no part of it."""
    return span(name, attributes) if tracing() else nullcontext()


def _with(event: TriggerEvent, **changes: Any) -> TriggerEvent:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return TriggerEvent(**{**fields, **changes})


def _circuit(row: CircuitRow) -> Circuit:
    return Circuit(row.failures, row.open_until_ms, row.probing_until_ms)


def _row(circuit: Circuit) -> CircuitRow:
    return CircuitRow(circuit.failures, circuit.open_until_ms, circuit.probing_until_ms)

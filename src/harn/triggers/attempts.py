"""The attempts of a dispatch: call the handler, record the result, wait, and call it again."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.clock import sleep_until
from harn.graceful_stop import is_stop
from harn.storage import Store
from harn.storage.triggers import note_retry
from harn.telemetry.logs import FAILED_WORK
from harn.telemetry.spans import note_exception
from harn.triggers.circuit_breaker import THRESHOLD
from harn.triggers.delivery import Call
from harn.triggers.dispatch_state import Dispatch, Outcome
from harn.triggers.event import event_at
from harn.triggers.gates import Entrant, Gates, Passage
from harn.triggers.handler_failure import failure_of
from harn.triggers.outcomes import plain
from harn.triggers.secrets import Secrets
from harn.triggers.stored_circuits import Circuits
from harn.triggers.targets import NotRetryable
from harn.workers import Failure

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.triggers")

OPENED = "destination circuit opened: {n} failures in a row, the last: {error}"
IS_OPEN = "destination circuit is open after repeated failures; it is tried again in a minute"


class Stopped(Exception):
    """The handler ended because of a graceful stop: the attempt does not count."""


class Attempts:
    """Tries the dispatches of one owner, as often as their retry policies say."""

    def __init__(self, runtime: Runtime, owner: str, gates: Gates, circuits: Circuits) -> None:
        self._runtime = runtime
        self._owner = owner
        self._gates = gates
        self._circuits = circuits
        self._store = runtime.service(Store)
        self._secrets = runtime.service(Secrets)
        self._log = runtime.event_log

    async def run(self, dispatch: Dispatch, entrant: Entrant, passage: Passage) -> Outcome:
        """Call the handler until it succeeds or no attempt is left; raise `Stopped` on a stop.

        The slot that *passage* holds is released while a retry waits. Cancelling cancels the
        handler, or ends the wait; the caller then leaves the gates.
        """
        retry, destination = dispatch.binding.retry, dispatch.binding.destination
        history: list[dict[str, Any]] = []
        await self._wait_until_due(dispatch, entrant, passage)
        for attempt in range(dispatch.attempt, max(retry.max, dispatch.attempt) + 1):
            if not await self._circuits.admits(destination):
                return self.dead(dispatch, attempt - 1, IS_OPEN, history)
            result, error = await self._deliver(dispatch, attempt)
            failure = None if error is None else failure_of(error, self._secrets)
            self._note(dispatch, attempt, error, failure, history)
            if failure is None:
                await self._circuits.note_success(destination)
                return Outcome("succeeded", attempt, plain(result), history=tuple(history))
            if isinstance(error, NotRetryable | NotImplementedError):
                return self.dead(dispatch, attempt, failure.text, history, failure)
            if await self._circuits.note_failure(destination):
                opened = OPENED.format(n=THRESHOLD, error=failure.text)
                return self.dead(dispatch, attempt, opened, history, failure)
            if attempt < retry.max:
                await self._back_off(dispatch, entrant, passage, attempt + 1, failure.text)
        assert failure is not None  # the loop runs at least once, and a success returns from it
        return self.dead(dispatch, retry.max, failure.text, history, failure)

    async def _deliver(
        self, dispatch: Dispatch, attempt: int
    ) -> tuple[Any, Exception | SystemExit | None]:
        """Call the handler once; return its result, or what it raised."""
        dispatch.unpark()
        if dispatch.task is not None and dispatch.task.cancel_requested:
            raise Stopped  # no attempt begins after a stop
        try:
            return await dispatch.binding.target.deliver(self._call(dispatch, attempt)), None
        except (Exception, SystemExit) as raised:
            if dispatch.task is not None and is_stop(dispatch.task, raised):
                raise Stopped from raised
            return None, raised

    def _call(self, dispatch: Dispatch, attempt: int) -> Call:
        binding = dispatch.binding
        return Call(
            self._runtime,
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
        delay_ms = round(dispatch.binding.retry.before(attempt) * 1000)
        if not delay_ms:
            return
        dispatch.attempt = attempt
        dispatch.due_ms = self._runtime.clock.now_ms() + delay_ms
        note = partial(note_retry, dispatch.envelope, self._owner, attempt, delay_ms, error[:500])
        await self._store.run(note)
        await self._wait_until_due(dispatch, entrant, passage)

    async def _wait_until_due(self, dispatch: Dispatch, entrant: Entrant, passage: Passage) -> None:
        clock = self._runtime.clock
        left = (dispatch.due_ms - clock.now_ms()) / 1000
        if left <= 0:
            return
        await self._gates.pause(entrant, passage)
        dispatch.park()
        await sleep_until(clock, clock.monotonic() + left)
        await self._gates.resume(entrant, passage)

    def _note(
        self,
        dispatch: Dispatch,
        attempt: int,
        error: BaseException | None,
        failure: Failure | None,
        history: list[dict[str, Any]],
    ) -> None:
        now_ms = self._runtime.clock.now_ms()
        at = event_at(now_ms)
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
            at_ms=now_ms,
        )
        if failure is not None:
            note_exception(failure.as_dict())
            logger.warning(
                "%s: event %s failed in attempt %d: %s\n%s",
                *(dispatch.binding.key, dispatch.event.id, attempt, text, failure.traceback),
                extra=FAILED_WORK,
            )

    def dead(
        self,
        dispatch: Dispatch,
        attempts: int,
        error: str,
        history: Any,
        failure: Failure | None = None,
    ) -> Outcome:
        """Return the outcome of a dispatch that becomes a dead letter, and log it."""
        entry_id = self._runtime.ids.new("dlq")
        logger.error(
            "%s: event %s is a dead letter now, %s: %s",
            *(dispatch.binding.key, dispatch.event.id, entry_id, error),
            extra=FAILED_WORK,
        )
        return Outcome("dlq", attempts, None, error, entry_id, None, tuple(history), failure)

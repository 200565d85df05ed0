"""Runs the job of a worker queue that holds an event: calls the local handler of its trigger.

The queue makes the retries: the handler is called once for each claim. If the trigger sets
`retry`, a failed job waits for the delay of that policy, and its last attempt ends the job. If a
gate is closed, the job is released until the gate may open, and the claim does not count as an
attempt, so that no consumer waits long. Only a debounce is waited for to its end, because it
would begin again with each claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from harn.clock import resolve
from harn.current import current_frame
from harn.duration import Duration
from harn.errors import TriggerError
from harn.graceful_stop import is_stop
from harn.pools import causing
from harn.teardown import finish
from harn.triggers.binding import Binding
from harn.triggers.circuit_breaker import OPEN_MS
from harn.triggers.delivery import Call, replay_in
from harn.triggers.event import TriggerEvent, event_from
from harn.triggers.gates import Entrant, Passage
from harn.triggers.handler_failure import failure_of
from harn.triggers.registry import Triggers
from harn.triggers.secrets import Secrets
from harn.triggers.targets import NotRetryable
from harn.workers import Bury, Failure, GiveBack, Job, RetryLater

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.triggers")

GATE_PATIENCE = 5.0
"""Seconds that a job may wait at its gates before it is released."""
COME_BACK = 1.0

Find = Callable[[str], Binding]


class JobRunner:
    """A handler for a queue's consumer: finds the trigger of a job and runs it.

    A job is done when the pool tasks that it caused have ended, in any status, or are durable calls
    in a journal: a crash before that would lose them. With *work_within*, it succeeds only if all
    of them complete within that many seconds. A process that ends soon needs this.
    """

    def __init__(
        self, runtime: Runtime, find: Find | None = None, *, work_within: float | None = None
    ) -> None:
        self._runtime = runtime
        self._triggers = runtime.service(Triggers)
        self._secrets = runtime.service(Secrets)
        self._find = find or self._triggers.get
        self.unwell: dict[int, str] = {}
        """Why the pool tasks that a job caused did not complete, by the job's id."""
        self._work_within = work_within
        self._closed_until: dict[str, int] = {}
        """Until when a gate is closed, in milliseconds, by gate."""

    async def __call__(self, job: Job) -> Any:
        """Dispatch *job* once and return the handler's result.

        Cancelling releases what was held at the gates, and the consumer releases the job.
        """
        binding, event = self._read(job)
        # The members of a batch are envelopes, and a job has none: it is dispatched alone.
        flow = msgspec.structs.replace(binding.flow, batch=None)
        enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entrant = Entrant(
            binding.id, event, 0, flow, _nothing, lambda gate, ms: self._note(gate, ms, enough)
        )
        passage = await self._enter(entrant, enough)
        try:
            if passage.skipped == "singleton_active":
                raise _give_back("singleton_active", COME_BACK)
            if passage.skipped is not None:
                return {"skipped": True, "flow_control": passage.skipped}
            return await self._deliver(binding, event, job)
        finally:
            await self._triggers.dispatcher.gates.leave(entrant, passage)

    def _read(self, job: Job) -> tuple[Binding, TriggerEvent]:
        try:
            return self._find(str(job.trigger_id)), event_from(job.payload)
        except TriggerError as error:
            raise _give_back(str(error), "1m") from error
        except (ValueError, TypeError) as error:
            raise Bury(f"job {job.id} holds no event: {error}") from error

    async def _enter(self, entrant: Entrant, enough: asyncio.Future[None]) -> Passage:
        entering = asyncio.ensure_future(self._triggers.dispatcher.gates.enter(entrant))
        clock, debounce = self._runtime.clock, entrant.flow.debounce
        patience = GATE_PATIENCE + (debounce.period_ms / 1000 if debounce else 0)
        timer = clock.call_at(clock.monotonic() + patience, partial(resolve, enough))
        try:
            await asyncio.wait((entering, enough), return_when=asyncio.FIRST_COMPLETED)
            is_late = not entering.done()
            if is_late:
                entering.cancel()
                await asyncio.wait((entering,))
        except asyncio.CancelledError:
            entering.cancel()
            await finish(self._turn_back(entrant, entering), [])
            raise
        finally:
            timer.cancel()
        if is_late and entering.cancelled():
            raise _give_back("waits at a gate", self._opens_in(entrant))
        return entering.result()

    async def _turn_back(self, entrant: Entrant, entering: asyncio.Future[Passage]) -> None:
        """Wait for the end of *entering*, and release what it holds if it was through already."""
        await asyncio.wait((entering,))
        if not entering.cancelled() and entering.exception() is None:
            await self._triggers.dispatcher.gates.leave(entrant, entering.result())

    def _note(self, gate: str, until_ms: int, enough: asyncio.Future[None]) -> None:
        """Remember that *gate* is closed, and release the job at once if that lasts long."""
        now = self._runtime.clock.now_ms()
        self._closed_until = {each: ms for each, ms in self._closed_until.items() if ms > now}
        self._closed_until[gate] = until_ms
        if until_ms - now > GATE_PATIENCE * 1000:
            resolve(enough)

    def _opens_in(self, entrant: Entrant) -> float:
        """Return the seconds until the gate opens; one second if that is not known."""
        throttle = entrant.flow.throttle
        gate = entrant.gate("throttle", throttle.key) if throttle else ""
        left = (self._closed_until.get(gate, 0) - self._runtime.clock.now_ms()) / 1000
        return max(COME_BACK, left)

    async def _deliver(self, binding: Binding, event: TriggerEvent, job: Job) -> Any:
        circuits = self._triggers.dispatcher.circuits
        if not await circuits.admits(binding.destination):
            raise _give_back("destination circuit is open", OPEN_MS / 1000)
        call = Call(
            self._runtime,
            event,
            binding.id,
            binding.key,
            binding.version,
            binding.priority,
            job.attempts,
            *replay_in(job.headers),
        )
        try:
            result = await self._run(binding, call, job)
        except NotRetryable as error:
            failure = failure_of(error, self._secrets)
            raise _bury(failure) from None
        except Exception as error:
            if is_stop(current_frame().task, error):
                raise  # the consumer releases the job
            await circuits.note_failure(binding.destination)
            failure = failure_of(error, self._secrets)
            if not binding.retry_given:
                raise _Failed(failure) from None
            if job.attempts >= binding.retry.max:
                raise _bury(failure) from None
            raise _retry_later(failure, binding.retry.before(job.attempts + 1)) from None
        await circuits.note_success(binding.destination)
        logger.info("%s: event %s succeeded, attempts: %d", binding.key, event.id, job.attempts)
        return result

    async def _run(self, binding: Binding, call: Call, job: Job) -> Any:
        """Deliver, and wait for the pool tasks that this caused."""
        with causing() as caused:
            result = await binding.target.deliver(call)
            if self._work_within is None:
                await caused.wait_for_closures()
                return result
            work = await caused.wait(self._work_within)
        self.unwell.pop(job.id, None)
        if not work.is_well:
            self.unwell[job.id] = str(work)
            raise TriggerError(str(work))
        return result


def _give_back(reason: str, delay: Duration) -> GiveBack:
    wish = GiveBack(delay)
    wish.reason = reason
    return wish


def _bury(failure: Failure) -> Bury:
    wish = Bury(failure.text)
    wish.failure = failure
    return wish


def _retry_later(failure: Failure, delay: Duration) -> RetryLater:
    wish = RetryLater(delay)
    wish.failure = failure
    return wish


class _Failed(TriggerError):
    """A handler that failed. Its exception may contain secrets, *failure* does not."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = msgspec.structs.replace(failure, text=f"TriggerError: {failure.text}")


def _nothing() -> None:
    """Ignore that a job waits at a gate."""

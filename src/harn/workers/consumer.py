"""A consumer of a queue: claim, run the handler, renew meanwhile, then ack, fail or release.

A consumer keeps up to *concurrency* handlers busy. A slot that becomes free asks for the next job
in the same transaction that settles the last one. A handler's claim is renewed on another thread
(`claim_renewal.py`); if it is lost, the handler is cancelled. To stop, a consumer claims no more
jobs and lets handlers finish; after the grace time it cancels them and releases their jobs.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from harn.clock import resolve
from harn.context import Task
from harn.current import current_frame
from harn.durable_calls import durable_names
from harn.duration import Duration
from harn.errors import HarnError
from harn.graceful_stop import parked, raise_if_asked, request_stop
from harn.retry_policy import RetryPolicy, check_policy
from harn.runtime import Runtime
from harn.settings import host_name
from harn.storage.queue import Claimed, Claiming, Settlement, SettlementResult, claimable
from harn.tasks import (
    Scope,
    check_callable,
    is_async_callable,
    launch,
    runner_for,
    scope,
)
from harn.telemetry.spans import span_after, tracing
from harn.workers.after_failure import Release, after_error
from harn.workers.claim_renewal import ClaimRenewal
from harn.workers.consumer_lease import LivingConsumers, Serving
from harn.workers.crew import Crew
from harn.workers.failures import log_attempt
from harn.workers.function_jobs import FunctionRunner, UnknownFunctions
from harn.workers.held_claim import Claim
from harn.workers.idle_consumers import IdleLooks
from harn.workers.job_tasks import JobTasks
from harn.workers.queue import MOST_AT_ONCE, WorkerQueue
from harn.workers.queue_reports import DrainReport
from harn.workers.records import Job, check_consumer, check_ttl
from harn.workers.running_job import RunningJob
from harn.workers.shared_slots import SharedSlots

KEPT_RESPONSES = 10_000
RETRY_AFTER = 0.5
"""Seconds before a consumer whose store cannot be reached asks again."""

Handler = Callable[[Job], Any]


class Consumer:
    """One consumer of one queue; `run` it once, `stop` it from anywhere on the loop."""

    def __init__(
        self,
        queue: WorkerQueue,
        handler: Handler | None,
        *,
        consumer_id: str | None = None,
        claim_ttl: Duration = "5m",
        concurrency: int | SharedSlots = 1,
        stop_when_empty: bool = True,
        triggers: frozenset[str] | None = None,
        progress: Callable[[Consumer], None] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.queue = queue
        self.consumer_id: str = check_consumer(
            default_consumer_id(queue.runtime) if consumer_id is None else consumer_id
        )
        self.ttl_ms: int = check_ttl(claim_ttl)
        self._slots = (
            concurrency if isinstance(concurrency, SharedSlots) else SharedSlots(concurrency)
        )
        self.concurrency: int = self._slots.limit
        self.drained: int = 0
        self.acked: int = 0
        self.deferred: int = 0
        self.released: int = 0
        self.responses: deque[dict[str, Any]] = deque(maxlen=KEPT_RESPONSES)
        self._runtime: Runtime = queue.runtime
        self._triggers = triggers
        self._retry = check_policy(retry)
        self._functions = FunctionRunner(queue.runtime, retry) if handler is None else None
        self._unknown: UnknownFunctions | None = None
        if self._functions is not None:
            self._unknown = UnknownFunctions(queue, self._functions)
        self._progress = progress
        self._stop_when_empty = stop_when_empty
        self._call = self._functions or _bound(queue.runtime, handler)
        self._renewal = queue.runtime.service(ClaimRenewal)
        self._running: dict[RunningJob, None] = {}  # ordered: equal runs stop jobs in equal order
        self.crew: Crew = Crew(self)
        self._unanswered = 0
        self._asking: asyncio.Future[Claimed] | None = None
        self._slots_asked_for = 0
        """Slots taken for the jobs that `_asking` may return."""
        self._lease_asked = ""
        """The lease under which they are claimed."""
        self._is_empty = False
        self._stopping = False
        self._giving_up = False
        self._error: BaseException | None = None
        self._mark = (0, 0)
        self._due_in: float | None = None
        """Seconds until there may be a job if nothing else happens; None for never."""
        self._attention: asyncio.Future[None] | None = None

    async def run(self) -> DrainReport:
        """Handle jobs until `stop`, or with *stop_when_empty* until the queue is empty.

        Cancelling cancels the handlers and releases their jobs. A graceful stop calls `stop`, and
        raises `TaskCancelled` when the handlers have ended.
        """
        consumers = self._runtime.service(LivingConsumers)
        serving = Serving(self.queue.name, self._lose_all, self._known_functions)
        self._living = await consumers.join(self.consumer_id, serving)
        try:
            return await self._run()
        finally:
            await consumers.leave(self._living, serving)

    async def _run(self) -> DrainReport:
        try:
            async with scope() as nursery:
                self.nursery: Scope = nursery
                self.context: contextvars.Context = contextvars.copy_context()
                self._task = current_frame().task
                self.tasks: JobTasks = JobTasks(self._task)
                self.crew_name: str = f"{self._task.id}:jobs"
                try:
                    with parked(self.stop):
                        await self._look_for_unknown()
                        while not self._is_done():
                            self._ask()
                            await self._wait()
                finally:
                    self.retire()
                    asked = self._asking
                    if asked is not None and not asked.cancel():
                        # Its jobs are claimed already, and are released with the others.
                        self._answered(asked)
                    self.crew.drop_all()
        finally:
            while self._unanswered or self.crew.members:
                self._attention = asyncio.get_running_loop().create_future()
                await self._attention
        if self._error is not None:
            raise self._error
        raise_if_asked()
        await self._look_for_unknown()
        return await self._report()

    def retire(self) -> None:
        """Claim no more; `run` returns when the handlers have ended."""
        self._stopping = True
        self._slots.leave(self)
        self.wake()

    def stop(self) -> None:
        """Claim no more, and ask the handlers to stop; each is told once, in a wait of harn's.

        The job of a handler that does not catch `TaskCancelled` is released.
        """
        self.retire()
        for running in list(self._running):
            request_stop(running.task)

    def give_up(self) -> None:
        """Cancel the handlers and release their jobs."""
        self._stopping = self._giving_up = True
        for running in list(self._running):
            running.cancel_handler()
        self.wake()

    def _lose_all(self, note: str) -> None:
        """Cancel the handlers whose claims have ended with the lease that they were made under."""
        for running in list(self._running):
            if running.lease != self._living.lease:
                running.lose(note)

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._running)

    @property
    def triggers(self) -> frozenset[str] | None:
        """The triggers whose jobs it claims; None for every job."""
        return self._triggers

    # -- claiming ----------------------------------------------------------------------------

    @property
    def _needs(self) -> frozenset[str] | None:
        """The triggers or functions that this consumer can handle; None for every job."""
        return self._triggers if self._functions is None else self._functions.needs

    def _is_done(self) -> bool:
        if self._running or self._unanswered or self._asking is not None:
            return False
        return self._stopping or (self._is_empty and self._stop_when_empty)

    def _ask(self) -> None:
        """Ask for as many jobs as there are free slots, unless a claim is under way."""
        if self._stopping or self._asking is not None or self._is_empty:
            return
        self._slots_asked_for = self._slots.take(self, 1)
        if not self._slots_asked_for:
            return
        self._mark = self.queue.store.growth(self.queue.topics.jobs)
        self._asking = self.queue.operations.claim(self._wanted)
        self._asking.add_done_callback(self._answered, context=self.context)

    def _wanted(self) -> Claiming | None:
        if self._stopping:
            return None
        # Also the slots that became free meanwhile: their jobs are settled in the same transaction.
        free = min(self._slots.free_for(self), MOST_AT_ONCE - self._slots_asked_for)
        if free:
            self._slots_asked_for += self._slots.take(self, free)
        free = self._slots_asked_for
        lease = self._lease_asked = self._living.lease
        return self.queue.claiming(self.consumer_id, free, self.ttl_ms, self._needs, lease)

    def _answered(self, asked: asyncio.Future[Claimed]) -> None:
        if self._asking is not asked:
            return  # a consumer that was cancelled in the same turn has taken the answer already
        self._asking = None
        unused, self._slots_asked_for = self._slots_asked_for, 0
        if asked.cancelled():
            self._slots.release(self, unused)
            self.wake()
            return
        error = asked.exception()
        if error is not None:
            self._slots.release(self, unused)
            self._is_empty = True
            self._due_in = RETRY_AFTER
            if self._stop_when_empty:
                self._stopping, self._error = True, error
            self.wake()
            return
        claimed = asked.result()
        self._is_empty = not claimed.jobs
        self._due_in = None
        if claimed.next_due is not None:
            self._due_in = max(0.001, (claimed.next_due - claimed.now) / 1000)
        if self._lease_asked == self._living.lease:
            for one in claimed.jobs:
                claim = self.queue.open(one, self.consumer_id, self.ttl_ms)
                if claim is not None:
                    self._start(claim)
                    unused -= 1
        else:  # nothing would end these claims before their time if this process died
            self.queue.operations.release(claimed, "its consumer's lease expired")
        self.crew.call()
        self._slots.release(self, unused)
        self._ask()
        self.wake()

    async def _wait(self) -> None:
        """Wait until something changes here or, when the queue is empty, in the store."""
        self._attention = asyncio.get_running_loop().create_future()
        if self._is_done():
            return
        idle = self._is_empty and not self._stopping and len(self._running) < self.concurrency
        if not idle or (self._stop_when_empty and (self._running or self._unanswered)):
            await self._attention
            return
        watching = launch(
            Task(self._runtime, self._task.child_id("watch"), "watch", self._task),
            self._watch,
            nursery=self.nursery,
        )
        try:
            await self._attention
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        """Wait until there may be work, then look for it without writing."""
        store, topic = self.queue.store, self.queue.topics.jobs
        looks = self._runtime.service(IdleLooks)
        while self._is_empty:
            found = await looks.wait(self.queue.name, topic, self._mark, self._due_in)
            before, self._mark = self._mark, store.growth(topic)
            has_grown = self._mark[0] != before[0]
            if (has_grown or found) and self._needs is None:
                self._is_empty = False  # jobs were put in, or seen: no need to look first
                break
            question = partial(claimable.has_work, self.queue.name, self._needs)
            try:
                found, now, due = await store.run(question, write=False)
                if has_grown and not found and self._unknown is not None:
                    await self._unknown.look()
            except HarnError:
                self._due_in = RETRY_AFTER
                continue
            self._due_in = None
            if due is not None and due > now:
                self._due_in = (due - now) / 1000
            if found:
                self._is_empty = False
        self.wake()

    def _known_functions(self) -> list[str] | None:
        """Return the functions that this consumer can run; None if it can handle every job."""
        if self._functions is not None:
            return durable_names()
        return None if self._triggers is None else []

    async def _look_for_unknown(self) -> None:
        """Warn of jobs whose functions this process does not know, if it runs functions."""
        if self._unknown is not None:
            await self._unknown.look()

    def slot_is_free(self) -> None:
        """Ask for a job: this consumer has waited for a slot."""
        self._ask()

    def wake(self) -> None:
        """Look again whether there is something to do."""
        if self._attention is not None:
            resolve(self._attention)

    # -- working -----------------------------------------------------------------------------

    def _start(self, claim: Claim) -> None:
        running = RunningJob(self, claim, self._lease_asked)
        self._running[running] = None
        self.crew.add(running)
        self._renewal.hold(claim, running.lose)

    async def work(self, running: RunningJob) -> None:
        """Run the handler for one claim, then settle it."""
        claim = running.claim
        try:
            if self._giving_up:
                raise asyncio.CancelledError
            outcome = await (self._traced(claim.job) if tracing() else self._call(claim.job))
            running.outcome = outcome
            settlement = claim.acking(outcome, running.cost)
        except asyncio.CancelledError as error:
            if self._giving_up or running.was_cancelled:
                raise  # `stopped` releases the job
            settlement = self._after(running, error)
        except BaseException as error:
            if running.was_told(error):
                raise
            settlement = self._after(running, error)
        self._settle(running, settlement)
        self._ask()

    def _after(self, running: RunningJob, error: BaseException) -> Settlement:
        """Return the settlement of an attempt that ended with *error*."""
        claim, functions = running.claim, self._functions
        policy = self._retry if functions is None else functions.policy(claim.job)
        what = after_error(error, claim.attempt, policy, self._runtime.ids.random.random())
        if isinstance(what, Release):
            return claim.asking("release", reason=what.reason, delay_ms=what.delay_ms)
        running.failure = what.failure
        return claim.failing(
            what.failure, delay_ms=what.delay_ms, final=what.final, cost=running.cost
        )

    async def _traced(self, job: Job) -> Any:
        """Run the handler inside a span of the trace in the job's headers."""
        about = {"harn.queue": job.queue, "harn.job_id": job.id, "harn.attempt": job.attempts}
        with span_after(f"worker.job {job.queue}", job.headers, about):
            return await self._call(job)

    def stopped(self, running: RunningJob) -> None:
        """Release the job of a cancelled handler, unless another consumer has claimed it."""
        if running not in self._running:
            return
        if running.is_lost:
            self.deferred += 1
            self._free(running)
        else:
            self.released += 1
            running.is_released = True
            self._settle(running, running.claim.asking("release", reason="consumer stopped"))

    def _settle(self, running: RunningJob, settlement: Settlement) -> None:
        self._free(running)
        self._unanswered += 1
        self.queue.operations.settle_into(settlement, running)

    def _free(self, running: RunningJob) -> None:
        self._renewal.let_go(running.claim)
        if running in self._running:
            del self._running[running]
            self._slots.release(self, 1)
        self._is_empty = False  # the end of this job may have made another one ready
        self.wake()

    def settled(
        self, running: RunningJob, result: SettlementResult | None, error: str = ""
    ) -> None:
        """Count the result of a settlement; None and *error* if the store did not answer."""
        self._unanswered -= 1
        if not self._unanswered:
            self.wake()
        if running.is_released:
            return
        self.drained += 1
        if running.failure is not None:
            log_attempt(running.claim.job, running.failure, result, error)
            running.failure = None
        if result is None:
            # The store cannot be reached: the claim expires, and the job runs again.
            self.deferred += 1
            job_id = running.claim.job.id
            told = {"queue": self.queue.name, "job_event_id": job_id, "error": error}
            self.responses.append(told)
            return
        response = result.response if result.settled == "done" else None
        if response is not None:
            if "outcome" in response:
                response["outcome"] = running.outcome
            self.responses.append(response)
        if response is not None and not response["error"]:
            self.acked += 1
        else:
            self.deferred += 1
        if self._progress is not None:
            self._runtime.loop.call_soon(self._progress, self)

    async def _report(self) -> DrainReport:
        return DrainReport(
            self.queue.name,
            self.consumer_id,
            self.ttl_ms,
            self.drained,
            self.acked,
            self.deferred,
            list(self.responses),
            await self.queue.summary(),
        )


def default_consumer_id(runtime: Runtime) -> str:
    """Name a consumer after its machine, its process and the time."""
    name = f"{host_name()}-pid{os.getpid()}-{runtime.clock.now_ms()}"
    return "".join(each if each.isprintable() else "?" for each in name)[-200:]


def _bound(runtime: Runtime, handler: Handler | None) -> Callable[[Job], Any]:
    assert handler is not None
    check_callable(handler)
    return handler if is_async_callable(handler) else runner_for(runtime, "auto").bind(handler)

"""One claimed job, from the start of its handler until the store has settled its claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.context import Frame, WorkTask
from harn.durable_work import StepRecord
from harn.graceful_stop import asked, is_stop
from harn.storage.queue import SettlementResult, stored_jobs
from harn.tasks import TaskHandle, take_over
from harn.workers.failures import Failure
from harn.workers.held_claim import Claim

if TYPE_CHECKING:
    from harn.workers.consumer import Consumer


class RunningJob:
    """A job whose handler runs, or whose settlement is under way.

    It is the nursery of the handler's task, so it is told when a handler was cancelled. It also
    receives the settlement's result. As the task's durable work it records steps.
    """

    __slots__ = (
        "_aio",
        "_handle",
        "_task",
        "claim",
        "consumer",
        "failure",
        "is_lost",
        "is_released",
        "lease",
        "outcome",
        "steps",
        "used_tokens",
    )

    def __init__(self, consumer: Consumer, claim: Claim, lease: str) -> None:
        self.consumer: Consumer = consumer
        self.claim: Claim = claim
        self.lease: str = lease
        """The consumer's lease under which the job was claimed."""
        self.outcome: Any = None
        self.failure: Failure | None = None
        self.is_lost: bool = False
        self.is_released: bool = False
        self.steps: Any = None
        self.used_tokens: int = 0
        self._task: WorkTask | None = None
        self._aio: asyncio.Task[Any] | None = None
        self._handle: TaskHandle[Any] | None = None

    @property
    def task(self) -> WorkTask:
        """The handler's task, made when something asks for it."""
        if self._task is None:
            self._task = task = self.consumer.tasks.new(self.claim.job)
            task.durable = self
            task.aio = self._aio
            task.runtime.tasks.add(task)
        return self._task

    def was_told(self, error: BaseException) -> bool:
        """Tell whether *error* is the stop that was raised in the handler."""
        return self._task is not None and is_stop(self._task, error)

    @property
    def was_cancelled(self) -> bool:
        """Whether the handler was cancelled; if not, a `CancelledError` is an error of its own."""
        return self._aio is not None and self._aio.cancelling() > 0

    # -- the handler's life --------------------------------------------------------------------

    def begins_on(self, aio: asyncio.Task[Any]) -> None:
        """Note that *aio* begins the handler."""
        self._aio = aio
        if self._task is not None:
            self._task.aio = aio

    def keep(self, aio: asyncio.Task[Any]) -> None:
        """Make *aio* the handler's own: it has to wait."""
        self._handle = take_over(self.task, aio, self)

    def ended_at_once(self, error: BaseException | None) -> None:
        """Note that the handler ended without a wait, with *error* if its job is not settled."""
        task = self._task
        if task is not None:
            task.runtime.tasks.discard(task)
            task.aio = None
            asked.discard(task)
        if error is None:
            return
        self.consumer.stopped(self)
        if not (isinstance(error, asyncio.CancelledError) or self.was_told(error)):
            self.consumer.nursery.child_failed(error)

    def cancel_handler(self) -> None:
        """Cancel the handler; one that has not begun never does."""
        if self._handle is not None:
            self._handle.cancel()
        elif self._aio is None:
            self.consumer.crew.drop(self)
        else:  # called by the handler itself
            self.task.cancel_requested = True
            self._aio.cancel()

    @property
    def title(self) -> str:
        """The job, for messages."""
        return f"job {self.claim.job.id} of queue {self.claim.job.queue!r}"

    @property
    def cost(self) -> float | None:
        """What the attempt has cost, as far as that is known: the tokens of its model calls."""
        return self.used_tokens or None

    async def recorded_steps(self) -> list[StepRecord]:
        """Return the steps that earlier attempts at the job recorded.

        Cancelling leaves nothing behind.
        """
        job = self.claim.job
        return await self.consumer.queue.store.run(
            partial(stored_jobs.read_steps, job.queue, job.id), write=False
        )

    def record_step(self, step: StepRecord) -> Awaitable[None]:
        """Record *step* if the claim still holds, in one transaction; else raise `ClaimLost`."""
        return self.claim.record_step(step)

    def lose(self, note: str) -> None:
        """Cancel the handler: another consumer holds the claim now."""
        self.is_lost = True
        self.cancel_handler()

    def adopt(self, handle: TaskHandle[Any]) -> None:
        """Let the consumer's scope own the task."""
        self.consumer.nursery.adopt(handle)

    def child_ended(self, handle: TaskHandle[Any], error: BaseException | None) -> None:
        """Tell the consumer and its scope."""
        self.consumer.stopped(self)
        self.consumer.nursery.child_ended(handle, error)

    def child_failed(self, error: BaseException) -> None:
        """Tell the scope."""
        self.consumer.nursery.child_failed(error)

    def done(self) -> bool:
        """Return False: the result is always wanted."""
        return False

    def set_result(self, result: SettlementResult) -> None:
        """Receive the settlement's result."""
        self.consumer.settled(self, result)

    def set_exception(self, error: BaseException) -> None:
        """Note that the settlement failed."""
        self.consumer.settled(self, None, str(error))

    def cancel(self) -> None:
        """Note that the store was closed before it answered."""
        self.consumer.settled(self, None, "the store was closed")


class JobFrame(Frame):
    """The frame of a handler, whose task is made when something asks for it."""

    __slots__ = ("_running",)

    def __init__(self, running: RunningJob) -> None:
        self._running = running
        self.nursery: Any = running.consumer.nursery
        self.cleanups: dict[Any, Callable[[], Any]] | None = None

    @property
    def task(self) -> WorkTask:  # type: ignore[override]
        """The handler's task."""
        return self._running.task

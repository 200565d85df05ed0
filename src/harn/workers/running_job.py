"""One claimed job, from the start of its handler until the store has settled its claim."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.durable_work import StepRecord
from harn.storage.queue import SettlementResult, job_states
from harn.tasks import TaskHandle
from harn.workers.failures import Failure
from harn.workers.held_claim import Claim

if TYPE_CHECKING:
    from harn.workers.consumer import Consumer


class RunningJob:
    """A job whose handler runs, or whose settlement is under way.

    It is the nursery of the handler's task, so it is told when a handler was cancelled or never
    began. It also receives the settlement's result. As the task's durable work it records steps.
    """

    __slots__ = (
        "claim",
        "consumer",
        "failure",
        "handle",
        "is_lost",
        "is_released",
        "outcome",
        "steps",
    )

    handle: TaskHandle[None]

    def __init__(self, consumer: Consumer, claim: Claim) -> None:
        self.consumer: Consumer = consumer
        self.claim: Claim = claim
        self.outcome: Any = None
        self.failure: Failure | None = None
        self.is_lost: bool = False
        self.is_released: bool = False
        self.steps: Any = None

    @property
    def title(self) -> str:
        """The job, for messages."""
        return f"job {self.claim.job.id} of queue {self.claim.job.queue!r}"

    async def recorded_steps(self) -> list[StepRecord]:
        """Return the steps that earlier attempts at the job recorded."""
        job = self.claim.job
        return await self.consumer.queue.store.run(
            partial(job_states.read_steps, job.queue, job.id), write=False
        )

    def record_step(self, step: StepRecord) -> Awaitable[None]:
        """Record *step* if the claim still holds, in one transaction; else raise `ClaimLost`."""
        return self.claim.record_step(step)

    def lose(self, note: str) -> None:
        """Cancel the handler: another consumer holds the claim now."""
        self.is_lost = True
        self.handle.cancel()

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

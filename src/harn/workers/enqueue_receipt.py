"""What enqueueing returns: proof that a job is in its queue, and a way to its result."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from harn.current import calling_frame, current_runtime
from harn.durable_calls import durable_function_named
from harn.durable_types import types_of
from harn.duration import Duration, to_seconds, to_text
from harn.errors import DeadlineExceeded, InvalidOption, JobError
from harn.graceful_stop import asked, park, raise_if_asked
from harn.option_checks import is_whole
from harn.pydantic_types import reasons
from harn.storage import Durability, decode
from harn.tasks import deadline
from harn.workers.job_cancel import cancel
from harn.workers.job_reads import JobReads
from harn.workers.job_results import JobResults
from harn.workers.job_state import JobState, outcome_of, unknown

T = TypeVar("T")


class EnqueueReceipt(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """Proof that a job is in its queue, and how safely; its result can be awaited.

    The three methods use the current runtime's store, so that a receipt works in any process that
    opens the same one. A job that was enqueued in the caller's own transaction has a *ticket* and
    no *job_id*: it has none before the commit.

    >>> import harn
    >>> async def main() -> tuple[int, str]:
    ...     receipt = await harn.worker_queue("triage").enqueue({"pr": 1984})
    ...     return receipt.job_id, receipt.durability
    >>> harn.run(main)
    (1, 'memory')
    """

    queue: str
    job_id: int | Any
    """None with a ticket; typed `Any`, so that callers without one need no check for None."""
    response_topic: str
    durability: Durability
    duplicate: bool
    ticket: str | None = None
    function: str | None = None
    """The submitted function whose annotation says that the result is a pydantic model."""

    def as_dict(self) -> dict[str, Any]:
        """Return every field, JSON-ready; the job's id also as the log names it.

        >>> EnqueueReceipt("q", 7, "worker.q.responses", "full", False).as_dict()["job_event_id"]
        7
        """
        fields = {
            "queue": self.queue,
            "job_id": self.job_id,
            "job_event_id": self.job_id,
            "response_topic": self.response_topic,
            "durability": self.durability,
            "duplicate": self.duplicate,
        }
        return fields if self.ticket is None else {**fields, "ticket": self.ticket}

    async def result(self, timeout: Duration | None = None) -> T:
        """Wait until the job is settled, and return its outcome.

        A dead job is `JobFailed`, a cancelled or purged one `JobCancelled`, a job whose record was
        trimmed `JobError`. After *timeout* it is `DeadlineExceeded`, and the job is not affected.
        With a ticket it first waits for the transaction to commit. Cancelling leaves nothing
        behind.

        >>> import harn
        >>> async def main() -> int:
        ...     receipt = await harn.worker_queue("triage").enqueue(20)
        ...     await harn.drain("triage", lambda job: job.payload + 1)
        ...     return await receipt.result()
        >>> harn.run(main)
        21
        """
        if timeout is not None:
            return await self._result_within(to_seconds(timeout, "timeout"))
        # One coroutine for the whole wait: thousands of them may be alive at the same time.
        task = calling_frame().task
        results = task.runtime.service(JobResults)
        key = self._key
        id = key if isinstance(key, int) else await results.committed(self.queue, key)
        while True:
            if asked:
                raise_if_asked()
            woken = results.wait_for(self.queue, id)
            places = park(task, woken)
            try:
                outcome = await woken
            except BaseException:
                results.give_up(self.queue, id, woken)
                raise
            finally:
                del places[woken]
            if outcome is not None:
                value = decode(outcome)
                break
            job = await results.read(self.queue, id)
            if job is None:
                raise unknown(self.queue, key)
            if job.is_settled:
                value = outcome_of(job)
                break
        return value if self.function is None else self._typed(value)

    async def _result_within(self, seconds: float) -> T:
        try:
            async with deadline(seconds):
                return await self.result()
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"job {self._key} of queue {self.queue!r} was not settled within {to_text(seconds)}"
            ) from error

    def _typed(self, outcome: Any) -> T:
        """Return *outcome* as the model that the submitted function returned."""
        function = durable_function_named(self.function or "")
        if function is None:
            return outcome  # type: ignore[no-any-return]
        try:
            return types_of(function.fn).read_result(outcome)  # type: ignore[no-any-return]
        except ValueError as error:
            raise JobError(
                f"the result of job {self._key} does not fit what {function.name} returns "
                f"({reasons(error)}); (await receipt.state()).outcome has it as JSON"
            ) from error

    async def state(self) -> JobState:
        """Return what is known of the job now. Cancelling leaves nothing behind."""
        job = await current_runtime().service(JobReads).state(self.queue, self._key)
        if job is None:
            raise unknown(self.queue, self._key)
        return job

    async def cancel(self, reason: str | None = None) -> bool:
        """Settle the job as cancelled, whatever its status; False if it was settled already.

        A handler that works on it is cancelled. Cancelling this call may leave the job cancelled.
        """
        return await cancel(current_runtime(), self.queue, self._key, reason)

    @property
    def _key(self) -> int | str:
        if self.ticket is not None:
            return self.ticket
        if not is_whole(self.job_id):  # of a receipt that the caller has made, from text perhaps
            raise InvalidOption("job_id", self.job_id, "a job's id, a whole number")
        return self.job_id

"""Every error that harn raises, and the codes that operators search for.

    HarnError                    the root: catch it to catch every error of harn
    ├─ InvalidOption             an option's value is not accepted; also a ValueError
    ├─ PoolError
    │  ├─ PoolFull               HARN-POL-001: a bounded queue refused the submit
    │  ├─ PoolBusy               HARN-POL-002: fail_fast had no free slot
    │  ├─ PoolExists             the name is taken in this runtime
    │  ├─ PoolNotFound           no live pool has that name or id
    │  ├─ PoolClosed             the pool takes no more work
    │  ├─ PoolScopeUnavailable   tenant and org pools need a store or a host
    │  ├─ PoolTaskFailed         awaiting a task whose closure raised
    │  ├─ PoolTaskRejected       awaiting a task that a drop policy refused
    │  ├─ PoolTaskCancelled      awaiting a task that was cancelled
    │  └─ PoolLocked             another process owns the journal
    ├─ DeadlockError             all of these tasks wait for each other
    │  ├─ MutexReentered         HARN-ORC-011: a task waits for what it holds
    │  └─ ChannelDeadlock        HARN-ORC-012: no task is left to send or receive
    ├─ ChannelClosed             sending to, or receiving past the end of, a closed channel
    ├─ MailboxClosed             receiving past the end of a closed mailbox
    ├─ RaceFailed                every runner of a race failed; `.errors` by index
    ├─ TaskCancelled             awaiting a task that was cancelled
    ├─ WorkerDied                a worker process ended under its task
    ├─ DeadlineExceeded          a deadline passed; also a TimeoutError
    ├─ AcquireTimeout            a required permit was not granted in time; also a TimeoutError
    ├─ ClaimLost                 another consumer holds the job now
    ├─ StepChanged               a step was recorded with another call than it has now
    ├─ JobError                  a job has no result to return
    │  ├─ JobFailed              the job is dead; `.error`, `.traceback`
    │  └─ JobCancelled           the job was cancelled or purged
    ├─ StorageError
    │  ├─ StorageBusy            the store is locked or full of waiters; try again
    │  ├─ StorageCorrupt         a record or page that cannot be read
    │  └─ StorageVersion         written by a newer harn
    ├─ ManifestError             a mistake in harn.toml
    ├─ TriggerError              a trigger that cannot be registered or fired
    ├─ RateLimitError            a limit or budget that cannot be acquired or stored
    ├─ ModelError                a call to a model failed; see `.retryable`
    └─ SseError                  a server does not serve events, or not within the limits

A class exists where a caller would act differently; its code, where it has one, belongs to the
class. Expected outcomes (a rejected task, a timed-out acquire) are values, not errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from harn.error_text import repr_of

if TYPE_CHECKING:
    from harn.workers.job_state import JobState

LONGEST_VALUE = 120
"""The most characters of a value that an `InvalidOption` shows."""


class HarnError(Exception):
    """The root of every error that harn raises.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         await harn.pool_create(name="reviews", max_concurrent=0)
    ...     except harn.HarnError as error:
    ...         print(type(error).__name__)
    >>> harn.run(main)
    InvalidOption
    """

    code: ClassVar[str | None] = None

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.code}: {text}" if self.code else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries. The default passes `args` to __init__, which fails for
        # constructors with other parameters.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[HarnError], args: tuple[Any, ...], state: dict[str, Any]) -> HarnError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidOption(HarnError, ValueError):
    """An option's value is not accepted; the message names option, value and what is accepted.

    >>> import harn
    >>> try:
    ...     harn.Bucket("rpm", limit=0)
    ... except harn.InvalidOption as error:
    ...     print(error.option, error.value)
    limit 0
    """

    def __init__(self, option: str, value: object, accepted: str) -> None:
        super().__init__(f"{option}={repr_of(value, LONGEST_VALUE)} is not accepted: {accepted}")
        self.option = option
        self.value = value
        self.accepted = accepted

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidOption, (self.option, repr_of(self.value, LONGEST_VALUE), self.accepted)


class PoolError(HarnError):
    """The root of the errors of pools.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         harn.pool_get("reviews", required=True)
    ...     except harn.PoolError as error:
    ...         print(type(error).__name__)
    >>> harn.run(main)
    PoolNotFound
    """


class PoolFull(PoolError):
    """A pool's queue is full, and its policy is to raise this.

    >>> import harn
    >>> async def main() -> None:
    ...     policy = harn.backpressure_queue(max_depth=1, on_full="fail_submitter")
    ...     pool = await harn.pool_create(name="reviews", max_concurrent=1, backpressure=policy)
    ...     try:
    ...         for _ in range(3):
    ...             await pool.submit(harn.sleep, "1h")
    ...     except harn.PoolFull as error:
    ...         print(error.code)
    >>> harn.run(main)
    HARN-POL-001
    """

    code: ClassVar[str | None] = "HARN-POL-001"


class PoolBusy(PoolError):
    """A `fail_fast` pool has no slot free right now.

    >>> import harn
    >>> async def main() -> None:
    ...     policy = harn.fail_fast()
    ...     pool = await harn.pool_create(name="calls", max_concurrent=1, backpressure=policy)
    ...     try:
    ...         for _ in range(2):
    ...             await pool.submit(harn.sleep, "1h")
    ...     except harn.PoolBusy as error:
    ...         print(error.code)
    >>> harn.run(main)
    HARN-POL-002
    """

    code: ClassVar[str | None] = "HARN-POL-002"


class PoolExists(PoolError):
    """A live pool already has this name.

    >>> import harn
    >>> async def main() -> None:
    ...     pool = await harn.pool_create(name="reviews")
    ...     try:
    ...         await harn.pool_create(name="reviews")
    ...     except harn.PoolExists:
    ...         print(harn.pool_get("reviews") is pool)
    >>> harn.run(main)
    True
    """


class PoolNotFound(PoolError):
    """No live pool has this name or id.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         harn.pool_get("reviews", required=True)
    ...     except harn.PoolNotFound as error:
    ...         print(error)
    >>> harn.run(main)
    this runtime has no pool 'reviews'; pool_create makes one
    """


class PoolClosed(PoolError):
    """The pool takes no more work.

    >>> import harn
    >>> async def main() -> None:
    ...     pool = await harn.pool_create(name="reviews")
    ...     await pool.close()
    ...     try:
    ...         await pool.submit(len, "late")
    ...     except harn.PoolClosed as error:
    ...         print(error)
    >>> harn.run(main)
    pool 'reviews' is closed and takes no more work
    """


class PoolScopeUnavailable(PoolError):
    """The scope needs a durable store or a host, and this runtime has neither.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         await harn.pool_create(name="models", scope="tenant")
    ...     except harn.PoolScopeUnavailable as error:
    ...         print(error)
    >>> harn.run(main, tenant_id="acme")
    scope 'tenant' is shared by processes, or host-managed: pool 'models' needs a runtime with ...
    """


class PoolTaskFailed(PoolError):
    """The awaited task's closure raised; `__cause__` is the original.

    >>> import harn
    >>> async def main() -> None:
    ...     pool = await harn.pool_create(name="reviews")
    ...     task = await pool.submit(int, "seven")
    ...     try:
    ...         await task
    ...     except harn.PoolTaskFailed as error:
    ...         print(error.__cause__)
    >>> harn.run(main)
    invalid literal for int() with base 10: 'seven'
    """


class PoolTaskRejected(PoolError):
    """The awaited task was refused by its pool's drop policy and never ran.

    >>> import harn
    >>> async def main() -> None:
    ...     policy = harn.backpressure_queue(max_depth=1, on_full="drop_newest")
    ...     pool = await harn.pool_create(name="reviews", max_concurrent=1, backpressure=policy)
    ...     tasks = [await pool.submit(harn.sleep, "1h") for _ in range(3)]
    ...     try:
    ...         await tasks[2]
    ...     except harn.PoolTaskRejected:
    ...         print(tasks[2].status)
    >>> harn.run(main)
    rejected
    """


class PoolTaskCancelled(PoolError):
    """The awaited task was cancelled.

    >>> import harn
    >>> async def main() -> None:
    ...     pool = await harn.pool_create(name="reviews")
    ...     task = await pool.submit(harn.sleep, "1h")
    ...     task.cancel()
    ...     try:
    ...         await task
    ...     except harn.PoolTaskCancelled:
    ...         print(task.status)
    >>> harn.run(main)
    cancelled
    """


class PoolLocked(PoolError):
    """Another process owns this pool's journal.

    >>> import harn, tempfile
    >>> async def main(folder: str) -> None:
    ...     await harn.pool_create(name="reviews", scope="pipeline")
    ...     async with harn.Runtime(state_dir=folder, pipeline_id="nightly"):
    ...         try:
    ...             await harn.pool_create(name="reviews", scope="pipeline")
    ...         except harn.PoolLocked as error:
    ...             print(str(error).removeprefix(folder))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     harn.run(main, folder, state_dir=folder, pipeline_id="nightly")
    /pools/nightly__reviews.jsonl is in use: another process, or another runtime of this one, ...
    """


class DeadlockError(HarnError):
    """A wait that could never end.

    >>> import harn
    >>> async def main() -> None:
    ...     async def wait_for_itself() -> None:
    ...         await handle
    ...     handle = harn.spawn(wait_for_itself)
    ...     try:
    ...         await handle
    ...     except harn.DeadlockError as error:
    ...         print(error)
    >>> harn.run(main)
    task task_root:spawn:1 awaits itself and would never end
    """


class MutexReentered(DeadlockError):
    """A task asks, without a timeout, for a permit that it already holds.

    >>> import harn
    >>> async def main() -> None:
    ...     async with harn.mutex("deploy"):
    ...         try:
    ...             async with harn.mutex("deploy"):
    ...                 pass
    ...         except harn.MutexReentered as error:
    ...             print(error.code)
    >>> harn.run(main)
    HARN-ORC-011
    """

    code: ClassVar[str | None] = "HARN-ORC-011"


class ChannelDeadlock(DeadlockError):
    """Every task waits on channels that only these tasks could serve.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         await harn.channel("replies").receive()
    ...     except harn.ChannelDeadlock as error:
    ...         print(error.code)
    >>> harn.run(main)
    HARN-ORC-012
    """

    code: ClassVar[str | None] = "HARN-ORC-012"


class ChannelClosed(HarnError):
    """The channel is closed (and, for a receive, drained).

    >>> import harn
    >>> async def main() -> None:
    ...     replies = harn.channel("replies")
    ...     replies.close()
    ...     try:
    ...         await replies.send("late")
    ...     except harn.ChannelClosed as error:
    ...         print(error)
    >>> harn.run(main)
    channel 'replies' is closed
    """


class MailboxClosed(HarnError):
    """The mailbox is closed and drained.

    >>> import harn
    >>> async def main() -> None:
    ...     inbox = harn.mailbox_open("reviewer")
    ...     inbox.close()
    ...     try:
    ...         await inbox.receive()
    ...     except harn.MailboxClosed as error:
    ...         print(error)
    >>> harn.run(main)
    mailbox 'reviewer' is closed
    """


class RaceFailed(HarnError):
    """Every runner of a race failed; *errors* holds each one's error, by index.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         await harn.parallel_race(["one", "two"], int)
    ...     except harn.RaceFailed as error:
    ...         print([type(each).__name__ for each in error.errors])
    >>> harn.run(main)
    ['ValueError', 'ValueError']
    """

    def __init__(self, message: str, errors: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.errors: list[object] = list(errors)


class TaskCancelled(HarnError):
    """The awaited task was cancelled, or this task was asked to stop; it was not aborted.

    >>> import harn
    >>> async def main() -> None:
    ...     handle = harn.spawn(harn.sleep, "1h")
    ...     handle.cancel()
    ...     try:
    ...         await handle
    ...     except harn.TaskCancelled as error:
    ...         print(error)
    >>> harn.run(main)
    task task_root:spawn:1 was cancelled
    """


class WorkerDied(HarnError):
    """A worker process ended, killed or crashed, while it ran this task.

    >>> import harn
    >>> error = harn.WorkerDied("worker process 4711 ended by signal SIGKILL while it ran resize")
    >>> isinstance(error, harn.HarnError), str(error)
    (True, 'worker process 4711 ended by signal SIGKILL while it ran resize')
    """


class DeadlineExceeded(HarnError, TimeoutError):
    """The block ran past its deadline.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         async with harn.deadline("1ms"):
    ...             await harn.sleep("1h")
    ...     except TimeoutError as error:
    ...         print(repr(error))
    >>> harn.run(main)
    DeadlineExceeded('Deadline exceeded: 1ms have passed')
    """


class AcquireTimeout(HarnError, TimeoutError):
    """A permit that the caller required was not granted within its timeout; nothing is held.

    >>> import harn
    >>> async def main() -> None:
    ...     async with harn.mutex("deploy"):
    ...         try:
    ...             async with harn.mutex("deploy", timeout="1ms"):
    ...                 pass
    ...         except TimeoutError as error:
    ...             print(type(error).__name__)
    >>> harn.run(main)
    AcquireTimeout
    """


class ClaimLost(HarnError):
    """The claim was superseded: another consumer may be working on this job now.

    >>> import harn
    >>> async def main() -> None:
    ...     queue = harn.worker_queue("mail")
    ...     await queue.enqueue({"to": "ann"})
    ...     claim = await queue.claim_next("worker-1")
    ...     await queue.cancel(claim.job.id)
    ...     try:
    ...         await claim.renew()
    ...     except harn.ClaimLost as error:
    ...         print(error)
    >>> harn.run(main)
    the claim on job 1 of queue 'mail' is lost: the job was cancelled
    """


class StepChanged(HarnError):
    """A step has another function or other arguments than when it was recorded.

    >>> import harn
    >>> async def handle(job: harn.Job) -> None:
    ...     await harn.step("greet", str.upper, f"attempt {job.attempts}")
    ...     raise harn.RetryLater(0)
    >>> async def main() -> str | None:
    ...     receipt = await harn.worker_queue("mail").enqueue({}, max_attempts=2)
    ...     await harn.drain("mail", handle)
    ...     return (await receipt.state()).error
    >>> harn.run(main)
    "StepChanged: step 'greet' of job 1 of queue 'mail' was recorded with other arguments..."
    """


class JobError(HarnError):
    """A job has no result to return; *job* is its state, if it is known.

    >>> import harn
    >>> async def main() -> None:
    ...     queue = harn.worker_queue("mail")
    ...     receipt = await queue.enqueue({"to": "ann"})
    ...     await queue.purge()
    ...     try:
    ...         await receipt.result()
    ...     except harn.JobError as error:
    ...         print(error.job.status)
    >>> harn.run(main)
    purged
    """

    def __init__(self, message: str, job: JobState | None = None) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobError):
    """The job is dead: it failed on its last attempt, or was buried.

    *error* and *traceback* are those of its last attempt.

    >>> import harn
    >>> async def handle(job: harn.Job) -> None:
    ...     raise harn.Bury("no such address")
    >>> async def main() -> None:
    ...     receipt = await harn.worker_queue("mail").enqueue({"to": "ann"})
    ...     await harn.drain("mail", handle)
    ...     try:
    ...         await receipt.result()
    ...     except harn.JobFailed as error:
    ...         print(error.error)
    >>> harn.run(main)
    no such address
    """

    @property
    def error(self) -> str | None:
        """The error of the last attempt."""
        return None if self.job is None else self.job.error

    @property
    def traceback(self) -> str | None:
        """The traceback of the last attempt, if it was kept."""
        return None if self.job is None else self.job.traceback


class JobCancelled(JobError):
    """The job was cancelled or purged before it was done.

    >>> import harn
    >>> async def main() -> None:
    ...     queue = harn.worker_queue("mail")
    ...     receipt = await queue.enqueue({"to": "ann"})
    ...     await queue.cancel(receipt.job_id, reason="sent by hand")
    ...     try:
    ...         await receipt.result()
    ...     except harn.JobCancelled as error:
    ...         print(error)
    >>> harn.run(main)
    job 1 of queue 'mail' was cancelled: sent by hand
    """


class StorageError(HarnError):
    """The store could not carry out an operation.

    >>> import harn
    >>> async def main() -> None:
    ...     await harn.event_log_read("orders")
    >>> try:
    ...     harn.run(main, storage="sqlite:////dev/null/orders.sqlite")
    ... except harn.StorageError as error:
    ...     print(error)
    /dev/null/orders.sqlite: [Errno 20] Not a directory: '/dev/null/orders.sqlite'
    """


class StorageBusy(StorageError):
    """The store is locked by another process or cannot be reached; a retry may work.

    >>> import harn
    >>> error = harn.StorageBusy("events.sqlite is locked by another process; try again")
    >>> isinstance(error, harn.StorageError), str(error)
    (True, 'events.sqlite is locked by another process; try again')
    """


class StorageCorrupt(StorageError):
    """A record or page of the store cannot be read.

    >>> import harn, pathlib, tempfile
    >>> async def main() -> None:
    ...     await harn.event_log_read("orders")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "orders.sqlite")
    ...     _ = path.write_text("not a database " * 100)
    ...     try:
    ...         harn.run(main, storage=f"sqlite:///{path}")
    ...     except harn.StorageCorrupt as error:
    ...         print(str(error).removeprefix(folder))
    /orders.sqlite is damaged (file is not a database); run `harn log verify`, restore a copy
    """


class StorageVersion(StorageError):
    """The store was written by a newer harn than this one.

    >>> import harn
    >>> error = harn.StorageVersion("events.sqlite was written by a newer harn; upgrade harn")
    >>> isinstance(error, harn.StorageError), str(error)
    (True, 'events.sqlite was written by a newer harn; upgrade harn')
    """


class ManifestError(HarnError):
    """A mistake in a manifest; the message names file, table and key.

    >>> import harn
    >>> from harn.orchestrator.manifest import read_manifest
    >>> try:
    ...     read_manifest("nowhere.toml")
    ... except harn.ManifestError as error:
    ...     print(error)
    nowhere.toml cannot be read: No such file or directory
    """


class TriggerError(HarnError):
    """A trigger cannot be registered, found or fired.

    >>> import harn
    >>> async def main() -> None:
    ...     try:
    ...         await harn.trigger_fire("reviews", {})
    ...     except harn.TriggerError as error:
    ...         print(error)
    >>> harn.run(main)
    no trigger 'reviews'
    """


class RateLimitError(HarnError):
    """A rate limit or budget that cannot be acquired or stored.

    *retry_after_ms* tells when there may be room again, if that is known.

    >>> import asyncio
    >>> from harn import llm_budget, llm_slot
    >>> from harn.testing import fresh_runtime
    >>> async def main() -> None:
    ...     async with fresh_runtime(tenant_id="acme"):
    ...         llm_budget("acme", tokens=100, window="1h")
    ...         try:
    ...             for _ in range(2):
    ...                 async with llm_slot("local", "small", input_tokens=80):
    ...                     pass
    ...         except RateLimitError as error:
    ...             print(error.retry_after_ms)
    >>> asyncio.run(main())
    3600000
    """

    def __init__(self, message: str = "", *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class SseError(HarnError):
    """A server does not serve events where `sse_connect` asks for them, or not within its limits.

    *status_code* is that of the server's answer, if there was one.

    >>> import harn
    >>> from harn.testing.fake_provider import Fail, FakeModels
    >>> async def main() -> None:
    ...     async with FakeModels([Fail(404)]) as server, harn.sse_connect(server.url) as events:
    ...         try:
    ...             await events.receive()
    ...         except harn.SseError as error:
    ...             print(error.status_code)
    >>> harn.run(main)
    404
    """

    def __init__(self, message: str, *, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class ModelError(HarnError):
    """A call to a model failed.

    *status_code* and *headers* are those of the provider's answer, if there was one; *retryable*
    tells whether the same call may succeed later.

    >>> import harn
    >>> error = harn.ModelError("acme: too many requests", status_code=429, retryable=True)
    >>> error.status_code, error.retryable
    (429, True)
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        status_code: int | None = None,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status_code = status_code
        self.retryable = retryable
        self.headers: dict[str, str] = dict(headers or {})


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest of *known*, or nothing.

    A name that is not a short text has no match: to print it might take forever, or overflow the
    stack.
    """
    if not isinstance(name, str) or len(name) > 100:
        return ""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""

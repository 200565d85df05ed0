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

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from harn.workers.job_state import JobState


class HarnError(Exception):
    """The root of every error that harn raises."""

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
    """An option's value is not accepted; the message names option, value and what is accepted."""

    def __init__(self, option: str, value: object, accepted: str) -> None:
        super().__init__(f"{option}={_shown(value)} is not accepted: {accepted}")
        self.option = option
        self.value = value
        self.accepted = accepted

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidOption, (self.option, _shown(self.value), self.accepted)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # an int of too many digits, or a repr that raises
        return f"<{type(value).__name__}, which cannot be shown>"
    return text if len(text) <= 120 else f"{text[:117]}..."


class PoolError(HarnError):
    """The root of the errors of pools."""


class PoolFull(PoolError):
    """A pool's queue is full, and its policy is to raise this."""

    code: ClassVar[str | None] = "HARN-POL-001"


class PoolBusy(PoolError):
    """A `fail_fast` pool has no slot free right now."""

    code: ClassVar[str | None] = "HARN-POL-002"


class PoolExists(PoolError):
    """A live pool already has this name."""


class PoolNotFound(PoolError):
    """No live pool has this name or id."""


class PoolClosed(PoolError):
    """The pool takes no more work."""


class PoolScopeUnavailable(PoolError):
    """The scope needs a durable store or a host, and this runtime has neither."""


class PoolTaskFailed(PoolError):
    """The awaited task's closure raised; `__cause__` is the original."""


class PoolTaskRejected(PoolError):
    """The awaited task was refused by its pool's drop policy and never ran."""


class PoolTaskCancelled(PoolError):
    """The awaited task was cancelled."""


class PoolLocked(PoolError):
    """Another process owns this pool's journal."""


class DeadlockError(HarnError):
    """A wait that could never end."""


class MutexReentered(DeadlockError):
    """A task asks, without a timeout, for a permit that it already holds."""

    code: ClassVar[str | None] = "HARN-ORC-011"


class ChannelDeadlock(DeadlockError):
    """Every task waits on channels that only these tasks could serve."""

    code: ClassVar[str | None] = "HARN-ORC-012"


class ChannelClosed(HarnError):
    """The channel is closed (and, for a receive, drained)."""


class MailboxClosed(HarnError):
    """The mailbox is closed and drained."""


class RaceFailed(HarnError):
    """Every runner of a race failed; *errors* holds each one's error, by index."""

    def __init__(self, message: str, errors: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.errors: list[object] = list(errors)


class TaskCancelled(HarnError):
    """The awaited task was cancelled, or this task was asked to stop; it was not aborted."""


class WorkerDied(HarnError):
    """A worker process ended, killed or crashed, while it ran this task."""


class DeadlineExceeded(HarnError, TimeoutError):
    """The block ran past its deadline."""


class AcquireTimeout(HarnError, TimeoutError):
    """A permit that the caller required was not granted within its timeout; nothing is held."""


class ClaimLost(HarnError):
    """The claim was superseded: another consumer may be working on this job now."""


class StepChanged(HarnError):
    """A step has another function or other arguments than when it was recorded."""


class JobError(HarnError):
    """A job has no result to return; *job* is its state, if it is known."""

    def __init__(self, message: str, job: JobState | None = None) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobError):
    """The job is dead: it failed on its last attempt, or was buried.

    *error* and *traceback* are those of its last attempt.
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
    """The job was cancelled or purged before it was done."""


class StorageError(HarnError):
    """The store could not carry out an operation."""


class StorageBusy(StorageError):
    """The store is locked by another process or cannot be reached; a retry may work."""


class StorageCorrupt(StorageError):
    """A record or page of the store cannot be read."""


class StorageVersion(StorageError):
    """The store was written by a newer harn than this one."""


class ManifestError(HarnError):
    """A mistake in a manifest; the message names file, table and key."""


class TriggerError(HarnError):
    """A trigger cannot be registered, found or fired."""


class RateLimitError(HarnError):
    """A rate limit or budget that cannot be acquired or stored.

    *retry_after_ms* tells when there may be room again, if that is known.
    """

    def __init__(self, message: str = "", *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class SseError(HarnError):
    """A server does not serve events where `sse_connect` asks for them, or not within its limits.

    *status_code* is that of the server's answer, if there was one.
    """

    def __init__(self, message: str, *, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class ModelError(HarnError):
    """A call to a model failed.

    *status_code* and *headers* are those of the provider's answer, if there was one; *retryable*
    tells whether the same call may succeed later.
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
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""

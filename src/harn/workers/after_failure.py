"""What happens to a job after a failed attempt: a decision."""

from __future__ import annotations

from dataclasses import dataclass

from harn.retry_policy import RetryPolicy, delay_after, gives_up_on
from harn.workers.failures import Failure, failure_of
from harn.workers.handler_exceptions import Bury, GiveBack, RetryLater, failure_behind


@dataclass(frozen=True, slots=True)
class Return:
    """The job is released, the attempt does not count; it can be claimed after *delay_ms*."""

    delay_ms: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt has failed; *final* makes the job dead.

    It is tried again after *delay_ms*; None leaves it to the expiry of its claim.
    """

    failure: Failure
    delay_ms: int | None = None
    final: bool = False


def after_error(
    error: BaseException, attempt: int, policy: RetryPolicy | None, random: float
) -> Return | Fail:
    """Decide what follows an *attempt*, counted from 1, that ended with *error*.

    *policy* is the one that the job follows, and *random*, from 0 to 1, its jitter.
    """
    if isinstance(error, GiveBack):
        return Return(error.delay_ms, error.reason)
    if isinstance(error, Bury):
        return Fail(failure_behind(error), final=True)
    if isinstance(error, RetryLater):
        return Fail(failure_behind(error), error.delay_ms)
    failure = failure_of(error)
    if policy is None:
        return Fail(failure)
    if gives_up_on(policy, error):
        return Fail(failure, final=True)
    return Fail(failure, round(delay_after(attempt, policy, random) * 1000))

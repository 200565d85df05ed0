"""What happens to a job after a failed attempt: a decision."""

from __future__ import annotations

import msgspec

from harn.retry_policy import RetryPolicy, delay_after, gives_up_on
from harn.workers.failures import Failure, failure_of
from harn.workers.handler_exceptions import Bury, GiveBack, RetryLater, failure_behind


class Release(msgspec.Struct, frozen=True):
    """The job is released, the attempt does not count; it can be claimed after *delay_ms*."""

    delay_ms: int
    reason: str | None


class FailAttempt(msgspec.Struct, frozen=True):
    """The attempt has failed; *final* makes the job dead.

    It is tried again after *delay_ms*; None leaves it to the expiry of its claim.
    """

    failure: Failure
    delay_ms: int | None = None
    final: bool = False


def after_error(
    error: BaseException, attempt: int, policy: RetryPolicy | None, random: float
) -> Release | FailAttempt:
    """Decide what follows an *attempt*, counted from 1, that ended with *error*.

    *policy* is the one that the job follows, and *random*, from 0 to 1, its jitter.
    """
    if isinstance(error, GiveBack):
        return Release(error.delay_ms, error.reason)
    if isinstance(error, Bury):
        return FailAttempt(failure_behind(error), final=True)
    if isinstance(error, RetryLater):
        return FailAttempt(failure_behind(error), error.delay_ms)
    failure = failure_of(error)
    if policy is None:
        return FailAttempt(failure)
    if gives_up_on(policy, error):
        return FailAttempt(failure, final=True)
    return FailAttempt(failure, round(delay_after(attempt, policy, random) * 1000))

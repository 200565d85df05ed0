"""The exceptions by which a handler decides about its job: retry it later, release it, bury it."""

from __future__ import annotations

from harn.duration import Duration, to_ms, to_seconds, to_text
from harn.error_text import message_of
from harn.errors import InvalidOption
from harn.workers.failures import Failure, failure_of


class RetryLater(Exception):
    """Raise it in a handler: the attempt has failed, and the job is tried again after *delay*.

    The attempt counts: after the last one the job is dead. `raise RetryLater("1m") from error`
    keeps *error* as the reason.

    >>> RetryLater("90s").delay_ms
    90000
    """

    failure: Failure | None = None
    """The failure to record, instead of the cause or this exception."""

    def __init__(self, delay: Duration) -> None:
        self.delay_ms: int = to_ms(delay, "delay")
        super().__init__(f"the handler asked for another attempt in {_text(delay)}")


class GiveBack(Exception):
    """Raise it in a handler: the job is released, and the attempt does not count.

    It can be claimed again after *delay*, or at once without one.

    >>> GiveBack("5s").delay_ms, GiveBack().delay_ms
    (5000, 0)
    """

    reason: str | None = None
    """Why, for the record of the release."""

    def __init__(self, delay: Duration | None = None) -> None:
        self.delay_ms: int = 0 if delay is None else to_ms(delay, "delay")
        super().__init__("the handler released the job")


class Bury(Exception):
    """Raise it in a handler: the job is dead now, whatever attempts are left.

    *reason* is the job's error. `raise Bury("no such customer") from error` keeps the traceback of
    *error* too.

    >>> str(Bury("no such customer"))
    'no such customer'
    """

    failure: Failure | None = None
    """The failure to record, instead of this exception."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidOption("reason", reason, "text that says why the job is dead")
        super().__init__(reason)


def failure_behind(raised: RetryLater | Bury) -> Failure:
    """Return the failure to record for an attempt that ended with *raised*."""
    if raised.failure is not None:
        return raised.failure
    if isinstance(raised, Bury):
        told = failure_of(raised)
        return Failure(message_of(raised), told.type, told.message, told.traceback, raised)
    context = None if raised.__suppress_context__ else raised.__context__
    return failure_of(raised.__cause__ or context or raised)


def _text(delay: Duration) -> str:
    return to_text(to_seconds(delay, "delay"))

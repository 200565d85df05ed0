"""The record of a failed attempt, and its log line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from harn.error_text import error_text, message_of
from harn.telemetry.logs import FAILED_WORK
from harn.telemetry.tracebacks import traceback_text

if TYPE_CHECKING:
    from harn.storage.queue import SettlementResult
    from harn.workers.records import Job

logger: logging.Logger = logging.getLogger("harn.workers")


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt failed, as it is recorded and logged.

    An exception with an attribute `failure` of this type is recorded as that failure.
    """

    text: str
    """`Type: message`, the `error` of every record."""
    type: str | None = None
    message: str | None = None
    traceback: str | None = None
    error: BaseException | None = None
    """The exception itself, for the log; None if it must not be shown as it is."""

    def as_dict(self) -> dict[str, str | None]:
        """Return the fields of a record that describe it, beside `error`."""
        return {
            "error_type": self.type,
            "error_message": self.message,
            "traceback": self.traceback,
        }


def failure_of(error: BaseException | str | Failure) -> Failure:
    """Describe *error*; a string has neither type nor traceback."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, str):
        text = message_of(error) or "failed"
        return Failure(text, message=text)
    told = getattr(error, "failure", None)
    if isinstance(told, Failure):
        return told
    trace = traceback_text(error)
    return Failure(error_text(error), type(error).__name__, message_of(error), trace, error)


def log_failure(job: Job, failure: Failure, *, dead: bool, note: str = "") -> None:
    """Log a failed attempt with its traceback: a warning, or an error if the job is dead now."""
    if dead:
        level, ending = logging.ERROR, "the job is dead"
    else:
        level, ending = logging.WARNING, note or "it is tried again"
    most = job.max_attempts or "any number"
    said = f"queue {job.queue!r}: job {job.id} failed in attempt {job.attempts} of {most}; {ending}"
    if failure.error is not None:
        logger.log(level, "%s: %s", said, failure.text, exc_info=failure.error, extra=FAILED_WORK)
    elif failure.traceback is not None:
        logger.log(level, "%s: %s\n%s", said, failure.text, failure.traceback, extra=FAILED_WORK)
    else:
        logger.log(level, "%s: %s", said, failure.text, extra=FAILED_WORK)


def log_attempt(job: Job, failure: Failure, result: SettlementResult | None, error: str) -> None:
    """Log a failed attempt, and that its record is missing if it could not be written."""
    if result is None:
        log_failure(job, failure, dead=False, note=f"this could not be recorded ({error})")
    elif result.settled == "lost":
        log_failure(job, failure, dead=False, note=f"its claim was lost before ({result.note})")
    else:
        log_failure(job, failure, dead=result.dead)

"""What a handler raised, described without secrets."""

from __future__ import annotations

from harn.error_text import message_of
from harn.errors import HarnError
from harn.telemetry.tracebacks import traceback_text
from harn.triggers.secrets import Secrets
from harn.workers import Failure

MOST_ERROR = 4000
"""The most characters of an error that are kept."""


def failure_of(error: BaseException, secrets: Secrets) -> Failure:
    """Describe *error*: its text, type, message and traceback."""
    said = message_of(error)
    is_ours = isinstance(error, HarnError)
    text = said if is_ours else f"handler raised {type(error).__name__}: {said}"
    return Failure(
        secrets.mask(text)[:MOST_ERROR],
        type(error).__name__,
        secrets.mask(said)[:MOST_ERROR],
        secrets.mask(traceback_text(error)),
    )

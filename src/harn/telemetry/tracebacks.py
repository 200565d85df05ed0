"""The traceback of a failure, as text that fits into a record or a log line."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

MOST_TRACEBACK = 8 * 1024
"""The most bytes of a traceback that are kept, as UTF-8."""

_PACKAGE = str(Path(__file__).parent.parent)
_CUT = "... the beginning is left out ...\n"


def traceback_text(error: BaseException) -> str:
    """Return the traceback of *error*, with its causes, in at most 8 KiB.

    It begins in the caller's code: the frames of harn before that are left out. If it is too long,
    its end is kept, which names the error.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as error:
    ...     print(traceback_text(error).splitlines()[-1])
    ZeroDivisionError: division by zero
    """
    try:
        found = traceback.TracebackException(type(error), error, _after_ours(error), compact=True)
        text = "".join(found.format())
    except Exception:  # formatting may call code of the exception class, which may raise
        text = f"{type(error).__name__}: (its traceback cannot be shown)\n"
    return shortened(text)


def shortened(text: str) -> str:
    """Return *text*, or its end if it is too long; what UTF-8 cannot encode is replaced."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MOST_TRACEBACK:
        return data.decode()
    return _CUT + data[len(_CUT) - MOST_TRACEBACK :].decode("utf-8", "ignore")


def _after_ours(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace or error.__traceback__

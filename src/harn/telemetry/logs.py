r"""Log lines that name the running task: one line per record, also with line ends in a name.

harn logs through the standard library, below the logger `harn`. A program that sets up logging
itself needs only `WhoIsRunning` from here, a filter that adds the task, tenant and trace ids to
each record. The command line uses `configured`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Literal, Protocol

from harn.clock import iso
from harn.error_text import error_text
from harn.escaping import one_line, to_json
from harn.telemetry.spans import current_ids

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")

NAMES = ("task_id", "tenant_id", "trace_id", "span_id")


class SupportsWrite(Protocol):
    """Where log lines go."""

    def write(self, text: str, /) -> object:
        """Write *text*."""

    def flush(self) -> None:
        """Write what is buffered."""


class WhoIsRunning(logging.Filter):
    """Adds the ids of the running task to each record; unknown ones are None."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids and let the record pass."""
        from harn.context import current_frame_var

        frame = current_frame_var.get(None)
        record.task_id = frame.task.id if frame is not None else None
        record.tenant_id = frame.task.ambient.tenant_id if frame is not None else None
        record.trace_id, record.span_id = current_ids()
        return True


class OneLine(logging.Formatter):
    """Formats a record as one line of text; control characters and line ends are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line."""
        who = " ".join(
            f"{name.removesuffix('_id')}={value}"
            for name in ("task_id", "tenant_id", "trace_id")
            if (value := getattr(record, name, None))
        )
        when = iso(int(record.created * 1000))
        text = f"{when} {record.levelname:<7} {record.name}: {_message(record)}"
        return one_line(f"{text} [{who}]" if who else text)


class JsonLine(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as JSON."""
        line = {
            "at": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in NAMES if (value := getattr(record, name, None))}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        return to_json(line)


FAILED_WORK = {"failed_work": True}
"""The `extra` of a record about work that failed: a job, a dispatch, a pool task, a child."""


def is_not_failed_work(record: logging.LogRecord) -> bool:
    """Tell whether *record* is about anything but work that failed."""
    return not getattr(record, "failed_work", False)


class Log:
    """The records of harn on a stream."""

    def __init__(self, stream: SupportsWrite, format: LogFormat) -> None:
        self.handler: logging.StreamHandler[SupportsWrite] = logging.StreamHandler(stream)
        self.handler.setFormatter(JsonLine() if format == "json" else OneLine())
        self.handler.addFilter(WhoIsRunning())

    def show(self, level: int, *, with_failed_work: bool) -> None:
        """Write the records from *level* on, with those of failed work or without."""
        logging.getLogger("harn").setLevel(level)
        self.handler.removeFilter(is_not_failed_work)
        if not with_failed_work:
            self.handler.addFilter(is_not_failed_work)


@contextlib.contextmanager
def configured(
    format: LogFormat = "text",
    level: int = logging.WARNING,
    stream: SupportsWrite | None = None,
    *,
    with_failed_work: bool = True,
) -> Iterator[Log]:
    """Send the records of harn to *stream* (stderr unless given) while the block runs.

    A command that reports failed work itself leaves out the records of it.
    """
    log = Log(stream or sys.stderr, format)
    ours = logging.getLogger("harn")
    before = ours.level
    ours.addHandler(log.handler)
    log.show(level, with_failed_work=with_failed_work)
    try:
        yield log
    finally:
        ours.removeHandler(log.handler)
        ours.setLevel(before)


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and (error := record.exc_info[1]) is not None:
        trace = logging.Formatter().formatException(record.exc_info)
        text = f"{text} ({error_text(error)})\n{trace}"
    return text

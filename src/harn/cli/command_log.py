"""The log of a command, on stderr.

A command that runs and ends logs warnings, but not failed work, which it reports itself in one
line. A command that serves has only its log, so it calls `log_as_service`. The environment's
HARN_LOG_LEVEL overrides both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from harn.cli.progress import AboveTheLine, live_line
from harn.settings import Settings
from harn.telemetry import logs

LOG = "harn.cli.command_log"
"""The key of the log in a command's context."""


@contextmanager
def command_log(ctx: click.Context) -> Iterator[None]:
    """Write the log of the command of *ctx* while the block runs."""
    settings = Settings.load()
    level = _level(settings.log_level or "warning")
    with logs.configured(
        "json" if settings.log == "json" else "text",
        level,
        AboveTheLine(),
        with_failed_work=level < logging.WARNING,
    ) as log:
        ctx.meta[LOG] = log
        yield


def log_as_service() -> None:
    """Log at info from here on, failed work included; the log is the progress."""
    live_line.stop_ticking()
    log: logs.Log | None = click.get_current_context().meta.get(LOG)
    if log is not None:
        log.show(_level(Settings.load().log_level or "info"), with_failed_work=True)


def _level(name: str) -> int:
    return logging.getLevelNamesMapping()[name.upper()]

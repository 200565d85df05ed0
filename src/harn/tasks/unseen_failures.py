"""The failures of detached tasks that no caller has received.

Each is logged once: when the handle of its task is garbage-collected, or when the runtime ends. A
caller that receives the failure before that cancels the report.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.tasks")

FEWEST_KEPT = 64
"""Reports that are always kept before those that have been logged or cancelled are dropped."""


class UnseenFailures:
    """The reports of one runtime that are not logged yet."""

    def __init__(self, runtime: Runtime) -> None:
        self._reports: set[weakref.finalize[Any, Any]] = set()
        self._kept = FEWEST_KEPT

    def add(self, report: weakref.finalize[Any, Any]) -> None:
        """Keep *report* until it is logged or cancelled, or the runtime ends."""
        if len(self._reports) >= 2 * self._kept:
            self._reports = {each for each in self._reports if each.alive}
            self._kept = max(FEWEST_KEPT, len(self._reports))
        self._reports.add(report)

    async def aclose(self) -> None:
        """Log every failure that no caller has received."""
        for report in self._reports:
            report()


def log_failure(task_id: str, name: str, error: BaseException) -> None:
    """Log that a detached task failed with *error*, and no caller received it."""
    logger.error("detached task %s (%s) failed and was not awaited", task_id, name, exc_info=error)

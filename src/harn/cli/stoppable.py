"""How a signal ends a command: it is cancelled, everything is closed, and one line says so.

Exit codes are 130 for Ctrl-C and 143 for SIGTERM. `serve`, `queue drain` and `top` are made to be
stopped: they end in order at a signal, with exit code 0.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from harn.stopping import Stopping

T = TypeVar("T")

STOP_WITHIN = 5.0
"""Seconds that a command without a `--shutdown-timeout` of its own may take to end."""


def run_stoppable(
    main: Callable[[], Coroutine[Any, Any, T]], stopping: Stopping | None = None
) -> T:
    """Run *main* in a new event loop until it is done, or until a signal stops it."""
    try:
        return (stopping or Stopping(STOP_WITHIN, ends_process=True)).run(main)
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # click would print an empty line for the other

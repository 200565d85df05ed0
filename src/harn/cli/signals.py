"""How a signal ends a command: it is cancelled, everything is closed, and one line reports it.

Exit codes are 130 for Ctrl-C and 143 for SIGTERM. `serve`, `worker`, `queue drain` and `top` run
until a signal: they stop in order, with exit code 0. `stoppable_call` ends a call that blocks
outside of any event loop.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from harn.stopping import Stopping

T = TypeVar("T")

STOPPED: dict[object, str] = {130: "interrupted", 143: "stopped by SIGTERM"}
"""What is said of a command that a signal stopped, by its exit code."""
STOP_WITHIN = 5.0
"""Seconds that a command without the option `--shutdown-timeout` may take to end."""


def run_stoppable(
    main: Callable[[], Coroutine[Any, Any, T]], stopping: Stopping | None = None
) -> T:
    """Run *main* in a new event loop until it is done, or until a signal stops it."""
    try:
        return (stopping or Stopping(STOP_WITHIN, ends_process=True)).run(main)
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # for KeyboardInterrupt click would print an empty line


class StoppedBySignal(SystemExit):
    """The exit that a signal asks for; not one that the interrupted code chose itself."""


@contextmanager
def stoppable_call() -> Iterator[None]:
    """Let a signal end the block, which blocks: `StoppedBySignal` with 130 or 143 is raised in it.

    Off the main thread there are no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = False

    def stop(number: int, frame: object) -> NoReturn:
        nonlocal is_over
        is_over = True
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # one more must not change the exit code
        raise StoppedBySignal(128 + number)

    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        if not is_over:
            for each, handler in before.items():
                signal.signal(each, handler)

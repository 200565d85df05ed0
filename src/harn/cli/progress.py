"""The line on a terminal's stderr that tells what a command is doing; silent elsewhere.

A command may show a line of its own. Any other one that has taken two seconds gets a line with its
name. Both count the seconds. The line is erased before anything else is printed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harn.cli.tables import cut, width_of
from harn.clock import SystemClock
from harn.escaping import one_line
from harn.settings import has_dumb_terminal

PATIENCE = 2.0
"""Seconds after which a command shows that it is at work."""
EVERY = 1.0

_now = SystemClock.monotonic


def on_terminal() -> bool:
    """Tell whether progress may be shown: only if stderr is a terminal that can erase a line."""
    return sys.stderr.isatty() and not has_dumb_terminal()


class LiveLine:
    """The last line of the terminal; there is one, `live_line`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._text = ""
        self._is_shown = False
        self._began = _now()
        self._ticker: threading.Event | None = None

    def show(self, text: str) -> None:
        """Replace the line with *text*."""
        with self._lock:
            self._text = one_line(text)
            self._draw(self._text)

    def erase(self) -> None:
        """Remove the line, so that something else can be printed; it may come back."""
        with self._lock:
            if self._is_shown:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._is_shown = False

    def end(self) -> None:
        """Remove the line: what it told of is done."""
        with self._lock:
            self._text = ""
            self.erase()

    @contextmanager
    def ticking(self, what: str) -> Iterator[None]:
        """Count the seconds of *what* while the block runs, from the third one on."""
        if not on_terminal():
            yield
            return
        self._began, self._ticker = _now(), threading.Event()
        args = (self._ticker, what)
        thread = threading.Thread(target=self._tick, args=args, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop_ticking()
            thread.join()
            self.end()

    def stop_ticking(self) -> None:
        """Count no more: the command runs until it is stopped."""
        if self._ticker is not None:
            self._ticker.set()

    def _tick(self, stopped: threading.Event, what: str) -> None:
        # A thread, because an import or a driver may block the event loop.
        pause = PATIENCE
        while not stopped.wait(pause):
            pause = EVERY
            with self._lock:
                if not stopped.is_set():
                    self._draw(f"{self._text or what} ({_now() - self._began:.0f}s)")

    def _draw(self, text: str) -> None:
        if not on_terminal():
            return
        width = width_of(sys.stderr) or 80
        # The cursor goes back: what another process prints replaces the line.
        sys.stderr.write(f"\r{cut(text, width - 1)}\x1b[K\r")
        sys.stderr.flush()
        self._is_shown = True


live_line: LiveLine = LiveLine()


class AboveTheLine:
    """Writes to stderr after the line was erased: a log's stream."""

    def write(self, text: str) -> int:
        """Write *text*."""
        live_line.erase()
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush stderr."""
        sys.stderr.flush()


def bar(done: int, total: int, width: int = 16) -> str:
    """Return how much of *total* is done, as a bar with figures.

    >>> bar(5, 10, 4)
    '━━── 5/10'
    """
    full = width * done // max(1, total)
    return f"{'━' * full}{'─' * (width - full)} {done}/{total}"


def shown_count(what: str, every: int = 1000) -> Any:
    """Return a function that shows a count of *what*, each time it has grown by *every*."""
    shown = 0

    def show(count: int) -> None:
        nonlocal shown
        if count - shown >= every:
            shown = count
            live_line.show(f"{count:,} {what}")

    return show

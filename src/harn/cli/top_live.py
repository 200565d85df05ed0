"""The live view of `harn top`: a screen that is drawn again every second, and its keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harn.cli.colours import DIM, YELLOW, colour, has_colours, painted
from harn.cli.garbage_collector import begin_work
from harn.cli.signals import STOP_WITHIN, run_stoppable
from harn.cli.tables import cut
from harn.cli.top_tables import SORTS, body, header
from harn.errors import HarnError
from harn.escaping import one_line
from harn.orchestrator import overview, shares_of
from harn.runtime import Runtime
from harn.stopping import Stopping

RATE_OVER = 10.0
"""Seconds over which jobs per second are counted."""

KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
"""What a terminal sends for the keys that are no letters."""
_SENT = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class View:
    """What the keys have chosen."""

    sort: str = "name"
    wanted: str = ""
    """Only rows that contain this text are shown."""
    is_paused: bool = False
    is_typing: bool = False
    first: int = 0
    """The first line of the tables that is shown."""
    is_over: bool = False


def pressed(view: View, key: str, page: int = 10) -> View:
    """Return *view* after *key*; *page* is how many lines are shown at once.

    >>> pressed(View(), "s").sort, pressed(View(), "q").is_over
    ('ready', True)
    """
    if view.is_typing:
        return _typed(view, key)
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
    if key in moves:
        return replace(view, first=max(0, view.first + moves[key]))
    if key in ("q", "\x04"):
        return replace(view, is_over=True)
    if key == "s":
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
    if key in ("p", " "):
        return replace(view, is_paused=not view.is_paused)
    if key in ("/", "f"):
        return replace(view, is_typing=True, first=0)
    if key == "escape":
        return replace(view, wanted="", first=0)
    return view


def _typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, wanted="")
    if key == "backspace":
        return replace(view, wanted=view.wanted[:-1])
    return replace(view, wanted=view.wanted + key) if len(key) == 1 and key.isprintable() else view


def keys_in(text: str) -> Iterator[str]:
    r"""Yield the keys that a terminal sent as *text*; unknown sequences are left out.

    >>> list(keys_in("s\x1b[A\x1bOPq"))
    ['s', 'up', 'q']
    """
    for sent in _SENT.findall(text):
        if sent in KEYS or len(sent) == 1:
            yield KEYS.get(sent, sent)


def hints(view: View, has_keys: bool, can_scroll: bool) -> str:
    """Return the last line: what the keys do, and what they have chosen."""
    if not has_keys:
        return colour(DIM, "Ctrl-C quits")
    if view.is_typing:
        return f"filter: {one_line(view.wanted)}_  " + colour(DIM, "Enter keeps it, Esc clears it")
    shown = [
        "q quit",
        f"s sort: {view.sort}",
        colour(YELLOW, "p paused") if view.is_paused else "p pause",
        f"/ filter: {one_line(view.wanted)}" if view.wanted else "/ filter",
        *(["↑↓ scroll"] if can_scroll else []),
    ]
    return "  ".join(shown)


def frame(found: dict[str, Any], view: View, size: os.terminal_size) -> tuple[list[str], int]:
    """Return the header and the tables from where they are scrolled, and the last such place."""
    lines = body(found, size.columns, view.sort, view.wanted)
    room = max(1, size.lines - 2)
    last = max(0, len(lines) - room)
    first = min(view.first, last)
    shown = lines[first : first + room]
    shown += [""] * (room - len(shown))
    return [header(found), *shown], last


class Earlier:
    """Earlier reads: shares count from the first one, rates over the latest seconds."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, int]] = {}
        self._acked: dict[str, deque[tuple[float, int]]] = {}

    def compare(self, found: dict[str, Any], now: float) -> dict[str, Any]:
        """Return *found*, read at the monotonic time *now*, with shares and rates."""
        return {**found, "queues": [self._compared(queue, now) for queue in found["queues"]]}

    def _compared(self, queue: dict[str, Any], now: float) -> dict[str, Any]:
        totals = {each["key"]: each["selected_total"] for each in queue["shares"]}
        first = self._first.setdefault(queue["queue"], totals)
        for key in totals:
            first.setdefault(key, 0)
        keys = [
            {**each, "fairness_key": each["key"], "ready_jobs": each["ready"]}
            for each in queue["shares"]
        ]
        rate = self._rate(queue["queue"], queue["acked"], now)
        return {
            **queue,
            "shares": shares_of({**queue, "keys": keys}, first),
            "jobs_per_second": rate,
        }

    def _rate(self, queue: str, acked: int, now: float) -> float | None:
        seen = self._acked.setdefault(queue, deque())
        seen.append((now, acked))
        while len(seen) > 2 and seen[0][0] < now - RATE_OVER:
            seen.popleft()
        (since, before) = seen[0]
        return round(max(0, acked - before) / (now - since), 1) if now > since else None


def live(directory: Path, url: str | None, every: float, view: View) -> int:
    """Show the tables until a key or a signal ends the command."""
    stop = asyncio.Event()
    stopping = Stopping(STOP_WITHIN, stop.set, ends_process=True)
    begin_work()
    return run_stoppable(lambda: _show(directory, url, _Live(every, view, stop)), stopping)


async def _show(directory: Path, url: str | None, shown: _Live) -> int:
    async with Runtime(state_dir=directory, storage=url) as runtime:
        with _screen(), shown.listening():
            while not shown.is_over:
                if not shown.view.is_paused or shown.found is None:
                    await shown.read(runtime, directory)
                await shown.pause()
    return 0


class _Live:
    """The screen: what was read, what the keys chose, and when to draw it again."""

    def __init__(self, every: float, view: View, stop: asyncio.Event) -> None:
        self.view = view
        self.found: dict[str, Any] | None = None
        self._every = every
        self._stop = stop
        self._earlier = Earlier()
        self._waiting = "reading the store"
        self._has_keys = sys.stdin.isatty()

    @property
    def is_over(self) -> bool:
        """Whether a key or a signal has ended it."""
        return self.view.is_over or self._stop.is_set()

    async def read(self, runtime: Runtime, directory: Path) -> None:
        """Read the store and draw; one that cannot be reached may come back."""
        if self.found is None:
            self.draw()
        try:
            found = await overview(runtime, directory)
            self.found = self._earlier.compare(found, runtime.clock.monotonic())
        except HarnError as error:
            self.found, self._waiting = None, f"waiting: {one_line(str(error))}"
        self.draw()

    async def pause(self) -> None:
        """Wait until it is time to read again, or for the end."""
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((stopped,), timeout=self._every)
        stopped.cancel()

    def draw(self) -> None:
        """Draw the screen."""
        size = shutil.get_terminal_size()
        lines = [self._waiting]
        if self.found is not None:
            lines, last = frame(self.found, self.view, size)
            self.view = replace(self.view, first=min(self.view.first, last))
            lines.append(hints(self.view, self._has_keys, last > 0))
        text = "\x1b[K\n".join(
            painted(cut(line, size.columns), has_colours(sys.stdout)) for line in lines
        )
        sys.stdout.write(f"\x1b[H{text}\x1b[K\x1b[J")
        sys.stdout.flush()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Follow the keys and the terminal's size while the block runs."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self.draw)
        if self._has_keys:
            loop.add_reader(sys.stdin.fileno(), self._hear)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            if self._has_keys:
                loop.remove_reader(sys.stdin.fileno())

    def _hear(self) -> None:
        sent = os.read(sys.stdin.fileno(), 1024)
        for key in keys_in(sent.decode(errors="ignore")) if sent else ["q"]:
            self.view = pressed(self.view, key, max(1, shutil.get_terminal_size().lines - 3))
        if self.view.is_over:
            self._stop.set()
        else:
            self.draw()


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Use the terminal's second screen, without cursor, and its keys as they are pressed."""
    before = None
    if sys.stdin.isatty():
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

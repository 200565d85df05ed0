"""A hint that another process has written to a file: Linux's inotify, else a look now and then.

No promise depends on it: without a hint, readers find the change when they poll the store. The
descriptor is listed as idle, so that a fake clock does not wait for it.

The store wakes its own readers when it commits, and no reader needs to know that a lease was
renewed. Such an `own_write` gives no hint, unless another write came in between: the file looked
before it as at the last hint, and looks now as it did after it. A file that nothing watches
is not looked at: since Linux 6.13 a look at a file's time makes the next write to it store a new
one, which takes a fsynced commit a quarter longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from harn.clock import Clock, SystemClock, Timer

if TYPE_CHECKING:
    import ctypes

IN_MODIFY = 0x2
IN_CREATE = 0x100
RECHECK_DELAYS = (0.0003, 0.0004, 0.0005, 0.0008, 0.002, 0.011)
"""Seconds from each call of *changed* after a hint to the next one."""
PAUSE_STEPS = 2
"""How many of these pass before further hints are read."""
LOOK_EVERY = 0.01
"""Seconds between two looks at the file's size where there is no inotify.

A look costs a few microseconds, under 0.1 % of a core; a job is picked up within two of them.
"""

SETTLED_MS = 100
"""Milliseconds after a file's last write from which every later write gives it another time. File
systems count in ticks of some milliseconds, so two writes may have the same time."""

Look = tuple[int, int] | None
"""A file's size, and the time of its last write."""

CHAIN = 16
"""Writes of our own that are known, at most, since the last one of another process."""

_own: dict[tuple[str, object], deque[Look]] = {}
"""How a file looked before and after each of our own writes that followed another, by path and
writer. While a write is under way its chain ends with `UNDER_WAY`."""
UNDER_WAY: Look = (-1, -1)

_watched: dict[str, int] = {}
"""How many watches each path has in this process."""
_counting = threading.Lock()
_not_watched = contextlib.nullcontext()


def own_write(path: str, writer: object = None) -> contextlib.AbstractContextManager[None]:
    """Write to *path* inside the block; *writer* itself needs no hint of it. On any thread.

    Without a writer it is no news to any reader in this process. No other process can write to
    the file meanwhile.
    """
    return _noted_write(path, writer) if path in _watched else _not_watched


@contextlib.contextmanager
def _noted_write(path: str, writer: object) -> Iterator[None]:
    before = _size_and_time(path)
    chain = _own.get((path, writer))
    if chain is None or chain[-1] != before:
        chain = _own[path, writer] = deque((before,), CHAIN)
    chain.append(UNDER_WAY)
    try:
        yield
    finally:
        chain.pop()
        chain.append(_size_and_time(path))


def _count_watch(path: str, change: int) -> None:
    with _counting:  # runtimes may be on several threads
        left = _watched.get(path, 0) + change
        if left:
            _watched[path] = left
        else:
            del _watched[path]


def forget_writes(path: str, writer: object) -> None:
    """Forget the writes of *writer*, which writes no more."""
    _own.pop((path, writer), None)


def settled_look(path: Path) -> Look:
    """Return a look at *path* that differs after every later write; None if it may not yet."""
    look = _size_and_time(path)
    if look is None or SystemClock().now_ms() - look[1] // 1_000_000 < SETTLED_MS:
        return None
    return look


class FileWatch:
    """Calls *changed* on the loop soon after a write to *path*, unless *writer* made it.

    While no caller *awaits* it, the call may be put off until the next `switch(True)`.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], Clock],
        changed: Callable[[], None],
        writer: object = None,
        awaits: Callable[[], bool] = lambda: True,
    ) -> None:
        self._path = path
        self._writer = writer
        self._clock = clock
        self._changed = changed
        self._awaits = awaits
        self._is_on = False
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._again: Timer | None = None
        self._is_paused = False
        self._rests = False
        """Whether the kernel's events stay unread until a caller waits for them."""
        self._has_met_more = False
        """Whether there were more writes in the pause: they are a hint of their own."""
        self._next_look: Timer | None = None
        self._seen: Look = None
        self._hinted: Look = None
        """How the file looked at the last hint."""

    def switch(self, wanted: bool) -> None:
        """Start or stop watching; a second start also watches a file that is new.

        A caller that begins to wait calls it, too: what was put off follows.
        """
        if wanted is not self._is_on:
            self._is_on = wanted
            _count_watch(str(self._path), 1 if wanted else -1)
        if wanted:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if self._fd < 0 and self._next_look is None and not self._hear():
            self._seen = _size_and_time(self._path)
            self._plan_look()
        if self._fd >= 0:
            _inotify_add(self._fd, self._path)
        if self._rests:
            self._rests = False
            self._resume()

    # -- inotify -----------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Start inotify; False where the system or the event loop does not support it."""
        self._fd = _inotify_init()
        if self._fd < 0:
            return False
        self._clock().activity.idle_fds.add(self._fd)
        self._loop = asyncio.get_running_loop()
        try:
            self._loop.add_reader(self._fd, self._ready)
        except NotImplementedError:
            self._end()
            return False
        return True

    def _ready(self) -> None:
        assert self._loop is not None
        if not self._awaits():  # the events are read when a caller waits for them
            self._loop.remove_reader(self._fd)
            self._rests = True
            return
        if not self._read_events():
            return
        # One commit writes many pages, and our own do too: read no more of them for a moment.
        self._loop.remove_reader(self._fd)
        self._is_paused = True
        self._hint()

    def _read_events(self) -> bool:
        """Read the events of inotify; false if there were none."""
        try:
            while len(os.read(self._fd, 65536)) > 60_000:
                pass
        except BlockingIOError:
            return False
        return True

    def _hint(self, step: int = 0) -> None:
        """Call *changed*, now and in the following steps.

        inotify reports the write, but other processes see it only after the commit that follows.
        """
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._is_paused:
            self._has_met_more |= self._read_events()  # before the look, which shows them
        look = _size_and_time(self._path)
        is_ours = self._were_ours(look)
        if self._is_paused and (step >= PAUSE_STEPS or is_ours):
            if self._has_met_more and not is_ours:
                step = 0
            else:
                self._resume()
            self._has_met_more = False
        if is_ours:
            self._hinted = look
            return
        is_last = step == len(RECHECK_DELAYS)
        if not is_last:
            clock = self._clock()
            at = clock.monotonic() + RECHECK_DELAYS[step]
            self._again = clock.call_at(at, partial(self._hint, step + 1), background=True)
        if is_last or not self._is_under_way():
            self._hinted = look
            self._changed()

    def _resume(self) -> None:
        assert self._loop is not None
        self._is_paused = False
        self._loop.add_reader(self._fd, self._ready)

    def _were_ours(self, look: Look) -> bool:
        """Tell whether the only writes since the last hint were our own."""
        return any(
            chain[-1] == look is not None and self._hinted in chain for chain in self._chains()
        )

    def _is_under_way(self) -> bool:
        return any(chain[-1] == UNDER_WAY for chain in self._chains())

    def _chains(self) -> list[deque[Look]]:
        path = str(self._path)
        return [chain for who in (None, self._writer) if (chain := _own.get((path, who)))]

    # -- looks ---------------------------------------------------------------------------------

    def _plan_look(self) -> None:
        clock = self._clock()
        self._next_look = clock.call_at(
            clock.monotonic() + LOOK_EVERY, self._compare, background=True
        )

    def _compare(self) -> None:
        seen = _size_and_time(self._path)
        if seen != self._seen:
            self._seen = seen
            self._hint()
        self._plan_look()

    def _end(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._is_paused = self._rests = False
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(fd)
        self._clock().activity.idle_fds.discard(fd)
        os.close(fd)


def _size_and_time(path: Path | str) -> Look:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _inotify_init() -> int:
    try:
        return int(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (AttributeError, OSError):
        return -1


def _inotify_add(fd: int, path: Path) -> bool:
    import ctypes

    found = _libc().inotify_add_watch(fd, os.fsencode(path), IN_MODIFY | IN_CREATE)
    return bool(found >= 0 or ctypes.get_errno() != errno.ENOENT)


@cache
def _libc() -> ctypes.CDLL:
    import ctypes  # a command that waits for nothing starts without it

    return ctypes.CDLL(None, use_errno=True)

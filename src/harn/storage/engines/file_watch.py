"""A hint that another process has written to a file: Linux's inotify, else a look now and then.

No promise depends on it: without a hint, readers find the change when they poll the store. The
descriptor is listed as idle, so that a fake clock does not wait for it.

A write of this process that is no news, such as the renewal of a lease, is a `quiet_write`. It
gives no hint if the file looks as it did after it, and looked before it as at the last hint.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from harn.clock import Clock, SystemClock, Timer

IN_MODIFY = 0x2
IN_CREATE = 0x100
LOOK_AGAIN = (0.0003, 0.0004, 0.0005, 0.0008, 0.002, 0.011)
"""Seconds from each call of *changed* after a hint to the next one."""
PAUSE_STEPS = 2
"""How many of these pass before further hints are read."""
LOOK_EVERY = 0.01
"""Seconds between two looks at the files' sizes where there is no inotify.

A look costs a few microseconds, under 0.1 % of a core; a job is picked up within two of them.
"""

SETTLED_MS = 100
"""How long after its last write a file's time tells of every later one. File systems count in ticks
of some milliseconds, so two writes may have the same time."""

Look = tuple[int, int] | None
"""A file's size, and the time of its last write."""
Seen = list[Look]

_quiet: dict[str, tuple[Look, Look]] = {}
"""How files looked before and after the last quiet write; it is under way if both are the same."""


@contextlib.contextmanager
def quiet_write(path: str) -> Iterator[None]:
    """Write to *path* inside the block, which is no news to this process. On any thread.

    No other process can write to it meanwhile.
    """
    before = _size_and_time(path)
    _quiet[path] = before, before
    try:
        yield
    finally:
        _quiet[path] = before, _size_and_time(path)


def settled_look(path: Path) -> Look:
    """Return a look at *path* that differs after every later write; None if it may not yet."""
    look = _size_and_time(path)
    if look is None or SystemClock().now_ms() - look[1] // 1_000_000 < SETTLED_MS:
        return None
    return look


class FileWatch:
    """Calls *changed* on the loop soon after a write to one of *files*."""

    def __init__(
        self,
        files: Callable[[], list[Path]],
        clock: Callable[[], Clock],
        changed: Callable[[], None],
    ) -> None:
        self._files = files
        self._clock = clock
        self._changed = changed
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._again: Timer | None = None
        self._is_paused = False
        self._next_look: Timer | None = None
        self._seen: Seen = []
        self._hinted: Seen = []
        """How the files looked at the last hint."""

    def switch(self, wanted: bool) -> None:
        """Start or stop watching; a second start also watches files that are new."""
        if wanted:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if self._fd < 0 and self._next_look is None and not self._hear():
            self._seen = self._look()
            self._plan_look()
        if self._fd >= 0:
            for path in self._files():
                _inotify_add(self._fd, path)

    # -- inotify -----------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Let the kernel tell of changes; False where it cannot, or the loop cannot listen."""
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
        try:
            while len(os.read(self._fd, 65536)) > 60_000:
                pass
        except BlockingIOError:
            return
        # One commit writes many pages, and our own do too: read no more of them for a moment.
        assert self._loop is not None
        self._loop.remove_reader(self._fd)
        self._is_paused = True
        self._hint()

    def _hint(self, step: int = 0) -> None:
        """Call *changed*, now and in the following steps.

        inotify reports the write, but other processes see it only after the commit that follows.
        """
        if self._again is not None:
            self._again.cancel()
            self._again = None
        looks = self._look()
        is_ours = self._were_ours(looks)
        if self._is_paused and (step >= PAUSE_STEPS or is_ours):
            assert self._loop is not None
            self._is_paused = False
            self._loop.add_reader(self._fd, self._ready)
        if is_ours:
            self._hinted = looks
            return
        is_last = step == len(LOOK_AGAIN)
        if not is_last:
            clock = self._clock()
            at = clock.monotonic() + LOOK_AGAIN[step]
            self._again = clock.call_at(at, partial(self._hint, step + 1), background=True)
        if is_last or not self._are_under_way():
            self._hinted = looks
            self._changed()

    def _were_ours(self, looks: Seen) -> bool:
        """Tell whether the only writes since the last hint were ours, and no news."""
        noted = [_quiet.get(str(path)) for path in self._files()]
        return noted == list(zip(self._hinted, looks, strict=False)) and None not in looks

    def _are_under_way(self) -> bool:
        noted = [_quiet.get(str(path)) for path in self._files()]
        return all(each is not None and each[0] == each[1] for each in noted)

    # -- looks ---------------------------------------------------------------------------------

    def _plan_look(self) -> None:
        clock = self._clock()
        self._next_look = clock.call_at(
            clock.monotonic() + LOOK_EVERY, self._compare, background=True
        )

    def _compare(self) -> None:
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            self._hint()
        self._plan_look()

    def _look(self) -> Seen:
        return [_size_and_time(path) for path in self._files()]

    def _end(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._is_paused = False
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
    found = _libc().inotify_add_watch(fd, os.fsencode(path), IN_MODIFY | IN_CREATE)
    return bool(found >= 0 or ctypes.get_errno() != errno.ENOENT)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

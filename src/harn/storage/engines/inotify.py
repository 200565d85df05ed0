"""Linux's inotify as a hint that another process has written to a file.

Nothing depends on it: without inotify, or on a network file system, readers find the change when
they poll. The descriptor is listed as idle, so that a fake clock does not wait for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

from harn.clock import Clock, Timer

IN_MODIFY = 0x2
IN_CREATE = 0x100
LOOK_AGAIN = (0.0003, 0.0007, 0.0012, 0.002, 0.004, 0.015)
"""Seconds after a hint at which *changed* is called again."""


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
        self._again: list[Timer] = []

    def switch(self, wanted: bool) -> None:
        """Start or stop watching; a second start also watches files that are new."""
        if wanted:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if self._fd < 0:
            self._fd = _inotify_init()
            if self._fd < 0:
                return
            self._clock().activity.idle_fds.add(self._fd)
            self._loop = asyncio.get_running_loop()
            try:
                self._loop.add_reader(self._fd, self._ready)
            except NotImplementedError:
                self._end()
                return
        for path in self._files():
            _inotify_add(self._fd, path)

    def _ready(self) -> None:
        try:
            while len(os.read(self._fd, 65536)) > 60_000:
                pass
        except BlockingIOError:
            return
        self._changed()
        self._look_again()

    def _look_again(self) -> None:
        # inotify reports the write, but other processes see it only after the commit that follows.
        for timer in self._again:
            timer.cancel()
        clock = self._clock()
        self._again = [
            clock.call_at(clock.monotonic() + pause, self._changed, background=True)
            for pause in LOOK_AGAIN
        ]

    def _end(self) -> None:
        for timer in self._again:
            timer.cancel()
        self._again = []
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(fd)
        self._clock().activity.idle_fds.discard(fd)
        os.close(fd)


def _inotify_init() -> int:
    try:
        return int(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (AttributeError, OSError):
        return -1


def _inotify_add(fd: int, path: Path) -> bool:
    found = _libc().inotify_add_watch(fd, os.fsencode(path), IN_MODIFY | IN_CREATE)
    return bool(found >= 0 or ctypes.get_errno() != errno.ENOENT)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

"""Waking an event loop from a thread with one system call, where the system has one.

asyncio's own way, a socket pair that is read until it is empty, costs three more system calls and
an exception: about 15 microseconds for each wake-up. It is used where Linux's eventfd is missing or
the loop cannot watch a descriptor.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable


class LoopWakeup:
    """Calls *woken* on the loop soon after `wake`, which any thread may call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: Callable[[], None]) -> None:
        self._loop = loop
        self._woken = woken
        self._lock = threading.Lock()
        """Held to write to the descriptor or close it: its number may be another file's next."""
        self.fd: int | None = self._watched_fd()

    def wake(self) -> None:
        """Wake the loop; several calls before it runs may be one for it."""
        with self._lock:
            if self.fd is not None:
                os.eventfd_write(self.fd, 1)
                return
        try:
            self._loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the loop is closed: no caller waits
            pass

    def close(self) -> None:
        """Release the descriptor; a thread that has delivered its last answer may still wake."""
        with self._lock:
            fd, self.fd = self.fd, None
            if fd is not None:
                if not self._loop.is_closed():
                    self._loop.remove_reader(fd)
                os.close(fd)

    def _watched_fd(self) -> int | None:
        if not hasattr(os, "eventfd"):
            return None
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._loop.add_reader(fd, self._read, fd)
        except NotImplementedError:
            os.close(fd)
            return None
        return fd

    def _read(self, fd: int) -> None:
        os.eventfd_read(fd)
        self._woken()

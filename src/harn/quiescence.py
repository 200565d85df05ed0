"""Telling whether anything outside an event loop could still wake it.

A fake clock may only jump ahead when nothing real is at work, and the deadlock detector may only
raise when no sender is left. What cannot be inspected (another kind of event loop, a thread of
unknown origin) counts as at work.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from typing import Any

from harn.clock import Activity

OWN_THREADS = "harn-"
"""Prefix of the names of harn's threads: their work is counted in `Activity`."""


def threads_now() -> frozenset[int]:
    """Return the threads alive now, as the baseline for `outside_work`."""
    return frozenset(thread.ident for thread in threading.enumerate() if thread.ident)


def alarm_now() -> object:
    """Return what the alarm signal calls now (a test runner's timeout), as a baseline too."""
    return signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None


def outside_work(
    loop: asyncio.AbstractEventLoop, activity: Activity, known_threads: frozenset[int]
) -> str | None:
    """Name something outside the loop that is at work, or return None if there is nothing.

    *known_threads* were there before and do not count (a test runner's, a debugger's).
    """
    if activity.storing:
        return "a store operation"
    if activity.working:
        return "a worker thread or process"
    return _open_socket(loop, activity) or _busy_thread(loop, known_threads)


def something_ready(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether *loop* has a callback, a due timer or an I/O event to handle right now.

    True for a loop that cannot be inspected.
    """
    inner: Any = loop
    try:
        if inner._ready:
            return True
        if inner._scheduled and inner._scheduled[0].when() <= loop.time():
            return True
        return bool(inner._selector.select(0))  # level-triggered: a look consumes no event
    except AttributeError:
        return True


def can_look_into(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether *loop* is one of asyncio's own, whose queues we can see."""
    return all(hasattr(loop, name) for name in ("_ready", "_scheduled", "_selector"))


def _open_socket(loop: asyncio.AbstractEventLoop, activity: Activity) -> str | None:
    inner: Any = loop
    selector = getattr(inner, "_selector", None)
    if selector is None:
        return "an event loop that cannot be inspected"
    own = getattr(inner, "_ssock", None)
    own_fd = own.fileno() if own is not None else -1
    for key in list((selector.get_map() or {}).values()):
        if key.fd == own_fd or key.fd in activity.idle_fds or _is_listening(key.fd):
            continue
        return "a socket or pipe"
    return None


def _is_listening(fd: int) -> bool:
    """Tell whether *fd* only accepts connections: such a server wakes no task by itself."""
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        return bool(borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
    finally:
        borrowed.detach()


def _busy_thread(loop: asyncio.AbstractEventLoop, known: frozenset[int]) -> str | None:
    executor: Any = getattr(loop, "_default_executor", None)
    idle = executor is not None and _is_idle(executor)
    pool_threads = {thread.ident for thread in executor._threads} if idle else set()
    here = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident in known or thread.ident == here or thread.ident in pool_threads:
            continue
        if thread.name.startswith(OWN_THREADS) or thread is threading.main_thread():
            continue
        return "a subprocess" if thread.name.startswith("asyncio-waitpid") else "a thread"
    return None


def _is_idle(executor: Any) -> bool:
    try:
        waiting = executor._idle_semaphore._value
        return bool(executor._work_queue.empty()) and waiting >= len(executor._threads)
    except AttributeError:
        return False

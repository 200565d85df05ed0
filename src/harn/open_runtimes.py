"""The runtimes that are open in this process, for a call that comes without a context.

A request handler of a web framework, a thread of a synchronous program or a callback runs outside
the context that entered a runtime. If exactly one runtime is open, the call means that one. If
several are open, the call raises: a guess could put work into the wrong store.

A fork copies a runtime's memory but not its threads, its loop or its connections. So a child
process has none open, and a call to an inherited runtime raises.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from harn.errors import HarnError

if TYPE_CHECKING:
    from harn.runtime import Runtime

AFTER_FORK = (
    "open one in this process, with `async with Runtime(...)` or run_in_thread(...); in a web "
    "application that is in its lifespan or at its first request, not at import, because "
    "gunicorn --preload forks after the import"
)
"""What a forked process does instead of using its parent's runtime."""

_lock = threading.Lock()
_open: weakref.WeakSet[Runtime] = weakref.WeakSet()
_started: weakref.WeakSet[Runtime] = weakref.WeakSet()
"""Every runtime with a loop, so that a fork can mark them; `_open` are those a call may mean."""
_inherited = False
"""Whether this process was forked while its parent had a runtime open."""


def note_started(runtime: Runtime) -> None:
    """Remember that *runtime* has an event loop in this process."""
    with _lock:
        _started.add(runtime)


def note_open(runtime: Runtime) -> None:
    """Let calls without a context find *runtime*."""
    with _lock:
        _open.add(runtime)


def note_left(runtime: Runtime) -> None:
    """Stop calls without a context from finding *runtime*."""
    with _lock:
        _open.discard(runtime)


def only_open() -> Runtime | None:
    """Return the only open runtime of this process, or None if none is open.

    Raises `HarnError` if several are open, or if only the parent of a forked process had one.
    """
    with _lock:
        # A runtime whose loop was closed can carry nothing out.
        found = [each for each in _open if not each.loop.is_closed()]
    if len(found) > 1:
        names = ", ".join(sorted(each._where for each in found))
        raise HarnError(
            f"{len(found)} runtimes are open in this process ({names}) and this call runs in the "
            "context of none of them; close those that are not needed (await runtime.aclose()), "
            "or call it from a task of one, or with a copy of its context "
            "(contextvars.copy_context().run)"
        )
    if found:
        return found[0]
    if _inherited:
        raise HarnError(
            f"the parent of this process had a Runtime open when it forked; {AFTER_FORK}"
        )
    return None


def _after_fork() -> None:
    global _lock, _inherited
    _lock = threading.Lock()  # another thread may have held the old one
    _inherited = _inherited or any(not each.loop.is_closed() for each in _open)
    _open.clear()
    for each in _started:
        each._is_inherited = True
        each._thread_id = 0  # so that its checks look at the reason
    _started.clear()


os.register_at_fork(after_in_child=_after_fork)

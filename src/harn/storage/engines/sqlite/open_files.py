"""The SQLite files that harn has open in this process, and who else may open them: nothing.

SQLite's locks are POSIX locks, and those belong to the process, not to a handle: closing any handle
of a file drops every lock that the process holds on it. Within one library SQLite keeps account of
that. The standard library's `sqlite3` is another library, with accounts of its own: its close
drops our locks while we write, and another process then writes at the same time.

So an audit hook looks at what `sqlite3` is asked to open. A hook cannot be removed; this one is
added when the first store opens, and does nothing while none is open.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import apsw

from harn.errors import StorageError
from harn.private_files import make_private_file

Identity = tuple[int, int]
"""A file's device and number: links, other spellings and moved files are the same one."""

WAY_OUT = (
    "copy it with `await runtime.backup(path)` and open the copy, or open it from another process"
)

_held: Counter[Identity] = Counter()
_lock = threading.Lock()
_hooked = False


def hold(path: Path) -> Identity:
    """Note that a connection of ours to *path* is about to open; `release` it once it is closed.

    The file is made if it is missing. One that another library has open in this process already
    is refused.
    """
    global _hooked
    with _lock:
        # Made under the lock: the handle that makes the file must be closed before another
        # thread looks for foreign handles, and before it takes a lock that the close would drop.
        make_private_file(path)
        found = os.stat(path)
        identity = found.st_dev, found.st_ino
        if not _hooked:
            _hooked = True
            sys.addaudithook(_look)
        if not _held[identity] and _is_open_elsewhere(identity):
            raise StorageError(
                f"{path} is open in this process already, as a file or in another SQLite (such as "
                "the module sqlite3); closing that would drop our locks, so close it first"
            )
        _held[identity] += 1
    return identity


def release(identity: Identity) -> None:
    """Note that a connection of ours is closed."""
    with _lock:
        _held[identity] -= 1
        if _held[identity] <= 0:
            del _held[identity]


def _look(event: str, args: tuple[Any, ...]) -> None:
    # Called for every audit event of the process: leave at once.
    if event != "sqlite3.connect" or not _held:
        return
    for path in _paths(args[0]):
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            continue
        if (found.st_dev, found.st_ino) in _held:
            raise StorageError(
                f"{path} is a store that harn has open in this process; when another SQLite closes "
                f"it, our locks are dropped and the store may be damaged: {WAY_OUT}"
            )


def _paths(database: Any) -> list[str]:
    """Return the files that `sqlite3.connect(database)` may mean: whether as a URI is not told."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return []
    if not name.startswith("file:"):
        return [name]
    path = name.removeprefix("file:").partition("#")[0].partition("?")[0]
    if path.startswith("//"):
        path = f"/{path[2:].partition('/')[2]}"
    return [name, unquote(path)]


def _is_open_elsewhere(identity: Identity) -> bool:
    """Tell whether something in this process, other than our SQLite, has the file open.

    Known where the system lists a process's handles.
    """
    try:
        handles = os.listdir("/proc/self/fd")
    except OSError:
        return False
    for handle in handles:
        try:
            found = os.fstat(int(handle))
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == identity:
            return not _is_open_in_apsw(identity)
    return False


def _is_open_in_apsw(identity: Identity) -> bool:
    for connection in apsw.connections():
        try:
            found = os.stat(connection.filename)
        except (OSError, apsw.Error):
            continue
        if (found.st_dev, found.st_ino) == identity:
            return True
    return False


def _forget_after_fork() -> None:
    # A child has none of its parent's locks, and the parent's lock may be held by a thread.
    global _lock
    _lock = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)

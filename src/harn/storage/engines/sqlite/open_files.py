"""The SQLite files that harn has open in this process; no other library may open them here.

SQLite's locks are POSIX locks. These belong to the process, not to a handle: closing any handle of
a file releases every lock that the process has on it. One SQLite library takes care of that for
its own handles. The standard library's `sqlite3` is a second one, which knows nothing of ours: when
it closes the file, our locks are released while we write, and another process can write too.

So an audit hook checks which files `sqlite3` opens. A hook cannot be removed; this one is added
when the first store opens, and does nothing while none is open.
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
"""A file's device and inode number: the same for links, other spellings and a moved file."""

WAY_OUT = (
    "copy it with `await runtime.backup(path)` and open the copy, or open it from another process"
)

_held: Counter[Identity] = Counter()
_lock = threading.Lock()
_hooked = False


def hold(path: Path) -> Identity:
    """Register a connection to *path* before it opens; call `release` once it is closed.

    Creates the file if it is missing. Raises StorageError if another library has the file open in
    this process.
    """
    global _hooked
    with _lock:
        # Under the lock: the handle that creates the file must be closed before another thread
        # looks for handles of other libraries, and before it takes a lock that the close releases.
        make_private_file(path)
        found = os.stat(path)
        identity = found.st_dev, found.st_ino
        if not _hooked:
            _hooked = True
            sys.addaudithook(_look)
        if not _held[identity] and _is_open_elsewhere(identity):
            raise StorageError(
                f"{path} is open in this process already, as a file or in another SQLite library "
                "(such as the module sqlite3); closing it later would release harn's locks: close "
                "it first"
            )
        _held[identity] += 1
    return identity


def release(identity: Identity) -> None:
    """Remove a connection that has been closed."""
    with _lock:
        _held[identity] -= 1
        if _held[identity] <= 0:
            del _held[identity]


def _look(event: str, args: tuple[Any, ...]) -> None:
    # Called for every audit event of the process, so it must return at once for all others.
    if event != "sqlite3.connect" or not _held:
        return
    for path in _paths(args[0]):
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            continue
        if (found.st_dev, found.st_ino) in _held:
            raise StorageError(
                f"{path} is a store that harn has open in this process; when another SQLite "
                "library closes it, harn's locks are released and the store may be damaged: "
                f"{WAY_OUT}"
            )


def _paths(database: Any) -> list[str]:
    """Return the files that `sqlite3.connect(database)` may open.

    The audit event does not tell whether *database* is a path or a URI.
    """
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
    """Tell whether this process has the file open, other than in our SQLite library.

    False on a system that does not list a process's handles in /proc.
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
    # A child has none of its parent's file locks, and `_lock` may have been held by a thread that
    # does not exist in the child.
    global _lock
    _lock = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)

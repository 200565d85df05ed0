"""What differs between operating systems: syncing a file, and telling whether a process runs.

Linux has calls of its own for these. Every other Unix, macOS above all, gets a portable way with
the same promise. Waking an event loop from a thread is in `storage/engines/loop_wakeup.py`, hearing
that a file changed in `storage/engines/file_watch.py`; each has a portable way too.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import platform
import uuid
from collections.abc import Callable
from pathlib import Path

# On macOS fsync only passes the data to the drive, which may keep it in its cache for a while. This
# call returns when the drive has written it.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NOT_OFFERED = {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}

UNKNOWN = "-"


def sync_file(handle: int) -> None:
    """Return when the file or directory of *handle* is on the disk, its size and times included."""
    _to_disk(handle, os.fsync)


def sync_data(handle: int) -> None:
    """Return when what was written to *handle* is on the disk and can be read after a crash."""
    _to_disk(handle, getattr(os, "fdatasync", os.fsync))


def _to_disk(handle: int, sync: Callable[[int], None]) -> None:
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(handle, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
    sync(handle)


def this_machine() -> tuple[str, str]:
    """Return names of this machine, since its last start, and of our namespace of process ids.

    Two processes see each other's process ids if both names are equal.
    """
    return _machine(os.getpid())


@functools.lru_cache(maxsize=1)
def _machine(_pid: int) -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        # Two machines with the same name may share a database, so the network card counts too.
        # Without one, Python makes a number up, which is equal to no other process's.
        return f"{platform.node()}:{uuid.getnode():x}", UNKNOWN


def process_started(pid: int) -> str | None:
    """Return a text that is equal as long as process *pid* runs; None when it has ended.

    On Linux it is the time of its start, so that another process with the same id is told apart.
    Elsewhere another process with the same id is taken for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _running(pid) if not os.path.isdir("/proc/self") else None
    state, *rest = stat.rpartition(") ")[2].split()
    return None if state in "ZX" else rest[18]


def _running(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it runs as another user
        pass
    return "running"

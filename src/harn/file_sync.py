"""Syncing a file: return when what was written is on the disk.

Linux has calls of its own for this. Every other Unix, macOS above all, gets a portable way with
the same promise.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable

# On macOS fsync only passes the data to the drive, which may keep it in its cache for a while. This
# call returns when the drive has written it.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NOT_OFFERED = {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}


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

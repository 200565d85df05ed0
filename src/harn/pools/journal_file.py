"""The file of a pool's journal: lock, read, append, compact. All of it blocks.

It is a file of checksummed lines (see `storage/jsonl.py`). No two pools have the same file name,
symbolic links are not followed, directories have mode 0700 and files 0600. The file is locked while
it is open; the lock ends with the process.

A torn last line is removed before the first append. Damaged lines are kept in `<journal>.damaged`.
A file of another pool, or of a newer harn, raises an error and is not changed.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from harn.errors import PoolLocked, StorageCorrupt, StorageError, StorageVersion
from harn.file_sync import sync_file
from harn.pools.journal_records import JournalState, PoolRecord, encode, fold
from harn.private_files import check_private, make_private_dir, open_private
from harn.storage import jsonl

logger: logging.Logger = logging.getLogger("harn.pools")

SPARE_LINES = 100
"""Lines that a journal may have, beyond two for each task, before it is compacted."""

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")
_PART = 100
_CHUNK = 1 << 20


def journal_name(pipeline_id: str, name: str) -> str:
    """Return the file name of this pool's journal; no two pools share one.

    >>> journal_name("nightly", "web_hooks")
    'nightly__web%5Fhooks.jsonl'
    """
    return f"{_encoded(pipeline_id)}__{_encoded(name)}.jsonl"


def _encoded(part: str) -> str:
    raw = part.encode()
    text = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in raw)
    if len(text) <= _PART:
        return text
    return f"{text[: _PART - 17]}~{hashlib.sha256(raw).hexdigest()[:16]}"


class JournalFile(jsonl.AppendFile):
    """An open, locked journal file."""

    handle: int
    end: int

    def open(self, header: PoolRecord, keep: tuple[int, int]) -> JournalState:
        """Lock the file, read it, repair its end, and return its state.

        *header* is the first line of a new file. *keep* is the retention: how many ended tasks,
        and since when (ms).
        """
        try:
            self.folder = _open_directory(self.path.parent)
            self.handle = _open_locked(self.folder, self.path)
            self.remove_temporary()
            size = os.fstat(self.handle).st_size
            state, self.end = self._folded(size)
            _check_owner(state.pool, header, self.path)
            self._mend_tail(size)
            self._tidy(state, header, keep)
        except OSError as error:
            self.close()
            what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise StorageError(f"cannot open {self.path}: {what}") from error
        except BaseException:
            self.close()
            raise
        return state

    def fold_prefix(self, size: int, keep: tuple[int, int]) -> JournalState:
        """Read the first *size* bytes again, for compaction. Appends may continue meanwhile."""
        state, _ = self._folded(size)
        if state.damage or state.pool is None:
            raise StorageCorrupt(f"{self.path} was damaged while it was open")
        state.drop_old(*keep)
        return state

    def compact(self, state: JournalState, size: int) -> None:
        """Replace the file by *state* and the lines after byte *size*."""
        self.replace(chain(state.as_lines(), self._chunks(size, self.end)), locked=True)

    def close(self, forked: bool = False) -> None:
        """Close the file and release its lock; a *forked* copy does not release the parent's lock.

        The lock is released explicitly: a child process that was just forked still has the file
        open, and closing our handle alone would keep the lock until the child closes its own.
        """
        if self.handle >= 0 and not forked:
            jsonl.unlock(self.handle)
        super().close()
        if self.folder is not None:
            os.close(self.folder)
            self.folder = None

    def _folded(self, size: int) -> tuple[JournalState, int]:
        try:
            return fold(self._chunks(0, size))
        except StorageVersion as error:
            raise StorageVersion(f"{self.path} {error}; it was not changed") from None

    def _chunks(self, start: int, end: int) -> Iterator[bytes]:
        while start < end and (chunk := os.pread(self.handle, min(_CHUNK, end - start), start)):
            yield chunk
            start += len(chunk)

    def _mend_tail(self, size: int) -> None:
        if self.end < size:
            self.cut_back()
            sync_file(self.handle)
        if self.end and os.pread(self.handle, 1, self.end - 1) != b"\n":
            self.append(b"\n")  # the last line is complete but for its newline
            sync_file(self.handle)

    def _tidy(self, state: JournalState, header: PoolRecord, keep: tuple[int, int]) -> None:
        """Write the first line of a new file; set damage aside; compact a long file."""
        headless = state.pool is None
        if state.pool is None:
            state.pool = header
        if self.end == 0:
            assert self.folder is not None
            self.append(encode(header))
            sync_file(self.handle)
            sync_file(self.folder)
            return
        for each in state.damage:
            logger.warning("%s: the line at byte %d: %s", self.path, each.offset, each.reason)
        if state.damage:
            jsonl.set_aside(self.path, state.damage, self.folder)
        state.drop_old(*keep)
        if headless or state.damage or state.lines > 2 * len(state.tasks) + SPARE_LINES:
            self.compact(state, self.end)


def _open_directory(path: Path) -> int:
    try:
        make_private_dir(path)
        check_private(path.parent, "state directory")
        check_private(path, "directory")
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f"cannot keep journals in {path}: {error.strerror}; choose another directory with "
            "state_dir or HARN_STATE_DIR, or let this user write to it"
        ) from error


def _open_locked(folder: int, path: Path) -> int:
    """Open and lock the journal; open it again if it was replaced before it was locked."""
    while True:
        fd = open_private(path.name, os.O_RDWR | os.O_NONBLOCK | os.O_CREAT, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StorageError(f"{path} is not a regular file")
            if not jsonl.try_lock(fd):
                raise PoolLocked(
                    f"{path} is in use: another process, or another runtime of this one, "
                    "owns this pool"
                )
            there = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(os.fstat(fd), there):
                return fd
        except FileNotFoundError:
            pass  # its owner has just replaced it by compaction: open it again
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _check_owner(pool: PoolRecord | None, header: PoolRecord, path: Path) -> None:
    if pool is not None and pool.id != header.id:
        raise StorageCorrupt(
            f"{path} belongs to pool {pool.name!r} ({pool.id}), "
            f"not to {header.name!r} ({header.id}); move the file to another directory"
        )

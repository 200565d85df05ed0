"""A journal's file: locked, read, appended to, replaced. All of it blocks; a thread's own.

Names are injective, nothing follows a symbolic link, directories are 0700 and files 0600. The
file is locked with `flock` for as long as it is open: the lock dies with the process.

A torn last line is cut off before the first append. Damaged lines are set aside, with their
original bytes, in `<journal>.damaged`. A file of another pool, or of a newer harn, is refused as
it stands. To replace the file: write a new one, lock it, sync it, rename it, sync the directory;
a crash at any step leaves either the old file or the new one.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from harn.errors import PoolLocked, StorageCorrupt, StorageError, StorageVersion
from harn.pools.records import Ledger, PoolRecord, encode, fold
from harn.private_files import check_private, make_private_dir, open_private

logger = logging.getLogger("harn.pools")

SLACK = 100
"""Lines of history that a journal may hold beyond twice its tasks before it is rewritten."""

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")
_PART = 100
_NEW = os.O_CREAT | os.O_APPEND


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


class JournalFile:
    """An open, locked journal file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._name = path.name
        self._fd = self._dir = -1

    def open(self, header: PoolRecord, keep: tuple[int, int]) -> Ledger:
        """Lock the file, read it, mend it, and return what it holds.

        *header* is the first line of a new file. *keep* is the retention: how many finished tasks,
        and since when.
        """
        try:
            self._dir = _open_directory(self.path.parent)
            self._fd = _open_locked(self._dir, self._name, self.path)
            self._remove_temporary()
            with self._reader() as reader:
                ledger, end = _folded(reader, self.path)
            _check_owner(ledger.pool, header, self.path)
            self._mend_tail(end)
            self._tidy(ledger, header, keep)
        except OSError as error:
            self.close()
            what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise StorageError(f"cannot open {self.path}: {what}") from error
        except BaseException:
            self.close()
            raise
        return ledger

    def append(self, data: bytes) -> None:
        """Write *data* at the end; after an `OSError`, `cut_back` removes what was half written."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(data)

    def cut_back(self) -> None:
        """Remove whatever follows the last complete `append`."""
        os.ftruncate(self._fd, self.size)

    def sync(self) -> None:
        """Return when everything appended is on the disk."""
        os.fdatasync(self._fd)

    def fold_prefix(self, size: int, keep: tuple[int, int]) -> Ledger:
        """Read the first *size* bytes again, for compaction. May run beside the appends."""
        with self._reader() as reader:
            ledger, _ = _folded(_upto(reader, size), self.path)
        if ledger.damage or ledger.pool is None:
            raise StorageCorrupt(f"{self.path} was damaged while it was open")
        ledger.drop_old(*keep)
        return ledger

    def replace(self, ledger: Ledger, size: int) -> None:
        """Put *ledger*, and what follows byte *size* of the file, in the file's place."""
        temporary = f"{self._name}.tmp"
        fd = open_private(temporary, os.O_RDWR | os.O_EXCL | _NEW, dir_fd=self._dir)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(fd, "ab", closefd=False) as new:
                new.writelines(ledger.as_lines())
                while chunk := os.pread(self._fd, 1 << 20, size):
                    new.write(chunk)
                    size += len(chunk)
            os.fsync(fd)
            os.rename(temporary, self._name, src_dir_fd=self._dir, dst_dir_fd=self._dir)
        except BaseException:
            os.close(fd)
            self._remove_temporary()
            raise
        self._fd, old = fd, self._fd
        self.size = os.fstat(fd).st_size
        os.close(old)
        os.fsync(self._dir)

    def close(self, forked: bool = False) -> None:
        """Let go of the file and its lock; a *forked* copy leaves the parent's lock alone.

        The lock is undone by name: a child that was forked a moment ago still has it open, and
        closing our side alone would leave it held until the child has closed its own.
        """
        if self._fd >= 0 and not forked:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        for fd in (self._fd, self._dir):
            if fd >= 0:
                os.close(fd)
        self._fd = self._dir = -1

    def _reader(self) -> io.BufferedReader:
        fd = os.open(self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._dir)
        return io.BufferedReader(io.FileIO(fd), 1 << 20)

    def _mend_tail(self, end: int) -> None:
        self.size = os.fstat(self._fd).st_size
        if end < self.size:
            self.size = end
            self.cut_back()
            os.fsync(self._fd)
        if end and os.pread(self._fd, 1, end - 1) != b"\n":
            self.append(b"\n")  # whole but for its newline: the next line must not join it
            os.fsync(self._fd)

    def _tidy(self, ledger: Ledger, header: PoolRecord, keep: tuple[int, int]) -> None:
        """Give a new file its first line; set damage aside; rewrite what is mostly history."""
        headless = ledger.pool is None
        if ledger.pool is None:
            ledger.pool = header
        if self.size == 0:
            self.append(encode(header))
            os.fsync(self._fd)
            os.fsync(self._dir)
            return
        for each in ledger.damage:
            logger.warning("%s: the line at byte %d: %s", self.path, each.offset, each.reason)
        if ledger.damage:
            self._set_aside(ledger)
        ledger.drop_old(*keep)
        if headless or ledger.damage or ledger.lines > 2 * len(ledger.tasks) + SLACK:
            self.replace(ledger, self.size)

    def _set_aside(self, ledger: Ledger) -> None:
        fd = open_private(f"{self._name}.damaged", os.O_WRONLY | _NEW, dir_fd=self._dir)
        with open(fd, "ab") as side:
            for each in ledger.damage:
                kept = base64.b64encode(each.line).decode()
                note = {"offset": each.offset, "reason": each.reason, "base64": kept}
                side.write(json.dumps(note).encode() + b"\n")
            side.flush()
            os.fsync(fd)
        os.fsync(self._dir)

    def _remove_temporary(self) -> None:
        try:
            os.unlink(f"{self._name}.tmp", dir_fd=self._dir)
        except FileNotFoundError:
            pass


def _open_directory(path: Path) -> int:
    try:
        make_private_dir(path)
        check_private(path.parent, "state directory")
        check_private(path, "directory")
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f"cannot keep journals in {path}: {error.strerror}; choose another directory with "
            "state_dir or HARN_STATE_DIR, or let this user write there"
        ) from error


def _open_locked(directory: int, name: str, path: Path) -> int:
    """Open and lock the journal, and make sure that it still has that name once it is locked."""
    while True:
        fd = open_private(name, os.O_RDWR | os.O_NONBLOCK | _NEW, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StorageError(f"{path} is not a regular file")
            _lock(fd, path)
            here, there = os.fstat(fd), os.stat(name, dir_fd=directory, follow_symlinks=False)
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return fd
        except FileNotFoundError:
            pass  # replaced by its owner's compaction meanwhile: look again
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PoolLocked(
            f"{path} is in use: another process, or another runtime of this one, owns this pool"
        ) from None


def _check_owner(pool: PoolRecord | None, header: PoolRecord, path: Path) -> None:
    if pool is not None and pool.id != header.id:
        raise StorageCorrupt(
            f"{path} belongs to pool {pool.name!r} ({pool.id}), "
            f"not to {header.name!r} ({header.id}); move it away"
        )


def _folded(lines: Iterable[bytes], path: Path) -> tuple[Ledger, int]:
    try:
        return fold(lines)
    except StorageVersion as error:
        raise StorageVersion(f"{path} {error}; it has not been touched") from None


def _upto(reader: io.BufferedReader, size: int) -> Iterator[bytes]:
    while size > 0 and (line := reader.readline()):
        size -= len(line)
        yield line

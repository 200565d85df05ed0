"""Where a running service can be asked: a socket in its state directory, and the lock beside it.

`admin.lock` is locked for as long as a service runs on the directory, and names its process. Only
the holder of the lock makes or removes `admin.sock`, so a socket without a lock is a leftover of a
service that was killed. The socket is 0600: its file's rights are the operator's proof.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harn.errors import HarnError, StorageError
from harn.private_files import make_private_dir, open_private
from harn.storage import jsonl

SOCKET = "admin.sock"
LOCK = "admin.lock"
LONGEST_ADDRESS = 100
"""Bytes that every system takes as a socket's address; Linux takes 107, others 103."""
CONNECT_WITHIN = 10.0


class AdminSocket:
    """The socket of the one service that owns a state directory."""

    def __init__(self, directory: Path, folder: int, lock: int) -> None:
        self.path = directory / SOCKET
        self._folder = folder
        self._lock = lock
        self._made: tuple[int, int] | None = None

    def bind(self) -> socket.socket:
        """Make the socket in the place of a leftover; nothing else in its place is touched.

        It does not listen yet: there is no moment at which others could connect.
        """
        found = _lstat(self._folder)
        if found is not None:
            if not stat.S_ISSOCK(found.st_mode):
                raise StorageError(f"{self.path} is not a socket; move it away")
            os.unlink(SOCKET, dir_fd=self._folder)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self.path, self._folder) as address:
                opened.bind(address)
            os.chmod(SOCKET, 0o600, dir_fd=self._folder)
        except OSError as error:
            opened.close()
            raise StorageError(f"cannot listen on {self.path}: {error.strerror or error}") from None
        self._made = _identity(_lstat(self._folder))
        opened.setblocking(False)
        return opened

    def close(self) -> None:
        """Remove the socket and release the directory."""
        if self._made is not None and _identity(_lstat(self._folder)) == self._made:
            os.unlink(SOCKET, dir_fd=self._folder)
        jsonl.unlock(self._lock)
        os.close(self._lock)
        os.close(self._folder)


def own(directory: Path) -> AdminSocket | None:
    """Take the state directory for this service; None while another service owns it."""
    make_private_dir(directory)
    folder = _open_directory(directory)
    try:
        lock = open_private(LOCK, os.O_RDWR | os.O_CREAT, dir_fd=folder)
        try:
            if jsonl.try_lock(lock):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
                return AdminSocket(directory, folder, lock)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        os.close(folder)
        raise StorageError(f"cannot use {directory / LOCK}: {error.strerror}") from None
    os.close(lock)
    os.close(folder)
    return None


def connect(directory: Path) -> socket.socket | None:
    """Connect to the service that owns *directory*; None if there is none.

    A service that is there but cannot be reached is an error: work that it should do must not
    run beside it.
    """
    try:
        folder = _open_directory(directory)
    except FileNotFoundError:
        return None
    try:
        opened = _connected(directory, folder)
        if opened is None and (owner := _owner(folder)) is not None:
            raise HarnError(
                f"a service (process {owner}) runs on {directory}, but {SOCKET} is not there; "
                "restart the service, or end it and try again"
            )
        return opened
    finally:
        os.close(folder)


def _connected(directory: Path, folder: int) -> socket.socket | None:
    found = _lstat(folder)
    if found is None:
        return None
    path = directory / SOCKET
    if not stat.S_ISSOCK(found.st_mode):
        raise StorageError(f"{path} is not a socket; move it away")
    if found.st_uid not in (os.geteuid(), 0, os.fstat(folder).st_uid):
        raise StorageError(f"{path} belongs to another user; it is not asked")
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(CONNECT_WITHIN)
    try:
        with _address(path, folder) as address:
            opened.connect(address)
    except (ConnectionRefusedError, FileNotFoundError):
        opened.close()
        return None
    except OSError as error:
        opened.close()
        if error.errno in (errno.EACCES, errno.EPERM):
            raise HarnError(
                f"no permission for {path}: the service on {directory} belongs to another user; "
                "run the command as that user"
            ) from None
        raise HarnError(f"the service on {directory} does not answer: {error}") from None
    return opened


def _owner(folder: int) -> str | None:
    """Return the process that holds the lock, or None if no process does."""
    try:
        lock = open_private(LOCK, os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        if jsonl.try_lock(lock):
            jsonl.unlock(lock)
            return None
        return os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(lock)


@contextmanager
def _address(path: Path, folder: int) -> Iterator[str]:
    """Name the socket within the length that an address may have.

    A longer path goes through the open directory, which Linux shows under a short name.
    """
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    short = f"/proc/self/fd/{folder}"
    if not os.path.isdir(short):
        raise StorageError(
            f"{path} is longer than the {LONGEST_ADDRESS} bytes of a socket's address; choose a "
            "shorter --state-dir"
        )
    yield f"{short}/{SOCKET}"


def _open_directory(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _lstat(folder: int) -> os.stat_result | None:
    try:
        return os.stat(SOCKET, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result | None) -> tuple[int, int] | None:
    return None if found is None else (found.st_dev, found.st_ino)

"""The admin socket of a running service: a socket in its state directory, and a lock beside it.

`admin.lock` is locked while a service runs on the directory, and contains its process id. Only the
holder of the lock creates or removes `admin.sock`, so a socket without a lock is left over from a
service that was killed. The socket's mode is 0600: access to the file is the operator's proof.
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
"""The most bytes of a socket's address on every system; Linux allows 107, others 103."""
CONNECT_WITHIN = 10.0


class AdminSocket:
    """The socket of the one service that owns a state directory."""

    def __init__(self, directory: Path, folder: int, lock: int) -> None:
        self.path: Path = directory / SOCKET
        self._folder = folder
        self._lock = lock
        self._made: tuple[int, int] | None = None

    def bind(self) -> socket.socket:
        """Create the socket; a left-over socket is replaced, any other file is an error.

        It does not listen yet, so no process can connect before its mode is set.
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
    """Lock the state directory for this service; None while another service owns it."""
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

    Raises if a service runs but cannot be reached: the command must not do the service's work in
    another process.
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
        raise StorageError(f"{path} belongs to another user, so it is not used")
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
    """Yield an address of the socket that is short enough.

    For a longer path it is the open directory's entry in /proc, which Linux has.
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

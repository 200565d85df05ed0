"""Making and checking files and directories that only their owner may use.

Every room that keeps something on disk makes it here: directories are 0700 and files 0600,
whatever the umask. A path that others can write to is refused: a user who can write to a store or
a handler decides what runs. A group that holds only the owner (the "user private group" that many
systems give each user, with a umask of 002) does not count as others.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from harn.errors import HarnError, StorageError
from harn.file_sync import sync_file
from harn.settings import Settings


def make_private_dir(path: Path) -> None:
    """Make *path* and its missing parents, 0700 each."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for part in reversed(missing):
        try:
            os.mkdir(part, 0o700)
            os.chmod(part, 0o700)
        except FileExistsError:
            pass


def make_private_file(path: Path) -> None:
    """Make an empty file, 0600, unless there is one; its directory too. A symlink is refused."""
    make_private_dir(path.parent)
    try:
        made = open_private(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    except FileExistsError:
        if path.is_symlink():
            raise StorageError(f"{path} is a symbolic link; name the file itself") from None
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise StorageError(f"{path} is not a plain file") from None
        return
    os.close(made)
    sync_dir(path.parent)


def open_private(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
    """Open *path*, never through a symbolic link; a file that this makes is 0600.

    A umask can only take rights away, so a file made with 0600 has no others.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)


def sync_dir(path: Path) -> None:
    """Make a new or renamed entry of the directory *path* durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def check_private(
    path: Path, what: str, *, owned: bool = False, error: type[HarnError] = StorageError
) -> None:
    """Refuse *path* (*what* it is, for the message) if others can write to it.

    With *owned* it must also belong to this user or to root. A path that does not exist passes.
    `HARN_ALLOW_INSECURE_STATE` lets everything pass.
    """
    reason = weakness(path, owned=owned)
    if reason is not None and not Settings.load().allow_insecure_state:
        raise error(
            f"the {what} {path} {reason}; or allow it with --allow-insecure-state or "
            "HARN_ALLOW_INSECURE_STATE=1"
        )


def weakness(path: Path, *, owned: bool = False) -> str | None:
    """Say why *path* cannot be trusted and what to do, or None if it can be."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    mode = stat.S_IMODE(about.st_mode)
    if mode & stat.S_IWOTH:
        return f"can be written by every user ({mode:04o}): `chmod o-w` it"
    if mode & stat.S_IWGRP and not _is_private_group(about):
        return f"can be written by its group ({mode:04o}): `chmod g-w` it"
    if owned and about.st_uid not in (os.geteuid(), 0):
        return f"belongs to {_name(about.st_uid)}, not to {_name(os.geteuid())}: run as its owner"
    return None


def _is_private_group(about: os.stat_result) -> bool:
    """Tell whether the file's group is its owner's own, without other members."""
    try:
        owner, group = pwd.getpwuid(about.st_uid), grp.getgrgid(about.st_gid)
    except KeyError:  # a container without a user database: compare the numbers
        return about.st_uid == about.st_gid
    return (
        owner.pw_gid == group.gr_gid
        and owner.pw_name == group.gr_name
        and set(group.gr_mem) <= {owner.pw_name}
    )


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name!r}"
    except KeyError:
        return f"user {uid}"

"""Which SQLite came with apsw, and whether its WAL can be trusted."""

from __future__ import annotations

import apsw


def wal_is_safe(version: tuple[int, int, int]) -> bool:
    """Tell whether this SQLite is free of the WAL-reset bug (3.7.0 to 3.51.2).

    >>> wal_is_safe((3, 51, 3)), wal_is_safe((3, 50, 6)), wal_is_safe((3, 44, 6))
    (True, False, True)
    """
    if version < (3, 7, 0) or version >= (3, 51, 3):
        return True
    return (3, 50, 7) <= version < (3, 51, 0) or (3, 44, 6) <= version < (3, 45, 0)


def sqlite_version() -> tuple[int, int, int]:
    """Return the version of the SQLite that came with apsw."""
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    return major, minor, patch

"""The ids of a pool's tasks, and times as text; made when they are first read."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from harn.clock import iso
from harn.ids import digest

iso_text: Callable[[int], str] = functools.lru_cache(maxsize=4096)(iso)
"""Many tasks share a millisecond; its text is made once."""


class Names(msgspec.Struct, gc=False):
    """A pool's id and name, and the ids of its tasks.

    A task's id is a UUIDv7 made of its time of submit, its number and its pool's salt: of what
    the task holds anyway. So no id is made until it is read, ids sort by time, and the same
    program makes the same ids.

    >>> Names("pool_1", "review").task(0, 7)
    'pool_1_task_00000000-0000-7000-8000-00073cc74856'
    """

    id: str
    name: str
    _prefix: str = ""
    _salt: str = ""

    def __post_init__(self) -> None:
        self._prefix = f"{self.id}_task_"
        self._salt = digest(self.id, length=8)

    def task(self, ms: int, seq: int) -> str:
        """Return the id of the task submitted at *ms* as number *seq*."""
        # The number is where other UUIDs have random bits, around the version 7 and the bits `10`.
        low = f"{0x8000_0000 | seq & 0x3FFF_FFFF:x}"
        high = f"{seq >> 30:03x}" if seq >> 30 else "000"
        return f"{self._prefix}{_time(ms)}{high}-{low[:4]}-{low[4:]}{self._salt}"


@functools.lru_cache(maxsize=4096)
def _time(ms: int) -> str:
    text = f"{ms & 0xFFFF_FFFF_FFFF:012x}"
    return f"{text[:8]}-{text[8:]}-7"

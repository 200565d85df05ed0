"""New ids, and ids that are computed from names.

Random ids are UUIDs of version 7: they sort by time. Their milliseconds come from the runtime's
clock and their random bits from the runtime's own generator, so that a seeded runtime with a
fake clock makes the same ids in every run.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import weakref
from collections.abc import Callable

_sources: weakref.WeakSet[IdSource] = weakref.WeakSet()


class IdSource:
    """Makes time-ordered ids; no two of one source are equal, and each sorts after the last."""

    def __init__(self, now_ms: Callable[[], int], seed: int | str | None = None) -> None:
        self._now_ms = now_ms
        self.random: random.Random = random.Random(seed)  # noqa: S311 - ids are names, not secrets
        self._seeded = seed is not None
        self._last_ms = -1
        self._time = _time_of(0)
        """The time that ids of the last millisecond begin with."""
        self._tick = 0
        _sources.add(self)

    def uuid7(self) -> str:
        """Return a new id, such as `"019a2f60-6c00-7000-8d3a-1f6d2a9b4c55"`."""
        return self.uuid7s(1)[0]

    def uuid7s(self, number: int) -> list[str]:
        """Return so many new ids, the same as that many calls of `uuid7` in one millisecond."""
        ms, tick = self._now_ms(), self._tick
        if ms > self._last_ms:
            self._last_ms, self._time, tick = ms, _time_of(ms), -1
        found = []
        bits, time = self.random.getrandbits, self._time
        for _ in range(number):
            tick += 1  # the same millisecond, or a clock that went back: count up
            if tick > 0xFFF:
                self._last_ms, tick = self._last_ms + 1, 0
                time = self._time = _time_of(self._last_ms)
            low = bits(62)  # behind the two bits `10`, which say that this is a UUID of RFC 9562
            found.append(f"{time}7{tick:03x}-{low >> 48 | 0x8000:04x}-{low & _LOW:012x}")
        self._tick = tick
        return found

    def new(self, prefix: str) -> str:
        """Return `<prefix>_<uuid7>`."""
        return f"{prefix}_{self.uuid7s(1)[0]}"

    def _reseed(self) -> None:
        if not self._seeded:
            self.random.seed()


_LOW = (1 << 48) - 1


def _time_of(ms: int) -> str:
    text = f"{ms:012x}"
    return f"{text[:8]}-{text[8:]}-"


def _reseed_after_fork() -> None:
    for source in list(_sources):
        source._reseed()


os.register_at_fork(after_in_child=_reseed_after_fork)


def digest(*parts: str, length: int = 32) -> str:
    """Return *length* hex digits that are the same for the same *parts*, and only for them."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:length]


_POOL_ID = re.compile(r"pool_(tenant|org)_[0-9a-f]{32}")


def is_pool_id(text: object) -> bool:
    """Tell whether *text* is the id of a pool that lives in a store, in a queue of that name."""
    return isinstance(text, str) and _POOL_ID.fullmatch(text) is not None


def pool_id(scope: str, scope_id: str, name: str) -> str:
    """Return the id that the pool *name* of this scope has in every process.

    >>> pool_id("pipeline", "nightly", "reports")
    'pool_pipeline_4b63d04dbadd9ec11ff33076a8ccc5e5'
    """
    return f"pool_{scope}_{digest(scope, scope_id, name)}"

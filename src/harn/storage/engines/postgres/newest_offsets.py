"""The newest offsets of some topics, looked at again and again by the thread that listens.

A notification may be lost: with its sender, or behind a pooler. So a reader that must not miss a
record for long has to look. This looks for all idle readers of a process in one round trip on a
thread that is there anyway, and only news wakes the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from harn.clock import SystemClock

EVERY = 0.9
"""Seconds between two looks."""
FRESH = 2.0
"""Seconds for which a look counts; an older one means that the listener is stuck."""
FORGET = 30.0
"""Seconds for which a topic is looked at after a reader has asked for it."""


class TopicLooks:
    """Which topics to look at, and what was seen. Two threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, float] = {}
        """Until when each topic is to be looked at."""
        self._heads: dict[str, int] | None = None
        """The newest offsets at the last look; None if there is no listener that looks."""
        self._looked = 0.0
        self._news = 0

    def mark(self, topics: Iterable[str]) -> tuple[object | None, bool]:
        """Return what differs after every later write to *topics*, and whether one is new here.

        It is None if the listener cannot tell: it has not looked at them yet, or not lately.
        """
        now = SystemClock.monotonic()
        with self._lock:
            is_new = not self._wanted.keys() >= set(topics)
            self._wanted.update(dict.fromkeys(topics, now + FORGET))
            if self._heads is None or now > self._looked + FRESH:
                return None, is_new
            if not self._heads.keys() >= set(topics):
                return None, is_new
            return (self._news, *(self._heads[topic] for topic in topics)), is_new

    def heard(self) -> None:
        """Note a notification from another process."""
        with self._lock:
            self._news += 1

    def wait(self) -> float | None:
        """Return the seconds until the next look is due; None if there is nothing to look at."""
        with self._lock:
            if not self._wanted:
                return None
            if self._heads is None or not self._heads.keys() >= self._wanted.keys():
                return 0.0
            return max(0.0, self._looked + EVERY - SystemClock.monotonic())

    def due(self) -> list[str]:
        """Return the topics to look at now; forget those that were not asked for lately."""
        now = SystemClock.monotonic()
        with self._lock:
            self._wanted = {name: until for name, until in self._wanted.items() if until > now}
            return sorted(self._wanted)

    def saw(self, topics: Iterable[str], heads: dict[str, int]) -> list[str]:
        """Note the *heads* that a look at *topics* found; return the topics that have grown."""
        seen = {topic: heads.get(topic, 0) for topic in topics}
        with self._lock:
            before, self._heads = self._heads or {}, seen
            self._looked = SystemClock.monotonic()
        return [topic for topic, head in seen.items() if before.get(topic, head) != head]

    def stop(self) -> None:
        """Note that the listener does not look for now."""
        with self._lock:
            self._heads = None

"""The snapshot that the overview shows and that viewers are sent once a second.

It is the document of `harn top`, with the jobs per second of each queue over the last minute. A
queue's speed is how much its number of responses grew between two snapshots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harn.escaping import to_json
from harn.orchestrator import masked, overview
from harn.portal.shared_reads import SharedReads
from harn.storage import Store
from harn.storage.log import newest
from harn.topics import queue_topics

if TYPE_CHECKING:
    from harn.runtime import Runtime

SECONDS = 60
"""How far back the speed of a queue is shown."""
SEEDED_FROM = 500
"""Responses that are read for a queue that is seen for the first time."""
KEPT = ("queue", "ready", "scheduled", "in_flight", "dead", "acked", "cancelled", "consumers")
"""What a viewer is sent of each queue."""

SHARE_EVERY_MS, SHARED_OVER_MS = 5_000, 300_000
"""How often what each key was served is noted, and over which time it is compared."""

RECENT_MS = 10_000
"""Over which time a queue's speed is measured."""

ResponsesAt = tuple[int, int]
"""A time in milliseconds, and how many responses a queue had then."""


class Snapshots:
    """Takes snapshots of a runtime's store, one a second at most however many look."""

    def __init__(self, runtime: Runtime, reads: SharedReads) -> None:
        self._runtime = runtime
        self._reads = reads
        self._samples: dict[str, deque[ResponsesAt]] = {}
        self._served: dict[str, deque[tuple[int, dict[str, int]]]] = {}

    async def latest(self) -> dict[str, Any]:
        """Return a snapshot that is at most a second old."""
        found: dict[str, Any] = await self._reads.get("snapshot", self._take)
        return found

    async def event(self) -> str:
        """Return the latest snapshot as a server-sent event: the numbers of each queue."""
        found: str = await self._reads.get("event", self._event)
        return found

    async def _event(self) -> str:
        found = await self.latest()
        data = {
            "at": found["at"],
            "queues": [
                {
                    **{name: each[name] for name in KEPT},
                    "oldest_unclaimed_age_ms": each["oldest_unclaimed_age_ms"],
                    "paused": each["paused"],
                    "per_second": each["per_second"],
                }
                for each in found["queues"]
            ],
            "dead_letters": found["dead_letters"],
            "consumers_alive": sum(each["alive"] for each in found["consumers"]),
        }
        return f"event: snapshot\ndata: {to_json(data)}\n\n"

    async def _take(self) -> dict[str, Any]:
        found = masked(self._runtime, await overview(self._runtime, self._runtime.state_dir))
        now = self._runtime.clock.now_ms()
        for each in found["queues"]:
            samples = await self._sampled(each["queue"], now, each["responses"])
            each["shares"] = self._shares(each["queue"], each["shares"], now)
            each["speeds"] = speeds(samples, now)
            each["per_second"] = recent_speed(samples, now)
        gone = self._samples.keys() - {each["queue"] for each in found["queues"]}
        for name in gone:
            del self._samples[name]
            self._served.pop(name, None)
        return dict(found)

    def _shares(self, queue: str, shares: list[dict[str, Any]], now: int) -> list[dict[str, Any]]:
        """Return *shares* by what was served in the last minutes, where that is known."""
        totals = {each["key"]: each["selected_total"] for each in shares}
        kept = self._served.setdefault(queue, deque())
        if not kept or now - kept[-1][0] >= SHARE_EVERY_MS:
            kept.append((now, totals))
        while len(kept) > 1 and now - kept[0][0] > SHARED_OVER_MS:
            kept.popleft()
        return recent_shares(shares, kept[0][1])

    async def _sampled(self, queue: str, now: int, responses: int) -> Sequence[ResponsesAt]:
        samples = self._samples.get(queue)
        if samples is None:
            topic = queue_topics(queue).responses
            responded = await self._runtime.service(Store).run(
                lambda: newest(topic, SEEDED_FROM), write=False
            )
            times = [each.occurred_at_ms for each in responded]
            samples = self._samples[queue] = deque(seeded(times, now, responses), 2 * SECONDS)
        if not samples or now - samples[-1][0] >= 500:
            samples.append((now, responses))
        return samples


def seeded(times: Sequence[int], now: int, responses: int) -> list[ResponsesAt]:
    """Return the samples that snapshots would have taken, from the *times* of the newest responses.

    They begin with the oldest of these, if there are more responses.

    >>> seeded([7_000, 9_500], now=10_000, responses=12)
    [(7000, 11), (8000, 11), (9000, 11), (10000, 12)]
    """
    first = times[0] if 0 < len(times) < responses else 0  # of the time before, nothing is known
    found = []
    for second in range(SECONDS, -1, -1):
        at = now - second * 1000
        if at >= first and at >= 0:
            found.append((at, responses - sum(each > at for each in times)))
    return found


def speeds(samples: Sequence[ResponsesAt], now: int) -> list[float]:
    """Return the responses a second in each of the last sixty seconds, oldest first.

    >>> speeds([(0, 5), (1000, 7), (3000, 9)], now=3000)[-4:]
    [0.0, 2.0, 1.0, 1.0]
    """
    found = [0.0] * SECONDS
    for (began, before), (ended, after) in zip(samples, list(samples)[1:], strict=False):
        per_second = 1000 * (after - before) / max(1, ended - began)
        first = SECONDS - max(1, round((now - began) / 1000))
        last = SECONDS - round((now - ended) / 1000)
        for place in range(max(0, first), min(SECONDS, last)):
            found[place] = round(per_second, 2)
    return found


def recent_speed(samples: Sequence[ResponsesAt], now: int) -> float:
    """Return the responses a second over the last ten seconds.

    >>> recent_speed([(0, 0), (5000, 10)], now=5000)
    2.0
    """
    recent = [each for each in samples if each[0] >= now - RECENT_MS]
    if len(recent) < 2:
        return 0.0
    (began, before), (ended, after) = recent[0], recent[-1]
    return round(1000 * (after - before) / max(1, ended - began), 1)


def recent_shares(shares: Sequence[dict[str, Any]], before: dict[str, int]) -> list[dict[str, Any]]:
    """Return *shares* with the percentage that was served since the totals *before*.

    >>> a, b = {"key": "a", "selected_total": 13}, {"key": "b", "selected_total": 9}
    >>> [each["share"] for each in recent_shares([a, b], {"a": 10, "b": 8})]
    [75.0, 25.0]
    """
    served = [each["selected_total"] - before.get(each["key"], 0) for each in shares]
    total = sum(served)
    if total <= 0:
        return list(shares)
    return [
        {**each, "share": round(100 * count / total, 1)}
        for each, count in zip(shares, served, strict=True)
    ]

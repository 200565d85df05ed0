"""The shares that have a turn, found by turn and by the age of their jobs.

With few of them nothing is sorted: the scheduler is given all. With many, the lists are made when
they are first asked for, and kept up to date from then on.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from itertools import islice

from harn.workers import fairshare
from harn.workers.whatif.key_share import KeyShare

STALE = 1000
"""Entries of the heap that may be out of date before it is made again."""


class OpenShares(dict[str, KeyShare]):
    """Shares by key."""

    def __init__(self) -> None:
        super().__init__()
        self._by_turn: dict[int, list[str]] | None = None
        self._by_age: list[tuple[int, str]] | None = None

    def turn(self, share: KeyShare, turn: int | None) -> None:
        """Give *share* another turn; None takes it away."""
        was, key = share.turn, share.key
        if was == turn:
            return
        share.turn = turn
        if turn is None:
            del self[key]
            if len(self) <= fairshare.KEYS_AT_ONCE:
                self._by_turn = self._by_age = None
        elif was is None:
            self[key] = share
            self.aged(share)
        if self._by_turn is not None:
            if was is not None:
                keys = self._by_turn[was]
                del keys[bisect_left(keys, key)]
            if turn is not None:
                insort(self._by_turn.setdefault(turn, []), key)

    def aged(self, share: KeyShare) -> None:
        """Note that another job is the oldest of *share*."""
        if self._by_age is not None and share.oldest is not None:
            heapq.heappush(self._by_age, (share.oldest, share.key))

    def following(self, round: int, last: str) -> KeyShare:
        """Return the share that is served next, unless an old job is promoted."""
        return min(self.values(), key=lambda each: (each.turn != round, each.key <= last, each.key))

    def some(self, limit: int) -> list[KeyShare]:
        """Return at most *limit* shares."""
        return [*islice(self.values(), limit)]

    def oldest(self, limit: int) -> list[KeyShare]:
        """Return at most *limit* shares, those with the oldest jobs first."""
        heap = self._by_age
        if heap is None or len(heap) > STALE + 4 * len(self):
            heap = self._by_age = [(share.oldest or 0, share.key) for share in self.values()]
            heapq.heapify(heap)
        found: dict[str, tuple[int, str]] = {}
        while heap and len(found) < limit:
            oldest, key = entry = heapq.heappop(heap)
            share = self.get(key)
            if share is not None and share.oldest == oldest:
                found[key] = entry
        for entry in found.values():
            heapq.heappush(heap, entry)
        return [self[key] for key in found]

    def in_turn(self, turn: int, after: str, until: str, limit: int) -> list[KeyShare]:
        """Return shares of a turn in the order of their keys, within a range of them."""
        if self._by_turn is None:
            self._by_turn = {}
            for key in sorted(self):
                in_turn = self[key].turn
                assert in_turn is not None
                self._by_turn.setdefault(in_turn, []).append(key)
        keys = self._by_turn.get(turn, [])
        begin = bisect_right(keys, after)
        found = keys[begin : min(begin + limit, bisect_right(keys, until))]
        return [self[key] for key in found]

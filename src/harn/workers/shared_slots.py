"""Slots that several consumers share: a slot that becomes free goes to the one that waits longest.

A consumer takes a slot before it asks for a job and releases it when the job has ended, or when
there was none. A consumer that finds no slot free waits in line. One that has had a slot goes to
the end of the line, so a busy queue does not keep the others out.
"""

from __future__ import annotations

from typing import Protocol

from harn.option_checks import whole_number


class SlotWaiter(Protocol):
    """A consumer that waits for a slot."""

    def slot_is_free(self) -> None:
        """Note that a slot may be taken now."""


class SharedSlots:
    """Room for *limit* running jobs, shared by consumers of one event loop."""

    def __init__(self, limit: int) -> None:
        whole_number("concurrency", limit, least=1)
        self.limit = limit
        self._taken = 0
        self._waiting: dict[SlotWaiter, None] = {}

    def free_for(self, consumer: SlotWaiter) -> int:
        """Return how many slots *consumer* may take now; waiters ahead of it come first."""
        ahead = 0
        for other in self._waiting:
            if other is consumer:
                break
            ahead += 1
        return max(0, self.limit - self._taken - ahead)

    def take(self, consumer: SlotWaiter, most: int) -> int:
        """Take up to *most* slots; a consumer that gets none waits in line from now on."""
        got = min(self.free_for(consumer), most)
        if got:
            self._taken += got
            self._waiting.pop(consumer, None)
        else:
            self._waiting.setdefault(consumer)
        return got

    def release(self, consumer: SlotWaiter, slots: int) -> None:
        """Release *slots* and wake the consumers that wait, but not *consumer* itself."""
        self._taken -= slots
        self._tell(consumer)

    def leave(self, consumer: SlotWaiter) -> None:
        """Stop waiting for a slot."""
        if consumer in self._waiting:
            del self._waiting[consumer]
            self._tell(consumer)

    def _tell(self, but: SlotWaiter) -> None:
        for other in list(self._waiting):
            if self._taken >= self.limit:
                return
            if other is not but:
                other.slot_is_free()

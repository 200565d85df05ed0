"""The permit queues of a runtime, by kind and key, and when unused ones are forgotten."""

from __future__ import annotations

from typing import Literal, get_args

from harn.errors import InvalidOption
from harn.runtime import Runtime
from harn.sync.permit_queue import PermitQueue
from harn.sync.wait_queue import guard

Kind = Literal["mutex", "rwlock", "semaphore", "gate"]


MOST_IDLE = 10_000
"""The most unused keys of one kind that are kept, so that generated names do not accumulate."""


class Permits:
    """The named permit queues of one runtime.

    The last `MOST_IDLE` unused keys of each kind are kept, for their counters.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.named: dict[str, dict[str, PermitQueue]] = {kind: {} for kind in get_args(Kind)}
        self.mutexes: dict[str, PermitQueue] = self.named["mutex"]

    def open(self, kind: str, key: str, capacity: int) -> PermitQueue:
        """Return the queue under *key*, made with *capacity* if it is new."""
        try:
            found = self.named[kind][key]
        except (KeyError, TypeError):
            found = self._make(kind, key, capacity)
        return found

    def _make(self, kind: str, key: str, capacity: int) -> PermitQueue:
        if not isinstance(key, str) or not key:
            raise InvalidOption("key", key, "a non-empty string") from None
        queues = self.named[kind]
        with guard:  # another thread may be in `sync_metrics`
            made = queues[key] = PermitQueue(kind, key, capacity, self._runtime)
            if len(queues) > MOST_IDLE:
                _forget_the_idle(queues, made)
        return made


def _forget_the_idle(queues: dict[str, PermitQueue], new: PermitQueue) -> None:
    # Half of them at once, oldest first, so that this is rare even with many new keys.
    idle = [key for key, each in queues.items() if each.is_idle and each is not new]
    for key in idle[: MOST_IDLE // 2]:
        del queues[key]

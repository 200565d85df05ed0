"""What a pool remembers of tasks that have ended, and which idempotency keys they hold.

Retention bounds both, by count and by age; a task and its key are forgotten together. The counts
go on for ever.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from harn.durable_calls import durable_function, encode_arguments, split_call
from harn.pools.options import Retention
from harn.pools.snapshots import TERMINAL
from harn.pools.task import PoolTask


class Memory:
    """The ended tasks of a pool, oldest first, and every bound idempotency key."""

    __slots__ = ("_age_ms", "_bound", "conflicts", "count", "counts", "ended", "next_due")

    def __init__(self, retention: Retention) -> None:
        self.count = retention.count
        self._age_ms = retention.age_ms
        self._bound: dict[Hashable, PoolTask] = {}
        self.ended: deque[PoolTask] = deque()
        self.counts: dict[str, int] = dict.fromkeys(TERMINAL, 0)
        self.conflicts = 0
        self.next_due = 0
        """When to look again for tasks that have grown too old."""

    def forget_old(self, now: int) -> None:
        """Let go of what retention no longer keeps."""
        ended, since = self.ended, now - self._age_ms
        while ended and (len(ended) > self.count or ended[0]._finished_ms < since):  # type: ignore[operator]
            self.unbind(ended.popleft())
        oldest = ended[0]._finished_ms if ended else now
        self.next_due = (oldest or now) + self._age_ms

    def bind(self, binding: Hashable, task: PoolTask) -> None:
        """Let *binding* lead to *task* until it is forgotten."""
        task._own().binding = binding
        self._bound[binding] = task

    def unbind(self, task: PoolTask) -> None:
        """Free the idempotency key of *task*, if it has one."""
        more = task._more
        if more.binding is not None:
            self._bound.pop(more.binding, None)
            more.binding = None

    def bound(self, binding: Hashable) -> PoolTask | None:
        """Return the task that *binding* leads to."""
        return self._bound.get(binding)


def binding(tenant_id: str | None, idempotency_key: str) -> Hashable:
    """Return what a key is bound under: exact strings, each tenant with keys of its own."""
    return idempotency_key if tenant_id is None else (tenant_id, idempotency_key)


def fingerprint(fn: Callable[..., Any]) -> int:
    """Return a number that differs, in all likelihood, for another function or other arguments.

    It tells a reused key from a repeated submit. Closures over different variables look alike.
    """
    fn, positional, keywords = split_call(fn)
    arguments = encode_arguments(positional, keywords) or b""
    function = durable_function(fn)
    if function is not None:
        return call_fingerprint(function.name, arguments)
    home = getattr(fn, "__module__", ""), getattr(fn, "__qualname__", type(fn).__qualname__)
    return call_fingerprint(":".join(map(str, home)), arguments)


def call_fingerprint(name: str, args: bytes) -> int:
    """Return the fingerprint of a call by name, as a journal holds it."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass") + b"\0" + args)

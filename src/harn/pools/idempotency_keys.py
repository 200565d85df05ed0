"""Idempotency keys: a second submit under a key gets the task of the first one.

A key leads to its task in every status, until the task is forgotten (`ended_tasks.py`). A key that
comes with another call still leads to its first task; that is counted and logged.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Hashable
from typing import Any

from harn.durable_calls import durable_function, encode_arguments, split_call
from harn.pools.task import PoolTask

logger: logging.Logger = logging.getLogger("harn.pools")


class IdempotencyKeys:
    """Every key of a pool that leads to a task."""

    __slots__ = ("_bound", "conflicts")

    def __init__(self) -> None:
        self._bound: dict[Hashable, PoolTask] = {}
        self.conflicts: int = 0
        """How often a bound key came with another function or other arguments."""

    def bind(self, binding: Hashable, task: PoolTask) -> None:
        """Let *binding* lead to *task* until it is forgotten."""
        task._own_extras().binding = binding
        self._bound[binding] = task

    def unbind(self, task: PoolTask) -> None:
        """Free the idempotency key of *task*, if it has one."""
        extras = task._extras
        if extras.binding is not None:
            self._bound.pop(extras.binding, None)
            extras.binding = None

    def bound(self, binding: Hashable) -> PoolTask | None:
        """Return the task that *binding* leads to."""
        return self._bound.get(binding)

    def compare_call(self, task: PoolTask, came: Callable[[], int]) -> None:
        """Count and log a conflict if the key of *task* came with another call."""
        extras = task._own_extras()
        if extras.fingerprint is None or extras.fingerprint == came():
            return
        extras.conflicts += 1
        self.conflicts += 1
        logger.warning(
            "pool %r: idempotency key %r came with another call; it leads to its first task",
            task.pool,
            task.idempotency_key,
        )


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

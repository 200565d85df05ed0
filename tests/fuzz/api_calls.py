"""Random calls of everything public, by signature: good values, odd ones, and hostile ones."""

from __future__ import annotations

import asyncio
import inspect
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import FrameType
from typing import Any

import harn

LEFT_OUT = {
    *("run", "run_in_thread", "from_thread", "current_runtime"),  # own the process or its threads
    *("llm_call", "llm_stream", "agent_loop"),  # speak to providers
    *("pool_simulate_restart", "Runtime", "drop", "disown", "defer"),  # end what others use
}
MADE_BY_US = {
    *("Atomic", "Channel", "Claim", "ChildContext", "LlmSlot", "Mailbox", "Mutex", "Owned"),
    *("ParallelStream", "Permit", "Pool", "PoolHost", "PoolTask", "Provider", "SharedCell"),
    *("SharedMap", "SseStream", "Supervisor", "TaskHandle", "WorkerQueue", "RuntimeContext"),
}
"""Classes that a verb makes; users do not call them."""
METHODS = {
    "Pool": "close size snapshot submit submit_nowait submit_many",
    "WorkerQueue": "claim_many claim_next claiming counts enqueue enqueue_many purge summary",
    "Claim": "ack fail release renew",
    "Channel": "close receive send try_receive try_send",
    "Mailbox": "close metrics receive send try_receive",
    "SharedCell": "cas get metrics set snapshot",
    "SharedMap": "cas delete entries get metrics set snapshot",
    "Atomic": "add cas get set",
    "Permit": "release",
    "Supervisor": "events request_stop state stop wait",
    "TaskHandle": "cancel done wait",
    "PoolTask": "snapshot wait cancel",
    "EventLog": "emit flush head read stream subscribe trim",
}
"""What people call on what a verb made; the other methods are for our own rooms."""
ALLOWED = (harn.HarnError, TypeError, ValueError, asyncio.CancelledError, RecursionError)
"""A function of the caller may raise the last one, when it is given a value nested deeply."""
PATIENCE = 0.005
"""Seconds that a call may wait before it is cancelled."""
TOO_LONG = 10.0
"""Seconds of blocking the loop that count as a hang."""


class Hang(BaseException):
    """A call that did not give the event loop back."""


def returns_one(*args: Any) -> int:
    """Return 1."""
    return 1


async def waits_a_turn(*args: Any) -> int:
    """Return 1 a little later."""
    await asyncio.sleep(0)
    return 1


def raises(*args: Any) -> Any:
    """Fail as a handler may."""
    raise ValueError("a handler's own")


def cyclic() -> list[Any]:
    """Return a list that holds itself."""
    found: list[Any] = [1]
    found.append({"again": found})
    return found


def deep() -> Any:
    """Return lists within lists, more than any stack allows."""
    found: Any = 1
    for _ in range(50_000):
        found = [found]
    return found


def odd_values() -> list[Any]:
    """Return what no caller should pass; made for each runtime, because some can be changed."""
    return [
        *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63), 2**200, 10**5000),
        *(0.0, 0.5, -0.5, 1e308, float("nan"), float("inf"), float("-inf"), 1j, Decimal("NaN")),
        *("", " ", "a", " a", "a\0b", "\ud800", "\u202e", "x" * 10_000, "soon", "5m", "-5m", "1ms"),
        *(b"", b"\xff", bytearray(b"a"), [], {}, (), set(), [1], {"a": 1}, {1: 2}, {"a": object()}),
        *(cyclic(), deep(), object(), object, Exception("x"), KeyError, ...),
        *(returns_one, waits_a_turn, raises, lambda: 1, print, (each for each in "ab")),
        *(datetime(2026, 1, 1), datetime.now(UTC), datetime.max.replace(tzinfo=UTC)),
        *(timedelta(seconds=1), timedelta.max, timedelta.min, harn.NewJob({"n": 1})),
    ]


LIKELY: dict[str, list[Any]] = {
    "name": ["one", "two"],
    "key": ["k", "l"],
    "id": ["one", "two"],
    "topic": ["fuzz.topic"],
    "kind": ["channel.emit", "webhook", "task", "seen"],
    "provider": ["channel", "github"],
    "match": [{}, {"events": ["channel:one"]}],
    "handler": [returns_one, waits_a_turn, "worker://review"],
    "consumer_id": ["worker"],
    "queue": ["review", "fifo"],
    "fn": [returns_one, waits_a_turn, raises],
    "n": [1, 3],
    "payload": [{"n": 1}, "text", 1],
    "scope": ["session", "tenant", "task_group", "process"],
    "capacity": [1, 8],
    "limit": [1, 10],
    "children": [[{"name": "child", "task": waits_a_turn}]],
    "strategy": ["fifo", "drr", "one_for_one"],
    "value": [1, {"a": 1}],
    "items": [[1, 2], ()],
    "runners": [[returns_one]],
    "timeout": ["1ms", 0, None],
}


def arguments(call: Callable[..., Any], rng: random.Random, odd: list[Any]) -> tuple[Any, Any]:
    """Choose positional and keyword arguments by the signature of *call*."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    badness = rng.choice((0.0, 0.2, 0.5, 1.0))
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            if rng.random() < 0.2:
                named[rng.choice(["priority", "tenant_id", "odd"])] = rng.choice(odd)
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [rng.choice(odd) for _ in range(rng.randrange(3))]
            continue
        required = parameter.default is parameter.empty
        if not required and rng.random() < 0.6:
            continue
        good = LIKELY.get(name, ["one", 1, {"n": 1}, returns_one])
        value = rng.choice(odd) if rng.random() < badness else rng.choice(good)
        if parameter.kind is parameter.KEYWORD_ONLY or not required:
            named[name] = value
        else:
            positional.append(value)
    return positional, named


def functions() -> list[tuple[str, Callable[..., Any]]]:
    """Return every public callable that is no error and is not left out."""
    found = []
    for name in sorted(set(harn.__all__) - LEFT_OUT - MADE_BY_US):
        value = getattr(harn, name)
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        if callable(value) and not is_error and _has_signature(value):
            found.append((name, value))
    return found


def methods(value: Any) -> list[tuple[str, Callable[..., Any]]]:
    """Return the public methods of an instance."""
    kind = type(value).__name__
    names = [name for name in METHODS[kind].split() if hasattr(value, name)]
    return [(f"{kind}.{name}", getattr(value, name)) for name in names]


async def objects() -> list[Any]:
    """Make one of everything that has methods."""
    queue = harn.worker_queue("review")
    await queue.enqueue({"n": 1})
    return [
        await harn.pool_create(name="pool", max_concurrent=2),
        queue,
        await queue.claim_next("worker"),
        harn.channel(),
        harn.mailbox_open("inbox"),
        harn.shared_cell("cell"),
        harn.shared_map("map"),
        harn.atomic(1),
        await harn.sync_semaphore_acquire("s", capacity=2),
        await harn.supervisor_start(children=[{"name": "child", "task": waits_a_turn}]),
        harn.spawn(waits_a_turn),
        await (await harn.pool_create(name="other")).submit(returns_one),
        harn.current_runtime().event_log,
    ]


async def one_call(call: Callable[..., Any], positional: list[Any], named: Any) -> str:
    """Call, wait a little for what is awaitable, and return how it ended."""
    try:
        with no_hang():
            found = call(*positional, **named)
        if hasattr(found, "__await__"):
            return await _patiently(found)
        if hasattr(found, "aclose") and inspect.isasyncgen(found):
            await found.aclose()
    except ALLOWED as error:
        return type(error).__name__
    return "returned"


async def _patiently(awaitable: Awaitable[Any]) -> str:
    async def wait() -> Any:
        return await awaitable

    waiting = asyncio.ensure_future(wait())
    done, _ = await asyncio.wait((waiting,), timeout=PATIENCE)
    if not done:
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=TOO_LONG)
        if not waiting.done():
            raise Hang("a cancelled call goes on")
        if waiting.cancelled():
            return "waited"
    waiting.result()
    return "returned"


@contextmanager
def no_hang() -> Iterator[None]:
    """Raise `Hang` in what blocks the loop for too long."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang("the call blocks the event loop")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, TOO_LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _has_signature(call: Any) -> bool:
    try:
        inspect.signature(call)
    except (TypeError, ValueError):
        return False
    return True

"""`mutex()` by place and by resource, and the keys that make resources equal."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import gc
import importlib
import sys
import uuid
import weakref
from collections import OrderedDict, namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from harn import (
    AcquireTimeout,
    HarnError,
    InvalidOption,
    MutexReentered,
    Runtime,
    disown,
    mutex,
    parallel,
    spawn,
    sync_mutex_acquire,
)
from harn.sync.mutex import Mutexes
from harn.sync.structural_key import structural
from harn.testing import FakeClock


async def settle(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_Y1_one_task_at_a_time_in_the_same_block(runtime: Runtime) -> None:
    count = 0

    async def increment(_: int) -> None:
        nonlocal count
        async with mutex():
            seen = count
            await settle(2)
            count = seen + 1

    await parallel(20, increment)

    assert count == 20


async def test_two_blocks_are_two_locks_even_on_one_line(runtime: Runtime) -> None:
    entered = 0
    async with mutex():
        async with mutex():
            entered += 1
    async with mutex(), mutex():
        entered += 1

    assert entered == 2


async def test_inside_a_helper_the_helpers_place_counts(runtime: Runtime) -> None:
    def guarded() -> Any:
        return mutex()

    async with guarded():
        with pytest.raises(MutexReentered):
            async with guarded():
                pass


async def test_one_mutex_object_may_serve_many_tasks(runtime: Runtime) -> None:
    lock, inside, order = mutex("db"), 0, []

    async def work(n: int) -> None:
        nonlocal inside
        async with lock:
            inside += 1
            assert inside == 1
            order.append(n)
            await settle(2)
            inside -= 1

    await parallel(10, work)

    assert order == list(range(10))
    async with lock:
        with pytest.raises(MutexReentered):
            async with lock:
                pass


async def test_one_mutex_object_in_use_in_two_runtimes_is_refused(runtime: Runtime) -> None:
    lock = mutex("db")

    async with lock:
        async with Runtime():
            with pytest.raises(HarnError, match="another runtime"):
                async with lock:
                    pass
    async with Runtime():
        async with lock:
            pass


async def test_Y7_re_entering_the_same_resource_is_an_error(runtime: Runtime) -> None:
    async with mutex("acct-42"):
        with pytest.raises(MutexReentered, match=r"HARN-ORC-011.*acct-42.*re-entrant"):
            async with mutex("acct-42"):
                pass
        async with mutex("acct-43"):
            pass
    async with mutex("acct-42"):
        pass


@pytest.mark.parametrize("resource", ["account-42", object()], ids=["value", "object"])
async def test_Y4_a_section_that_is_not_left_in_time_is_a_timeout(
    runtime: Runtime, clock: FakeClock, resource: Any
) -> None:
    async def second() -> str:
        async with mutex(resource, timeout="1s"):
            return "inside"

    async with mutex(resource):
        late = spawn(second)
        await settle()
        await clock.advance("1s")
        with pytest.raises(AcquireTimeout, match=r"was not granted within 1 s; \S+ holds it"):
            await late
        with pytest.raises(TimeoutError, match="at once"):
            async with mutex(resource, timeout=0):
                pass
        third = spawn(second)
        await settle()

    assert await third == "inside"
    assert await second() == "inside"


async def test_a_bare_section_has_a_timeout_too(runtime: Runtime, clock: FakeClock) -> None:
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with mutex(timeout="1s"):
            inside += 1
            await asyncio.Event().wait()

    first, second = spawn(enter), spawn(enter)
    await settle()
    await clock.advance("1s")

    with pytest.raises(AcquireTimeout):
        await second
    assert (inside, first.status) == (1, "running")
    first.cancel()


async def test_Y7_entering_again_with_a_timeout_waits_for_it(
    runtime: Runtime, clock: FakeClock
) -> None:
    async def enter_twice() -> None:
        async with mutex("a"), mutex("a", timeout="1s"):
            pass

    task = spawn(enter_twice)
    await settle()
    await clock.advance("1s")

    with pytest.raises(AcquireTimeout):
        await task
    async with mutex("a", timeout=0):
        pass


@pytest.mark.parametrize("wrong", ["soon", -1, float("nan")])
def test_a_wrong_timeout_of_a_section_is_refused_where_it_is_made(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="timeout"):
        mutex("a", timeout=wrong)


async def test_Y7_a_child_waits_instead(runtime: Runtime) -> None:
    async def child() -> str:
        async with mutex("x"):
            return "in"

    async with mutex("x"):
        handle, plain = spawn(child), asyncio.ensure_future(child())
        await settle()
        assert not handle.done()
        assert not plain.done()

    assert (await handle, await plain) == ("in", "in")


async def test_a_block_and_a_named_key_never_meet(runtime: Runtime) -> None:
    async with mutex("k"):
        assert await sync_mutex_acquire("k", timeout=0) is not None


@pytest.mark.parametrize("way", ["return", "break", "raise", "cancel", "generator"])
async def test_Y9_every_way_out_releases(runtime: Runtime, way: str) -> None:
    async def inside() -> None:
        while True:
            async with mutex("k"):
                if way == "return":
                    return
                if way == "break":
                    break
                if way == "raise":
                    raise ValueError
                await asyncio.sleep(3600)

    async def generator() -> Any:
        async with mutex("k"):
            yield 1

    if way == "generator":
        made = generator()
        await anext(made)
        await made.aclose()
    else:
        task = asyncio.ensure_future(inside())
        await settle()
        task.cancel()
        await asyncio.wait([task])

    async with mutex("k"):
        pass
    assert all(each.is_idle for each in runtime.service(Mutexes).sections.values())


async def test_a_cancelled_waiter_leaves_no_section_behind(runtime: Runtime) -> None:
    async def inside() -> None:
        async with mutex("k"):
            pass

    async with mutex("k"):
        waiting = asyncio.ensure_future(inside())
        await settle()
        waiting.cancel()  # it has not resumed when the block ends
    await settle()

    assert all(each.is_idle for each in runtime.service(Mutexes).sections.values())


async def test_a_section_left_while_a_caller_joins_the_queue_is_not_missed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A coroutine that is thrown away leaves its section wherever the collector happens to run.
    abandoned = mutex("m")
    await spawn(abandoned.__aenter__)
    future = asyncio.Future

    def collecting(*, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        abandoned.__aexit__(None, None, None)
        return future(loop=loop)

    monkeypatch.setattr(importlib.import_module("harn.sync.permit_queue"), "Future", collecting)
    async with mutex("m"):
        others = runtime.service(Mutexes).sections
        assert len(others) == 1


async def test_a_permit_released_while_a_caller_joins_the_queue_is_not_missed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take() -> Any:
        return disown(await sync_mutex_acquire("m"))

    abandoned = await spawn(take)
    future = asyncio.Future

    def collecting(*, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        abandoned.release()
        return future(loop=loop)

    monkeypatch.setattr(importlib.import_module("harn.sync.permit_queue"), "Future", collecting)
    permit = await sync_mutex_acquire("m")

    assert permit is not None
    assert not abandoned.release()


async def test_sections_that_are_not_in_use_do_not_pile_up(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Mutexes.__module__], "MOST_IDLE", 20)
    inside, most = 0, 0

    async def work(n: int) -> None:
        nonlocal inside, most
        async with mutex("held all the time"):
            for n in range(200):
                async with mutex(("user", n)):
                    inside += 1
                    most = max(most, len(runtime.service(Mutexes).sections))
            with pytest.raises(MutexReentered):
                async with mutex("held all the time"):
                    pass

    await parallel(3, work)

    assert most <= 21


async def test_an_object_is_not_kept_alive_by_its_mutex(runtime: Runtime) -> None:
    class Client:
        pass

    client = Client()
    gone = weakref.ref(client)

    async with mutex(client):
        with pytest.raises(MutexReentered):
            async with mutex(client):
                pass
    del client
    gc.collect()

    assert gone() is None


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Account:
    id: int


@dataclasses.dataclass
class Customer:
    id: int


class Order(msgspec.Struct):
    id: int


Point = namedtuple("Point", "x y")
UUID = uuid.UUID(int=1)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

DISTINCT: list[Any] = [
    None, 1, True, 1.0, "1", b"1", 0, False, 0.5, "", (), [], {}, set(), frozenset(),
    [1], (1,), [True], [1.0], ["1"], {"a": 1}, {"a": True}, {"a": [1]}, {1: "a"}, {"1": "a"},
    {1}, {"1"}, frozenset({1}), Colour.RED, Number.ONE, Account(1), Account(2), Customer(1),
    Order(1), Order(2), Point(1, 2), (1, 2), Path("a"), "a", UUID, str(UUID), MOMENT,
    Decimal(1), 1j, [[]], [()], OrderedDict(a=1), "key\x00", bytearray(b"1"),
]  # fmt: skip


def test_Y7_keys_differ_where_values_differ() -> None:
    keys = [structural(each) for each in DISTINCT]

    assert len(set(keys)) == len(DISTINCT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({1, 2, 3}, {3, 2, 1}),
        ([1, {"x": (2,)}], [1, {"x": (2,)}]),
        (Account(1), Account(1)),
        (Order(3), Order(3)),
        (Path("a/b"), Path("a") / "b"),
        (uuid.UUID(int=7), uuid.UUID(int=7)),
        (0.0, -0.0),
    ],
)
def test_Y7_keys_are_equal_where_structures_are(one: Any, other: Any) -> None:
    assert structural(one) == structural(other)
    assert hash(structural(one)) == hash(structural(other))


@pytest.mark.parametrize(
    "value", [float("nan"), [float("nan")], {"a": Decimal("NaN")}, Decimal("sNaN"), complex("nan")]
)
def test_Y7_nan_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="NaN"):
        mutex(value)


def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(InvalidOption, match="contain itself"):
        mutex(loop)


def test_plain_objects_are_keys_by_identity() -> None:
    class Client:
        pass

    a, b = Client(), Client()

    assert structural(a) == structural(a)
    assert structural(a) != structural(b)
    assert structural(test_plain_objects_are_keys_by_identity) == structural(
        test_plain_objects_are_keys_by_identity
    )


def test_objects_with_an_equality_of_their_own_are_refused() -> None:
    class Fuzzy:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(InvalidOption, match="compares by identity"):
        mutex(Fuzzy())


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=6,
)


def same_structure(a: Any, b: Any) -> bool:
    """The model: equal types, equal shapes, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_structure, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_structure(a[key], b[key]) for key in a)
    return bool(a == b)


@settings(deadline=None, max_examples=300)
@given(json_like, json_like)
def test_Y7_two_keys_are_equal_exactly_when_the_structures_are(a: Any, b: Any) -> None:
    assert (structural(a) == structural(b)) == same_structure(a, b)

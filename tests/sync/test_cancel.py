"""G7, Y3, H2: a cancel at any moment leaves every permit, message and waiter where it belongs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harn import (
    Channel,
    ChannelClosed,
    Runtime,
    channel,
    channel_select,
    mailbox_open,
    mailbox_send,
    mutex,
    sync_gate_acquire,
    sync_metrics,
    sync_mutex_acquire,
    sync_rwlock_acquire,
    sync_semaphore_acquire,
    waitpoint_cancel,
    waitpoint_complete,
    waitpoint_wait,
)
from harn.sync.mutex import Mutexes
from harn.sync.named_permits import Permits
from harn.sync.permit_queue import PermitQueue
from tests.sweep import Run, sweep


def assert_free(queue: PermitQueue) -> None:
    assert queue.free == queue.capacity
    assert queue.queued == 0
    assert queue.waiters.first() is None
    assert queue.holder is None
    assert not queue.holders


def assert_all_free(runtime: Runtime) -> None:
    for queues in runtime.service(Permits).named.values():
        for queue in queues.values():
            assert_free(queue)
    for section in runtime.service(Mutexes).sections.values():
        assert_free(section)


def assert_quiet(ch: Channel[Any]) -> None:
    """Assert that no task waits and nothing is promised, as if it was never contended."""
    assert ch._promised == 0
    assert ch._promised_room == 0
    assert ch._receivers.first() is None
    assert ch._senders.first() is None


def assert_no_waiter_sleeps_that_could_run(runtime: Runtime, *channels: Channel[Any]) -> None:
    for ch in channels:
        if len(ch) > ch._promised:
            assert ch._receivers.first() is None
        if len(ch) + ch._promised_room < ch.capacity:
            assert ch._senders.first() is None
        assert len(ch) + ch._promised_room <= ch.capacity
    for queues in runtime.service(Permits).named.values():
        for each in queues.values():
            first = each.waiters.first()
            assert first is None or first.want > each.free


Acquire = Callable[[], Awaitable[Any]]
ACQUIRES: dict[str, Acquire] = {
    "mutex": lambda: sync_mutex_acquire("k"),
    "timed mutex": lambda: sync_mutex_acquire("k", "1h"),
    "read": lambda: sync_rwlock_acquire("k", "read"),
    "write": lambda: sync_rwlock_acquire("k", "write"),
    "timed write": lambda: sync_rwlock_acquire("k", "write", "1h"),
    "semaphore": lambda: sync_semaphore_acquire("k", 3, permits=2),
    "gate": lambda: sync_gate_acquire("k", 1),
}
BLOCKERS: dict[str, Acquire] = {
    **ACQUIRES,
    "read": lambda: sync_rwlock_acquire("k", "write"),
}


@pytest.mark.parametrize("kind", ACQUIRES)
async def test_Y3_a_cancelled_acquire_holds_nothing(runtime: Runtime, kind: str) -> None:
    async def take(acquire: Acquire, turns: int) -> None:
        permit = await acquire()
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        finally:
            permit.release()

    async def case() -> None:
        others = [asyncio.ensure_future(take(BLOCKERS[kind], n + 1)) for n in range(2)]
        try:
            await asyncio.sleep(0)
            permit = await ACQUIRES[kind]()
            try:
                await asyncio.sleep(0)
            finally:
                permit.release()
        finally:
            # The waiters behind this one must get their turn without any help.
            await asyncio.shield(asyncio.gather(*others))

    runs = await sweep(case, lambda run: assert_all_free(runtime), leftovers=8)
    assert runs >= 6


@pytest.mark.parametrize("held", ["site", "resource"])
async def test_Y3_a_cancelled_mutex_is_free(runtime: Runtime, held: str) -> None:
    def section() -> Any:
        return mutex() if held == "site" else mutex({"k": 1})

    async def inside() -> None:
        async with section():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def case() -> None:
        others = [asyncio.ensure_future(inside()) for _ in range(3)]
        try:
            await asyncio.sleep(0)
            await inside()
        finally:
            await asyncio.shield(asyncio.gather(*others))

    assert await sweep(case, lambda run: assert_all_free(runtime), leftovers=12) >= 6


async def test_H2_a_cancelled_send_was_not_sent(runtime: Runtime) -> None:
    ch: Channel[str] = channel(capacity=1)

    async def case() -> None:
        ch.try_send("first")
        drain = asyncio.ensure_future(receive_later())
        try:
            await ch.send("mine")
        finally:
            await asyncio.shield(drain)

    async def receive_later() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ch.try_receive() == "first"

    def check(run: Run) -> None:
        sent = not run.cancelled or run.error is None
        assert_quiet(ch)
        assert [ch.try_receive("none") for _ in range(2)] == (
            ["mine", "none"] if sent else ["none", "none"]
        )

    assert await sweep(case, check, leftovers=5) >= 4


async def test_H2_a_cancelled_receive_lost_nothing(runtime: Runtime) -> None:
    ch: Channel[int] = channel(capacity=2)
    got: list[int] = []

    async def case() -> None:
        got.clear()
        feeding = asyncio.ensure_future(feed())
        try:
            while len(got) < 3:
                got.append(await ch.receive())
        finally:
            await asyncio.shield(feeding)

    async def feed() -> None:
        for n in range(3):
            await asyncio.sleep(0)
            await ch.send(n)

    def check(run: Run) -> None:
        assert_quiet(ch)
        left = [ch.try_receive() for _ in range(len(ch))]
        assert [*got, *left] == [0, 1, 2]

    # The feeder never blocks: two fit, and at least one is received or we were cancelled early.
    ch.capacity = 3
    assert await sweep(case, check, leftovers=8) >= 6


@pytest.mark.parametrize("timeout", [None, "1h"])
async def test_H5_a_cancelled_select_took_nothing(runtime: Runtime, timeout: Any) -> None:
    a: Channel[str] = channel("a")
    b: Channel[str] = channel("b")
    got: list[Any] = []

    async def case() -> None:
        got.clear()
        feeding = asyncio.ensure_future(feed())
        try:
            taken = await channel_select([a, b], timeout)
            assert taken is not None
            got.append(taken.value)
        finally:
            await asyncio.shield(feeding)

    async def feed() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        b.try_send("b")
        a.try_send("a")

    def check(run: Run) -> None:
        assert_quiet(a)
        assert_quiet(b)
        left = [each for ch in (a, b) if (each := ch.try_receive()) is not None]
        assert Counter([*got, *left]) == Counter("ab")
        assert a._receivers.first() is b._receivers.first() is None

    assert await sweep(case, check, leftovers=5) >= 4


async def test_H7_cancelled_mail_is_not_delivered_and_not_lost(runtime: Runtime) -> None:
    box = mailbox_open("box", capacity=1)
    delivered: list[int] = []

    async def case() -> None:
        drain = asyncio.ensure_future(collect())
        try:
            for n in range(3):
                await mailbox_send("box", n)
                delivered.append(n)
        finally:
            drain.cancel()
            await asyncio.wait([drain])

    received: list[int] = []

    async def collect() -> None:
        while True:
            received.append(await box.receive())

    def check(run: Run) -> None:
        assert_quiet(box._inbox)
        left = [box.try_receive() for _ in range(len(box))]
        assert [*received, *left] == delivered
        received.clear()
        delivered.clear()
        found = box.metrics()
        assert found.depth == found.sent_count - found.received_count == 0

    assert await sweep(case, check, leftovers=5) >= 6


async def test_a_cancelled_wait_at_a_waitpoint_leaves_nothing(runtime: Runtime) -> None:
    from harn.sync.waitpoint import Waitpoints

    count = 0

    async def case() -> None:
        nonlocal count
        count += 1
        id = f"w{count}"
        settling = asyncio.ensure_future(settle(id))
        try:
            await waitpoint_wait(id, None if count % 2 else "1h")
        finally:
            await asyncio.shield(settling)

    async def settle(id: str) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = waitpoint_complete(id) if count % 3 else waitpoint_cancel(id)
        assert await done

    def check(run: Run) -> None:
        assert not runtime.service(Waitpoints)._waiting

    assert await sweep(case, check, leftovers=5) >= 4


async def test_Y3_a_granted_waiter_that_is_cancelled_hands_on(runtime: Runtime) -> None:
    held = await sync_mutex_acquire("k")
    first = asyncio.ensure_future(sync_mutex_acquire("k"))
    second = asyncio.ensure_future(sync_mutex_acquire("k"))
    await asyncio.sleep(0)

    assert held is not None
    held.release()  # grants the first ...
    first.cancel()  # ... which never resumes to use it

    got = await second
    assert got is not None
    assert first.cancelled()
    found: Any = sync_metrics("mutex", "k")
    assert (found.acquisition_count, found.cancellation_count, found.current_held) == (2, 1, 1)


async def test_H2_a_woken_receiver_that_is_cancelled_wakes_the_next(runtime: Runtime) -> None:
    ch: Channel[str] = channel()
    first, second = (asyncio.ensure_future(ch.receive()) for _ in range(2))
    await asyncio.sleep(0)

    ch.try_send("value")
    first.cancel()

    assert await second == "value"


async def test_H2_a_woken_select_that_is_cancelled_wakes_the_next(runtime: Runtime) -> None:
    a: Channel[str] = channel("a")
    b: Channel[str] = channel("b")
    first = asyncio.ensure_future(channel_select([b, a]))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(a.receive())
    await asyncio.sleep(0)

    a.try_send("value")
    first.cancel()

    assert await second == "value"


async def test_H2_a_woken_sender_that_is_cancelled_wakes_the_next(runtime: Runtime) -> None:
    ch: Channel[str] = channel(capacity=1)
    ch.try_send("old")
    first = asyncio.ensure_future(ch.send("never"))
    second = asyncio.ensure_future(ch.send("new"))
    await asyncio.sleep(0)

    ch.try_receive()
    first.cancel()
    await second

    assert ch.try_receive() == "new"


async def test_an_abandoned_coroutine_gives_up_its_place(runtime: Runtime) -> None:
    ch: Channel[int] = channel()
    coroutine = ch.receive()
    coroutine.send(None)

    coroutine.close()
    ch.try_send(1)

    assert ch.try_receive() == 1
    assert_quiet(ch)


async def test_G7_random_cancels_lose_nothing(
    runtime: Runtime, at_least: Callable[[int], int]
) -> None:
    """200,000 random cancels over 1,000 tasks, in ten rounds; conservation after each."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    rounds, cancels = at_least(10), 20_000
    for _ in range(rounds):
        await one_round(runtime, rng, tasks=1000, cancels=cancels)


async def one_round(runtime: Runtime, rng: random.Random, tasks: int, cancels: int) -> None:
    narrow: Channel[int] = channel("narrow", 2)
    wide: Channel[int] = channel("wide", 64)
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    holders = Counter[str]()
    number = iter(range(10**9))
    stop = False

    async def hold(name: str, most: int, coro: Awaitable[Any], weight: int = 1) -> None:
        permit = await coro
        if permit is None:
            return
        try:
            holders[name] += weight
            assert holders[name] <= most
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        finally:
            holders[name] -= weight
            permit.release()

    async def send(ch: Channel[int]) -> None:
        value = next(number)
        await ch.send(value)
        sent[value] += 1

    async def take(ch: Channel[int]) -> None:
        received[await ch.receive()] += 1

    async def select() -> None:
        taken = await channel_select([narrow, wide], rng.choice((None, 0, "1h")))
        if taken is not None:
            received[taken.value] += 1

    async def section() -> None:
        async with mutex("section"):
            holders["section"] += 1
            assert holders["section"] == 1
            try:
                await asyncio.sleep(0)
            finally:
                holders["section"] -= 1

    async def rwlock() -> None:
        if rng.random() < 0.3:
            await hold("rw", 10**6, sync_rwlock_acquire("r", "write"), 10**6)
        else:
            await hold("rw", 10**6, sync_rwlock_acquire("r", "read"))

    async def semaphore() -> None:
        n = rng.randint(1, 3)
        await hold("sem", 3, sync_semaphore_acquire("s", 3, n, rng.choice((None, "1h"))), n)

    async def lock() -> None:
        await hold("lock", 1, sync_mutex_acquire("m", rng.choice((None, "1h", 0))))

    menu: list[Callable[[], Awaitable[Any]]] = [
        lambda: send(narrow),
        lambda: send(wide),
        lambda: take(narrow),
        lambda: take(wide),
        select,
        section,
        rwlock,
        semaphore,
        lock,
    ]

    async def wander() -> None:
        while not stop:
            try:
                await rng.choice(menu)()
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if stop:
                    raise
            except ChannelClosed:
                return

    crowd = [asyncio.ensure_future(wander()) for _ in range(tasks)]
    await asyncio.sleep(0)
    for n in range(cancels):
        rng.choice(crowd).cancel()
        if n % 200 == 0:
            await asyncio.sleep(0)
        if n % 2000 == 0:
            await asyncio.sleep(0)
            assert_no_waiter_sleeps_that_could_run(runtime, narrow, wide)
    stop = True
    for task in crowd:
        task.cancel()
    done, pending = await asyncio.wait(crowd)
    assert not pending
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    for ch in (narrow, wide):
        assert_quiet(ch)
        while len(ch):
            received[ch.try_receive()] += 1  # type: ignore[index]
    assert received == sent
    assert max(sent.values(), default=1) == 1
    assert_all_free(runtime)
    for found in sync_metrics():
        assert found.acquisition_count == found.release_count
        assert found.current_held == found.current_queue_depth == 0

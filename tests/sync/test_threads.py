"""Four threads and the loop at once, on every primitive."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harn import (
    ChannelClosed,
    MutexReentered,
    Runtime,
    atomic,
    channel,
    channel_select,
    from_thread,
    mailbox_open,
    parallel_each,
    pool_create,
    shared_cell,
    shared_map,
    spawn,
    sync_gate_acquire,
    sync_metrics,
    sync_mutex_acquire,
    sync_rwlock_acquire,
    sync_semaphore_acquire,
    waitpoint_complete,
    waitpoint_wait,
)
from harn.sync import guard

THREADS = 4
EACH = 500


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Run *work*(n) on four threads of the runtime at once."""
    barrier = threading.Barrier(THREADS, timeout=30)

    def start(n: int) -> Any:
        barrier.wait()
        return work(n)

    return await parallel_each(range(THREADS), start, max_concurrent=THREADS)


async def test_channel_plain_methods() -> None:
    async with Runtime():
        ch = channel("c", 8)
        received: Counter[Any] = Counter()

        def work(n: int) -> Counter[Any]:
            mine: Counter[Any] = Counter()
            sent = 0
            while sent < EACH:
                sent += ch.try_send((n, sent))
                assert len(ch) <= 8
                if (got := ch.try_receive()) is not None:
                    mine[got] += 1
            return mine

        async def loop_side() -> None:
            async for each in ch:
                received[each] += 1

        reader = spawn(loop_side)
        for mine in await in_threads(work):
            received += mine
        ch.close()
        await reader

        assert received == Counter((n, i) for n in range(THREADS) for i in range(EACH))
        assert ch._promised == ch._promised_room == 0


async def test_channel_async_methods_through_from_thread() -> None:
    async with Runtime():
        ch, other = channel("c", 2), channel("other", 2)

        def work(n: int) -> list[Any]:
            for i in range(100):
                from_thread((ch, other)[i % 2].send, (n, i))
            return []

        async def loop_side() -> Counter[Any]:
            got: Counter[Any] = Counter()
            while (taken := await channel_select([ch, other])) is not None:
                got[taken.value] += 1
            return got

        reader = spawn(loop_side)
        await in_threads(work)
        ch.close()
        other.close()

        assert await reader == Counter((n, i) for n in range(THREADS) for i in range(100))


async def test_closing_from_a_thread_ends_every_wait() -> None:
    async with Runtime():
        full, empty = channel("full", 1), channel("empty")
        full.try_send(0)
        waits = [spawn(full.send, 1), spawn(empty.receive), spawn(channel_select, [empty])]
        await asyncio.sleep(0)

        def close(n: int) -> None:
            full.close()
            empty.close()

        await in_threads(close)

        for handle in waits[:2]:
            with pytest.raises(ChannelClosed):
                await handle
        assert await waits[2] is None


async def test_H7_mailboxes() -> None:
    async with Runtime():
        box = mailbox_open("box", capacity=4)

        def work(n: int) -> int:
            return sum(from_thread(box.send, i) for i in range(100))

        async def loop_side() -> int:
            return sum([1 async for _ in box])

        reader = spawn(loop_side)
        assert sum(await in_threads(work)) == THREADS * 100
        box.close()

        assert await reader == THREADS * 100
        found = box.metrics()
        assert (found.sent_count, found.received_count, found.depth) == (400, 400, 0)


async def test_H8_cells_maps_and_atomics_count_exactly() -> None:
    async with Runtime():
        cell, table, number = shared_cell("c", initial=0), shared_map("m"), atomic(0)

        def bump() -> None:
            while not cell.cas(seen := cell.snapshot(), seen.value + 1):
                pass
            while not table.cas("k", at := table.snapshot("k"), (at.value or 0) + 1):
                pass
            number.add(1)

        def work(n: int) -> None:
            for _ in range(EACH):
                bump()

        async def loop_side() -> None:
            for _ in range(EACH):
                bump()
                await asyncio.sleep(0)

        here = spawn(loop_side)
        await in_threads(work)
        await here

        total = (THREADS + 1) * EACH
        assert (cell.get(), table.get("k"), number.get()) == (total, total, total)
        assert cell.metrics().cas_success_count == total
        assert cell.metrics().cas_failure_count == cell.metrics().stale_read_count


async def test_Y1_permits_released_by_threads() -> None:
    async with Runtime():
        inside = atomic(0)
        most = atomic(0)

        def hold(acquire: Callable[[], Any]) -> None:
            permit = from_thread(acquire)
            most.set(max(most.get(), inside.add(1) + 1))
            inside.add(-1)
            assert permit.release() is True
            assert permit.release() is False

        def work(n: int) -> None:
            for _ in range(60):
                hold(lambda: sync_mutex_acquire("k"))

        async def loop_side() -> None:
            for _ in range(60):
                async with await sync_mutex_acquire("k"):
                    assert inside.add(1) == 0
                    await asyncio.sleep(0)
                    inside.add(-1)

        here = spawn(loop_side)
        await in_threads(work)
        await here

        assert most.get() == 1
        found: Any = sync_metrics("mutex", "k")
        assert found.acquisition_count == found.release_count == 60 * (THREADS + 1)
        assert found.current_held == found.current_queue_depth == 0


async def test_Y1_semaphores_and_rwlocks_released_by_threads() -> None:
    async with Runtime():
        held = atomic(0)

        def work(n: int) -> None:
            for i in range(40):
                permit: Any = from_thread(sync_semaphore_acquire, "s", 3, 1 + i % 3)
                assert held.add(permit.permits) + permit.permits <= 3
                held.add(-permit.permits)
                permit.release()
                mode = "write" if i % 4 == 0 else "read"
                from_thread(sync_rwlock_acquire, "r", mode).release()

        await in_threads(work)

        counted = sync_metrics()
        assert {found.kind for found in counted} == {"semaphore", "rwlock"}
        for found in counted:
            assert found.acquisition_count == found.release_count == 40 * THREADS
            assert found.current_held == 0


async def test_waitpoints_through_from_thread() -> None:
    async with Runtime():
        waits = [spawn(waitpoint_wait, "w") for _ in range(10)]
        await asyncio.sleep(0)

        first = await in_threads(lambda n: from_thread(waitpoint_complete, "w", n))

        assert sum(first) == 1
        assert {(await each).value for each in waits} == {first.index(True)}


async def test_a_permit_races_its_release_between_threads_and_wins_once() -> None:
    async with Runtime():
        for _ in range(50):
            permit = await sync_mutex_acquire("k")
            assert permit is not None

            assert sum(await in_threads(lambda n: permit.release())) == 1


async def test_a_release_on_the_loop_races_one_in_a_thread_and_one_wins() -> None:
    async with Runtime():
        for _ in range(300):
            permit = await sync_mutex_acquire("k")
            assert permit is not None
            won: list[bool] = []
            thread = threading.Thread(target=lambda: won.append(permit.release()))

            thread.start()
            won.append(permit.release())
            thread.join(10)

            assert sorted(won) == [False, True]


@pytest.mark.parametrize("timeout", [None, 0])
@pytest.mark.parametrize("acquire", [sync_mutex_acquire, sync_gate_acquire, sync_rwlock_acquire])
async def test_what_a_thread_gave_back_is_free_before_the_loop_turns(
    acquire: Any, timeout: Any
) -> None:
    more = {sync_mutex_acquire: (), sync_gate_acquire: (1,), sync_rwlock_acquire: ("write",)}
    async with Runtime():
        held = await acquire("k", *more[acquire])
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append((held.release(), *sync_metrics())))

        start_in_this_context(thread)
        thread.join(10)
        again = acquire("k", *more[acquire], timeout)

        released, counted = seen[0]
        assert released
        assert (counted.release_count, counted.current_held) == (1, 0)
        assert without_a_turn(again) is not None
        now = sync_metrics(counted.kind, "k")
        assert now and now.acquisition_count == 2


def start_in_this_context(thread: threading.Thread) -> None:
    run, context = thread.run, contextvars.copy_context()
    thread.run = lambda: context.run(run)  # type: ignore[method-assign]
    thread.start()


def without_a_turn(coroutine: Any) -> Any:
    """Return what *coroutine* gives if it never waits."""
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    return done.value.value


async def test_a_thread_hands_a_permit_to_the_first_waiter() -> None:
    async with Runtime():
        held = await sync_semaphore_acquire("k", 2, permits=2)
        assert held is not None
        order: list[int] = []

        async def take(n: int) -> None:
            with await sync_semaphore_acquire("k", 2):
                order.append(n)

        waiting = [spawn(take, n) for n in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=held.release).start()
        for each in waiting:
            await each

        assert order == [0, 1, 2]


def plain_operations() -> dict[str, Callable[[], Any]]:
    ch, box, permit = channel("c"), mailbox_open("box"), held_permit()
    return {
        "try_send": lambda: ch.try_send(1),
        "try_receive": ch.try_receive,
        "close": ch.close,
        "mailbox.try_receive": box.try_receive,
        "mailbox.close": box.close,
        "mailbox.metrics": box.metrics,
        "permit.release": permit.release,
    }


def held_permit() -> Any:
    return without_a_turn(sync_mutex_acquire("k"))


@pytest.mark.parametrize(
    "name",
    [
        "try_send",
        "try_receive",
        "close",
        "mailbox.try_receive",
        "mailbox.close",
        "mailbox.metrics",
        "permit.release",
    ],
)
async def test_plain_methods_change_state_only_under_the_guard(name: str) -> None:
    async with Runtime():
        operation = plain_operations()[name]
        thread = threading.Thread(target=operation)

        with guard:
            thread.start()
            thread.join(0.05)
            assert thread.is_alive()

        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("lock", "operation"),
    [
        (lambda cell, table, number: cell._lock, lambda cell, table, number: cell.set(1)),
        (lambda cell, table, number: cell._lock, lambda cell, table, number: cell.cas(0, 1)),
        (lambda cell, table, number: table._lock, lambda cell, table, number: table.set("k", 1)),
        (lambda cell, table, number: table._lock, lambda cell, table, number: table.entries()),
        (lambda cell, table, number: number._lock, lambda cell, table, number: number.add(1)),
        (lambda cell, table, number: number._lock, lambda cell, table, number: number.cas(0, 1)),
    ],
)
async def test_shared_state_changes_only_under_its_lock(lock: Any, operation: Any) -> None:
    async with Runtime():
        things = shared_cell("c", initial=0), shared_map("m"), atomic(0)
        thread = threading.Thread(target=operation, args=things)

        with lock(*things):
            thread.start()
            thread.join(0.05)
            assert thread.is_alive()

        thread.join(10)
        assert not thread.is_alive()


async def test_a_thread_wakes_the_loop_the_safe_way() -> None:
    # In debug mode the loop refuses to be touched by another thread.
    asyncio.get_running_loop().set_debug(True)
    async with Runtime():
        ch, held = channel("c"), await sync_mutex_acquire("k")
        assert held is not None
        received = asyncio.ensure_future(ch.receive())
        granted = asyncio.ensure_future(sync_mutex_acquire("k"))
        await asyncio.sleep(0)

        thread = threading.Thread(target=lambda: (ch.try_send("hello"), held.release()))
        thread.start()

        assert await received == "hello"
        assert await granted is not None
        thread.join(10)


@pytest.mark.parametrize(
    ("acquire", "first", "then"),
    [
        (sync_mutex_acquire, (), ()),
        (sync_gate_acquire, (1,), (1,)),
        (sync_semaphore_acquire, (2,), (2, 2)),
        (sync_rwlock_acquire, ("read",), ("write",)),
    ],
)
async def test_Y7_a_thread_that_asks_again_for_what_it_holds_is_told_at_once(
    acquire: Any, first: tuple[Any, ...], then: tuple[Any, ...]
) -> None:
    def work() -> bool:
        held = from_thread(acquire, "k", *first)
        with pytest.raises(MutexReentered, match="HARN-ORC-011"):
            from_thread(acquire, "k", *then)
        return bool(held.release())

    async with Runtime():
        assert await spawn(work)
        assert await (await (await pool_create()).submit(work))


async def test_Y7_a_task_that_a_thread_starts_is_another_one() -> None:
    def work() -> None:
        held: Any = from_thread(sync_mutex_acquire, "k")
        child = from_thread(spawn, sync_mutex_acquire, "k")
        assert not child.done()
        held.release()
        from_thread(child.wait)

    async with Runtime():
        await spawn(work)

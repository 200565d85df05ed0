"""Named permits: order, timeouts, re-entry, release, counters."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

from harn import (
    AcquireTimeout,
    InvalidOption,
    MutexReentered,
    Permit,
    Runtime,
    SyncMetrics,
    channel,
    defer,
    disown,
    drop,
    owned,
    parallel,
    scope,
    spawn,
    sync_gate_acquire,
    sync_metrics,
    sync_mutex_acquire,
    sync_release,
    sync_rwlock_acquire,
    sync_semaphore_acquire,
)
from harn.sync import named_permits
from harn.sync.named_permits import Kind
from harn.sync.permit_queue import PermitQueue
from harn.testing import FakeClock


async def settle(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def metrics(kind: Kind, key: str = "k") -> SyncMetrics:
    found = sync_metrics(kind, key)
    assert found
    return found


async def acquire(kind: Kind, timeout: Any = None, key: str = "k", **more: Any) -> Permit | None:
    match kind:
        case "mutex":
            waiting = sync_mutex_acquire(key, timeout, **more)
        case "semaphore":
            waiting = sync_semaphore_acquire(key, 1, timeout=timeout, **more)
        case "gate":
            waiting = sync_gate_acquire(key, 1, timeout, **more)
        case _:
            waiting = sync_rwlock_acquire(key, "write", timeout, **more)
    permit: Permit | None = await waiting
    return permit


KINDS = ("mutex", "semaphore", "gate", "rwlock")


@pytest.mark.parametrize("kind", KINDS)
async def test_Y1_Y2_one_at_a_time_and_in_order(runtime: Runtime, kind: Kind) -> None:
    order: list[int] = []
    inside = 0

    async def work(n: int) -> None:
        nonlocal inside
        permit = await acquire(kind)
        assert permit is not None
        inside += 1
        assert inside == 1
        order.append(n)
        await settle(2)
        inside -= 1
        permit.release()

    async with scope() as s:
        for n in range(10):
            s.spawn(work, n)

    assert order == list(range(10))


@pytest.mark.parametrize("kind", KINDS)
async def test_Y5_the_first_release_is_true_the_second_false(runtime: Runtime, kind: Kind) -> None:
    permit = await acquire(kind)
    assert permit is not None

    assert (sync_release(permit), sync_release(permit), permit.release()) == (True, False, False)
    assert metrics(kind).current_held == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_Y4_a_timeout_is_none(runtime: Runtime, clock: FakeClock, kind: Kind) -> None:
    held = await acquire(kind)
    waiting = asyncio.ensure_future(acquire(kind, "5s"))
    await settle()

    await clock.advance("5s")

    assert await waiting is None
    assert await acquire(kind, 0) is None
    found = metrics(kind)
    assert (found.timeout_count, found.max_queue_depth, found.current_queue_depth) == (2, 1, 0)
    assert held is not None
    assert held.release()
    assert await acquire(kind, 0) is not None


@pytest.mark.parametrize("kind", KINDS)
async def test_Y4_a_timeout_of_a_required_permit_is_an_error(
    runtime: Runtime, clock: FakeClock, kind: Kind
) -> None:
    held = await acquire(kind)
    waiting = asyncio.ensure_future(acquire(kind, "5s", required=True))
    await settle()

    await clock.advance("5s")

    with pytest.raises(AcquireTimeout, match=f"{kind} 'k' was not granted within 5 s"):
        await waiting
    with pytest.raises(TimeoutError, match="was not granted at once"):
        await acquire(kind, 0, required=True)
    found = metrics(kind)
    assert (found.timeout_count, found.current_queue_depth) == (2, 0)
    assert held is not None and held.release()
    async with await acquire(kind, "5s", required=True) as permit:  # type: ignore[union-attr]
        assert permit.kind == kind


async def test_required_is_true_or_false(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="required"):
        await acquire("gate", 1, required="yes")


@pytest.mark.parametrize("kind", KINDS)
async def test_Y7_asking_again_without_a_timeout_is_an_error(runtime: Runtime, kind: Kind) -> None:
    await acquire(kind)

    with pytest.raises(MutexReentered, match="HARN-ORC-011"):
        await acquire(kind)

    assert metrics(kind).current_queue_depth == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_Y7_a_child_task_is_not_the_same_task(runtime: Runtime, kind: Kind) -> None:
    held = await acquire(kind)
    child, plain = spawn(acquire, kind), asyncio.ensure_future(acquire(kind))
    await settle()
    assert not child.done()
    assert not plain.done()

    assert held is not None
    held.release()
    got = await child
    await settle()

    # The child's permit went back with the child, so the plain task has its turn.
    assert got.released
    assert await plain is not None


async def test_Y7_a_plain_child_that_holds_does_not_make_its_parent_re_enter(
    runtime: Runtime,
) -> None:
    held = await asyncio.ensure_future(sync_mutex_acquire("k"))
    waiting = spawn(sync_mutex_acquire, "k")
    mine = asyncio.ensure_future(asyncio.sleep(0))
    await mine

    async def parent_asks() -> Permit | None:
        return await sync_mutex_acquire("k", timeout="1s")

    assert held is not None
    held.release()
    await waiting

    assert await parent_asks() is not None


async def test_a_reader_that_asks_to_write_is_told_at_once(runtime: Runtime) -> None:
    await sync_rwlock_acquire("k", "read")

    with pytest.raises(MutexReentered, match="holds a read lock and asks for the write lock"):
        await sync_rwlock_acquire("k", "write")


async def test_a_writer_that_asks_to_read_is_told_at_once(runtime: Runtime) -> None:
    await sync_rwlock_acquire("k", "write")

    with pytest.raises(MutexReentered):
        await sync_rwlock_acquire("k", "read")


async def test_a_reader_may_read_again(runtime: Runtime) -> None:
    a = await sync_rwlock_acquire("k", "read")
    b = await sync_rwlock_acquire("k", "read")

    assert metrics("rwlock").current_held == 2
    assert a is not None
    assert b is not None
    assert (a.release(), b.release()) == (True, True)


async def test_a_reader_behind_a_writer_that_waits_for_it_is_told_at_once(
    runtime: Runtime,
) -> None:
    await sync_rwlock_acquire("k", "read")
    spawn(sync_rwlock_acquire, "k", "write")
    await settle()

    with pytest.raises(MutexReentered, match="another task waits for"):
        await sync_rwlock_acquire("k", "read")


async def test_too_many_permits_of_a_semaphore_are_told_at_once(runtime: Runtime) -> None:
    await sync_semaphore_acquire("k", 3, permits=2)
    await sync_semaphore_acquire("k", 3)

    with pytest.raises(MutexReentered, match="3 of 3 permits"):
        await sync_semaphore_acquire("k", 3)


async def test_Y2_a_waiting_writer_holds_back_later_readers(runtime: Runtime) -> None:
    order: list[str] = []

    async def enter(name: str, mode: Any) -> None:
        async with await sync_rwlock_acquire("k", mode):
            order.append(name)
            await settle(2)

    async with scope() as s:
        for name, mode in (("r1", "read"), ("r2", "read"), ("w", "write"), ("r3", "read")):
            s.spawn(enter, name, mode)
        await settle(3)
        assert order == ["r1", "r2"]

    assert order == ["r1", "r2", "w", "r3"]


async def test_Y2_a_request_for_many_is_not_overtaken(runtime: Runtime) -> None:
    held = await sync_semaphore_acquire("k", 3, permits=2)
    big = spawn(sync_semaphore_acquire, "k", 3, 3)
    await settle()

    assert await sync_semaphore_acquire("k", 3, timeout=0) is None

    assert held is not None
    held.release()
    got = await big
    assert got and got.permits == 3


async def test_a_timed_out_head_lets_those_behind_it_pass(
    runtime: Runtime, clock: FakeClock
) -> None:
    await sync_semaphore_acquire("k", 3, permits=2)
    big = asyncio.ensure_future(sync_semaphore_acquire("k", 3, 3, timeout="1s"))
    await settle()
    small = spawn(sync_semaphore_acquire, "k", 3, 1)
    await settle()

    await clock.advance("1s")

    assert await big is None
    got = await small
    assert got and got.permits == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: sync_semaphore_acquire("k", 2), lambda: sync_semaphore_acquire("k", 3)),
        (lambda: sync_gate_acquire("k", 2), lambda: sync_gate_acquire("k", 1)),
    ],
)
async def test_Y6_another_capacity_is_refused(runtime: Runtime, first: Any, second: Any) -> None:
    await first()

    with pytest.raises(InvalidOption, match=r"2, which .* was opened with"):
        await second()


@pytest.mark.parametrize(
    "call",
    [
        lambda: sync_semaphore_acquire("k", 2, permits=3),
        lambda: sync_semaphore_acquire("k", 0),
        lambda: sync_semaphore_acquire("k", 2, permits=0),
        lambda: sync_semaphore_acquire("k", True),
        lambda: sync_gate_acquire("k", 0),
        lambda: sync_gate_acquire("k", 1.5),  # type: ignore[call-overload]
        lambda: sync_rwlock_acquire("k", "reed"),  # type: ignore[call-overload]
        lambda: sync_mutex_acquire(""),
        lambda: sync_mutex_acquire(1),  # type: ignore[call-overload]
        lambda: sync_mutex_acquire([]),  # type: ignore[call-overload]
        lambda: sync_gate_acquire([], 1),  # type: ignore[call-overload]
    ],
)
async def test_Y6_wrong_options_are_refused_at_once(runtime: Runtime, call: Any) -> None:
    with pytest.raises(InvalidOption):
        await call()


async def test_a_bad_timeout_is_refused_without_a_trace(runtime: Runtime) -> None:
    await sync_mutex_acquire("k")

    with pytest.raises(InvalidOption, match="timeout"):
        await sync_mutex_acquire("k", timeout=-1)

    assert metrics("mutex").current_queue_depth == 0


def test_releasing_what_is_no_permit_is_refused() -> None:
    with pytest.raises(InvalidOption, match="permit"):
        sync_release(None)  # type: ignore[arg-type]


async def test_Y9_a_permit_goes_back_with_its_scope(runtime: Runtime) -> None:
    async with scope():
        await sync_mutex_acquire("k")
        async with scope():
            await sync_gate_acquire("k", 1)
        assert metrics("gate").current_held == 0
        assert metrics("mutex").current_held == 1

    assert metrics("mutex").current_held == 0


@pytest.mark.parametrize("way", ["return", "break", "raise", "cancel"])
async def test_Y9_on_every_way_out(runtime: Runtime, way: str) -> None:
    async def inside() -> None:
        while True:
            async with scope():
                await sync_mutex_acquire("k")
                if way == "return":
                    return
                if way == "break":
                    break
                if way == "raise":
                    raise ValueError(way)
                await asyncio.sleep(3600)

    task = asyncio.ensure_future(inside())
    await settle()
    task.cancel()
    await asyncio.wait([task])

    assert metrics("mutex").current_held == 0
    assert metrics("mutex").release_count == 1


async def test_Y9_a_permit_goes_back_with_its_task(runtime: Runtime) -> None:
    permit = await spawn(sync_mutex_acquire, "k")

    assert permit and permit.released
    assert permit.release() is False


async def test_an_early_release_leaves_nothing_in_the_frame(runtime: Runtime) -> None:
    async with scope():
        for _ in range(1000):
            permit = await sync_mutex_acquire("k")
            assert permit is not None
            permit.release()

        from harn.current import current_frame

        assert not current_frame().cleanups


async def test_with_and_async_with_release(runtime: Runtime) -> None:
    permit = await sync_mutex_acquire("k")
    assert permit is not None
    with permit as same:
        assert same is permit
    assert permit.released

    async with await sync_mutex_acquire("k") as again:
        assert not again.released
    assert again.released


async def test_Y5_another_task_may_release(runtime: Runtime) -> None:
    permit = await sync_mutex_acquire("k")

    async def other() -> bool:
        assert permit is not None
        return permit.release()

    assert await spawn(other) is True


async def test_Y8_the_counters_add_up(runtime: Runtime, clock: FakeClock) -> None:
    held = await sync_mutex_acquire("k")
    timed = asyncio.ensure_future(sync_mutex_acquire("k", "1s"))
    doomed = asyncio.ensure_future(sync_mutex_acquire("k", "9s"))
    served = asyncio.ensure_future(sync_mutex_acquire("k", "9s"))
    await settle()
    await clock.advance("2s")
    doomed.cancel()
    await settle()
    assert held is not None
    held.release()
    last = await served
    await clock.advance("3s")

    found = metrics("mutex")

    assert await timed is None
    assert found.as_dict() == {
        "kind": "mutex",
        "key": "k",
        "capacity": 1,
        "acquisition_count": 2,
        "timeout_count": 1,
        "cancellation_count": 1,
        "release_count": 1,
        "current_held": 1,
        "current_queue_depth": 0,
        "max_queue_depth": 3,
        "total_wait_ms": 1000 + 2000 + 2000,
        "total_held_ms": 2000,
    }
    assert last is not None
    assert last.release()
    assert metrics("mutex").total_held_ms == 5000


async def test_Y8_the_counters_add_up_without_a_timeout(runtime: Runtime, clock: FakeClock) -> None:
    held = await sync_mutex_acquire("k")
    doomed = asyncio.ensure_future(sync_mutex_acquire("k"))
    served = asyncio.ensure_future(sync_mutex_acquire("k"))
    await settle()
    await clock.advance("1s")
    doomed.cancel()
    await settle()
    await clock.advance("1s")
    assert held is not None
    held.release()
    last = await served

    found = metrics("mutex")

    assert last is not None
    assert (found.acquisition_count, found.release_count, found.cancellation_count) == (2, 1, 1)
    assert (found.current_held, found.current_queue_depth, found.max_queue_depth) == (1, 0, 2)
    assert (found.total_wait_ms, found.total_held_ms) == (1000 + 2000, 2000)


async def test_metrics_by_kind_by_key_and_of_nothing(runtime: Runtime) -> None:
    await sync_mutex_acquire("a")
    await sync_gate_acquire("a", 2)
    await sync_gate_acquire("b", 2)

    assert sync_metrics("gate", "nobody") is None
    everything, gates, named_a = sync_metrics(), sync_metrics("gate"), sync_metrics(key="a")
    assert isinstance(everything, list)
    assert isinstance(gates, list)
    assert isinstance(named_a, list)
    assert len(everything) == 3
    assert [each.key for each in gates] == ["a", "b"]
    assert [each.kind for each in named_a] == ["mutex", "gate"]
    with pytest.raises(InvalidOption, match="did you mean 'semaphore'"):
        sync_metrics("semafore")  # type: ignore[call-overload]


async def test_a_writer_counts_as_one(runtime: Runtime) -> None:
    await sync_rwlock_acquire("k", "write")

    assert metrics("rwlock").current_held == 1
    assert metrics("rwlock").capacity is None


async def test_keys_made_up_on_the_fly_do_not_pile_up(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_permits, "MOST_IDLE", 100)
    await sync_mutex_acquire("kept")

    for n in range(1000):
        async with await sync_mutex_acquire(f"key:{n}"):
            pass

    known = sync_metrics("mutex")
    assert isinstance(known, list)
    assert len(known) <= 101
    assert metrics("mutex", "kept").current_held == 1
    assert sync_metrics("mutex", "key:999") is not None


async def test_two_runtimes_share_no_permit(runtime: Runtime) -> None:
    await sync_mutex_acquire("k")

    async with Runtime():
        assert await sync_mutex_acquire("k", timeout=0) is not None


async def test_drop_and_owned_know_channels_and_permits(runtime: Runtime) -> None:
    permit, ch = await sync_mutex_acquire("k"), channel("log", 64)
    assert permit is not None

    await drop(permit)
    await drop(ch)
    assert permit.released
    assert ch.closed

    async with scope():
        mine, other = owned(channel("log")), owned(await sync_mutex_acquire("k"))
    assert mine.closed
    assert other is not None
    assert other.released


@pytest.mark.parametrize("asked", [False, True])
async def test_a_disowned_permit_outlives_its_scope(runtime: Runtime, asked: bool) -> None:
    async def enter() -> Permit:
        async with scope():
            permit = await sync_mutex_acquire("k")
            assert permit is not None
            if asked:
                owned(permit)
            async with scope():
                kept = disown(permit)
        return kept

    permit = await enter()

    assert await sync_mutex_acquire("k", timeout=0) is None
    assert permit.release()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_disowned_permit_is_not_held_by_the_next_item_on_the_same_worker(
    runtime: Runtime, kind: Kind
) -> None:
    passed_on: list[Permit | None] = []

    async def work(n: int) -> None:
        if n == 0:
            passed_on.append(disown(await acquire(kind)))
        else:
            await acquire(kind)  # would be a re-entry if the two were one task

    both = asyncio.ensure_future(parallel(2, work, max_concurrent=1))
    await settle()
    assert sync_release(passed_on[0])  # type: ignore[arg-type]

    await both
    assert (metrics(kind).acquisition_count, metrics(kind).current_held) == (2, 0)


async def test_permits_unwind_in_turn_with_defers(runtime: Runtime) -> None:
    seen: list[int] = []

    def note() -> None:
        seen.append(metrics("mutex").current_held)

    async with scope():
        defer(note)
        await sync_mutex_acquire("k")
        defer(note)

    assert seen == [1, 0]


@pytest.mark.parametrize(
    "acquire",
    [
        lambda: sync_semaphore_acquire("k", 2, 2),
        lambda: sync_gate_acquire("k", 1),
        lambda: sync_rwlock_acquire("k", "write"),
        lambda: sync_mutex_acquire("k", timeout="1h"),
    ],
    ids=["semaphore", "gate", "rwlock", "mutex"],
)
async def test_a_permit_released_by_a_finaliser_while_a_caller_joins_the_queue_is_granted(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, acquire: Any
) -> None:
    # A finaliser runs wherever the collector does: here, as the caller makes its future.
    async def take() -> Any:
        return disown(await acquire())

    abandoned = await spawn(take)

    def collecting(*, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        abandoned.release()
        return asyncio.Future(loop=loop)

    monkeypatch.setattr(importlib.import_module("harn.sync.permit_queue"), "Future", collecting)
    waiting = asyncio.ensure_future(acquire())
    await settle()

    assert waiting.done()
    assert not (await waiting).released


async def test_every_test_here_runs_with_the_shortcuts_and_without_them(
    request: pytest.FixtureRequest,
) -> None:
    is_plain = request.node.callspec.params["permit_path"] == "plain"

    assert (PermitQueue.pass_on.__module__ != "harn.sync.permit_queue") is is_plain

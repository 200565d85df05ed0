"""parallel, each, settle, race: order, caps, failures, cancels."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import harn
from harn import (
    Err,
    InvalidOption,
    Ok,
    RaceFailed,
    Runtime,
    TaskCancelled,
    parallel,
    parallel_each,
    parallel_race,
    parallel_settle,
    runtime_context,
)


class Boom(Exception):
    pass


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def backwards(n: int) -> int:
    await turns(20 - n)
    return n * 10


async def test_N6_results_are_in_the_order_of_the_items(runtime: Runtime) -> None:
    for cap in (0, 1, 2, 100, -5):
        assert await parallel(5, backwards, cap) == [0, 10, 20, 30, 40]
        assert await parallel_each([3, 1, 2], backwards, cap) == [30, 10, 20]
    assert await parallel(0, backwards) == []
    assert await parallel(-3, backwards) == []
    assert await parallel_each([], backwards, 2) == []


async def test_items_may_be_a_generator_or_an_async_one(runtime: Runtime) -> None:
    async def source() -> AsyncIterator[int]:
        for n in range(5):
            await asyncio.sleep(0)
            yield n

    for cap in (0, 2):
        assert await parallel_each((n for n in range(5)), backwards, cap) == [0, 10, 20, 30, 40]
        assert await parallel_each(source(), backwards, cap) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("cap", [1, 2, 7])
@pytest.mark.parametrize("source", ["list", "async"])
async def test_N6_max_concurrent_is_a_true_cap_and_is_used(
    runtime: Runtime, cap: int, source: str
) -> None:
    running, most = 0, 0

    async def work(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await turns(n % 4 + 1)
        running -= 1

    async def feed() -> AsyncIterator[int]:
        for n in range(50):
            yield n

    await parallel_each(feed() if source == "async" else range(50), work, cap)

    assert most == cap


async def test_an_item_is_pulled_only_when_there_is_room_for_it(runtime: Runtime) -> None:
    pulled: list[int] = []
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def source() -> Iterator[int]:
        for n in range(10):
            pulled.append(n)
            yield n

    async def work(n: int) -> None:
        await asyncio.shield(gate)

    running = asyncio.create_task(parallel_each(source(), work, 3))
    await turns(20)
    assert pulled == [0, 1, 2]

    gate.set_result(None)
    await running
    assert pulled == list(range(10))


@pytest.mark.parametrize("wrong", [True, 1.5, "3", None])
async def test_a_cap_that_is_no_whole_number_is_refused(runtime: Runtime, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="max_concurrent"):
        await parallel_each([1], backwards, wrong)
    with pytest.raises(InvalidOption, match="n="):
        await parallel(wrong, backwards)


async def test_what_cannot_be_iterated_or_called_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="items=3"):
        await parallel_each(3, backwards)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="fn=3"):
        await parallel_each([1], 3)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="isolation"):
        await parallel_each([1], backwards, isolation="loop")  # type: ignore[call-overload]


@pytest.mark.parametrize("cap", [0, 3])
async def test_the_first_failure_cancels_and_awaits_the_rest(runtime: Runtime, cap: int) -> None:
    begun, tidied = [], []

    async def work(n: int) -> None:
        begun.append(n)
        if n == 1:
            await turns(2)
            raise Boom(f"item {n}")
        try:
            await forever()
        finally:
            await turns()
            tidied.append(n)

    with pytest.raises(Boom, match="item 1"):
        await parallel_each(range(6), work, cap)

    assert sorted(tidied) == [n for n in begun if n != 1]
    if cap:
        assert begun == [0, 1, 2], "queued items must never start"


async def test_of_failures_in_one_moment_the_lowest_index_wins_and_the_others_are_notes(
    runtime: Runtime,
) -> None:
    gates = [asyncio.get_running_loop().create_future() for _ in range(4)]

    async def work(n: int) -> None:
        try:
            await gates[n]
        except asyncio.CancelledError:
            raise Boom("late") from None
        raise Boom(f"item {n}")

    running = asyncio.create_task(parallel(4, work))
    await turns()
    for n in (3, 1, 2):
        gates[n].set_result(None)
    with pytest.raises(Boom, match="item 1") as caught:
        await running

    assert caught.value.__notes__ == [
        "also: Boom: item 3",
        "also: Boom: item 2",
        "also: Boom: late",
    ]


async def test_a_source_that_fails_ends_the_call_with_its_error(runtime: Runtime) -> None:
    cancelled = []

    def source() -> Iterator[int]:
        yield 0
        yield 1
        raise Boom("source")

    async def work(n: int) -> None:
        try:
            await (forever() if n == 0 else turns())
        except asyncio.CancelledError:
            cancelled.append(n)
            raise

    for cap in (0, 1, 2):
        with pytest.raises(Boom, match="source"):
            await parallel_each(source(), work if cap == 2 else _noop, cap)
    assert cancelled == [0]


async def _noop(n: int) -> None:
    await turns(1)


async def test_settle_keeps_every_outcome_in_order(runtime: Runtime) -> None:
    async def work(n: int) -> int:
        await turns(5 - n)
        if n == 2:
            raise Boom("boom")
        return n * 10

    for cap in (0, 1, 2):
        outcome = await parallel_settle([1, 2, 3], work, cap)

        assert (outcome.succeeded, outcome.failed) == (2, 1)
        assert outcome.results[0] == Ok(10)
        assert isinstance(harn.unwrap_err(outcome.results[1]), Boom)
        assert outcome.as_dict() == {
            "results": [{"ok": 10}, {"err": "boom"}, {"ok": 30}],
            "succeeded": 2,
            "failed": 1,
        }


async def test_the_dict_of_outcomes_is_text_that_json_can_hold(runtime: Runtime) -> None:
    def fail(text: str) -> None:
        raise Boom(text)

    outcome = await parallel_settle(["a\ud800b", ""], fail)

    assert outcome.as_dict()["results"] == [{"err": "a?b"}, {"err": "Boom"}]


@pytest.mark.parametrize("cap", [0, 2])
async def test_N6_settle_never_eats_a_cancel(runtime: Runtime, cap: int) -> None:
    tidied = []

    async def work(n: int) -> None:
        try:
            await forever()
        finally:
            await turns(2)
            tidied.append(n)

    running = asyncio.create_task(parallel_settle(range(5), work, cap))
    await turns()
    running.cancel()
    await asyncio.wait((running,))

    assert running.cancelled()
    assert len(tidied) == (cap or 5)


async def test_an_item_that_was_cancelled_by_itself_is_a_failure_not_a_cancel(
    runtime: Runtime,
) -> None:
    async def work(n: int) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    for cap in (0, 1):
        outcome = await parallel_settle([1], work, cap)
        assert isinstance(harn.unwrap_err(outcome.results[0]), TaskCancelled)
        with pytest.raises(TaskCancelled):
            await parallel_each([1], work, cap)


@pytest.mark.parametrize("cap", [0, 3])
async def test_N6_a_race_gives_the_first_success_and_awaits_its_losers(
    runtime: Runtime, cap: int
) -> None:
    tidied = []

    async def work(n: int) -> Any:
        try:
            await turns(n)
            if n == 1:
                raise Boom
            if n == 2:
                return Err("no")
            if n == 3:
                return Ok(None)
            return n
        finally:
            await turns(2)
            tidied.append(n)

    assert await parallel_race([1, 2, 3, 50], work, cap) is None
    assert set(tidied) >= {1, 2, 3}
    assert await parallel_race([50, 4], work, cap) == 4


async def test_a_race_that_all_lose_tells_each_reason_by_index(runtime: Runtime) -> None:
    async def work(n: int) -> Any:
        await turns(5 - n)
        if n == 1:
            return Err("first")
        raise Boom(f"error {n}")

    with pytest.raises(
        RaceFailed, match=r"all 3 task\(s\) failed: first; error 2; error 3"
    ) as all_:
        await parallel_race([1, 2, 3], work)

    assert all_.value.errors[0] == "first"
    assert isinstance(all_.value.errors[2], Boom)
    with pytest.raises(InvalidOption, match="expected at least one item"):
        await parallel_race([], work)


async def test_the_context_of_each_member_shows_group_and_name(runtime: Runtime) -> None:
    async def who(_: int) -> tuple[str, str | None, str | None, str]:
        context = runtime_context()
        return (
            context.task_id,
            context.parent_task_id,
            context.task_group_id,
            context.task_name,
        )

    for cap in (0, 1):
        group = f"task_root:parallel:{cap + 1}"
        assert await parallel(2, who, cap) == [
            (f"{group}:0", "task_root", group, "parallel"),
            (f"{group}:1", "task_root", group, "parallel"),
        ]
    group = "task_root:parallel_each:1"
    assert await parallel_each([7], who) == [(f"{group}:0", "task_root", group, "parallel each")]
    group = "task_root:parallel_settle:1"
    settled = await parallel_settle([7], who)
    assert settled.results == [Ok((f"{group}:0", "task_root", group, "parallel settle"))]
    group = "task_root:parallel_race:1"
    won = await parallel_race([7], who)
    assert won == (f"{group}:0", "task_root", group, "parallel race")
    stream = harn.parallel_each_stream([7], who, 1)
    group = "task_root:parallel_each_stream:1"
    name = "parallel each as stream"
    assert [each async for each in stream] == [(f"{group}:0", "task_root", group, name)]


async def test_what_an_item_sets_in_its_context_stays_with_it(runtime: Runtime) -> None:
    colour = contextvars.ContextVar("colour", default="none")

    async def paint(n: int) -> str:
        before = colour.get()
        colour.set(f"colour {n}")
        await asyncio.sleep(0)
        assert colour.get() == f"colour {n}"
        return before

    assert await parallel(4, paint, 2) == ["none"] * 4
    assert colour.get() == "none"


async def test_each_item_has_cleanups_of_its_own(runtime: Runtime) -> None:
    order: list[Any] = []

    async def work(n: int) -> None:
        harn.defer(order.append, ("closed", n))
        order.append(("open", n))

    await parallel(2, work, 1)

    assert order == [("open", 0), ("closed", 0), ("open", 1), ("closed", 1)]


async def test_plain_functions_run_on_threads_within_the_cap(runtime: Runtime) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work(n: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
        return n

    assert await parallel_each(range(20), work, 3) == list(range(20))
    assert most <= 3
    assert threading.current_thread().name not in await parallel(
        3, lambda _: threading.current_thread().name
    )


async def test_the_tasks_under_way_can_be_seen(runtime: Runtime) -> None:
    from harn.tasks import AwaitingTasks

    async def main() -> None:
        await parallel(3, lambda _: forever(), isolation="task")

    handle = harn.spawn(main)
    await turns()

    waiting = handle._task.waiting
    assert isinstance(waiting, AwaitingTasks)
    assert len(list(waiting.tasks)) == 3
    assert len(runtime.tasks) == 5
    await harn.drop(handle)
    assert handle._task.waiting is None
    assert runtime.tasks == {runtime.root}

"""A graceful stop is told once, in a wait of ours, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    Err,
    Ok,
    Runtime,
    TaskCancelled,
    cancel_graceful,
    channel,
    drain,
    is_cancelled,
    parallel,
    pool_create,
    scope,
    sleep,
    spawn,
    worker_queue,
)
from harn.current import current_frame
from harn.graceful_stop import asked, request_stop, shielded
from harn.testing import fresh_runtime
from tests.fake_clock import fake_clock
from tests.sweep import stop_at

Case = Callable[[], Awaitable[Any]]


async def later(act: Callable[[], Any], turns: int = 3) -> None:
    """Do something after a few turns of the loop, so that the case waits first."""
    for _ in range(turns):
        await asyncio.sleep(0)
    done = act()
    if asyncio.iscoroutine(done):
        await done


# -- the waits of the library, each with a task that will end it ----------------------------------


async def slept() -> None:
    await sleep("1s")


async def sent() -> None:
    full = channel("full", 1)
    full.try_send(1)
    spawn(later, full.receive)
    await full.send(2)
    assert len(full) == 1


async def received() -> None:
    empty = channel("empty")
    spawn(later, lambda: empty.send("value"))
    assert await empty.receive() == "value"


async def selected() -> None:
    first, second = channel("first"), channel("second")
    spawn(later, lambda: second.send("value"))
    found = await harn.channel_select([first, second])
    assert found and found.index == 1


async def selected_with_timeout() -> None:
    assert await harn.channel_select([channel("a"), channel("b")], timeout="1s") is None


async def mail_received() -> None:
    box = harn.mailbox_open("box")
    spawn(later, lambda: box.send("mail"))
    assert await box.receive() == "mail"


async def mail_sent() -> None:
    box = harn.mailbox_open("full", capacity=1)
    await box.send(1)
    spawn(later, box.receive)
    assert await box.send(2)


async def waitpoint() -> None:
    spawn(later, lambda: harn.waitpoint_complete("point", 1))
    assert (await harn.waitpoint_wait("point")).value == 1


def permit_case(acquire: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Case:
    async def case() -> None:
        async def hold() -> None:
            permit = await acquire("key", *args)
            await later(permit.release)

        spawn(hold)
        await asyncio.sleep(0)
        permit = await acquire("key", *args, **options)
        assert permit is not None
        permit.release()

    return case


async def in_mutex() -> None:
    async def hold() -> None:
        async with harn.mutex("section"):
            await later(lambda: None)

    spawn(hold)
    await asyncio.sleep(0)
    async with harn.mutex("section"):
        await sleep(0)


async def submitted() -> None:
    pool = await pool_create(name="full", max_concurrent=1, backpressure=harn.backpressure_queue(1))
    tasks = [await pool.submit(lambda: later(lambda: None)) for _ in range(2)]
    tasks.append(await pool.submit(lambda: later(lambda: None)))
    await harn.pool_wait(tasks)


async def pool_task_awaited() -> None:
    pool = await pool_create(name="quick")
    task = await pool.submit(lambda: later(lambda: None))
    await task
    assert task.result is None


async def pool_closed() -> None:
    pool = await pool_create(name="closing")
    await pool.submit(lambda: later(lambda: None))
    await pool.close()


async def handle_awaited() -> None:
    assert await spawn(later, lambda: None) is None


async def agents_awaited() -> None:
    await harn.wait_agent([spawn(later, lambda: None), spawn(later, lambda: None)])


async def scope_joined() -> None:
    async with scope():
        spawn(later, lambda: None)
        spawn(sleep, "1s")
    await sleep(0)  # the end of a scope passes a stop on; here it is told


async def parallel_done() -> None:
    await harn.parallel(3, lambda n: sleep("1s"))


async def each_done() -> None:
    await harn.parallel_each(range(5), lambda n: sleep("1s"), max_concurrent=2)


async def settled() -> None:
    await harn.parallel_settle(range(3), lambda n: sleep("1s"), max_concurrent=2)


async def raced() -> None:
    await harn.parallel_race(range(1, 4), lambda n: sleep(n))


async def streamed() -> None:
    async with harn.parallel_each_stream(range(3), lambda n: sleep("1s"), 2) as values:
        async for _ in values:
            pass


async def retried() -> None:
    failures = iter((ValueError(), ValueError()))

    async def attempt() -> str:
        await sleep("1s")
        for error in failures:
            raise error
        return "done"

    assert await harn.retry(3, attempt, backoff_ms=10) == "done"


async def within_deadline() -> None:
    async with harn.deadline("1h"):
        await sleep("1s")


async def subscribed() -> None:
    store = harn.current_runtime().event_log.store

    async def emit_to_a_waiter() -> None:
        while "news" not in store.awaited:
            await asyncio.sleep(0)
        await harn.event_log_emit("news", "greeting", "hello")

    async with scope():
        events = harn.event_log_subscribe("news")
        spawn(emit_to_a_waiter)
        assert (await anext(events)).payload == "hello"


async def limited() -> None:
    for _ in range(2):
        await harn.durable_rate_limit_acquire(key="calls", limit=1, window_ms=1000)


async def seated() -> None:
    harn.llm_rate_limit("fake", concurrency=1)

    async def hold() -> None:
        async with harn.llm_slot("fake"):
            await later(lambda: None)

    spawn(hold)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with harn.llm_slot("fake"):
        pass


async def supervised() -> None:
    async def child(context: Any) -> None:
        await later(lambda: None)

    supervisor = await harn.supervisor_start(children=[harn.Child("one", child)])
    await supervisor.wait()


async def drained() -> None:
    queue = harn.worker_queue("jobs")
    await queue.enqueue_many(range(3))
    await harn.drain("jobs", lambda job: sleep("1s"), concurrency=2)


@harn.durable(name="tests:graceful")
async def doubled(n: int) -> int:
    await sleep("1s")
    return 2 * n


async def result_awaited() -> None:
    receipt = await harn.worker_queue("calls").submit(doubled, 21)
    spawn(harn.drain, "calls")
    assert await receipt.result() == 42


async def result_awaited_in_time() -> None:
    receipt = await harn.worker_queue("calls").submit(doubled, 21)
    spawn(harn.drain, "calls")
    assert await receipt.result(timeout="1h") == 42


async def jobs_looked_at_and_changed() -> None:
    queue = harn.worker_queue("calls")
    receipt = await queue.submit(doubled, 21)
    assert await queue.pause()
    assert await queue.job(receipt.job_id) == (await queue.jobs())[0]
    assert await queue.resume()
    assert not await queue.retry(receipt.job_id)
    assert await queue.cancel(receipt.job_id)
    await slept()


async def received_on_a_thread() -> None:
    empty = channel("empty")
    spawn(later, lambda: empty.send("value"))
    await spawn(lambda: harn.from_thread(empty.receive))


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        *(slept, sent, received, selected, selected_with_timeout, mail_received, mail_sent),
        *(waitpoint, in_mutex, submitted, pool_task_awaited, pool_closed, handle_awaited),
        *(agents_awaited, scope_joined, parallel_done, each_done, settled, raced, streamed),
        *(retried, within_deadline, subscribed, limited, seated, supervised, drained),
        *(result_awaited, result_awaited_in_time, jobs_looked_at_and_changed),
        received_on_a_thread,
    )
} | {
    "mutex_acquired": permit_case(harn.sync_mutex_acquire),
    "mutex_acquired_in_time": permit_case(harn.sync_mutex_acquire, timeout="1h"),
    "read_lock": permit_case(harn.sync_rwlock_acquire, "read"),
    "write_lock": permit_case(harn.sync_rwlock_acquire, "write"),
    "semaphore": permit_case(harn.sync_semaphore_acquire, 1),
    "gate": permit_case(harn.sync_gate_acquire, 1, timeout="1h"),
}


async def one_stop(case: Case, k: int, race: bool, state: Path, told: list[BaseException]) -> bool:
    """Run *case*, stopped at its *k*-th suspension; return whether it got that far."""
    before = len(told)
    requested: list[int] = []

    async def counted() -> Any:
        try:
            return await case()
        except TaskCancelled as error:
            told.append(error)
            raise

    async with fresh_runtime(autojump=True, state_dir=state) as runtime:
        handle = spawn(stop_at, counted(), k, race, requested)
        outcome = (
            await asyncio.wait_for(handle._join_within(600.0, runtime.clock), 20)
            and handle._outcome()
        )

        task = handle._task
        if requested and told[before:]:
            assert isinstance(outcome, Err)
            assert handle.status == "cancelled"
            assert told[before:] == [task.stop_raised]
        elif isinstance(outcome, Err):
            raise outcome.error
        for _ in range(10):  # until the other side of the case has ended, too
            await asyncio.sleep(0)
        assert not [each for each in harn.sync_metrics() if each.current_held]
        assert not any(len(pool.snapshot().tasks) > 3 for pool in harn.pool_list())
    assert task not in asked
    return bool(requested)


@pytest.mark.parametrize("name", CASES)
async def test_a_stop_at_every_await_point_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    told = list[BaseException]()
    for race in (False, True):
        await stop_at_every_point(CASES[name], race, tmp_path / str(race), told)
    for again in range(5):  # a store's thread may be so late that the case never waits
        if not told:
            await stop_at_every_point(CASES[name], False, tmp_path / f"again-{again}", told)
    assert told, "no run was told of the stop"


async def stop_at_every_point(
    case: Case, race: bool, state: Path, told: list[BaseException]
) -> None:
    k = 1
    while await one_stop(case, k, race, state / str(k), told):
        k += 1
        assert k < 500


# -- what a stop means -----------------------------------------------------------------------------


async def test_a_task_that_lets_the_stop_pass_ends_cancelled(runtime: Runtime) -> None:
    handle = spawn(sleep, "1h")
    await asyncio.sleep(0)

    result = await cancel_graceful(handle)

    assert isinstance(result, Err)
    assert isinstance(result.error, TaskCancelled)
    assert handle.status == "cancelled"


async def test_later_waits_work_so_that_a_task_can_drain_and_return(runtime: Runtime) -> None:
    inbox = channel("inbox")
    written = []

    async def actor() -> str:
        try:
            while True:
                written.append(await inbox.receive())
        except TaskCancelled:
            assert is_cancelled()
            await inbox.send("the last")
            written.append(await inbox.receive())
        return "drained"

    handle = spawn(actor)
    await inbox.send("the first")
    await asyncio.sleep(0)

    assert await cancel_graceful(handle) == Ok("drained")
    assert written == ["the first", "the last"]


async def test_a_stop_that_finds_no_wait_is_told_in_the_next_one(runtime: Runtime) -> None:
    gate = asyncio.Event()
    full = channel("full")
    full.try_send("a value")

    async def busy() -> None:
        await gate.wait()  # not a wait of ours: left alone
        await full.receive()

    handle = spawn(busy)
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(cancel_graceful(handle))
    await asyncio.sleep(0)
    gate.set()

    assert isinstance(await stopping, Err)
    assert handle.status == "cancelled"
    assert len(full) == 1


async def test_a_stop_that_came_before_a_parallel_run_leaves_no_wait_behind(
    runtime: Runtime,
) -> None:
    async def actor() -> object:
        task = current_frame().task
        request_stop(task)
        with pytest.raises(TaskCancelled):
            await parallel(1, sleep)
        return task.waiting

    assert await spawn(actor) is None


async def test_an_await_of_something_else_is_cancelled_when_the_time_is_up(
    runtime: Runtime, clock: harn.testing.FakeClock
) -> None:
    handle = spawn(asyncio.Event().wait)
    stopping = asyncio.ensure_future(cancel_graceful(handle, "2s"))
    await clock.advance("1s")
    assert not handle.done()

    await clock.advance("1s")

    assert "forcefully" in str((await stopping).error)  # type: ignore[union-attr]


async def test_the_end_of_a_scope_passes_the_stop_on_and_returns(runtime: Runtime) -> None:
    ended = []

    async def child(name: str) -> None:
        try:
            await sleep("1h")
        except TaskCancelled:
            ended.append(name)

    async def parent() -> str:
        async with scope():
            spawn(child, "one")
            spawn(child, "two")
        return "tidy"

    handle = spawn(parent)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert await cancel_graceful(handle) == Ok("tidy")
    assert ended == ["one", "two"]


async def test_cleanups_are_not_interrupted_by_a_stop(runtime: Runtime) -> None:
    done = []

    async def tidy() -> None:
        await sleep("1ms")
        done.append("tidy")

    async def work() -> None:
        async with scope():
            harn.defer(tidy)
            await sleep("1h")

    handle = spawn(work)
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(cancel_graceful(handle))
    await asyncio.sleep(0)
    await fake_clock(runtime).advance("1ms")

    assert isinstance(await stopping, Err)
    assert done == ["tidy"]


async def test_a_mailbox_that_closes_ends_an_actor_that_iterates(runtime: Runtime) -> None:
    box = harn.mailbox_open("actor")
    seen = []

    async def actor(context: Any) -> None:
        async for message in box:
            seen.append(message)

    supervisor = await harn.supervisor_start(children=[harn.Child("actor", actor)])
    await box.send("hello")
    box.close()
    state = await supervisor.wait()

    assert seen == ["hello"]
    assert state.status == "completed"
    assert state.children[0].status == "stopped"


async def test_a_thousand_waiting_tasks_stop_together(runtime: Runtime) -> None:
    quiet = channel("quiet")
    handles = [spawn(quiet.receive) for _ in range(1000)]
    await asyncio.sleep(0)

    results = await asyncio.gather(*(cancel_graceful(handle) for handle in handles))

    assert all(isinstance(result, Err) for result in results)
    assert {handle.status for handle in handles} == {"cancelled"}


# -- several waits at once ------------------------------------------------------------------------

Wait = tuple[Coroutine[Any, Any, Any], Callable[[], Any]]
"""A wait, and what ends it."""


async def gathered(waits: list[Coroutine[Any, Any, Any]]) -> None:
    await asyncio.gather(*waits)


async def on_a_channel(runtime: Runtime, turn: int) -> Wait:
    pipe = channel(f"pipe-{turn}")
    return pipe.receive(), lambda: pipe.try_send(1)


async def asleep(runtime: Runtime, turn: int) -> Wait:
    return sleep(turn + 1), lambda: fake_clock(runtime).advance("1s")


async def for_a_task(runtime: Runtime, turn: int) -> Wait:
    go = asyncio.Event()
    return spawn(go.wait).wait(), go.set


async def for_a_result(runtime: Runtime, turn: int) -> Wait:
    receipt = await worker_queue(f"jobs-{turn}").enqueue(1)
    return receipt.result(), lambda: drain(receipt.queue, lambda job: 1)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("wait", [on_a_channel, asleep, for_a_task, for_a_result])
async def test_a_stop_reaches_the_wait_that_is_left_of_several_at_once(
    runtime: Runtime, wait: Callable[[Runtime, int], Awaitable[Wait]], order: tuple[int, ...]
) -> None:
    waits = [await wait(runtime, turn) for turn in order]
    gathering = spawn(gathered, [awaited for awaited, _ in waits])
    await later(lambda: None)
    for turn in range(2):
        end = waits[order.index(turn)][1]
        await later(end)
        await later(lambda: None, turns=10)
    assert not gathering.done()

    result = await cancel_graceful(gathering, timeout="1h")

    assert isinstance(result, Err) and isinstance(result.error, TaskCancelled)
    assert not gathering._task.parked


@pytest.mark.timeout(20)
async def test_a_stop_passes_over_a_wait_that_has_just_ended(runtime: Runtime) -> None:
    older, newer = channel("older"), channel("newer")
    gathering = spawn(gathered, [older.receive(), newer.receive()])
    await later(lambda: None)

    newer.try_send(1)  # its receiver goes on in the next turn of the loop
    result = await cancel_graceful(gathering, timeout="1h")

    assert isinstance(result, Err) and isinstance(result.error, TaskCancelled)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["parallel", "scope"])
async def test_branches_that_end_first_do_not_hide_a_later_wait(
    runtime: Runtime, kind: str
) -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def branch(number: int) -> None:
        await go.wait()

    async def branches() -> None:
        if kind == "parallel":
            await parallel(1, branch)
        else:
            async with scope():
                spawn(branch, 0)
        ended.set()

    gathering = spawn(gathered, [branches(), channel("quiet").receive()])
    await later(go.set)
    await ended.wait()

    result = await cancel_graceful(gathering, timeout="1h")

    assert isinstance(result, Err) and isinstance(result.error, TaskCancelled)
    assert not gathering._task.parked


async def test_a_stop_that_was_held_back_is_raised_in_the_next_wait() -> None:
    order: list[str] = []
    inside, asked_for = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        with shielded():
            inside.set()
            await asked_for.wait()
            await sleep(0)
            order.append("inside")
        try:
            await sleep("1h")
        except TaskCancelled:
            order.append("after it")

    async with fresh_runtime(), asyncio.timeout(10):
        handle = spawn(work)
        await inside.wait()
        request_stop(handle._task)
        asked_for.set()
        await handle

    assert order == ["inside", "after it"]

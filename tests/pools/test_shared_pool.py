"""Tenant and org pools: one pool for every process, here two runtimes on one store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from pydantic import BaseModel

import harn
from harn import (
    InvalidOption,
    Pool,
    PoolBusy,
    PoolClosed,
    PoolFull,
    PoolTask,
    PoolTaskFailed,
    Runtime,
    backpressure_queue,
    fail_fast,
    fair_round_robin,
    pool_create,
    pool_wait,
    ring_buffer,
    wait_agent,
)
from harn.cli import invoke
from harn.durable_work import StepRecord
from harn.pools import leaked_slots, shared_follow
from harn.pools.shared_mirror import Mirror
from harn.pools.shared_records import DAMAGED
from harn.storage import Store
from harn.storage.leases import LeaseStore, drop_consumer
from harn.storage.log import head
from harn.storage.queue import shared_pools
from harn.topics import queue_topics
from tests.pools.shared_processes import Process, gates, held, open_held, ran, until


@harn.durable(name="tests:shared_twice")
async def twice(text: str) -> str:
    return text * 2


@harn.durable(name="tests:shared_double")
async def double(n: int) -> int:
    ran.append(n)
    return 2 * n


@harn.durable(name="tests:shared_pair")
async def pair(n: int) -> tuple[int, int]:
    return n, n


@harn.durable(name="tests:shared_gated")
async def gated(name: str) -> str:
    ran.append(name)
    await gates[name].wait()
    return name


@harn.durable(name="tests:shared_gated_again", rerun=True)
async def gated_again(name: str) -> str:
    ran.append(name)
    await gates[name].wait()
    return name


@harn.durable(name="tests:shared_steps", rerun=True)
async def in_steps(name: str) -> list[str]:
    first = await harn.step("first", note, f"{name} first")
    await gates[name].wait()
    return [first, await harn.step("second", note, f"{name} second")]


def note(what: str) -> str:
    ran.append(what)
    return what


async def test_a_closure_runs_where_it_was_submitted(processes: list[Process]) -> None:
    first, second = processes
    ours, theirs = await first.open(), await second.open()

    task = await theirs.submit(held("closure"))
    await until(lambda: ran == ["closure"])

    assert task.status == "running"
    await until(lambda: ours.size() == 1)
    [seen] = ours.snapshot().tasks
    assert (seen.id, seen.status) == (task.id, "running")
    gates["closure"].set()
    assert await task == "closure"
    await until(lambda: ours.snapshot().completed == 1)
    assert ours.snapshot().tasks[0].result == "closure"


async def test_a_durable_call_runs_in_another_process_and_its_result_comes_back(
    processes: list[Process],
) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    await second.open()

    task = await submitter.submit(double, 21)

    assert await task == 42
    assert (await pool_wait(task)).result == 42
    assert await wait_agent(task) is not None


async def test_a_result_that_is_not_json_comes_back_as_text(processes: list[Process]) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    await second.open()

    seen: Any = await (await submitter.submit(pair, 1)).wait()

    assert (seen.result, seen.result_omitted) == ("(1, 1)", True)


async def test_text_with_a_lone_surrogate_holds_no_one_up(processes: list[Process]) -> None:
    """JSON has no such text: no process could read a record that holds it."""
    first, second = processes
    submitter = await first.open(run_here=False)
    other = await second.open()

    async with asyncio.timeout(30):
        assert await (await submitter.submit(lambda: "\ud800")) == "\ud800"
        assert await (await submitter.submit(twice, "\ud800")) == "\ud800\ud800"  # not durable
        assert await (await submitter.submit(twice, "a")) == "aa"

    await until(lambda: other.snapshot().completed == 3)
    seen = [(task.result, task.result_omitted) for task in other.snapshot().tasks]
    assert seen == [(r"'\ud800'", True), (r"'\ud800\ud800'", True), ("aa", False)]


@pytest.mark.parametrize(
    ("topic", "first", "second"),
    [("", 2, DAMAGED), (".responses", DAMAGED, 4)],
)
async def test_a_damaged_record_of_a_task_harms_no_other(
    tmp_path: Path, topic: str, first: Any, second: Any
) -> None:
    path = tmp_path / "events.sqlite"
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        pool = await Process(runtime).open(run_here=False)
        async with Runtime(storage=f"sqlite:///{path}") as other:
            await Process(other).open()
            assert await (await pool.submit(double, 1)) == 2
        await pool.submit(double, 2)
        await pool.submit(double, 3)
    broken = apsw.Connection(str(path))
    broken.execute(
        "UPDATE events SET payload = x'7b7b' WHERE id IN (1, 2)"
        " AND topic_id = (SELECT topic_id FROM topics WHERE name = ?)",
        [queue_topics(pool.id).jobs + topic],
    ).fetchall()
    broken.close()

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        pool = await Process(runtime).open()
        await until(lambda: not pool.size())
        assert await (await pool.submit(double, 4)) == 8
        seen = [task.result or task.error for task in pool.snapshot().tasks]

    assert seen == [first, second, 6, 8]


class Order(BaseModel):
    n: int


class PricedOrder(Order):
    price: int


def registered(model: type[Order]) -> Callable[[Any], Awaitable[int]]:
    """Register one durable function, whose parameter is of another model at each deploy."""

    async def bill(order: Any) -> int:
        return int(order.n)

    bill.__annotations__["order"] = model
    return harn.durable(name="tests:shared_bill")(bill)


async def test_a_call_whose_stored_arguments_no_longer_fit_fails_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/events.sqlite"
    async with Runtime(storage=url) as runtime:
        pool = await Process(runtime).open(run_here=False)
        await pool.submit(registered(Order), Order(n=1))
        await pool.submit(double, 2)

    registered(PricedOrder)
    async with Runtime(storage=url) as runtime:
        pool = await Process(runtime).open()
        await until(lambda: not pool.size())
        wrong, right = pool.snapshot().tasks

    assert (wrong.status, right.result) == ("failed", 4)
    assert wrong.error is not None
    assert "tests:shared_bill" in wrong.error
    assert "price: Field required" in wrong.error


async def test_a_failure_comes_back_as_text(processes: list[Process]) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    await second.open()

    task = await submitter.submit(gated, "no such gate")

    with pytest.raises(PoolTaskFailed, match="KeyError: 'no such gate'"):
        await task
    assert (await task.wait()).stale_reason is None


async def test_closures_that_never_wait_share_workers_and_those_that_wait_all_begin(
    processes: list[Process],
) -> None:
    pool = await processes[0].open(max_concurrent=40)
    on: set[asyncio.Task[Any] | None] = set()
    together = asyncio.Barrier(20)

    async def at_once() -> None:
        on.add(asyncio.current_task())

    async def waits() -> None:
        await together.wait()

    await pool_wait(await pool.submit_many([at_once] * 20))
    assert len(on) <= 2
    ended = await pool_wait(await pool.submit_many([at_once, waits] * 20))
    assert [task.status for task in ended] == ["completed"] * 40


async def test_closures_that_end_in_one_turn_share_an_operation(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await processes[0].open(max_concurrent=200)
    works: list[shared_pools.PoolWork] = []
    work_on_pool = shared_pools.work_on_pool

    def noted(queue: str, work: shared_pools.PoolWork, new_id: Any) -> Any:
        if not any(each is work for each in works):  # a store may try an operation again
            works.append(work)
        return work_on_pool(queue, work, new_id)

    monkeypatch.setattr(shared_pools, "work_on_pool", noted)
    await pool_wait(await pool.submit_many([open_held(f"{n}") for n in range(200)]))

    assert [len(work.ends) for work in works if work.ends] == [200]


@pytest.mark.parametrize("waiting", [(), (1, 2, 5), range(12)], ids=["none", "some", "all"])
async def test_tasks_that_start_together_begin_in_the_pools_order(
    processes: list[Process], waiting: Any
) -> None:
    pool = await processes[0].open(max_concurrent=12)

    def call(n: int) -> Any:
        async def begins() -> None:
            ran.append(n)
            if n in waiting:
                await asyncio.sleep(0)

        return begins

    await pool_wait(await pool.submit_many([call(n) for n in range(12)]))

    assert ran == [*range(12)]


async def test_callers_return_after_a_simulated_restart(processes: list[Process]) -> None:
    process = processes[0]
    pool = await process.open(max_concurrent=5)

    async def restarts() -> str:
        harn.pool_simulate_restart()
        return "restarted"

    calls = [held("waits"), restarts, *(open_held(f"{n}") for n in range(4))]
    tasks = await pool.submit_many(calls)
    await until(lambda: pool._slots.state == "dropped")
    gates["waits"].set()

    ended = await asyncio.wait_for(pool_wait(tasks), 10)
    assert [task.status for task in ended] == ["completed"] * 2 + ["failed"] * 4
    assert [task.stale_reason for task in ended[2:]] == ["never_started"] * 4
    assert ran == ["waits"]


async def test_a_process_that_does_not_run_here_still_runs_its_closures(
    processes: list[Process],
) -> None:
    pool = await processes[0].open(run_here=False)

    task = await pool.submit(lambda: "here")

    assert await task == "here"


async def test_the_cap_holds_for_all_processes_together(processes: list[Process]) -> None:
    first, second = processes
    pools = [await first.open(max_concurrent=2), await second.open(max_concurrent=2)]

    tasks = [await pools[n % 2].submit(held(f"{n}")) for n in range(5)]
    await until(lambda: len(ran) == 2)
    await until(lambda: all(pool.size() == 5 for pool in pools))

    for n, task in enumerate(tasks):
        assert len(ran) == min(n + 2, 5)
        assert [each.snapshot(tasks=False).active for each in pools] != [3, 3]
        gates[ran[n]].set()
        await task.wait() if ran[n] == str(n) else None
        await until(lambda n=n: len(ran) == min(n + 3, 5))  # type: ignore[misc]
    assert [await task for task in tasks] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("queue", "order"),
    [
        ("fifo", ["0", "1", "2", "3", "4", "5"]),
        ("lifo", ["5", "4", "3", "2", "1", "0"]),
        ("priority", ["2", "5", "1", "4", "0", "3"]),
        (fair_round_robin("tenant_id"), ["0", "3", "1", "4", "2", "5"]),
    ],
    ids=["fifo", "lifo", "priority", "fair"],
)
async def test_the_order_holds_across_processes(
    processes: list[Process], queue: Any, order: list[str]
) -> None:
    pools = [await each.open(queue=queue) for each in processes]
    first = await pools[0].submit(held("first"))
    await until(lambda: ran == ["first"])

    tasks = []
    for n in range(6):
        closure = held(f"{n}")
        gates[f"{n}"].set()
        pool, tenant = pools[n % 2], "ab"[n // 3]
        tasks.append(await pool.submit(closure, priority=n % 3, tenant_id=tenant))
    gates["first"].set()
    await pool_wait([first, *tasks])

    assert ran[1:] == order


async def test_a_call_that_no_process_can_run_is_passed_over(processes: list[Process]) -> None:
    pools = [await each.open(queue="fifo", run_here=False) for each in processes]
    stuck = await pools[0].submit(double, 1)

    assert await (await pools[1].submit(lambda: "later")) == "later"
    assert stuck.status == "queued"


async def test_an_idempotency_key_leads_to_the_task_of_another_process(
    processes: list[Process],
) -> None:
    pools = [await each.open() for each in processes]

    first = await pools[0].submit(double, 1, idempotency_key="nightly")
    second = await pools[1].submit(double, 2, idempotency_key="nightly")

    assert second.id == first.id
    assert await second == 2
    assert await first == 2
    assert ran == [1]
    third = pools[1].submit_nowait(double, 3, idempotency_key="nightly")
    assert third is second


async def test_the_text_of_a_failed_task_is_short_and_the_same_in_every_process(
    processes: list[Process],
) -> None:
    async def fail() -> None:
        raise ValueError("x" * 100_000)

    pools = [await each.open() for each in processes]
    task = await pools[0].submit(fail)

    seen = await task.wait()
    await until(lambda: pools[1].snapshot().failed == 1)
    [elsewhere] = pools[1].snapshot().tasks

    assert seen.error == elsewhere.error == ("ValueError: " + "x" * 10_000)[:10_000]


async def test_settings_that_differ_are_refused_with_both(processes: list[Process]) -> None:
    first, second = processes
    pool = await first.open(queue="fifo", backpressure=backpressure_queue(5))

    with pytest.raises(InvalidOption, match=r"queue.*priority.*fifo"):
        await second.open(backpressure=backpressure_queue(5))
    with pytest.raises(InvalidOption, match="backpressure"):
        await second.open(queue="fifo")
    other = await second.open(queue="fifo", backpressure=backpressure_queue(5), max_concurrent=7)

    await until(lambda: pool.max_concurrent == 7)
    assert pool.snapshot().config["max_concurrent"] == 7
    assert other.id == pool.id == harn.pool_id("tenant", "acme", "gpu")
    assert other.created_at == pool.created_at


async def test_blocked_submitters_enter_first_come_first_served(
    processes: list[Process],
) -> None:
    pools = [
        await each.open(queue="fifo", backpressure=backpressure_queue(1)) for each in processes
    ]
    await pools[0].submit(held("running"))
    await pools[0].submit(held("queued"))
    entered: list[int] = []
    blocked = []

    for n in range(4):

        async def submit(n: int = n) -> PoolTask:
            closure = held(f"{n}")
            gates[f"{n}"].set()
            task = await pools[n % 2].submit(closure)
            entered.append(n)
            return task

        blocked.append(asyncio.create_task(submit()))
        await until(lambda n=n: pools[n % 2].snapshot(False).blocked_submitters == n + 1)  # type: ignore[misc]
    with pytest.raises(PoolFull):
        pools[1].submit_nowait(held("no place"))
    gates["running"].set()
    gates["queued"].set()
    tasks = [await each for each in blocked]
    await pool_wait(tasks)

    assert ran == ["running", "queued", "0", "1", "2", "3"]
    assert sorted(entered) == [0, 1, 2, 3]


async def test_calls_that_are_submitted_together_enter_a_full_pool_together(
    processes: list[Process],
) -> None:
    pools = [
        await each.open(queue="fifo", backpressure=backpressure_queue(2)) for each in processes
    ]
    running = [await pools[0].submit(held(name)) for name in ("first", "second", "third")]
    batch = asyncio.create_task(pools[0].submit_many([open_held("a"), open_held("b")]))
    await until(lambda: pools[1].snapshot(False).blocked_submitters == 2)
    single = asyncio.create_task(pools[1].submit(open_held("later")))
    await until(lambda: pools[0].snapshot(False).blocked_submitters == 3)

    gates["first"].set()
    await running[0]

    seen = pools[0].snapshot(False)
    assert (seen.queued, seen.blocked_submitters) == (1, 3)  # one place is too few for both
    gates["second"].set()
    await running[1]
    assert pools[0].snapshot(False).blocked_submitters == 1
    gates["third"].set()
    await pool_wait([*await batch, await single])
    assert ran == ["first", "second", "third", "a", "b", "later"]


async def test_calls_that_never_fit_together_are_refused(processes: list[Process]) -> None:
    pool = await processes[0].open(backpressure=backpressure_queue(2))

    with pytest.raises(InvalidOption, match="at most 3 calls at once"):
        await pool.submit_many([open_held(name) for name in "abcd"])

    assert pool.snapshot().total == 0


async def test_calls_that_a_lowered_cap_has_no_room_for_enter_an_empty_pool(
    processes: list[Process],
) -> None:
    first, second = processes
    options: dict[str, Any] = {"queue": "fifo", "backpressure": backpressure_queue(1)}
    pool = await first.open(max_concurrent=2, **options)
    running = await pool.submit(held("running"))
    batch = asyncio.create_task(pool.submit_many([open_held(name) for name in "abc"]))
    await until(lambda: pool.snapshot(False).blocked_submitters == 3)

    await second.open(max_concurrent=1, **options)
    gates["running"].set()
    await running

    assert [await task for task in await batch] == ["a", "b", "c"]
    assert ran == ["running", "a", "b", "c"]


async def test_a_read_that_was_overtaken_by_an_answer_undoes_nothing(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[Any] = [await each.open(backpressure=backpressure_queue(1)) for each in processes]
    await pools[0].submit(held("running"))
    follower = pools[0]._follower
    await follower.stop()  # it reads when this test says so
    await pools[1].submit(held("queued"))
    blocked = asyncio.create_task(pools[0].submit(held("blocked")))
    await until(lambda: pools[0].snapshot(False).blocked_submitters == 1)
    run, is_read, may_answer = follower._store.run, asyncio.Event(), asyncio.Event()

    async def answer_late(recipe: Any, **options: Any) -> Any:
        answer = await run(recipe, **options)
        is_read.set()
        await may_answer.wait()
        return answer

    monkeypatch.setattr(follower._store, "run", answer_late)
    reading = asyncio.create_task(follower.refresh())
    await is_read.wait()
    blocked.cancel()
    await until(lambda: pools[0].snapshot(False).blocked_submitters == 0)
    may_answer.set()
    await reading

    assert pools[0].snapshot(False).blocked_submitters == 0
    assert [each.status for each in pools[0].snapshot().tasks] == ["running", "queued"]
    gates["running"].set()
    gates["queued"].set()


def test_two_reads_that_overlap_each_gather_what_has_changed() -> None:
    mirror = Mirror()

    with mirror.watched() as longer:
        with mirror.watched() as shorter:
            pass
        mirror.note(1, None)

    assert (longer, shorter) == ({1}, set())


async def test_a_blocked_submitter_that_is_cancelled_leaves_no_trace(
    processes: list[Process],
) -> None:
    pools = [await each.open(backpressure=backpressure_queue(1)) for each in processes]
    await pools[0].submit(held("running"))
    await pools[0].submit(held("queued"))
    blocked = asyncio.create_task(pools[1].submit(held("blocked")))
    await until(lambda: pools[0].snapshot(False).blocked_submitters == 1)

    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked

    await until(lambda: [each.snapshot(False).blocked_submitters for each in pools] == [0, 0])
    await until(lambda: [each.snapshot().total for each in pools] == [2, 2])
    gates["running"].set()
    gates["queued"].set()
    await until(lambda: pools[1].snapshot(False).completed == 2)
    assert ran == ["running", "queued"]


async def test_a_full_pool_refuses_or_drops_by_its_policy(processes: list[Process]) -> None:
    first, second = processes
    options: dict[str, Any] = {"backpressure": backpressure_queue(1, "fail_submitter")}
    full = [await first.open(name="full", **options), await second.open(name="full", **options)]
    ring = [await each.open(name="ring", backpressure=ring_buffer(1)) for each in processes]
    fast = [await each.open(name="fast", backpressure=fail_fast()) for each in processes]

    await full[0].submit(held("a"))
    await full[1].submit(held("b"))
    with pytest.raises(PoolFull, match=r"'full' is full \(1 queued\)"):
        await full[0].submit(held("c"))
    await fast[0].submit(held("d"))
    with pytest.raises(PoolBusy, match=r"no free slot \(1 of 1 running\)"):
        await fast[1].submit(held("e"))
    await ring[0].submit(held("f"))
    dropped = await ring[0].submit(held("g"))
    kept = await ring[1].submit(held("h"))

    assert (await dropped.wait()).rejection_policy == "ring_buffer"
    assert kept.status == "queued"
    for gate in gates.values():
        gate.set()
    assert await kept == "h"


async def test_cancel_reaches_a_task_wherever_it_is(processes: list[Process]) -> None:
    pools = [await each.open(run_here=n == 1) for n, each in enumerate(processes)]
    gates["far"] = asyncio.Event()
    far = await pools[0].submit(gated, "far")
    queued = await pools[0].submit(held("queued"))
    await until(lambda: ran == ["far"])

    assert queued.cancel()
    assert (await queued.wait()).status == "cancelled"
    await until(lambda: far.status == "running")
    assert far.cancel()

    assert (await far.wait()).status == "cancelled"
    await until(lambda: [each.snapshot(False).cancelled for each in pools] == [2, 2])
    assert await (await pools[0].submit(lambda: "free")) == "free"


async def test_close_finishes_what_this_process_submitted(processes: list[Process]) -> None:
    pools = [await each.open() for each in processes]
    tasks = [await pools[0].submit(double, n) for n in range(5)]
    await pools[1].submit(held("other"))

    closing = asyncio.create_task(pools[0].close())
    gates["other"].set()
    await closing

    assert [task.status for task in tasks] == ["completed"] * 5
    with pytest.raises(PoolClosed):
        await pools[0].submit(double, 1)
    assert await (await pools[1].submit(double, 4)) == 8


async def test_close_with_cancel_leaves_durable_calls_to_others(
    processes: list[Process],
) -> None:
    first, second = processes
    pool = await first.open(queue="fifo")
    gates.update({name: asyncio.Event() for name in ("again", "queued")})
    await pool.submit(gated_again, "again")
    await until(lambda: ran == ["again"])
    await pool.submit(gated, "queued")
    closure = await pool.submit(held("closure"))

    await pool.close(cancel=True)

    assert closure.status == "cancelled"
    other = await second.open(queue="fifo")
    await until(lambda: ran == ["again", "again"])
    assert other.snapshot(False).queued == 1
    gates["again"].set()
    gates["queued"].set()
    await until(lambda: other.snapshot(False).completed == 2)
    assert other.snapshot(False).cancelled == 1


async def test_the_index_of_a_pool_is_what_its_log_folds_to(processes: list[Process]) -> None:
    from harn.storage import Store
    from harn.storage.log import compare

    first, second = processes
    fair = fair_round_robin("tenant_id")
    options: dict[str, Any] = {"queue": fair, "backpressure": backpressure_queue(2)}
    pools = [await first.open(**options), await second.open(**options)]
    running = await pools[0].submit(held("running"))
    gates["far"] = asyncio.Event()
    waiting = [await pools[1].submit(gated, "far", tenant_id="b"), await pools[0].submit(held("x"))]
    blocked = [asyncio.create_task(pools[0].submit(double, n, tenant_id="c")) for n in range(3)]
    await until(lambda: pools[1].snapshot(False).blocked_submitters == 3)
    blocked[1].cancel()
    waiting[1].cancel()
    await until(lambda: pools[1].snapshot(False).blocked_submitters < 2)

    async def differences() -> Any:
        return await first.runtime.service(Store).run(compare)

    assert await first.inside(differences) == []
    gates["running"].set()
    gates["far"].set()
    await running
    await (await blocked[0])
    await (await blocked[2])
    assert await first.inside(differences) == []


async def test_a_pool_needs_the_id_of_its_tenant_or_org(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url, tenant_id="acme", org_id="corp"):
        assert (await pool_create(name="a", scope="tenant")).scope_id == "acme"
        assert (await pool_create(name="b", scope="org")).scope_id == "corp"
        with pytest.raises(InvalidOption, match="run_here"):
            await pool_create(name="c", run_here=False)
    async with Runtime(storage=lasting_url):
        with pytest.raises(InvalidOption, match="scope_id"):
            await pool_create(name="a", scope="org")


async def test_pools_are_no_worker_queues(processes: list[Process]) -> None:
    pool = await processes[0].open()
    await (await pool.submit(double, 1))

    assert await processes[0].inside(harn.worker_queues) == []
    with pytest.raises(InvalidOption, match="pool"):
        await processes[0].inside(lambda: _queue(pool.id))


async def _queue(name: str) -> Any:
    return harn.worker_queue(name)


async def test_unsettled_tasks_of_the_whole_pool_are_listed(processes: list[Process]) -> None:
    first, second = processes
    ours, theirs = await first.open(), await second.open()
    running = await ours.submit(held("running"))
    queued = await ours.submit(held("queued"))
    await until(lambda: theirs.size() == 2 and theirs.snapshot(False).active == 1)

    async def pending() -> list[tuple[str, str]]:
        found = harn.unsettled_state().pool_pending_tasks
        return [(each.id, each.status) for each in found]

    for process in processes:
        assert await process.inside(pending) == [(queued.id, "queued"), (running.id, "running")]
    gates["running"].set()
    gates["queued"].set()
    await pool_wait([running, queued])
    assert await first.inside(pending) == []


async def test_a_submit_and_a_start_have_one_receipt_each(processes: list[Process]) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    await second.open()
    task = await submitter.submit(double, 1, key="acme")
    await task

    async def receipts() -> list[tuple[str, str]]:
        events = await harn.event_log_read("lifecycle.pool.audit")
        return [(event.kind, event.payload["task_id"]) for event in events]

    found: list[tuple[str, str]] = []
    async with asyncio.timeout(30):
        while len(found) < 2:  # they are written behind, by two processes
            found = await first.inside(receipts)
    assert sorted(found) == [("pool_dequeue", task.id), ("pool_submit", task.id)]


async def test_a_start_in_the_operation_of_an_end_takes_the_slot_that_became_free(
    processes: list[Process],
) -> None:
    pool = await processes[0].open(max_concurrent=2)

    await pool_wait(await pool.submit_many([partial(double, n) for n in range(7)]))

    async def slots_taken() -> list[int]:
        events = await harn.event_log_read("lifecycle.pool.audit")
        return [e.payload["slot_index"] for e in events if e.kind == "pool_dequeue"]

    taken = await processes[0].inside(slots_taken)
    assert len(taken) == 7
    assert set(taken) == {0, 1}


async def test_submits_in_rounds_share_operations_with_the_ends_of_the_round_before(
    processes: list[Process],
) -> None:
    pool: Any = await processes[0].open(max_concurrent=10)
    work = pool._slots.work
    carried_out: list[int] = []
    start = work._batcher._start

    def counted(batch: list[Any], landing: Any) -> bool:
        carried_out.append(len(batch))
        return bool(start(batch, landing))

    work._batcher._start = counted
    tasks: list[PoolTask] = []
    for _ in range(3):
        tasks += await asyncio.gather(*(pool.submit(double, n) for n in range(10)))
    await pool_wait(tasks)

    assert carried_out == [10, 20, 20, 10]


async def test_an_end_that_starts_an_awaited_task_is_no_deadlock(
    processes: list[Process],
) -> None:
    pool = await processes[0].open(max_concurrent=2)

    async def waits_for_a_nested_task() -> int:
        return await (await pool.submit(double, 21))

    other = await pool.submit(held("other"))
    outer = await pool.submit(waits_for_a_nested_task)
    await until(lambda: pool.size() == 3)

    gates["other"].set()

    assert await outer == 42
    assert await other == "other"


async def test_a_process_that_renews_no_more_loses_its_slots_and_its_results(
    processes: list[Process],
) -> None:
    first, second = processes
    ours, theirs = await first.open(max_concurrent=2), await second.open(max_concurrent=2)
    gates["again"] = asyncio.Event()
    running = await ours.submit(held("running"))
    again = await ours.submit(gated_again, "again")
    await until(lambda: sorted(ran) == ["again", "running"])
    queued = await ours.submit(held("queued"))

    await first.expire(second)

    await until(lambda: theirs.snapshot(False).failed == 2)
    seen = {task.id: task.stale_reason for task in theirs.snapshot().tasks if task.stale_reason}
    assert seen == {running.id: "interrupted", queued.id: "never_started"}
    await until(lambda: ran.count("again") == 2)
    for gate in gates.values():
        gate.set()
    await until(lambda: running.done() and queued.done() and again.done())
    assert (running.status, queued.status) == ("failed", "failed")
    assert await again == "again"
    await until(lambda: theirs.size() == 0)
    assert theirs.snapshot(False).completed == 1


async def test_a_slot_that_no_process_holds_is_found(processes: list[Process]) -> None:
    first, second = processes
    pool = await first.open()
    task = await pool.submit(held("running"))
    await until(lambda: ran == ["running"])
    assert await second.inside(lambda: leaked_slots(second.runtime)) == []

    lease = first.lease
    leases = second.runtime.service(LeaseStore).store
    await second.inside(lambda: leases.run(lambda: drop_consumer(lease)))

    [found] = await second.inside(lambda: leaked_slots(second.runtime))
    assert found.startswith("pool 'gpu' of tenant 'acme': task 1 holds a slot")
    gates["running"].set()
    assert await task == "running"
    assert await second.inside(lambda: leaked_slots(second.runtime)) == []


async def test_log_verify_names_a_slot_that_no_process_holds(
    processes: list[Process], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = processes
    pool = await first.open()
    task = await pool.submit(held("running"))
    await until(lambda: ran == ["running"])
    verify = ["log", "verify", "--storage", second.runtime.storage_url]
    whole = await asyncio.to_thread(invoke, verify)
    capsys.readouterr()

    leases = second.runtime.service(LeaseStore).store
    await second.inside(lambda: leases.run(lambda: drop_consumer(first.lease)))
    leaked = await asyncio.to_thread(invoke, verify)
    told = capsys.readouterr().out
    in_json = await asyncio.to_thread(invoke, [*verify, "--json"])
    [slot] = json.loads(capsys.readouterr().out)["slots"]

    assert (whole, leaked, in_json) == (0, 1, 1)
    assert "pool 'gpu' of tenant 'acme': task 1 holds a slot" in told
    assert f"lease {first.lease}, which no process has" in slot
    gates["running"].set()
    assert await task == "running"


async def until_recorded(process: Process, pool: harn.Pool, step: str) -> None:
    """Wait until the call that runs in *pool* has recorded *step*, which comes after it ran."""
    await until(lambda: bool(pool._slots.here))  # type: ignore[attr-defined]
    [task] = pool._slots.here  # type: ignore[attr-defined]
    async with asyncio.timeout(30):
        while step not in [
            each.name for each in await process.inside(pool._slots.steps_of(task).recorded_steps)
        ]:
            await asyncio.sleep(0.01)


async def test_a_run_goes_on_after_the_steps_of_a_process_that_died(
    processes: list[Process],
) -> None:
    first, second = processes
    ours = await first.open()
    gates["a"] = asyncio.Event()
    task = await ours.submit(in_steps, "a")
    await until_recorded(first, ours, "first")

    ours._slots.is_claiming = False  # type: ignore[attr-defined]  # as a process that is paused
    await first.expire(second)
    theirs = await second.open()
    await until(lambda: theirs._slots.here)  # type: ignore[attr-defined]
    gates["a"].set()

    assert await task == ["a first", "a second"]
    assert ran.count("a first") == 1, "the step was recorded by the first process"
    await until(lambda: theirs.snapshot(False).completed == 1)


async def test_a_process_that_lost_its_slot_records_no_step(processes: list[Process]) -> None:
    first, _ = processes
    pool = await first.open()
    gates["a"] = asyncio.Event()
    await pool.submit(in_steps, "a")
    await until_recorded(first, pool, "first")
    [(task, held)] = pool._slots.here.items()  # type: ignore[attr-defined]
    steps = pool._slots.steps_of(task)
    held.claim_id = "of another process"

    with pytest.raises(harn.ClaimLost, match="the slot of task"):
        await first.inside(lambda: steps.record_step(StepRecord("second", 0, "note", b"1", 1, 1)))
    recorded = await first.inside(steps.recorded_steps)

    assert [each.name for each in recorded] == ["first"]


async def test_a_free_slot_on_postgresql_goes_to_a_waiting_process_by_a_notification(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran.clear()
    monkeypatch.setattr(shared_follow, "READ_EVERY", 3600)  # only what is heard wakes a process
    async with Runtime(storage=postgres_url) as first, Runtime(storage=postgres_url) as second:
        pools = [await Process(each).open() for each in (first, second)]
        running = await pools[0].submit(held("running"))
        waiting = await pools[1].submit(open_held("waiting"))
        await until(lambda: ran == ["running"])

        gates["running"].set()

        assert await waiting == "waiting"
        assert await running == "running"


class Looks:
    """Counts the reads of a process, which find nothing, and its looks for a free slot."""

    def __init__(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.looks = 0
        slots: Any = pool._slots
        self._ask = slots.work.ask
        self._follower = slots.follower
        monkeypatch.setattr(slots.follower, "refresh", self._refresh)
        monkeypatch.setattr(slots.work, "ask", self._asked)

    async def _refresh(self) -> None:
        self.reads += 1

    def _asked(self, item: Any) -> Any:
        self.looks += item is None
        return self._ask(item)

    async def hint(self) -> None:
        """Let the process be told that another one has written, until it has read."""
        reads = self.reads
        self._follower.wake()
        await until(lambda: self.reads > reads)


async def test_a_waiting_process_asks_for_a_free_slot_before_it_reads(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_follow, "CLAIM_EVERY", 0)
    pools = [await each.open(max_concurrent=1) for each in processes]
    running = await pools[0].submit(held("a"))
    await until(lambda: ran == ["a"])
    waiting = await pools[1].submit(open_held("b"))
    looks = Looks(pools[1], monkeypatch)
    gates["a"].set()
    await running

    await looks.hint()

    await until(lambda: ran == ["a", "b"])
    monkeypatch.undo()
    assert await waiting == "b"


async def test_a_look_that_found_no_free_slot_is_not_repeated_at_once(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_follow, "CLAIM_EVERY", 3600)
    pools = [await each.open(max_concurrent=1) for each in processes]
    running = await pools[0].submit(held("a"))
    await until(lambda: ran == ["a"])
    waiting = await pools[1].submit(open_held("b"))
    looks = Looks(pools[1], monkeypatch)

    for _ in range(5):
        await looks.hint()

    assert looks.looks <= 1
    monkeypatch.undo()
    gates["a"].set()
    assert [await running, await waiting] == ["a", "b"]


@pytest.mark.parametrize("queue", ["fifo", "lifo", "priority", fair_round_robin("tenant_id")])
async def test_an_operation_knows_which_records_it_wrote(
    processes: list[Process], queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = processes[0]
    pool = await process.open(max_concurrent=2, queue=queue, backpressure=backpressure_queue(2))
    follower = pool._slots.follower  # type: ignore[attr-defined]
    wrote: list[range] = []
    monkeypatch.setattr(follower, "wrote", lambda done: wrote.append(done.wrote[1]))
    store, claims = process.runtime.service(Store), queue_topics(pool.id).claims
    before = await store.run(lambda: head(claims), write=False)

    async def fails() -> None:
        raise ValueError

    calls: list[Any] = [[double, n] for n in range(5)] + [[fails]] * 2
    submits = [pool.submit(*call, priority=n % 2, tenant_id=f"{n}") for n, call in enumerate(calls)]
    await pool_wait(await asyncio.gather(*submits))
    stopped = [await pool.submit(held(name), tenant_id=name) for name in "xyz"]
    await until(lambda: len({*ran} & {*"xyz"}) == 2)
    for task in stopped:
        task.cancel()
    await pool_wait(stopped)

    after = await store.run(lambda: head(claims), write=False)
    assert [id for ids in wrote for id in ids] == [*range(before + 1, after + 1)]


async def test_a_key_that_comes_with_another_call_is_counted(
    processes: list[Process], caplog: pytest.LogCaptureFixture
) -> None:
    pools = [await each.open() for each in processes]
    first = await pools[0].submit(double, 1, idempotency_key="k")
    await first

    same = await pools[1].submit(double, 1, idempotency_key="k")
    other = await pools[1].submit(double, 2, idempotency_key="k")

    assert await same == await other == 2
    assert (same.id, other.id) == (first.id, first.id)
    assert other.conflicts == 1
    assert caplog.text.count("idempotency key 'k' came with another call") == 1


async def test_a_blocked_batch_that_is_cancelled_leaves_no_trace(processes: list[Process]) -> None:
    pools = [await each.open(backpressure=backpressure_queue(2)) for each in processes]
    full = [await pools[0].submit(held(name)) for name in ("a", "b", "c")]
    batch = asyncio.create_task(pools[1].submit_many([held("d"), held("e")]))
    await until(lambda: pools[0].snapshot(False).blocked_submitters == 2)

    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch

    await until(lambda: [each.snapshot(False).blocked_submitters for each in pools] == [0, 0])
    for gate in gates.values():
        gate.set()
    await pool_wait(full)
    assert await (await pools[1].submit(open_held("next"))) == "next"
    assert sorted(ran) == ["a", "b", "c", "next"]


async def test_a_blocked_batch_dies_with_its_process(processes: list[Process]) -> None:
    dead, other = processes
    pools = [await each.open(backpressure=backpressure_queue(2)) for each in processes]
    full = [await pools[1].submit(held(name)) for name in ("a", "b", "c")]
    batch = asyncio.create_task(pools[0].submit_many([held("d"), (gated, "no such gate")]))
    await until(lambda: pools[1].snapshot(False).blocked_submitters == 2)
    blocked: Any = pools[0]._slots.blocked
    await until(lambda: bool(blocked.callers))  # its own process may be told last

    lease = dead.lease
    pools[0]._slots.drop()  # as if its process died: nothing is told to the store
    with pytest.raises(harn.PoolNotFound):
        await batch
    await other.end_lease(lease, [pools[0].id])

    await until(lambda: pools[1].snapshot(False).blocked_submitters == 0)
    for gate in gates.values():
        gate.set()
    await pool_wait(full)
    assert sorted(ran) == ["a", "b", "c"]
    assert pools[1].snapshot(False).total == 3
    assert await other.inside(lambda: leaked_slots(other.runtime)) == []

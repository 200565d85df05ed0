"""A pool by its front door: submitting, running, waiting, failing, cancelling, closing."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import threading
from pathlib import Path
from typing import Any, cast

import pytest

import harn
from harn import (
    DeadlockError,
    HarnError,
    InvalidOption,
    Pool,
    PoolBusy,
    PoolClosed,
    PoolExists,
    PoolFull,
    PoolNotFound,
    PoolScopeUnavailable,
    PoolTask,
    PoolTaskCancelled,
    PoolTaskFailed,
    PoolTaskRejected,
    Runtime,
    backpressure_queue,
    durable,
    fail_fast,
    fair_round_robin,
    from_thread,
    pool_create,
    pool_get,
    pool_list,
    pool_simulate_restart,
    pool_wait,
    ring_buffer,
    runtime_context,
    unsettled_state,
)
from harn.pools.slots import Slots
from harn.testing import FakeClock
from tests.fake_clock import fake_clock

pytestmark = pytest.mark.usefixtures("runtime")


class Gate:
    """A closure that says when it began and waits until it is let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self) -> str:
        self.began.set()
        await self.let_go.wait()
        return "done"


async def blocked(pool: Pool, **options: Any) -> Any:
    gate = Gate()
    task = await pool.submit(gate, **options)
    await gate.began.wait()
    return task, gate


async def nothing() -> None: ...


def adds_up(pool: Pool) -> None:
    """P4."""
    seen = pool.snapshot()
    ended = seen.completed + seen.failed + seen.rejected + seen.cancelled
    assert seen.total == seen.active + seen.queued + ended
    assert pool.size() == seen.active + seen.queued
    assert seen.active <= seen.max_concurrent
    assert len(seen.tasks) == seen.total


async def test_a_task_runs_and_its_handle_tells_everything() -> None:
    pool = await pool_create(name="review", max_concurrent=5)

    task = await pool.submit(lambda: 42, priority=10, key="k", tenant_id="acme")
    seen = await task.wait()

    assert (task.status, task.result, task.error) == ("completed", 42, None)
    assert await task == 42
    assert seen == task.snapshot() == await pool_wait(task)
    assert seen.as_dict() == {
        "_type": "pool_task",
        "id": task.id,
        "pool": "review",
        "pool_id": pool.id,
        "status": "completed",
        "priority": 10,
        "key": "k",
        "labels": {"tenant_id": "acme"},
        "submitted_at": "2026-01-01T00:00:00.000Z",
        "submitted_by": "user",
        "started_at": "2026-01-01T00:00:00.000Z",
        "finished_at": "2026-01-01T00:00:00.000Z",
        "result": 42,
        "error": None,
        "rejection_reason": None,
        "rejection_policy": None,
    }


async def test_a_task_that_gets_a_slot_is_running_when_submit_returns() -> None:
    pool = await pool_create(max_concurrent=1)

    first, second = await pool.submit(nothing), await pool.submit(nothing)

    assert (first.status, second.status) == ("running", "queued")
    assert pool.size() == 2
    adds_up(pool)


class Callable:
    async def __call__(self) -> str:
        return "object"


async def an_async_function(value: Any = "async") -> Any:
    return value


@pytest.mark.parametrize(
    ("closure", "expected"),
    [
        (an_async_function, "async"),
        (lambda: "plain", "plain"),
        (functools.partial(an_async_function, "partial"), "partial"),
        (functools.partial(str, 5), "5"),
        (Callable(), "object"),
        (lambda: an_async_function("a lambda's coroutine"), "a lambda's coroutine"),
        (threading.current_thread, "thread"),
    ],
)
async def test_any_callable_is_a_closure(closure: Any, expected: str) -> None:
    pool = await pool_create()

    result = await (await pool.submit(closure))

    if expected == "thread":
        assert result is not threading.main_thread()
    else:
        assert result == expected


@pytest.mark.parametrize("wrong", [None, 3, "f", [], object()])
async def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    pool = await pool_create()

    with pytest.raises(InvalidOption, match="fn"):
        await pool.submit(wrong)

    assert pool.snapshot().total == 0


async def test_a_coroutine_instead_of_its_function_is_refused_without_a_warning() -> None:
    pool = await pool_create()

    with pytest.raises(InvalidOption):
        await pool.submit(nothing())  # type: ignore[call-overload]


class Bad(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message for you")


class Worse(BaseException): ...


def raising(error: Any) -> list[Any]:
    async def on_loop() -> None:
        raise error

    def on_thread() -> None:
        raise error

    return [on_loop, on_thread]


@pytest.mark.parametrize("where", [0, 1], ids=["loop", "thread"])
@pytest.mark.parametrize(
    "error",
    [ValueError("boom"), Bad(), Worse("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(1)],
    ids=lambda each: type(each).__name__,
)
async def test_P8_any_failure_fails_only_its_task_and_frees_the_slot(
    error: Any, where: int
) -> None:
    pool = await pool_create(max_concurrent=1)

    failing = await pool.submit(raising(error)[where])
    after = await pool.submit(lambda: "still here")

    with pytest.raises(PoolTaskFailed):
        await failing
    assert failing.status == "failed"
    assert failing.error
    assert await after == "still here"
    adds_up(pool)


async def test_a_failed_task_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    pool = await pool_create(name="p")

    async def fails() -> None:
        raise LookupError("nothing there")

    await (await pool.submit(fails)).wait()
    await (await pool.submit(lambda: 1)).wait()

    [line] = [record for record in caplog.records if record.name == "harn.pools"]
    assert line.levelname == "WARNING"
    assert "'p'" in line.getMessage() and "nothing there" in line.getMessage()
    assert line.exc_info and line.exc_info[0] is LookupError


async def test_the_cause_of_a_failure_is_the_original_exception() -> None:
    pool = await pool_create()
    error = ValueError("boom")

    task = await pool.submit(raising(error)[0])

    with pytest.raises(PoolTaskFailed, match="boom") as caught:
        await task
    assert caught.value.__cause__ is error
    assert task.error == "ValueError: boom"
    assert error.__traceback__
    assert "worker.py" not in str(error.__traceback__.tb_frame.f_code.co_filename)


async def test_P1_never_more_than_max_concurrent_run() -> None:
    pool, running, most = await pool_create(max_concurrent=3), 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    tasks = [await pool.submit(work) for _ in range(50)]
    await pool_wait(tasks)

    assert most == 3
    adds_up(pool)


@pytest.mark.parametrize("wrong", [True, 0, -1, 1.5, None, "5", 2**63])
async def test_P1_a_wrong_max_concurrent_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="max_concurrent"):
        await pool_create(max_concurrent=wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": 3},
        {"name": "\ud800"},
        {"name": "x" * 2000},
        {"scope": "galaxy"},
        {"queue": "random"},
        {"backpressure": "queue"},
        {"stale_after_ms": -1},
        {"isolation": "vm"},
        {"retention": 5},
        {"scope": "pipeline"},
        {"pipeline_id": ""},
    ],
)
async def test_a_wrong_option_is_refused_and_leaves_no_pool(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        await pool_create(**options)

    assert pool_list() == []


async def test_closures_run_in_the_context_of_their_submit() -> None:
    pool = await pool_create()
    harn.runtime_context_set("color", "blue")

    async def who() -> Any:
        harn.runtime_context_set("color", "red")
        return runtime_context()

    task = await pool.submit(who)
    harn.runtime_context_set("color", "green")
    seen = await task

    assert (seen.task_id, seen.task_name, seen.task_group_id) == (task.id, "pool task", pool.id)
    assert seen.parent_task_id == "task_root"
    assert seen.context_values == {"color": "red"}
    assert harn.runtime_context_get("color") == "green"


async def test_defers_and_permits_of_a_closure_end_with_it() -> None:
    calls: list[str] = []
    pool = await pool_create()

    async def work() -> None:
        harn.defer(calls.append, "deferred")
        calls.append("body")

    await (await pool.submit(work))

    assert calls == ["body", "deferred"]


async def test_timeouts_and_task_groups_work_inside_a_closure() -> None:
    pool = await pool_create(max_concurrent=1)

    async def work() -> Any:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            child = group.create_task(an_async_function("child"))
        return child.result()

    first, second = await pool.submit(work), await pool.submit(work)

    assert [await first, await second] == ["child", "child"]


async def test_a_closure_that_waits_sees_its_own_contextvars_after_each_step() -> None:
    pool = await pool_create(max_concurrent=4)

    async def work(number: int) -> Any:
        harn.runtime_context_set("n", number)
        for _ in range(5):
            await asyncio.sleep(0)
            assert harn.runtime_context_get("n") == number
        return number

    tasks = [await pool.submit(functools.partial(work, n)) for n in range(8)]

    assert [await task for task in tasks] == list(range(8))


# Cancelling.


async def test_a_queued_task_that_is_cancelled_never_runs() -> None:
    pool = await pool_create(max_concurrent=1)
    _, gate = await blocked(pool)
    ran = []
    task = await pool.submit(lambda: ran.append(1))

    assert task.cancel() is True
    gate.let_go.set()

    assert (await task.wait()).status == "cancelled"
    with pytest.raises(PoolTaskCancelled):
        await task
    assert task.cancel() is False
    await pool.close()
    assert ran == []


async def test_cancelling_a_running_task_interrupts_only_its_closure() -> None:
    pool = await pool_create(max_concurrent=1)
    task, _ = await blocked(pool)
    after = await pool.submit(an_async_function)

    assert task.cancel()

    assert (await task.wait()).status == "cancelled"
    assert await after == "async"
    adds_up(pool)


async def test_a_closure_that_catches_its_cancel_ends_cancelled_all_the_same() -> None:
    pool = await pool_create()
    begun = asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "what is left"

    task = await pool.submit(stubborn)
    await begun.wait()

    assert task.cancel()

    ended = await task.wait()
    assert (ended.status, ended.result) == ("cancelled", None)
    assert await (await pool.submit(an_async_function)) == "async"


async def test_a_task_cancelled_before_its_worker_begins_never_runs() -> None:
    pool = await pool_create(max_concurrent=1)
    ran = []

    async def work() -> None:
        ran.append(1)

    task = await pool.submit(work)
    assert task.status == "running"
    task.cancel()

    assert (await task.wait()).status == "cancelled"
    assert ran == []
    assert await (await pool.submit(an_async_function)) == "async"


async def test_a_cancel_that_meets_the_last_step_hits_no_other_task() -> None:
    pool = await pool_create(max_concurrent=1)
    holder: list[PoolTask] = []

    async def cancels_itself() -> str:
        holder[0].cancel()
        return "finished anyway"

    async def next_one() -> str:
        await asyncio.sleep(0)
        return "unharmed"

    holder.append(await pool.submit(cancels_itself))
    after = await pool.submit(next_one)

    assert await holder[0] == "finished anyway"
    assert await after == "unharmed"


async def test_a_closure_that_cancels_its_own_asyncio_task_hits_only_itself() -> None:
    pool = await pool_create(max_concurrent=1)

    async def stubborn() -> None:
        this = asyncio.current_task()
        assert this
        this.cancel()
        await asyncio.Event().wait()

    task, after = await pool.submit(stubborn), await pool.submit(an_async_function)

    assert (await task.wait()).status == "cancelled"
    assert await after == "async"


async def test_a_task_on_a_thread_sees_its_cancel() -> None:
    pool = await pool_create()
    began = threading.Event()

    def work() -> str:
        began.set()
        while not harn.is_cancelled():
            threading.Event().wait(0.001)
        return "ignored"

    task = await pool.submit(work)
    while not began.is_set():
        await asyncio.sleep(0)
    task.cancel()

    assert (await task.wait()).status == "cancelled"


async def test_a_thread_may_cancel_tasks_that_run_or_are_queued() -> None:
    pool = await pool_create(max_concurrent=1)
    running, _ = await blocked(pool)
    queued = await pool.submit(an_async_function)

    assert await harn.spawn(lambda: (queued.cancel(), running.cancel())) == (True, True)

    ended = await pool_wait([running, queued])
    assert [each.status for each in ended] == ["cancelled", "cancelled"]
    assert await harn.spawn(running.cancel) is False
    adds_up(pool)


async def test_another_thread_is_told_how_to_submit_and_wait() -> None:
    pool = await pool_create()
    task, gate = await blocked(pool)

    async def from_another_loop(call: Any) -> None:
        await call()

    with pytest.raises(HarnError, match="from_thread"):
        await harn.spawn(pool.submit_nowait, nothing)
    for call in (functools.partial(pool.submit, nothing), task.wait, pool.close):
        with pytest.raises(HarnError, match="from_thread"):
            await harn.spawn(from_another_loop, call, isolation="thread")

    gate.let_go.set()
    assert (await task.wait()).status == "completed"
    assert pool.snapshot().total == 1


async def test_P7_waiting_is_cancelled_without_touching_the_task() -> None:
    pool = await pool_create()
    task, gate = await blocked(pool)
    waiter = asyncio.ensure_future(task.wait())
    await asyncio.sleep(0)

    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    gate.let_go.set()

    assert (await task.wait()).status == "completed"


# Full queues.


async def test_B2_blocked_submitters_enter_in_the_order_they_came() -> None:
    pool = await pool_create(queue="fifo", backpressure=backpressure_queue(1))
    _, gate = await blocked(pool)
    await pool.submit(nothing)
    order: list[object] = []
    line = [
        asyncio.ensure_future(pool.submit(functools.partial(note, order, number)))
        for number in range(5)
    ]
    await asyncio.sleep(0)
    assert pool.snapshot().blocked_submitters == 5

    line[2].cancel()
    await asyncio.sleep(0)
    assert pool.snapshot().blocked_submitters == 4
    gate.let_go.set()
    done = await asyncio.gather(*line, return_exceptions=True)
    await pool_wait([task for task in done if not isinstance(task, BaseException)])

    assert order == [0, 1, 3, 4]
    assert pool.snapshot().total == 6
    adds_up(pool)


async def note(order: list[object], number: object) -> None:
    order.append(number)


async def test_B2_a_newcomer_does_not_overtake_those_who_wait() -> None:
    pool = await pool_create(queue="fifo", backpressure=backpressure_queue(1))
    _, gate = await blocked(pool)
    await pool.submit(nothing)
    order: list[object] = []
    parked = asyncio.ensure_future(pool.submit(functools.partial(note, order, "parked")))
    await asyncio.sleep(0)

    gate.let_go.set()
    await asyncio.sleep(0)
    late = asyncio.ensure_future(pool.submit(functools.partial(note, order, "late")))
    await pool_wait([await parked, await late])

    assert order == ["parked", "late"]


async def test_B2_a_place_that_is_given_up_goes_to_the_next_in_line() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1))
    await blocked(pool)
    queued = await pool.submit(nothing)
    first = asyncio.ensure_future(pool.submit(nothing))
    second = asyncio.ensure_future(pool.submit(nothing))
    await asyncio.sleep(0)

    queued.cancel()  # the place is held for the first, who has not resumed
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    assert (await second).status == "queued"
    assert pool.snapshot().blocked_submitters == 0
    adds_up(pool)


@pytest.mark.parametrize("on_full", ["drop_oldest", "ring"])
async def test_B3_the_oldest_queued_task_gives_way_and_its_waiters_wake(
    on_full: str, runtime: Runtime
) -> None:
    policy = ring_buffer(2) if on_full == "ring" else backpressure_queue(2, "drop_oldest")
    pool = await pool_create(queue="lifo", backpressure=policy)
    running, gate = await blocked(pool)
    oldest, middle = await pool.submit(nothing), await pool.submit(nothing)
    waiting = asyncio.ensure_future(oldest.wait())
    await asyncio.sleep(0)

    newest = await pool.submit(nothing)

    seen = await waiting
    assert (seen.status, running.status) == ("rejected", "running")
    reason, name = (
        ("ring_buffer_drop_oldest", "ring_buffer")
        if on_full == "ring"
        else ("drop_oldest_queue_full", "drop_oldest")
    )
    assert (seen.rejection_reason, seen.rejection_policy, seen.error) == (reason, name, reason)
    with pytest.raises(PoolTaskRejected, match=reason):
        await oldest
    drops = [e for e in await harn.event_log_read("lifecycle.pool.audit") if e.kind == "pool_drop"]
    assert [event.payload for event in drops] == [
        {
            "pool_id": pool.id,
            "pool": pool.name,
            "task_id": oldest.id,
            "replacement_task_id": newest.id,
            "reason": reason,
            "policy": name,
            "queue_depth": 2,
            "max_depth": 2,
            "occurred_at": "2026-01-01T00:00:00.000Z",
        }
    ]
    assert drops[0].headers == {"schema": "harn.pool_drop.v1", "policy": name}
    gate.let_go.set()
    await pool_wait([middle, newest])
    adds_up(pool)


async def test_B4_drop_newest_rejects_the_new_task_and_leaves_the_queue_alone() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1, "drop_newest"))
    _, gate = await blocked(pool)
    queued = await pool.submit(nothing)

    new = await pool.submit(nothing)

    assert (new.status, new.rejection_reason) == ("rejected", "drop_newest_queue_full")
    assert (queued.status, pool.size()) == ("queued", 2)
    kinds = [event.kind for event in await harn.event_log_read("lifecycle.pool.audit")]
    assert kinds == ["pool_submit", "pool_dequeue", "pool_submit", "pool_submit", "pool_drop"]
    gate.let_go.set()


@pytest.mark.parametrize(
    ("policy", "error", "code"),
    [
        (backpressure_queue(1, "fail_submitter"), PoolFull, "HARN-POL-001"),
        (fail_fast(), PoolBusy, "HARN-POL-002"),
    ],
)
async def test_B6_a_refused_submit_leaves_nothing_behind(
    policy: Any, error: Any, code: str
) -> None:
    pool = await pool_create(name="small", backpressure=policy)
    _, gate = await blocked(pool)
    if error is PoolFull:
        await pool.submit(nothing)
    before = pool.snapshot(), await harn.event_log_read("lifecycle.pool.audit")

    with pytest.raises(error, match=code):
        await pool.submit(nothing, idempotency_key="once")

    assert (pool.snapshot(), await harn.event_log_read("lifecycle.pool.audit")) == before
    gate.let_go.set()
    await fake_clock().settle()
    ran = await pool.submit(an_async_function, idempotency_key="once")
    assert await ran == "async"


async def test_submit_nowait_never_waits() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1))
    _, gate = await blocked(pool)
    pool.submit_nowait(nothing)

    with pytest.raises(PoolFull, match="HARN-POL-001"):
        pool.submit_nowait(nothing)

    gate.let_go.set()


async def test_B7_a_burst_pushes_out_its_own_tasks_not_the_quiet_tenant() -> None:
    pool = await pool_create(
        queue=fair_round_robin("tenant_id"), backpressure=ring_buffer(4, evict="longest")
    )
    _, gate = await blocked(pool)
    quiet = await pool.submit(nothing, tenant_id="quiet")

    loud = [await pool.submit(nothing, tenant_id="loud") for _ in range(20)]

    assert quiet.status == "queued"
    assert [task.status for task in loud] == ["rejected"] * 17 + ["queued"] * 3
    gate.let_go.set()


# Idempotency.


async def test_I1_a_thousand_submits_with_one_key_run_once() -> None:
    pool, runs = await pool_create(max_concurrent=10), []

    async def work() -> None:
        runs.append(1)

    submits = (pool.submit(work, idempotency_key="once") for _ in range(1000))
    tasks = await asyncio.gather(*submits)
    await pool_wait(tasks)

    assert len({task.id for task in tasks}) == len(runs) == pool.snapshot().total == 1


async def test_I2_a_known_key_never_blocks_and_keeps_its_task_forever() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1, "fail_submitter"))
    running, gate = await blocked(pool, idempotency_key="a")
    queued = await pool.submit(nothing, idempotency_key="b")

    assert await pool.submit(nothing, idempotency_key="a") is running
    assert await pool.submit(nothing, idempotency_key="b") is queued
    gate.let_go.set()
    await running.wait()
    assert await pool.submit(nothing, idempotency_key="a") is running


async def test_I3_a_rejected_task_binds_nothing() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1, "drop_newest"))
    _, gate = await blocked(pool)
    await pool.submit(nothing)
    rejected = await pool.submit(nothing, idempotency_key="once")
    gate.let_go.set()
    await fake_clock().settle()

    again = await pool.submit(nothing, idempotency_key="once")

    assert rejected.status == "rejected"
    assert again is not rejected
    assert (await again.wait()).status == "completed"


async def test_I5_keys_are_exact_strings_and_each_tenant_has_its_own(runtime: Runtime) -> None:
    pool = await pool_create(max_concurrent=9)
    keys = ["1", "é", "e\u0301", "a\x00", "a\n", " a", "a"]

    tasks = [await pool.submit(nothing, idempotency_key=key) for key in keys]

    assert len({task.id for task in tasks}) == len(keys)
    with pytest.raises(InvalidOption, match="idempotency_key"):
        await pool.submit(nothing, idempotency_key=1)  # type: ignore[call-overload,call-arg]
    with pytest.raises(InvalidOption, match="surrogates"):
        await pool.submit(nothing, idempotency_key="\ud800")


async def test_I6_the_same_key_for_another_call_is_a_visible_conflict(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = await pool_create()
    first = await pool.submit(functools.partial(an_async_function, 1), idempotency_key="k")

    same = await pool.submit(functools.partial(an_async_function, 1), idempotency_key="k")
    other = await pool.submit(functools.partial(an_async_function, 2), idempotency_key="k")

    assert first is same is other
    assert first.conflicts == pool._slots.keys.conflicts == 1
    assert "came with another call" in caplog.text


async def test_I7_retention_bounds_tasks_and_keys_by_count_and_age(clock: FakeClock) -> None:
    pool = await pool_create(max_concurrent=10, retention=harn.Retention(count=50, age="1h"))

    for number in range(500):
        await (await pool.submit(nothing, idempotency_key=str(number)))

    assert len(pool.snapshot().tasks) == len(pool._slots.keys._bound) == 50
    assert (pool.snapshot().total, pool.snapshot().completed) == (500, 500)
    await clock.advance("2h")
    assert pool.snapshot().tasks == []
    assert not pool._slots.keys._bound


# Waiting for oneself.


async def test_I7_a_key_holds_up_to_its_age_and_no_longer(
    runtime: Runtime, clock: FakeClock
) -> None:
    pool = await pool_create(retention=harn.Retention(age="1m"))
    first = await pool.submit(lambda: 1, idempotency_key="k")
    await first

    await clock.advance("1m")
    kept = await pool.submit(lambda: 2, idempotency_key="k")
    await clock.advance("1ms")
    gone = await pool.submit(lambda: 3, idempotency_key="k")

    assert kept is first
    assert gone is not first


async def test_P9_a_closure_that_waits_for_its_own_full_pool_is_told() -> None:
    pool = await pool_create(max_concurrent=1)

    async def nested() -> Any:
        return await (await pool.submit(an_async_function))

    task = await pool.submit(nested)

    with pytest.raises(PoolTaskFailed) as caught:
        await task
    assert isinstance(caught.value.__cause__, DeadlockError)
    await fake_clock().settle()
    assert pool.snapshot().completed == 1


async def test_P9_a_closure_on_a_thread_that_waits_for_its_own_full_pool_is_told() -> None:
    pool = await pool_create(max_concurrent=2)
    both = threading.Barrier(2, timeout=30)

    def nested() -> Any:
        both.wait()
        return from_thread(from_thread(pool.submit, an_async_function).wait).result

    tasks = [await pool.submit(nested) for _ in range(2)]

    ended = sorted(await pool_wait(tasks), key=lambda each: each.status)
    assert [each.status for each in ended] == ["completed", "failed"]
    assert ended[0].result == "async"
    assert str(ended[1].error).startswith("DeadlockError")


async def test_P9_a_closure_that_submits_into_its_own_full_queue_is_told() -> None:
    pool = await pool_create(max_concurrent=1, backpressure=backpressure_queue(1))

    async def nested() -> None:
        await pool.submit(nothing)
        await pool.submit(nothing)

    task = await pool.submit(nested)

    with pytest.raises(PoolTaskFailed) as caught:
        await task
    assert isinstance(caught.value.__cause__, DeadlockError)


async def test_closing_a_pool_ends_no_wait_that_was_refused() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))

    async def use() -> None:
        pool = await pool_create(max_concurrent=1, backpressure=backpressure_queue(1))

        async def nested() -> None:
            await pool.submit(nothing)
            with pytest.raises(DeadlockError):
                await pool.submit(nothing)

        await (await pool.submit(nested))
        await pool.close()

    await use()
    gc.collect()  # an exception that no task has retrieved is only told when it is collected

    assert complaints == []


async def test_P9_nested_work_is_fine_while_a_slot_is_free() -> None:
    pool = await pool_create(max_concurrent=2)

    async def nested() -> Any:
        async with harn.scope():
            return await (await pool.submit(an_async_function))

    assert await (await pool.submit(nested)) == "async"


async def test_P9_only_the_last_of_several_waiting_closures_is_told() -> None:
    pool = await pool_create(max_concurrent=2)

    async def nested() -> Any:
        return await (await pool.submit(an_async_function))

    tasks = [await pool.submit(nested), await pool.submit(nested)]

    assert [seen.status for seen in await pool_wait(tasks)] == ["completed", "failed"]


async def test_P9_a_task_that_waits_for_itself_is_told_when_it_is_alone() -> None:
    pool = await pool_create(max_concurrent=3)
    holder: list[PoolTask] = []

    async def alone() -> None:
        await holder[0]

    _, gate = await blocked(pool)
    holder.append(await pool.submit(alone))
    await fake_clock().settle()
    assert holder[0].status == "running"

    gate.let_go.set()

    assert (await holder[0].wait()).status == "failed"


# Labels.


@pytest.mark.parametrize("priority", [2**53 + 1, -(2**63), 1.0, True, "7", None])
async def test_a_priority_that_no_journal_could_keep_is_refused(priority: Any) -> None:
    pool = await pool_create()

    with pytest.raises(InvalidOption, match="priority"):
        await pool.submit(nothing, priority=priority)
    assert pool.snapshot().total == 0


@pytest.mark.parametrize("label", ["prioritty", "idempotency_keys", "keyy"])
async def test_a_label_like_a_misspelt_option_is_refused(label: str) -> None:
    pool = await pool_create()
    labels: dict[str, Any] = {label: "x"}

    with pytest.raises(InvalidOption, match="did you mean"):
        await pool.submit(nothing, **labels)


async def test_a_fair_pool_falls_back_to_key_and_wants_strings() -> None:
    pool = await pool_create(queue=fair_round_robin("tenant_id"))
    order: list[object] = []
    _, gate = await blocked(pool)
    submits: list[dict[str, Any]] = [
        {"key": "a"},
        {"key": "a"},
        {"tenant_id": "a"},
        {"tenant_id": "b"},
        {"key": "c"},
        {},
    ]
    for number, options in enumerate(submits):
        last = await pool.submit(functools.partial(note, order, number), **options)

    with pytest.raises(InvalidOption, match="tenant_id"):
        await pool.submit(nothing, tenant_id=5)  # type: ignore[call-overload,call-arg]
    gate.let_go.set()
    await pool.close()

    assert last.status == "completed"
    assert order == [0, 3, 4, 5, 1, 2]


# The registry.


async def test_P10_names_are_unique_and_found_before_ids() -> None:
    first = await pool_create(name="review")
    named_like_an_id = await pool_create(name=first.id)

    with pytest.raises(PoolExists, match="pool_get"):
        await pool_create(name="review")

    assert pool_get("review") is first
    assert pool_get(first.id) is named_like_an_id
    assert pool_get("nobody") is None
    assert pool_get("review", required=True) is first
    with pytest.raises(PoolNotFound, match="no pool 'reveiw'; did you mean 'review'"):
        pool_get("reveiw", required=True)
    assert [pool.name for pool in pool_list()] == ["review", first.id]


@pytest.mark.parametrize("scope", ["tenant", "org"])
async def test_hosted_scopes_need_a_host(scope: Any) -> None:
    with pytest.raises(PoolScopeUnavailable, match="host-managed"):
        await pool_create(name="gpu", scope=scope)

    assert pool_list() == []


async def test_a_host_gives_the_runtime_its_tenant_pools() -> None:
    class Host:
        async def open_pool(self, options: Any, runtime: Runtime) -> Any:
            return harn.Pool(runtime, options, "pool_hosted")

    async with harn.Runtime(pool_host=Host()):
        pool = await pool_create(name="gpu", scope="tenant")

        assert pool_get("gpu") is pool
        assert await (await pool.submit(an_async_function)) == "async"


async def test_leaving_a_runtime_releases_the_pool_of_its_host() -> None:
    class Host:
        released: list[Any] = []

        async def open_pool(self, options: Any, runtime: Runtime) -> Any:
            return harn.Pool(runtime, options, "pool_hosted")

        async def release(self, pool: Any, runtime: Runtime) -> None:
            self.released.append((pool, runtime))

    async with harn.Runtime(pool_host=Host()) as runtime:
        pool = await pool_create(name="gpu", scope="tenant")

    assert Host.released == [(pool, runtime)]
    assert pool._slots.state == "open"


async def test_a_host_that_fails_keeps_no_other_pool_open() -> None:
    class Host:
        async def open_pool(self, options: Any, runtime: Runtime) -> Any:
            return harn.Pool(runtime, options, "pool_hosted")

        async def release(self, pool: Any, runtime: Runtime) -> None:
            raise RuntimeError("no host")

    with pytest.raises(RuntimeError, match="no host"):
        async with harn.Runtime(pool_host=Host()):
            await pool_create(name="gpu", scope="tenant")
            pool = await pool_create(name="review")
            running, _ = await blocked(pool)

    assert running.status == "cancelled"


async def test_a_simulated_restart_forgets_session_pools() -> None:
    pool = await pool_create(name="review")
    running, gate = await blocked(pool)
    queued = await pool.submit(nothing)

    pool_simulate_restart()

    assert pool_get("review") is None
    assert (await queued.wait()).stale_reason == "never_started"
    with pytest.raises(PoolNotFound, match=pool.id):
        await pool.submit(nothing)
    with pytest.raises(PoolNotFound):
        pool.snapshot()
    gate.let_go.set()
    assert (await running.wait()).status == "completed"
    assert (await pool_create(name="review")).snapshot().total == 0


async def test_P10_a_snapshot_leads_to_its_pool_though_another_is_named_like_its_id() -> None:
    pool = await pool_create(name="review")
    task = await pool.submit(an_async_function)

    namesake = await pool_create(name=pool.id)

    assert pool_get(pool.id) is namesake
    assert (await pool_wait(task.snapshot())).id == task.id


async def test_pool_wait_takes_snapshots_and_refuses_nonsense() -> None:
    pool = await pool_create(max_concurrent=2)
    tasks = [await pool.submit(an_async_function) for _ in range(3)]

    seen = await pool_wait([tasks[0], tasks[1].snapshot(), tasks[2].snapshot().as_dict()])

    assert [each.id for each in seen] == [task.id for task in tasks]
    assert await pool_wait([]) == []
    nonsense: tuple[Any, ...] = (3, "x", [3], {"id": "x"})
    for wrong in nonsense:
        with pytest.raises(InvalidOption):
            await pool_wait(wrong)
    with pytest.raises(PoolNotFound):
        await pool_wait({"id": "x", "pool_id": "nobody"})
    with pytest.raises(PoolNotFound):
        await pool_wait({"id": "x", "pool_id": pool.id})


async def test_unsettled_state_lists_the_queued_then_the_running(clock: FakeClock) -> None:
    pool = await pool_create(name="review")
    running, gate = await blocked(pool, priority=2, key="k")
    queued = [await pool.submit(nothing, priority=n, idempotency_key=str(n)) for n in range(2)]
    await clock.advance("3s")

    pending = unsettled_state().pool_pending_tasks

    assert [each.task_id for each in pending] == [queued[0].id, queued[1].id, running.id]
    assert pending[2].as_dict() == {
        "id": running.id,
        "task_id": running.id,
        "pool_id": pool.id,
        "pool_name": "review",
        "status": "running",
        "priority": 2,
        "key": "k",
        "idempotency_key": None,
        "submitted_at": "2026-01-01T00:00:00.000Z",
        "submitted_at_ms": 1767225600000,
        "submitted_by": "user",
        "started_at": "2026-01-01T00:00:00.000Z",
        "age_ms": 3000,
    }
    gate.let_go.set()
    await pool.close()
    assert unsettled_state().pool_pending_tasks == []


async def test_submitted_by_names_the_first_that_is_known() -> None:
    known: list[tuple[dict[str, Any], str]] = [
        ({"workflow_id": "w", "agent_session_id": "a", "worker_id": "k"}, "w"),
        ({"agent_session_id": "a", "worker_id": "k"}, "a"),
        ({"worker_id": "k"}, "k"),
        ({}, "user"),
    ]
    for options, expected in known:
        async with harn.Runtime(**options):
            task = await (await pool_create()).submit(nothing)
            assert task.submitted_by == (await task.wait()).submitted_by == expected


# Closing.


async def test_close_finishes_everything_and_frees_the_name() -> None:
    pool = await pool_create(name="review", max_concurrent=2)
    tasks = [await pool.submit(an_async_function) for _ in range(10)]

    await pool.close()

    assert all(task.status == "completed" for task in tasks)
    assert pool_get("review") is None
    with pytest.raises(PoolClosed):
        await pool.submit(nothing)
    await pool.close()
    await pool_create(name="review")


async def test_close_sends_blocked_submitters_away() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1))
    _, gate = await blocked(pool)
    await pool.submit(nothing)
    parked = asyncio.ensure_future(pool.submit(nothing))
    await asyncio.sleep(0)

    closing = asyncio.ensure_future(pool.close())
    with pytest.raises(PoolClosed):
        await parked
    gate.let_go.set()
    await closing

    assert pool.snapshot().total == 2


async def test_close_with_cancel_ends_running_and_queued_work() -> None:
    pool = await pool_create()
    running, _ = await blocked(pool)
    queued = await pool.submit(nothing)

    await pool.close(cancel=True)

    assert (running.status, queued.status) == ("cancelled", "cancelled")


async def test_leaving_the_runtime_cancels_what_runs() -> None:
    async with harn.Runtime():
        pool = await pool_create()
        running, _ = await blocked(pool)
        queued = await pool.submit(nothing)

    assert (running.status, queued.status) == ("cancelled", "cancelled")


@pytest.mark.parametrize("on_a_thread", [False, True])
async def test_a_closure_cannot_close_its_own_pool(on_a_thread: bool) -> None:
    pool = await pool_create()
    close = functools.partial(from_thread, pool.close) if on_a_thread else pool.close

    task = await pool.submit(close)

    with pytest.raises(PoolTaskFailed) as caught:
        await task
    assert isinstance(caught.value.__cause__, DeadlockError)


async def test_P11_a_closed_pool_leaves_no_task_and_no_thread() -> None:
    before = asyncio.all_tasks(), threading.active_count()
    async with await pool_create(max_concurrent=3) as pool:
        await pool_wait([await pool.submit(lambda: None) for _ in range(9)])
        await pool_wait([await pool.submit(nothing) for _ in range(9)])

    assert (asyncio.all_tasks(), threading.active_count()) == before


async def test_an_idle_pool_has_no_tasks_of_its_own() -> None:
    before = asyncio.all_tasks()
    pool = await pool_create(max_concurrent=3)
    await pool_wait([await pool.submit(nothing) for _ in range(9)])

    await fake_clock().settle()

    assert asyncio.all_tasks() == before


async def test_an_exception_out_of_the_block_cancels_the_pool() -> None:
    with pytest.raises(ValueError):
        async with await pool_create() as pool:
            running, _ = await blocked(pool)
            raise ValueError

    assert running.status == "cancelled"


async def test_a_pool_may_run_its_closures_in_processes() -> None:
    pool = await pool_create(isolation="process")

    import os

    assert await (await pool.submit(os.getpid)) != os.getpid()
    await pool.close()


async def test_a_snapshot_shows_what_was_configured() -> None:
    pool = await pool_create(
        name="review", queue=fair_round_robin("tenant_id"), backpressure=backpressure_queue(5)
    )

    seen = pool.snapshot().as_dict()

    assert seen["_type"] == "pool"
    assert seen["queue"] == {
        "_type": "queue_strategy",
        "kind": "fair_round_robin",
        "key": "tenant_id",
    }
    assert seen["queue_strategy"] == "fair_round_robin"
    assert seen["backpressure"] == {
        "_type": "backpressure",
        "kind": "queue",
        "max_depth": 5,
        "on_full": "block_submitter",
    }
    assert seen["config"]["max_concurrent"] == 1
    assert seen["stale_after_ms"] == 30_000
    assert seen["scope_id"] is None


async def test_metrics_tell_the_counts_of_each_pool(runtime: Runtime) -> None:
    from harn.telemetry.metrics import Metrics

    pool = await pool_create(name="review")
    await (await pool.submit(nothing))

    text = runtime.service(Metrics).exposition()

    assert 'harn_pool_tasks_total{pool="review",status="completed"} 1.0' in text
    assert 'harn_pool_slots{pool="review"} 1.0' in text


async def test_a_task_whose_worker_dies_before_it_began_runs_with_another(runtime: Runtime) -> None:
    pool = await pool_create()
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("red")

    async def look() -> str:
        return colour.get()

    task = await pool.submit(look)
    colour.set("blue")
    [worker] = pool._slots.workers
    worker.aio.cancel()

    assert await task == "red"
    assert worker not in pool._slots.workers


# -- what is submitted -------------------------------------------------------------------------


async def _times(a: int, b: int = 2, *, c: int = 1) -> int:
    return a * b * c


class _Adder:
    def __call__(self, n: int) -> int:
        return n + 1


@pytest.mark.parametrize(
    ("fn", "args", "result"),
    [
        (lambda: 1, (), 1),
        (lambda n: n, (7,), 7),
        (lambda n=3: n, (), 3),
        (lambda *n: n, (1, 2), (1, 2)),
        (lambda n: n, ({"priority": 5},), {"priority": 5}),
        (_times, (3,), 6),
        (_times, (3, 5), 15),
        (functools.partial(_times, 3), (5,), 15),
        (functools.partial(_times, b=5), (3,), 15),
        (_Adder(), (1,), 2),
        (len, ("abc",), 3),
        (dict, (), {}),
    ],
)
async def test_the_arguments_of_submit_go_to_the_function(fn: Any, args: Any, result: Any) -> None:
    pool = await pool_create(max_concurrent=2)

    assert await (await pool.submit(fn, *args, key="k")) == result
    assert await pool.submit_nowait(fn, *args) == result


@pytest.mark.parametrize(
    ("fn", "args", "said"),
    [
        (lambda x: 1, (), "x"),
        (_times, (), "a"),
        (_times, (1, 2, 3), "too many"),
        (functools.partial(_times, 1, 2), (3,), "too many"),
        (functools.partial(cast(Any, _times), 1, d=2), (), "d"),
        (_Adder(), (), "n"),
        (lambda: 1, ({"priority": 5},), "options are keywords"),
        (_Adder().__call__, (1, 2), "too many"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_at_once(fn: Any, args: Any, said: str) -> None:
    pool = await pool_create()

    with pytest.raises(TypeError, match=said):
        await pool.submit(fn, *args)
    with pytest.raises(TypeError, match=said):
        pool.submit_nowait(fn, *args)

    assert pool.snapshot().total == 0


async def test_pool_create_says_that_its_options_are_keywords() -> None:
    with pytest.raises(TypeError, match="options are keywords"):
        await pool_create({"name": "review"})  # type: ignore[call-arg, arg-type]

    assert "name" in inspect.signature(pool_create).parameters
    assert inspect.iscoroutinefunction(pool_create)


async def test_a_durable_function_is_journalled_with_the_arguments_of_submit(
    tmp_path: Path,
) -> None:
    async with Runtime(state_dir=tmp_path, pipeline_id="p"):
        pool = await pool_create(name="review", scope="pipeline")
        task = await pool.submit(_durable_double, 21)
        assert await task == 42

    [journal] = (tmp_path / "pools").rglob("*.jsonl")
    assert "tests:double" in journal.read_text() and "[[21],{}]" in journal.read_text()


@durable(name="tests:double")
def _durable_double(n: int) -> int:
    return 2 * n


async def test_a_pool_shows_its_public_surface_and_nothing_else(runtime: Runtime) -> None:
    pool = await pool_create(name="shown")

    shown = {name for name in dir(pool) if not name.startswith("_")}

    assert shown == {
        *("id", "name", "max_concurrent", "scope", "scope_id", "created_at"),
        *("submit", "submit_nowait", "submit_many", "size", "snapshot", "close"),
    }


async def test_every_test_here_runs_with_the_shortcuts_and_without_them(
    request: pytest.FixtureRequest,
) -> None:
    is_plain = request.node.callspec.params["pool_path"] == "plain"

    assert (Slots.complete.__module__ != "harn.pools.slots") is is_plain

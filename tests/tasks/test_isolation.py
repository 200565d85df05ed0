"""Threads and processes: plain functions never block the loop, and no worker is ever lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    HarnError,
    InvalidOption,
    Runtime,
    TaskCancelled,
    WorkerDied,
    from_thread,
    is_cancelled,
    parallel_each,
    parallel_settle,
    runtime_context,
    scope,
    spawn,
)
from harn.tasks import Isolation, cancel, threads


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("harn-")]


# Functions for worker processes: found by name over there.


def square(n: int) -> int:
    return n * n


async def async_square(n: int) -> int:
    await asyncio.sleep(0)
    return n * n


def die(n: int) -> int:
    if n == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def leave() -> None:
    raise SystemExit(3)


def fail_there() -> None:
    raise KeyError("over there")


def wait_for_file(path: str) -> int:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    threading.Event().wait()
    return 0


def unpicklable() -> Any:
    return threading.Lock()


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot travel")
        self.lock = threading.Lock()


def raise_unpicklable() -> None:
    raise Unpicklable


class Unprintable(Unpicklable):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_unprintable() -> None:
    raise Unprintable


class OneWay:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("not here")


def who() -> Any:
    context = runtime_context()
    ids = (context.task_id, context.parent_task_id, context.root_task_id, context.task_group_id)
    return *ids, context.task_name, context.tenant_id, context.context_values, os.getpid()


def mutate(items: list[int]) -> list[int]:
    items.append(99)
    return items


async def test_a_blocking_function_does_not_block_the_loop(runtime: Runtime) -> None:
    release = threading.Event()
    handle = spawn(release.wait)
    await turns(50)
    assert not handle.done()
    assert runtime.clock.activity.working == 1

    release.set()

    assert await handle is True
    assert runtime.clock.activity.working == 0


async def test_threads_are_bounded_and_gone_with_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harn.tasks.isolation.MAX_THREADS", 3)
    running, most = 0, 0
    lock = threading.Lock()

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1

    before = set(threading.enumerate())
    async with Runtime():
        async with scope():
            for n in range(20):
                spawn(work, n)
        ours = set(threading.enumerate()) - before
        assert len(ours) == 3

    assert most <= 3
    assert not any(each.is_alive() for each in ours)


async def test_a_thread_that_cannot_start_fails_its_task_only(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = threads.Threads(runtime, 1)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_room)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await one.call(len, "four")

    assert runtime.clock.activity.working == 0
    async with asyncio.timeout(10):
        assert await one.call(len, "four") == 4
    await one.aclose()


async def test_the_context_travels_into_the_thread(runtime: Runtime) -> None:
    harn.runtime_context_set("colour", "red")

    def inside() -> Any:
        return runtime_context().task_id, harn.runtime_context_get("colour")

    assert await spawn(inside, name="t") == ("task_root:spawn:1", "red")


@pytest.mark.parametrize("exit", [SystemExit(2), KeyboardInterrupt(), GeneratorExit()])
async def test_an_exit_on_a_thread_fails_its_task_and_no_other(
    runtime: Runtime, exit: BaseException
) -> None:
    def exits() -> None:
        raise exit

    handle = spawn(exits)
    with pytest.raises(HarnError, match=type(exit).__name__) as caught:
        await handle

    assert caught.value.__cause__ is exit
    assert await spawn(lambda: "still here") == "still here"


async def test_a_stop_iteration_fails_its_task(runtime: Runtime) -> None:
    def stops() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await spawn(stops)


async def test_a_cancelled_thread_sees_it_and_its_scope_waits_for_it(runtime: Runtime) -> None:
    ended = []
    started = threading.Event()

    def works() -> str:
        started.set()
        while not is_cancelled():
            threading.Event().wait(0.001)
        ended.append(True)
        return "dropped"

    async with scope() as s:
        handle = spawn(works)
        await until(started.is_set)
        s.cancel()

    assert ended == [True]
    assert handle.status == "cancelled"


async def test_a_function_that_has_not_begun_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harn.tasks.isolation.MAX_THREADS", 1)
    begun: list[int] = []
    release = threading.Event()
    async with Runtime() as runtime:
        first = spawn(release.wait)
        second = spawn(begun.append, 2)
        await turns()
        second.cancel()
        with pytest.raises(TaskCancelled):
            await second
        assert runtime.clock.activity.working == 1
        release.set()
        await first

    assert begun == []


async def test_a_deadline_around_a_thread_does_not_mark_the_surrounding_task(
    runtime: Runtime, clock: Any
) -> None:
    started, seen = threading.Event(), []

    def works() -> None:
        started.set()
        while not is_cancelled():
            threading.Event().wait(0.001)
        seen.append(True)

    async def main() -> bool:
        try:
            async with harn.deadline("1s"):
                await harn.retry(1, works)
        except harn.DeadlineExceeded:
            pass
        return is_cancelled()

    task = spawn(main)
    await until(started.is_set)
    await clock.advance("2s")

    assert await task is False
    assert seen == [True]


async def test_a_thread_that_does_not_stop_is_reported_and_at_last_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "REPORT_AFTER", 0.01)
    monkeypatch.setattr(threads, "ABANDON_AFTER", 0.03)
    release = threading.Event()
    ran_on: list[threading.Thread] = []

    def deaf() -> None:
        ran_on.append(threading.current_thread())
        release.wait()

    async with Runtime():
        spawn(deaf, name="deaf")
        await until(lambda: bool(ran_on))

    assert "still runs on harn-worker-1 0.01 s after its cancel" in caplog.text
    assert "'deaf'> is abandoned: harn-worker-1 still runs it" in caplog.text
    release.set()
    await until(lambda: not ran_on[0].is_alive())
    await turns()


async def test_cancel_graceful_calls_a_thread_that_will_not_stop_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancel, "REPORT_AFTER", 0.01)
    release, started = threading.Event(), threading.Event()

    def deaf() -> None:
        started.set()
        release.wait()

    async with Runtime():
        handle = spawn(deaf)
        await until(started.is_set)
        result = await harn.cancel_graceful(handle, "1ms")
        assert "abandoned: harn-worker-1 still runs" in str(harn.unwrap_err(result))
        assert handle.status == "running"
        release.set()


async def test_a_plain_function_may_run_on_the_loop_when_asked(runtime: Runtime) -> None:
    here = threading.current_thread().name
    name = await spawn(lambda: threading.current_thread().name, isolation="task")
    assert name == here


async def test_an_async_function_on_a_thread_has_a_loop_of_its_own(runtime: Runtime) -> None:
    here = asyncio.get_running_loop()

    async def inside() -> Any:
        async with scope():
            spawn(asyncio.sleep, 0)
        other = asyncio.get_running_loop() is not here
        return other, threading.current_thread().name[:11], runtime_context().task_id

    assert await spawn(inside, isolation="thread") == (True, "harn-worker", "task_root:spawn:1")


async def test_a_cancel_interrupts_an_async_function_on_a_thread(runtime: Runtime) -> None:
    began, seen = threading.Event(), []

    async def inside() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(is_cancelled())
            raise

    handle = spawn(inside, isolation="thread")
    await until(began.is_set)
    handle.cancel()

    with pytest.raises(TaskCancelled):
        await handle
    assert seen == [True]


async def test_a_deadline_interrupts_async_functions_on_threads_early_and_late() -> None:
    async def inside(_: int) -> None:
        await asyncio.Event().wait()

    async with Runtime():
        for patience in (0, "1ms", "2ms", "5ms", "50ms"):
            with pytest.raises(harn.DeadlineExceeded):
                async with harn.deadline(patience):
                    await parallel_each(range(3), inside, isolation="thread")


async def test_a_loop_of_its_own_cannot_await_a_task_of_another(runtime: Runtime) -> None:
    gate = asyncio.Event()
    handle = spawn(gate.wait)

    async def inside() -> Any:
        return await handle

    with pytest.raises(HarnError, match="another event loop"):
        await spawn(inside, isolation="thread")
    gate.set()
    assert await handle


async def note_and_count() -> bool:
    await harn.event_log_emit("apart", "noted", {"by": runtime_context().task_id})
    return (await harn.durable_rate_limit_acquire(key="apart", limit=1, timeout_ms=0)).ok


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_what_is_durable_is_the_same_in_a_loop_of_its_own(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with Runtime(state_dir=tmp_path):
        assert await spawn(note_and_count, isolation=isolation)

        noted = await harn.event_log_read("apart")
        assert [event.payload["by"] for event in noted] == ["task_root:spawn:1"]
        assert not await note_and_count()  # the quota is one and the same


async def test_from_thread_reaches_the_loop_as_the_same_task(runtime: Runtime) -> None:
    async def on_loop(n: int) -> Any:
        await asyncio.sleep(0)
        return n, runtime_context().task_id, threading.current_thread().name

    def works() -> Any:
        with pytest.raises(ZeroDivisionError):
            from_thread(lambda: 1 / 0)
        with pytest.raises(TimeoutError):
            from_thread(_timeout)
        return from_thread(on_loop, 4)

    here = threading.current_thread().name
    assert await spawn(works) == (4, "task_root:spawn:1", here)
    with pytest.raises(HarnError, match="for worker threads"):
        from_thread(turns)


async def test_a_thread_starts_tasks_through_the_loop(runtime: Runtime) -> None:
    def works() -> Any:
        with pytest.raises(HarnError, match=r"from_thread\(spawn, fn\)"):
            spawn(turns)
        handle = from_thread(spawn, async_square, 3)
        return handle.task_id, from_thread(handle.wait)

    async with scope():
        assert await spawn(works) == ("task_root:spawn:1:spawn:2", 9)


async def _timeout() -> None:
    raise TimeoutError


async def test_cancelling_a_task_interrupts_what_its_thread_does_on_the_loop(
    runtime: Runtime,
) -> None:
    seen: list[str] = []

    async def forever() -> None:
        seen.append("waiting")
        await asyncio.get_running_loop().create_future()

    async def tidy() -> None:
        seen.append("tidied")

    def works() -> None:
        try:
            from_thread(forever)
        except asyncio.CancelledError:
            seen.append("cancelled")
            from_thread(tidy)  # a cancel is delivered once
            raise

    handle = spawn(works)
    await until(lambda: seen)
    handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle

    assert seen == ["waiting", "cancelled", "tidied"]


async def test_a_handle_may_be_cancelled_from_a_thread(runtime: Runtime) -> None:
    handle = spawn(turns, 10**9)
    await spawn(handle.cancel)
    with pytest.raises(TaskCancelled):
        await handle


async def test_a_process_copies_values_both_ways_and_knows_who_it_is() -> None:
    async with Runtime(tenant_id="acme"):
        harn.runtime_context_set("colour", "red")
        items = [1]
        assert await spawn(mutate, items, isolation="process") == [1, 99]
        assert items == [1]
        assert await spawn(async_square, 4, isolation="process") == 16

        *ids, pid = await spawn(who, name="far", isolation="process")
        assert ids == [
            "task_root:spawn:3",
            "task_root",
            "task_root",
            None,
            "far",
            "acme",
            {"colour": "red"},
        ]
        assert pid != os.getpid()


async def test_a_killed_worker_fails_only_its_own_task_and_the_next_one_works() -> None:
    async with Runtime():
        settled = await parallel_settle(range(4), die, max_concurrent=2, isolation="process")

        assert [harn.is_ok(result) for result in settled.results] == [True, False, True, True]
        error = harn.unwrap_err(settled.results[1])
        assert isinstance(error, WorkerDied)
        assert "by signal SIGKILL while it ran die" in str(error)
        assert await spawn(square, 3, isolation="process") == 9


async def test_errors_come_back_from_a_process_as_they_were_or_as_text() -> None:
    async with Runtime():
        with pytest.raises(KeyError, match="over there") as caught:
            await spawn(fail_there, isolation="process")
        assert "in fail_there" in caught.value.__notes__[0]
        with pytest.raises(HarnError, match="SystemExit: 3"):
            await spawn(leave, isolation="process")
        with pytest.raises(HarnError, match=r"the result \(lock\) cannot be copied"):
            await spawn(unpicklable, isolation="process")
        with pytest.raises(HarnError, match="Unpicklable: cannot travel"):
            await spawn(raise_unpicklable, isolation="process")
        with pytest.raises(HarnError, match=r"Unprintable: .its message cannot be shown"):
            await spawn(raise_unprintable, isolation="process")
        with pytest.raises(HarnError, match=r"cannot be copied.*ValueError: not here"):
            await spawn(OneWay, isolation="process")
        with pytest.raises(InvalidOption, match="module-level"):
            await spawn(lambda: 1, isolation="process")
        assert await parallel_each([2, 3], square, isolation="process") == [4, 9]


async def test_cancelling_a_task_kills_its_process(tmp_path: Any) -> None:
    started = tmp_path / "started"
    async with Runtime():
        handle = spawn(wait_for_file, str(started), isolation="process")
        await until(lambda: started.exists() and started.read_text())
        pid = int(started.read_text())
        handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle
        assert not os.path.exists(f"/proc/{pid}") or _is_zombie(pid)
        assert await spawn(square, 5, isolation="process") == 25
    assert [n for n in worker_threads() if "process" in n] == []
    assert multiprocessing.active_children() == []


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] == "Z"


async def test_a_runner_of_its_own_has_a_bound_of_its_own(runtime: Runtime) -> None:
    from harn.tasks import is_async_callable, runner_for

    runner = runner_for(runtime, "thread", 2)
    names = set()
    call = runner.bind(lambda: names.add(threading.current_thread().name))

    await asyncio.gather(*[call() for _ in range(10)])

    assert len(names) <= 2
    assert is_async_callable(turns)
    await runner.aclose()
    with pytest.raises(HarnError, match="closed"):
        await call()

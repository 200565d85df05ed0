"""Spawning, awaiting, cancelling: what a handle shows and what it never does."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import threading
from typing import Any

import pytest

import harn
from harn import (
    Err,
    InvalidOption,
    Ok,
    Runtime,
    TaskCancelled,
    cancel_graceful,
    is_cancelled,
    runtime_context,
    spawn,
    wait_agent,
)
from harn.testing import FakeClock


class Boom(Exception):
    pass


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def give(value: Any) -> Any:
    await turns()
    return value


async def fail() -> None:
    await turns(2)
    raise Boom("boom")


class Callable_:
    async def __call__(self, value: int) -> int:
        return value + 1

    async def method(self, value: int) -> int:
        return value + 2

    def plain(self, value: int) -> str:
        return threading.current_thread().name


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (give, 1),
        (functools.partial(give), 1),
        (lambda value: value, 1),
        (lambda value: give(value), 1),
        (Callable_(), 2),
        (Callable_().method, 3),
        (functools.partial(Callable_()), 2),
    ],
)
async def test_everything_callable_can_be_spawned(
    runtime: Runtime, fn: Any, expected: object
) -> None:
    assert await spawn(fn, 1) == expected


async def test_a_plain_function_runs_on_a_worker_thread(runtime: Runtime) -> None:
    assert (await spawn(Callable_().plain, 1)).startswith("harn-worker-")


async def test_a_handle_can_be_awaited_many_times_and_by_many(runtime: Runtime) -> None:
    handle = spawn(give, 5)

    async def waits() -> Any:
        return await handle

    assert list(await asyncio.gather(waits(), waits())) == [5, 5]
    assert await handle == 5
    assert (handle.status, handle.done()) == ("completed", True)


async def test_awaiting_gives_the_tasks_own_exception_each_time(runtime: Runtime) -> None:
    handle = spawn(fail)

    for _ in range(2):
        with pytest.raises(Boom, match="boom"):
            await handle
    assert handle.status == "failed"


async def test_awaiting_a_cancelled_task_says_so_without_cancelling_the_awaiter(
    runtime: Runtime,
) -> None:
    handle = spawn(forever)
    before = handle.status
    handle.cancel()

    with pytest.raises(TaskCancelled, match=handle.task_id):
        await handle
    assert (before, handle.status) == ("running", "cancelled")
    handle.cancel()  # harmless


async def test_a_task_that_returns_has_ended_in_the_same_turn_of_the_loop(
    runtime: Runtime,
) -> None:
    async def seven() -> int:
        return 7

    handle = spawn(seven)

    await asyncio.sleep(0)

    assert (handle.status, handle.result()) == ("completed", 7)


async def test_a_task_that_cancels_itself_and_returns_has_been_cancelled(runtime: Runtime) -> None:
    async def cancels_itself() -> int:
        handles[0].cancel()
        return 7

    handles = [spawn(cancels_itself)]

    await turns()

    assert handles[0].status == "cancelled"


@pytest.mark.parametrize("started", [False, True])
async def test_a_scope_ends_when_asyncio_cancels_its_task_directly(
    runtime: Runtime, started: bool
) -> None:
    async with harn.scope() as block:
        handle = block.spawn(forever)
        if started:
            await asyncio.sleep(0)
        assert handle._task.aio is not None
        handle._task.aio.cancel()

    assert handle.status == "cancelled"


async def test_cancelling_the_one_who_waits_leaves_the_task_alone(runtime: Runtime) -> None:
    handle = spawn(give, 3)

    async def waits() -> Any:
        return await handle

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))

    assert waiting.cancelled()
    assert await handle == 3


async def test_a_coroutine_object_is_refused_with_the_way_out(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match=r"the function itself: give, not give\(\)"):
        spawn(give(1))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"isolation": "treads"}, "isolation='treads'.*did you mean 'thread'"),
        ({"isolation": None}, "isolation=None"),
        ({"name": ""}, "name=''"),
        ({"name": 3}, "name=3"),
    ],
)
async def test_a_wrong_option_is_named(runtime: Runtime, options: Any, match: str) -> None:
    with pytest.raises(InvalidOption, match=match):
        spawn(turns, **options)


async def test_a_task_that_awaits_itself_is_told(runtime: Runtime) -> None:
    handles: list[Any] = []

    async def awaits_itself() -> None:
        await handles[0]

    handles.append(spawn(awaits_itself))
    with pytest.raises(harn.DeadlockError, match="awaits itself"):
        await handles[0]


async def test_the_context_of_a_task_shows_its_place_in_the_tree(runtime: Runtime) -> None:
    harn.runtime_context_set("colour", "red")

    async def grandchild() -> Any:
        return runtime_context()

    async def child() -> Any:
        harn.runtime_context_set("colour", "blue")
        return runtime_context(), await spawn(grandchild, name="leaf")

    spawn(turns)
    own, leaf = await spawn(child)

    assert (own.task_id, own.parent_task_id, own.task_name) == (
        "task_root:spawn:2",
        "task_root",
        "spawn",
    )
    assert (leaf.task_id, leaf.root_task_id, leaf.task_name) == (
        "task_root:spawn:2:spawn:1",
        "task_root",
        "leaf",
    )
    assert leaf.context_values == {"colour": "blue"}
    assert harn.runtime_context_get("colour") == "red"


async def test_N5_a_detached_task_is_held_until_it_is_done(runtime: Runtime) -> None:
    done = []

    async def work() -> None:
        await turns(20)
        done.append(True)

    spawn(work)
    gc.collect()
    await turns(30)

    assert done == [True]
    assert runtime.tasks == {runtime.root}


async def test_N5_the_error_of_a_detached_task_is_logged_once_when_its_handle_is_gone(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    handle: Any = spawn(fail)
    await turns(10)
    assert caplog.records == []  # it may still be awaited

    del handle
    gc.collect()

    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "task_root:spawn:1 (spawn) failed and was not awaited" in caplog.text
    assert "Boom: boom" in caplog.text


async def test_N5_the_error_of_a_detached_task_is_logged_at_the_end_of_the_runtime(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Runtime():
        handle = spawn(fail)
        await turns(10)

    assert len(caplog.records) == 1
    del handle
    gc.collect()
    assert len(caplog.records) == 1


async def test_an_error_that_was_awaited_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime():
        handle: Any = spawn(fail)
        late: Any = spawn(fail)
        with pytest.raises(Boom):
            await handle
        await turns(10)
        with pytest.raises(Boom):
            await late
        del handle, late
        gc.collect()

    assert caplog.records == []


async def test_leaving_the_runtime_cancels_and_awaits_what_is_detached() -> None:
    tidied = []

    async def work() -> None:
        try:
            await forever()
        finally:
            tidied.append(is_cancelled())
            await turns()

    async with Runtime():
        handle = spawn(work)
        await turns()

    assert tidied == [True]
    assert handle.status == "cancelled"
    with pytest.raises(harn.HarnError, match="has been closed"):
        async with Runtime() as left:
            pass
        with pytest.MonkeyPatch.context():
            harn.context.current_frame_var.set(left.frame)
            spawn(turns)


async def test_cancel_graceful_lets_a_task_finish_by_itself(runtime: Runtime) -> None:
    async def polite() -> str:
        while not is_cancelled():
            await asyncio.sleep(0)
        return "bye"

    handle = spawn(polite)
    assert await cancel_graceful(handle) == Ok("bye")
    assert handle.status == "completed"
    assert await cancel_graceful(handle) == Ok("bye")


async def test_cancel_graceful_aborts_a_task_that_does_not_listen(
    runtime: Runtime, clock: FakeClock
) -> None:
    handle = spawn(forever)
    asking = asyncio.create_task(cancel_graceful(handle, "2s"))
    await clock.advance("1s")
    before = handle.status
    await clock.advance("2s")

    result = await asking
    assert isinstance(result, Err)
    assert isinstance(result.error, TaskCancelled)
    assert "timeout, task forcefully aborted" in str(result.error)
    assert (before, handle.status) == ("running", "cancelled")


async def test_cancel_graceful_gives_the_failure_as_a_value_also_inside_a_scope(
    runtime: Runtime,
) -> None:
    async def fails_when_asked() -> None:
        while not is_cancelled():
            await asyncio.sleep(0)
        raise Boom("asked")

    async with harn.scope():
        result = await cancel_graceful(spawn(fails_when_asked))
        await turns()

    assert isinstance(result, Err)
    assert str(result.error) == "asked"


async def test_cancel_graceful_refuses_what_is_not_a_task_and_ones_own(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption):
        await cancel_graceful("no handle")  # type: ignore[arg-type]

    async def own(handles: list[Any]) -> None:
        await cancel_graceful(handles[0])

    handles: list[Any] = []
    handles.append(spawn(own, handles))
    with pytest.raises(InvalidOption, match="wait for itself"):
        await handles[0]


async def test_is_cancelled_reaches_the_children_that_the_parent_outlives(
    runtime: Runtime,
) -> None:
    seen = []

    async def grandchild() -> None:
        while not is_cancelled():
            await asyncio.sleep(0)
        seen.append("grandchild")

    async def child() -> None:
        async with harn.scope():
            spawn(grandchild)

    handle = spawn(child)
    await turns()
    assert isinstance(await cancel_graceful(handle), Ok)

    assert seen == ["grandchild"]


async def test_is_cancelled_reaches_a_detached_child_which_is_not_interrupted(
    runtime: Runtime,
) -> None:
    async def grandchild() -> str:
        while not is_cancelled():
            await asyncio.sleep(0)
        return "drained"

    async def child() -> str:
        started.append(mine := spawn(grandchild))
        try:
            return await mine
        except TaskCancelled:
            return await mine

    started: list[Any] = []
    kindly, hard = spawn(child), spawn(child)
    await turns()

    assert await cancel_graceful(kindly) == Ok("drained")

    hard.cancel()
    with pytest.raises(TaskCancelled):
        await hard
    assert [await each for each in started] == ["drained", "drained"]


async def test_wait_agent_takes_one_or_many_of_anything_with_wait(runtime: Runtime) -> None:
    class Supervisor:
        async def wait(self) -> str:
            return "stopped"

    assert await wait_agent(spawn(give, 1)) == 1
    assert await wait_agent([spawn(give, 1), Supervisor(), give(3)]) == [1, "stopped", 3]
    assert await wait_agent([]) == []
    for wrong in (3, "text", [spawn(give, 1), 3]):
        with pytest.raises(InvalidOption, match="a task handle"):
            await wait_agent(wrong)  # type: ignore[arg-type]


async def test_a_task_that_waits_for_others_says_so(runtime: Runtime) -> None:
    from harn.tasks import AwaitingTasks

    inner = spawn(forever)

    async def waits() -> None:
        await inner

    outer = spawn(waits)
    await turns()
    waiting = outer._task.waiting

    assert isinstance(waiting, AwaitingTasks)
    assert list(waiting.tasks) == [inner._task]
    inner.cancel()
    with pytest.raises(TaskCancelled):
        await outer
    assert outer._task.waiting is None

    foreign = asyncio.create_task(waits())  # has our context, but is not our task
    await asyncio.sleep(0)
    assert runtime.root.waiting is None
    await asyncio.wait((foreign,))
    foreign.exception()

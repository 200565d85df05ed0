"""Scopes: everything spawned inside has ended when the block has."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import harn
from harn import Runtime, TaskCancelled, defer, scope, spawn
from harn.testing import FakeClock


class Boom(Exception):
    pass


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def fail_after(n: int, text: str = "boom") -> None:
    await turns(n)
    raise Boom(text)


async def test_reaching_the_end_joins_every_task(runtime: Runtime) -> None:
    ended: list[int] = []

    async def child(n: int) -> None:
        await turns(n)
        ended.append(n)

    async with scope() as s:
        spawn(child, 3)
        s.spawn(child, 1)
        assert ended == []

    assert ended == [1, 3]


async def test_return_and_break_join_too(runtime: Runtime) -> None:
    ended: list[str] = []

    async def child(name: str) -> None:
        await turns()
        ended.append(name)

    async def returns() -> str:
        async with scope():
            spawn(child, "return")
            return "value"
        raise AssertionError("the block ended before its return")

    assert await returns() == "value"
    for _ in range(2):
        async with scope():
            spawn(child, "break")
            break

    assert ended == ["return", "break"]


async def test_N2_the_first_failure_in_time_is_raised_itself_and_the_others_are_notes(
    runtime: Runtime,
) -> None:
    async def fails_when_cancelled() -> None:
        try:
            await forever()
        finally:
            raise Boom("late")

    with pytest.raises(Boom, match="early") as caught:
        async with scope():
            spawn(fails_when_cancelled)
            spawn(fail_after, 9, "never")
            spawn(fail_after, 2, "early")

    assert caught.value.__notes__ == ["also: Boom: late"]


async def test_a_failing_child_interrupts_the_body(runtime: Runtime) -> None:
    reached = False
    with pytest.raises(Boom):
        async with scope():
            spawn(fail_after, 1)
            await forever()
            reached = True

    assert not reached
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await turns()  # no cancel lies in wait for us


async def test_siblings_are_cancelled_and_awaited_before_the_error_comes_out(
    runtime: Runtime,
) -> None:
    tidied = []

    async def sibling() -> None:
        try:
            await forever()
        finally:
            await turns()
            tidied.append(True)

    with pytest.raises(Boom):
        async with scope():
            handle = spawn(sibling)
            spawn(fail_after, 1)

    assert tidied == [True]
    assert handle.status == "cancelled"


async def test_an_exception_out_of_the_block_cancels_what_is_left(runtime: Runtime) -> None:
    with pytest.raises(Boom, match="body"):
        async with scope():
            handle = spawn(forever)
            await turns()
            raise Boom("body")

    assert handle.status == "cancelled"


async def test_the_error_of_an_awaited_child_comes_out_at_that_await(runtime: Runtime) -> None:
    went_on = False
    async with scope():
        sibling = spawn(turns, 20)
        handle = spawn(fail_after, 2)
        with pytest.raises(Boom):
            await handle
        await turns()
        went_on = True

    assert went_on
    assert sibling.status == "completed"


async def test_N3_an_await_that_is_cut_short_leaves_the_child_owned(
    runtime: Runtime, clock: FakeClock
) -> None:
    async with scope():
        handle = spawn(turns, 50)
        with pytest.raises(harn.DeadlineExceeded):
            async with harn.deadline(0):
                await handle
        assert handle.status == "running"

    assert handle.status == "completed"


async def test_an_error_handed_to_a_cancelled_awaiter_goes_back_to_the_scope(
    runtime: Runtime,
) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def failing() -> None:
        await gate
        raise Boom("mine")

    async def awaiting(handle: Any) -> None:
        await handle

    with pytest.raises(Boom, match="mine"):
        async with scope():
            handle = spawn(failing)
            awaiter = spawn(awaiting, handle)
            await turns()
            gate.set_result(None)
            while not handle.done():
                await asyncio.sleep(0)
            awaiter.cancel()  # the error has been handed over, the awaiter has not run yet
            await forever()


async def test_grandchildren_belong_to_the_open_scope(runtime: Runtime) -> None:
    ended = []

    async def grandchild() -> None:
        await turns(20)
        ended.append("grandchild")

    async def child() -> None:
        spawn(grandchild)

    async with scope():
        spawn(child)

    assert ended == ["grandchild"]


async def test_a_cancel_from_outside_cancels_the_children_and_stays_a_cancel(
    runtime: Runtime,
) -> None:
    handles = []

    async def main() -> None:
        async with scope():
            handles.append(spawn(forever))
            await forever()

    task = asyncio.create_task(main())
    await turns()
    task.cancel("from outside")
    with pytest.raises(asyncio.CancelledError):
        await task

    assert handles[0].status == "cancelled"


async def test_a_cancel_while_the_block_joins_cancels_what_it_waits_for(runtime: Runtime) -> None:
    handles = []

    async def main() -> None:
        async with scope():
            handles.append(spawn(forever))

    task = asyncio.create_task(main())
    await turns()
    task.cancel()
    await asyncio.wait((task,))

    assert task.cancelled()
    assert handles[0].status == "cancelled"


async def test_N2_a_cancel_wins_over_a_child_that_fails_in_the_same_moment(
    runtime: Runtime,
) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def failing() -> None:
        await gate
        raise Boom("at the same time")

    async def main() -> None:
        async with scope():
            spawn(failing)
            await forever()

    for cancel_first in (True, False):
        gate = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(main())
        await turns()
        if cancel_first:
            task.cancel()
            gate.set_result(None)
        else:
            gate.set_result(None)
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


async def test_N4_a_child_that_ignores_its_cancel_is_reported_and_waited_for(
    runtime: Runtime, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def deaf() -> None:
        while not let_go.done():
            try:
                await asyncio.shield(let_go)
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        async with scope():
            spawn(deaf, name="deaf")
            await turns(2)
            raise Boom

    task = asyncio.create_task(main())
    await turns()
    with caplog.at_level(logging.WARNING, "harn.tasks"):
        await clock.advance("4s")
        assert not caplog.records
        await clock.advance("2s")
    assert "'deaf' running> still runs 5 s after its cancel" in caplog.text
    assert not task.done()

    let_go.set_result(None)
    with pytest.raises(Boom):
        await task


async def test_a_second_failure_does_not_disturb_those_who_tidy_up(runtime: Runtime) -> None:
    tidied = []

    async def tidies() -> None:
        try:
            await forever()
        finally:
            await turns(10)
            tidied.append(True)

    async def fails_late() -> None:
        try:
            await forever()
        finally:
            await turns(2)
            raise Boom("second")

    with pytest.raises(Boom, match="first"):
        async with scope():
            spawn(tidies)
            spawn(fails_late)
            await turns()
            raise Boom("first")

    assert tidied == [True]


async def test_cancelling_a_child_is_no_failure_of_the_scope(runtime: Runtime) -> None:
    async with scope():
        handle = spawn(forever)
        await turns()
        handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle


async def test_cancelling_the_scope_ends_it_without_an_error(runtime: Runtime) -> None:
    async with scope() as s:
        handle = spawn(forever)
        await turns()
        s.cancel()
    assert handle.status == "cancelled"

    async def end(other: Any) -> None:
        other.cancel()

    async with scope() as s:
        spawn(end, s)
        await forever()
    await turns()


async def test_a_task_spawned_into_a_cancelled_scope_never_begins(runtime: Runtime) -> None:
    begun = []

    async def late() -> None:
        begun.append(True)

    async def child() -> None:
        try:
            await forever()
        finally:
            spawn(late)

    async with scope() as s:
        spawn(child)
        await turns()
        s.cancel()

    assert begun == []


async def test_an_ended_scope_takes_no_more_tasks(runtime: Runtime) -> None:
    async with scope() as s:
        pass

    with pytest.raises(harn.HarnError, match="has ended"):
        s.spawn(forever)
    with pytest.raises(harn.HarnError, match="entered once"):
        async with s:
            pass


async def test_tasks_end_before_the_cleanups_of_their_scope_run(runtime: Runtime) -> None:
    order = []

    async def child() -> None:
        await turns()
        order.append("child")

    async with scope() as s:
        defer(order.append, "deferred")
        s.defer(order.append, "on the scope")
        spawn(child)

    assert order == ["child", "on the scope", "deferred"]


async def test_a_scope_defers_as_defer_does(
    runtime: Runtime, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def flush() -> None:
        await harn.sleep("6s")

    async def main() -> None:
        async with scope() as s:
            with pytest.raises(harn.InvalidOption, match="the function itself"):
                s.defer(flush())  # type: ignore[arg-type]
            s.defer(flush)

    closing = spawn(main)
    await clock.advance("6s")
    await closing

    assert "a cleanup of defer(<function" in caplog.text


async def test_nested_scopes_that_fail_together_lose_no_error(runtime: Runtime) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def failing(text: str) -> None:
        await gate
        raise Boom(text)

    async def main() -> None:
        async with scope():
            spawn(failing, "outer")
            async with scope():
                spawn(failing, "inner")
                await forever()

    task = asyncio.create_task(main())
    await turns()
    gate.set_result(None)
    with pytest.raises(Boom) as caught:
        await task

    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "outer" in told
    assert "inner" in told


async def test_an_error_keeps_its_own_cause_and_context(runtime: Runtime) -> None:
    async def child() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise Boom("second") from error

    with pytest.raises(Boom) as caught:
        async with scope():
            spawn(child)
            await forever()

    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(caught.value.__context__, KeyError)


def test_N1_an_exit_inside_a_scope_ends_its_tasks_and_comes_out() -> None:
    handles = []

    async def exits() -> None:
        await turns(2)
        raise SystemExit(3)

    async def main(in_child: bool) -> None:
        async with scope():
            handles.append(spawn(forever))
            if in_child:
                spawn(exits)
                await forever()
            await exits()

    for in_child in (True, False):
        with pytest.raises(SystemExit):
            harn.run(main, in_child)

    assert [handle.status for handle in handles] == ["cancelled", "cancelled"]


def test_N1_ctrl_c_ends_the_tasks_of_a_scope() -> None:
    handles = []

    async def main() -> None:
        async with scope():
            handles.append(spawn(forever))
            asyncio.get_running_loop().call_soon(_interrupt)
            await forever()

    def _interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harn.run(main)

    assert handles[0].status == "cancelled"

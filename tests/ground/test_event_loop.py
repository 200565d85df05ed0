"""A call where its event loop is not asyncio's, or where one runs already, says what to do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import harn
from harn import HarnError, Runtime, from_thread, run_in_thread, worker_queue
from harn.event_loop import answer_of


async def work() -> int:
    return 1


class JustNow(concurrent.futures.Future[int]):
    """An answer that comes when the time to wait for it has just passed."""

    def result(self, timeout: float | None = None) -> int:
        if not self.done():
            self.set_result(42)
            raise TimeoutError
        return super().result(timeout)


def test_an_answer_that_comes_late_is_no_timeout() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert answer_of(loop, JustNow()) == 42


def test_a_closed_loop_gives_no_answer() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    with pytest.raises(HarnError, match="has been closed"):
        answer_of(loop, concurrent.futures.Future())


UNDER_TRIO: dict[str, Callable[[], object]] = {
    "run": lambda: harn.run(work),
    "Runtime": lambda: Runtime().__aenter__(),
    "sleep": lambda: harn.sleep("1h"),
    "deadline": lambda: harn.deadline("1h").__aenter__(),
    "scope": lambda: harn.scope().__aenter__(),
    "spawn": lambda: harn.spawn(work),
    "parallel_settle": lambda: harn.parallel_settle([1], str),
    "pool_create": lambda: harn.pool_create(name="p", max_concurrent=1),
    "enqueue": lambda: worker_queue("jobs").enqueue(1),
    "drain": lambda: harn.drain("jobs", print),
    "event_log_emit": lambda: harn.event_log_emit("topic", "kind", 1),
    "channel_emit": lambda: harn.channel_emit("name", 1),
    "channel": lambda: harn.channel("empty").receive(),
    "channel_select": lambda: harn.channel_select([harn.channel("empty")]),
    "mutex": lambda: harn.mutex("key").__aenter__(),
    "sync_semaphore_acquire": lambda: harn.sync_semaphore_acquire("key", 1),
    "mailbox_open": lambda: harn.mailbox_open("name"),
    "llm_call": lambda: harn.llm_call("hello"),
    "supervisor_start": lambda: harn.supervisor_start(
        name="s", children=[{"name": "c", "task": lambda context: work()}]
    ),
    "consumers": lambda: harn.consumers("jobs"),
}


def told_under_trio(call: Callable[[], object]) -> str:
    async def main() -> str:
        with pytest.raises(HarnError) as caught:
            result = call()
            assert inspect.isawaitable(result)
            await result
        return str(caught.value)

    return trio.run(main)


@pytest.mark.parametrize("name", UNDER_TRIO)
def test_a_call_under_trio_names_the_way_out(name: str) -> None:
    alone = told_under_trio(UNDER_TRIO[name])
    with run_in_thread():
        beside_a_runtime = told_under_trio(UNDER_TRIO[name])

    assert "trio.to_thread.run_sync(harn.from_thread" in alone
    assert beside_a_runtime == alone


def test_a_queue_made_before_trio_ran_is_refused_under_it_too() -> None:
    with run_in_thread():
        queue = worker_queue("jobs")
        told = told_under_trio(lambda: queue.enqueue(1))

    assert "this is called under trio" in told


def test_a_trio_program_uses_a_runtime_as_the_error_says(tmp_path: Path) -> None:
    async def main() -> list[int]:
        with run_in_thread(state_dir=tmp_path):
            return [await trio.to_thread.run_sync(from_thread, enqueue, n) for n in range(3)]

    async def enqueue(payload: int) -> int:
        return (await worker_queue("jobs").enqueue(payload)).job_id

    assert trio.run(main) == [1, 2, 3]


@pytest.mark.parametrize("inside", [False, True], ids=["bare loop", "inside a runtime"])
def test_run_inside_a_running_loop_says_what_to_write_instead(inside: bool) -> None:
    async def main() -> None:
        if not inside:
            harn.run(work)
        async with Runtime():
            harn.run(work)

    with pytest.raises(HarnError, match=r"async with harn\.Runtime\(\.\.\.\): await main\(\)"):
        asyncio.run(main())


def test_run_on_a_thread_of_a_running_loop_has_a_loop_of_its_own() -> None:
    async def main() -> Any:
        return await asyncio.to_thread(harn.run, work)

    assert asyncio.run(main()) == 1


def test_a_wait_without_any_loop_says_so() -> None:
    def drive(waiting: Awaitable[Any]) -> None:
        next(waiting.__await__())

    with pytest.raises(HarnError, match="no event loop runs here"):
        drive(harn.channel("empty").receive())

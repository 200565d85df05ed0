"""Cancel a coroutine at every place where it can be cancelled, one place a run.

`sweep` runs a fresh coroutine again and again. In run *k* its task is cancelled at the k-th
suspension, in two modes: while it waits (*race* false), and in the window after the awaited
future has completed but before the task resumes (*race* true). It stops when a run ends before
its k-th suspension. After each run it asserts that the cancel came out, that no task is left and
that the loop had nothing to complain about; then it asks *check* for the invariants of the case.

    async def test_a_cancelled_acquire_holds_nothing():
        async def case():
            async with mutex("a"):
                await sleep(0)

        assert await sweep(case, lambda run: permits_are_free()) > 3
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from harn.current import current_frame
from harn.graceful_stop import request_stop


@dataclass(frozen=True)
class Run:
    """One run of the sweep: where it was cancelled, and how it ended."""

    k: int
    race: bool
    cancelled: bool
    """Whether the cancel was requested (false only in the last run of a mode)."""
    value: Any = None
    error: BaseException | None = None


async def sweep(
    make: Callable[[], Coroutine[Any, Any, Any]],
    check: Callable[[Run], Any] | None = None,
    *,
    most: int = 1000,
    may_finish: bool = False,
    leftovers: int = 0,
) -> int:
    """Run *make*`()` cancelled at every suspension, in both modes; return how many runs it took.

    A coroutine that answers a cancel with anything but `CancelledError` fails the sweep, unless
    it *may_finish*. *check* may be a plain function or an async one. *leftovers* turns of the
    loop are granted before tasks are counted (for what may end a moment later).
    """
    runs = 0
    for race in (False, True):
        for k in range(1, most + 1):
            runs += 1
            run = await one_run(make, k, race, leftovers, collect=k == 1)
            _assert_the_cancel_came_out(run, may_finish)
            if check is not None:
                checked = check(run)
                if inspect.isawaitable(checked):
                    await checked
            if not run.cancelled:
                break
        else:
            raise AssertionError(f"still suspending after {most} suspensions; raise `most`")
    return runs


async def one_run(
    make: Callable[[], Coroutine[Any, Any, Any]],
    k: int,
    race: bool,
    leftovers: int = 0,
    collect: bool = False,
) -> Run:
    """Run *make*`()` once, cancelled at its *k*-th suspension; *collect* garbage afterwards."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    previous = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    requested: list[int] = []
    try:
        task = loop.create_task(cancel_at(make(), k, race, requested))
        await asyncio.wait((task,))
        for _ in range(leftovers):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, f"k={k} race={race}: tasks left alive: {left}"
        run = _outcome(task, k, race, bool(requested))
        if collect:  # what was never retrieved is only told when it is collected
            del task
            gc.collect()
    finally:
        loop.set_exception_handler(previous)
    assert not complaints, f"k={k} race={race}: the loop complained: {complaints}"
    return run


def _outcome(task: asyncio.Task[Any], k: int, race: bool, requested: bool) -> Run:
    if task.cancelled():
        return Run(k, race, requested, error=asyncio.CancelledError())
    error = task.exception()
    return Run(k, race, requested, None if error else task.result(), error)


def _assert_the_cancel_came_out(run: Run, may_finish: bool) -> None:
    where = f"k={run.k} race={run.race}"
    if not run.cancelled:
        if run.error is not None:
            raise AssertionError(f"{where}: failed without a cancel") from run.error
    elif not may_finish and not isinstance(run.error, asyncio.CancelledError):
        raise AssertionError(
            f"{where}: the cancel was swallowed: value={run.value!r} error={run.error!r}"
        )


async def stop_at(coro: Coroutine[Any, Any, Any], k: int, race: bool, asked: list[int]) -> Any:
    """Await *coro* in a task of ours, which is asked to stop at its *k*-th suspension."""
    task = current_frame().task
    return await _interrupt_at(coro, k, race, asked, lambda: request_stop(task))


async def cancel_at(
    coro: Coroutine[Any, Any, Any], k: int, race: bool, requested: list[int]
) -> Any:
    task = asyncio.current_task()
    assert task is not None
    # Since 3.12 a task takes no generator, only what awaits one.
    return await _interrupt_at(coro, k, race, requested, task.cancel)


@types.coroutine
def _interrupt_at(
    coro: Coroutine[Any, Any, Any],
    k: int,
    race: bool,
    requested: list[int],
    interrupt: Callable[[], object],
) -> Generator[Any, Any, Any]:
    step = 0
    error: BaseException | None = None
    while True:
        try:
            awaited = coro.send(None) if error is None else coro.throw(error)
        except StopIteration as end:
            return end.value
        step += 1
        error = None
        if step == k:
            requested.append(k)
            if race and hasattr(awaited, "add_done_callback"):
                awaited.add_done_callback(lambda _: interrupt())
            else:
                interrupt()
        try:
            yield awaited
        except BaseException as thrown:
            error = thrown

"""deadline and retry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import harn
from harn import (
    DeadlineExceeded,
    HarnError,
    InvalidOption,
    Runtime,
    deadline,
    retry,
    scope,
    spawn,
)
from harn.testing import FakeClock


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_N8_a_deadline_interrupts_the_block_at_its_time_and_not_before(
    runtime: Runtime, clock: FakeClock
) -> None:
    async def main() -> None:
        async with deadline("30s"):
            await forever()

    task = asyncio.create_task(main())
    await clock.advance("29s")
    assert not task.done()
    await clock.advance("1s")

    with pytest.raises(DeadlineExceeded, match="Deadline exceeded: 30s") as caught:
        await task
    assert isinstance(caught.value, TimeoutError)


async def test_a_block_that_ends_in_time_is_left_alone(runtime: Runtime, clock: FakeClock) -> None:
    me = asyncio.current_task()
    assert me is not None
    async with deadline("1s"):
        await turns()
    assert clock.pending == 0
    await clock.advance("5s")
    await turns()

    assert me.cancelling() == 0


async def test_N8_nested_deadlines_end_at_the_earlier_one(
    runtime: Runtime, clock: FakeClock
) -> None:
    ended: list[str] = []

    async def main(outer: str, inner: str) -> None:
        try:
            async with deadline(outer):
                try:
                    async with deadline(inner):
                        await forever()
                except DeadlineExceeded:
                    ended.append("inner")
                    await forever()
        except DeadlineExceeded:
            ended.append("outer")

    for outer, inner in (("1s", "5s"), ("5s", "1s"), ("3s", "3s")):
        task = asyncio.create_task(main(outer, inner))
        await clock.advance("10s")
        await task

    assert ended == ["outer", "inner", "outer", "outer"]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancel_and_a_deadline_at_once_are_a_cancel(
    runtime: Runtime, cancel_first: bool
) -> None:
    turn_clock = ManualClock()
    runtime.clock = turn_clock  # type: ignore[assignment]

    async def main() -> None:
        async with deadline("1s"):
            await forever()

    task = asyncio.create_task(main())
    await turns()
    steps = [task.cancel, turn_clock.fire]
    for step in steps if cancel_first else reversed(steps):
        step()
    await asyncio.wait((task,))

    assert task.cancelled()


class ManualClock:
    """Fires its one timer when told to."""

    is_fake = True

    def monotonic(self) -> float:
        return 0.0

    def call_at(self, when: float, wake: Any, *, background: bool = False) -> ManualClock:
        self.fire = wake
        return self

    def cancel(self) -> None:
        pass


async def test_a_cancel_from_outside_is_not_taken_for_the_deadline(
    runtime: Runtime, clock: FakeClock
) -> None:
    async def main() -> None:
        async with deadline("1s"):
            try:
                await forever()
            finally:
                await harn.sleep("5s")  # tidying up runs past the deadline

    task = asyncio.create_task(main())
    await turns()
    task.cancel()
    await clock.advance("10s")
    await asyncio.wait((task,))

    assert task.cancelled()


async def test_a_deadline_works_in_a_task_that_was_cancelled_before(
    runtime: Runtime, clock: FakeClock
) -> None:
    """A long-lived worker may have survived a cancel without calling `uncancel`."""

    async def worker() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            pass
        try:
            async with deadline("1s"):
                await forever()
        except DeadlineExceeded:
            return "exceeded"
        return "?"

    task = asyncio.create_task(worker())
    await turns()
    task.cancel()
    await turns()
    await clock.advance("2s")

    assert await task == "exceeded"
    assert task.cancelling() == 1


async def test_a_deadline_ends_child_tasks_and_every_parallel_form(
    runtime: Runtime, clock: FakeClock
) -> None:
    tidied: list[str] = []

    async def child(name: Any) -> None:
        try:
            await forever()
        finally:
            await turns(2)
            tidied.append(str(name))

    async def in_scope() -> None:
        async with scope():
            spawn(child, "scope")

    async def in_stream() -> None:
        async with harn.parallel_each_stream(["stream"], child) as stream:
            async for _ in stream:
                pass

    forms = [
        in_scope,
        in_stream,
        lambda: harn.parallel_each(["each"], child),
        lambda: harn.parallel_settle(["settle"], child, 1),
        lambda: harn.parallel_race(["race"], child),
    ]
    for form in forms:

        async def main(form: Any = form) -> None:
            async with deadline("1s"):
                await form()

        task = asyncio.create_task(main())
        await clock.advance("2s")
        with pytest.raises(DeadlineExceeded):
            await task
        await turns()

    assert sorted(tidied) == ["each", "race", "scope", "settle", "stream"]


async def test_a_deadline_interrupts_channel_waits_and_permits(
    runtime: Runtime, clock: FakeClock
) -> None:
    channel = harn.channel("empty")
    held = await harn.sync_mutex_acquire("lock")
    assert held is not None

    async def acquires() -> None:
        await harn.sync_mutex_acquire("lock")

    for wait in (channel.receive, acquires):

        async def main(wait: Any = wait) -> None:
            async with deadline("1s"):
                await wait()

        handle = spawn(main)
        await clock.advance("2s")
        with pytest.raises(DeadlineExceeded):
            await handle
    held.release()


@pytest.mark.parametrize("wrong", [-1, float("nan"), "5", "soon", None, True])
async def test_a_wrong_duration_is_refused(runtime: Runtime, wrong: Any) -> None:
    with pytest.raises(InvalidOption):
        deadline(wrong)


async def test_a_deadline_of_nothing_still_lets_code_run_that_never_waits(
    runtime: Runtime,
) -> None:
    async with deadline(0):
        done = 1 + 1
    assert done == 2
    with pytest.raises(DeadlineExceeded):
        async with deadline(0):
            await forever()


async def test_the_notes_of_what_failed_meanwhile_are_on_the_deadlines_error(
    runtime: Runtime, clock: FakeClock
) -> None:
    async def fails_when_cancelled() -> None:
        try:
            await forever()
        finally:
            raise KeyError("late")

    async def main() -> None:
        async with deadline("1s"):
            async with scope():
                spawn(fails_when_cancelled)

    task = asyncio.create_task(main())
    await clock.advance("2s")
    with pytest.raises(DeadlineExceeded) as caught:
        await task
    assert caught.value.__notes__ == ["also: KeyError: 'late'"]


class Flaky:
    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.left = failures
        self.calls = 0
        self.error = error or ValueError("flaky")

    async def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"

    def plain(self) -> str:
        return asyncio.run(self())


async def test_retry_tries_again_until_it_works(runtime: Runtime) -> None:
    flaky = Flaky(2)
    assert await retry(3, flaky) == "done"
    assert flaky.calls == 3
    assert await retry(3, Flaky(2).plain) == "done"
    assert await retry(3, lambda: Flaky(0)()) == "done"


async def test_retry_gives_none_or_the_last_error_when_all_attempts_fail(
    runtime: Runtime,
) -> None:
    flaky = Flaky(9)
    assert await retry(3, flaky) is None
    assert flaky.calls == 3
    with pytest.raises(ValueError, match="flaky"):
        await retry(2, Flaky(9), reraise=True)


async def test_retry_doubles_its_pause_up_to_thirty_seconds(
    runtime: Runtime, clock: FakeClock
) -> None:
    flaky = Flaky(99)
    task = asyncio.create_task(retry(8, flaky, backoff_ms=10_000))
    calls = []
    for _ in range(8):
        await clock.advance("10s")
        calls.append(flaky.calls)

    # At 0 s, 10 s, 30 s, 60 s: pauses of 10, 20, 30 s.
    assert calls == [2, 2, 3, 3, 3, 4, 4, 4]
    task.cancel()


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), DeadlineExceeded("late"), GeneratorExit(), asyncio.CancelledError()],
)
async def test_N7_retry_never_catches_a_cancel_or_a_deadline(
    runtime: Runtime, error: BaseException
) -> None:
    flaky = Flaky(1, error)
    with pytest.raises(type(error)):
        await retry(3, flaky)
    assert flaky.calls == 1


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
async def test_N7_retry_never_catches_an_exit_on_a_thread(
    runtime: Runtime, stop: type[BaseException]
) -> None:
    tries: list[int] = []

    def leave() -> None:
        tries.append(1)
        raise stop

    with pytest.raises(HarnError, match=stop.__name__) as caught:
        await retry(3, leave)
    assert isinstance(caught.value.__cause__, stop)
    assert tries == [1]


async def test_N7_a_deadline_around_retry_ends_it(runtime: Runtime, clock: FakeClock) -> None:
    async def main() -> Any:
        async with deadline("3s"):
            return await retry(100, Flaky(1000), backoff_ms=1000)

    task = asyncio.create_task(main())
    await clock.advance("5s")
    with pytest.raises(DeadlineExceeded):
        await task


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
async def test_a_wrong_number_of_attempts_is_refused(runtime: Runtime, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="attempts"):
        await retry(wrong, Flaky(0))

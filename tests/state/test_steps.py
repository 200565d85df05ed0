"""Steps of a job: carried out once, remembered by later attempts, recorded under the claim only."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harn import (
    ClaimLost,
    HarnError,
    InvalidOption,
    Job,
    Runtime,
    StepChanged,
    drain,
    from_thread,
    parallel_each,
    spawn,
    step,
    worker_queue,
)
from harn.durable_work import StepRecord
from harn.storage import Operation, Store, ask
from harn.storage.log import compare, rebuild
from harn.storage.queue import retention
from harn.storage.queue.retention import Keeping
from harn.testing import FakeClock
from tests.fake_clock import fake_clock


@pytest.fixture
async def runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=FakeClock(), seed=0) as runtime:
        yield runtime


DAY_MS = 86_400_000


class Ledger:
    """Counts what was really done."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    async def do(self, what: Any) -> Any:
        self.done.append(what)
        return what

    def do_on_a_thread(self, what: Any) -> Any:
        self.done.append(what)
        return what


class Broken(Exception):
    """What the handlers here raise."""


async def again() -> None:
    """Handle the job of the queue once more, after its claim has expired."""
    await fake_clock().advance("6m")


async def test_a_later_attempt_does_not_repeat_what_was_recorded(runtime: Runtime) -> None:
    ledger = Ledger()

    async def handle(job: Job) -> Any:
        first = await step("first", ledger.do, 1)
        second = await step("second", ledger.do_on_a_thread, 2)
        if job.attempts == 1:
            raise Broken
        return [first, second, await step("third", ledger.do, 3)]

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    assert ledger.done == [1, 2, 3]
    assert await receipt.result() == [1, 2, 3]


async def test_each_use_of_a_name_is_a_step_of_its_own(runtime: Runtime) -> None:
    ledger = Ledger()

    async def handle(job: Job) -> Any:
        found = [await step("item", ledger.do, number) for number in range(2 + job.attempts)]
        if job.attempts == 1:
            raise Broken
        return found

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    assert ledger.done == [0, 1, 2, 3]
    assert await receipt.result() == [0, 1, 2, 3]


async def test_a_step_that_raised_runs_again(runtime: Runtime) -> None:
    ledger = Ledger()

    async def fail_once(attempt: int) -> str:
        await ledger.do("tried")
        if len(ledger.done) == 1:
            raise Broken
        return "done"

    async def handle(job: Job) -> Any:
        return await step("flaky", fail_once, 7)

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    assert ledger.done == ["tried", "tried"]
    assert await receipt.result() == "done"


async def test_a_result_has_its_json_form_from_the_first_attempt_on(runtime: Runtime) -> None:
    async def handle(job: Job) -> Any:
        found: Any = await step("pair", lambda: {"at": (1, 2)})
        assert found == {"at": [1, 2]}
        if job.attempts == 1:
            raise Broken
        return found

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    assert await receipt.result() == {"at": [1, 2]}


@pytest.mark.parametrize(
    ("value", "why"), [({1, 2}, "a set"), (float("nan"), "nan"), ("x" * 20_000_000, "10,000,000")]
)
async def test_a_result_that_cannot_be_recorded_is_refused(
    runtime: Runtime, value: Any, why: str
) -> None:
    raised: list[BaseException] = []

    async def handle(job: Job) -> None:
        try:
            await step("bad", lambda: value)
        except InvalidOption as error:
            raised.append(error)

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)

    assert "result=" in str(raised[0]) and why in str(raised[0])
    assert (await receipt.state()).steps == ()


@pytest.mark.parametrize("name", ["", "  ", "x" * 513, "a\x1fb", 7, None])
async def test_a_bad_name_is_refused(runtime: Runtime, name: Any) -> None:
    with pytest.raises(InvalidOption, match="name="):
        await step(name, lambda: 1)


async def test_a_step_outside_of_durable_work_is_an_error(runtime: Runtime) -> None:
    with pytest.raises(HarnError, match=r"step\('x'\) is outside of durable work"):
        await step("x", lambda: 1)


@pytest.mark.parametrize("changed", ["function", "arguments"])
async def test_another_call_under_a_recorded_name_is_an_error(
    runtime: Runtime, changed: str
) -> None:
    ledger = Ledger()

    async def handle(job: Job) -> Any:
        if job.attempts == 1:
            await step("call", ledger.do, 1)
            raise Broken
        if changed == "function":
            return await step("call", ledger.do_on_a_thread, 1)
        return await step("call", ledger.do, 2)

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    error = (await receipt.state()).error or ""
    assert StepChanged.__name__ in error
    what = "and now calls Ledger.do_on_a_thread" if changed == "function" else "other arguments"
    assert what in error and f"job {receipt.job_id} of queue 'q'" in error
    assert ledger.done == [1]


async def test_a_consumer_that_lost_its_claim_records_nothing(runtime: Runtime) -> None:
    queue = worker_queue("q")
    receipt = await queue.enqueue(None)
    ours = await queue.claim_next("slow", ttl="1s")
    assert ours is not None
    done = StepRecord("charge", 0, "charge 00", b"1", 0, 0)

    await fake_clock().advance("2s")
    theirs = await queue.claim_next("other", ttl="1h")
    assert theirs is not None
    with pytest.raises(ClaimLost, match="another consumer has claimed the job since"):
        await ours.record_step(done)
    assert (await receipt.state()).steps == ()

    await theirs.record_step(done)
    await theirs.ack()
    with pytest.raises(ClaimLost, match="it was settled"):
        await theirs.record_step(done)

    assert len((await receipt.state()).steps) == 1


async def test_steps_of_children_threads_and_partials_belong_to_the_job(runtime: Runtime) -> None:
    ledger = Ledger()

    def on_a_thread() -> Any:
        return from_thread(step, "from a thread", ledger.do, "thread")

    async def handle(job: Job) -> Any:
        found = await parallel_each([1, 2], lambda each: step(f"child {each}", ledger.do, each))
        found.append(await spawn(lambda: step("spawned", functools.partial(ledger.do, 3))))
        found.append(await spawn(on_a_thread))
        if job.attempts == 1:
            raise Broken
        return found

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    assert sorted(map(str, ledger.done)) == ["1", "2", "3", "thread"]
    assert await receipt.result() == [1, 2, 3, "thread"]


async def test_a_step_inside_a_step_does_not_count_for_the_code_after_it(runtime: Runtime) -> None:
    ledger = Ledger()

    async def outer() -> Any:
        return await step("note", ledger.do, "same")

    async def handle(job: Job) -> Any:
        await step("outer", outer)
        if job.attempts == 1:
            raise Broken
        return await step("note", ledger.do, "same")

    receipt = await worker_queue("q").enqueue(None)
    await drain("q", handle)
    await again()
    await drain("q", handle)

    assert ledger.done == ["same", "same"]
    names = [each.name for each in (await receipt.state()).steps]
    assert names == ["outer > note", "outer", "note"]


async def test_a_step_whose_caller_is_cancelled_is_recorded_all_the_same(runtime: Runtime) -> None:
    ledger = Ledger()

    async def end_and_be_cancelled() -> Any:
        inside = asyncio.current_task()
        assert inside is not None
        asyncio.get_running_loop().call_soon(inside.cancel)
        return await ledger.do(1)

    async def handle(job: Job) -> Any:
        return await step("once", end_and_be_cancelled)

    receipt = await worker_queue("q").enqueue(None)
    report = await drain("q", handle)  # the cancelled handler's job is released and claimed again

    assert report.acked == 1
    assert ledger.done == [1]
    assert await receipt.result() == 1


async def test_a_job_shows_its_steps_with_their_durations(runtime: Runtime) -> None:
    async def slow() -> None:
        await fake_clock().advance("1500ms")

    async def handle(job: Job) -> None:
        await step("slow", slow)
        await step("quick", lambda: None)

    queue = worker_queue("q")
    receipt = await queue.enqueue(None)
    await queue.enqueue(None, not_before="1d")
    began = runtime.clock.now_ms()
    await drain("q", handle)

    [job, other] = await queue.jobs()
    assert [each.as_dict() for each in job.steps] == [
        {"name": "slow", "number": 0, "started_at_ms": began, "duration_ms": 1500},
        {"name": "quick", "number": 0, "started_at_ms": began + 1500, "duration_ms": 0},
    ]
    assert job.as_dict()["steps"][0]["duration_ms"] == 1500
    assert (await receipt.state()).steps == job.steps
    assert other.steps == ()


async def test_a_retried_job_keeps_its_steps(runtime: Runtime) -> None:
    ledger = Ledger()
    queue = worker_queue("q")

    async def handle(job: Job) -> Any:
        await step("once", ledger.do, 1)
        if len(ledger.done) == 1 and not again_now:
            raise Broken
        return "done"

    again_now: list[bool] = []
    receipt = await queue.enqueue(None, max_attempts=1)
    await drain("q", handle)
    again_now.append(True)
    assert await queue.retry(receipt.job_id or 0)
    await drain("q", handle)

    assert await receipt.result() == "done"
    assert ledger.done == [1]


async def test_the_index_of_steps_is_a_fold_of_the_log(runtime: Runtime) -> None:
    async def handle(job: Job) -> None:
        await step("one", lambda: job.id)
        await step("two", lambda: job.id)

    queue = worker_queue("q")
    await queue.enqueue_many([1, 2, 3])
    await drain("q", handle)
    before = [job.steps for job in await queue.jobs()]
    store = runtime.service(Store)

    assert await store.run(compare) == []
    counts = await store.run(rebuild)

    assert counts["job_steps"] == 6
    assert [job.steps for job in await queue.jobs()] == before


async def test_steps_are_trimmed_with_their_job(runtime: Runtime) -> None:
    async def handle(job: Job) -> None:
        await step("only", lambda: job.id)

    queue = worker_queue("q")
    old = await queue.enqueue(None)
    await drain("q", handle)
    await fake_clock().advance("10d")
    young = await queue.enqueue(None)
    await drain("q", handle)
    store = runtime.service(Store)

    await fake_clock().advance("5d")
    await store.run(lambda: retention.trim_settled("q", Keeping(14 * DAY_MS, 0), 100))

    assert await queue.job(old.job_id or 0) is None
    assert [each.name for each in (await young.state()).steps] == ["only"]
    assert [row[1] for row in await store.run(dumped_steps)] == [young.job_id]
    assert await store.run(compare) == []


def dumped_steps() -> Operation[Any]:
    return (yield ask("dump_steps"))

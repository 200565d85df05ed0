"""Durable functions as jobs: submitted with their arguments, run by any process that knows them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast

import pytest

import harn
from harn import (
    Bury,
    DeadlineExceeded,
    EnqueueReceipt,
    GiveBack,
    InvalidOption,
    JobFailed,
    NewJob,
    RetryLater,
    RetryPolicy,
    Runtime,
    drain,
    durable,
    durable_calls,
    worker_queue,
)
from harn.orchestrator import explain
from harn.testing import FakeClock
from harn.workers import Consumer
from tests.fake_clock import fake_clock


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(durable_calls, "_by_name", {})
    monkeypatch.setattr(durable_calls, "_by_function", {})
    yield


@pytest.fixture
async def runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=FakeClock(), seed=0) as runtime:
        yield runtime


class Broken(Exception):
    """What the functions here raise."""


def add(a: int, b: int = 0, *, scale: int = 1) -> int:
    return (a + b) * scale


async def shout(text: str) -> str:
    return text.upper()


def known(fn: Any, **options: Any) -> Any:
    """Register *fn* under its own name."""
    return durable(name=fn.__name__, **options)(fn)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if "does not know" in line.getMessage()]


async def test_a_submitted_function_runs_and_its_result_comes_back(runtime: Runtime) -> None:
    queue = worker_queue("q")
    known(add), known(shout)

    plain = await queue.submit(add, 1, 2, priority="high", tenant_id="acme")
    with_keywords = await queue.submit(partial(add, 1, scale=10), 2)
    on_the_loop = await queue.submit(shout, "hello")
    report = await drain("q")

    assert (report.drained, report.acked) == (3, 3)
    assert await plain.result() == 3
    assert await with_keywords.result() == 30
    assert await on_the_loop.result() == "HELLO"
    state = await plain.state()
    assert (state.function, state.payload) == ("add", [[1, 2], {}])
    assert (state.priority, state.tenant_id) == ("high", "acme")


async def test_plain_functions_run_on_threads_and_async_ones_on_the_loop() -> None:
    async with Runtime():
        known(plain_thread), known(async_thread)
        queue = worker_queue("q")
        ran = [await queue.submit(plain_thread), await queue.submit(async_thread)]

        await drain("q")

        on_thread, on_loop = [await each.result() for each in ran]
    assert on_loop == threading.current_thread().name
    assert on_thread != on_loop


def plain_thread() -> str:
    return threading.current_thread().name


async def async_thread() -> str:
    return threading.current_thread().name


async def test_a_function_that_was_loaded_again_replaces_the_one_that_ran_before(
    runtime: Runtime,
) -> None:
    def load(answer: str) -> Any:
        @durable(name="test:answer")
        async def function(again: bool) -> str:
            if again:
                load("new")
            return answer

        return function

    function = load("old")
    queue = worker_queue("answers")
    receipts = [await queue.submit(function, again) for again in (False, True, False)]
    await drain("answers")

    assert [await receipt.result() for receipt in receipts] == ["old", "old", "new"]


async def test_a_function_that_is_not_durable_is_refused() -> None:
    async with Runtime():
        with pytest.raises(InvalidOption, match=r"fn='add'.*@harn.durable"):
            await worker_queue("q").submit(add, 1)
        with pytest.raises(InvalidOption, match="the function itself"):
            await worker_queue("q").submit(shout("x"))  # type: ignore[call-overload]
        assert await harn.worker_queues() == []


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
async def test_arguments_that_do_not_fit_are_a_type_error(args: tuple[int, ...]) -> None:
    known(add)
    async with Runtime():
        with pytest.raises(TypeError, match="add"):
            await worker_queue("q").submit(cast("Any", add), *args)
        with pytest.raises(TypeError, match="colour"):
            await worker_queue("q").submit(partial(cast("Any", add), colour=1), 1)
        with pytest.raises(TypeError, match="prioritty"):
            await worker_queue("q").submit(add, 1, prioritty="high")  # type: ignore[call-overload]
        assert await harn.worker_queues() == []


@pytest.mark.parametrize("value", [(1, 2), b"x", {1: 2}, float("nan"), {1}], ids=repr)
async def test_arguments_that_json_would_change_are_refused(value: Any) -> None:
    known(add)
    async with Runtime():
        with pytest.raises(InvalidOption):
            await worker_queue("q").submit(add, value)
        with pytest.raises(InvalidOption):
            await worker_queue("q").submit(partial(add, 1, scale=value))


async def test_a_consumer_claims_only_jobs_of_functions_that_it_knows(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    queue = worker_queue("q")
    known(add)
    other = NewJob([[], {}], function="elsewhere:render")
    unknown, payload, trigger, ours = await queue.enqueue_many(
        [other, "a payload", NewJob(1, trigger_id="review"), NewJob([[20], {}], function="add")]
    )
    await queue.enqueue_many([other])

    report = await drain("q")
    again = await drain("q")

    assert (report.drained, again.drained) == (1, 0)
    assert await ours.result() == 20
    for receipt in (unknown, payload, trigger):
        state = await receipt.state()
        assert (state.status, state.attempts) == ("ready", 0)
    told = warnings(caplog)
    assert len(told) == 2 and "'elsewhere:render'" in told[0]  # once for each drain


async def test_an_idle_consumer_warns_once_of_each_function_and_learns_new_ones(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    queue, clock = worker_queue("q"), fake_clock(runtime)
    consumer = Consumer(queue, None, stop_when_empty=False)
    working = harn.spawn(consumer.run)
    await clock.advance("1s")

    late = NewJob([[4], {}], function="add")
    receipts = await queue.enqueue_many([late, NewJob([[], {}], function="never")])
    await clock.advance("2s")
    await queue.enqueue_many([late])
    await clock.advance("2s")
    assert {line.split("'")[3] for line in warnings(caplog)} == {"add", "never"}
    assert len(warnings(caplog)) == 2

    known(add)  # as an import would
    await clock.advance("2s")

    assert await receipts[0].result() == 4
    consumer.retire()
    await clock.advance("1s")
    assert (await working).acked == 2


async def test_explain_tells_that_no_living_consumer_knows_the_function(runtime: Runtime) -> None:
    queue, clock = worker_queue("q"), fake_clock(runtime)
    [receipt] = await queue.enqueue_many([NewJob([[4], {}], function="add")])
    told = await explain(runtime, "q", receipt.job_id)
    assert told["function"] == "add" and "no consumer of this queue is alive" in told["verdict"]

    of_triggers = Consumer(
        queue, print, consumer_id="a", stop_when_empty=False, triggers=frozenset({"t"})
    )
    of_functions = Consumer(queue, None, consumer_id="b", stop_when_empty=False)
    working = [harn.spawn(each.run) for each in (of_triggers, of_functions)]
    await clock.advance("1s")
    told = await explain(runtime, "q", receipt.job_id)
    assert (told["consumers_alive"], told["consumers_able"]) == (2, 0)
    assert "knows its function 'add'" in told["verdict"]

    await queue.pause()
    known(add)
    await clock.advance("6s")  # the next renewal tells of it
    assert (await explain(runtime, "q", receipt.job_id))["consumers_able"] == 1
    for each in (of_triggers, of_functions):
        each.retire()
    await clock.advance("1s")
    await asyncio.gather(*working)


async def test_a_handler_takes_the_jobs_of_functions_too(runtime: Runtime) -> None:
    known(add)
    receipt: EnqueueReceipt[Any] = await worker_queue("q").submit(add, 1)

    await drain("q", lambda job: [job.function, job.payload])

    assert await receipt.result() == ["add", [[1], {}]]


async def test_a_job_without_arguments_for_its_function_is_dead() -> None:
    known(add)
    async with Runtime():
        [receipt] = await worker_queue("q").enqueue_many([NewJob("text", function="add")])

        await drain("q")

        with pytest.raises(JobFailed, match="holds no arguments"):
            await receipt.result()


# -- retries ---------------------------------------------------------------------------------------


async def test_a_failed_function_waits_as_its_policy_says(runtime: Runtime) -> None:
    queue, clock = worker_queue("q"), fake_clock(runtime)
    known(fails, retry=RetryPolicy(backoff="10s", jitter=0))
    receipt = await queue.submit(fails, "no luck", max_attempts=3)

    await drain("q")
    state = await receipt.state()
    assert (state.status, state.attempts) == ("scheduled", 1)
    assert state.not_before_ms == clock.now_ms() + 10_000
    assert state.error == "Broken: no luck" and "in fails" in (state.traceback or "")
    await clock.advance("10s")
    await drain("q")
    state = await receipt.state()
    assert state.not_before_ms == clock.now_ms() + 20_000
    await clock.advance("20s")
    await drain("q")

    with pytest.raises(JobFailed, match="after 3 attempts: Broken: no luck"):
        await receipt.result()


def fails(text: str) -> None:
    raise Broken(text)


async def test_without_a_policy_a_function_follows_the_drains_or_the_default(
    runtime: Runtime,
) -> None:
    queue, clock = worker_queue("q"), fake_clock(runtime)
    known(fails)
    receipt = await queue.submit(fails, "no luck")

    await drain("q")
    waits = (await receipt.state()).not_before_ms or 0
    assert 900 <= waits - clock.now_ms() <= 1100

    await clock.advance("2s")
    await drain("q", retry=RetryPolicy(backoff="1h", jitter=0, max_backoff="1h"))
    waits = (await receipt.state()).not_before_ms or 0
    assert waits - clock.now_ms() == 3_600_000


async def test_a_handler_follows_the_policy_of_its_drain(runtime: Runtime) -> None:
    queue, clock = worker_queue("q"), fake_clock(runtime)
    receipt = await queue.enqueue(1)

    def handler(job: harn.Job) -> None:
        raise Broken

    await drain("q", handler, claim_ttl="5s")
    assert (await receipt.state()).status == "in_flight"
    await clock.advance("5s")
    await drain("q", handler, retry=RetryPolicy(backoff="10s", jitter=0))
    state = await receipt.state()

    assert state.status == "scheduled"
    assert state.not_before_ms == clock.now_ms() + 20_000


async def test_an_error_that_another_attempt_would_not_help_makes_the_job_dead(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    known(fails, retry=RetryPolicy(give_up_on=(KeyError, Broken)))
    receipt = await worker_queue("q").submit(fails, "for good")

    await drain("q")

    state = await receipt.state()
    assert (state.status, state.attempts, state.error) == ("dead", 1, "Broken: for good")
    [line] = [each for each in caplog.records if each.name == "harn.workers"]
    assert line.levelno == logging.ERROR and line.exc_info and line.exc_info[0] is Broken


# -- what a handler may raise ----------------------------------------------------------------------


def wishes(which: str) -> None:
    if which == "later":
        raise RetryLater("1m")
    if which == "later because":
        raise RetryLater("1m") from Broken("of this")
    if which == "back":
        raise GiveBack("2m")
    raise Bury("no hope")


async def wishes_on_the_loop(which: str) -> None:
    wishes(which)


@pytest.mark.parametrize("as_handler", [False, True], ids=["function", "handler"])
@pytest.mark.parametrize("fn", [wishes, wishes_on_the_loop])
async def test_a_handler_or_function_says_what_becomes_of_its_job(
    fn: Any, as_handler: bool, caplog: pytest.LogCaptureFixture
) -> None:
    known(fn)
    async with Runtime(clock=FakeClock()) as runtime:
        queue, now = worker_queue("q"), runtime.clock.now_ms()
        cases = ("later", "later because", "back", "bury")
        receipts = [await queue.submit(fn, each) for each in cases]

        async def on_the_loop(job: harn.Job) -> None:
            await fn(*job.payload[0])

        handler = on_the_loop if fn is wishes_on_the_loop else lambda job: fn(*job.payload[0])
        report = await drain("q", handler if as_handler else None)

        later, because, back, bury = [await each.state() for each in receipts]
    assert (later.status, later.attempts, later.not_before_ms) == ("scheduled", 1, now + 60_000)
    assert later.error and later.error.startswith("RetryLater: ")
    assert because.error == "Broken: of this"
    assert (back.status, back.attempts, back.not_before_ms) == ("scheduled", 0, now + 120_000)
    assert back.error is None
    assert (bury.status, bury.attempts, bury.error) == ("dead", 1, "no hope")
    assert "in wishes" in (bury.traceback or "")
    assert (report.acked, report.deferred) == (0, 4)
    logged = [line.levelno for line in caplog.records if line.name == "harn.workers"]
    assert sorted(logged) == [logging.WARNING, logging.WARNING, logging.ERROR]


async def test_a_job_given_back_without_a_delay_is_ready_at_once(runtime: Runtime) -> None:
    await worker_queue("q").enqueue(1, max_attempts=1)
    attempts: list[int] = []

    async def handler(job: harn.Job) -> str:
        attempts.append(job.attempts)
        if len(attempts) < 3:
            raise GiveBack
        return "done"

    report = await drain("q", handler)

    assert attempts == [1, 1, 1]
    assert (report.acked, report.summary.dead) == (1, 0)


async def test_the_last_attempt_that_asks_for_another_one_is_dead(runtime: Runtime) -> None:
    known(wishes)
    receipt = await worker_queue("q").submit(wishes, "later because", max_attempts=1)

    await drain("q")

    with pytest.raises(JobFailed, match="Broken: of this"):
        await receipt.result()


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: RetryLater("soon"), "delay"),
        (lambda: RetryLater(-1), "delay"),
        (lambda: GiveBack(True), "delay"),
        (lambda: Bury(""), "reason"),
        (lambda: Bury(None), "reason"),  # type: ignore[arg-type]
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(make: Any, option: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        make()

    assert refused.value.option == option


# -- timeouts --------------------------------------------------------------------------------------


async def test_an_attempt_that_takes_too_long_fails_and_is_tried_again(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    queue, clock = worker_queue("q"), fake_clock(runtime)
    known(naps, timeout="30s", retry=RetryPolicy(backoff="1m", jitter=0))
    receipt = await queue.submit(naps)

    draining = harn.spawn(drain, "q")
    await clock.advance("31s")
    await draining

    state = await receipt.state()
    assert (state.status, state.attempts) == ("scheduled", 1)
    assert state.error and state.error.startswith("DeadlineExceeded: ") and "30s" in state.error
    assert "in naps" in (state.traceback or "")
    [line] = [each for each in caplog.records if each.name == "harn.workers"]
    assert line.levelno == logging.WARNING and line.exc_info
    assert line.exc_info[0] is DeadlineExceeded


async def naps() -> None:
    await harn.sleep("1h")


async def test_a_plain_function_that_takes_too_long_is_asked_to_stop(clock: FakeClock) -> None:
    begun, ended = threading.Event(), threading.Event()

    def until_asked() -> None:
        begun.set()
        pause = threading.Event()
        while not harn.is_cancelled():
            pause.wait(0.005)
        ended.set()

    known(until_asked, timeout="30s", retry=RetryPolicy(give_up_on=(DeadlineExceeded,)))
    async with Runtime(clock=clock):
        receipt = await worker_queue("q").submit(until_asked)
        draining = harn.spawn(drain, "q")
        assert await asyncio.to_thread(begun.wait, 60)  # a call that never began is not asked
        await clock.advance("31s")
        await draining
        with pytest.raises(JobFailed, match="DeadlineExceeded"):
            await receipt.result()
        assert ended.is_set()


async def test_a_function_that_ends_in_time_keeps_its_result(runtime: Runtime) -> None:
    known(shout, timeout="30s")
    receipt = await worker_queue("q").submit(shout, "in time")

    await drain("q")

    assert await receipt.result() == "IN TIME"

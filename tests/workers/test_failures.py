"""A failed attempt is visible: in the log output, in its response, in `explain`, in `dlq`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Job,
    RetryPolicy,
    Runtime,
    StorageError,
    drain,
    event_log_read,
    worker_queue,
)
from harn.orchestrator import explain
from harn.telemetry.tracebacks import MOST_TRACEBACK, traceback_text
from harn.testing import FakeClock
from harn.triggers import DeadLetters
from harn.workers import Bury, GiveBack, RetryLater
from tests.fake_clock import fake_clock


class Broken(Exception):
    """What the handlers here raise."""


def deep(job: Job) -> None:
    raise Broken(f"no luck with {job.payload}")


@pytest.fixture
async def runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=FakeClock(), seed=0) as runtime:
        yield runtime


async def responses(queue: str) -> list[dict[str, Any]]:
    return [event.payload for event in await event_log_read(f"worker.{queue}.responses")]


def lines(caplog: pytest.LogCaptureFixture, name: str = "harn.workers") -> list[Any]:
    return [record for record in caplog.records if record.name == name]


async def test_a_failed_attempt_is_logged_and_kept_with_its_traceback(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    await worker_queue("jobs").enqueue(1984)

    await drain("jobs", deep)

    [line] = lines(caplog)
    assert line.levelno == logging.WARNING
    assert line.exc_info[0] is Broken
    assert "job 1 failed in attempt 1 of 5" in line.getMessage()
    [response] = await responses("jobs")
    assert response["error"] == "Broken: no luck with 1984"
    assert (response["error_type"], response["error_message"]) == ("Broken", "no luck with 1984")
    assert "in deep" in response["traceback"]
    assert "harn/workers" not in response["traceback"]


async def awaits_what_was_cancelled(job: Job) -> None:
    fetching = asyncio.ensure_future(asyncio.sleep(60))
    fetching.cancel()
    await fetching


async def raises_it_at_once(job: Job) -> None:
    raise asyncio.CancelledError


@pytest.mark.timeout(20)
@pytest.mark.parametrize("handler", [awaits_what_was_cancelled, raises_it_at_once])
async def test_a_handler_that_was_not_cancelled_and_raises_that_has_failed(
    runtime: Runtime, handler: Callable[[Job], Any]
) -> None:
    queue = worker_queue("jobs")
    receipt = await queue.enqueue(1, max_attempts=2)

    await drain("jobs", handler, retry=RetryPolicy(backoff="1s", jitter=0))
    again = await receipt.state()
    await fake_clock(runtime).advance("2s")
    await drain("jobs", handler, retry=RetryPolicy(backoff="1s", jitter=0))

    assert (again.status, again.attempts, again.error) == ("scheduled", 1, "CancelledError")
    dead = await receipt.state()
    assert (dead.status, dead.attempts) == ("dead", 2)
    assert handler.__name__ in (dead.traceback or "")


async def test_the_last_attempt_is_an_error_and_its_letter_has_the_traceback(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    await worker_queue("jobs").enqueue(1, max_attempts=1)

    await drain("jobs", deep)

    [line] = lines(caplog)
    assert line.levelno == logging.ERROR and "is dead" in line.getMessage()
    [letter] = (await runtime.service(DeadLetters).listed()).entries
    assert letter["error_type"] == "Broken"
    assert "in deep" in letter["traceback"]


async def test_explain_shows_the_last_failure(runtime: Runtime) -> None:
    queue = worker_queue("jobs")
    await queue.enqueue_many([1, 2])
    await drain("jobs", deep, claim_ttl="1s")
    await fake_clock(runtime).advance("2s")
    await drain("jobs", lambda job: 1 / 0 if job.id == 1 else job.id, claim_ttl="1s")

    told = await explain(runtime, "jobs", 1)

    assert told["failure"]["error"] == "ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in told["failure"]["traceback"]


async def test_explain_finds_the_failure_without_a_search_of_the_responses(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker_queue("jobs").enqueue_many([1, 2])
    await drain("jobs", deep, claim_ttl="1s")

    async def search(*_: Any) -> None:
        pytest.fail("it searched")

    monkeypatch.setattr(type(runtime.event_log), "read", search)
    told = await explain(runtime, "jobs", 1)

    assert told["failure"]["error"] == "Broken: no luck with 1"


def _raises(error: Callable[[], BaseException]) -> Callable[[Job], None]:
    def handler(job: Job) -> None:
        raise error()

    return handler


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (lambda: RetryLater("1s"), logging.WARNING),
        (lambda: Bury("enough"), logging.ERROR),
        (lambda: GiveBack("1s"), None),
        (lambda: SystemExit(3), logging.WARNING),
    ],
    ids=["retry later", "bury", "give back", "exit"],
)
async def test_each_way_to_fail_leaves_its_line(
    caplog: pytest.LogCaptureFixture, error: Callable[..., Any], level: Any
) -> None:
    async with Runtime(clock=FakeClock()):
        await worker_queue("jobs").enqueue(1)

        await drain("jobs", _raises(error))

    assert [line.levelno for line in lines(caplog)] == ([] if level is None else [level])


async def test_a_claim_failed_by_hand_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime():
        queue = worker_queue("jobs")
        await queue.enqueue(1)
        claim = await queue.claim_next("me")
        assert claim

        assert await claim.fail(Broken("by hand"))
        assert not await claim.fail(Broken("again"))

    [line] = lines(caplog)
    assert "by hand" in line.getMessage()


async def test_a_failure_that_the_store_did_not_take_is_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with Runtime(state_dir=tmp_path) as runtime:
        queue = worker_queue("jobs")
        await queue.enqueue(1)

        async def handler(job: Job) -> None:
            await queue.store.driver.aclose()
            raise Broken("and no store")

        with pytest.raises(StorageError, match="is closed"):
            await drain("jobs", handler)
        assert not runtime.closing

    [line] = lines(caplog)
    assert "could not be recorded" in line.getMessage() and line.exc_info[0] is Broken


def test_a_traceback_is_at_most_8_kib_and_keeps_its_end() -> None:
    def recurse(n: int) -> None:
        if n:
            exec("recurse(n - 1)", {"recurse": recurse, "n": n})  # defeats "repeated more times"
        raise Broken("ä" * 3000)

    try:
        recurse(60)
    except Broken as error:
        text = traceback_text(error)

    assert len(text.encode()) <= MOST_TRACEBACK
    assert text.endswith("ä\n") and text.startswith("...")


def test_an_exception_that_cannot_be_shown_still_has_a_text() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    try:
        raise Hostile
    except Hostile as error:
        assert "Hostile" in traceback_text(error)


def test_a_lone_surrogate_does_not_break_the_record() -> None:
    text = traceback_text(Broken("\ud800"))

    assert json.loads(json.dumps(text)) == text
    text.encode()

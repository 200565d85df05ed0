"""A job that dies is listed with the dead letters of the triggers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harn import DispatchHandle, NewJob, Runtime, TriggerError
from harn.storage import Store
from harn.storage.log import compare
from harn.triggers import DeadLetters
from harn.workers import worker_queue


async def test_a_dead_job_is_a_letter_that_can_be_listed(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        queue = worker_queue("q")
        await queue.enqueue({"n": 1}, trigger_id="t", max_attempts=1)
        claim = await queue.claim_next("me")
        assert claim is not None
        await claim.fail("boom")

        letters = await runtime.service(DeadLetters).listed()
        await runtime.service(DeadLetters).discard(letters.entries[0]["id"])
        left = await runtime.service(DeadLetters).listed()
        differences = await runtime.service(Store).run(compare)

    assert (letters.depth, letters.entries[0]["error"], letters.entries[0]["queue"]) == (
        1,
        "boom",
        "q",
    )
    assert left.depth == 0
    assert differences == []


@pytest.mark.parametrize(
    "job",
    [
        NewJob({"n": 1}),
        NewJob([[1], {}], function="somewhere:else"),
        NewJob([[1], {}], function="somewhere:else", trigger_id="t"),
        NewJob("not an event", trigger_id="t"),
    ],
    ids=["payload", "function", "function with a trigger", "payload with a trigger"],
)
async def test_a_replayed_letter_of_a_job_from_code_makes_it_ready_again(
    storage_url: str, job: NewJob
) -> None:
    async with Runtime(storage=storage_url) as runtime:
        queue, letters = worker_queue("q"), runtime.service(DeadLetters)
        [receipt] = await queue.enqueue_many([job])
        while (claim := await queue.claim_next("me", ttl="1ms")) is not None:
            await claim.fail("boom", delay=0)
        [letter] = (await letters.listed()).entries

        handle = await letters.replay(letter["id"])

        assert (handle.status, handle.binding_id) == ("dispatched", "worker://q")
        state = await receipt.state()
        assert (state.status, state.attempts) == ("ready", 0)
        assert (await letters.listed()).depth == 0
        assert (await letters.get(letter["id"]))["state"] == "resolved"
        with pytest.raises(TriggerError, match="only a pending one"):
            await letters.replay(letter["id"])
        assert await runtime.service(Store).run(compare) == []


async def test_two_replays_at_once_make_a_job_ready_once() -> None:
    async with Runtime() as runtime:
        queue, letters = worker_queue("q"), runtime.service(DeadLetters)
        await queue.enqueue(1, max_attempts=1)
        claim: Any = await queue.claim_next("me")
        await claim.fail("boom")
        [letter] = (await letters.listed()).entries

        both = (letters.replay(letter["id"]), letters.replay(letter["id"]))
        first, second = await asyncio.gather(*both, return_exceptions=True)

        assert isinstance(first, DispatchHandle)
        assert isinstance(second, TriggerError)
        assert (await queue.summary()).ready == 1

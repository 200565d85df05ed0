"""A job that dies is listed with the dead letters of the triggers."""

from __future__ import annotations

from harn import Runtime
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

"""A trim of a worker queue: what was settled is gone from the log, and no fault of the index."""

from __future__ import annotations

from harn import Runtime, worker_queue
from harn.storage import Operation, Store, ask, ask_many, compare, list_topics, rebuild


async def work_and_trim(runtime: Runtime) -> None:
    queue = worker_queue("q")
    for n in range(30):
        await queue.enqueue({"n": n})
    for n in range(25):
        claim = await queue.claim_next("me")
        assert claim is not None
        await claim.ack(n)
    gone = 0
    for topic in await runtime.service(Store).run(list_topics, write=False):
        gone += await runtime.event_log.trim(topic, keep=0)
    assert gone >= 25


async def test_settled_jobs_that_were_trimmed_are_no_difference(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await work_and_trim(runtime)

        assert await store.run(compare) == []

        claim = await worker_queue("q").claim_next("me")
        assert claim is not None
        await claim.ack()
        assert await store.run(compare) == []
        await store.run(rebuild)
        assert await store.run(compare) == []


async def test_what_a_trim_does_not_explain_is_still_told(lasting_url: str) -> None:
    def spoil() -> Operation[None]:
        yield ask_many("rekey_jobs", ("queue_id", "id", "key"), [(1, 29, "another")])
        yield ask("set_cap", queue_id=1, cap=7)

    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await work_and_trim(runtime)
        await store.run(spoil)

        found = await store.run(compare)

    assert {each.table for each in found} == {"jobs", "queues"}
    assert [each.row[1] for each in found if each.table == "jobs"] == [29, 29]


async def test_a_queue_of_which_nothing_is_left_hides_no_other(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        for name in ("all-gone", "at-work"):
            await worker_queue(name).enqueue_many([1, 2])
        for claim in await worker_queue("all-gone").claim_many("me", 2):
            await claim.ack()
        for topic in ("worker.all-gone", "worker.all-gone.claims", "worker.all-gone.responses"):
            assert await runtime.event_log.trim(topic, keep=0) >= 2

        assert await store.run(compare) == []

        await worker_queue("all-gone").enqueue(3)
        assert await store.run(compare) == []
        await store.run(rebuild)
        assert await store.run(compare) == []

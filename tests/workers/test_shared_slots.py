"""Slots that consumers share, and a worker that serves several queues with them."""

from __future__ import annotations

import asyncio

import harn
from harn import worker_queue
from harn.workers import QueueWorker
from harn.workers.shared_slots import SharedSlots

order: list[str] = []


@harn.durable(name="slots-test:note")
async def note(queue: str) -> None:
    order.append(queue)


class Consumer:
    def __init__(self) -> None:
        self.told = 0

    def slot_is_free(self) -> None:
        self.told += 1


def test_a_free_slot_goes_to_the_one_that_waits_longest() -> None:
    slots, a, b, c = SharedSlots(2), Consumer(), Consumer(), Consumer()
    assert slots.take(a, 5) == 2
    assert (slots.take(b, 1), slots.take(c, 1)) == (0, 0)

    slots.release(a, 1)

    assert (slots.take(a, 1), slots.take(c, 1)) == (0, 0)
    assert (b.told, slots.take(b, 5)) == (1, 1)


def test_one_that_leaves_the_line_makes_room_for_the_next() -> None:
    slots, a, b, c = SharedSlots(1), Consumer(), Consumer(), Consumer()
    slots.take(a, 1)
    slots.take(b, 1)
    slots.take(c, 1)
    slots.release(a, 1)

    slots.leave(b)

    assert (c.told, slots.take(c, 1)) == (2, 1)


async def test_a_busy_queue_does_not_keep_another_out(runtime: harn.Runtime) -> None:
    order.clear()
    busy, other = worker_queue("busy"), worker_queue("other")
    many = [await busy.submit(note, "busy") for _ in range(30)]
    few = [await other.submit(note, "other") for _ in range(3)]
    worker = QueueWorker(runtime, ["busy", "other", "busy"], concurrency=1)

    async with harn.scope() as nursery:
        nursery.spawn(worker.run)
        for receipt in (*many, *few):
            await receipt.result(timeout="20s")
        worker.stop()

    assert len(order) == 33
    assert order[:8].count("other") == 3
    assert worker.counts()["busy"] == {"in_flight": 0, "acked": 30, "deferred": 0, "released": 0}


async def test_a_worker_runs_no_more_jobs_at_once_than_it_may(runtime: harn.Runtime) -> None:
    queues = ["a", "b", "c"]
    receipts = [await worker_queue(name).submit(crowd) for name in queues for _ in range(10)]
    worker = QueueWorker(runtime, queues, concurrency=4)

    async with harn.scope() as nursery:
        nursery.spawn(worker.run)
        for receipt in receipts:
            await receipt.result(timeout="20s")
        [consumer] = await harn.consumers()
        worker.stop()

    assert max(inside) == 4
    assert consumer.queues == ("a", "b", "c")


inside: list[int] = []
now = 0


@harn.durable(name="slots-test:crowd")
async def crowd() -> None:
    global now
    now += 1
    inside.append(now)
    for _ in range(5):
        await asyncio.sleep(0)
    now -= 1

"""pydantic models as payloads, outcomes, arguments and results: JSON both ways."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

import harn
from harn import (
    InvalidOption,
    JobError,
    NewJob,
    Runtime,
    drain,
    durable,
    pool_create,
    pool_simulate_restart,
    worker_queue,
)

GOT: list[Any] = []


class Item(BaseModel):
    sku: str = Field(alias="SKU")
    count: Annotated[int, Field(gt=0)] = 1


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: int
    at: datetime
    items: list[Item] = []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        return len(self.items)


class Bill(BaseModel):
    order: int
    at: datetime


class Special(Item):
    gift: bool = True


AT = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = Order(id=7, at=AT, items=[Item(SKU="a"), Item(SKU="b", count=2)])


@durable(name="tests:pydantic:bill")
async def bill(order: Order, *, note: str = "") -> Bill:
    GOT.append((order, note))
    return Bill(order=order.id, at=order.at)


@durable(name="tests:pydantic:all")
async def bill_all(*orders: Order, **named: Item | None) -> list[Bill]:
    GOT.append((orders, named))
    return [Bill(order=each.id, at=each.at) for each in orders]


@durable(name="tests:pydantic:pack")
async def pack(item: Item) -> None:
    GOT.append(item)


@durable(name="tests:pydantic:untyped")
async def untyped(order: Any) -> None: ...


@durable(name="tests:pydantic:wrong")
async def promises_a_bill() -> Bill:
    return {"order": "many"}  # type: ignore[return-value] # what the test is about


@pytest.fixture(autouse=True)
def nothing_got() -> None:
    GOT.clear()


async def test_a_payload_and_an_outcome_are_what_the_model_reads(runtime: Runtime) -> None:
    receipt = await worker_queue("orders").enqueue({"item": Item(SKU="a")})

    async def handler(job: Any) -> Any:
        GOT.append(Item.model_validate(job.payload["item"]))
        return Bill(order=1, at=AT)

    await drain("orders", handler)

    assert GOT == [Item(SKU="a")]
    assert Bill.model_validate(await receipt.result()) == Bill(order=1, at=AT)


async def test_a_submitted_function_gets_models_and_its_result_is_one(runtime: Runtime) -> None:
    queue = worker_queue("orders")
    receipt = await queue.submit(bill, ORDER)
    many = await queue.submit(bill_all, ORDER, ORDER)

    await drain("orders")

    assert GOT == [(ORDER, ""), ((ORDER, ORDER), {})]
    assert await receipt.result() == Bill(order=7, at=AT)
    assert await many.result(timeout="30s") == [Bill(order=7, at=AT)] * 2
    state = await receipt.state()
    assert (state.outcome, state.outcome_omitted) == (
        {"order": 7, "at": "2026-01-01T00:00:00Z"},
        False,
    )


@pytest.mark.parametrize(
    ("fn", "argument"),
    [
        (untyped, ORDER),  # it would come as a dict
        (untyped, [ORDER]),
        (pack, Special(SKU="a")),  # it would come without its gift
        (pack, Item.model_construct(sku="a", count=0)),  # no Item could be read from it
    ],
)
async def test_a_model_that_would_not_come_back_is_refused(
    runtime: Runtime, fn: Any, argument: Any
) -> None:
    with pytest.raises(InvalidOption, match="pydantic models for parameters of their type"):
        await worker_queue("orders").submit(fn, argument)


async def test_a_job_whose_arguments_do_not_fit_the_model_fails(runtime: Runtime) -> None:
    queue = worker_queue("orders")
    payload = [[{"SKU": "a", "count": 0}], {}]
    job = NewJob(payload, function="tests:pydantic:pack", max_attempts=1)
    [receipt] = await queue.enqueue_many([job])

    await drain("orders")

    with pytest.raises(harn.JobFailed, match="ValidationError"):
        await receipt.result()
    assert GOT == []


async def test_a_result_that_is_not_the_model_it_promised_is_told(runtime: Runtime) -> None:
    receipt = await worker_queue("orders").submit(promises_a_bill)
    await drain("orders")

    with pytest.raises(JobError, match="order: Input should be a valid integer") as raised:
        await receipt.result()

    assert isinstance(raised.value.__cause__, ValidationError)
    assert (await receipt.state()).outcome == {"order": "many"}


async def test_a_pipeline_pool_keeps_models_across_a_restart(tmp_path: Path) -> None:
    async with harn.Runtime(state_dir=tmp_path, storage="memory://"):

        async def opened() -> harn.Pool:
            return await pool_create(name="bills", scope="pipeline", pipeline_id="p")

        pool = await opened()
        ended = await pool.submit(bill, ORDER)
        assert await ended == Bill(order=7, at=AT)
        plain = await pool.submit(lambda: [Item(SKU="a")])
        await plain.wait()
        await pool.submit(harn.sleep, "1h")
        queued = await pool.submit(bill, ORDER)
        pool_simulate_restart()
        GOT.clear()

        pool = await opened()
        await pool.close()

        seen = {task.id: task for task in pool.snapshot().tasks}
        assert GOT == [(ORDER, "")]
        for id in (ended.id, queued.id):
            assert (seen[id].result, seen[id].result_omitted) == (Bill(order=7, at=AT), False)
        assert seen[plain.id].result == [{"SKU": "a", "count": 1}]

"""Steps of a durable call in a pipeline pool: the journal has them, and the next process too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import harn
from harn import HarnError, Pool, durable, pool_create, pool_simulate_restart, pool_wait, step
from harn.pools.journal_records import StepLine, TaskRecord, decode, encode, fold
from harn.testing import FakeClock

DONE: list[str] = []
GATES: list[asyncio.Event] = []
"""What a run waits for: the newest gate at its start."""


@durable(name="tests:in-steps", rerun=True)
async def in_steps(names: list[str]) -> list[Any]:
    found, gate = [], GATES[-1]
    for name in names:
        if name == "wait":
            await gate.wait()
        else:
            found.append(await step("do", do, name))
    return found


@durable(name="tests:steps-on-a-thread", rerun=True)
def on_a_thread(what: str) -> Any:
    return harn.from_thread(step, "do", do, what)


def do(name: str) -> list[str]:
    DONE.append(name)
    return [name]


@pytest.fixture(autouse=True)
def start_again() -> None:
    DONE.clear()
    GATES[:] = [asyncio.Event()]


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    async with harn.Runtime(state_dir=tmp_path, storage="memory://", clock=FakeClock(), seed=1):
        yield tmp_path / "pools" / "nightly__jobs.jsonl"


async def opened() -> Pool:
    return await pool_create(name="jobs", scope="pipeline", pipeline_id="nightly")


def steps_of(path: Path) -> list[StepLine]:
    ledger, _ = fold([path.read_bytes()])
    return [line for task in ledger.tasks.values() for line in task.steps or ()]


async def test_a_call_that_runs_again_continues_after_its_last_step(disk: Path) -> None:
    pool = await opened()
    task = await pool.submit(in_steps, ["a", "b", "wait", "c"])
    async with asyncio.timeout(30):
        while len(steps_of(disk)) < 2:
            await asyncio.sleep(0.001)
    pool_simulate_restart()

    GATES.append(asyncio.Event())
    GATES[-1].set()
    pool = await opened()
    await pool.close()

    assert DONE == ["a", "b", "c"]
    [ended] = [each for each in (await opened()).snapshot().tasks if each.id == task.id]
    assert ended.result == [["a"], ["b"], ["c"]]
    assert steps_of(disk) == []  # a task that has ended needs them no more


async def test_a_call_on_a_thread_has_steps_too(disk: Path) -> None:
    pool = await opened()

    assert await (await pool.submit(on_a_thread, "x")) == ["x"]
    assert DONE == ["x"]


async def test_what_a_journal_does_not_keep_has_no_steps(disk: Path) -> None:
    pool = await opened()
    session = await pool_create(name="session")
    outside = "outside of durable work"

    for task in (
        await pool.submit(lambda: harn.from_thread(step, "do", do, "x")),
        await session.submit(in_steps, ["x"]),
    ):
        assert outside in ((await pool_wait(task)).error or "")
    with pytest.raises(HarnError, match=outside):
        await step("do", do, "x")


def test_a_compacted_journal_keeps_the_steps_of_tasks_that_have_not_ended() -> None:
    line = StepLine(1, 7, "do", 0, "do 00", 1, 2, msgspec.Raw(b'{"a":[1]}'))
    task = TaskRecord(1, 7, "task", 0, call="f", steps=[line])

    [again] = [decode(encode(task).split(b',"crc"')[0] + b"}")]

    assert isinstance(again, TaskRecord)
    assert again.steps is not None
    assert bytes(again.steps[0].result) == b'{"a":[1]}'
    assert TaskRecord(1, 8, "other", 0).steps is None

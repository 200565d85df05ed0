"""`submit_many`: all calls or none, in order, with one line and one sync in a journal."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    InvalidOption,
    Pool,
    PoolBusy,
    PoolClosed,
    PoolFull,
    Runtime,
    StorageError,
    StorageVersion,
    backpressure_queue,
    durable,
    fail_fast,
    pool_create,
    pool_simulate_restart,
    pool_wait,
    ring_buffer,
)
from harn.pools import causing
from harn.pools.journal_records import VERSION, fold
from harn.testing import FakeClock
from tests.fake_clock import fake_clock

RAN: list[Any] = []


@durable(name="tests:many:note")
async def note(what: Any) -> Any:
    RAN.append(what)
    return what


async def nothing() -> None: ...


@pytest.fixture(autouse=True)
def fresh_notes() -> None:
    RAN.clear()


async def hold_slot(pool: Pool) -> asyncio.Event:
    """Take a slot of *pool* until the event that is returned is set."""
    began, let_go = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        began.set()
        await let_go.wait()

    await pool.submit(body)
    await began.wait()
    return let_go


async def test_functions_and_tuples_are_submitted_in_order(runtime: Runtime) -> None:
    async with await pool_create(queue="fifo") as pool:
        await hold_slot_and_let_go(pool)
        calls = ((note, n) if n % 2 else partial(note, n) for n in range(6))
        tasks = await pool.submit_many(calls, priority=3, key="k", tenant_id="acme")

        assert [await task for task in tasks] == [0, 1, 2, 3, 4, 5]
    assert RAN == [0, 1, 2, 3, 4, 5]
    assert {(task.priority, task.key) for task in tasks} == {(3, "k")}
    assert all(task.labels == {"tenant_id": "acme"} for task in tasks)


async def hold_slot_and_let_go(pool: Pool) -> None:
    (await hold_slot(pool)).set()


async def test_no_calls_are_no_tasks(runtime: Runtime) -> None:
    pool = await pool_create(backpressure=fail_fast())
    await hold_slot(pool)

    assert await pool.submit_many([]) == []


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([nothing, (note,)], r"calls\[1\].*note\(what"),
        ([nothing, (note, 1, 2)], r"calls\[1\].*too many positional"),
        ([nothing, 7], r"calls\[1\]=7 is not accepted"),
        ([nothing, ()], r"calls\[1\]=\(\) is not accepted"),
        ([nothing, (7, 8)], r"calls\[1\]=7 is not accepted"),
        (nothing, "a list of functions"),
        (7, "a list of functions"),
        ("abc", "a list of functions"),
    ],
)
async def test_one_wrong_call_is_named_and_none_is_submitted(
    runtime: Runtime, calls: Any, said: str
) -> None:
    pool = await pool_create()

    with pytest.raises((TypeError, InvalidOption), match=said):
        await pool.submit_many(calls)

    assert pool.snapshot().total == 0


@pytest.mark.parametrize(
    "options", [{"priority": "high"}, {"key": 7}, {"prioritty": "1"}, {"idempotency_key": "k"}]
)
async def test_a_wrong_option_submits_none(runtime: Runtime, options: Any) -> None:
    pool = await pool_create()

    with pytest.raises(InvalidOption, match=next(iter(options))):
        await pool.submit_many([nothing, nothing], **options)

    assert pool.snapshot().total == 0


async def test_B2_a_batch_waits_for_all_its_places_and_is_not_overtaken(runtime: Runtime) -> None:
    pool = await pool_create(queue="fifo", backpressure=backpressure_queue(2))
    let_go = await hold_slot(pool)
    queued = await pool.submit(note, "first")
    batch = asyncio.ensure_future(pool.submit_many([(note, 1), (note, 2)]))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(pool.submit(note, "late"))
    await asyncio.sleep(0)
    seen = pool.snapshot(tasks=False)
    assert (seen.queued, seen.blocked_submitters) == (1, 2)  # a place is free, for neither of them

    queued.cancel()
    assert [task.status for task in await batch] == ["queued", "queued"]
    let_go.set()
    await pool_wait([*await batch, await late])

    assert RAN == [1, 2, "late"]
    assert pool.snapshot(tasks=False).blocked_submitters == 0


async def test_B2_a_batch_that_is_cancelled_leaves_its_places_to_the_next(runtime: Runtime) -> None:
    pool = await pool_create(backpressure=backpressure_queue(2))
    await hold_slot(pool)
    queued = await pool.submit_many([nothing, nothing])
    batch = asyncio.ensure_future(pool.submit_many([(note, 1), (note, 2)]))
    next_one = asyncio.ensure_future(pool.submit(nothing))
    await asyncio.sleep(0)

    for task in queued:
        task.cancel()  # the places are held for the batch, which has not resumed
    batch.cancel()
    await asyncio.gather(batch, return_exceptions=True)

    assert (await next_one).status == "queued"
    seen = pool.snapshot(tasks=False)
    assert (seen.total, seen.blocked_submitters) == (4, 0)


async def test_a_batch_that_would_never_fit_is_refused(runtime: Runtime) -> None:
    pool = await pool_create(max_concurrent=2, backpressure=backpressure_queue(3))

    with pytest.raises(InvalidOption, match=r"at most 5 calls.*2 slots and a queue of 3"):
        await pool.submit_many([nothing] * 6)

    assert len(await pool.submit_many([nothing] * 5)) == 5


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        (backpressure_queue(2, "fail_submitter"), PoolFull, "cannot take 4 more"),
        (fail_fast(), PoolBusy, r"no 4 free slots \(1 of 2 running\)"),
    ],
)
async def test_B6_a_policy_that_refuses_takes_none(
    runtime: Runtime, policy: Any, error: Any, said: str
) -> None:
    pool = await pool_create(max_concurrent=2, backpressure=policy)
    await hold_slot(pool)

    with pytest.raises(error, match=said):
        await pool.submit_many([nothing] * 4)

    assert pool.snapshot().total == 1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (backpressure_queue(2, "drop_newest"), ["queued", "queued", "rejected"]),
        (backpressure_queue(2, "drop_oldest"), ["rejected", "queued", "queued"]),
        (ring_buffer(2), ["rejected", "queued", "queued"]),
    ],
)
async def test_a_policy_that_drops_is_asked_for_each_call(
    runtime: Runtime, policy: Any, expected: list[str]
) -> None:
    pool = await pool_create(backpressure=policy)
    await hold_slot(pool)

    tasks = await pool.submit_many([nothing] * 3)

    assert [task.status for task in tasks] == expected


async def test_close_sends_a_blocked_batch_away(runtime: Runtime) -> None:
    pool = await pool_create(backpressure=backpressure_queue(1))
    let_go = await hold_slot(pool)
    batch = asyncio.ensure_future(pool.submit_many([nothing, nothing]))
    await asyncio.sleep(0)

    closing = asyncio.ensure_future(pool.close())
    with pytest.raises(PoolClosed):
        await batch
    let_go.set()
    await closing

    with pytest.raises(PoolClosed):
        await pool.submit_many([])


async def test_P9_a_closure_that_submits_a_batch_into_its_own_full_pool_is_told(
    runtime: Runtime,
) -> None:
    pool = await pool_create(backpressure=backpressure_queue(1))

    task = await pool.submit(lambda: pool.submit_many([nothing, nothing]))

    seen = await task.wait()
    assert seen.status == "failed" and "DeadlockError" in str(seen.error)


async def test_a_batch_belongs_to_the_work_that_caused_it(runtime: Runtime) -> None:
    pool = await pool_create()

    with causing() as caused:
        await pool.submit_many([nothing, nothing])

    assert (await caused.wait(30)).completed == 2


async def test_an_error_on_the_way_in_leaves_none(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await pool_create(max_concurrent=2)
    admit = type(pool._admission).admit
    admitted: list[Any] = []

    def deep(*args: Any, **options: Any) -> Any:
        if len(admitted) == 3:
            raise RecursionError
        admitted.append(admit(*args, **options))
        return admitted[-1]

    monkeypatch.setattr(type(pool._admission), "admit", deep)
    with pytest.raises(RecursionError):
        await pool.submit_many([(note, n) for n in range(5)])
    monkeypatch.undo()

    assert await (await pool.submit(note, "after")) == "after"
    assert RAN == ["after"]
    assert pool.snapshot().total == 1


# In a journal.


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    async with harn.Runtime(state_dir=tmp_path, storage="memory://", clock=FakeClock(), seed=1):
        yield tmp_path / "pools" / "nightly__jobs.jsonl"


async def opened(**options: Any) -> Pool:
    return await pool_create(
        **{"name": "jobs", "scope": "pipeline", "pipeline_id": "nightly", **options}
    )


async def test_a_batch_shares_one_sync_and_resumes_in_order(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened(queue="fifo")
    await hold_slot(pool)
    await fake_clock().settle()
    syncs: list[int] = []
    synced = os.fdatasync

    def counted(fd: int) -> None:
        syncs.append(fd)
        synced(fd)

    monkeypatch.setattr(os, "fdatasync", counted)

    await pool.submit_many([(note, n) for n in range(50)])

    assert len(syncs) == 1
    pool_simulate_restart()
    await (await opened(queue="fifo")).close()
    assert RAN == list(range(50))


async def test_J1_every_cut_of_a_journal_has_the_whole_batch_or_none_of_it(disk: Path) -> None:
    pool = await opened()
    await hold_slot(pool)
    await fake_clock().settle()
    before = disk.stat().st_size
    await pool.submit_many([(note, "é"), (note, 2), nothing])
    data = disk.read_bytes()

    for length in range(before, len(data) + 1):
        ledger, _ = fold([data[:length]])
        # The checksum is complete when only the newline is missing.
        assert len(ledger.tasks) == (4 if length >= len(data) - 1 else 1), length
        assert not ledger.damage
    await pool.close(cancel=True)


async def test_a_batch_that_is_cancelled_before_the_sync_leaves_none_after_a_restart(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened(max_concurrent=2)
    await hold_slot(pool)
    await fake_clock().settle()
    allow, synced = threading.Event(), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (allow.wait(30), synced(fd)))
    batch = asyncio.ensure_future(pool.submit_many([(note, n) for n in range(3)]))
    await asyncio.sleep(0)

    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    allow.set()

    assert pool.snapshot().total == 1
    await pool.close(cancel=True)
    assert (await opened()).snapshot().total == 1
    assert RAN == []
    assert not list(disk.parent.glob("*.damaged"))


async def test_J9_a_failed_write_leaves_none_of_the_batch(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    await hold_slot(pool)
    await fake_clock().settle()
    assert pool._slots.journal
    handle, write = pool._slots.journal._journal._file.handle, os.pwrite

    def half(fd: int, data: Any, at: Any) -> Any:
        if fd == handle:
            write(fd, bytes(data)[:70], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StorageError, match="No space left"):
        await pool.submit_many([(note, 1), (note, 2)])
    monkeypatch.undo()

    assert pool.snapshot().total == 1
    pool_simulate_restart()
    assert (await opened()).snapshot().total == 1


async def test_a_task_that_its_own_batch_evicts_is_rejected_after_a_restart_too(
    disk: Path,
) -> None:
    pool = await opened(backpressure=ring_buffer(1))
    await hold_slot(pool)
    tasks = await pool.submit_many([(note, 1), (note, 2), (note, 3)])
    assert [task.status for task in tasks] == ["rejected", "rejected", "queued"]

    pool_simulate_restart()
    await (pool := await opened(backpressure=ring_buffer(1))).close()

    seen = {task.id: task.status for task in pool.snapshot().tasks}
    assert [seen[task.id] for task in tasks] == ["rejected", "rejected", "completed"]


async def test_an_older_harn_refuses_a_journal_with_a_batch_and_does_not_lose_it(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    await hold_slot(pool)
    await pool.submit_many([(note, 1), (note, 2)])
    pool_simulate_restart()

    monkeypatch.setattr("harn.pools.journal_records.TOGETHER", VERSION)
    with pytest.raises(StorageVersion, match="version 2"):
        await opened()

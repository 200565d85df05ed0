"""The pipeline scope's journal: prefixes, damage, owners, failures of the disk, compaction."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel

import harn
from harn import (
    InvalidOption,
    Pool,
    PoolLocked,
    PoolTask,
    Retention,
    StorageCorrupt,
    StorageError,
    StorageVersion,
    backpressure_queue,
    durable,
    durable_calls,
    pool_create,
    pool_simulate_restart,
)
from harn.current import current_runtime
from harn.pools import Backlogs
from harn.pools.journal import Journal
from harn.pools.journal_file import journal_name
from harn.pools.journal_records import (
    VERSION,
    EndRecord,
    JournalState,
    PoolRecord,
    TaskRecord,
    decode,
    encode,
    fold,
)
from harn.testing import FakeClock
from tests.fake_clock import fake_clock
from tests.linux_only import DATA_SYNC

RAN: list[object] = []


@durable(name="tests:note")
async def note(what: Any, **more: Any) -> dict[Any, Any]:
    RAN.append(what)
    return {"noted": what, **more}


@durable(name="tests:again", rerun=True)
async def again(what: Any) -> None:
    RAN.append(what)
    await asyncio.Event().wait()


@durable(name="tests:hang")
async def hang(what: Any = None) -> None:
    await asyncio.Event().wait()


async def nothing() -> None: ...


@pytest.fixture(autouse=True)
def fresh_notes() -> None:
    RAN.clear()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    async with harn.Runtime(state_dir=tmp_path, storage="memory://", clock=FakeClock(), seed=1):
        yield tmp_path / "pools"


async def opened(**options: Any) -> Pool:
    return await pool_create(
        **{"name": "jobs", "scope": "pipeline", "pipeline_id": "nightly", **options}
    )


FILE = "nightly__jobs.jsonl"


def task_of(pool: Pool, id: str) -> PoolTask:
    """The task *id*, which *pool* must know."""
    task = pool._slots.find(id)
    assert task, f"{id} is unknown"
    return task


def journal_of(pool: Pool) -> Journal:
    """The journal below a pool that is kept on disk."""
    assert pool._slots.journal
    return pool._slots.journal._journal


async def test_a_queued_durable_call_resumes_in_its_old_order(disk: Path) -> None:
    pool = await opened(queue="fifo")
    await pool.submit(hang)
    tasks = [await pool.submit(partial(note, number, more=[1])) for number in range(5)]
    pool_simulate_restart()

    pool = await opened(queue="fifo")
    await pool.close()

    assert RAN == [0, 1, 2, 3, 4]
    pool = await opened()
    by_id = {task.id: task for task in pool.snapshot().tasks}
    assert [by_id[task.id].result for task in tasks] == [
        {"noted": number, "more": [1]} for number in range(5)
    ]


class Order(BaseModel):
    n: int


class PricedOrder(Order):
    price: int


def registered(model: type[Order]) -> Callable[[Any], Awaitable[Any]]:
    """Register one durable function, whose parameter is of another model at each deploy."""

    async def bill(order: Any) -> None: ...

    bill.__annotations__["order"] = model
    return durable(name="tests:bill")(bill)


async def test_a_call_whose_stored_arguments_no_longer_fit_says_why(disk: Path) -> None:
    pool = await opened(queue="fifo")
    await pool.submit(hang)
    wrong = await pool.submit(registered(Order), Order(n=1))
    await pool.submit(note, "next")
    pool_simulate_restart()

    registered(PricedOrder)
    pool = await opened(queue="fifo")
    await pool.close()

    assert RAN == ["next"]
    pool = await opened()
    assert task_of(pool, wrong.id).error == (
        "HarnError: the stored arguments do not fit tests:bill: price: Field required"
    )


async def opened_by_hand(**options: Any) -> Pool:
    """The pool as a command opens it."""
    current_runtime().service(Backlogs).are_left = True
    return await opened(**options)


async def test_a_pool_opened_by_hand_leaves_its_backlog_to_the_next_opener(disk: Path) -> None:
    pool = await opened(queue="fifo")
    await pool.submit(again, "running")
    await pool.submit(partial(note, "queued"))
    closure = await pool.submit(nothing)
    pool_simulate_restart()
    RAN.clear()

    pool = await opened_by_hand(queue="fifo")
    await pool.submit(partial(note, "new"))
    assert (pool.size(), pool.snapshot().queued) == (4, 3)
    await pool.close()
    assert RAN == ["new"]
    pool_simulate_restart()

    pool = await opened(queue="fifo", max_concurrent=2)
    while RAN != ["new", "running", "queued"]:
        await asyncio.sleep(0)
    assert task_of(pool, closure.id).snapshot().stale_reason == "never_started"


async def test_by_hand_a_submit_takes_up_the_task_of_its_idempotency_key(disk: Path) -> None:
    pool = await opened(queue="fifo")
    await pool.submit(hang, idempotency_key="began")
    queued = await pool.submit(partial(note, "asked for"), idempotency_key="k")
    await pool.submit(partial(note, "not asked for"))
    pool_simulate_restart()

    pool = await opened_by_hand(queue="fifo")
    task = await pool.submit(partial(note, "asked for"), idempotency_key="k")
    began = await pool.submit(hang, idempotency_key="began")

    assert task.id == queued.id
    assert await task == {"noted": "asked for"}
    assert (await began.wait()).stale_reason == "interrupted"
    await pool.close()
    assert RAN == ["asked for"]


async def test_by_hand_a_task_of_the_backlog_can_be_cancelled(disk: Path) -> None:
    pool = await opened()
    await pool.submit(hang)
    queued = await pool.submit(partial(note, "never"))
    pool_simulate_restart()

    pool = await opened_by_hand()
    assert task_of(pool, queued.id).cancel()
    await pool.close()
    pool_simulate_restart()

    assert task_of(await opened(), queued.id).status == "cancelled"
    assert RAN == []


async def test_J10_what_cannot_resume_reloads_as_stale_with_its_reason(disk: Path) -> None:
    pool = await opened()
    running = await pool.submit(hang, idempotency_key="r")
    closure = await pool.submit(nothing, idempotency_key="c", priority=3, key="k", tenant_id="t")
    pool_simulate_restart()

    pool = await opened()
    by_id = {task.id: task for task in pool.snapshot().tasks}
    first, second = by_id[running.id], by_id[closure.id]

    assert (first.status, first.stale_reason) == ("failed", "interrupted")
    assert (second.status, second.stale_reason) == ("failed", "never_started")
    assert "stale after process restart" in str(second.error)
    assert (second.priority, second.key, second.labels) == (3, "k", {"tenant_id": "t"})
    again = await pool.submit(nothing, idempotency_key="c")
    assert again.snapshot() == second
    before = pool.snapshot()
    await pool.close()
    assert (await opened()).snapshot().tasks == before.tasks


async def test_a_call_that_may_rerun_is_queued_again_after_an_interruption(disk: Path) -> None:
    pool = await opened()
    task = await pool.submit(partial(again, "x"))
    await fake_clock().settle()
    pool_simulate_restart()

    pool = await opened()
    await fake_clock().settle()

    assert RAN == ["x", "x"]
    assert task_of(pool, task.id).status == "running"


async def test_an_unregistered_durable_function_is_stale_and_named(disk: Path) -> None:
    pool = await opened()
    await pool.submit(hang)
    task = await pool.submit(partial(note, 1))
    pool_simulate_restart()
    entry = durable_calls._by_name.pop("tests:note")

    try:
        pool = await opened()
    finally:
        durable_calls._by_name["tests:note"] = entry

    seen = task_of(pool, task.id).snapshot()
    assert seen.stale_reason == "never_started"
    assert "tests:note is not registered" in str(seen.error)
    assert RAN == []


async def test_a_repeated_call_without_arguments_is_no_conflict_after_a_restart(disk: Path) -> None:
    pool = await opened()
    first = await pool.submit(hang, idempotency_key="once")
    pool_simulate_restart()

    pool = await opened()
    second = await pool.submit(hang, idempotency_key="once")

    assert second.id == first.id
    assert second.conflicts == 0


async def test_idempotency_survives_restart_and_compaction(disk: Path) -> None:
    pool = await opened()
    first = await pool.submit(partial(note, 1), idempotency_key="once")
    await first.wait()
    for _ in range(150):
        await (await pool.submit(partial(note, 0)))
    await pool.close()

    pool = await opened()
    second = await pool.submit(partial(note, 1), idempotency_key="once")

    assert second.id == first.id
    assert second.snapshot() == first.snapshot()
    assert RAN.count(1) == 1


async def test_results_reload_as_the_same_value_or_as_text(disk: Path) -> None:
    pool = await opened(max_concurrent=4)
    values = [None, 5, "é\u2028", [1, {"a": [None, 1.5]}], (1, 2), {1: 2}, float("nan"), "\ud800"]

    async def give(value: Any) -> Any:
        return value

    tasks = [await pool.submit(partial(give, value)) for value in values]
    await pool.close()
    pool = await opened()
    seen = [task_of(pool, task.id).snapshot() for task in tasks]

    assert [each.result for each in seen[:4]] == values[:4]
    assert [each.result_omitted for each in seen] == [False] * 4 + [True] * 4
    assert [each.result for each in seen[4:]] == [repr(value) for value in values[4:]]


async def test_a_result_that_is_not_json_is_marked_in_the_journal_beside_its_text(
    disk: Path,
) -> None:
    async def give_set() -> Any:
        return {1984}

    pool = await opened()
    task = await pool.submit(give_set)
    await pool.close()
    whole = (disk / journal_name("nightly", "jobs")).read_bytes()

    [end] = [each for each in map(json.loads, whole.splitlines()) if each["kind"] == "end"]
    assert (end["result_omitted"], end["result_text"], "result" in end) == (True, "{1984}", False)
    ledger, _ = fold(whole.splitlines(keepends=True))
    ledger, _ = fold(ledger.as_lines())  # as a compaction writes it
    [record] = ledger.tasks.values()
    assert (record.result_omitted, record.result_text) == (True, "{1984}")
    seen = task_of(await opened(), task.id).snapshot()
    assert (seen.result_omitted, seen.result) == (True, "{1984}")


async def test_rejected_and_cancelled_tasks_and_counts_reload(disk: Path) -> None:
    pool = await opened(backpressure=backpressure_queue(1, "drop_oldest"))
    running = await pool.submit(hang)
    dropped = await pool.submit(nothing)
    queued = await pool.submit(nothing)
    queued.cancel()
    running.cancel()
    await pool.close()

    seen = (await opened()).snapshot()

    assert [task.status for task in seen.tasks] == ["cancelled", "rejected", "cancelled"]
    assert seen.tasks[1].rejection_reason == "drop_oldest_queue_full"
    assert (seen.total, seen.cancelled, seen.rejected) == (3, 2, 1)
    assert seen.durable and seen.scope_id == "nightly"
    assert dropped.id == seen.tasks[1].id


async def test_close_with_cancel_leaves_the_durable_queue_for_the_next_opener(disk: Path) -> None:
    pool = await opened()
    await pool.submit(hang)
    waiting, closure = await pool.submit(partial(note, 1)), await pool.submit(nothing)

    await pool.close(cancel=True)

    assert (waiting.status, closure.status) == ("cancelled", "cancelled")
    pool = await opened()
    assert await task_of(pool, waiting.id) == {"noted": 1}
    assert task_of(pool, closure.id).snapshot().stale_reason == "never_started"


async def test_J3_submit_returns_after_the_sync_and_not_before(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    allow, synced = threading.Event(), getattr(os, DATA_SYNC)
    monkeypatch.setattr(os, DATA_SYNC, lambda fd: (allow.wait(10), synced(fd)))

    submit = asyncio.ensure_future(pool.submit(partial(note, 1)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not submit.done()
    assert RAN == []
    allow.set()

    await (await submit).wait()
    assert RAN == [1]


async def test_a_burst_of_submits_shares_syncs(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await opened(max_concurrent=1)
    await pool.submit(hang)
    await fake_clock().settle()
    calls: list[int] = []
    synced = getattr(os, DATA_SYNC)

    def counted(fd: int) -> None:
        calls.append(fd)
        synced(fd)

    monkeypatch.setattr(os, DATA_SYNC, counted)

    await asyncio.gather(*(pool.submit(partial(note, n)) for n in range(1000)))

    assert len(calls) < 50
    await pool.close(cancel=True)


# Prefixes and damage.


def some_lines() -> list[bytes]:
    head = PoolRecord(VERSION, "pool_x", "jobs", "pipeline", "nightly", 1, 0, 0)
    tasks = [TaskRecord(VERSION, n, f"t{n}", n, key="é") for n in range(1, 4)]
    return [encode(head), *map(encode, tasks)]


def state(ledger: JournalState) -> tuple[Any, ...]:
    return ledger.pool, ledger.tasks, list(ledger.ended), ledger.last_seq


def test_J1_every_prefix_gives_the_state_of_its_whole_records() -> None:
    lines = some_lines()
    data = b"".join(lines)

    for length in range(len(data) + 1):
        ledger, end = fold(data[:length].splitlines(keepends=True))
        whole, size = [], 0
        for line in lines:
            if size + len(line) - 1 > length:  # a line is whole without its newline
                break
            whole.append(line)
            size += len(line)
        assert state(ledger) == state(fold(whole)[0]), length
        assert ledger.damage == []
        assert end == min(size, length)


async def test_J1_J2_every_cut_of_a_journal_opens_and_takes_the_next_record(disk: Path) -> None:
    pool = await opened()
    for number in range(3):
        await (await pool.submit(partial(note, number), idempotency_key=str(number)))
    await pool.close()
    data = (disk / FILE).read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n", 0, len(data) - 400)

    for length in range(last, len(data) + 1):
        (disk / FILE).write_bytes(data[:length])
        pool = await opened()
        known = {task.id for task in pool.snapshot().tasks}
        added = await pool.submit(partial(note, "new"))
        await pool.close()
        pool = await opened()
        seen = {task.id: task for task in pool.snapshot().tasks}
        assert set(seen) == known | {added.id}, length
        assert seen[added.id].status == "completed"
        await pool.close()
    assert not list(disk.glob("*.damaged"))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_J4_any_flipped_byte_is_found(data: Any) -> None:
    lines = some_lines()
    line = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[line]) - 2))
    flipped = bytearray(lines[line])
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    lines[line] = bytes(flipped)

    try:
        ledger, _ = fold(b"".join(lines).splitlines(keepends=True))
    except StorageVersion:
        assert line == 0, "one damaged line must not take the rest with it"
    else:
        assert ledger.damage, "silently accepted"


async def test_J4_damage_is_reported_set_aside_and_harms_only_itself(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = await opened(max_concurrent=3)
    tasks = [await pool.submit(partial(note, number)) for number in range(3)]
    await pool.close()
    lines = (disk / FILE).read_bytes().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if tasks[1].id.encode() in line)
    broken = lines[place].replace(b"queued", b"quaued").replace(b'"seq"', b'"sEq"')
    lines[place] = broken
    (disk / FILE).write_bytes(
        b"".join(lines[: place + 1]) + b"\0" * 20 + b"\n" + b"".join(lines[place + 1 :])
    )

    pool = await opened()

    offset = sum(map(len, lines[:place]))
    assert f"byte {offset}" in caplog.text
    assert {task.id for task in pool.snapshot().tasks} == {tasks[0].id, tasks[2].id}
    import base64
    import json

    kept = [json.loads(line) for line in (disk / f"{FILE}.damaged").read_text().splitlines()]
    assert kept[0]["offset"] == offset
    assert base64.b64decode(kept[0]["base64"]) == broken
    assert stat.S_IMODE((disk / f"{FILE}.damaged").stat().st_mode) == 0o600
    await pool.close()
    caplog.clear()
    await opened()
    assert "byte" not in caplog.text


async def test_a_damaged_first_line_loses_no_task(disk: Path) -> None:
    pool = await opened()
    task = await pool.submit(partial(note, 1))
    await pool.close()
    data = (disk / FILE).read_bytes()
    (disk / FILE).write_bytes(b"X" + data[1:])

    pool = await opened()

    assert task_of(pool, task.id).result == {"noted": 1}
    new = await pool.submit(partial(note, 2))
    assert new.id > task.id


OF_0_1_0 = (
    b'{"kind":"pool","v":1,"id":"pool_pipeline_16bebeec1d1b2140598a2fdbb98b97a7","name":"jobs",'
    b'"scope":"pipeline","scope_id":"nightly","max_concurrent":1,"created_at":1794790049017,'
    b'"submit_counter":0,"crc":"ea2ac36a"}\n'
    b'{"kind":"task","v":1,"seq":1,"id":"pool_pipeline_16bebeec1d1b2140598a2fdbb98b97a7_task_'
    b'01a1e1d2-c509-7000-8000-0001c2aa4924","submitted_at":1794790049033,'
    b'"idempotency_key":"once","call":"tests:note","args":[[1],{}],"crc":"c0d16b9c"}\n'
    b'{"kind":"start","v":1,"seq":1,"at":1794790049033,"crc":"b0a07896"}\n'
    b'{"kind":"end","v":1,"seq":1,"at":1794790049036,"status":"completed","result":{"noted":1},'
    b'"crc":"60e0b7b6"}\n'
    b'{"kind":"task","v":1,"seq":2,"id":"pool_pipeline_16bebeec1d1b2140598a2fdbb98b97a7_task_'
    b'01a1e1d2-c50c-7000-8000-0002c2aa4924","submitted_at":1794790049036,"priority":3,"key":"k",'
    b'"call":"tests:note","args":[[2],{}],"crc":"352985a8"}\n'
)
"""A journal as harn 0.1.0 wrote it: a task that ended, and one that had not begun."""


async def test_a_journal_of_0_1_0_opens_and_is_written_to_in_the_same_format(disk: Path) -> None:
    disk.mkdir()
    (disk / FILE).write_bytes(OF_0_1_0)

    pool = await opened()
    await pool.close()

    assert [task.result for task in pool.snapshot().tasks] == [{"noted": 1}, {"noted": 2}]
    assert RAN == [2]
    data = (disk / FILE).read_bytes()
    assert data.startswith(OF_0_1_0 + b'{"kind":"start","v":1,"seq":2,"at":')
    assert not list(disk.glob("*.damaged"))


@pytest.mark.parametrize("instead", [b"", b"?"])
async def test_J4_a_newline_that_was_lost_or_changed_costs_no_task(
    disk: Path, instead: bytes
) -> None:
    disk.mkdir()
    (disk / FILE).write_bytes(instead.join(OF_0_1_0.split(b"\n")))

    pool = await opened()
    await pool.close()

    assert [task.result for task in pool.snapshot().tasks] == [{"noted": 1}, {"noted": 2}]


@pytest.mark.parametrize("checksum", [True, False])
async def test_J8_a_newer_version_is_refused_untouched(disk: Path, checksum: bool) -> None:
    pool = await opened()
    await pool.close()
    newer = encode(PoolRecord(99, pool.id, "jobs", "pipeline", "nightly", 1, 0, 0))
    if not checksum:
        newer = newer.replace(b"crc", b"sum")
    (disk / FILE).write_bytes(newer + b"torn")

    with pytest.raises(StorageVersion, match="99"):
        await opened()

    assert (disk / FILE).read_bytes() == newer + b"torn"


async def test_the_journal_of_another_pool_is_refused_untouched(disk: Path) -> None:
    await (await opened(name="other")).close()
    shutil.copy(disk / "nightly__other.jsonl", disk / FILE)
    before = (disk / FILE).read_bytes()

    with pytest.raises(StorageCorrupt, match="belongs to pool 'other'"):
        await opened()

    assert (disk / FILE).read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xef\xbb\xbf{}\n", b"\r\n\r\n", b"not json\n" * 3]
)
async def test_an_odd_file_still_opens(disk: Path, content: bytes) -> None:
    disk.mkdir()
    (disk / FILE).write_bytes(content)

    pool = await opened()

    assert await (await pool.submit(partial(note, 1))) == {"noted": 1}
    await pool.close()
    assert (await opened()).snapshot().total == 1


@pytest.mark.parametrize("kind", ["symlink", "directory", "fifo", "directory symlink"])
async def test_what_is_no_plain_file_is_refused(disk: Path, kind: str, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    if kind == "directory symlink":
        target.mkdir()
        disk.symlink_to(target)
    else:
        disk.mkdir()
    if kind == "symlink":
        (disk / FILE).symlink_to(target)
    elif kind == "directory":
        (disk / FILE).mkdir()
    elif kind == "fifo":
        os.mkfifo(disk / FILE)

    with pytest.raises(StorageError):
        await opened()

    assert not target.exists() or not list(target.iterdir())


# Owners.


async def test_J6_a_second_opener_is_locked_out_at_once(disk: Path) -> None:
    await opened()

    async with harn.Runtime(state_dir=disk.parent, storage="memory://"):
        with pytest.raises(PoolLocked, match="nightly__jobs"):
            await opened()


async def test_J6_a_forked_child_neither_holds_the_lock_nor_writes(disk: Path) -> None:
    pool = await opened()
    pid = os.fork()
    if pid == 0:
        try:
            broken = journal_of(pool)._broken
            threading.Event().wait(0.3)
            os._exit(0 if broken and journal_of(pool)._file.handle == -1 else 1)
        finally:
            os._exit(2)

    try:
        async with harn.Runtime(state_dir=disk.parent, storage="memory://"):
            with pytest.raises(PoolLocked):  # the child has not given our lock away
                await opened()
        await pool.close()
        again = await opened()  # and does not hold it either, however slow it is
        assert again.name == "jobs"
    finally:
        assert os.waitpid(pid, 0)[1] == 0


async def test_J6_the_lock_dies_with_its_process(disk: Path) -> None:
    script = """
import asyncio, sys, harn
async def main():
    await harn.pool_create(name="jobs", scope="pipeline", pipeline_id="nightly")
    print("open", flush=True)
    await asyncio.Event().wait()
harn.run(main, state_dir=sys.argv[1])
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(disk.parent)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout and child.stdout.readline() == "open\n"
    with pytest.raises(PoolLocked):
        await opened()

    child.kill()
    child.wait()
    child.stdout.close()

    await opened()


# Names.


NAMES = st.text(min_size=1, max_size=60).filter(
    lambda text: text.strip() and not any(0xD800 <= ord(char) < 0xE000 for char in text)
)


@settings(deadline=None, max_examples=300)
@given(NAMES, NAMES, NAMES, NAMES)
def test_J7_file_names_are_injective_and_stay_inside(a: Any, b: Any, c: Any, d: Any) -> None:
    first, second = journal_name(a, b), journal_name(c, d)

    assert (first == second) == ((a, b) == (c, d))
    assert first.count("__") == 1
    assert "/" not in first and len(first.encode()) <= 255
    assert first.isascii()


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/x", "..", ".", "a/b", "a__b", "con", "é" * 300, "a b", "%s"]
)
async def test_no_name_reaches_outside_the_state_directory(disk: Path, name: str) -> None:
    pool = await opened(name=name, pipeline_id=name)
    await (await pool.submit(partial(note, 1)))
    await pool.close()

    files = [path for path in disk.parent.rglob("*") if path.is_file()]
    assert [path.parent for path in files] == [disk]


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\x9bb", "a\u2028"])
async def test_a_name_with_controls_makes_no_file(disk: Path, name: str) -> None:
    with pytest.raises(InvalidOption):
        await opened(name=name, pipeline_id="nightly")
    with pytest.raises(InvalidOption):
        await opened(name="web", pipeline_id=name)

    assert not [path for path in disk.parent.rglob("*") if path.is_file()]


async def test_files_are_private_even_under_an_open_umask(disk: Path) -> None:
    old = os.umask(0)
    try:
        pool = await opened()
        for _ in range(150):
            await (await pool.submit(partial(note, 1)))
        await pool.close()
        await (await opened()).close()
    finally:
        os.umask(old)

    assert stat.S_IMODE(disk.stat().st_mode) == 0o700
    assert stat.S_IMODE((disk / FILE).stat().st_mode) == 0o600


# A disk that fails.


async def test_J9_a_failed_write_fails_the_submit_and_leaves_nothing(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    await pool.submit(hang)
    await fake_clock().settle()
    before, write = pool.snapshot(), os.pwrite

    def half(fd: int, data: Any, at: Any) -> Any:
        if fd == journal_of(pool)._file.handle:
            write(fd, bytes(data)[:7], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StorageError, match="No space left"):
        await pool.submit(partial(note, 1), idempotency_key="once")
    assert pool.snapshot() == before
    monkeypatch.undo()

    task = await pool.submit(partial(note, 2), idempotency_key="once")
    pool_simulate_restart()
    pool = await opened()
    assert await task_of(pool, task.id) == {"noted": 2}
    assert RAN == [2]
    assert not list(disk.glob("*.damaged"))


async def test_J9_a_failed_write_fails_every_submit_that_shared_it(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    await pool.submit(hang)
    await fake_clock().settle()
    write = os.pwrite

    def full(fd: int, data: Any, at: Any) -> Any:
        if fd == journal_of(pool)._file.handle:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    submits = [asyncio.ensure_future(pool.submit(partial(note, n))) for n in range(3)]
    await asyncio.wait(submits, timeout=30)
    monkeypatch.undo()

    assert [each.done() and type(each.exception()) for each in submits] == [StorageError] * 3


async def test_J9_an_end_that_could_not_be_written_is_written_later(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 5

    task = await pool.submit(work)
    await fake_clock().settle()
    write, full = os.pwrite, True

    def failing(fd: int, data: Any, at: Any) -> Any:
        if full and fd == journal_of(pool)._file.handle:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", failing)
    gate.set()
    waiting = asyncio.ensure_future(task.wait())
    with pytest.raises(StorageError):
        await pool.submit(nothing)
    assert not waiting.done()
    full = False
    await pool.submit(nothing)

    assert (await waiting).result == 5
    await pool.close()
    assert task_of(await opened(), task.id).result == 5


async def test_J9_an_end_that_is_not_written_until_the_close_is_an_error_of_its_waiter(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()
    gate = asyncio.Event()
    task = await pool.submit(gate.wait)
    await fake_clock().settle()
    write = os.pwrite

    def full(fd: int, data: Any, at: Any) -> Any:
        if fd == journal_of(pool)._file.handle:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    gate.set()
    waiting = asyncio.ensure_future(task.wait())
    await pool.close()

    with pytest.raises(StorageError, match="the last outcomes were not recorded"):
        await asyncio.wait_for(waiting, 30)


async def test_J9_after_a_failed_sync_the_journal_takes_nothing_more(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await opened()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, DATA_SYNC, fail)
    with pytest.raises(StorageError, match="reopen the pool"):
        await pool.submit(partial(note, 1))
    monkeypatch.undo()

    with pytest.raises(StorageError, match="reopen the pool"):
        await pool.submit(partial(note, 2))
    assert RAN == []
    assert pool.snapshot().total == 0
    await pool.close()


async def test_J9_what_is_owed_is_tried_again_though_nothing_new_arrives(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harn.pools import journal as room

    monkeypatch.setattr(room, "RETRY_AFTER", 0.01)
    pool = await opened()
    write, fails = os.pwrite, 3

    def failing(fd: int, data: Any, at: Any) -> Any:
        nonlocal fails
        if b'"end"' in bytes(data) and fails:
            fails -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", failing)

    seen = await (await pool.submit(partial(note, 1))).wait()

    assert (seen.status, fails) == ("completed", 0)


async def test_a_closure_that_had_not_begun_never_begins_after_a_restart(disk: Path) -> None:
    pool = await opened()
    task = pool.submit_nowait(partial(note, 1))

    pool_simulate_restart()
    await fake_clock().settle()

    assert RAN == []
    assert (await task.wait()).stale_reason == "never_started"
    await (await opened()).close()
    assert RAN == [1]


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_cancelled_submit_leaves_no_task_also_after_a_restart(
    disk: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    pool = await opened(max_concurrent=slots)
    await pool.submit(hang)
    await fake_clock().settle()
    allow, synced = threading.Event(), getattr(os, DATA_SYNC)
    monkeypatch.setattr(os, DATA_SYNC, lambda fd: (allow.wait(10), synced(fd)))
    submit = asyncio.ensure_future(pool.submit(partial(note, 1), idempotency_key="k"))
    await asyncio.sleep(0)

    submit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submit
    allow.set()

    assert pool.snapshot().total == 1
    await pool.close(cancel=True)
    assert (await opened()).snapshot().total == 1
    assert RAN == []
    assert not list(disk.glob("*.damaged"))


# Compaction and retention.


async def test_the_journal_is_compacted_while_it_runs(disk: Path) -> None:
    pool = await opened(retention=Retention(count=50))

    for number in range(1000):
        await (await pool.submit(partial(note, number), idempotency_key=str(number)))
    total = pool.snapshot(tasks=False).total
    await pool.close()

    lines = (disk / FILE).read_bytes().splitlines()
    assert len(lines) < 50 + 3 * 150
    pool = await opened(retention=Retention(count=50))
    seen = pool.snapshot()
    assert (seen.total, seen.completed, len(seen.tasks)) == (total, 1000, 50)
    task = await pool.submit(partial(note, "next"))
    assert task._submitted.seq == 1001


async def test_retention_by_age_holds_across_restarts(disk: Path) -> None:
    clock = fake_clock()
    pool = await opened(retention=Retention(age="1h"))
    await (await pool.submit(partial(note, 1), idempotency_key="k"))
    await pool.close()
    await clock.advance("2h")

    pool = await opened(retention=Retention(age="1h"))

    assert pool.snapshot().tasks == []
    assert pool.snapshot().total == 1
    await (await pool.submit(partial(note, 1), idempotency_key="k"))
    assert RAN == [1, 1]


STEPS = ["open", "flock", "pwrite", "fsync", "rename", "close"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("nth", range(3))
async def test_J5_compaction_is_all_or_nothing_at_every_step(
    disk: Path, monkeypatch: pytest.MonkeyPatch, step: Any, nth: int
) -> None:
    """Make one system call of the replacement fail as if the process had died there."""
    import fcntl

    from harn.pools.journal_file import JournalFile

    pool = await opened()
    for number in range(5):
        await (await pool.submit(partial(note, number), idempotency_key=str(number)))
    await pool.submit(hang)
    await pool.submit(partial(note, "queued"))
    pool_simulate_restart()
    before = (disk / FILE).read_bytes()
    expected = state(fold(before.splitlines(keepends=True))[0])

    class Died(BaseException): ...

    file, calls = JournalFile(disk / FILE), 0
    header = fold(before.splitlines(keepends=True))[0].pool
    assert header
    ledger = file.open(header, (100, 0))
    module = fcntl if step == "flock" else os
    real = getattr(module, step)

    def dies(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth + 1:
            raise Died
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, step, dies)
        try:
            file.compact(ledger, file.end)
        except Died:
            pass
    try:
        file.close()
    except OSError:
        pass

    (disk / f"{FILE}.tmp").write_bytes(b"stray")
    found = JournalFile(disk / FILE)
    after = found.open(header, (100, 0))
    found.close()
    assert state(after)[1:3] == expected[1:3]
    assert not (disk / f"{FILE}.tmp").exists()


async def test_J5_the_new_file_is_synced_before_its_rename_and_the_directory_after(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harn.pools.journal_file import JournalFile

    await (await opened()).close()
    file = JournalFile(disk / FILE)
    header = fold((disk / FILE).read_bytes().splitlines(keepends=True))[0].pool
    assert header
    ledger = file.open(header, (100, 0))
    calls: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        sync(fd)

    def renamed(*args: Any, **options: Any) -> None:
        calls.append("rename")
        rename(*args, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    file.compact(ledger, file.end)
    file.close()

    assert calls == ["sync file", "rename", "sync directory"]


def test_a_compacted_journal_keeps_the_order_in_which_tasks_ended() -> None:
    ledger, _ = fold(some_lines())
    for at, seq in enumerate((3, 1, 2)):
        ledger.apply(EndRecord(VERSION, seq, at, "completed"))

    again, _ = fold(ledger.as_lines())
    again.drop_old(1, 0)

    assert list(again.tasks) == [2]


def test_a_line_carries_its_checksum_and_reads_back() -> None:
    lines = some_lines()

    assert [encode(decode(line[:-1])) for line in lines] == lines


def test_two_processes_race_for_one_pool_and_one_wins(tmp_path: Path) -> None:
    racer = Path(__file__).parents[1] / "crash" / "pool_racer.py"
    command = [sys.executable, str(racer), str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1) for _ in range(2)
    ]

    def say(to: subprocess.Popen[str], text: str) -> None:
        assert to.stdin
        to.stdin.write(text)

    def answer_of(process: subprocess.Popen[str]) -> str:
        assert process.stdout
        return process.stdout.readline()

    try:
        assert [answer_of(each) for each in processes] == ["ready\n"] * 2
        for number in range(5):
            for each in processes:
                say(each, f"go {number}\n")
            answers = [answer_of(each) for each in processes]
            assert sorted(answers) == ["locked\n", "won\n"]
            winner = processes[answers.index("won\n")]
            say(winner, "release\n")
            assert answer_of(winner) == "released\n"
    finally:
        for each in processes:
            each.communicate(timeout=30)

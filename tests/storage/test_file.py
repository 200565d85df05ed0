"""What is the files' own: torn tails, checksums, the commit journal, the lock, power cuts."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Runtime,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageVersion,
    file_sync,
    private_files,
    worker_queue,
)
from harn.storage import Operation, Store, ask, draft, jsonl
from harn.storage.engines.file import commit_journal, file_driver, file_log, topic_files
from harn.storage.engines.file.topic_file import RecordLine, read_line, write_line
from harn.storage.jsonl import is_sealed, seal
from harn.storage.log import append, skip_offsets
from tests.linux_only import DATA_SYNC
from tests.storage.faults import Disk


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "log"


def url_of(home: Path) -> str:
    return f"file:///{home}"


def emit(home: Path, *payloads: object, topic: str = "a") -> None:
    async def main() -> None:
        async with Runtime(storage=url_of(home)) as runtime:
            for payload in payloads:
                await runtime.event_log.emit(topic, "k", payload)

    asyncio.run(main())


def payloads(home: Path, topic: str = "a") -> list[Any]:
    async def main() -> list[Any]:
        async with Runtime(storage=url_of(home)) as runtime:
            return [event.payload for event in await runtime.event_log.read(topic)]

    return asyncio.run(main())


def only_topics(home: Path, copy: Path) -> Path:
    """Copy the topics without the journal: what a careless backup has."""
    shutil.copytree(home, copy)
    (copy / "commits.jsonl").unlink()
    return copy / "topics" / "a.jsonl"


def test_a_topic_is_a_plain_jsonl_file(home: Path) -> None:
    emit(home, {"text": "é"}, "two")

    lines = (home / "topics" / "a.jsonl").read_bytes().splitlines(keepends=True)

    assert lines[0].startswith(b'{"harn":1,"topic":"a","head":0')
    assert lines[1].startswith(b'{"id":1,"seq":1,"kind":"k","at":')
    assert all(is_sealed(line) for line in lines)


def test_a_flipped_bit_anywhere_breaks_the_seal() -> None:
    line = write_line(1, 1, "k", b'{"a":1}', b"{}", 0)

    for position in range(len(line) - 1):
        for bit in (1, 32):
            flipped = bytearray(line)
            flipped[position] ^= bit
            assert (
                bytes(flipped) == line
                or not is_sealed(bytes(flipped))
                or (read_line(bytes(flipped), 0, 0) == read_line(line, 0, 0))
            )
    assert is_sealed(seal(b'{"x":1'))


def test_J1_J2_every_cut_of_the_tail_opens_and_goes_on(home: Path, tmp_path: Path) -> None:
    emit(home, "one", "two", "three")
    whole = (home / "topics" / "a.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]

    for cut in range(ends[0], len(whole) + 1):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        only_topics(home, copy).write_bytes(whole[:cut])
        # a record of which only the newline is missing is whole
        kept = ["one", "two", "three"][: sum(end - 1 <= cut for end in ends) - 1]

        emit(copy, "next")

        assert payloads(copy) == [*kept, "next"], f"cut at {cut}"


def test_every_cut_of_the_journal_keeps_whole_commits(home: Path, tmp_path: Path) -> None:
    emit(home, "one", "two", "three")
    whole = (home / "commits.jsonl").read_bytes()

    for cut in range(whole.index(b"\n") + 1, len(whole) + 1):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(home, copy)
        (copy / "commits.jsonl").write_bytes(whole[:cut])
        shutil.rmtree(copy / "topics")  # nothing was carried over: only the journal has it

        emit(copy, "next")

        found = payloads(copy)
        assert found[:-1] == ["one", "two", "three"][: len(found) - 1], f"cut at {cut}"
        assert found[-1] == "next"


def test_what_was_not_carried_over_is_repeated_from_the_journal(home: Path) -> None:
    emit(home, "one", "two")
    path = home / "topics" / "a.jsonl"
    path.write_bytes(path.read_bytes()[:-30])

    assert payloads(home) == ["one", "two"]


def test_E9_J4_a_damaged_line_is_reported_with_its_place_and_harms_no_other(home: Path) -> None:
    emit(home, "one", "two", "three")
    (home / "commits.jsonl").unlink()
    path = home / "topics" / "a.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"two"', b'"tWo"'))

    async def main() -> None:
        async with Runtime(storage=url_of(home)) as runtime:
            log = runtime.event_log
            assert [e.payload for e in await log.read("a")] == ["one", "three"]
            [damaged] = log.damaged
            assert damaged.id == 2
            assert "byte" in damaged.reason
            assert (await log.emit("a", "k", "four")).id == 4

    asyncio.run(main())
    assert b'"tWo"' in path.read_bytes()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (seal(b'{"harn":999,"topic":"a","head":0'), StorageVersion),
        (seal(b'{"harn":1,"topic":"b","head":0'), StorageCorrupt),
    ],
)
def test_J8_a_newer_or_foreign_file_is_refused_and_left_alone(
    home: Path, content: bytes, error: type[Exception]
) -> None:
    path = home / "topics" / "a.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    with pytest.raises(error):
        emit(home, 1)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\r\n\r\n", b"\x00" * 5000, b"garbage"])
def test_odd_files_are_opened_and_written_to(home: Path, content: bytes) -> None:
    path = home / "topics" / "a.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    emit(home, "new")

    assert payloads(home)[-1:] == ["new"]


def test_S10_a_symlink_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    (home / "topics").mkdir(parents=True)
    (home / "topics" / "a.jsonl").symlink_to(tmp_path / "outside")

    with pytest.raises(StorageError):
        emit(home, 1)
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_S11_files_are_private_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        emit(home, 1)
    finally:
        os.umask(before)

    for each in [home, *home.rglob("*")]:
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


async def test_a_lock_held_too_long_is_storage_busy_and_heals(home: Path) -> None:
    async with Runtime(storage=f"{url_of(home)}?busy_timeout=100ms") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        with open(home / "lock") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StorageBusy, match="another process"):
                await runtime.event_log.emit("a", "k", "busy")

        assert (await runtime.event_log.emit("a", "k", 2)).id == 2


class Failing:
    """`os`, with some calls that fail after so many times, and heal."""

    def __init__(self, **failing: tuple[int, int]) -> None:
        self._left = {name: list(counts) for name, counts in failing.items()}
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(os, name)
        left = self._left.get(name)
        if left is None:
            return real

        def call(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 <= left[0] + left[1]:
                self.failed += 1
                if name == "pwrite" and len(args[1]) > 3:
                    real(args[0], args[1][: len(args[1]) // 2], args[2])  # a short write, then
                raise OSError(errno.ENOSPC, "no space left, on purpose")
            return real(*args, **named)

        return call


USE_OS = [commit_journal, file_log, topic_files, jsonl, file_sync, private_files]
CALLS = ["pwrite", "fdatasync", "fsync", "rename", "open", "ftruncate"]


@pytest.mark.parametrize(
    "module",
    USE_OS,
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [0, 1, 3])
async def test_J9_G13_a_disk_that_fails_and_heals(
    home: Path, module: Any, call: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_log, "JOURNAL_BYTES", 600)  # checkpoints happen all the time
    acknowledged = []
    async with Runtime(storage=url_of(home)) as runtime:
        log = runtime.event_log
        await log.emit("a", "k", "first")
        with monkeypatch.context() as patch:
            patch.setattr(module, "os", Failing(**{call: (after, 3)}))
            for n in range(12):
                try:
                    await log.append([draft("a", "k", n), draft("b", "k", n)])
                    acknowledged.append(n)
                except StorageError:
                    pass

        last = await log.emit("a", "k", "last")
        found = [event.payload for event in await log.read("a")]
        beside = [event.payload for event in await log.read("b")]
        assert log.damaged_total == 0

    assert found[0] == "first"
    assert found[-1] == "last"
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    assert found[1:-1] == beside, "one topic has what the other has not"
    assert last.id == len(found)
    async with Runtime(storage=url_of(home)) as runtime:
        assert [event.payload for event in await runtime.event_log.read("a")] == found


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
async def test_J5_a_compaction_that_fails_changes_nothing(
    home: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=url_of(home)) as runtime:
        log = runtime.event_log
        await log.append([draft("a", "k", n) for n in range(10)])
        for after in range(6):
            with monkeypatch.context() as patch:
                failing = Failing(**{call: (after, 1)})
                for module in (file_log, topic_files, jsonl, file_sync):
                    patch.setattr(module, "os", failing)
                try:
                    await log.trim("a", keep=3)
                except StorageError:
                    found = [event.id for event in await log.read("a")]
                    assert found in (list(range(1, 11)), [8, 9, 10])

        await log.trim("a", keep=3)
        assert [event.id for event in await log.read("a")] == [8, 9, 10]
        assert (await log.emit("a", "k", "next")).id == 11


async def test_an_append_is_answered_beside_a_skip_that_could_not_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the file cannot be written")

    queued = threading.Event()

    def wait_until_queued() -> Operation[None]:
        queued.wait(30)
        yield ask("now")

    async with Runtime(storage=url_of(home)) as runtime:
        store = runtime.service(Store)
        await runtime.event_log.emit("a", "k", 1)
        monkeypatch.setattr(topic_files.TopicFiles, "compact", fail)
        store.submit(wait_until_queued)  # the others gather behind it and share a commit
        skipped = store.submit(partial(skip_offsets, "a", 5))
        appended = store.submit(partial(append, [draft("b", "k", 2)]))
        queued.set()

        with pytest.raises(StorageError, match="cannot be written"):
            await skipped
        assert [id for id, _ in await appended] == [1]


class ForgetfulOs:
    """`os` on a disk that keeps only what was synced; renames need their directory synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._names: dict[int, str] = {}
        self.renames: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        self._names[fd] = str(path)
        if flags & os.O_TRUNC:
            self._disk.write(str(path), None, 0)
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._disk.write(self._names[fd], bytes(data), offset)
        return os.pwrite(fd, data, offset)

    def write(self, fd: int, data: bytes) -> int:
        self._disk.write(self._names[fd], bytes(data), os.lseek(fd, 0, os.SEEK_CUR))
        return os.write(fd, data)

    def ftruncate(self, fd: int, size: int) -> None:
        self._disk.write(self._names[fd], None, size)
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        if os.path.isdir(self._names[fd]):
            self.renames = [pair for pair in self.renames if not self._settle(fd, pair)]
        else:
            self._disk.sync(self._names[fd])

    fdatasync = fsync

    def rename(self, source: Any, target: Any, **places: Any) -> None:
        os.rename(source, target, **places)
        self.renames.append((str(source), str(target)))
        for fd, name in self._names.items():
            if name == str(source):
                self._names[fd] = str(target)
        # Seen from now on under its new name; the disk may still know both.
        self._disk.synced[f"{target}"], old = (
            self._disk.synced.pop(str(source), bytearray()),
            self._disk.synced.get(str(target)),
        )
        self._disk.pending.pop(str(target), None)
        if str(source) in self._disk.pending:
            self._disk.pending[str(target)] = self._disk.pending.pop(str(source))
        self.old = {**getattr(self, "old", {}), str(target): old}

    def _settle(self, fd: int, pair: tuple[str, str]) -> bool:
        if os.path.dirname(pair[1]) != self._names[fd]:
            return False
        self.old.pop(pair[1], None)
        return True

    def after_power_loss(self, chance: random.Random) -> dict[str, bytes]:
        found = self._disk.after_power_loss(chance)
        for target, old in getattr(self, "old", {}).items():
            if chance.random() < 0.5:  # the rename itself is forgotten
                if old is None:
                    found.pop(target, None)
                else:
                    found[target] = bytes(old)
        return found


def power_loss(seed: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    forgetful = ForgetfulOs(Disk())
    before, after = home / "before", home / "after"
    acknowledged: list[int] = []
    images: dict[str, bytes] = {}

    async def write() -> None:
        async with Runtime(storage=url_of(before)) as runtime:
            log = runtime.event_log
            for n in range(chance.randrange(3, 40)):
                await log.append([draft("a", "k", n), draft(f"t{n % 4}", "k", n)])
                acknowledged.append(n)
                if chance.random() < 0.05:
                    await log.trim("t0", keep=0)
            hanging = asyncio.ensure_future(log.emit("a", "k", 1000))
            await asyncio.wait((hanging,), timeout=chance.random() * 0.002)
            done = [1000] if hanging.done() else []
            images.update(forgetful.after_power_loss(chance))
            acknowledged.extend(done)
            await hanging

    with monkeypatch.context() as patch:
        patch.setattr(file_log, "JOURNAL_BYTES", chance.choice([200, 2000, 10**6]))
        for module in USE_OS:
            patch.setattr(module, "os", forgetful)
        asyncio.run(write())
    (after / "topics").mkdir(parents=True)
    for name, data in images.items():
        if name.endswith((".json", ".jsonl")):
            (after / Path(name).relative_to(before)).write_bytes(data)
    found = payloads(after)

    assert set(acknowledged) <= set(found), f"seed {seed}"
    assert len(found) == len(set(found))
    emit(after, "next")
    assert payloads(after) == [*found, "next"]


@pytest.mark.parametrize("seed", range(10))
def test_E1_power_loss_takes_no_acknowledged_record(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power_loss(seed, tmp_path, monkeypatch)


@pytest.mark.stress
def test_G2_power_loss_hundreds_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_least: Callable[[int], int]
) -> None:
    for seed in range(at_least(30)):
        power_loss(5000 + seed, tmp_path / str(seed), monkeypatch)


async def test_a_record_that_cannot_be_folded_keeps_no_other_process_out(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"priority": "normal", "max_attempts": "five"}
    async with Runtime(storage=url_of(home)) as runtime:
        await worker_queue("q").enqueue(1)
        await runtime.event_log.emit("worker.q", "trigger_dispatch", odd, {"queue": "q"})

    async with Runtime(storage=url_of(home)):
        receipt = await worker_queue("q").enqueue(2)
        assert (await worker_queue("q").summary()).ready == 2

    assert receipt.job_id == 3
    assert "record 2 of worker.q cannot be folded" in caplog.text


async def test_a_record_whose_json_cannot_be_read_keeps_no_other_process_out(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(storage=url_of(home)):
        await worker_queue("q").enqueue("good")
        await worker_queue("q").enqueue("spoilt")
    path = home / "topics" / "worker.q.jsonl"
    *before, last = path.read_bytes().splitlines(keepends=True)
    found = read_line(last, 0, 0)
    assert isinstance(found, RecordLine)
    payload = bytes(found.payload).replace(b"spoilt", b"spoil\xff")
    about = (found.id, found.seq, found.kind, payload, bytes(found.headers), found.at)
    path.write_bytes(b"".join((*before, write_line(*about))))

    async with Runtime(storage=url_of(home)):
        receipt = await worker_queue("q").enqueue("another")
        assert (await worker_queue("q").summary()).ready == 2

    assert receipt.job_id == 3
    assert "record 2 of worker.q cannot be folded" in caplog.text


async def test_a_fold_that_could_not_read_the_files_is_done_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    async with Runtime(storage=url_of(home)):
        await worker_queue("q").enqueue(1)

    async with Runtime(storage=url_of(home)):
        with monkeypatch.context() as broken, pytest.raises(StorageError):
            broken.setattr(file_log.FileLog, "in_order", fail)
            await worker_queue("q").summary()
        assert (await worker_queue("q").summary()).ready == 1


async def test_two_processes_worth_of_drivers_take_turns(home: Path) -> None:
    runtimes = [Runtime(storage=url_of(home)) for _ in range(3)]
    for runtime in runtimes:
        await runtime.__aenter__()
    await asyncio.gather(
        *(
            runtime.event_log.emit("a", "k", [name, n])
            for name, runtime in enumerate(runtimes)
            for n in range(30)
        )
    )
    found = await runtimes[0].event_log.read("a")
    for runtime in reversed(runtimes):
        await runtime.aclose()

    assert [event.id for event in found] == list(range(1, 91))
    for name in range(3):
        assert [e.payload[1] for e in found if e.payload[0] == name] == list(range(30))


def unsynced(runtime: Runtime) -> bool:
    driver = runtime.service(Store).driver
    assert isinstance(driver, file_driver.FileDriver)
    return driver._worker._unsynced


async def test_47_the_weaker_class_is_synced_under_traffic_that_never_pauses(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_driver._Worker, "idle", lambda self: None)
    monkeypatch.setattr(file_driver, "SYNC_WITHIN", 0.0)
    async with Runtime(storage=f"{url_of(home)}?durability=normal") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        assert unsynced(runtime)

        await runtime.event_log.emit("a", "k", 2)

        assert not unsynced(runtime)


async def test_47_the_second_counts_from_the_first_commit_that_is_not_synced(home: Path) -> None:
    async with Runtime(storage=f"{url_of(home)}?durability=normal") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        worker = runtime.service(Store).driver._worker  # type: ignore[attr-defined]
        due = worker._sync_by

        await runtime.event_log.emit("a", "k", 2)

        assert worker._sync_by == due


async def test_47_an_operation_that_writes_nothing_syncs_what_was_written_before(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=url_of(home)) as runtime:
        store = runtime.service(Store)
        await store.run(lambda: append([draft("a", "k", 1)]), durability="normal")
        counted = Counting()
        monkeypatch.setattr(file_sync, "os", counted)

        await runtime.event_log.read("a")

        assert counted.syncs == 1
        assert not unsynced(runtime)


class Counting:
    syncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        os.fsync(fd)


async def test_J9_a_sync_that_fails_later_is_made_good_by_the_next_commit(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(storage=f"{url_of(home)}?durability=normal") as runtime:
        worker = runtime.service(Store).driver._worker  # type: ignore[attr-defined]
        await runtime.event_log.emit("a", "k", 1)
        with monkeypatch.context() as patch:
            patch.setattr(file_sync, "os", Failing(**{DATA_SYNC: (0, 1)}))
            worker.idle()
        assert "could not be synced" in caplog.text
        first = (home / "commits.jsonl").stat().st_ino

        await runtime.event_log.emit("a", "k", 2)

        assert (home / "commits.jsonl").stat().st_ino != first, "the journal is a new file"
        assert [event.payload for event in await runtime.event_log.read("a")] == [1, 2]


OF_0_1_0 = {
    "cursors.json": b"[]",
    "commits.jsonl": (
        b'{"harn":1,"seq":4,"ms":1794790034941,"crc":"c0fcfd2a"}\n'
        b'{"seq":5,"ms":1794790035005,"parts":[["news",256,102]],"cursors":[],'
        b'"body":4183231868,"crc":"9ddc69cd"}\n'
        b'{"id":4,"seq":5,"kind":"greeting","at":1794790035005,"headers":{},"payload":{"n":3},'
        b'"crc":"b9c497f1"}\n'
    ),
    "topics/news.jsonl": (
        b'{"harn":1,"topic":"news","head":3,"crc":"5379eead"}\n'
        b'{"id":2,"seq":2,"kind":"greeting","at":1794790034929,"headers":{},"payload":{"n":1},'
        b'"crc":"cf8f84cc"}\n'
        b'{"id":3,"seq":3,"kind":"greeting","at":1794790034933,"headers":{},"payload":{"n":2},'
        b'"crc":"1d6b5ddb"}\n'
    ),
    "topics/other.jsonl": (
        b'{"harn":1,"topic":"other","head":0,"crc":"373d4e7d"}\n'
        b'{"id":1,"seq":4,"kind":"k","at":1794790034941,"headers":{},"payload":"\xc3\xa9",'
        b'"crc":"ee786cbb"}\n'
    ),
}
"""A store as harn 0.1.0 wrote it, with a commit that had not reached its topic's file."""


def test_a_store_of_0_1_0_opens_and_is_written_to_in_the_same_format(home: Path) -> None:
    (home / "topics").mkdir(parents=True)
    for name, data in OF_0_1_0.items():
        (home / name).write_bytes(data)

    found = payloads(home, "news")
    emit(home, {"n": 4}, topic="news")

    assert found == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert payloads(home, "other") == ["é"]
    before = OF_0_1_0["topics/news.jsonl"] + OF_0_1_0["commits.jsonl"].splitlines(True)[-1]
    news = (home / "topics" / "news.jsonl").read_bytes()
    assert news.startswith(before + b'{"id":5,"seq":6,"kind":"k","at":')
    assert is_sealed(news[len(before) :])
    assert not list(home.rglob("*.damaged"))

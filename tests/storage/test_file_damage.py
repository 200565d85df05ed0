"""A damaged directory of topic files: what is intact stays readable, and no id is used twice.

The sweeps work on `FileLog` itself: thousands of damaged journals, each opened twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Runtime
from harn.cli import invoke
from harn.clock import SystemClock
from harn.storage import draft
from harn.storage.engines.file import commit_journal, file_log
from harn.storage.engines.file.byte_repair import corrected
from harn.storage.engines.file.file_log import FileLog
from harn.storage.engines.file.topic_file import RecordLine
from harn.storage.jsonl import seal
from harn.storage.log import append
from harn.storage.operations import drive
from tests.linux_only import DATA_SYNC

TOPICS = ["a", "b", "c", "d"]
Found = dict[str, dict[int, Any]]


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory to be; in memory for the sweeps, which make thousands of copies."""
    if "quick" not in request.fixturenames or not os.path.isdir("/dev/shm"):
        yield tmp_path / "log"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory) / "log"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave syncs and log lines out: no power is cut here, and there are thousands of copies."""
    monkeypatch.setattr(file_log.logger, "disabled", True)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, DATA_SYNC, lambda fd: None)


def opened(home: Path, *, read_only: bool = False) -> FileLog:
    return FileLog(home, SystemClock, 1000, read_only=read_only)


def write(log: FileLog, *records: tuple[str, Any]) -> list[int]:
    """Append (topic, payload) in one commit; return the ids."""
    log.begin()
    try:
        drafts = [draft(topic, "k", payload) for topic, payload in records]
        placed = drive(append(drafts), lambda asked: log.execute(asked) or [])
        assert log.commit(sync=True)
    finally:
        log.release()
    return [id for id, _ in placed]


def contents(log: FileLog) -> Found:
    """Return every intact record: payloads by topic and id."""
    log.begin()
    try:
        found: Found = {}
        for topic in log.statements.names():
            for line in log.statements.lines(topic, 0):
                if isinstance(line, RecordLine):
                    assert line.id not in found.setdefault(topic, {}), "an id twice"
                    found[topic][line.id] = json.loads(bytes(line.payload))
        return found
    finally:
        log.release()


def reports(log: FileLog) -> list[str]:
    log.begin()
    try:
        return [text for (text,) in log._check_files()]
    finally:
        log.release()


def ten_commits(home: Path) -> Found:
    """Write ten commits on four topics, each on one or two of them."""
    log = opened(home)
    for n in range(10):
        write(log, *((topic, f"{topic}{n}") for topic in topics_of_commit(n)))
    written = contents(log)
    log.close()
    return written


def topics_of_commit(n: int) -> list[str]:
    return TOPICS[n % 4 :][: 1 + n % 2]


def check(home: Path, written: Found, *, at_most_lost: int, where: str) -> list[str]:
    """Check that only so many records are gone, and that appends use ids of none of them."""
    log = opened(home)
    found, said = contents(log), reports(log)
    lost = 0
    for topic, records in written.items():
        there = found.get(topic, {})
        lost += len(records.keys() - there.keys())
        assert there.items() <= records.items(), f"{where}: {topic} has changed"
    assert lost <= at_most_lost, f"{where}: {lost} records lost"
    ids = write(log, *((topic, "new") for topic in TOPICS))
    log.close()
    for topic, id in zip(TOPICS, ids, strict=True):
        assert id > max(written[topic]), f"{where}: {topic} {id} was used before"
        found.setdefault(topic, {})[id] = "new"

    again = opened(home)
    assert contents(again) == found, f"{where}: after the next append"
    again.close()
    return said


def looked(home: Path, where: str) -> tuple[Found, list[str]]:
    """Look without writing; check that nothing was written."""
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    looker = opened(home, read_only=True)
    found, said = contents(looker), reports(looker)
    looker.close()
    after = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert after == before, f"{where}: looking has written"
    return found, said


def wrong(byte: int) -> int:
    """Return another byte: one bit is flipped, not always the same."""
    return byte ^ 1 << byte % 8


def copies(home: Path, changed: Iterator[bytes], *, topics: bool) -> Iterator[Path]:
    """Yield a copy of *home* for each changed journal, with the topics' files or without."""
    kept = {path.name: path.read_bytes() for path in (home / "topics").iterdir() if topics}
    copy = home.with_name("copy")
    for data in changed:
        shutil.rmtree(copy, ignore_errors=True)
        (copy / "topics").mkdir(parents=True)
        for name, content in kept.items():
            (copy / "topics" / name).write_bytes(content)
        (copy / "commits.jsonl").write_bytes(data)
        yield copy


@pytest.mark.parametrize("topics", [True, False], ids=["carried over", "only the journal"])
@pytest.mark.parametrize("part", range(4))
def test_R6_each_byte_flipped_in_the_journal_harms_only_itself(
    home: Path, quick: None, topics: bool, part: int
) -> None:
    written = ten_commits(home)
    whole = (home / "commits.jsonl").read_bytes()
    places = range(part, len(whole), 4)
    flipped = (whole[:at] + bytes((wrong(whole[at]),)) + whole[at + 1 :] for at in places)

    for at, copy in zip(places, copies(home, flipped, topics=topics), strict=True):
        said = check(copy, written, at_most_lost=0 if topics else 1, where=f"byte {at}")

        assert any("damaged at byte" in text for text in said), f"byte {at}: not reported"
        kept = (copy / "commits.jsonl.damaged").read_bytes().splitlines()
        for note in map(json.loads, kept):
            data = base64.b64decode(note["base64"])
            assert note["offset"] <= at < note["offset"] + len(data), f"byte {at}"
            assert data[at - note["offset"]] == wrong(whole[at]), "the bytes as they were found"


@pytest.mark.parametrize("topics", [True, False], ids=["carried over", "only the journal"])
def test_looking_at_a_damaged_journal_sees_what_opening_it_does_and_writes_nothing(
    home: Path, quick: None, topics: bool
) -> None:
    ten_commits(home)
    whole = (home / "commits.jsonl").read_bytes()
    places = range(0, len(whole), 23)
    changed = (whole[:at] + bytes((wrong(whole[at]),)) + whole[at + 1 :] for at in places)

    for at, copy in zip(places, copies(home, changed, topics=topics), strict=True):
        seen, said = looked(copy, f"byte {at}")

        log = opened(copy)
        assert contents(log) == seen, f"byte {at}"
        assert set(said) <= set(reports(log)), f"byte {at}"
        log.close()


@pytest.mark.parametrize("part", range(4))
def test_R6_each_cut_of_the_journal_keeps_what_the_topics_have(
    home: Path, quick: None, part: int
) -> None:
    written = ten_commits(home)
    whole = (home / "commits.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    places = range(part, len(whole) + 1, 4)
    cuts = (whole[:at] for at in places)

    for at, copy in zip(places, copies(home, cuts, topics=True), strict=True):
        said = check(copy, written, at_most_lost=0, where=f"cut at {at}")

        assert bool(said) == (0 < at < first - 1), f"cut at {at}: a torn tail is no damage"


def test_R6_each_cut_of_the_journal_alone_keeps_the_commits_before_it(
    home: Path, quick: None
) -> None:
    ten_commits(home)
    whole = (home / "commits.jsonl").read_bytes()
    ends = [end for end, _ in commit_journal.scan(whole[whole.index(b"\n") + 1 :])]
    ends = [whole.index(b"\n") + 1 + end for end in ends]
    cuts = (whole[:at] for at in range(whole.index(b"\n") + 1, len(whole) + 1))

    for cut, copy in enumerate(copies(home, cuts, topics=False), whole.index(b"\n") + 1):
        log = opened(copy)
        found = contents(log)
        log.close()
        commits = sum(end <= cut for end in ends)
        expected = sum(len(topics_of_commit(n)) for n in range(commits))
        assert sum(map(len, found.values())) == expected, f"cut at {cut}"


def test_R6_each_byte_flipped_in_a_topic_file_harms_only_its_record(
    home: Path, quick: None
) -> None:
    written = ten_commits(home)
    log = opened(home)
    log.begin()
    log.checkpoint()
    log.close()
    path = home / "topics" / "a.jsonl"
    whole = path.read_bytes()

    for at in range(len(whole)):
        copy = home.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(home, copy)
        data = whole[:at] + bytes((wrong(whole[at]),)) + whole[at + 1 :]
        (copy / "topics" / "a.jsonl").write_bytes(data)

        check(copy, written, at_most_lost=1, where=f"byte {at}")


def test_a_stretch_of_zeros_harms_nothing_that_was_carried_over(home: Path, quick: None) -> None:
    written = ten_commits(home)
    whole = (home / "commits.jsonl").read_bytes()
    zeros = (whole[:at] + bytes(300) + whole[at + 300 :] for at in range(0, len(whole) - 300, 50))

    for at, copy in enumerate(copies(home, zeros, topics=True)):
        said = check(copy, written, at_most_lost=0, where=f"zeros from {at * 50}")

        assert said


def test_a_header_that_is_damaged_does_not_restart_the_ids_of_a_trimmed_topic(home: Path) -> None:
    async def trimmed() -> None:
        async with Runtime(storage=f"file:///{home}") as runtime:
            await runtime.event_log.append([draft("a", "k", n) for n in range(7)])
            await runtime.event_log.trim("a", keep=0)

    asyncio.run(trimmed())
    path = home / "topics" / "a.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"head":7', b'"head":1'))
    log = opened(home)

    assert write(log, ("a", "next"))[0] > 7
    assert any("the first line" in text for text in reports(log))
    log.close()


def test_topics_that_are_ahead_of_the_journal_keep_their_records_and_order(home: Path) -> None:
    log = opened(home)
    write(log, ("a", "one"))
    early = (home / "commits.jsonl").read_bytes()
    write(log, ("a", "two"))
    write(log, ("b", "three"))
    log.close()
    (home / "commits.jsonl").write_bytes(early)

    log = opened(home)
    assert write(log, ("a", "four"), ("b", "five")) == [3, 2]

    log.begin()
    in_order = [json.loads(bytes(line.payload)) for _, line in log.in_order({"a": 0, "b": 0})]
    log.close()
    assert in_order == ["one", "two", "three", "four", "five"]


def test_a_journal_from_before_a_trim_does_not_overwrite_the_trimmed_file(home: Path) -> None:
    async def trim() -> None:
        async with Runtime(storage=f"file:///{home}") as runtime:
            await runtime.event_log.trim("a", keep=2)
            await runtime.event_log.emit("a", "k", "last")

    log = opened(home)
    for n in range(6):
        write(log, ("a", f"{n}"))
    early = (home / "commits.jsonl").read_bytes()
    log.close()
    asyncio.run(trim())
    (home / "commits.jsonl").write_bytes(early)

    log = opened(home)
    assert contents(log) == {"a": {5: "4", 6: "5", 7: "last"}}
    assert write(log, ("a", "next")) == [8]
    assert contents(log) == {"a": {5: "4", 6: "5", 7: "last", 8: "next"}}
    log.close()


def test_a_topic_from_before_a_trim_keeps_its_records_beside_a_later_journal(home: Path) -> None:
    async def trim() -> None:
        async with Runtime(storage=f"file:///{home}") as runtime:
            await runtime.event_log.trim("a", keep=2)
            await runtime.event_log.append([draft("a", "k", "later")] * 2)

    log = opened(home)
    for n in range(6):
        write(log, ("a", f"{n}"))
    early = (home / "topics" / "a.jsonl").read_bytes()
    log.close()
    asyncio.run(trim())
    (home / "topics" / "a.jsonl").write_bytes(early)

    log = opened(home)
    old = {n + 1: f"{n}" for n in range(6)}
    assert contents(log) == {"a": {**old, 7: "later", 8: "later"}}
    log.close()


def test_a_topic_that_lost_its_last_newline_after_a_rotation_keeps_the_record(home: Path) -> None:
    log = opened(home)
    write(log, ("a", "one"))
    write(log, ("a", "two"))
    log.begin()
    log.checkpoint()
    log.close()
    path = home / "topics" / "a.jsonl"
    path.write_bytes(path.read_bytes()[:-1])

    log = opened(home)
    assert contents(log) == {"a": {1: "one", 2: "two"}}
    assert write(log, ("a", "three")) == [3]
    assert contents(log) == {"a": {1: "one", 2: "two", 3: "three"}}
    log.close()


def test_a_torn_topic_after_a_rotation_is_cut_kept_aside_and_its_id_not_used(home: Path) -> None:
    log = opened(home)
    write(log, ("a", "one"))
    write(log, ("a", "two"))
    log.begin()
    log.checkpoint()
    log.close()
    path = home / "topics" / "a.jsonl"
    path.write_bytes(path.read_bytes()[:-9])

    log = opened(home)
    assert write(log, ("a", "three")) == [3]
    assert contents(log) == {"a": {1: "one", 3: "three"}}
    assert any("a.jsonl.damaged" in text for text in reports(log))
    log.close()
    [note] = map(json.loads, (home / "topics" / "a.jsonl.damaged").read_bytes().splitlines())
    assert b'"two"' in base64.b64decode(note["base64"])


def test_damaged_cursors_are_set_aside_and_the_log_stays_readable(home: Path) -> None:
    log = opened(home)
    write(log, ("a", "one"))
    log.begin()
    log.checkpoint()
    log.close()
    (home / "cursors.json").write_bytes(b'[["a","me",')

    log = opened(home)
    assert contents(log) == {"a": {1: "one"}}
    assert any("cursors.json" in text for text in reports(log))
    log.close()
    assert (home / "cursors.json.damaged").exists()
    assert json.loads((home / "cursors.json").read_bytes()) == []


async def test_a_copy_taken_file_by_file_while_it_is_written_opens_with_whole_records(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_log, "JOURNAL_BYTES", 2000)  # the journal is replaced all the time
    stop = threading.Event()
    written: Found = {topic: {} for topic in TOPICS}

    def keep_writing() -> None:
        log, n = opened(home), 0
        while not stop.is_set():
            n += 1
            topics = TOPICS[: n % 4 + 1]
            ids = write(log, *((topic, f"{topic}{n}") for topic in topics))
            for topic, id in zip(topics, ids, strict=True):
                written[topic][id] = f"{topic}{n}"
        log.close()

    write(opened(home), *((topic, "first") for topic in TOPICS))
    for topic in TOPICS:
        written[topic][1] = "first"
    writer = asyncio.create_task(asyncio.to_thread(keep_writing))
    try:
        for turn in range(40):
            copy = tmp_path / f"copy{turn}"
            await asyncio.to_thread(copy_file_by_file, home, copy, turn)
            await asyncio.sleep(0)
    finally:
        stop.set()
        await writer

    for turn in range(40):
        log = opened(tmp_path / f"copy{turn}")
        found = contents(log)
        for topic in TOPICS:
            for id, payload in found[topic].items():
                assert written[topic][id] == payload, f"copy {turn}: {topic} {id}"
            assert write(log, (topic, "new"))[0] > max(found[topic])
        after = contents(log)
        log.close()
        for topic in TOPICS:
            assert after[topic].popitem()[1] == "new"
            assert after[topic] == found[topic], f"copy {turn}"


def copy_file_by_file(home: Path, copy: Path, turn: int) -> None:
    """Copy as a backup does that knows nothing: the journal first, last, or in between."""
    (copy / "topics").mkdir(parents=True)
    names = ["commits.jsonl", *(f"topics/{topic}.jsonl" for topic in TOPICS)]
    names = names[turn % 5 :] + names[: turn % 5]
    for name in names:
        shutil.copyfile(home / name, copy / name)


def test_verify_reports_a_damaged_journal_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = opened(home)
    for n in range(5):
        write(log, ("a", f"record-{n}"))
    log.close()
    path = home / "commits.jsonl"
    path.write_bytes(path.read_bytes().replace(b"record-2", b"recorX-2"))
    (home / "topics" / "a.jsonl").write_bytes(b"")  # nothing was carried over
    before = {each: each.stat().st_mtime_ns for each in [home, *home.rglob("*")]}

    assert invoke(["log", "verify", "--storage", f"file:///{home}", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    [page] = found["pages"]
    assert f"{path}: damaged at byte" in page
    assert [each["id"] for each in found["damaged"]] == [3]
    assert found["records"] == 4
    assert {each: each.stat().st_mtime_ns for each in [home, *home.rglob("*")]} == before


def test_verify_makes_no_lock_and_no_journal_where_there_is_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = opened(home)
    write(log, ("a", "one"))
    log.begin()
    log.checkpoint()
    log.close()
    for name in ("lock", "commits.jsonl", "cursors.json"):
        (home / name).unlink()

    assert invoke(["log", "verify", "--storage", f"file:///{home}"]) == 0

    assert "1 record in 1 topic" in capsys.readouterr().out
    assert [each.name for each in home.iterdir()] == ["topics"]


async def test_a_store_that_is_open_for_reading_only_refuses_to_write(home: Path) -> None:
    write(opened(home), ("a", "one"))
    async with Runtime(storage=f"file:///{home}?read_only=1") as runtime:
        assert [event.payload for event in await runtime.event_log.read("a")] == ["one"]
        with pytest.raises(harn.StorageError, match="reading only"):
            await runtime.event_log.emit("a", "k", "two")


async def test_jobs_behind_a_damaged_commit_are_claimed_and_numbers_go_on(home: Path) -> None:
    async with Runtime(storage=f"file:///{home}"):
        queue = harn.worker_queue("triage")
        first = [await queue.enqueue({"n": f"job-{n}"}) for n in range(6)]
    path = home / "commits.jsonl"
    path.write_bytes(path.read_bytes().replace(b"job-2", b"jXb-2"))
    for topic in (home / "topics").iterdir():
        topic.unlink()  # nothing was carried over

    async with Runtime(storage=f"file:///{home}"):
        queue = harn.worker_queue("triage")
        receipt = await queue.enqueue({"n": "new"})
        taken = []
        while (claim := await queue.claim_next("w")) is not None:
            taken.append(claim.job.payload["n"])
            await claim.ack()

    assert receipt.job_id not in [each.job_id for each in first]
    assert taken == ["job-0", "job-1", "job-3", "job-4", "job-5", "new"]


@pytest.mark.parametrize("change", [lambda line, at: line[:at] + b"~" + line[at + 1 :]])
def test_the_one_wrong_byte_of_a_line_is_found(change: Callable[[bytes, int], bytes]) -> None:
    line = seal(b'{"seq":1,"parts":[["a",0,120]]')

    for at in range(len(line)):
        assert corrected(change(line, at)) == line

    assert corrected(b"no line of ours\n") is None

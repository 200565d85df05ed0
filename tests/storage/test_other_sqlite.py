"""Another SQLite in the same process: refused while a store is open; a copy is the way out."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import pytest

import harn
from harn import HarnError, InvalidOption, Runtime, StorageError, private_files
from harn.storage import Store, draft
from harn.storage.engines.sqlite import open_files
from harn.storage.engines.sqlite.backup import copy_database
from tests.linux_only import HAS_PROC


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a dir" / "events.sqlite"


def spellings(path: Path, tmp_path: Path) -> list[str | bytes | Path]:
    (tmp_path / "soft").symlink_to(path)
    os.link(path, tmp_path / "hard")
    return [
        str(path),
        path,
        os.fsencode(path),
        os.path.relpath(path),
        f"file:{quote(str(path))}",
        f"file:{quote(str(path))}?mode=ro",
        f"file://{quote(str(path))}?immutable=1#x",
        f"file://localhost{quote(str(path))}",
        tmp_path / "soft",
        tmp_path / "hard",
    ]


async def test_a_store_that_is_open_here_is_refused_by_any_spelling(
    path: Path, tmp_path: Path
) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.emit("a", "k", 1)

        for each in spellings(path, tmp_path):
            with pytest.raises(StorageError, match=r"await runtime\.backup\(path\)"):
                sqlite3.connect(each, uri=str(each).startswith("file:"))

        event = await runtime.event_log.emit("a", "k", 2)
        assert event.id == 2


async def test_everything_else_may_be_opened_meanwhile(path: Path, tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.emit("a", "k", 1)

        for other in (":memory:", "", "file::memory:?cache=shared", str(tmp_path / "other")):
            with closing(sqlite3.connect(other, uri=other.startswith("file:"))) as opened:
                assert opened.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)


async def test_once_the_last_runtime_has_left_the_file_is_anyones(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as outer:
        async with Runtime(storage=f"sqlite:///{path}") as inner:
            await outer.event_log.emit("a", "k", 1)
            await inner.event_log.emit("a", "k", 2)
        with pytest.raises(StorageError):
            sqlite3.connect(path)

    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (2,)


@pytest.mark.skipif(not HAS_PROC, reason="a process's handles are not told")
async def test_a_file_that_another_sqlite_has_open_is_not_opened_until_that_is_closed(
    path: Path,
) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.emit("a", "k", 1)
    other = sqlite3.connect(path)
    other.execute("SELECT 1 FROM sqlite_schema").fetchall()

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        with pytest.raises(StorageError, match="close it first"):
            await runtime.event_log.emit("a", "k", 2)
        other.close()

        assert (await runtime.event_log.emit("a", "k", 2)).id == 2


async def test_our_own_library_may_open_it_too(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.emit("a", "k", 1)
    ours = apsw.Connection(str(path))

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        assert (await runtime.event_log.emit("a", "k", 2)).id == 2
    ours.close()


def test_nothing_is_watched_before_a_store_opens(tmp_path: Path) -> None:
    code = """
        import sys, asyncio
        added = []
        def note(event, args):
            if event == "sys.addaudithook":
                added.append(event)
        sys.addaudithook(note)
        import harn
        async def main():
            await harn.worker_queue("q").enqueue(1)
        harn.run(main)
        assert not added, added
        harn.run(main, state_dir=sys.argv[1])
        harn.run(main, state_dir=sys.argv[1])
        assert len(added) == 1, added
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "s")], check=True, timeout=60
    )


def test_a_store_is_whole_after_two_processes_wrote_and_one_looked(tmp_path: Path) -> None:
    code = """
        import asyncio, sqlite3, sys, threading
        import harn

        path, looks, refused = sys.argv[1], sys.argv[2] == "look", []

        def look():
            for _ in range(300):
                try:
                    other = sqlite3.connect(path, timeout=5)
                except harn.StorageError:
                    refused.append(1)
                    continue
                other.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                other.close()

        async def main():
            queue = harn.worker_queue("q")
            await queue.enqueue(-1)
            thread = threading.Thread(target=look)
            if looks:
                thread.start()
            for n in range(150):
                await queue.enqueue_many([{"n": n}] * 3)
                claim = await queue.claim_next("me")
                await claim.ack()
            if looks:
                thread.join()

        harn.run(main, storage=f"sqlite:///{path}")
        assert bool(refused) is looks
    """
    path = tmp_path / "events.sqlite"
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(path), how])
        for how in ("look", "do not")
    ]

    assert [each.wait(120) for each in processes] == [0, 0]

    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        heads = dict(other.execute("SELECT name, head FROM topics").fetchall())
    assert heads["worker.q"] == 2 * 451


async def test_a_backup_is_a_private_file_that_any_sqlite_may_read(
    path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy.sqlite"
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.append([draft("a", "k", n) for n in range(1000)])
        before = os.umask(0)
        try:
            await runtime.backup(target)
        finally:
            os.umask(before)

        with closing(sqlite3.connect(f"file:{target}?mode=ro", uri=True)) as other:
            assert other.execute("SELECT count(*) FROM events").fetchone() == (1000,)

    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [path.parent, target]
    async with Runtime(storage=f"sqlite:///{target}") as runtime:
        assert len(await runtime.event_log.read("a")) == 1000


async def test_a_backup_under_load_is_one_moment(path: Path, tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        log, stop = runtime.event_log, asyncio.Event()
        await log.append([draft("big", "k", "x" * 10_000) for _ in range(500)])

        async def write_pairs() -> None:
            while not stop.is_set():
                await log.append([draft("left", "k", 1), draft("right", "k", 1)])

        writing = asyncio.ensure_future(write_pairs())
        for n in range(5):
            await runtime.backup(tmp_path / f"copy-{n}")
        stop.set()
        await writing

    seen = [-1]
    for n in range(5):
        with closing(sqlite3.connect(tmp_path / f"copy-{n}")) as copy:
            heads = dict(copy.execute("SELECT name, head FROM topics").fetchall())
            assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert heads.get("left") == heads.get("right")
        seen.append(heads.get("left") or 0)
    assert seen == sorted(seen)


async def test_a_backup_touches_nothing_that_exists(path: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.emit("a", "k", 1)

        for name in ("taken", "dangling", path.parent, path):
            with pytest.raises(StorageError, match="exists already"):
                await runtime.backup(tmp_path / name)
        with pytest.raises(StorageError, match="cannot be created"):
            await runtime.backup(tmp_path / "no" / "such" / "place")
        for bad in (None, "", 7, "a\0b"):
            with pytest.raises(InvalidOption):
                await runtime.backup(bad)  # type: ignore[arg-type]

        assert (await runtime.event_log.emit("a", "k", 2)).id == 2
    assert (tmp_path / "taken").read_text() == "mine"


async def test_only_sqlite_is_copied(storage_url: str, tmp_path: Path) -> None:
    if storage_url.startswith("sqlite"):
        pytest.skip("that is the engine")
    async with Runtime(storage=storage_url) as runtime:
        with pytest.raises(HarnError, match="only a SQLite store"):
            await runtime.backup(tmp_path / "copy")
    assert not list(tmp_path.glob("*copy*"))


async def test_a_backup_that_is_cancelled_leaves_no_file(path: Path, tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.append([draft("big", "k", "x" * 10_000) for _ in range(1000)])
        copying = asyncio.ensure_future(runtime.backup(tmp_path / "copy"))
        await asyncio.sleep(0)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying

    assert list(tmp_path.iterdir()) == [path.parent]


def test_a_copy_that_is_given_up_half_way_leaves_no_file(tmp_path: Path) -> None:
    source = apsw.Connection(str(tmp_path / "source"))
    source.execute("CREATE TABLE t (x)").fetchall()
    source.execute("INSERT INTO t VALUES (zeroblob(10_000_000))").fetchall()
    looks = iter([True, True, False])

    copy_database(source, tmp_path / "copy", lambda: next(looks))
    source.close()

    assert list(tmp_path.iterdir()) == [tmp_path / "source"]


async def test_a_copy_does_not_hold_up_what_is_read_and_written(path: Path, tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        copier = runtime.service(Store).driver._copier  # type: ignore[attr-defined]
        assert copier.session is None
        await runtime.backup(tmp_path / "copy")

        assert copier.session is None, "a copy leaves no connection behind"


def test_leaving_a_runtime_waits_for_its_copy(path: Path, tmp_path: Path) -> None:
    async def main() -> None:
        await harn.event_log_emit("a", "k", 1)
        copying = asyncio.ensure_future(harn.current_runtime().backup(tmp_path / "copy"))
        await asyncio.sleep(0)
        await harn.current_runtime().aclose()
        await copying

    harn.run(main, storage=f"sqlite:///{path}")

    assert (tmp_path / "copy").is_file()


def test_two_threads_that_make_the_same_file_do_not_see_each_others_handle(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    real = private_files.open_private

    def hold_and_note() -> None:
        try:
            found.append(open_files.hold(path))
        except StorageError as error:
            found.append(error)

    second = threading.Thread(target=hold_and_note)

    def open_while_the_second_thread_looks(*args: Any, **named: Any) -> int:
        handle = real(*args, **named)
        monkeypatch.setattr(private_files, "open_private", real)
        second.start()
        second.join(0.2)  # it cannot end while we make the file; without the lock, it does
        return handle

    monkeypatch.setattr(private_files, "open_private", open_while_the_second_thread_looks)
    identity = open_files.hold(path)
    second.join()

    assert found == [identity]
    open_files.release(identity)
    open_files.release(identity)

"""Hints that another process has written to a file: soon, and few for many writes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from harn import Runtime
from harn.storage import Store
from harn.storage.engines import file_watch
from harn.storage.engines.file_watch import (
    FileWatch,
    _inotify_init,
    own_write,
    settled_look,
)
from harn.testing import FakeClock

pytestmark = pytest.mark.skipif(_inotify_init() < 0, reason="this system has no inotify")


async def test_a_burst_of_writes_is_one_hint_and_what_follows_it_is_another(
    tmp_path: Path, clock: FakeClock
) -> None:
    file = tmp_path / "store"
    file.write_bytes(b"")
    hints = 0

    def changed() -> None:
        nonlocal hints
        hints += 1

    watch = FileWatch(file, lambda: clock, changed)
    watch.switch(True)

    async def write() -> None:
        for _ in range(20):
            with file.open("ab") as opened:
                opened.write(b"x")
            await asyncio.sleep(0)

    await write()
    assert hints == 1

    await clock.advance(1)
    assert hints >= 7
    for _ in range(10):  # the writes of the pause are a hint, too
        await asyncio.sleep(0)
    await clock.advance(1)
    before = hints
    await write()

    assert hints == before + 1
    watch.switch(False)


async def settled(clock: FakeClock) -> None:
    """Let every hint of the writes before come."""
    for _ in range(3):
        for _ in range(10):
            await asyncio.sleep(0)
        await clock.advance(1)


async def watched(place: Path, clock: FakeClock) -> tuple[Path, FileWatch, list[int]]:
    """Return a file that was written to, its watch, and the hints since, of which there is none."""
    file = place / "store"
    file.write_bytes(b"")
    hints: list[int] = []
    watch = FileWatch(file, lambda: clock, lambda: hints.append(1))
    watch.switch(True)
    file.write_bytes(b"first")
    await settled(clock)
    del hints[:]
    return file, watch, hints


async def test_a_file_is_looked_at_around_our_own_writes_only_while_it_is_watched(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store"
    file.write_bytes(b"")
    looks: list[Path | str] = []
    look = file_watch._size_and_time

    def counted_look(path: Path | str) -> tuple[int, int] | None:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(file_watch, "_size_and_time", counted_look)

    def looks_of_a_write() -> int:
        del looks[:]
        with own_write(str(file)):
            pass
        return len(looks)

    first, second = (FileWatch(file, lambda: clock, lambda: None) for _ in range(2))
    counted = [looks_of_a_write()]
    for watch, wanted in ((first, True), (second, True), (first, False), (second, False)):
        watch.switch(wanted)
        watch.switch(wanted)
        counted.append(looks_of_a_write())

    assert counted == [0, 2, 2, 2, 0]


async def test_a_quiet_write_of_our_own_is_no_hint_and_one_of_another_process_is(
    tmp_path: Path, clock: FakeClock
) -> None:
    file, watch, hints = await watched(tmp_path, clock)

    with own_write(str(file)), file.open("ab") as opened:
        opened.write(b"ours")
    await settled(clock)
    assert hints == []

    file.write_bytes(b"of another process")
    with own_write(str(file)), file.open("ab") as opened:
        opened.write(b"ours")
    await settled(clock)
    assert hints
    watch.switch(False)


async def test_a_hint_waits_while_a_quiet_write_is_under_way(
    tmp_path: Path, clock: FakeClock
) -> None:
    file, watch, hints = await watched(tmp_path, clock)

    with own_write(str(file)):
        with file.open("ab") as opened:
            opened.write(b"ours")
        for _ in range(10):
            await asyncio.sleep(0)
        assert hints == []
    await settled(clock)

    assert hints == []
    watch.switch(False)


def test_a_look_counts_when_no_later_write_can_have_its_time(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_bytes(b"some")
    just_now = settled_look(file)
    os.utime(file, ns=(0, 1_000_000_000))

    assert just_now is None
    assert settled_look(file) == (4, 1_000_000_000)
    assert settled_look(tmp_path / "none") is None


async def test_a_quiet_write_of_our_own_wakes_the_loop_once(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    ready = FileWatch._ready

    def counted(watch: FileWatch) -> None:
        woken.append(1)
        ready(watch)

    monkeypatch.setattr(FileWatch, "_ready", counted)
    file, watch, hints = await watched(tmp_path, clock)
    del woken[:]

    with own_write(str(file)), file.open("ab", buffering=0) as opened:
        opened.write(b"a page")
        for _ in range(3):
            await asyncio.sleep(0)  # the watch hears of the first page
        opened.write(b"another page")
    await settled(clock)

    assert (len(woken), hints) == (1, [])
    watch.switch(False)


async def test_a_write_is_a_hint_when_a_caller_waits_for_it_and_wakes_the_loop_once_before(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    ready = FileWatch._ready

    def counted(watch: FileWatch) -> None:
        woken.append(1)
        ready(watch)

    monkeypatch.setattr(FileWatch, "_ready", counted)
    file = tmp_path / "store"
    file.write_bytes(b"")
    hints: list[int] = []
    is_awaited = False
    watch = FileWatch(file, lambda: clock, lambda: hints.append(1), awaits=lambda: is_awaited)
    watch.switch(True)

    for _ in range(3):
        with file.open("ab") as opened:
            opened.write(b"of another process")
        await settled(clock)
    assert (woken, hints) == ([1], [])

    is_awaited = True
    watch.switch(True)
    await settled(clock)
    assert hints
    watch.switch(False)


@pytest.mark.parametrize("engine", ["sqlite:///{}/store.sqlite", "file:///{}/store"])
async def test_a_write_of_another_process_before_a_wait_is_not_missed(
    engine: str, tmp_path: Path
) -> None:
    url = engine.format(tmp_path)
    async with Runtime(storage=url) as ours, Runtime(storage=url) as another:
        store, log = ours.service(Store), another.event_log
        await log.emit("news", "first", {})
        await store.grown("news", store.growth("news"), 0)  # from here on it is watched
        for n in range(20):
            mark = store.growth("news")
            await log.emit("news", "another", {"n": n})
            for _ in range(10):  # the watch hears of it, and no caller waits
                await asyncio.sleep(0)

            async with asyncio.timeout(30):
                await store.grown("news", mark, 3600)
            assert store.growth("news") != mark

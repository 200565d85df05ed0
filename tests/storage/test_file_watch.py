"""Hints that another process has written to a file: soon, and few for many writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harn.storage.engines.file_watch import FileWatch, _inotify_init
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

    watch = FileWatch(lambda: [file], lambda: clock, changed)
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

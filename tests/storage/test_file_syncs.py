"""The order of syncs and renames in a directory of files, and commits that fail together."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime, StorageError
from harn.storage import Operation, Store, draft
from harn.storage.log import append
from tests.linux_only import DATA_SYNC


class Calls:
    """What was synced and renamed, in order: ("sync", inode) and ("rename", inode, name)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Any, ...]] = []
        self._real = {name: getattr(os, name) for name in ("fsync", "rename")}
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, DATA_SYNC, self._sync)
        monkeypatch.setattr(os, "rename", self._rename)

    def _sync(self, fd: int) -> None:
        self._real["fsync"](fd)
        self.made.append(("sync", os.fstat(fd).st_ino))

    def _rename(self, source: Any, target: Any, **places: Any) -> None:
        inode = os.stat(source).st_ino
        self._real["rename"](source, target, **places)
        self.made.append(("rename", inode, Path(target)))

    def renames(self) -> Iterator[tuple[Path, bool, bool]]:
        """Yield each rename: its target, whether the file was synced before, the directory after.

        What follows the next rename is too late.
        """
        for place, call in enumerate(self.made):
            if call[0] == "rename":
                _, inode, target = call
                after = self.made[place + 1 : place + 2]
                directory = ("sync", os.stat(target.parent).st_ino)
                yield target, ("sync", inode) in self.made[:place], directory in after


async def test_J5_every_new_file_is_synced_before_its_rename_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    async with Runtime(storage=f"file:///{tmp_path}/log") as runtime:
        for number in range(4):
            await runtime.event_log.emit("a", "k", number)

        await runtime.event_log.trim("a", keep=2)

    found = list(calls.renames())
    assert {target.name for target, _, _ in found} >= {"a.jsonl", "commits.jsonl"}
    assert all(before and after for _, before, after in found), found


async def test_J9_a_commit_that_fails_fails_every_operation_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def holds_the_thread() -> Operation[None]:
        began.set()
        go_on.wait()
        yield from ()

    def full_disk(fd: int) -> None:
        raise OSError(28, "No space left on device")

    async with Runtime(storage=f"file:///{tmp_path}/log") as runtime:
        store = runtime.service(Store)
        await store.run(lambda: append([draft("a", "k", 0)]))
        first = store.submit(holds_the_thread)
        await asyncio.to_thread(began.wait)
        meeting = [store.submit(partial(append, [draft("a", "k", n)])) for n in (1, 2, 3)]
        with monkeypatch.context() as broken:
            broken.setattr(os, DATA_SYNC, full_disk)
            go_on.set()
            answers = await asyncio.gather(first, *meeting, return_exceptions=True)

        assert [type(each) for each in answers[1:]] == [StorageError] * 3
        assert [event.payload for event in await runtime.event_log.read("a")] == [0]

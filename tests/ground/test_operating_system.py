"""Syncing, and telling whether a process runs, with and without what only Linux has."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harn import file_sync
from harn.file_sync import sync_data, sync_file
from harn.running_processes import process_started, this_machine

ROOT = Path(__file__).parent.parent.parent
WITHOUT_LINUX = {**os.environ, "PYTHONPATH": str(ROOT / "tests/portable")}

Sync = Callable[[int], None]


class Calls:
    """Notes which of the system's calls are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self._monkeypatch = monkeypatch
        self.note(os, "fsync")
        self.note(os, "fdatasync")

    def note(self, place: object, name: str) -> None:
        def call(*args: object) -> None:
            self.made.append(name)

        self._monkeypatch.setattr(place, name, call, raising=False)

    def offer_full_sync(self, error: int | None = None) -> None:
        def call(handle: int, command: int) -> None:
            assert command == 51
            self.made.append("full")
            if error is not None:
                raise OSError(error, os.strerror(error))

        self._monkeypatch.setattr(file_sync, "_FULL_SYNC", 51)
        self._monkeypatch.setattr(fcntl, "fcntl", call)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize(("sync", "call"), [(sync_file, "fsync"), (sync_data, "fdatasync")])
def test_linux_syncs_with_its_own_calls(calls: Calls, sync: Sync, call: str) -> None:
    sync(1)

    assert calls.made == [call]


def test_a_system_without_fdatasync_syncs_all_of_the_file(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fdatasync")

    sync_data(1)

    assert calls.made == ["fsync"]


@pytest.mark.parametrize("sync", [sync_file, sync_data])
def test_macos_waits_until_the_drive_has_written(calls: Calls, sync: Sync) -> None:
    calls.offer_full_sync()

    sync(1)

    assert calls.made == ["full"]


@pytest.mark.parametrize(("sync", "call"), [(sync_file, "fsync"), (sync_data, "fdatasync")])
def test_a_file_system_without_the_full_sync_gets_the_ordinary_one(
    calls: Calls, sync: Sync, call: str
) -> None:
    calls.offer_full_sync(errno.ENOTSUP)

    sync(1)

    assert calls.made == ["full", call]


@pytest.mark.parametrize("sync", [sync_file, sync_data])
def test_a_full_sync_that_fails_is_no_sync(calls: Calls, sync: Sync) -> None:
    calls.offer_full_sync(errno.EIO)

    with pytest.raises(OSError, match="Input/output"):
        sync(1)

    assert calls.made == ["full"]


ELSEWHERE = """
import os, subprocess, sys
from harn.running_processes import process_started, this_machine

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(*this_machine(), process_started(os.getpid()), process_started(child.pid))
child.communicate()
print(process_started(child.pid), hasattr(os, "fdatasync"), hasattr(os, "eventfd"))
"""


def test_without_proc_the_kernel_is_asked_whether_a_process_runs() -> None:
    def told() -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            env=WITHOUT_LINUX,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return [line.split() for line in done.stdout.splitlines()]

    first, second = told()

    assert first[1:] == ["-", "running", "running"]
    assert second == ["None", "False", "False"]
    assert told()[0] == first, "two processes of one machine agree on its name"


def test_this_process_runs_and_has_a_start() -> None:
    assert process_started(os.getpid()) == process_started(os.getpid()) is not None
    assert this_machine() == this_machine()


def test_windows_is_told_to_use_wsl_at_the_first_import() -> None:
    code = "import sys; sys.platform = 'win32'; import harn"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: harn runs on Linux and macOS; on Windows, use it inside WSL"

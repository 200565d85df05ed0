"""Leases between real processes, really killed, stopped and blocked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("lease_holder.py")
TTL = 2.5
"""Seconds; a holder on a busy machine must not lose its lease before the test takes it away."""


@dataclass(frozen=True)
class Line:
    what: str
    pid: int
    epoch: int | None
    at: float


class Ship:
    """Processes on one store, and the ledger that they all write to."""

    def __init__(self, url: str, ledger: Path) -> None:
        self.url = url
        self.ledger = ledger
        self.crew: list[subprocess.Popen[bytes]] = []

    def board(self, *flags: str) -> int:
        command = [sys.executable, str(SCRIPT), self.url, str(self.ledger), str(int(TTL * 1000))]
        member = subprocess.Popen([*command, *flags])
        self.crew.append(member)
        return member.pid

    def lines(self, what: str, pid: int | None = None) -> list[Line]:
        found = []
        text = self.ledger.read_text() if self.ledger.exists() else ""
        for line in text.splitlines():
            said, who, epoch, at = line.split()
            if said == what and pid in (None, int(who)):
                found.append(
                    Line(said, int(who), None if epoch == "None" else int(epoch), float(at))
                )
        return found

    async def until(self, what: str, pid: int) -> Line:
        async with asyncio.timeout(30):
            while not (found := self.lines(what, pid)):
                await asyncio.sleep(0.01)
        return found[-1]

    def sink(self) -> None:
        for member in self.crew:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
            member.wait()


@pytest.fixture
def ship(lasting_url: str, tmp_path: Path) -> Iterator[Ship]:
    """A ship on every kind of store."""
    ship = Ship(lasting_url, tmp_path / "ledger")
    yield ship
    ship.sink()


@pytest.fixture
def boat(tmp_path: Path) -> Iterator[Ship]:
    """A ship on SQLite only, for what does not depend on the store."""
    boat = Ship(f"sqlite:///{tmp_path}/s.sqlite", tmp_path / "ledger")
    yield boat
    boat.sink()


async def test_U6_a_killed_holder_is_followed_within_its_time_and_a_second(ship: Ship) -> None:
    first = ship.board()
    await ship.until("began", first)
    second = ship.board()
    await ship.until("waits", second)

    killed = time.monotonic()
    os.kill(first, signal.SIGKILL)
    began = await ship.until("began", second)

    assert began.at - killed <= TTL + 1.0
    assert [line.epoch for line in ship.lines("began")] == [1, 2]


async def test_U6_a_frozen_holder_finds_out_when_it_thaws(ship: Ship) -> None:
    first = ship.board()
    await ship.until("began", first)
    second = ship.board()
    await ship.until("waits", second)

    os.kill(first, signal.SIGSTOP)
    await ship.until("began", second)
    thawed = time.monotonic()
    os.kill(first, signal.SIGCONT)
    ended = await ship.until("ended", first)

    assert ended.at - thawed <= 1.0
    assert len(ship.lines("began")) == 2


async def test_a_child_that_blocks_its_loop_keeps_its_lease(boat: Ship) -> None:
    first = boat.board("block")
    await boat.until("began", first)
    second = boat.board()
    await boat.until("waits", second)

    await boat.until("unblocked", first)

    assert boat.lines("began", second) == []
    assert boat.lines("ended", first) == []

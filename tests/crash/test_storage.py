"""Writers really killed: what was acknowledged is there once, in order, whole or not at all."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harn import Event, Runtime
from harn.storage import Store

WRITER = str(Path(__file__).with_name("writer.py"))


def kill_a_writer(url: str, name: str, chance: random.Random) -> tuple[set[str], set[str]]:
    """Run a writer, kill it after a random number of words; return its intents and acks."""
    process = subprocess.Popen([sys.executable, WRITER, url, name], stdout=subprocess.PIPE)
    assert process.stdout is not None
    words = []
    for _ in range(chance.randrange(5, 300)):
        words.append(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read()
    process.wait(30)
    process.stdout.close()
    lines = [line.split() for line in b"".join([*words, rest]).decode().splitlines()]
    return (
        {line[1] for line in lines if line[0] == "intent"},
        {line[1] for line in lines if line[0] == "ack"},
    )


async def everything(url: str) -> tuple[list[Event], list[Event]]:
    async with Runtime(storage=url) as runtime:
        log = runtime.event_log
        assert await runtime.service(Store).check() == []
        found = await log.read("a"), await log.read("b")
        assert log.damaged_total == 0
        return found


def check(url: str, intents: set[str], acks: set[str]) -> None:
    first, second = asyncio.run(everything(url))
    in_a, in_b = [e.payload for e in first], [e.payload for e in second]

    assert len(in_a) == len(set(in_a)), "a record is there twice"
    assert acks <= set(in_a), "an acknowledged record is gone"
    assert set(in_a) <= intents, "a record that no process wrote"
    assert [e.id for e in first] == list(range(1, len(first) + 1))
    both = {p for p in in_a if int(p.rsplit("-", 1)[1]) % 3 == 2}
    assert both == set(in_b), "an append to two topics is there by half"


def kill_many(url: str, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    intents: set[str] = set()
    acks: set[str] = set()
    for round_ in range(rounds):
        said = kill_a_writer(url, f"w{round_}", chance)
        intents |= said[0]
        acks |= said[1]
        check(url, intents, acks)
    assert acks


def test_E1_E6_killed_writers_leave_whole_acknowledged_records(lasting_url: str) -> None:
    kill_many(lasting_url, 3, seed=1)


@pytest.mark.stress
def test_G1_writers_killed_hundreds_of_times(
    lasting_url: str, at_least: Callable[[int], int]
) -> None:
    kill_many(lasting_url, at_least(30), seed=2)


def test_E7_a_process_sees_what_another_one_writes(lasting_url: str) -> None:
    async def main() -> list[str]:
        async with Runtime(storage=lasting_url) as runtime:
            news = runtime.event_log.subscribe("a")
            await news.ready()
            process = subprocess.Popen(
                [sys.executable, WRITER, lasting_url, "other"], stdout=subprocess.DEVNULL
            )
            try:
                return [(await anext(news)).payload for _ in range(20)]
            finally:
                process.kill()
                process.wait()

    seen = asyncio.run(main())

    assert len(set(seen)) == 20
    assert all(payload.startswith("other-") for payload in seen)

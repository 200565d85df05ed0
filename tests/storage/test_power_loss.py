"""A real file system that loses power: ext4 on a loop device, shut down without its journal.

Needs root and a free loop device, so it runs with the long tests only. The mount says
`noauto_da_alloc`: the heuristics that hide a missing fsync are off.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harn import Runtime

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
WITHOUT_JOURNAL = 2
"""What is only in memory is lost, the journal's part too."""

WRITE = """
import asyncio, sys
from harn import Runtime

async def main():
    async with Runtime(storage=sys.argv[1]) as runtime:
        async def write(lane):
            n = 0
            while True:
                event = await runtime.event_log.emit("a", "k", [lane, n])
                print(lane, n, event.id, flush=True)
                n += 1
        await asyncio.gather(*(write(lane) for lane in range(int(sys.argv[2]))))

asyncio.run(main())
"""


class PowerCut:
    """An ext4 that can be cut off and come back."""

    def __init__(self, home: Path) -> None:
        self.image, self.where = home / "disk.img", home / "mnt"
        self.where.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(64 * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop,noauto_da_alloc", str(self.image), str(self.where))

    def cut(self) -> None:
        root = os.open(self.where, os.O_RDONLY)
        try:
            fcntl.ioctl(root, SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL))
        finally:
            os.close(root)

    def unmount(self) -> None:
        _run("umount", str(self.where))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{argv}: {done.stderr}")


@pytest.fixture
def power(tmp_path: Path) -> Iterator[PowerCut]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    try:
        made = PowerCut(tmp_path)
    except RuntimeError as error:
        pytest.skip(f"no loop device: {error}")
    yield made
    made.unmount()


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lanes", [1, 20])
@pytest.mark.parametrize("url", ["sqlite:///{}/x.sqlite", "file:///{}/log"])
def test_G2_a_power_cut_takes_no_acknowledged_record(
    power: PowerCut, url: str, lanes: int, at_least: Callable[[int], int]
) -> None:
    storage = url.format(power.where)
    acknowledged: dict[int, tuple[int, int]] = {}
    for seed in range(at_least(5)):
        acknowledged |= _write_until_the_cut(power, storage, lanes, random.Random(seed))

        found = asyncio.run(_everything(storage))

        lost = {id for id, told in acknowledged.items() if found.get(id) != told}
        assert not lost, f"seed {seed}: {len(lost)} of {len(acknowledged)} lost: {sorted(lost)[:9]}"
        assert sorted(found) == list(range(1, len(found) + 1))


def _write_until_the_cut(
    power: PowerCut, storage: str, lanes: int, chance: random.Random
) -> dict[int, tuple[int, int]]:
    acknowledged: dict[int, tuple[int, int]] = {}
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, storage, str(lanes)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as writer:  # fmt: skip
        try:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 600)):
                lane, n, id = map(int, writer.stdout.readline().split())
                acknowledged[id] = (lane, n)
            power.cut()
        finally:
            writer.kill()
    power.unmount()
    power.mount()
    return acknowledged


async def _everything(storage: str) -> dict[int, tuple[int, int]]:
    async with Runtime(storage=storage) as runtime:
        return {e.id: tuple(e.payload) for e in await runtime.event_log.read("a")}

"""`make soak` finds what it is for: a job that was lost, a process that grows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tools import soak
from tools.soak import Stage, grown, lost

from harn import Runtime, worker_queue


def stage(home: Path, url: str) -> Stage:
    """A run that has ended, with nothing in its ledgers yet."""
    made = Stage.__new__(Stage)
    made.url, made.home, made.kills = url, home, 0
    made.seen = {place: [(30_000, 12)] * 10 for place in soak.WATCHED}
    return made


async def enqueue(url: str, *keys: str) -> None:
    async with Runtime(storage=url):
        for key in keys:
            await worker_queue("soak").enqueue({"key": key})


def test_jobs_that_are_all_handled_are_no_fault(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/soak"
    asyncio.run(enqueue(url, "a", "b"))
    (tmp_path / "produce-1").write_text("a\nb\n")

    ended = stage(tmp_path, url)

    assert [*lost(ended), *grown(ended)] == []
    assert ended.keys("consume") == {"a", "b"}


def test_an_acknowledged_job_that_is_gone_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/soak"
    asyncio.run(enqueue(url, "a"))
    (tmp_path / "produce-1").write_text("a\nb\n")

    never, counted = lost(stage(tmp_path, url))

    assert "1 acknowledged jobs were never handled, such as b" in never
    assert "2 jobs were acknowledged" in counted


@pytest.mark.parametrize(
    ("last", "said"), [((80_000, 12), "from 30000 to 80000 KiB"), ((30_000, 40), "then 40")]
)
def test_a_process_that_grows_is_found(tmp_path: Path, last: tuple[int, int], said: str) -> None:
    ended = stage(tmp_path, "memory://")
    ended.seen[soak.WATCHED[0]][-1] = last

    [found] = grown(ended)

    assert said in found

"""G8: ten thousand random programs leak no task and lose no cancel."""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.tasks.programs import Program

BATCHES = 20
THREADED = 1000
PROGRAMS = 500


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.getLogger("harn.tasks").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("harn.tasks").setLevel(logging.NOTSET)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_N1_G8_random_programs_leak_nothing_and_keep_their_cancels(
    batch: int, at_least: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = at_least(PROGRAMS)

    ends = run_all(range(batch * count, (batch + 1) * count), False, monkeypatch)

    assert {"NoneType", "cancelled", "Boom"} <= set(ends), "the programs have become too tame"


def test_N1_G8_random_programs_on_threads_leak_nothing_either(
    at_least: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all(range(at_least(THREADED)), True, monkeypatch)

    assert [t.name for t in threading.enumerate() if t.name.startswith("harn-worker")] == []


def run_all(
    seeds: range, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> collections.Counter[str]:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)

    async def run() -> collections.Counter[str]:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: complaints.append(c))
        ends: collections.Counter[str] = collections.Counter()
        for seed in seeds:
            ends[await Program(seed, threads).run()] += 1
            assert not complaints, f"seed {seed}: {complaints}"
        return ends

    ends = asyncio.run(run())
    gc.collect()
    assert complaints == []
    return ends

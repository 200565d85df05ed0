"""G8: ten thousand random programs leak no task and lose no cancel."""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from programs import Program

BATCHES = 20
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
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    count = at_least(PROGRAMS)

    async def run_all() -> collections.Counter[str]:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: complaints.append(c))
        ends: collections.Counter[str] = collections.Counter()
        for seed in range(batch * count, (batch + 1) * count):
            ends[await Program(seed).run()] += 1
            assert not complaints, f"seed {seed}: {complaints}"
        return ends

    ends = asyncio.run(run_all())
    gc.collect()

    assert complaints == []
    assert {"NoneType", "cancelled", "Boom"} <= set(ends), "the programs have become too tame"

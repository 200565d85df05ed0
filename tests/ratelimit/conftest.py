"""A limiter on every engine, by the fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harn import Runtime
from harn.testing import FakeClock, fresh_runtime


@pytest.fixture(params=["memory", "sqlite"])
async def world(request, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Runtime]:
    """A runtime whose limiter keeps its rows in memory, or in a file beside the real one."""
    options = {} if request.param == "memory" else {"state_dir": tmp_path}
    async with fresh_runtime(clock=clock, **options) as runtime:
        yield runtime

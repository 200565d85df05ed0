"""A limiter on every engine, by the fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime
from harn.testing import FakeClock, fresh_runtime


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def world(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Runtime]:
    """A runtime whose limiter keeps its rows in memory, in a file, or in PostgreSQL."""
    options: dict[str, Any] = {}
    if request.param == "sqlite":
        options["state_dir"] = tmp_path
    elif request.param == "postgres":
        options["storage"] = request.getfixturevalue("postgres_url")
    async with fresh_runtime(clock=clock, **options) as runtime:
        yield runtime

"""The fixtures that rooms share: a clock, a runtime on it, a store of each kind, commands."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harn import Runtime
from harn.testing import FakeClock, fresh_runtime
from tests.postgres import (  # noqa: F401
    lasting_url,
    postgres_database,
    postgres_server,
    postgres_url,
    storage_url,
)

# A slow machine is no fault: no example has a deadline, and none is generated too slowly.
settings.register_profile("harn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("harn")

ROOT = Path(__file__).parent.parent
STRESS = float(os.environ.get("HARN_STRESS", "0"))
"""How hard to press the tests marked `stress`, and how many more cases the others try."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if STRESS:
        return
    skip = pytest.mark.skip(reason="a long run: `make stress`")
    for item in items:
        if item.get_closest_marker("stress"):
            item.add_marker(skip)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def runtime(clock: FakeClock) -> AsyncIterator[Runtime]:
    async with fresh_runtime(clock=clock) as opened:
        yield opened


@pytest.fixture
def root() -> Path:
    """The project's own directory."""
    return ROOT


@pytest.fixture
def at_least() -> Callable[[int], int]:
    """Scale a number of cases with `HARN_STRESS`: `at_least(100)` is 100 in the ordinary run."""
    return lambda ordinary: int(ordinary * max(1.0, STRESS))

"""Fixtures for pytest, used only by the tests that name them.

`harn_clock` is a `FakeClock`. `harn_runtime` is an open runtime on that clock, for test functions
that are coroutines (pytest-asyncio or anyio runs them). `harn_run` is for plain tests: it runs an
async function to its end in virtual time and needs no other plugin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.testing import FakeClock

async_fixture: Any
try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture


@pytest.fixture
def harn_clock() -> FakeClock:
    """A clock that stands still at 2026-01-01T00:00:00Z until `advance` moves it."""
    from harn.testing import FakeClock

    return FakeClock()


@async_fixture  # type: ignore[untyped-decorator]
async def harn_runtime(harn_clock: FakeClock) -> AsyncIterator[Runtime]:
    """An open runtime, in memory, on `harn_clock`."""
    from harn.testing import fresh_runtime

    async with fresh_runtime(clock=harn_clock) as runtime:
        yield runtime


@pytest.fixture
def harn_run() -> Callable[..., Any]:
    """Run an async function to its end in virtual time: `harn_run(main, *args)`."""
    from harn.testing import run_virtual

    return run_virtual

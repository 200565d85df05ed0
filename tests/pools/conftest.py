"""Run the tests of pools with the measured shortcuts, and without them.

The shortcuts (docs/design/pools.md) must not differ from what they shorten. Each async test of
`test_pool.py`, and each test of an invariant, runs twice.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harn import Runtime
from harn.pools import worker
from harn.pools.slots import Slots
from harn.pools.task import PoolTask
from harn.pools.worker import Worker
from tests.pools.shared_processes import Process, gates, ran

MODULES = {"test_pool", "test_pool_machine", "test_pool_cancel_sweep"}
closures: Any = importlib.import_module("harn.tasks.closures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_of_pools = metafunc.module.__name__.rpartition(".")[2] in MODULES
    if is_of_pools and inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("pool_path", ["shortcut", "plain"], indirect=True)


# Autouse: pytest drops a fixture that only `pytest_generate_tests` names, without a word.
@pytest.fixture(autouse=True)
def pool_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "shortcut") == "plain":
        monkeypatch.setattr(Slots, "complete", complete)
        monkeypatch.setattr(closures, "FunctionType", PlainFunction)
        monkeypatch.setattr(closures, "_fits_at_a_glance", lambda fn, count: False)
        monkeypatch.setattr(worker, "_ASYNC", 0)


class PlainFunction:
    """A type that no function has."""


def complete(self: Slots, worker: Worker, task: PoolTask, result: Any) -> None:
    """End a task that returned as any other task ends."""
    self.finish(task, "completed", result)
    worker._release_slot()


@pytest.fixture
async def processes(lasting_url: str) -> AsyncIterator[list[Process]]:
    """Two processes on one store of every kind that processes can share."""
    ran.clear()
    gates.clear()
    async with Runtime(storage=lasting_url) as first, Runtime(storage=lasting_url) as second:
        yield [Process(first), Process(second)]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The spans that this process exports."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter

"""The fake clock of a runtime, as the type that can be advanced."""

from __future__ import annotations

from harn import Runtime, current_runtime
from harn.testing import FakeClock


def fake_clock(runtime: Runtime | None = None) -> FakeClock:
    """The clock of *runtime*, or of the current one, which a test opened with a `FakeClock`."""
    clock = (runtime or current_runtime()).clock
    assert isinstance(clock, FakeClock)
    return clock

"""The circuits of destinations that have failed lately."""

from __future__ import annotations

from typing import Any

from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.triggers import circuits
from harn.triggers import circuit_state


async def circuits_view(runtime: Runtime) -> list[dict[str, Any]]:
    """Return each circuit with its failures in a row and its state now."""
    now = runtime.clock.now_ms()
    return [
        {
            "destination": destination,
            "failures": row.failures,
            "state": circuit_state(row.failures, row.open_until_ms, now),
        }
        for destination, row in await runtime.service(Store).run(circuits, write=False)
    ]

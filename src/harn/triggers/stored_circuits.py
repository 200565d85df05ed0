"""The circuits of destinations, stored for all processes; `circuit_breaker.py` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.storage import Store
from harn.storage.triggers import CircuitRow, at_circuit, has_no_failures
from harn.triggers.circuit_breaker import CLOSED, Circuit, admit, after_failure

if TYPE_CHECKING:
    from harn.runtime import Runtime

TRUSTED = 1.0
"""Seconds for which a destination without failures is not read from the store again."""


class Circuits:
    """Which destinations may be called.

    Most destinations never fail, so a dispatch does not read the store each time. A failure that
    another process records is seen within `TRUSTED` seconds; one of this process at once.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._store = runtime.service(Store)
        self._trusted: dict[str, float] = {}
        """Until when a destination counts as working without a read of the store."""

    async def admits(self, destination: str) -> bool:
        """Tell whether a dispatch may call *destination* now.

        Cancelling may leave a probe admitted that never comes; it is ignored after a minute.
        """

        def decide(row: CircuitRow, now: int) -> tuple[bool, CircuitRow]:
            admitted, after = admit(_circuit(row), now)
            return admitted, _row(after)

        if await self._is_working(destination):
            return True
        return bool(await self._store.run(lambda: at_circuit(destination, decide)))

    async def note_success(self, destination: str) -> None:
        """Close the circuit of *destination*. Cancelling may leave it closed."""

        def decide(row: CircuitRow, now: int) -> tuple[None, CircuitRow]:
            return None, _row(CLOSED)

        if not await self._is_working(destination):
            await self._store.run(lambda: at_circuit(destination, decide))

    async def note_failure(self, destination: str) -> bool:
        """Count a failure; tell whether the circuit of *destination* is open now.

        Cancelling may leave it counted.
        """

        def decide(row: CircuitRow, now: int) -> tuple[bool, CircuitRow]:
            after = after_failure(_circuit(row), now)
            return after.state(now) == "open", _row(after)

        self._trusted.pop(destination, None)
        return bool(await self._store.run(lambda: at_circuit(destination, decide)))

    async def _is_working(self, destination: str) -> bool:
        """Tell whether *destination* has no failures, as of `TRUSTED` seconds ago or later."""
        now = self._clock.monotonic()
        if self._trusted.get(destination, 0.0) > now:
            return True
        if await self._store.run(lambda: has_no_failures(destination), write=False):
            self._trusted[destination] = now + TRUSTED
            return True
        return False


def _circuit(row: CircuitRow) -> Circuit:
    return Circuit(row.failures, row.open_until_ms, row.probing_until_ms)


def _row(circuit: Circuit) -> CircuitRow:
    return CircuitRow(circuit.failures, circuit.open_until_ms, circuit.probing_until_ms)

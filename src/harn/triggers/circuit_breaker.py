"""Circuit breaker: when a destination that keeps failing is not called. Pure decisions.

A destination is `<handler kind>:<target>`. Five retryable failures in a row, of any events, open
its circuit for a minute; a dispatch then becomes a dead letter without a call. Afterwards one
dispatch, the probe, may call it: a success closes the circuit, a failure opens it again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

THRESHOLD = 5
OPEN_MS = 60_000

CircuitState = Literal["closed", "open", "half_open"]


class Circuit(msgspec.Struct, frozen=True):
    """The state of a destination: failures in a row, and until when it is not called."""

    failures: int = 0
    open_until_ms: int = 0
    probing_until_ms: int = 0
    """Until when a probe counts as under way; one whose process died is ignored after it."""

    def state(self, now_ms: int) -> CircuitState:
        """Return the state of the circuit at *now_ms*."""
        if self.failures < THRESHOLD:
            return "closed"
        return "open" if now_ms < self.open_until_ms else "half_open"


CLOSED = Circuit()
"""The circuit of a destination that never failed, or whose last call succeeded."""


def circuit_state(failures: int, open_until_ms: int, now_ms: int) -> CircuitState:
    """Return the state of a circuit, from its stored values.

    >>> circuit_state(5, 60_000, 0)
    'open'
    """
    return Circuit(failures, open_until_ms).state(now_ms)


def admit(circuit: Circuit, now_ms: int) -> tuple[bool, Circuit]:
    """Decide whether a dispatch may call the destination; half open admits one at a time.

    >>> admit(Circuit(failures=5, open_until_ms=60_000), 59_999)[0]
    False
    """
    state = circuit.state(now_ms)
    if state == "closed":
        return True, circuit
    if state == "open" or now_ms < circuit.probing_until_ms:
        return False, circuit
    return True, msgspec.structs.replace(circuit, probing_until_ms=now_ms + OPEN_MS)


def after_failure(circuit: Circuit, now_ms: int) -> Circuit:
    """Count a retryable failure; the fifth in a row, or a failed probe, opens the circuit."""
    failures = min(circuit.failures + 1, THRESHOLD)
    if failures < THRESHOLD:
        return msgspec.structs.replace(circuit, failures=failures)
    return Circuit(failures=failures, open_until_ms=now_ms + OPEN_MS)

"""A destination that keeps failing is left alone for a while: the decisions, pure.

A destination is `<handler kind>:<target>`. Five retryable failures in a row, whatever the events,
open its circuit for a minute; dispatches then go straight to the dead letters. Afterwards one
dispatch may try: its success closes the circuit, its failure opens it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

THRESHOLD = 5
OPEN_MS = 60_000

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class Circuit:
    """What is known of a destination: failures in a row, and until when it is left alone."""

    failures: int = 0
    open_until_ms: int = 0
    probing_until_ms: int = 0
    """While a dispatch tries the destination out; a probe that vanished is forgotten after it."""

    def state(self, now_ms: int) -> State:
        """Tell how the circuit stands at *now_ms*."""
        if self.failures < THRESHOLD:
            return "closed"
        return "open" if now_ms < self.open_until_ms else "half_open"


CLOSED = Circuit()


def circuit_state(failures: int, open_until_ms: int, now_ms: int) -> State:
    """Tell how a circuit stands, from what is stored of it.

    >>> circuit_state(5, 60_000, 0)
    'open'
    """
    return Circuit(failures, open_until_ms).state(now_ms)


def admit(circuit: Circuit, now_ms: int) -> tuple[bool, Circuit]:
    """Decide whether a dispatch may try the destination; a half-open one takes one at a time.

    >>> admit(Circuit(failures=5, open_until_ms=60_000), 59_999)[0]
    False
    """
    state = circuit.state(now_ms)
    if state == "closed":
        return True, circuit
    if state == "open" or now_ms < circuit.probing_until_ms:
        return False, circuit
    return True, replace(circuit, probing_until_ms=now_ms + OPEN_MS)


def after_success(circuit: Circuit) -> Circuit:
    """Close the circuit."""
    return CLOSED


def after_failure(circuit: Circuit, now_ms: int) -> Circuit:
    """Count a retryable failure; the fifth in a row opens the circuit, and so does a probe's."""
    failures = min(circuit.failures + 1, THRESHOLD)
    if failures < THRESHOLD:
        return replace(circuit, failures=failures)
    return Circuit(failures=failures, open_until_ms=now_ms + OPEN_MS)

"""Whether and when a child that has ended is started again, and which siblings with it. Pure.

`after_exit` decides for the child itself: start it again at some time, open its circuit, or leave
it ended. `affected` returns the siblings that are restarted with it. Neither waits, reads a clock
or changes anything; `Supervisor` applies the decisions.

The budget has two conditions. First, the exits of the last window, including this one, must not be
more than `max_restarts`: that is how users count. Second, no sliding window may contain more than
`max_restarts` restarts: without this, a delay that is shorter than the one before could bring two
restarts into one window. The trial after an open circuit counts as a restart, so a child that
fails its trial has one restart less before the circuit opens again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from harn.supervisors.spec import Policy, Strategy

Outcome = Literal["clean", "failed"]


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """What counts against a child's budget; times are monotonic seconds, oldest first."""

    restart_count: int = 0
    """Restarts after its own exits, since the start or since its circuit last opened."""
    exits: tuple[float, ...] = ()
    """The exits in the last window that were followed by a restart."""
    restarts: tuple[float, ...] = ()
    """The times of restarts in the last window; an open circuit does not clear them."""


@dataclass(frozen=True, slots=True)
class Again:
    """Start the child again at *at*, *delay_ms* from now."""

    at: float
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CircuitOpen:
    """The restarts are used up: do not start the child before *until*, then try once."""

    until: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave the child ended: it *finished*, it *failed*, or its restarts are used up (*spent*)."""

    reason: Literal["finished", "failed", "spent"]


Decision = Again | CircuitOpen | GiveUp


def after_exit(
    policy: Policy, outcome: Outcome, history: RestartHistory, now: float, *, index: int = 0
) -> Decision:
    """Decide what follows *outcome*; the jitter depends on *index*, the child's position."""
    if policy.mode == "never" or (policy.mode == "on_failure" and outcome == "clean"):
        return GiveUp("finished" if outcome == "clean" else "failed")
    delay_ms = backoff_ms(policy, history.restart_count, index)
    at = now + delay_ms / 1000
    if has_budget(policy, history, now, at):
        return Again(at, delay_ms)
    if policy.circuit is not None:
        return CircuitOpen(now + policy.circuit)
    return GiveUp("spent")


def has_budget(policy: Policy, history: RestartHistory, now: float, at: float) -> bool:
    """Tell whether the child that ended *now* may be started again at *at*."""
    most = policy.max_restarts
    if most is None:
        return True
    if policy.window == 0:
        return history.restart_count < most
    exits = sum(1 for exit in history.exits if now - exit < policy.window) + 1
    restarts = sum(1 for restart in history.restarts if at - restart < policy.window)
    return exits <= most and restarts < most


def backoff_ms(policy: Policy, restart_count: int, index: int) -> int:
    """Return the delay before the next restart: it grows up to a cap, plus a jitter.

    >>> from harn.supervisors.spec import Restart
    >>> policy = Restart(backoff_ms=10, max_backoff_ms=40, jitter_ms=3).policy
    >>> [backoff_ms(policy, count, index=0) for count in range(4)]
    [13, 23, 43, 43]
    """
    jitter = ((index + 1) * 1103 + restart_count * 9176) % (policy.jitter_ms + 1)
    base = policy.backoff_ms
    cap = max(policy.max_backoff_ms, base)
    if base == 0:
        return jitter
    # Compare logarithms first: the power would overflow long before a million restarts.
    if restart_count * math.log(policy.factor) > math.log(cap / base) + 1:
        return cap + jitter
    return min(math.floor(base * policy.factor**restart_count + 0.5), cap) + jitter


def exit_noted(
    history: RestartHistory, policy: Policy, decision: Decision, now: float
) -> RestartHistory:
    """Return *history* after an exit that led to *decision*."""
    if isinstance(decision, CircuitOpen):
        return replace(history, restart_count=0, exits=())
    if isinstance(decision, GiveUp):
        return history
    exits = _recent((*history.exits, now), policy, now)
    return replace(history, restart_count=history.restart_count + 1, exits=exits)


def restart_noted(history: RestartHistory, policy: Policy, now: float) -> RestartHistory:
    """Return *history* after a restart for the child's own exit took place *now*."""
    return replace(history, restarts=_recent((*history.restarts, now), policy, now))


def _recent(times: tuple[float, ...], policy: Policy, now: float) -> tuple[float, ...]:
    if policy.max_restarts is None or policy.window == 0:
        return ()
    kept = tuple(time for time in times if now - time < policy.window)
    return kept[-(policy.max_restarts + 1) :]


def affected(strategy: Strategy, index: int, count: int) -> range:
    """Return the indexes that are restarted with the child at *index* of *count*, that included.

    They are stopped from right to left and started from left to right.

    >>> list(affected("one_for_one", 1, 4)), list(affected("rest_for_one", 1, 4))
    ([1], [1, 2, 3])
    """
    if strategy == "one_for_all":
        return range(count)
    if strategy == "rest_for_one":
        return range(index, count)
    return range(index, index + 1)

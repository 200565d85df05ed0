"""What the exit of a child changes, for the child and for the siblings restarted with it.

`restart_policy.py` decides. This module sets the status of the children and what they wait for, and
records events. It starts and stops nothing: the supervisor's next step does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from harn.runtime import Runtime
from harn.supervisors.records import ENDED, WaitReason
from harn.supervisors.restart_policy import (
    Again,
    CircuitOpen,
    GiveUp,
    Outcome,
    affected,
    after_exit,
    exit_noted,
)
from harn.supervisors.spec import SupervisorSpec
from harn.supervisors.supervised_child import SupervisedChild
from harn.supervisors.supervisor_events import SupervisorEvents


class Exits:
    """The consequences of exits, for the children of one supervisor."""

    def __init__(
        self,
        runtime: Runtime,
        spec: SupervisorSpec,
        children: Sequence[SupervisedChild],
        events: SupervisorEvents,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._children = children
        self._events = events
        self._batches = 0

    def ended_by_itself(self, child: SupervisedChild, outcome: Outcome) -> None:
        """Apply the policy of *child*, which ended without a request to stop."""
        now, policy = self._now(), child.spec.policy
        decision = after_exit(policy, outcome, child.history, now, index=child.spec.index)
        child.history = exit_noted(child.history, policy, decision, now)
        match decision:
            case GiveUp("spent"):
                self._events.counters["suppressed"] += 1
                child.stay_ended("suppressed", "restart_cap_exceeded")
                self._events.note(child, "child_suppressed", "no restarts left in this window")
            case GiveUp():
                child.stay_ended("stopped" if outcome == "clean" else "failed")
            case Again(at, delay_ms):
                child.counts_in_budget, child.trial = True, False
                self._schedule(child, "restart_backoff", at, delay_ms)
                self._restart_siblings(child, at)
            case CircuitOpen(until):
                self._open_circuit(child, until, round((until - now) * 1000))
                self._restart_siblings(child, until)
            case _:
                assert_never(decision)

    def ended_on_request(self, child: SupervisedChild, outcome: Outcome) -> None:
        """Schedule the next start of *child*, which was stopped; not if its mode is `never`.

        A child that returned before it was asked to stop counts as completed.
        """
        lease_lost = child.end_reason == "lease"
        finished = outcome == "clean" and not child.asked and child.spec.policy.mode != "always"
        child.withdraw_end()
        if finished:
            self._events.note(child, "child_stopped", "completed")
            child.stay_ended("stopped")
            return
        message = "lease lost" if lease_lost else "propagation restart"
        self._events.note(child, "child_stopped", message)
        if child.spec.policy.mode == "never":
            child.stay_ended("stopped")
            return
        child.counts_in_budget = child.trial = False
        now = self._now()
        at = now if child.at is None else max(now, child.at)
        reason: WaitReason = "lease" if lease_lost else "propagation_restart"
        self._schedule(child, reason, at, round((at - now) * 1000))

    def _schedule(
        self, child: SupervisedChild, reason: WaitReason, at: float, delay_ms: int
    ) -> None:
        self._events.counters["restarted"] += 1
        child.restart_count += 1
        child.wait(reason, at, self._now_ms() + delay_ms)
        self._events.note(child, "child_restarted", f"scheduled after {delay_ms}ms")

    def _open_circuit(self, child: SupervisedChild, until: float, delay_ms: int) -> None:
        self._events.counters["suppressed"] += 1
        child.restart_count = 0
        child.counts_in_budget = child.trial = True
        child.wait("circuit_open", until, self._now_ms() + delay_ms)
        self._events.note(child, "child_suppressed", f"circuit open for {delay_ms}ms")

    def _restart_siblings(self, cause: SupervisedChild, at: float) -> None:
        """Stop the siblings that the strategy names, to start them again with *cause*."""
        indexes = affected(self._spec.strategy, cause.spec.index, len(self._children))
        if len(indexes) < 2:
            return
        self._batches += 1
        together = [self._children[index] for index in indexes]
        earlier = {child.batch for child in together} - {None}
        now = self._now()
        at_ms = self._now_ms() + round((at - now) * 1000)
        for child in together:
            if child.status in ENDED:
                continue
            child.batch = self._batches
            if child is not cause:
                self._stop_until(child, at, at_ms, now + self._spec.shutdown)
        for child in self._children:  # those that would have started with one of them
            if child.batch in earlier:
                child.batch = self._batches

    def _stop_until(self, child: SupervisedChild, at: float, at_ms: int, by: float) -> None:
        child.postpone(at, at_ms)
        if child.alive:
            child.plan_end("propagation", by)
        elif child.claim is not None:
            child.release_lease()
            child.wait_reason = "propagation_restart"

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def _now_ms(self) -> int:
        return self._runtime.clock.now_ms()

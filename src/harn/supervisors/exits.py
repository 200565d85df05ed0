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
        members: Sequence[SupervisedChild],
        events: SupervisorEvents,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._members = members
        self._events = events
        self._batches = 0

    def ended_by_itself(self, member: SupervisedChild, outcome: Outcome) -> None:
        """Apply the policy of *member*, which ended without a request to stop."""
        now, policy = self._now(), member.spec.policy
        decision = after_exit(policy, outcome, member.history, now, index=member.spec.index)
        member.history = exit_noted(member.history, policy, decision, now)
        match decision:
            case GiveUp("spent"):
                self._events.counters["suppressed"] += 1
                member.rest("suppressed", "restart_cap_exceeded")
                self._events.note(member, "child_suppressed", "no restarts left in this window")
            case GiveUp():
                member.rest("stopped" if outcome == "clean" else "failed")
            case Again(at, delay_ms):
                member.charged, member.trial = True, False
                self._schedule(member, "restart_backoff", at, delay_ms)
                self._restart_siblings(member, at)
            case CircuitOpen(until):
                self._open_circuit(member, until, round((until - now) * 1000))
                self._restart_siblings(member, until)
            case _:
                assert_never(decision)

    def ended_as_told(self, member: SupervisedChild, outcome: Outcome) -> None:
        """Schedule the next start of *member*, which was stopped; not if its mode is `never`.

        A child that returned before it was asked to stop counts as completed.
        """
        lease_lost = member.why == "lease"
        finished = outcome == "clean" and not member.asked and member.spec.policy.mode != "always"
        member.spare()
        if finished:
            self._events.note(member, "child_stopped", "completed")
            member.rest("stopped")
            return
        message = "lease lost" if lease_lost else "propagation restart"
        self._events.note(member, "child_stopped", message)
        if member.spec.policy.mode == "never":
            member.rest("stopped")
            return
        member.charged = member.trial = False
        now = self._now()
        at = now if member.at is None else max(now, member.at)
        reason: WaitReason = "lease" if lease_lost else "propagation_restart"
        self._schedule(member, reason, at, round((at - now) * 1000))

    def _schedule(
        self, member: SupervisedChild, reason: WaitReason, at: float, delay_ms: int
    ) -> None:
        self._events.counters["restarted"] += 1
        member.restart_count += 1
        member.wait(reason, at, self._now_ms() + delay_ms)
        self._events.note(member, "child_restarted", f"scheduled after {delay_ms}ms")

    def _open_circuit(self, member: SupervisedChild, until: float, delay_ms: int) -> None:
        self._events.counters["suppressed"] += 1
        member.restart_count = 0
        member.charged = member.trial = True
        member.wait("circuit_open", until, self._now_ms() + delay_ms)
        self._events.note(member, "child_suppressed", f"circuit open for {delay_ms}ms")

    def _restart_siblings(self, culprit: SupervisedChild, at: float) -> None:
        """Stop the siblings that the strategy names, to start them again with *culprit*."""
        places = affected(self._spec.strategy, culprit.spec.index, len(self._members))
        if len(places) < 2:
            return
        self._batches += 1
        together = [self._members[place] for place in places]
        merged = {member.batch for member in together} - {None}
        now = self._now()
        at_ms = self._now_ms() + round((at - now) * 1000)
        for member in together:
            if member.status in ENDED:
                continue
            member.batch = self._batches
            if member is not culprit:
                self._stop_until(member, at, at_ms, now + self._spec.shutdown)
        for member in self._members:
            if member.batch in merged:
                member.batch = self._batches

    def _stop_until(self, member: SupervisedChild, at: float, at_ms: int, by: float) -> None:
        member.postpone(at, at_ms)
        if member.alive:
            member.condemn("propagation", by)
        elif member.claim is not None:
            member.release_lease()
            member.wait_reason = "propagation_restart"

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def _now_ms(self) -> int:
        return self._runtime.clock.now_ms()

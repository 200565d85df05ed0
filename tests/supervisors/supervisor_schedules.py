"""Random failure schedules for a supervisor, and an oracle that was not asked to supervise.

A schedule is drawn from a seed: a strategy, a few children with policies, and for every life of a
child how long it lasts, how it ends and how it answers to being stopped. The children keep their
own ledger; `check` compares it with the events and with what must always hold.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from harn import Child, ChildContext, Restart, Supervisor, is_cancelled, sleep, supervisor_start
from harn.clock import Clock
from harn.supervisors.restart_policy import affected

STRATEGIES = ("one_for_one", "rest_for_one", "one_for_all", "escalate_to_parent")
TICK = 0.01


@dataclass
class Life:
    child: int
    began: float
    ended: float | None = None
    by_itself: bool = True
    manner: str = "plain"


@dataclass
class Schedule:
    """One supervisor's random world."""

    seed: int
    clock: Clock
    random: random.Random = field(init=False)
    lives: list[Life] = field(default_factory=list)
    """In the order in which they began."""
    over: list[Life] = field(default_factory=list)
    """In the order in which they ended."""
    running: list[int] = field(default_factory=list)
    stop_asked: float = 0.0
    stop_done: float = 0.0
    timeout: float = 0.0
    supervisor: Supervisor = field(init=False)
    restarts: list[Restart] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def over_at(self) -> float:
        """When the supervisor ended, however it did."""
        last = self.supervisor.events()[-1].at_ms
        return self.clock.monotonic() - (self.clock.now_ms() - last) / 1000

    def ticks(self, most: int) -> float:
        return self.random.randint(0, most) * TICK

    async def play(self) -> None:
        draw = self.random
        count = draw.randint(1, 4)
        self.restarts = [self._policy() for _ in range(count)]
        self.running = [0] * count
        manners = [draw.choice(("plain", "polite", "slow", "deaf")) for _ in range(count)]
        self.supervisor = await supervisor_start(
            strategy=cast(Any, draw.choice(STRATEGIES)),
            children=[
                Child(str(n), self._body(n, manners[n]), restart=self.restarts[n])
                for n in range(count)
            ],
            shutdown_ms=draw.choice((0, 20, 100, 300)),
        )
        await sleep(self.ticks(200))
        self.timeout = draw.choice((0.0, 0.05, 0.3, 1.0))
        self.stop_asked = self.clock.monotonic()
        await self.supervisor.stop(self.timeout)
        self.stop_done = self.clock.monotonic()

    def _policy(self) -> Restart:
        draw = self.random
        return Restart(
            mode=draw.choice(("never", "on_failure", "on_failure", "always")),
            max_restarts=draw.choice((None, 0, 1, 2, 3)),
            window_ms=draw.choice((0, 50, 200, 1000)),
            backoff_ms=draw.choice((0, 0, 10, 50)),
            factor=draw.choice((1, 2)),
            jitter_ms=draw.choice((0, 0, 70)),
            max_backoff_ms=draw.choice((40, 400)),
            circuit_open_ms=draw.choice((None, 100, 1000)),
        )

    def _body(self, index: int, manner: str) -> Any:
        async def body(ctx: ChildContext) -> None:
            life = Life(index, self.clock.monotonic(), manner=manner)
            self.lives.append(life)
            self.running[index] += 1
            assert self.running[index] == 1, "the same child runs twice"
            until = self.clock.monotonic() + self.ticks(60)
            fails = self.random.random() < 0.7
            try:
                await self._last(life, until)
                if fails:
                    raise RuntimeError("as drawn")
            finally:
                life.ended = self.clock.monotonic()
                self.over.append(life)
                self.running[index] -= 1

        return body

    async def _last(self, life: Life, until: float) -> None:
        while (left := until - self.clock.monotonic()) > TICK / 2:
            try:
                if life.manner == "polite":
                    await sleep(min(left, TICK))
                    if is_cancelled():
                        life.by_itself = False
                        return
                else:
                    await sleep(left)
            except asyncio.CancelledError:
                life.by_itself = False
                if life.manner == "slow":
                    await sleep(self.ticks(8))
                if life.manner != "deaf":
                    raise
                until = max(until, self.clock.monotonic() + self.ticks(300))


def check(played: Schedule) -> None:
    """Assert what must always hold of *played*."""
    try:
        check_stop(played)
        check_ledger(played)
        check_budgets(played)
        check_batches(played)
        check_delays(played)
    except AssertionError as error:
        error.add_note(f"seed={played.seed} {played.supervisor.strategy} {played.restarts}")
        error.add_note("\n".join(str(event) for event in played.supervisor.events()))
        raise


def check_stop(played: Schedule) -> None:
    took = played.stop_done - played.stop_asked
    assert took <= played.timeout + 1.0, f"stop took {took} of {played.timeout}"
    for life in played.lives:
        assert life.began <= played.stop_done, "a child started after stop"
    late = [life for life in played.over if (life.ended or 0.0) >= played.stop_asked]
    told = [life for life in late if not life.by_itself and (life.ended or 0.0) <= played.stop_done]
    order = [life.child for life in told if life.manner in ("plain", "polite")]
    assert order == sorted(order, reverse=True), f"stopped in the order {order}"
    end = played.over_at()
    for state in played.supervisor.state().children:
        lives = [life for life in played.lives if life.child == int(state.name)]
        if state.status == "abandoned":
            assert lives[-1].ended is None or lives[-1].ended > end - TICK, f"{state}"
        else:
            assert all(life.ended is not None and life.ended < end + TICK for life in lives)


def check_ledger(played: Schedule) -> None:
    starts = [
        int(event.child or 0)
        for event in played.supervisor.events()
        if event.kind in ("child_started", "child_restart_started")
    ]
    # A task that is cancelled before its first step has started and never lived.
    assert Counter(life.child for life in played.lives) <= Counter(starts)
    first = list(dict.fromkeys(life.child for life in played.lives))
    assert first == sorted(first), f"first started in the order {first}"


def check_budgets(played: Schedule) -> None:
    for index, restart in enumerate(played.restarts):
        policy = restart.policy
        own, trials = own_restarts(played, index)
        if policy.max_restarts is not None and policy.window * 1000:
            # A trial comes exactly when the circuit closes, even into a window that is still full.
            early_trials = (policy.circuit or 0) < policy.window
            spare_trials = early_trials or policy.max_restarts == 0
            counted = [at for at in own if at not in trials] if spare_trials else own
            for early, late in zip(counted, counted[policy.max_restarts :], strict=False):
                assert late - early >= policy.window * 1000, f"child {index}: {counted}"
        if policy.mode == "never":
            assert len([life for life in played.lives if life.child == index]) == 1


def own_restarts(played: Schedule, index: int) -> tuple[list[int], list[int]]:
    """When child *index* was restarted for its own exit, and which of these were trials."""
    own, trials, why = [], [], ""
    for event in played.supervisor.events():
        if event.child != str(index):
            continue
        if event.kind == "child_stopped" and event.message == "propagation restart":
            why = "propagation"
        elif event.kind in ("child_failed", "child_stopped"):
            why = "own"
        elif event.kind == "child_suppressed":
            why = "trial"
        elif event.kind == "child_restart_started" and why != "propagation":
            own.append(event.at_ms)
            if why == "trial":
                trials.append(event.at_ms)
    return own, trials


def check_delays(played: Schedule) -> None:
    """A restart comes when it was announced; with siblings to wait for, not before."""
    alone = played.supervisor.strategy == "one_for_one"
    due: dict[str, int] = {}
    for event in played.supervisor.events():
        name = event.child or ""
        if found := re.search(r"(?:scheduled after|circuit open for) (\d+)ms", event.message):
            due[name] = event.at_ms + int(found[1])
            if event.kind == "child_suppressed":
                assert int(found[1]) == played.restarts[int(name)].circuit_open_ms
        elif event.kind == "child_restart_started":
            late = event.at_ms - due.pop(name)
            assert -1 <= late and (late <= 1 or not alone), f"{event} is {late} ms late"


def check_batches(played: Schedule) -> None:
    """A sibling of a batch starts only when all have ended, and only they were stopped."""
    strategy, count = played.supervisor.strategy, len(played.restarts)
    started: dict[int, int] = {}
    alive: set[int] = set()
    culprits: list[tuple[int, int]] = []
    previous: dict[int, str] = {}
    for event in played.supervisor.events():
        if event.child is None:
            continue
        child = int(event.child)
        if event.kind in ("child_started", "child_restart_started"):
            for seq, culprit in culprits:
                together = affected(strategy, culprit, count)
                if child in together and seq > started.get(child, -1):
                    late = [k for k in alive if k in together and started[k] < seq]
                    assert not late, f"{event} while {late} of the batch still run"
            started[child] = event.seq
            alive.add(child)
        elif event.kind in ("child_stopped", "child_failed"):
            alive.discard(child)
            if event.message == "propagation restart":
                assert any(
                    seq > started[child]
                    and child != culprit
                    and child in affected(strategy, culprit, count)
                    for seq, culprit in culprits
                ), f"{event} for no reason"
        restarts = event.kind == "child_restarted" or "circuit" in event.message
        if restarts and previous.get(child) != "propagation restart":
            culprits.append((event.seq, child))
        previous[child] = event.message

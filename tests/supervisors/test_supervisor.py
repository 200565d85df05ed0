"""A supervisor through its front door, in virtual time."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from harn import (
    ChildContext,
    HarnError,
    Runtime,
    Supervisor,
    event_log_read,
    runtime_context,
    sleep,
)
from harn.supervisors import Child, Restart, Supervisors, supervisor_start
from harn.tasks import is_cancelled
from harn.telemetry.metrics import Metrics
from harn.testing import FakeClock, fresh_runtime
from tests.fake_clock import fake_clock


async def forever(ctx: ChildContext) -> None:
    await asyncio.get_running_loop().create_future()


async def polite(ctx: ChildContext) -> None:
    while not is_cancelled():
        await sleep("10ms")


async def boom(ctx: ChildContext) -> None:
    raise RuntimeError("boom")


def kinds(sup: Supervisor) -> list[str]:
    return [event.kind for event in sup.events()]


def told(sup: Supervisor) -> list[tuple[str | None, str]]:
    return [(event.child, event.kind) for event in sup.events()]


class Stage:
    """Children whose lives a test directs, and a ledger of what they did."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.alive: set[str] = set()
        self.ends: dict[str, asyncio.Future[None]] = {}

    def child(self, name: str, **options: Any) -> Child:
        return Child(name, self._live, **options)

    async def _live(self, ctx: Any) -> None:
        name = ctx.child_name
        assert name not in self.alive, f"{name} runs twice"
        self.alive.add(name)
        self.ledger.append(f"+{name}")
        end = self.ends[name] = asyncio.get_running_loop().create_future()
        try:
            await end
        finally:
            self.alive.discard(name)
            self.ledger.append(f"-{name}")

    def fail(self, name: str) -> None:
        self.ends[name].set_exception(RuntimeError(f"{name} failed"))

    def finish(self, name: str) -> None:
        self.ends[name].set_result(None)

    def told(self) -> list[str]:
        said, self.ledger = self.ledger, []
        return said


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_child_that_fails_is_started_again(runtime: Runtime, clock: FakeClock) -> None:
    seen = []

    async def work(ctx: ChildContext) -> None:
        seen.append((ctx.supervisor_id, ctx.child_name, ctx.child_kind, ctx.attempt))
        assert ctx.restart_count == ctx.attempt - 1
        if ctx.attempt < 3:
            raise RuntimeError("not yet")

    sup = await supervisor_start(children=[Child("worker", work, kind="loop")])
    state = await sup.wait()

    assert seen == [("supervisor_1", "worker", "loop", n) for n in (1, 2, 3)]
    assert state.status == "completed"
    assert state.children[0].restart_count == 2
    assert kinds(sup) == [
        "supervisor_started",
        "child_started",
        *["child_failed", "child_restarted", "child_restart_started"] * 2,
        "child_stopped",
        "supervisor_completed",
    ]


async def test_state_and_events_have_the_shapes_of_the_facts(runtime: Runtime) -> None:
    sup = await supervisor_start(
        name="streams",
        children=[Child("a", boom, restart=Restart(backoff_ms=10, jitter_ms=3))],
    )
    await fake_clock(runtime).settle()

    assert sup.state().as_dict() == {
        "_type": "supervisor_state",
        "id": "supervisor_1",
        "name": "streams",
        "status": "running",
        "strategy": "one_for_one",
        "metrics": {
            "started": 1,
            "stopped": 0,
            "failed": 1,
            "restarted": 1,
            "suppressed": 0,
            "escalated": 0,
        },
        "children": [
            {
                "name": "a",
                "kind": "task",
                "status": "waiting",
                "restart_count": 1,
                "last_error": "RuntimeError: boom",
                "current_wait_reason": "restart_backoff",
                "active_lease": None,
                "next_restart_time": runtime.clock.now_ms() + 13,
            }
        ],
    }
    assert [event.seq for event in sup.events()] == [0, 1, 2, 3]
    assert sup.events()[3].as_dict() == {
        "seq": 3,
        "at_ms": runtime.clock.now_ms(),
        "supervisor_id": "supervisor_1",
        "child": "a",
        "kind": "child_restarted",
        "message": "scheduled after 13ms",
    }


async def test_delays_grow_as_the_formula_says(runtime: Runtime, clock: FakeClock) -> None:
    starts = []

    async def work(ctx: ChildContext) -> None:
        starts.append(clock.now_ms())
        raise RuntimeError

    policy = Restart(backoff_ms=10, max_backoff_ms=40, jitter_ms=3)
    await supervisor_start(children=[Child("a", work, restart=policy)])
    await clock.advance("122ms")

    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert gaps == [13, 23, 43, 43]


async def test_a_clean_exit_clears_the_last_error(runtime: Runtime, clock: FakeClock) -> None:
    async def work(ctx: ChildContext) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("first")

    sup = await supervisor_start(children=[Child("a", work)])
    state = await sup.wait()

    assert state.children[0].last_error is None
    assert (state.metrics.failed, state.metrics.stopped) == (1, 1)


async def test_a_failed_child_is_logged_with_its_traceback(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    sup = await supervisor_start(
        name="s", children=[Child("c", boom, restart=Restart(mode="never"))]
    )
    await sup.wait()

    [line] = [record for record in caplog.records if record.name == "harn.supervisors"]
    assert line.levelno == logging.WARNING
    assert "child 'c' failed: RuntimeError: boom" in line.getMessage()
    assert line.exc_info and line.exc_info[0] is RuntimeError


async def test_never_leaves_a_failed_child_failed(runtime: Runtime) -> None:
    sup = await supervisor_start(children=[Child("a", boom)], restart="never")
    state = await sup.wait()

    assert (state.status, state.children[0].status) == ("completed", "failed")
    assert state.metrics.restarted == 0


async def test_always_brings_back_a_child_that_finished(runtime: Runtime, clock: FakeClock) -> None:
    lives = []

    async def work(ctx: ChildContext) -> None:
        lives.append(ctx.attempt)

    policy = Restart(mode="always", max_restarts=3, backoff_ms="1s", factor=1)
    sup = await supervisor_start(children=[Child("a", work, restart=policy)])
    await clock.advance("10s")

    assert lives == [1, 2, 3, 4]
    assert sup.state().children[0].status == "suppressed"


async def test_a_spent_budget_suppresses_the_child(runtime: Runtime) -> None:
    sup = await supervisor_start(children=[Child("a", boom)], restart={"max_restarts": 2})
    state = await sup.wait()

    [child] = state.children
    assert (child.status, child.current_wait_reason) == ("suppressed", "restart_cap_exceeded")
    assert (state.metrics.started, state.metrics.restarted, state.metrics.suppressed) == (3, 2, 1)
    assert kinds(sup)[-2:] == ["child_suppressed", "supervisor_completed"]


async def test_U1_an_open_circuit_closes_after_exactly_its_time(
    runtime: Runtime, clock: FakeClock
) -> None:
    starts = []

    async def work(ctx: ChildContext) -> None:
        starts.append((clock.now_ms() - began, ctx.attempt))
        if len(starts) < 3:
            raise RuntimeError
        await forever(ctx)

    began = clock.now_ms()
    policy = Restart(max_restarts=1, window_ms="10s", circuit_open_ms="5m")
    sup = await supervisor_start(children=[Child("a", work, restart=policy)])
    await clock.settle()
    [child] = sup.state().children

    assert (child.status, child.current_wait_reason) == ("circuit_open", "circuit_open")
    assert child.next_restart_time == began + 300_000
    assert child.restart_count == 0
    await clock.advance("5m")
    assert starts == [(0, 1), (0, 2), (300_000, 2)]
    assert sup.state().children[0].status == "running"


async def test_a_child_that_fails_its_trial_opens_the_circuit_again(
    runtime: Runtime, clock: FakeClock
) -> None:
    policy = Restart(max_restarts=1, window_ms="10s", circuit_open_ms="1m")
    sup = await supervisor_start(children=[Child("a", boom, restart=policy)])
    await clock.advance("1m")

    assert sup.state().children[0].status == "circuit_open"
    assert sup.state().metrics.started == 3


async def test_children_start_from_the_left_and_stop_from_the_right(
    runtime: Runtime, stage: Stage
) -> None:
    sup = await supervisor_start(children=[stage.child(n) for n in "abc"])
    await fake_clock(runtime).settle()
    state = await sup.stop(timeout=0)

    assert stage.told() == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert [child.status for child in state.children] == ["stopped"] * 3
    assert told(sup)[-5:] == [
        (None, "supervisor_stopping"),
        ("c", "child_stopped"),
        ("b", "child_stopped"),
        ("a", "child_stopped"),
        (None, "supervisor_stopped"),
    ]
    assert sup.events()[-1].message == "forced"


async def test_children_that_look_whether_to_stop_drain_one_after_the_other(
    runtime: Runtime, clock: FakeClock
) -> None:
    sup = await supervisor_start(children=[Child(n, polite) for n in "abc"])
    await clock.settle()

    stopping = asyncio.ensure_future(sup.stop())
    await clock.advance("100ms")
    state = await stopping

    assert [event.child for event in sup.events() if event.kind == "child_stopped"] == list("cba")
    assert sup.events()[-1].message == "drained"
    assert (state.status, state.metrics.stopped) == ("stopped", 3)


@pytest.mark.parametrize(
    ("strategy", "told_by_stage"),
    [
        ("one_for_one", ["-b", "+b"]),
        ("rest_for_one", ["-b", "-d", "-c", "+b", "+c", "+d"]),
        ("one_for_all", ["-b", "-d", "-c", "-a", "+a", "+b", "+c", "+d"]),
    ],
)
async def test_U3_a_strategy_restarts_exactly_its_set_in_order(
    runtime: Runtime, clock: FakeClock, stage: Stage, strategy: Any, told_by_stage: list[str]
) -> None:
    sup = await supervisor_start(
        strategy=strategy, children=[stage.child(n) for n in "abcd"], shutdown_ms=0
    )
    await clock.settle()
    stage.told()

    stage.fail("b")
    await clock.settle()

    assert stage.told() == told_by_stage
    assert {child.status for child in sup.state().children} == {"running"}


async def test_siblings_wait_for_the_culprits_delay_and_come_back_unless_never(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    sup = await supervisor_start(
        strategy="one_for_all",
        children=[
            stage.child("a", restart="on_failure"),
            stage.child("b", restart="never"),
            stage.child("c", restart=Restart(backoff_ms="10s")),
        ],
        shutdown_ms=0,
    )
    await clock.settle()
    stage.fail("c")
    await clock.settle()

    a, b, c = sup.state().children
    assert (a.status, a.current_wait_reason) == ("waiting", "propagation_restart")
    assert (b.status, b.current_wait_reason) == ("stopped", None)
    assert (c.status, c.current_wait_reason) == ("waiting", "restart_backoff")
    assert a.next_restart_time == c.next_restart_time
    assert ("a", "child_stopped", "propagation restart") in [
        (event.child, event.kind, event.message) for event in sup.events()
    ]
    stage.told()
    await clock.advance("10s")
    assert stage.told() == ["+a", "+c"]


async def test_a_sibling_that_has_finished_stays_finished(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    sup = await supervisor_start(
        strategy="one_for_all", children=[stage.child(n) for n in "abc"], shutdown_ms=0
    )
    await clock.settle()
    stage.finish("a")
    await clock.settle()
    stage.told()

    stage.fail("b")
    await clock.settle()

    assert stage.told() == ["-b", "-c", "+b", "+c"]
    assert sup.state().child("a").status == "stopped"


async def test_two_failures_at_once_make_one_batch(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    await supervisor_start(
        strategy="one_for_all", children=[stage.child(n) for n in "abc"], shutdown_ms=0
    )
    await clock.settle()
    stage.told()

    stage.fail("a")
    stage.fail("c")
    await clock.settle()

    assert stage.told() == ["-a", "-c", "-b", "+a", "+b", "+c"]


async def test_a_failure_on_the_left_joins_a_batch_that_waits(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    await supervisor_start(
        strategy="rest_for_one",
        children=[
            stage.child("a", restart=Restart(backoff_ms="2s")),
            stage.child("b", restart=Restart(backoff_ms="5s")),
            stage.child("c"),
        ],
        shutdown_ms=0,
    )
    await clock.settle()
    stage.fail("b")
    await clock.settle()
    stage.fail("a")
    await clock.settle()
    stage.told()

    await clock.advance("2s")
    assert stage.told() == ["+a"]
    await clock.advance("3s")
    assert stage.told() == ["+b", "+c"]


async def test_U5_a_restart_waits_until_the_old_one_has_really_ended(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    gone = asyncio.Event()

    async def stubborn(ctx: ChildContext) -> None:
        stage.ledger.append("+s")
        try:
            await forever(ctx)
        except asyncio.CancelledError:
            await gone.wait()
            stage.ledger.append("-s")
            raise

    sup = await supervisor_start(
        strategy="one_for_all", children=[stage.child("a"), Child("s", stubborn)], shutdown_ms=0
    )
    await clock.settle()
    stage.fail("a")
    await clock.advance("1h")
    assert stage.told() == ["+a", "+s", "-a"]
    assert sup.state().child("s").status == "draining"

    gone.set()
    await clock.settle()

    assert stage.told() == ["-s", "+a", "+s"]


async def test_U4_stop_returns_in_time_whatever_the_children_do(
    runtime: Runtime, clock: FakeClock
) -> None:
    released = asyncio.Event()

    async def deaf(ctx: ChildContext) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass

    children = [Child(f"deaf{n}", deaf) for n in range(5)]
    sup = await supervisor_start(children=[*children, Child("polite", polite)])
    await clock.settle()
    began = clock.monotonic()
    stopping = asyncio.ensure_future(sup.stop("3s"))
    while not stopping.done():
        await clock.advance("50ms")
    state = await stopping

    assert clock.monotonic() - began <= 4.0
    assert [child.status for child in state.children] == ["abandoned"] * 5 + ["stopped"]
    assert state.status == "stopped"
    assert kinds(sup).count("child_abandoned") == 5
    released.set()
    await clock.settle()
    assert await sup.stop() is state


async def test_a_thread_that_does_not_stop_is_abandoned_and_never_called_stopped() -> None:
    release, entered = threading.Event(), threading.Event()

    def stuck(ctx: ChildContext) -> None:
        entered.set()
        release.wait(20)

    async with Runtime():
        sup = await supervisor_start(children=[Child("stuck", stuck)])
        await asyncio.to_thread(entered.wait, 5)
        state = await sup.stop(timeout=0)

        assert state.children[0].status == "abandoned"
        assert "harn-worker" in sup.events()[-2].message
        release.set()
    assert sup.state().children[0].status == "abandoned"


async def test_a_plain_function_runs_on_a_thread_and_sees_that_it_is_to_stop() -> None:
    seen, entered = [], threading.Event()

    def work(ctx: ChildContext) -> None:
        seen.append(threading.current_thread().name)
        seen.append(runtime_context().task_name)
        entered.set()
        while not is_cancelled():
            threading.Event().wait(0.001)

    async with Runtime():
        sup = await supervisor_start(children=[Child("loop", work)])
        await asyncio.to_thread(entered.wait, 5)
        state = await sup.stop("10s")

    assert seen[0].startswith("harn-worker")
    assert seen[1] == "loop"
    assert (state.children[0].status, sup.events()[-1].message) == ("stopped", "drained")


async def test_a_stubborn_child_does_not_take_the_time_of_a_polite_one(
    runtime: Runtime, clock: FakeClock
) -> None:
    sup = await supervisor_start(children=[Child("polite", polite), Child("sleeper", forever)])
    await clock.settle()
    stopping = asyncio.ensure_future(sup.stop("2s"))
    await clock.advance("2s")
    await stopping

    messages = {e.child: e.message for e in sup.events() if e.kind == "child_stopped"}
    assert messages == {"sleeper": "forced", "polite": "drained"}


async def test_a_second_stop_hurries_the_first(runtime: Runtime, clock: FakeClock) -> None:
    sup = await supervisor_start(children=[Child("a", forever)])
    await clock.settle()
    first = asyncio.ensure_future(sup.stop("1h"))
    await clock.settle()
    assert not first.done()

    state = await sup.stop(timeout=0)

    assert await first is state


async def test_nothing_is_restarted_after_stop(runtime: Runtime, clock: FakeClock) -> None:
    lives = []

    async def work(ctx: ChildContext) -> None:
        lives.append(ctx.attempt)
        raise RuntimeError

    sup = await supervisor_start(children=[Child("a", work, restart=Restart(backoff_ms="1s"))])
    await clock.settle()
    state = await sup.stop()
    await clock.advance("1h")

    assert lives == [1]
    assert state.children[0].status == "stopped"
    assert state.children[0].next_restart_time is None


async def test_an_escalation_fails_the_child_that_started_the_supervisor(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    outer = await supervisor_start(
        children=[
            Child(
                "inner",
                lambda ctx: supervisor_start(
                    name="inner",
                    strategy="escalate_to_parent",
                    children=[stage.child("a"), stage.child("b")],
                    shutdown_ms=0,
                ),
                kind="supervisor",
            )
        ],
        restart=Restart(backoff_ms="1s"),
    )
    while len(stage.ledger) < 2:
        await clock.settle()
        await asyncio.sleep(0.001)
    stage.fail("b")
    await clock.settle()

    assert stage.told() == ["+a", "+b", "-b", "-a"]
    [inner] = outer.state().children
    assert (inner.status, inner.restart_count) == ("waiting", 1)
    assert "b failed" in (inner.last_error or "")
    before = runtime_context().debug.supervisors[0]
    assert (before.name, before.status, before.metrics.escalated) == ("inner", "escalated", 1)


async def test_an_escalation_without_a_parent_ends_the_supervisor(
    runtime: Runtime, clock: FakeClock, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    sup = await supervisor_start(
        strategy="escalate",  # type: ignore[arg-type]
        children=[stage.child(n) for n in "ab"],
        shutdown_ms=0,
    )
    await clock.settle()
    stage.fail("a")
    with caplog.at_level(logging.ERROR, "harn.supervisors"):
        state = await sup.wait()

    assert state.status == "escalated"
    assert [child.status for child in state.children] == ["failed", "stopped"]
    assert kinds(sup)[-4:] == [
        "child_failed",
        "child_escalated",
        "child_stopped",
        "supervisor_stopped",
    ]
    assert "a failed" in caplog.text


async def test_an_inner_supervisor_drains_in_the_time_of_its_parent(
    runtime: Runtime, clock: FakeClock
) -> None:
    inner = []

    async def nest(ctx: ChildContext) -> None:
        inner.append(await supervisor_start(children=[Child("x", polite), Child("y", polite)]))
        await inner[0].wait()

    outer = await supervisor_start(children=[Child("nest", nest), Child("z", polite)])
    await clock.settle()
    stopping = asyncio.ensure_future(outer.stop("2s"))
    await clock.advance("1s")
    state = await stopping

    assert [child.status for child in state.children] == ["stopped", "stopped"]
    assert outer.events()[-1].message == "drained"
    assert inner[0].state().status == "stopped"
    assert inner[0].events()[-1].message == "drained"


async def test_U4_holds_for_a_tree(runtime: Runtime, clock: FakeClock) -> None:
    released = asyncio.Event()

    async def deaf(ctx: ChildContext) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass

    async def nest(ctx: ChildContext) -> None:
        inner = await supervisor_start(children=[Child("x", deaf), Child("y", deaf)])
        await inner.wait()

    outer = await supervisor_start(children=[Child(n, nest) for n in "abc"])
    await clock.settle()
    began = clock.monotonic()
    stopping = asyncio.ensure_future(outer.stop("2s"))
    while not stopping.done():
        await clock.advance("20ms")

    assert clock.monotonic() - began <= 3.0
    inner = [s for s in runtime_context().debug.supervisors if s.id != outer.id]
    assert {child.status for state in inner for child in state.children} == {"abandoned"}
    released.set()


async def test_an_inner_supervisor_ends_with_the_child_that_started_it(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    async def nest(ctx: ChildContext) -> None:
        await supervisor_start(children=[stage.child("x")], shutdown_ms=0)
        await asyncio.sleep(0)
        raise RuntimeError

    outer = await supervisor_start(children=[Child("nest", nest)], restart={"max_restarts": 1})
    await outer.wait()

    assert stage.told() == ["+x", "-x", "+x", "-x"]


async def test_leaving_the_runtime_stops_every_supervisor(stage: Stage) -> None:
    async with fresh_runtime():
        sup = await supervisor_start(children=[stage.child(n) for n in "abc"])
        await asyncio.sleep(0)

    assert stage.told() == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert sup.state().status == "stopped"


async def test_a_runtime_that_is_left_takes_no_more_supervisors() -> None:
    refused = []

    async def late() -> None:
        try:
            await supervisor_start(children=[Child("a", forever)])
        except HarnError as error:
            refused.append(error)

    async with fresh_runtime() as runtime:
        runtime.at_exit.append(late)

    assert len(refused) == 1


async def test_events_are_on_the_topic_too(runtime: Runtime) -> None:
    sup = await supervisor_start(children=[Child("a", boom)], restart="never")
    await sup.wait()

    records = await event_log_read("supervisor.lifecycle")

    assert [record.kind for record in records] == kinds(sup)
    assert records[1].payload == {
        "seq": 1,
        "supervisor_id": sup.id,
        "child": "a",
        "message": "attempt 1",
    }


async def test_tools_see_every_supervisor(runtime: Runtime) -> None:
    one = await supervisor_start(name="one", children=[Child("a", forever)])
    two = await supervisor_start(name="two", children=[Child("a", forever)])

    assert runtime_context().debug.supervisors == [one.state(), two.state()]
    assert runtime_context().as_dict()["debug"]["supervisors"][0]["name"] == "one"


async def test_metrics_count_without_names(runtime: Runtime) -> None:
    await supervisor_start(
        name="secret", children=[Child("a", boom), Child("b", forever)], restart={"max_restarts": 2}
    )
    await fake_clock(runtime).settle()

    text = runtime.service(Metrics).exposition()

    assert "harn_supervisors 1.0" in text
    assert 'harn_supervisor_children{status="running"} 1.0' in text
    assert 'harn_supervisor_children{status="suppressed"} 1.0' in text
    assert 'harn_supervisor_events_total{event="restarted"} 2.0' in text
    assert "secret" not in text


async def test_what_a_child_raises_harms_only_that_child(runtime: Runtime) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def nasty(ctx: ChildContext) -> None:
        raise Nasty

    async def leaving(ctx: ChildContext) -> None:
        raise SystemExit(3)

    async def cancels_itself(ctx: ChildContext) -> None:
        raise asyncio.CancelledError

    sup = await supervisor_start(
        children=[Child("a", nasty), Child("b", leaving), Child("c", cancels_itself)],
        restart="never",
    )
    state = await sup.wait()

    assert [child.status for child in state.children] == ["failed"] * 3
    assert [child.last_error for child in state.children] == [
        "Nasty: (its message cannot be shown)",
        "HarnError: the child called sys.exit(3)",
        "TaskCancelled: task task_root:supervisor:1:child:3 was cancelled",
    ]


async def test_a_child_may_stop_its_own_supervisor(runtime: Runtime, clock: FakeClock) -> None:
    async def suicidal(ctx: ChildContext) -> None:
        await sup.stop(timeout=0)

    sup = await supervisor_start(children=[Child("a", forever), Child("b", suicidal)])
    state = await sup.wait()

    assert [child.status for child in state.children] == ["stopped", "stopped"]


async def test_a_value_that_a_child_returns_is_told(runtime: Runtime) -> None:
    async def work(ctx: ChildContext) -> dict[str, int]:
        return {"done": 3}

    sup = await supervisor_start(children=[Child("a", work)])
    await sup.wait()

    assert [e.message for e in sup.events() if e.kind == "child_output"] == ["{'done': 3}"]


async def test_the_log_has_a_returned_text_that_utf_8_cannot_encode(tmp_path: Path) -> None:
    async def work(ctx: ChildContext) -> str:
        return "done \ud800"

    async with Runtime(state_dir=tmp_path):
        sup = await supervisor_start(children=[Child("a", work)])
        await sup.wait()
        logged = await event_log_read("supervisor.lifecycle")

    assert [e.payload["message"] for e in logged if e.kind == "child_output"] == ["done ?"]


async def test_context_is_inherited_from_the_task_that_started_the_supervisor() -> None:
    seen = []

    async def work(ctx: ChildContext) -> None:
        context = runtime_context()
        seen.append((context.tenant_id, context.context_values, context.task_name))
        if ctx.attempt == 1:
            raise RuntimeError

    from harn import runtime_context_set

    async with fresh_runtime(tenant_id="acme"):
        runtime_context_set("colour", "blue")
        sup = await supervisor_start(children=[Child("w", work)])
        runtime_context_set("colour", "red")
        await sup.wait()

    assert seen == [("acme", {"colour": "blue"}, "w")] * 2


async def test_nothing_is_left_of_many_supervisors_that_ended(runtime: Runtime) -> None:
    for _ in range(150):
        sup = await supervisor_start(children=[Child("a", boom)], restart="never")
        await sup.wait()

    registry = runtime.service(Supervisors)
    assert not registry._live
    assert not registry._children
    assert len(runtime_context().debug.supervisors) == 100


async def test_a_restarted_child_sees_the_contextvars_of_the_start() -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")
    seen = []

    async def work(ctx: ChildContext) -> None:
        seen.append(colour.get("none"))
        colour.set("green")
        if ctx.attempt < 3:
            raise RuntimeError

    async with fresh_runtime():
        colour.set("blue")
        sup = await supervisor_start(children=[Child("w", work)])
        colour.set("red")
        await sup.wait()

    assert seen == ["blue", "blue", "blue"]


async def test_what_was_abandoned_still_belongs_to_the_runtime() -> None:
    clock = FakeClock()
    said = []

    async def slow_to_leave(ctx: ChildContext) -> None:
        try:
            await forever(ctx)
        except asyncio.CancelledError:
            said.append("in a moment")
        try:
            await forever(ctx)
        finally:
            said.append("gone")

    async with fresh_runtime(clock=clock):
        sup = await supervisor_start(children=[Child("a", slow_to_leave)])
        await clock.settle()
        stopping = asyncio.ensure_future(sup.stop(timeout=0))
        await clock.advance("1s")
        assert (await stopping).children[0].status == "abandoned"
        assert said == ["in a moment"]

    assert said == ["in a moment", "gone"]


async def test_a_sibling_that_finishes_before_it_is_asked_has_finished(
    runtime: Runtime, clock: FakeClock, stage: Stage
) -> None:
    sup = await supervisor_start(
        strategy="one_for_all", children=[stage.child(n) for n in "abc"], shutdown_ms=0
    )
    await clock.settle()
    stage.fail("a")
    stage.finish("b")
    await clock.settle()

    assert [child.status for child in sup.state().children] == ["running", "stopped", "running"]

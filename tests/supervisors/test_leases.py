"""Children that run in one place at a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Child,
    ChildContext,
    Lease,
    Runtime,
    StorageBusy,
    Supervisor,
    current_runtime,
    sleep,
    supervisor_start,
)
from harn.clock import SystemClock, Timer
from harn.storage import Store
from harn.storage.leases import TakenLease, release_lease, take_lease
from harn.testing import FakeClock

CAPTAIN = Lease("captain", ttl_ms="10s")


class Watch:
    """A child that holds the watch, and who else is told."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.on_duty: set[str] = set()

    async def start(self, name: str, **options: Any) -> Supervisor:
        async def body(ctx: ChildContext) -> None:
            assert not self.on_duty, f"{self.on_duty} is still on duty"
            self.on_duty.add(name)
            self.ledger.append(f"+{name}{ctx.lease_epoch}")
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.on_duty.discard(name)
                self.ledger.append(f"-{name}{ctx.lease_epoch}")

        child = Child("captain", body, **{"active_lease": CAPTAIN, **options})
        return await supervisor_start(name=name, children=[child], shutdown_ms=0)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@contextlib.asynccontextmanager
async def ashore(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Runtime]:
    """Open a runtime on a store and clock that others may have, too."""
    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite", clock=clock) as runtime:
        yield runtime


async def test_U6_the_second_waits_and_takes_over_when_the_first_stops(
    tmp_path: Path, clock: FakeClock, watch: Watch
) -> None:
    async with ashore(tmp_path, clock):
        first = await watch.start("a")
        await clock.settle()
        async with ashore(tmp_path, clock):
            second = await watch.start("b")
            await clock.advance("1h")
            [waiting] = second.state().children

            assert watch.ledger == ["+a1"]
            assert (waiting.status, waiting.current_wait_reason) == ("waiting", "lease")
            assert waiting.active_lease == "captain"
            await first.stop()
            await clock.advance("500ms")
            assert watch.ledger == ["+a1", "-a1", "+b2"]
            assert second.state().children[0].status == "running"


async def test_a_lease_in_memory_is_exclusive_within_the_process(
    runtime: Runtime, clock: FakeClock, watch: Watch
) -> None:
    first = await watch.start("a")
    await watch.start("b")
    await clock.advance("1m")
    await first.stop()
    await clock.advance("1s")

    assert watch.ledger == ["+a1", "-a1", "+b2"]


async def test_U6_a_child_whose_lease_was_taken_over_is_cancelled_and_waits(
    runtime: Runtime, clock: FakeClock, watch: Watch
) -> None:
    sup = await watch.start("a")
    await clock.settle()
    store = runtime.service(Store)
    await store.run(lambda: release_lease("captain", 1))
    await store.run(lambda: take_lease("captain", "thief", 60_000))

    await clock.advance("4s")

    assert watch.ledger == ["+a1", "-a1"]
    [child] = sup.state().children
    assert (child.status, child.current_wait_reason) == ("waiting", "lease")
    assert ("child_stopped", "lease lost") in [(e.kind, e.message) for e in sup.events()]
    await clock.advance("60s")
    assert watch.ledger == ["+a1", "-a1", "+a3"]


async def test_U6_a_lease_that_cannot_be_renewed_is_lost_before_it_ends(
    runtime: Runtime, clock: FakeClock, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch.start("a")
    await clock.settle()
    store = runtime.service(Store)
    run = store.run

    async def out_of_reach(*args: Any, **options: Any) -> None:
        raise StorageBusy("out of reach")

    monkeypatch.setattr(store, "run", out_of_reach)
    await clock.advance("8.9s")
    assert watch.on_duty == {"a"}
    await clock.advance("200ms")

    assert watch.on_duty == set()
    monkeypatch.setattr(store, "run", run)
    await clock.advance("1s")
    assert watch.ledger == ["+a1", "-a1", "+a2"]


async def test_U6_a_lease_counts_from_when_its_renewal_was_asked_for(
    runtime: Runtime, clock: FakeClock, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch.start("a")
    await clock.settle()
    store = runtime.service(Store)
    answers: list[Any] = []
    run = store.run

    async def slow_once(*args: Any, **options: Any) -> Any:
        if answers:
            raise StorageBusy("out of reach")
        answers.append(await run(*args, **options))  # at 3.3 s, for 10 s
        await sleep("3s")
        return answers[0]

    monkeypatch.setattr(store, "run", slow_once)
    await clock.advance("12.2s")
    assert watch.on_duty == {"a"}
    await clock.advance("300ms")

    assert watch.on_duty == set()
    monkeypatch.setattr(store, "run", run)
    await clock.settle()


async def test_a_store_that_comes_back_in_time_keeps_the_lease(
    runtime: Runtime, clock: FakeClock, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch.start("a")
    await clock.settle()
    store = runtime.service(Store)
    run = store.run

    async def out_of_reach(*args: Any, **options: Any) -> None:
        raise StorageBusy("out of reach")

    monkeypatch.setattr(store, "run", out_of_reach)
    await clock.advance("7s")
    monkeypatch.setattr(store, "run", run)
    await clock.advance("1h")

    assert watch.ledger == ["+a1"]


async def test_the_lease_is_given_back_between_two_lives(
    runtime: Runtime, clock: FakeClock
) -> None:
    epochs = []

    async def work(ctx: ChildContext) -> None:
        epochs.append(ctx.lease_epoch)
        if len(epochs) < 3:
            raise RuntimeError

    sup = await supervisor_start(children=[Child("a", work, active_lease=CAPTAIN)])
    await clock.advance("2s")

    assert epochs == [1, 2, 3]
    assert sup.state().status == "completed"


async def test_stopping_while_waiting_for_a_lease_leaves_no_trace(
    runtime: Runtime, clock: FakeClock, watch: Watch
) -> None:
    first = await watch.start("a")
    second = await watch.start("b")
    await clock.settle()
    state = await second.stop()
    await first.stop()
    await clock.advance("1m")

    assert state.children[0].status == "stopped"
    assert watch.ledger == ["+a1", "-a1"]


async def test_a_child_without_never_comes_back_but_never_means_never(
    runtime: Runtime, clock: FakeClock, watch: Watch
) -> None:
    sup = await watch.start("a", restart="never")
    await clock.settle()
    await runtime.service(Store).run(lambda: release_lease("captain", 1))
    await clock.advance("1m")

    assert watch.ledger == ["+a1", "-a1"]
    assert sup.state().status == "completed"


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_leases_are_renewed_on_a_thread_of_their_own_in_real_time(
    tmp_path: Path, watch: Watch, scheme: str
) -> None:
    url = f"{scheme}:///{tmp_path}/store"
    async with Runtime(storage=url):
        first = await watch.start("a")
        while not watch.ledger:
            await asyncio.sleep(0.005)
        assert "harn-heartbeat" in {thread.name for thread in threading.enumerate()}
        second = await watch.start("b")
        while second.state().children[0].current_wait_reason != "lease":
            await asyncio.sleep(0.005)
        await first.stop()
        while len(watch.ledger) < 3:
            await asyncio.sleep(0.005)
    assert watch.ledger == ["+a1", "-a1", "+b2", "-b2"]
    assert "harn-heartbeat" not in {thread.name for thread in threading.enumerate()}


class ShiftedClock:
    """A program's own clock, whose seconds count from another moment than the system's."""

    is_fake = False

    def __init__(self) -> None:
        self._system = SystemClock()
        self.activity = self._system.activity

    def now_ms(self) -> int:
        return self._system.now_ms()

    def monotonic(self) -> float:
        return self._system.monotonic() - 1000.0

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        return self._system.call_at(when + 1000.0, wake, background=background)


async def test_a_lease_is_waited_for_in_the_time_of_its_renewals(
    tmp_path: Path, watch: Watch
) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite", clock=ShiftedClock()):
        first = await watch.start("a")
        while not watch.ledger:
            await asyncio.sleep(0.005)
        second = await watch.start("b")
        while second.state().children[0].current_wait_reason != "lease":
            await asyncio.sleep(0.005)
        await first.stop()
        async with asyncio.timeout(20):
            while len(watch.ledger) < 3:
                await asyncio.sleep(0.005)

    assert watch.ledger == ["+a1", "-a1", "+b2", "-b2"]


async def test_a_claim_that_another_process_may_end_rules_a_deadlock_out(
    tmp_path: Path, watch: Watch
) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite") as runtime:
        sup = await watch.start("a")
        assert runtime.clock.activity.working == 1
        await sup.stop()
        while runtime.clock.activity.working:
            await asyncio.sleep(0.005)


async def test_a_lease_that_was_won_too_late_is_not_held(
    runtime: Runtime, clock: FakeClock, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = runtime.service(Store)
    takings: list[TakenLease] = []
    run = store.run

    async def slow_once(*args: Any, **options: Any) -> Any:
        answer = await run(*args, **options)
        if isinstance(answer, TakenLease) and not takings:
            takings.append(answer)
            await sleep("9.5s")  # as if the loop had been blocked
        return answer

    monkeypatch.setattr(store, "run", slow_once)
    await watch.start("a")
    await clock.advance("9.6s")

    assert watch.ledger == ["+a2"]


async def test_a_claim_that_fails_with_another_error_is_sought_again(
    runtime: Runtime, clock: FakeClock, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = runtime.service(Store)
    failures: list[int] = []
    run = store.run

    async def broken_once(*args: Any, **options: Any) -> Any:
        if not failures:
            failures.append(1)
            raise RuntimeError("no store here")
        return await run(*args, **options)

    monkeypatch.setattr(store, "run", broken_once)
    await watch.start("a")
    await clock.advance("1s")

    assert watch.ledger == ["+a1"]


async def test_a_child_with_a_lease_sees_the_contextvars_of_the_start(
    tmp_path: Path,
) -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")
    seen = []

    async def work(ctx: ChildContext) -> None:
        seen.append((colour.get("none"), current_runtime()))

    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite") as runtime:
        colour.set("blue")
        sup = await supervisor_start(children=[Child("w", work, active_lease="w")])
        await sup.wait()

    assert seen == [("blue", runtime)]

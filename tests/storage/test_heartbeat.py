"""The thread that renews leases and claims: on time, whatever blocks the loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harn import (
    Child,
    Lease,
    Runtime,
    StorageBusy,
    StorageError,
    drain,
    supervisor_start,
    worker_queue,
)
from harn.storage import Operation, Store
from harn.storage.leases import (
    Beat,
    Heartbeat,
    LeaseRenewal,
    lease_place,
    renew_lease,
    take_lease,
)
from harn.storage.leases.heartbeat import THREAD_NAME
from harn.testing import FakeClock


class Renewals:
    """A lease of ten seconds whose renewals are counted and answered as a test wants."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.times: list[float] = []
        self.answers: list[bool | Exception] = []
        """Answers of the next renewals; when there are none left, they succeed."""
        self.operation: Callable[[], Operation[bool]] | None = None
        """What a renewal does in the store."""
        self.lost: list[str] = []

    def renew(self) -> Operation[bool]:
        self.times.append(round(self.runtime.clock.monotonic(), 3))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer if self.operation is None else (yield from self.operation())

    def keep(self, every: float = 3.0, ttl: float = 10.0) -> LeaseRenewal:
        return LeaseRenewal(
            self.runtime,
            "the lease 'x'",
            self.runtime.service(Store),
            self.renew,
            every=every,
            ttl=ttl,
            since=self.runtime.service(Heartbeat).clock.monotonic(),
            lost=self.lost.append,
        )


@pytest.fixture
def renewals(runtime: Runtime) -> Renewals:
    return Renewals(runtime)


def heartbeat_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


# -- one lease, on a fake clock ------------------------------------------------------------------


async def test_a_lease_is_renewed_on_time_and_no_more_once_stopped(
    renewals: Renewals, clock: FakeClock
) -> None:
    renewal = renewals.keep()
    await clock.advance("10s")
    renewal.stop()
    await clock.advance("1h")

    assert renewals.times == [3.0, 6.0, 9.0]
    assert not renewals.lost


async def test_a_renewal_that_fails_is_tried_again_soon_and_the_lease_is_kept(
    renewals: Renewals, clock: FakeClock
) -> None:
    renewals.answers = [StorageBusy("locked"), StorageBusy("locked")]
    renewals.keep()
    await clock.advance("8s")

    assert renewals.times == [3.0, 3.75, 4.5, 7.5]
    assert not renewals.lost


async def test_an_error_that_is_not_the_stores_counts_as_a_renewal_that_failed(
    renewals: Renewals, clock: FakeClock
) -> None:
    renewals.answers = [ZeroDivisionError("a bug")]
    renewals.keep()
    await clock.advance("4s")

    assert renewals.times == [3.0, 3.75]


async def test_a_lease_that_was_taken_over_is_lost_once_and_not_renewed_again(
    renewals: Renewals, clock: FakeClock
) -> None:
    renewals.answers = [True, False]
    renewals.keep()
    await clock.advance("1h")

    assert renewals.times == [3.0, 6.0]
    assert renewals.lost == ["it was taken over"]


async def test_a_lease_that_cannot_be_renewed_is_lost_before_it_expires(
    renewals: Renewals, clock: FakeClock
) -> None:
    renewals.answers = [StorageBusy("locked")] * 100
    renewals.keep()
    await clock.advance("8.9s")
    assert not renewals.lost
    await clock.advance("100ms")

    assert renewals.lost == ["it could not be renewed in time"]


async def test_a_store_that_does_not_answer_does_not_delay_the_loss(
    renewals: Renewals, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silence(*args: object, **options: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(renewals.runtime.service(Store), "run", silence)
    renewals.keep()
    await clock.advance("9s")

    assert renewals.lost == ["it could not be renewed in time"]


async def test_a_lease_that_lives_shorter_than_its_interval_is_still_lost_in_time(
    renewals: Renewals, clock: FakeClock
) -> None:
    renewals.keep(every=30.0)
    await clock.advance("9s")

    assert renewals.lost == ["it could not be renewed in time"]


async def test_a_loss_on_its_way_is_not_told_to_an_owner_that_has_stopped(
    renewals: Renewals,
) -> None:
    renewal = renewals.keep()
    renewal._heartbeat.tell(renewal._tell_lost, "taken over")
    renewal.stop()
    await asyncio.sleep(0)

    assert not renewals.lost


async def test_a_cancelled_owner_takes_its_renewal_along(
    renewals: Renewals, clock: FakeClock
) -> None:
    async def own() -> None:
        renewal = renewals.keep()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            renewal.stop()

    owner = asyncio.ensure_future(own())
    await clock.advance("4s")
    owner.cancel()
    await clock.advance("1h")

    assert renewals.times == [3.0]
    assert not renewals.lost


# -- a step of one's own -------------------------------------------------------------------------


async def test_a_step_that_raises_is_logged_and_called_again(
    runtime: Runtime, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[float] = []

    async def step() -> None:
        calls.append(clock.monotonic())
        if len(calls) == 1:
            raise ZeroDivisionError

    runtime.service(Heartbeat).beat("a lease", runtime.service(Store), step).wake()
    await clock.advance("1m")

    assert calls == [0.0, 1.0]
    assert "the heartbeat of a lease failed and is tried again: ZeroDivisionError()" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_store_that_is_full_is_a_line_in_the_log_each_time_not_a_traceback(
    runtime: Runtime, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def step() -> None:
        raise StorageError("no room left")

    runtime.service(Heartbeat).beat("a lease", runtime.service(Store), step).wake()
    await clock.advance("2s")

    assert {record.getMessage() for record in caplog.records} == {
        "the heartbeat of a lease failed and is tried again: no room left"
    }
    assert "Traceback" not in caplog.text


async def test_a_step_that_is_woken_while_it_runs_is_called_again(
    runtime: Runtime, clock: FakeClock
) -> None:
    calls: list[Beat] = []

    async def step() -> None:
        calls.append(beat)
        if len(calls) == 1:
            beat.wake()
            await asyncio.sleep(0)

    beat = runtime.service(Heartbeat).beat("a lease", runtime.service(Store), step)
    beat.wake()
    await clock.settle()

    assert len(calls) == 2


# -- the thread ----------------------------------------------------------------------------------


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_lease_outlives_a_loop_that_is_blocked_for_longer_than_it_lives(
    storage_url: str,
) -> None:
    async with Runtime(storage=lease_place(storage_url)) as runtime:
        store = runtime.service(Store)
        await store.run(partial(take_lease, "x", "us", 60_000))
        renewals = Renewals(runtime)
        renewals.operation = partial(renew_lease, "x", 1, 2000)
        renewal = renewals.keep(every=0.1)
        await until(lambda: len(renewals.times) > 1)  # it lives two seconds from now on
        time.sleep(2.5)  # this is what blocks
        taken = await store.run(partial(take_lease, "x", "a rival", 600))
        renewal.stop()

    assert taken is None
    assert not renewals.lost


async def test_there_is_no_thread_before_something_is_renewed_and_none_after_the_runtime(
    tmp_path: Path,
) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite") as runtime:
        heartbeat = runtime.service(Heartbeat)
        beat = heartbeat.beat("nothing", runtime.service(Store), _nothing_due)
        assert not heartbeat_threads()
        renewals = Renewals(runtime)
        renewals.keep(every=0.01)
        await until(lambda: len(renewals.times) > 2)
        assert len(heartbeat_threads()) == 1

    seen = list(renewals.times)
    assert not heartbeat_threads()
    beat.wake()  # an owner that outlives the runtime starts no other
    assert not heartbeat_threads()
    assert renewals.times == seen
    assert not renewals.lost


async def test_supervisors_and_consumers_share_the_thread(tmp_path: Path) -> None:
    seen: list[int] = []

    async def captain(ctx: object) -> None:
        await worker_queue("q").enqueue("job")
        await drain("q", lambda job: seen.append(len(heartbeat_threads())))

    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite"):
        child = Child("captain", captain, active_lease=Lease("captain"))
        sup = await supervisor_start(children=[child])
        await sup.wait()

    assert seen == [1]


async def test_a_renewal_that_was_stopped_is_not_carried_out_on_the_thread(tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path}/s.sqlite") as runtime:
        first, second = Renewals(runtime), Renewals(runtime)
        renewal = first.keep(every=0.01)
        second.keep(every=0.01)
        await until(lambda: len(first.times) > 1)
        renewal.stop()
        await until(lambda: renewal._beat._task is not None and renewal._beat._task.done())
        stopped_at, others = len(first.times), len(second.times)
        await until(lambda: len(second.times) > others + 3)

    assert len(first.times) == stopped_at


FORK = """
    import os, sys
    from functools import partial
    import harn
    from harn.storage import Store
    from harn.storage.leases import Heartbeat, LeaseRenewal, renew_lease, take_lease

    async def hold(name, renewed):
        runtime = harn.current_runtime()
        store, since = runtime.service(Store), runtime.service(Heartbeat).clock.monotonic()
        await store.run(partial(take_lease, name, "me", 60_000))
        def renew():
            renewed.append(os.getpid())
            return (yield from renew_lease(name, 1, 60_000))
        LeaseRenewal(runtime, name, store, renew, every=0.01, ttl=60, since=since, lost=print)

    def wait_for(renewed, more):
        seen = len(renewed)
        while len(renewed) < seen + more:
            harn.from_thread(harn.sleep, "5ms")

    def child(inherited):
        seen = len(inherited)
        own = []
        with harn.run_in_thread(state_dir=sys.argv[1] + "/child"):
            harn.from_thread(hold, "b", own)
            wait_for(own, 5)
        print("child renews its own:", set(own) == {os.getpid()}, flush=True)
        print("and none of the parent's:", len(inherited) == seen, flush=True)

    with harn.run_in_thread(state_dir=sys.argv[1] + "/parent"):
        renewed = []
        harn.from_thread(hold, "a", renewed)
        wait_for(renewed, 2)
        pid = os.fork()
        if pid == 0:
            child(renewed)
            os._exit(0)
        os.waitpid(pid, 0)
        wait_for(renewed, 2)
        print("parent goes on:", set(renewed) == {os.getpid()}, flush=True)
"""


def test_a_forked_child_renews_its_own_leases_and_none_of_its_parents(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.splitlines() == [
        "child renews its own: True",
        "and none of the parent's: True",
        "parent goes on: True",
    ], done.stderr


async def _nothing_due() -> None:
    """Have nothing to renew."""

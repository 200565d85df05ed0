"""H6, G18: twenty true deadlocks are found within a second, twenty near misses never raise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Channel,
    ChannelDeadlock,
    DeadlockError,
    PoolTask,
    PoolTaskFailed,
    Runtime,
    backpressure_queue,
    channel,
    channel_select,
    deadline,
    from_thread,
    mailbox_open,
    mutex,
    parallel,
    parallel_each,
    parallel_settle,
    pool_create,
    run,
    runtime_context,
    scope,
    sleep,
    spawn,
    sync_mutex_acquire,
    sync_semaphore_acquire,
    waitpoint_wait,
)
from harn.current import current_runtime
from harn.sync import deadlock
from harn.sync.deadlock import possible_waker
from harn.testing import FakeClock, run_virtual

Case = Callable[[], Awaitable[Any]]


async def receive_alone() -> None:
    await channel("lonely").receive()


async def send_to_a_full_channel() -> None:
    ch = channel("full", 1)
    await ch.send(1)
    await ch.send(2)


async def select_alone() -> None:
    await channel_select([channel("a"), channel("b")])


async def iterate_over_a_channel_that_is_never_closed() -> None:
    ch = channel("open")
    ch.try_send(1)
    async for _ in ch:
        pass


async def await_a_child_that_receives() -> None:
    await spawn(channel("c").receive)


async def await_a_child_that_sends() -> None:
    await spawn(send_to_a_full_channel)


async def join_children_in_a_scope() -> None:
    async with scope() as s:
        s.spawn(channel("x").receive)
        s.spawn(channel("y").receive)


async def two_wait_for_each_other() -> None:
    a, b = channel("a"), channel("b")

    async def first() -> None:
        await a.receive()
        await b.send(1)

    async def second() -> None:
        await b.receive()
        await a.send(1)

    async with scope() as s:
        s.spawn(first)
        s.spawn(second)


async def a_ring_of_five() -> None:
    ring = [channel(str(n)) for n in range(5)]

    async def link(n: int) -> None:
        await ring[n].receive()
        await ring[(n + 1) % 5].send(1)

    await parallel(5, link)


async def parallel_receivers() -> None:
    ch = channel("shared")
    await parallel(3, lambda _: ch.receive())


async def parallel_each_senders() -> None:
    ch = channel("full", 1)
    await parallel_each([1, 2, 3], ch.send)


async def settle_receivers() -> None:
    outcome = await parallel_settle([1], lambda _: channel("c").receive())
    raise outcome.results[0].error


async def a_pipeline_whose_head_forgot_to_close() -> None:
    a, b = channel("a"), channel("b")

    async def stage() -> None:
        async for each in a:
            await b.send(each)
        b.close()

    await a.send(1)
    async with scope() as s:
        s.spawn(stage)
        async for _ in b:
            pass


async def both_ends_full() -> None:
    a, b = channel("a", 1), channel("b", 1)

    async def forward(source: Channel[int], target: Channel[int]) -> None:
        while True:
            await target.send(1)
            await target.send(1)
            await source.receive()

    async with scope() as s:
        s.spawn(forward, a, b)
        s.spawn(forward, b, a)


async def holding_a_permit_that_the_sender_needs() -> None:
    ch = channel("c")

    async def sender() -> None:
        with await sync_mutex_acquire("m"):
            await ch.send(1)

    with await sync_mutex_acquire("m"):
        async with scope() as s:
            s.spawn(sender)
            await ch.receive()


async def holding_a_mutex_that_the_sender_needs() -> None:
    ch = channel("c")

    async def sender() -> None:
        async with mutex("m"):
            await ch.send(1)

    async with scope() as s:
        async with mutex("m"):
            s.spawn(sender)
            await ch.receive()


async def holding_permits_that_the_sender_needs() -> None:
    ch = channel("c")

    async def sender() -> None:
        await sync_semaphore_acquire("s", 2, permits=2)
        await ch.send(1)

    async with scope() as s:
        await sync_semaphore_acquire("s", 2)
        s.spawn(sender)
        await ch.receive()


async def a_grandchild_is_awaited() -> None:
    async def child() -> None:
        await spawn(channel("deep").receive)

    await spawn(child)


async def after_a_deadline_that_was_not_needed() -> None:
    async with deadline("1h"):
        await sleep(0)
    await channel("late").receive()


async def after_a_thread_has_ended() -> None:
    await asyncio.to_thread(lambda: None)
    await spawn(lambda: None, isolation="thread")
    await channel("late").receive()


async def under_an_idle_permit() -> None:
    await sync_mutex_acquire("mine")
    await channel("c").receive()


async def a_select_and_a_receive() -> None:
    a, b = channel("a"), channel("b")
    async with scope() as s:
        s.spawn(channel_select, [a, b])
        await a.receive()


async def behind_a_plain_task_that_queued_for_a_permit() -> None:
    await contend(sync_mutex_acquire("m"))


async def behind_a_plain_task_that_queued_for_a_mutex() -> None:
    async def enter() -> None:
        async with mutex("m"):
            pass

    await contend(enter())


async def contend(enter: Awaitable[Any]) -> None:
    """Receive forever; meanwhile plain asyncio tasks of ours enter "m" one after the other."""

    async def hold() -> None:
        with await sync_mutex_acquire("m"):
            async with mutex("m"):
                await asyncio.sleep(0)
                asyncio.ensure_future(enter)
                for _ in range(9):
                    await asyncio.sleep(0)

    asyncio.ensure_future(hold())
    await channel("orders").receive()


async def stuck_in_a_pool(wait: Callable[[PoolTask], Awaitable[Any]], scope: Any) -> None:
    pool = await pool_create(name="stuck", scope=scope, pipeline_id="deadlocks")
    task = await pool.submit(channel("orders").receive)
    await wait(task)
    await pool.close()
    await raise_cause(task)


async def raise_cause(task: PoolTask) -> None:
    try:
        await task
    except PoolTaskFailed as failed:
        assert failed.__cause__ is not None
        raise failed.__cause__ from None


async def a_pool_task_that_receives() -> None:
    await stuck_in_a_pool(PoolTask.wait, "session")


async def a_pool_task_that_is_awaited() -> None:
    await stuck_in_a_pool(raise_cause, "session")


async def a_pool_that_is_closed_around_a_receiver() -> None:
    await stuck_in_a_pool(lambda _: sleep(0), "session")


async def a_receiver_in_a_pipeline_pool() -> None:
    await stuck_in_a_pool(PoolTask.wait, "pipeline")


async def a_submitter_parked_behind_a_receiver() -> None:
    pool = await pool_create(backpressure=backpressure_queue(1))
    first, _ = [await pool.submit(channel("orders").receive) for _ in range(2)]
    await pool.submit(lambda: "parked")
    await raise_cause(first)


TRUE_DEADLOCKS: list[Case] = [
    receive_alone,
    send_to_a_full_channel,
    select_alone,
    iterate_over_a_channel_that_is_never_closed,
    await_a_child_that_receives,
    await_a_child_that_sends,
    join_children_in_a_scope,
    two_wait_for_each_other,
    a_ring_of_five,
    parallel_receivers,
    parallel_each_senders,
    settle_receivers,
    a_pipeline_whose_head_forgot_to_close,
    both_ends_full,
    holding_a_mutex_that_the_sender_needs,
    holding_a_permit_that_the_sender_needs,
    holding_permits_that_the_sender_needs,
    a_grandchild_is_awaited,
    after_a_deadline_that_was_not_needed,
    after_a_thread_has_ended,
    under_an_idle_permit,
    a_select_and_a_receive,
    behind_a_plain_task_that_queued_for_a_permit,
    behind_a_plain_task_that_queued_for_a_mutex,
    a_pool_task_that_receives,
    a_pool_task_that_is_awaited,
    a_pool_that_is_closed_around_a_receiver,
    a_receiver_in_a_pipeline_pool,
    a_submitter_parked_behind_a_receiver,
]


@pytest.mark.parametrize("case", TRUE_DEADLOCKS, ids=lambda case: case.__name__)
def test_H6_a_true_deadlock_is_raised(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for the journal of the one that has one
    began = time.monotonic()

    with pytest.raises(ChannelDeadlock, match="HARN-ORC-012"):
        run(case)

    # Not a timing test of this machine: the promise is one second, a hang would be forever.
    assert time.monotonic() - began < 10


# Near misses: the root blocks on a channel, and something outside could still wake it. Each case
# gets the channel, arranges what will (or might) send on it, and returns what to call for that.

Arrange = Callable[[Channel[Any]], Awaitable[Callable[[], Any]]]


def both(first: Callable[[], Any], ch: Channel[Any]) -> Callable[[], None]:
    """What calls *first* and then sends on *ch*."""

    def call() -> None:
        first()
        ch.try_send(1)

    return call


async def a_pending_timer(ch: Channel[Any]) -> Callable[[], Any]:
    timer = asyncio.get_running_loop().call_later(3600, ch.try_send, 1)
    return both(timer.cancel, ch)


async def a_sleeping_task(ch: Channel[Any]) -> Callable[[], Any]:
    async def later() -> None:
        await sleep(3600)

    handle = spawn(later)
    return both(handle.cancel, ch)


async def a_thread_of_ours(ch: Channel[Any]) -> Callable[[], Any]:
    go = threading.Event()

    def work() -> None:
        go.wait(10)
        from_thread(ch.send, 1)

    spawn(work)
    await asyncio.sleep(0)
    return go.set


async def a_foreign_thread(ch: Channel[Any]) -> Callable[[], Any]:
    go = threading.Event()

    def work() -> None:
        go.wait(10)
        ch.try_send(1)

    threading.Thread(target=work).start()
    return go.set


async def an_executor_call(ch: Channel[Any]) -> Callable[[], Any]:
    go = threading.Event()

    def work() -> None:
        go.wait(10)
        ch.try_send(1)

    future = asyncio.get_running_loop().run_in_executor(None, work)
    future.add_done_callback(lambda _: None)
    return go.set


async def a_subprocess(ch: Channel[Any]) -> Callable[[], Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.stdin.read()", stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None

    async def wait() -> None:
        await process.wait()
        ch.try_send(1)

    waiting = asyncio.ensure_future(wait())
    waiting.set_name("waits for a subprocess")
    return process.stdin.close


async def a_socket(ch: Channel[Any]) -> Callable[[], Any]:
    here, there = socket.socketpair()
    loop = asyncio.get_running_loop()

    def arrived() -> None:
        loop.remove_reader(here)
        ch.try_send(here.recv(1))
        here.close()
        there.close()

    loop.add_reader(here, arrived)
    return lambda: there.send(b"x")


async def a_server(ch: Channel[Any]) -> Callable[[], Any]:
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)

    def connected() -> None:
        loop.remove_reader(listener)
        listener.accept()[0].close()
        listener.close()
        ch.try_send(1)

    loop.add_reader(listener, connected)
    address = listener.getsockname()
    return lambda: socket.create_connection(address).close()


async def a_pipe(ch: Channel[Any]) -> Callable[[], Any]:
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()

    def arrived() -> None:
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)
        ch.try_send(1)

    loop.add_reader(reading, arrived)
    return lambda: os.write(writing, b"x")


async def a_signal_handler_of_the_loop(ch: Channel[Any]) -> Callable[[], Any]:
    loop = asyncio.get_running_loop()

    def handle() -> None:
        loop.remove_signal_handler(signal.SIGUSR1)
        ch.try_send(1)

    loop.add_signal_handler(signal.SIGUSR1, handle)
    return lambda: os.kill(os.getpid(), signal.SIGUSR1)


async def a_signal_handler_of_the_process(ch: Channel[Any]) -> Callable[[], Any]:
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGUSR2)

    def handle(*_: object) -> None:
        signal.signal(signal.SIGUSR2, before)
        loop.call_soon_threadsafe(ch.try_send, 1)

    signal.signal(signal.SIGUSR2, handle)
    return lambda: os.kill(os.getpid(), signal.SIGUSR2)


async def a_foreign_asyncio_task(ch: Channel[Any]) -> Callable[[], Any]:
    go: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def foreign() -> None:
        await go
        ch.try_send(1)

    keep.append(asyncio.ensure_future(foreign()))
    return lambda: go.set_result(None)


async def a_foreign_task_on_the_same_channel(ch: Channel[Any]) -> Callable[[], Any]:
    task = asyncio.ensure_future(ch.receive())
    return lambda: (task.cancel(), ch.try_send(1))


async def a_runnable_sender(ch: Channel[Any]) -> Callable[[], Any]:
    stop = False

    async def spin() -> None:
        while not stop:
            await asyncio.sleep(0)
        await ch.send(1)

    spawn(spin)

    def end() -> None:
        nonlocal stop
        stop = True

    return end


async def a_task_on_a_bare_future(ch: Channel[Any]) -> Callable[[], Any]:
    go: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def child() -> None:
        await go
        await ch.send(1)

    spawn(child)
    return lambda: go.set_result(None)


async def a_task_in_a_deadline(ch: Channel[Any]) -> Callable[[], Any]:
    other = channel("other")

    async def child() -> None:
        async with deadline("1h"):
            await other.receive()
        await ch.send(1)

    spawn(child)
    return lambda: other.try_send(1)


async def a_timed_select(ch: Channel[Any]) -> Callable[[], Any]:
    other = channel("other")

    async def child() -> None:
        await channel_select([other], timeout="1h")
        await ch.send(1)

    spawn(child)
    return lambda: other.try_send(1)


async def a_timed_permit(ch: Channel[Any]) -> Callable[[], Any]:
    held = await sync_mutex_acquire("m")
    assert held is not None

    async def child() -> None:
        await sync_mutex_acquire("m", timeout="1h")
        await ch.send(1)

    spawn(child)
    return held.release


async def a_task_that_waits_for_mail(ch: Channel[Any]) -> Callable[[], Any]:
    box = mailbox_open("inbox")

    async def actor() -> None:
        await box.receive()
        await ch.send(1)

    spawn(actor)
    return lambda: box._inbox.try_send(1)


async def a_task_at_a_waitpoint(ch: Channel[Any]) -> Callable[[], Any]:
    async def waiting() -> None:
        await waitpoint_wait("w")
        await ch.send(1)

    from harn.sync.waitpoint import Waitpoint, Waitpoints

    spawn(waiting)
    service = current_runtime().service(Waitpoints)
    return lambda: service.end_here("w", Waitpoint("completed"))


async def a_store_operation(ch: Channel[Any]) -> Callable[[], Any]:
    activity = current_runtime().clock.activity
    activity.store_began()
    return both(activity.store_ended, ch)


async def a_task_that_waits_for_a_pool(ch: Channel[Any]) -> Callable[[], Any]:
    pool = await pool_create()
    woken = asyncio.Event()

    async def closure() -> None:
        assert runtime_context().task_name == "pool task"  # so that the runtime knows of it
        await woken.wait()

    task = await pool.submit(closure)
    spawn(task.wait)
    return both(woken.set, ch)


NEAR_MISSES: list[Arrange] = [
    a_pending_timer,
    a_sleeping_task,
    a_thread_of_ours,
    a_foreign_thread,
    an_executor_call,
    a_subprocess,
    a_socket,
    a_server,
    a_pipe,
    a_signal_handler_of_the_loop,
    a_signal_handler_of_the_process,
    a_foreign_asyncio_task,
    a_foreign_task_on_the_same_channel,
    a_runnable_sender,
    a_task_on_a_bare_future,
    a_task_in_a_deadline,
    a_timed_select,
    a_timed_permit,
    a_task_that_waits_for_mail,
    a_task_at_a_waitpoint,
    a_store_operation,
    a_task_that_waits_for_a_pool,
]
keep: list[Any] = []


def run_near_miss(arrange: Arrange, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Block the root, let the detector look so many *times*, then wake it."""
    looks: list[str | None] = []

    def look(runtime: Runtime) -> str | None:
        looks.append(possible_waker(runtime))
        if len(looks) == times:
            runtime.loop.call_soon(wake)
        return looks[-1]

    monkeypatch.setattr(deadlock, "possible_waker", look)
    wake: Callable[[], Any] = lambda: None  # noqa: E731

    async def main() -> Any:
        nonlocal wake
        ch = channel("c")
        wake = await arrange(ch)
        return await ch.receive()

    assert run(main) is not None
    assert len(looks) >= times
    assert None not in looks


@pytest.mark.parametrize("arrange", NEAR_MISSES, ids=lambda arrange: arrange.__name__)
def test_H6_a_near_miss_never_raises(arrange: Arrange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlock, "CHECK_EVERY", 0.01)
    run_near_miss(arrange, monkeypatch, times=5)


@pytest.mark.stress
@pytest.mark.parametrize("arrange", NEAR_MISSES, ids=lambda arrange: arrange.__name__)
def test_G18_no_false_alarm_in_a_long_time(
    arrange: Arrange, monkeypatch: pytest.MonkeyPatch, at_least: Callable[[int], int]
) -> None:
    run_near_miss(arrange, monkeypatch, times=at_least(3))


def test_the_error_names_the_tasks_and_what_each_waits_for() -> None:
    async def main() -> None:
        a, b = channel("a"), channel("b", 1)
        b.try_send(0)
        async with scope() as s:
            s.spawn(a.receive, name="reader")
            s.spawn(b.send, 1, name="writer")
            await spawn(channel_select, [a, channel("c")])

    with pytest.raises(ChannelDeadlock) as caught:
        run(main)

    text = str(caught.value)
    assert re.search(r"select on channel 'a', channel 'c' has no sender", text)
    assert "task_root (root) awaits task_root:spawn:3" in text
    assert "(reader) waits to receive from channel 'a'" in text
    assert "(writer) waits to send to channel 'b'" in text


def test_a_thousand_stuck_tasks_are_counted_not_listed() -> None:
    async def main() -> None:
        ch = channel("c")

        async def receive(_: int) -> None:
            await ch.receive()

        await parallel(1000, receive)

    with pytest.raises(ChannelDeadlock, match="and 989 more") as caught:
        run(main)

    assert len(str(caught.value)) < 3000


def test_a_task_that_handles_the_error_may_wake_the_others() -> None:
    async def main() -> str:
        a, b = channel("a"), channel("b")

        async def rescuer() -> None:
            with contextlib.suppress(ChannelDeadlock):
                await b.receive()
            await a.send("free")

        spawn(rescuer)
        while not b._receivers:
            await asyncio.sleep(0)
        return str(await spawn(a.receive))

    # The last to block is told first; it does not handle it here, so its error comes out ...
    with pytest.raises(ChannelDeadlock):
        run(main)

    async def handled() -> str:
        a = channel("a")

        async def last() -> None:
            with contextlib.suppress(ChannelDeadlock):
                await channel("b").receive()
            await a.send("free")

        handle = spawn(a.receive)
        while not a._receivers:
            await asyncio.sleep(0)
        spawn(last)
        return str(await handle)

    # ... and here it does.
    assert run(handled) == "free"


def test_the_error_leaves_the_channel_usable() -> None:
    async def main() -> int:
        ch = channel("c", 1)
        for _ in range(2):
            with pytest.raises(ChannelDeadlock):
                await ch.receive()
        await ch.send(1)
        with pytest.raises(ChannelDeadlock):
            await ch.send(2)
        return int(await ch.receive()) + len(ch)

    assert run(main) == 1


def test_a_fake_clock_with_a_timer_set_is_hope_and_without_one_is_not() -> None:
    async def main() -> None:
        runtime = current_runtime()
        assert isinstance(runtime.clock, FakeClock)
        waiting = spawn(channel("c").receive)
        sleeper = spawn(sleep, "1h")
        for _ in range(5):
            await asyncio.sleep(0)
        # The root is at work here: look as the detector would once it has blocked too.
        runtime.root.waiting = waiting._task.waiting
        assert "not waiting" in str(possible_waker(runtime))
        sleeper.cancel()
        runtime.root.waiting = None

    run(main, clock=FakeClock())

    with pytest.raises(ChannelDeadlock):
        run(receive_alone, clock=FakeClock())


def test_on_a_virtual_time_loop_a_deadlock_is_found_and_a_day_stays_short() -> None:
    async def main() -> str:
        ch = channel("c")

        async def tomorrow() -> None:
            await sleep("1d")
            await ch.send("a day later")

        spawn(tomorrow)
        return str(await ch.receive())

    assert run_virtual(main) == "a day later"
    with pytest.raises(ChannelDeadlock):
        run_virtual(receive_alone)


def test_background_timers_are_no_hope() -> None:
    async def main() -> None:
        clock = current_runtime().clock
        clock.call_at(clock.monotonic() + 3600, lambda: None, background=True)
        await channel("c").receive()

    with pytest.raises(ChannelDeadlock):
        run(main)


def test_no_timer_is_left_when_no_task_is_blocked() -> None:
    async def main() -> None:
        ch = channel("c")
        sender = spawn(ch.receive)
        await asyncio.sleep(0)
        await ch.send(1)
        await sender
        detector = current_runtime().service(deadlock.Detector)
        assert detector.timer is not None
        await sleep(deadlock.CHECK_EVERY * 3)
        assert detector.timer is None

    run_virtual(main)


def test_a_loop_that_cannot_be_looked_into_never_raises() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> str:
        async with Runtime():
            ch = channel("c")
            looked = asyncio.get_running_loop().create_future()
            assert "cannot be inspected" in str(possible_waker(current_runtime()))
            looked.set_result(None)
            asyncio.get_running_loop().call_later(0.7, ch.try_send, "later")
            return str(await ch.receive())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "later"


def test_awaiting_tasks_in_a_circle_is_not_our_error() -> None:
    async def main() -> None:
        await spawn(receive_alone)

    with pytest.raises(DeadlockError):
        run(main)

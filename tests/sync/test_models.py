"""Random histories against models a page can hold."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

from hypothesis import given, settings, strategies as st

from harn import (
    Channel,
    Permit,
    Runtime,
    channel,
    shared_cell,
    shared_map,
    sync_rwlock_acquire,
    sync_semaphore_acquire,
)
from harn.sync.wait_queue import WAITING

steps = settings(deadline=None, max_examples=150)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


channel_steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2)),
        st.tuples(st.just("receive"), st.integers(0, 2)),
        st.tuples(st.just("try_send"), st.integers(0, 2)),
        st.tuples(st.just("try_receive"), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 10)),
        st.tuples(st.just("turn"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=40,
)


@steps
@given(st.integers(1, 3), channel_steps)
def test_H1_every_value_is_received_once_and_each_senders_in_order(
    capacity: int, program: list[tuple[str, int]]
) -> None:
    asyncio.run(run_channel(capacity, program))


async def run_channel(capacity: int, program: list[tuple[str, int]]) -> None:
    async with Runtime():
        ch: Channel[tuple[int, int]] = channel(capacity=capacity)
        sent: list[tuple[int, int]] = []
        received: list[tuple[int, int]] = []
        tasks: list[asyncio.Task[Any]] = []
        numbers = Counter[int]()
        # One queue of sends per sender: a sender sends one after the other.
        outboxes: dict[int, deque[tuple[int, int]]] = {n: deque() for n in range(3)}
        senders: dict[int, asyncio.Task[Any]] = {}

        async def drain(who: int) -> None:
            while outboxes[who]:
                value = outboxes[who].popleft()
                await ch.send(value)
                sent.append(value)

        async def receive() -> None:
            received.append(await ch.receive())

        for verb, n in program:
            assert len(ch) <= capacity
            if n in senders and senders[n].done():
                outboxes[n].clear()  # what a cancelled sender had not begun to send
            if verb == "send":
                outboxes[n].append((n, numbers[n]))
                numbers[n] += 1
                if n not in senders or senders[n].done():
                    senders[n] = asyncio.ensure_future(drain(n))
                    tasks.append(senders[n])
            elif verb == "receive":
                tasks.append(asyncio.ensure_future(receive()))
            elif verb == "try_receive":
                if (got := ch.try_receive()) is not None:
                    received.append(got)
            elif verb == "try_send" and not ch.closed:
                if (n not in senders or senders[n].done()) and ch.try_send((n, numbers[n])):
                    sent.append((n, numbers[n]))
                    numbers[n] += 1
            elif verb == "cancel" and tasks:
                tasks[n % len(tasks)].cancel()
            elif verb == "close":
                ch.close()
            else:
                await asyncio.sleep(0)
        await settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while len(ch):
            received.append(ch.try_receive())  # type: ignore[arg-type]

        assert Counter(received) == Counter(sent)
        for who in range(3):
            mine = [number for sender, number in received if sender == who]
            assert mine == sorted(mine)


class Line:
    """The model of a semaphore: capacity, those inside, those in line; first come, first served."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.inside: dict[int, int] = {}
        self.line: list[tuple[int, int]] = []

    def ask(self, who: int, want: int) -> None:
        self.line.append((who, want))
        self.serve()

    def leave(self, who: int) -> None:
        self.inside.pop(who, None)
        self.line = [each for each in self.line if each[0] != who]
        self.serve()

    def serve(self) -> None:
        while self.line and sum(self.inside.values()) + self.line[0][1] <= self.capacity:
            who, want = self.line.pop(0)
            self.inside[who] = want


line_steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
    ),
    max_size=30,
)


@steps
@given(line_steps)
def test_Y2_a_semaphore_admits_whom_the_model_admits(program: list[tuple[str, int]]) -> None:
    asyncio.run(run_line(program, Line(3), lambda n: sync_semaphore_acquire("k", 3, n)))


@steps
@given(line_steps)
def test_Y2_a_rwlock_admits_whom_the_model_admits(program: list[tuple[str, int]]) -> None:
    everything = 1000
    model = Line(everything)

    def acquire(n: int) -> Any:
        return sync_rwlock_acquire("k", "write" if n == everything else "read")

    as_modes = [(verb, everything if verb == "ask" and n == 1 else n) for verb, n in program]
    as_modes = [(verb, 1 if verb == "ask" and n in (2, 3) else n) for verb, n in as_modes]
    asyncio.run(run_line(as_modes, model, acquire))


async def run_line(program: list[tuple[str, int]], model: Line, acquire: Any) -> None:
    async with Runtime():
        inside: dict[int, Permit] = {}
        tasks: list[asyncio.Task[Any]] = []

        async def ask(who: int, want: int) -> None:
            inside[who] = await acquire(want)

        for verb, n in program:
            if verb == "ask":
                model.ask(len(tasks), n)
                tasks.append(asyncio.ensure_future(ask(len(tasks), n)))
            elif tasks:
                who = n % len(tasks)
                model.leave(who)
                tasks[who].cancel()
                if who in inside:
                    inside.pop(who).release()
            await settle()

            assert set(inside) == set(model.inside)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


cell_steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "cas", "snapshot", "cas_snapshot"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=40,
)


@steps
@given(cell_steps)
def test_H8_a_cell_swaps_when_the_model_swaps(program: list[tuple[str, int, int]]) -> None:
    asyncio.run(run_cell(program))


async def run_cell(program: list[tuple[str, int, int]]) -> None:
    async with Runtime():
        cell = shared_cell("c", initial=0)
        history = [0]  # the model: every value it ever had
        taken = [(cell.snapshot(), 0)]
        for verb, a, b in program:
            if verb == "set":
                assert cell.set(a) == history[-1]
                history.append(a)
            elif verb == "cas":
                assert cell.cas(a, b) == (history[-1] == a)
                if history[-1] == a:
                    history.append(b)
            elif verb == "snapshot":
                taken.append((cell.snapshot(), len(history) - 1))
            else:
                snapshot, at = taken[a % len(taken)]
                fresh = at == len(history) - 1
                assert cell.cas(snapshot, b) == fresh
                if fresh:
                    history.append(b)
            assert cell.get() == history[-1]
            assert cell.snapshot().version == len(history) - 1


map_steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "cas", "snapshot", "cas_snapshot"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=40,
)


@steps
@given(map_steps)
def test_H8_a_map_swaps_when_the_model_swaps(program: list[tuple[str, str, Any, Any]]) -> None:
    asyncio.run(run_map(program))


ABSENT = object()


async def run_map(program: list[tuple[str, str, Any, Any]]) -> None:
    async with Runtime():
        table = shared_map("m")
        history: dict[str, list[Any]] = {"x": [ABSENT], "y": [ABSENT]}
        taken: dict[str, Any] = {}

        def shown(key: str) -> Any:
            return None if history[key][-1] is ABSENT else history[key][-1]

        def replace(key: str, value: Any) -> None:
            if value is None:
                if history[key][-1] is not ABSENT:
                    history[key].append(ABSENT)
            else:
                history[key].append(value)

        for verb, key, a, b in program:
            now = history[key]
            if verb == "set":
                assert table.set(key, a) == shown(key)
                now.append(a)
            elif verb == "delete":
                assert table.delete(key) == shown(key)
                replace(key, None)
            elif verb == "cas":
                expected = shown(key) == a
                assert table.cas(key, a, b) == expected
                if expected:
                    replace(key, b)
            elif verb == "snapshot":
                taken[key] = (table.snapshot(key), len(now))
            elif key in taken:
                snapshot, at = taken[key]
                assert table.cas(key, snapshot, b) == (at == len(now))
                if at == len(now):
                    replace(key, b)
            assert table.snapshot(key).version == len(now) - 1
        assert table.entries() == {k: v[-1] for k, v in history.items() if v[-1] is not ABSENT}


assert WAITING == 0  # WaitQueue.first() relies on it

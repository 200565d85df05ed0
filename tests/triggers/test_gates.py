"""Gates in virtual time: what passes, what waits, what is skipped, and that all is given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from harn import (
    Runtime,
    TriggerEvent,
    channel_emit,
    event_log_read,
    sleep,
    topics,
    trigger_fire,
    trigger_register,
)
from harn.errors import StorageBusy
from harn.storage import Store, ask
from harn.testing import FakeClock, fresh_runtime
from harn.triggers import Triggers
from harn.triggers.gate_rules import check_flow
from harn.triggers.gates import Entrant, Passage
from tests.sweep import Run, sweep
from tests.triggers.trigger_events import an_event

PATH = "provider_payload.payload"


async def register(handler: Any, **flow: Any) -> None:
    await trigger_register(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=handler,
        **flow,
    )


async def emit(payload: Any) -> Any:
    [handle] = (await channel_emit("x", payload)).dispatched
    return handle


class Probe:
    """A handler that notes when it began, takes a while, and how many ran at once."""

    def __init__(self, clock: FakeClock, takes: float = 0) -> None:
        self.clock = clock
        self.takes = takes
        self.began: list[tuple[float, Any]] = []
        self.running: Counter[Any] = Counter()
        self.most: Counter[Any] = Counter()

    async def __call__(self, event: TriggerEvent) -> Any:
        payload = event.get(PATH)
        key = payload.get("k") if isinstance(payload, dict) else None
        self.began.append((self.clock.monotonic(), payload))
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        try:
            if self.takes:
                await sleep(self.takes)
        finally:
            self.running[key] -= 1
        return payload


async def all_marks(runtime: Runtime) -> list[Any]:
    def dump() -> Any:
        return (yield ask("trigger_dump_marks"))

    return await runtime.service(Store).run(dump)


async def marks(runtime: Runtime) -> int:
    return len(await all_marks(runtime))


def kinds_of(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


async def test_throttle_lets_everything_through_but_not_at_once(
    runtime: Runtime, clock: FakeClock
) -> None:
    probe = Probe(clock)
    await register(probe, throttle={"max": 2, "period": "10s"})

    handles = [await emit(n) for n in range(5)]
    await clock.advance("25s")

    assert probe.began == [(0, 0), (0, 1), (10, 2), (10, 3), (20, 4)]
    assert [h.status for h in handles] == ["dispatched"] * 2 + ["waiting"] * 3
    assert [(await h.wait()).result for h in handles] == [0, 1, 2, 3, 4]


async def test_rate_limit_skips_what_is_over(runtime: Runtime, clock: FakeClock) -> None:
    probe = Probe(clock)
    await register(probe, rate_limit={"max": 2, "period": "10s"})

    handles = [await emit(n) for n in range(4)]
    await clock.advance("10s")
    handles.append(await emit(4))

    assert [payload for _, payload in probe.began] == [0, 1, 4]
    assert handles[2].status == "dispatched"
    assert handles[2].result == {"skipped": True, "flow_control": "rate_limited"}


async def test_debounce_keeps_the_newest(runtime: Runtime, clock: FakeClock) -> None:
    probe = Probe(clock)
    await register(probe, debounce={"period": "5s", "key": f"{PATH}.k"})

    handles = []
    for n in range(3):
        handles.append(await emit({"k": "a", "n": n}))
        handles.append(await emit({"k": "b", "n": n}))
        await clock.advance("2s")
    await clock.advance("10s")

    assert probe.began == [(9, {"k": "a", "n": 2}), (9, {"k": "b", "n": 2})]
    results = [(await handle.wait()).result for handle in handles]
    assert results[:4] == [{"skipped": True, "flow_control": "debounced"}] * 4


async def test_a_batch_fires_when_it_is_full(runtime: Runtime, clock: FakeClock) -> None:
    batches: list[list[Any]] = []

    async def handler(event: TriggerEvent) -> int:
        batches.append([member.get(PATH) for member in event.batch or ()])
        return len(event.batch or ())

    await register(handler, batch={"size": 3, "timeout": "1m"})
    handles = [await emit(n) for n in range(7)]
    await clock.settle()

    assert batches == [[0, 1, 2], [3, 4, 5]]
    await clock.advance("1m")
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]
    results = [(await handle.wait()).result for handle in handles]
    assert results[0] == results[3] == 3
    assert results[1] == {"skipped": True, "flow_control": "batch_merged"}
    assert await marks(runtime) == 0


async def test_a_batch_that_gathers_does_not_wait_for_one_that_fires(
    runtime: Runtime, clock: FakeClock
) -> None:
    gate = asyncio.Event()
    batches: list[int] = []

    async def handler(event: TriggerEvent) -> None:
        batches.append(len(event.batch or ()))
        await gate.wait()

    await register(handler, batch={"size": 2, "timeout": "1m"})
    handles = [asyncio.ensure_future(trigger_fire("t", n)) for n in range(4)]
    await clock.advance("1s")

    assert batches == [2, 2]
    gate.set()
    assert {(await handle).status for handle in handles} == {"dispatched"}


async def test_batches_are_by_key(runtime: Runtime, clock: FakeClock) -> None:
    sizes: list[Any] = []

    async def handler(event: TriggerEvent) -> None:
        sizes.append([member.get(f"{PATH}.k") for member in event.batch or ()])

    await register(handler, batch={"size": 2, "timeout": "1m", "key": f"{PATH}.k"})
    for k in "abab":
        await emit({"k": k})
    await clock.settle()

    assert sizes == [["a", "a"], ["b", "b"]]


async def test_a_singleton_skips_while_one_is_in_flight(runtime: Runtime, clock: FakeClock) -> None:
    probe = Probe(clock, takes=10)
    await register(probe, singleton=True)
    first = asyncio.ensure_future(trigger_fire("t", 1))
    await clock.advance("1s")

    skipped = await trigger_fire("t", 2)
    await clock.advance("10s")
    assert (await first).result == 1
    third = asyncio.ensure_future(trigger_fire("t", 3))
    await clock.advance("10s")

    assert skipped.result == {"skipped": True, "flow_control": "singleton_active"}
    assert (await third).result == 3
    assert await marks(runtime) == 0


async def test_concurrency_is_a_cap_for_each_key(runtime: Runtime, clock: FakeClock) -> None:
    probe = Probe(clock, takes=1)
    await register(probe, concurrency={"max": 2, "key": f"{PATH}.k"})

    fired = [
        asyncio.ensure_future(trigger_fire("t", {"k": k, "n": n})) for n in range(5) for k in "ab"
    ]
    await clock.advance("5s")

    assert {(await each).status for each in fired} == {"dispatched"}
    assert probe.most == {"a": 2, "b": 2}
    assert [payload["n"] for _, payload in probe.began if payload["k"] == "a"] == [0, 1, 2, 3, 4]
    assert await marks(runtime) == 0


async def test_who_waits_for_a_slot_goes_by_rank_then_arrival(
    runtime: Runtime, clock: FakeClock
) -> None:
    probe = Probe(clock, takes=1)
    await register(
        probe, concurrency={"max": 1}, priority={"key": f"{PATH}.p", "order": ["urgent", "normal"]}
    )

    asked = ["low", "normal", "normal", "urgent", "urgent", "normal"]
    fired = []
    for n, p in enumerate(asked):
        fired.append(asyncio.ensure_future(trigger_fire("t", {"p": p, "n": n})))
        await clock.settle()
    await clock.advance("10s")

    assert [payload["n"] for _, payload in probe.began] == [0, 3, 4, 1, 2, 5]
    assert all(each.done() for each in fired)


async def test_a_failed_or_cancelled_dispatch_gives_its_slot_back(
    runtime: Runtime, clock: FakeClock
) -> None:
    async def fail(event: TriggerEvent) -> None:
        raise RuntimeError("no")

    await register(fail, concurrency={"max": 1}, singleton={"key": f"{PATH}.k"}, retry={"max": 1})

    handles = [await trigger_fire("t", {"k": 1}) for _ in range(3)]

    assert {handle.status for handle in handles} == {"dlq"}
    assert await marks(runtime) == 0


async def test_a_retry_that_waits_does_not_sit_on_its_slot(
    runtime: Runtime, clock: FakeClock
) -> None:
    tried: list[Any] = []

    async def fail_first(event: TriggerEvent) -> Any:
        tried.append((clock.monotonic(), event.get(PATH)))
        if event.get(PATH) == "bad" and len(tried) == 1:
            raise RuntimeError("once")
        return event.get(PATH)

    await register(
        fail_first, concurrency={"max": 1}, retry={"max": 2, "backoff": "linear", "delay": "60s"}
    )
    bad = asyncio.ensure_future(trigger_fire("t", "bad"))
    await clock.settle()

    good = await trigger_fire("t", "good")
    await clock.advance("61s")

    assert good.result == "good"
    assert (await bad).result == "bad"
    assert tried == [(0, "bad"), (0, "good"), (60, "bad")]


async def test_gates_combine(runtime: Runtime, clock: FakeClock) -> None:
    probe = Probe(clock, takes=3)
    await register(
        probe,
        rate_limit={"max": 4, "period": "1h"},
        throttle={"max": 2, "period": "1s"},
        concurrency={"max": 1},
    )

    fired = [asyncio.ensure_future(trigger_fire("t", n)) for n in range(6)]
    await clock.advance("1m")

    results = [(await each).result for each in fired]
    assert results[:4] == [0, 1, 2, 3]
    assert results[4] == {"skipped": True, "flow_control": "rate_limited"}
    assert [at for at, _ in probe.began] == [0, 3, 6, 9]


async def test_what_gates_decide_is_in_the_log(runtime: Runtime, clock: FakeClock) -> None:
    await register(
        Probe(clock, takes=1), throttle={"max": 1, "period": "5s"}, concurrency={"max": 1}
    )
    fired = [asyncio.ensure_future(trigger_fire("t", n)) for n in range(2)]
    await clock.advance("10s")
    await asyncio.gather(*fired)

    kinds = kinds_of(await event_log_read(topics.TRIGGER_FLOW))

    assert Counter(kinds) == {
        "throttle_acquired": 2,
        "throttle_wait": 1,
        "concurrency_acquired": 2,
        "concurrency_released": 2,
    }
    assert kinds.index("throttle_wait") < len(kinds) - 1 - kinds[::-1].index("throttle_acquired")


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
    ),
)
async def test_no_program_of_events_breaks_a_cap_or_leaks(
    most: int, per: int, steps: list[Any]
) -> None:
    clock = FakeClock()
    async with fresh_runtime(clock=clock) as runtime:
        probe = Probe(clock, takes=2)
        await register(
            probe,
            concurrency={"max": most, "key": f"{PATH}.k"},
            throttle={"max": per, "period": "2s"},
            retry={"max": 1},
        )
        fired = []
        for k, gap, give_up in steps:
            fired.append(asyncio.ensure_future(trigger_fire("t", {"k": k})))
            await clock.advance(gap)
            if give_up:
                fired[-1].cancel()  # the caller gives up; the dispatch continues
        await clock.advance("5m")

        times = sorted(at for at, _ in probe.began)
        assert len(times) == len(steps)
        assert max(probe.most.values()) <= most
        admitted = [
            event.payload["at_ms"]
            for event in await event_log_read(topics.TRIGGER_FLOW)
            if event.kind == "throttle_acquired"
        ]
        for at in admitted:
            assert sum(at <= other < at + 2000 for other in admitted) <= per
        held = [mark for mark in await all_marks(runtime) if mark[0].startswith("concurrency")]
        assert held == []
        assert all(each.done() for each in fired)


async def test_a_gate_is_one_for_two_runtimes_of_one_store(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/x.sqlite"
    overlap = most = 0

    async def handler(event: TriggerEvent) -> None:
        nonlocal overlap, most
        overlap += 1
        most = max(most, overlap)
        await asyncio.sleep(0.01)
        overlap -= 1

    async def one(n: int) -> list[str]:
        async with Runtime(storage=url):
            await register(handler, concurrency={"max": 2})
            return [
                (await each).status
                for each in [asyncio.ensure_future(trigger_fire("t", k)) for k in range(5)]
            ]

    done = await asyncio.gather(*(asyncio.create_task(one(n)) for n in range(2)))

    assert done == [["dispatched"] * 5] * 2
    assert most <= 2


@pytest.mark.parametrize("flow", [{"singleton": True}, {"concurrency": 1}])
async def test_an_event_that_is_cancelled_anywhere_at_its_gate_holds_nothing(
    storage_url: str, flow: dict[str, Any]
) -> None:
    async with Runtime(storage=storage_url) as runtime:
        gates = runtime.service(Triggers).dispatcher.gates
        entrant = Entrant("t", an_event(), 0, check_flow(flow), lambda: None)

        async def pass_the_gate() -> None:
            passage = await gates.enter(entrant)
            try:
                assert passage.skipped is None
                await asyncio.sleep(0)
            finally:
                await gates.leave(entrant, passage)

        async def is_free(run: Run) -> None:
            assert await marks(runtime) == 0, run

        assert await sweep(pass_the_gate, is_free, leftovers=3) > 3


class FailingStore:
    """Makes a store fail what the gates ask of it, from now on, or at the caller's signal."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = False
        self.hangs: asyncio.Future[Any] | None = None
        store = runtime.service(Store)
        submit = store.submit

        def submit_or_fail(recipe: Any, **options: Any) -> asyncio.Future[Any]:
            if self.hangs is not None:
                return self.hangs
            if not self.is_failing:
                return submit(recipe, **options)
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(StorageBusy("the store is out of reach"))
            return answer

        monkeypatch.setattr(store, "submit", submit_or_fail)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_cancel_is_raised_also_where_the_store_fails_at_that_moment(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    gates = runtime.service(Triggers).dispatcher.gates
    entrant = Entrant("t", an_event(), 0, check_flow({"singleton": True}), lambda: None)
    passage = await gates.enter(entrant) if leaves else Passage()
    store = FailingStore(runtime, monkeypatch)
    store.hangs = asyncio.get_running_loop().create_future()
    work = gates.leave(entrant, passage) if leaves else gates.enter(entrant)
    waiting = asyncio.ensure_future(work)
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.sleep(0)
    store.hangs.set_exception(StorageBusy("the store is out of reach"))
    await asyncio.wait((waiting,))

    assert waiting.cancelled()


async def test_a_cancelled_wait_ends_in_its_cancel_although_the_store_cannot_release_its_place(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = runtime.service(Triggers).dispatcher.gates
    entrant = Entrant("t", an_event(), 0, check_flow({"concurrency": 1}), lambda: None)
    await gates.enter(entrant)
    waiting = asyncio.ensure_future(gates.enter(entrant))
    await clock.advance("1s")
    FailingStore(runtime, monkeypatch).is_failing = True

    waiting.cancel()
    await asyncio.wait((waiting,))

    assert waiting.cancelled()


@pytest.mark.parametrize("flow", [{"singleton": True}, {"concurrency": 1}])
async def test_what_the_store_failed_to_release_is_released_by_the_next_event(
    runtime: Runtime,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    flow: dict[str, Any],
) -> None:
    probe = Probe(clock, takes=1)
    await register(probe, **flow)
    store = FailingStore(runtime, monkeypatch)
    first = asyncio.ensure_future(trigger_fire("t", 1))
    await clock.advance("0.5s")

    store.is_failing = True
    await clock.advance("1s")
    store.is_failing = False
    fired = [asyncio.ensure_future(trigger_fire("t", n)) for n in (2, 3)]
    await clock.advance("5s")

    assert (await first).result == 1  # the handler succeeded, and so did its dispatch
    assert "still holds its" in caplog.text
    results = [(await each).result for each in fired]
    skipped = {"skipped": True, "flow_control": "singleton_active"}
    assert results == ([2, skipped] if flow == {"singleton": True} else [2, 3])
    assert probe.most == {None: 1}
    assert await marks(runtime) == 0


async def test_a_batch_of_another_runtime_leaves_no_waiter_behind(tmp_path: Any) -> None:
    ran: list[int] = []
    began, done = asyncio.Event(), asyncio.Event()

    async def handler(event: TriggerEvent) -> None:
        ran.append(len(event.batch or ()))
        began.set()
        await done.wait()

    url = f"sqlite:///{tmp_path}/x.sqlite"
    batch = {"size": 2, "timeout": "1h"}
    async with Runtime(storage=url) as leader:
        await register(handler, batch=batch)
        await emit(1)
        async with Runtime(storage=url) as follower:
            await register(handler, batch=batch)
            merged = asyncio.ensure_future(trigger_fire("t", 2))
            await began.wait()
            followers = vars(follower.service(Triggers).dispatcher.gates)["_followers"]
            while not followers:
                await asyncio.sleep(0)
            done.set()

            assert (await merged).result == {"skipped": True, "flow_control": "batch_merged"}
            assert followers == {}
        await leader.service(Triggers).dispatcher.idle()
    assert ran == [2]

"""What survives: restarts, kills, schedules across processes, dead letters."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Runtime,
    TriggerError,
    TriggerEvent,
    channel_emit,
    current_runtime,
    event_log_emit,
    event_log_read,
    run as harn_run,
    sleep as harn_sleep,
    topics,
    trigger_fire,
    trigger_register,
)
from harn.clock import from_iso
from harn.storage import Store
from harn.storage.operations import nothing
from harn.storage.triggers import cron_last
from harn.testing import FakeClock
from harn.triggers import DeadLetters, Triggers
from tests.sweep import cancel_at

PATH = "provider_payload.payload"


async def on_channel(handler: Any, id: str = "t", **flow: Any) -> None:
    await trigger_register(
        id=id,
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=handler,
        **flow,
    )


async def every_hour(handler: Any, **match: Any) -> None:
    hourly: Any = {"schedule": "0 * * * *", **match}
    await trigger_register(id="hourly", kind="cron", provider="cron", match=hourly, handler=handler)


async def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to pass")


async def test_an_event_whose_handler_was_interrupted_is_dispatched_again(lasting_url: str) -> None:
    seen: list[Any] = []

    begun = asyncio.Event()

    async def hang(event: TriggerEvent) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def note(event: TriggerEvent) -> None:
        seen.append(event.get(PATH))

    async with Runtime(storage=lasting_url):
        await on_channel(hang)
        firing = asyncio.ensure_future(trigger_fire("t", "work"))
        await begun.wait()
    assert (await firing).status == "cancelled"

    async with Runtime(storage=lasting_url) as second:
        await on_channel(note)
        await until(lambda: seen)
        await second.service(Triggers).dispatcher.idle()

    async with Runtime(storage=lasting_url) as third:
        await on_channel(note)
        assert await third.service(Triggers).recovery.recover() == 0
    assert seen == ["work"]


async def test_events_beyond_those_of_one_takeover_follow_within_seconds(
    lasting_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harn.triggers.recovery.AT_ONCE", 2)
    monkeypatch.setattr("harn.triggers.registry.EMIT_WAIT", 0)
    seen: list[Any] = []

    async def hang(event: TriggerEvent) -> None:
        await asyncio.Event().wait()

    async with Runtime(storage=lasting_url, clock=clock):
        await on_channel(hang)
        for n in range(5):
            await channel_emit("x", n)

    async with Runtime(storage=lasting_url, clock=clock):
        await on_channel(lambda event: seen.append(event.get(PATH)))
        await clock.advance("3s")

    assert sorted(seen) == [0, 1, 2, 3, 4]


async def test_an_event_is_dispatched_although_its_takeover_was_cancelled(lasting_url: str) -> None:
    seen: list[Any] = []

    async def hang(event: TriggerEvent) -> None:
        await asyncio.Event().wait()

    async with Runtime(storage=lasting_url) as first:
        await on_channel(hang)
        events = [asyncio.ensure_future(channel_emit("x", n)) for n in range(6)]
        await asyncio.gather(*events)
        envelopes = list(first.service(Triggers).dispatcher.running)
    assert len(envelopes) == 6

    async with Runtime(storage=lasting_url) as second:
        triggers = second.service(Triggers)
        triggers.by_hand = True
        await on_channel(lambda event: seen.append(event.get(PATH)))
        for k, envelope in enumerate(envelopes, 1):
            taking = cancel_at(triggers.recovery.take(envelope, "t"), k, False, [])
            await asyncio.wait((asyncio.ensure_future(taking),))
            await until(lambda k=k: not triggers.dispatcher.running)
            await triggers.recovery.take(envelope, "t")  # one that was not taken yet
            await until(lambda k=k: len(seen) == k)


async def test_stops_of_a_service_make_no_dead_letter_of_an_event_that_never_failed(
    lasting_url: str,
) -> None:
    begun: list[Any] = []

    async def hang(event: TriggerEvent) -> None:
        begun.append(event.get(PATH))
        await harn_sleep("1h")

    async def note(event: TriggerEvent) -> None:
        begun.append("at last")

    for stops in range(7):
        async with Runtime(storage=lasting_url) as runtime:
            await on_channel(hang)
            if not stops:
                await channel_emit("x", "work")
            await until(lambda stops=stops: len(begun) == stops + 1)
            dispatcher = runtime.service(Triggers).dispatcher
            dispatcher.request_stop()
            await dispatcher.idle()
    async with Runtime(storage=lasting_url) as runtime:
        await on_channel(note)
        await until(lambda: len(begun) == 8)
        await runtime.service(Triggers).dispatcher.idle()

        assert [e.payload for e in await event_log_read(topics.TRIGGER_DLQ)] == []
    assert begun == ["work"] * 7 + ["at last"]


async def test_a_handler_that_blocks_the_loop_does_not_lose_its_event_to_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harn.storage.triggers.owners.OWNER_MS", 2000)
    monkeypatch.setattr("harn.triggers.recovery.EVERY", 0.05)
    url = f"sqlite:///{tmp_path}/s.sqlite"
    taken_over: list[int] = []

    async def rival() -> None:
        await on_channel(print)
        taken_over.append(await current_runtime().service(Triggers).recovery.recover())

    async def block(event: TriggerEvent) -> None:
        time.sleep(2.5)  # this is what blocks
        thread = threading.Thread(target=partial(harn_run, rival, storage=url))
        thread.start()
        thread.join()

    async with Runtime(storage=url):
        await on_channel(block)
        handle = await trigger_fire("t", "work")

    assert taken_over == [0]
    assert handle.status == "dispatched"


async def test_a_retry_goes_on_where_it_stood(tmp_path: Path) -> None:
    times: list[Any] = []
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/x.sqlite"

    async def fail(event: TriggerEvent) -> None:
        times.append(clock.monotonic())
        raise RuntimeError("no")

    async with Runtime(storage=url, clock=clock):
        await on_channel(fail, retry={"max": 3, "backoff": "linear", "delay": "100s"})
        await channel_emit("x", 1)
        await clock.advance("50s")
    async with Runtime(storage=url, clock=clock):
        await on_channel(fail, retry={"max": 3, "backoff": "linear", "delay": "100s"})
        await clock.advance("300s")
        [_, letter] = [e.payload for e in await event_log_read(topics.TRIGGER_DLQ)]

    assert times == [0, 100, 200]
    assert letter["attempt_count"] == 3


KILLED = """
    import asyncio, os, sys
    from harn import Runtime, channel_emit, trigger_register

    async def handler(event):
        if sys.argv[2] == "die":
            os.kill(os.getpid(), 9)
        print(event.id, flush=True)

    async def main():
        async with Runtime(storage=sys.argv[1]):
            await trigger_register(id="t", kind="channel.emit", provider="channel",
                                   match={"events": ["channel:x"]}, handler=handler)
            if sys.argv[2] == "die":
                await channel_emit("x", 1, id="delivery-1")
            else:
                assert (await channel_emit("x", 1, id="delivery-1")).duplicate
                await asyncio.sleep(float(sys.argv[3]))

    asyncio.run(main())
"""


def run_script(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    return subprocess.run(
        [sys.executable, str(script), *args], capture_output=True, text=True, timeout=60
    )


async def test_S26_a_kill_between_accept_and_dispatch_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.sqlite"
    killed = run_script(tmp_path, url, "die")
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    # The owner is believed to live for half a minute: a clock ahead of it spares us the wait.
    seen: list[Any] = []
    clock = FakeClock(start=int(os.stat(tmp_path / "x.sqlite").st_mtime * 1000) + 40_000)
    async with Runtime(storage=url, clock=clock):
        await on_channel(lambda event: seen.append(event.id))
        await clock.advance("1s")
        again = await channel_emit("x", 1, id="delivery-1")
        await until(lambda: seen)

    assert again.duplicate
    assert seen == [again.event_id]


async def test_an_event_that_kills_its_process_again_and_again_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a word at its end a process counts as dead, when its lease has expired.
    monkeypatch.setattr("harn.triggers.recovery.leave", lambda owner: nothing())
    url = f"sqlite:///{tmp_path}/x.sqlite"
    clock = FakeClock()
    begun: list[Any] = []

    async def hang(event: TriggerEvent) -> None:
        begun.append(event.id)
        await asyncio.Event().wait()

    for n in range(8):
        async with Runtime(storage=url, clock=clock):
            await on_channel(hang)
            if not n:
                await channel_emit("x", 1)
            await clock.advance("1m")

    async with Runtime(storage=url, clock=clock) as runtime:
        letters = await runtime.service(DeadLetters).listed()

    assert len(begun) == 5
    assert "ended 5 processes" in letters.entries[0]["error"]


async def test_T3_two_runtimes_fire_each_instant_once(tmp_path: Path) -> None:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/x.sqlite"
    fired: list[str] = []

    async def handler(event: TriggerEvent) -> None:
        fired.append(event.occurred_at)

    async def one(stop: asyncio.Event) -> None:
        async with Runtime(storage=url, clock=clock):
            await every_hour(handler)
            await stop.wait()

    stop = asyncio.Event()
    both = [asyncio.ensure_future(one(stop)) for _ in range(2)]
    await clock.advance("5h")
    stop.set()
    await asyncio.gather(*both)

    assert fired == [f"2026-01-01T0{n}:00:00Z" for n in range(1, 6)]


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [("skip", [1, 8]), ("latest", [0, 1, 7, 8]), ("all", [0, 1, 2, 3, 4, 5, 6, 7, 8])],
)
async def test_T3_missed_instants_follow_the_rule(
    tmp_path: Path, catchup: str, expected: list[int]
) -> None:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/x.sqlite"
    fired: list[int] = []

    async def handler(event: TriggerEvent) -> None:
        fired.append(int(event.occurred_at[11:13]))
        assert event.received_at >= event.occurred_at

    async with Runtime(storage=url, clock=clock):
        await every_hour(handler, catchup_mode=catchup)
        await clock.advance("90m")
    await clock.advance("6h")
    async with Runtime(storage=url, clock=clock):
        await every_hour(handler, catchup_mode=catchup)
        await clock.advance("1h")

    assert fired == expected


async def test_a_tick_carries_its_instant_and_the_date_where_it_lives(
    runtime: Runtime, clock: FakeClock
) -> None:
    events: list[TriggerEvent] = []

    async def handler(event: TriggerEvent) -> None:
        events.append(event)

    await trigger_register(
        id="c",
        kind="cron",
        provider="cron",
        match={"schedule": "30 1 * * *", "timezone": "Asia/Tokyo"},
        handler=handler,
    )

    await clock.advance("24h")

    [event] = events
    assert (event.kind, event.provider, event.occurred_at) == (
        "tick",
        "cron",
        "2026-01-01T16:30:00Z",
    )
    assert event.occurred_at_date == "2026-01-02"
    assert event.dedupe_key == f"cron:c:{from_iso('2026-01-01T16:30:00Z') // 1000}"


async def test_a_dead_letter_is_replayed_and_resolved_or_discarded(lasting_url: str) -> None:
    working = False
    seen: list[Any] = []

    async def handler(event: TriggerEvent) -> str:
        if not working:
            raise RuntimeError("down")
        seen.append((event.id, event.get(PATH)))
        return "ok"

    async with Runtime(storage=lasting_url) as runtime:
        await on_channel(handler, retry={"max": 1})
        first, second = [await trigger_fire("t", n) for n in range(2)]
        letters = runtime.service(DeadLetters)
        assert (await letters.listed()).depth == 2

        failed = await letters.replay(str(first.dlq_entry_id))
        assert failed.status == "dlq"
        working = True
        handle = await letters.replay(str(first.dlq_entry_id))
        await letters.discard(str(second.dlq_entry_id))
        with pytest.raises(TriggerError, match="resolved"):
            await letters.replay(str(first.dlq_entry_id))
        with pytest.raises(TriggerError, match="no longer pending"):
            await letters.discard(str(second.dlq_entry_id))
        with pytest.raises(TriggerError, match="no dead letter"):
            await letters.get("dlq_x")
        left = await letters.listed()

    assert (handle.status, handle.replay_of_event_id) == ("dispatched", first.event_id)
    assert [payload for _, payload in seen] == [0]
    assert [entry["replay_of_event_id"] for entry in left.entries] == [first.event_id]


async def test_any_event_can_be_replayed_to_where_it_went(runtime: Runtime) -> None:
    seen: list[Any] = []
    await on_channel(lambda event: seen.append(event.get(PATH)), "a", dedupe_key="id")
    await on_channel(lambda event: seen.append(event.get(PATH)), "b")
    receipt = await channel_emit("x", "again")

    handles = await runtime.service(DeadLetters).replay_event(receipt.event_id)

    assert seen == ["again"] * 4
    assert [(h.binding_id, h.replay_of_event_id) for h in handles] == [
        ("a", receipt.event_id),
        ("b", receipt.event_id),
    ]
    with pytest.raises(TriggerError, match="no event"):
        await runtime.service(DeadLetters).replay_event("nothing")


async def test_a_stream_goes_on_where_it_was_and_takes_each_record_once(lasting_url: str) -> None:
    seen: list[Any] = []

    async def note(event: TriggerEvent) -> None:
        seen.append(event.get(PATH))

    async def follow() -> None:
        await trigger_register(
            id="s", kind="stream", provider="stream", match={"topic": "orders"}, handler=note
        )

    async with Runtime(storage=lasting_url) as first:
        await follow()
        await until_known(first, "stream:s")
        await event_log_emit("orders", "created", 1)
        await until(lambda: seen == [1])
        await first.service(Triggers).dispatcher.idle()
    async with Runtime(storage=lasting_url):
        await event_log_emit("orders", "created", 2)
    async with Runtime(storage=lasting_url):
        await follow()
        await event_log_emit("orders", "created", 3)
        await until(lambda: len(seen) == 3)

    assert sorted(seen) == [1, 2, 3]  # dispatches of one trigger run side by side


@pytest.mark.parametrize("tenant", ["a\x00b", 7, "x" * 257])
async def test_a_record_whose_tenant_cannot_be_kept_does_not_hold_up_the_others(
    lasting_url: str, tenant: Any
) -> None:
    seen: list[Any] = []

    async with Runtime(storage=lasting_url) as runtime:
        await trigger_register(
            id="s",
            kind="stream",
            provider="stream",
            match={"topic": "orders"},
            handler=lambda event: seen.append(event.get(PATH)),
        )
        await until_known(runtime, "stream:s")
        await event_log_emit("orders", "created", 1, headers={"tenant_id": tenant})
        await event_log_emit("orders", "created", 2)
        await until(lambda: bool(seen))

    assert seen == [2]


async def until_known(runtime: Runtime, name: str) -> None:
    """Wait until a source has written down where it begins."""
    store = runtime.service(Store)
    for _ in range(1000):
        if await store.run(lambda: cron_last(name), write=False) is not None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} never began")

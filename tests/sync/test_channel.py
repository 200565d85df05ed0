"""Channels by their front door: order, capacity, closing, selecting."""

from __future__ import annotations

import asyncio

import pytest

from harn import ChannelClosed, InvalidOption, Runtime, channel, channel_select, scope, spawn
from harn.testing import FakeClock


async def settle(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_values_come_out_in_the_order_they_went_in(runtime: Runtime) -> None:
    ch = channel("events", capacity=3)

    for each in (1, None, 3):
        await ch.send(each)

    assert len(ch) == 3
    assert [await ch.receive() for _ in range(3)] == [1, None, 3]


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "3", None])
def test_a_capacity_below_one_is_refused(capacity: object) -> None:
    with pytest.raises(InvalidOption, match="capacity"):
        channel("c", capacity=capacity)  # type: ignore[arg-type]


def test_a_channel_can_be_made_and_filled_where_no_loop_runs() -> None:
    ch = channel(capacity=2)

    assert (ch.try_send(1), ch.try_send(2), ch.try_send(3)) == (True, True, False)
    assert (ch.try_receive(), ch.try_receive(), ch.try_receive("none")) == (1, 2, "none")


async def test_H4_a_stored_none_is_told_apart_by_a_default_of_your_own(runtime: Runtime) -> None:
    ch, missing = channel(), object()

    ch.try_send(None)

    assert ch.try_receive(missing) is None
    assert ch.try_receive(missing) is missing


async def test_two_channels_of_one_name_are_two_channels() -> None:
    a, b = channel("x"), channel("x")

    a.try_send(1)

    assert b.try_receive() is None


async def test_a_full_channel_parks_its_senders_in_order(runtime: Runtime) -> None:
    ch = channel(capacity=1)
    async with scope() as s:
        for n in range(5):
            s.spawn(ch.send, n)
        await settle()
        assert len(ch) == 1

        assert [await ch.receive() for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_receivers_are_served_in_the_order_they_came(runtime: Runtime) -> None:
    ch, got = channel(), []

    async def receiver(name: str) -> None:
        got.append((name, await ch.receive()))

    async with scope() as s:
        for name in "abc":
            s.spawn(receiver, name)
        await settle()
        for n in range(3):
            ch.try_send(n)

    assert got == [("a", 0), ("b", 1), ("c", 2)]


async def test_no_receiver_overtakes_one_that_was_woken(runtime: Runtime) -> None:
    ch = channel()
    first = spawn(ch.receive)
    await settle()

    ch.try_send("for the first")

    assert ch.try_receive("nothing") == "nothing"
    assert await first == "for the first"


async def test_no_sender_overtakes_one_that_was_promised_room(runtime: Runtime) -> None:
    ch = channel(capacity=1)
    ch.try_send(1)
    parked = spawn(ch.send, 2)
    await settle()

    assert ch.try_receive() == 1
    assert ch.try_send(3) is False
    await parked

    assert ch.try_receive() == 2


async def test_H3_closing_lets_what_is_inside_drain(runtime: Runtime) -> None:
    ch = channel("c")
    await ch.send(1)

    ch.close()
    ch.close()

    assert ch.closed
    with pytest.raises(ChannelClosed, match="'c'"):
        await ch.send(2)
    with pytest.raises(ChannelClosed):
        ch.try_send(2)
    assert await ch.receive() == 1
    with pytest.raises(ChannelClosed):
        await ch.receive()
    assert ch.try_receive("empty") == "empty"


async def test_H3_closing_tells_blocked_senders_and_receivers(runtime: Runtime) -> None:
    full, empty = channel(capacity=1), channel()
    full.try_send(1)
    sender, receiver = spawn(full.send, 2), spawn(empty.receive)
    await settle()

    full.close()
    empty.close()

    for handle in (sender, receiver):
        with pytest.raises(ChannelClosed):
            await handle
    assert full.try_receive() == 1


async def test_a_sender_that_was_promised_room_loses_it_when_the_channel_closes(
    runtime: Runtime,
) -> None:
    ch = channel(capacity=1)
    ch.try_send(1)
    sender = spawn(ch.send, 2)
    await settle()

    ch.try_receive()
    ch.close()

    with pytest.raises(ChannelClosed):
        await sender
    assert len(ch) == 0


async def test_a_receiver_waits_for_a_value_that_may_come_back(runtime: Runtime) -> None:
    ch = channel()
    first = spawn(ch.receive)
    await settle()
    ch.try_send("value")
    ch.close()
    second = spawn(ch.receive)

    first.cancel()

    assert await second == "value"


async def test_iteration_ends_after_the_drain(runtime: Runtime) -> None:
    ch = channel("stream")

    async def produce() -> None:
        await ch.send("chunk 1")
        await ch.send("chunk 2")
        ch.close()

    spawn(produce)

    assert [chunk async for chunk in ch] == ["chunk 1", "chunk 2"]
    assert [chunk async for chunk in ch] == []


async def test_select_takes_one_value_and_names_the_channel(runtime: Runtime) -> None:
    a, b = channel("a"), channel("b")
    b.try_send("x")

    taken = await channel_select([a, b])

    assert taken is not None
    assert (taken.index, taken.value, taken.channel) == (1, "x", b)
    assert taken.as_dict() == {"index": 1, "value": "x", "channel": "b"}


async def test_H5_select_waits_for_the_first_and_leaves_the_others(runtime: Runtime) -> None:
    channels = [channel(str(n)) for n in range(3)]
    waiting = spawn(channel_select, channels)
    await settle()

    channels[2].try_send("c")
    channels[0].try_send("a")

    taken = await waiting
    assert taken and (taken.index, taken.value) == (2, "c")
    assert [len(each) for each in channels] == [1, 0, 0]


async def test_H5_no_ready_channel_starves(runtime: Runtime) -> None:
    channels = [channel(str(n)) for n in range(3)]
    for each in channels:
        for n in range(4):
            each.try_send(n)

    taken = [await channel_select(channels) for _ in range(12)]

    assert [each.index for each in taken if each] == [0, 1, 2] * 4


async def test_H5_two_selects_that_take_turns_do_not_starve_a_channel(runtime: Runtime) -> None:
    a, b, c = channel("a"), channel("b"), channel("c")
    for each in (a, b, c):
        for n in range(20):
            each.try_send(n)

    served = set()
    for _ in range(6):
        served.add((await channel_select([a, b])).channel.name)  # type: ignore[union-attr]
        await channel_select([a, c])

    assert served == {"a", "b"}


async def test_a_timed_select_is_none_when_time_is_up(runtime: Runtime, clock: FakeClock) -> None:
    a, b = channel("a"), channel("b")
    waiting = asyncio.ensure_future(channel_select([a, b], timeout="5s"))
    await settle()

    await clock.advance("5s")

    assert await waiting is None
    a.try_send(1)
    assert len(a) == 1
    assert await channel_select([a, b], timeout=0) is not None
    assert await channel_select([a, b], timeout=0) is None


async def test_select_over_closed_and_drained_channels_is_none(runtime: Runtime) -> None:
    a, b = channel("a"), channel("b")
    b.try_send("last")
    a.close()
    b.close()

    assert (await channel_select([a, b])).value == "last"  # type: ignore[union-attr]
    assert await channel_select([a, b]) is None


async def test_select_ends_when_the_last_open_channel_closes(runtime: Runtime) -> None:
    a, b = channel("a"), channel("b")
    waiting = spawn(channel_select, [a, b])
    await settle()

    a.close()
    await settle()
    assert not waiting.done()
    b.close()

    assert await waiting is None


@pytest.mark.parametrize("bad", [[], [1], None, ["a"], 5])
async def test_select_refuses_what_is_not_a_list_of_channels(runtime: Runtime, bad: object) -> None:
    with pytest.raises(InvalidOption, match="channels"):
        await channel_select(bad)  # type: ignore[call-overload]


async def test_select_on_one_channel_twice_takes_once(runtime: Runtime) -> None:
    a = channel("a")
    waiting = spawn(channel_select, [a, a])
    await settle()

    a.try_send(1)
    a.try_send(2)

    taken = await waiting
    assert taken and taken.value == 1
    assert len(a) == 1


async def test_silent_channels_do_not_collect_the_selects_that_left(runtime: Runtime) -> None:
    busy, silent = channel("busy"), channel("silent")

    for n in range(1000):
        waiting = asyncio.ensure_future(channel_select([silent, busy]))
        await asyncio.sleep(0)
        busy.try_send(n)
        await waiting

    assert len(silent._receivers) < 200

"""Mailboxes: found by name, closed once, counted exactly."""

from __future__ import annotations

import asyncio

import pytest

from harn import (
    InvalidOption,
    MailboxClosed,
    Runtime,
    mailbox_lookup,
    mailbox_open,
    mailbox_send,
    spawn,
)


async def test_a_message_finds_its_reader_by_name(runtime: Runtime) -> None:
    inbox = mailbox_open("reviewer", capacity=32)

    async def worker() -> bool:
        return await mailbox_send("reviewer", {"kind": "work", "path": "src/main.rs"})

    sent = spawn(worker)

    assert (await inbox.receive())["kind"] == "work"
    assert await sent is True


async def test_H7_sending_to_a_mailbox_that_is_not_there_is_false(runtime: Runtime) -> None:
    box = mailbox_open("box")
    box.close()

    assert await mailbox_send("nobody", 1) is False
    assert await mailbox_send(box, 1) is False
    assert await mailbox_send("box", 1) is False
    assert box.metrics().failed_send_count == 2


async def test_H7_a_full_mailbox_makes_its_sender_wait(runtime: Runtime) -> None:
    box = mailbox_open("box", capacity=1)
    await box.send("first")
    second = spawn(box.send, "second")
    await asyncio.sleep(0)
    assert not second.done()

    assert await box.receive() == "first"
    assert await second is True
    assert await box.receive() == "second"


async def test_a_blocked_sender_learns_that_the_mailbox_closed(runtime: Runtime) -> None:
    box = mailbox_open("box", capacity=1)
    await box.send(1)
    blocked = spawn(box.send, 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert (box.close(), box.close()) == (True, False)

    assert await blocked is False
    assert box.metrics().as_dict() == {
        "capacity": 1,
        "depth": 1,
        "sent_count": 1,
        "received_count": 0,
        "failed_send_count": 1,
        "closed": True,
    }


async def test_messages_inside_stay_receivable_after_close(runtime: Runtime) -> None:
    box = mailbox_open("box")
    await box.send(None)
    box.close()

    assert box.closed
    assert await box.receive() is None
    with pytest.raises(MailboxClosed, match="'box'"):
        await box.receive()
    assert box.try_receive("empty") == "empty"
    assert [each async for each in box] == []


async def test_opening_again_ignores_capacity_and_lookup_makes_nothing(runtime: Runtime) -> None:
    assert mailbox_lookup("box") is None
    box = mailbox_open("box", capacity=3)

    assert mailbox_open("box", capacity=9) is box
    assert mailbox_lookup("box") is box
    assert box.metrics().capacity == 3
    assert mailbox_lookup("box", scope="process") is None


async def test_boxes_of_a_scope_are_reached_through_that_scope(runtime: Runtime) -> None:
    box = mailbox_open("box", scope="process")

    assert await mailbox_send("box", 1) is False
    assert await mailbox_send("box", 1, scope="process") is True
    assert await mailbox_send(box, 2) is True
    assert len(box) == 2


async def test_bad_names_capacities_and_targets_are_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="capacity"):
        mailbox_open("box", capacity=0)
    with pytest.raises(InvalidOption, match="name"):
        mailbox_open("")
    with pytest.raises(InvalidOption, match="target"):
        await mailbox_send(5, 1)  # type: ignore[call-overload]
    assert mailbox_lookup("box") is None

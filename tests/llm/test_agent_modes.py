"""agent_loop until the model says that it is done, and as a daemon with a mailbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harn import (
    Child,
    Err,
    InvalidOption,
    Mailbox,
    Message,
    Restart,
    TaskCancelled,
    agent_loop,
    cancel_graceful,
    event_log_read,
    mailbox_open,
    sleep,
    spawn,
    supervisor_start,
    unsettled_state,
)
from harn.testing.fake_provider import Say
from tests.llm.served_models import FORMATS, models


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_DURABLE", "0")


class Gate:
    """A tool that says when it was entered, and ends when it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.passed = 0

    async def look(self) -> str:
        """Look."""
        self.entered.set()
        while not self.let_go.is_set():
            await sleep("1ms")  # a wait of harn's: a graceful stop could be raised in it
        self.passed += 1
        return "seen"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_loop_until_done_goes_on_after_an_answer_without_tools(kind: str) -> None:
    script = [
        Say("I shall begin"),
        Say(tool_calls=[("add", {"a": 2, "b": 3})]),
        Say("almost"),
        Say("so", tool_calls=[("done", {"result": "it is 5"})]),
    ]
    async with models(script, kind) as server:
        result = await agent_loop("2+3?", tools=[add], until_done=True)

    assert (result.text, result.stop, result.done, result.iterations) == (
        "it is 5",
        "done",
        True,
        4,
    )
    nudges = [each for each in result.messages if each.role == "user"][1:]
    assert len(nudges) == 2
    assert all("`done`" in each.text for each in nudges)
    assert len(server.received) == 4


async def test_tools_that_are_called_beside_done_run_too() -> None:
    called = []

    async def tidy() -> None:
        """Tidy up."""
        called.append(True)

    async with models([Say("bye", tool_calls=[("done", {}), ("tidy", {})])]):
        result = await agent_loop("go", tools=[tidy], until_done=True)

    assert (result.text, called) == ("bye", [True])


async def test_a_wrong_call_of_done_is_told_to_the_model() -> None:
    script = [
        Say(tool_calls=[("done", {"result": 5})]),
        Say(tool_calls=[("done", {"result": "5"})]),
    ]
    async with models(script):
        result = await agent_loop("go", until_done=True)

    assert (result.text, result.iterations) == ("5", 2)
    assert [each.is_error for each in result.messages if each.role == "tool"] == [True, False]


async def test_a_loop_that_is_never_done_runs_out_of_turns() -> None:
    async with models(lambda body: Say("on and on")):
        result = await agent_loop("go", until_done=True, max_iterations=3)

    assert (result.text, result.stop, result.iterations) == ("on and on", "max_iterations", 3)


async def test_without_until_done_there_is_no_tool_done() -> None:
    async with models([Say("hi")]) as server:
        await agent_loop("hello", tools=[add])

    assert [tool["function"]["name"] for tool in server.received[0].body["tools"]] == ["add"]


async def done() -> None:
    """A tool with the built-in one's name."""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"until_done": True, "tools": [done]}, "until_done=True brings its own"),
        ({"until_done": 1}, "until_done"),
        ({"mode": "demon"}, "mode"),
        ({"mode": "daemon"}, "mailbox"),
        ({"mode": "daemon", "mailbox": "inbox"}, "mailbox"),
        ({"keep_turns": 0}, "keep_turns"),
    ],
)
async def test_bad_modes_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    async with models():
        with pytest.raises(InvalidOption, match=named):
            await agent_loop("go", **options)


async def test_a_mailbox_needs_a_daemon() -> None:
    async with models():
        with pytest.raises(InvalidOption, match="mailbox"):
            await agent_loop("go", mailbox=mailbox_open("inbox"))


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_daemon_takes_a_turn_for_each_message_until_its_mailbox_is_closed(
    kind: str,
) -> None:
    script = [Say("one"), Say(tool_calls=[("add", {"a": 1, "b": 1})]), Say("two"), Say("three")]
    async with models(script, kind) as server:
        inbox = mailbox_open("inbox")
        for mail in ("first", {"pr": 7}, Message("user", "third")):
            await inbox.send(mail)
        inbox.close()
        result = await agent_loop("watch the inbox", tools=[add], mode="daemon", mailbox=inbox)
        events = await event_log_read("agents.lifecycle")

    assert (result.text, result.stop, result.done) == ("three", "closed", False)
    assert (result.iterations, result.tool_calls, len(server.received)) == (4, 1, 4)
    asked = [each.text for each in result.messages if each.role == "user"]
    assert asked == ["watch the inbox", "first", '{"pr":7}', "third"]
    kinds = [event.kind for event in events]
    assert kinds.count("agent_turn_ended") == 3
    assert kinds[-1] == "agent_finished"


async def test_the_task_of_a_daemon_is_no_turn() -> None:
    async with models() as server:
        inbox = mailbox_open("inbox")
        inbox.close()

        result = await agent_loop("watch", mode="daemon", mailbox=inbox)

    assert (result.text, result.stop, result.iterations) == ("", "closed", 0)
    assert server.received == []


async def test_a_daemon_keeps_the_scene_and_its_last_turns() -> None:
    async with models(lambda body: Say("ok")) as server:
        inbox = mailbox_open("inbox")
        for number in range(5):
            await inbox.send(f"mail {number}")
        inbox.close()
        result = await agent_loop("watch", mode="daemon", mailbox=inbox, keep_turns=2)

    last = [each["content"] for each in server.received[-1].body["messages"]]
    assert last == ["watch", "mail 2", "ok", "mail 3", "ok", "mail 4"]
    assert [each.text for each in result.messages] == ["watch", "mail 3", "ok", "mail 4", "ok"]


async def test_a_turn_that_is_not_done_in_time_does_not_end_a_daemon() -> None:
    script = [Say(tool_calls=[("add", {"a": 1, "b": 1})])] * 2 + [Say("fine")]
    async with models(script):
        inbox = mailbox_open("inbox")
        await inbox.send("first")
        await inbox.send("second")
        inbox.close()
        result = await agent_loop(
            "watch", tools=[add], mode="daemon", mailbox=inbox, max_iterations=2
        )

    assert (result.text, result.iterations) == ("fine", 3)


def asked_twice(body: dict[str, Any]) -> Say:
    """Call the tool once in each turn, then answer."""
    last = body["messages"][-1]
    return Say("done") if last["role"] == "tool" else Say(tool_calls=[("look", {})])


async def test_a_graceful_stop_lets_the_turn_end_and_leaves_the_mail() -> None:
    gate, inbox = Gate(), None
    async with models(asked_twice) as server:
        inbox = mailbox_open("inbox")
        await inbox.send("first")
        await inbox.send("second")
        agent = spawn(lambda: agent_loop("watch", tools=[gate.look], mode="daemon", mailbox=inbox))
        await gate.entered.wait()
        stopping = spawn(cancel_graceful, agent, "30s")
        while not agent._task.cancel_requested:
            await asyncio.sleep(0)
        gate.let_go.set()
        outcome = await stopping

        assert isinstance(outcome, Err)
        assert isinstance(outcome.error, TaskCancelled)
        assert agent.status == "cancelled"
        assert (gate.passed, len(server.received)) == (1, 2)
        assert inbox.try_receive() == "second"


async def test_a_graceful_stop_ends_a_daemon_that_waits_for_mail() -> None:
    async with models() as server:
        inbox: Mailbox[Any] = mailbox_open("inbox")
        agent = spawn(lambda: agent_loop("watch", mode="daemon", mailbox=inbox))
        while not agent._task.parked:
            await asyncio.sleep(0)

        assert unsettled_state().suspended_subagents == []
        outcome = await cancel_graceful(agent, "30s")

    assert isinstance(outcome, Err)
    assert server.received == []


async def test_a_daemon_in_a_turn_is_unsettled_and_between_turns_is_not() -> None:
    gate = Gate()
    async with models(asked_twice):
        inbox = mailbox_open("inbox")
        agent = spawn(lambda: agent_loop("watch", tools=[gate.look], mode="daemon", mailbox=inbox))
        await inbox.send("first")
        await gate.entered.wait()

        [opened] = unsettled_state().suspended_subagents

        assert opened.task_id == agent.task_id
        gate.let_go.set()
        inbox.close()
        await agent
        assert unsettled_state().suspended_subagents == []


async def test_a_cancelled_daemon_stops_in_its_turn() -> None:
    gate = Gate()
    async with models(asked_twice):
        inbox = mailbox_open("inbox")
        agent = spawn(lambda: agent_loop("watch", tools=[gate.look], mode="daemon", mailbox=inbox))
        await inbox.send("first")
        await gate.entered.wait()
        agent.cancel()
        await agent._join()

        assert (agent.status, gate.passed) == ("cancelled", 0)
        assert unsettled_state().suspended_subagents == []


async def test_a_supervised_daemon_drains_when_its_supervisor_stops() -> None:
    gate = Gate()
    async with models(asked_twice):
        inbox = mailbox_open("inbox")

        async def persona(context: Any) -> None:
            await agent_loop("watch", tools=[gate.look], mode="daemon", mailbox=inbox)

        sup = await supervisor_start(
            name="captain",
            children=[
                Child("inbox-loop", persona, "persona_loop", Restart("always", max_restarts=10))
            ],
            shutdown_ms=30_000,
        )
        await inbox.send("first")
        await gate.entered.wait()
        stopping = spawn(sup.stop)
        await asyncio.sleep(0)
        gate.let_go.set()
        state = await stopping

    assert gate.passed == 1
    assert [child.status for child in state.children] == ["stopped"]

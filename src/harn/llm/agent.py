"""The agent loop: call the model, run the tools that it asks for, call it with the results.

`mode="once"` is one turn. A daemon has one turn for each message of its mailbox.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack, get_args

from harn import topics
from harn.current import current_frame, current_runtime
from harn.error_text import error_text
from harn.errors import ClaimLost, InvalidOption, MailboxClosed, StepChanged, did_you_mean
from harn.graceful_stop import shielded
from harn.llm.agent_steps import AgentSteps, ToolOutcome
from harn.llm.call import LlmOptions, llm_call
from harn.llm.conversation import AgentResult, Conversation, OpenAgents, Stop
from harn.llm.done_tool import CONTINUE, DONE, done
from harn.llm.messages import LlmResult, Message, ToolCall
from harn.llm.tools import Tool, as_text, tools_of
from harn.option_checks import whole_number
from harn.sync import Mailbox
from harn.tasks import is_async_callable, parallel_each, spawn

MOST_TOOLS_AT_ONCE = 8

OPTIONS = frozenset(inspect.signature(llm_call).parameters) - {"prompt", "system", "tools"}
"""The options that `agent_loop` passes to each call of the model."""

Mode = Literal["once", "daemon"]


@dataclass(frozen=True, slots=True)
class _Agent:
    """What stays the same in all turns of one loop."""

    system: str | None
    tools: Mapping[str, Tool]
    max_iterations: int
    max_concurrent_tools: int
    until_done: bool
    options: Mapping[str, Any]
    steps: AgentSteps


async def agent_loop(
    task: str | Sequence[Message],
    system: str | None = None,
    *,
    tools: Sequence[Callable[..., Any] | Tool] = (),
    max_iterations: int = 24,
    max_concurrent_tools: int = MOST_TOOLS_AT_ONCE,
    until_done: bool = False,
    mode: Mode = "once",
    mailbox: Mailbox[Any] | None = None,
    keep_turns: int = 20,
    **options: Unpack[LlmOptions],
) -> AgentResult:
    """Let a model work on *task* with *tools* until it answers without calling one.

    Tools are typed functions, async or plain. Tools that the model asks for together run
    concurrently, at most *max_concurrent_tools* at once. The error of a tool that fails, or is
    called with wrong arguments, goes to the model, which may try something else. *options* are
    those of `llm_call`.

    With *until_done* an answer without a tool call does not end the loop: the model is asked to
    continue until it calls the built-in tool `done`, whose argument becomes the result's text.

    With `mode="daemon"` it takes one turn for each message of *mailbox*, until the mailbox is
    closed and empty; *task* sets the scene and is no turn. *max_iterations* then holds for each
    turn, and the conversation has the scene and the last *keep_turns* turns. A graceful stop lets
    the turn under way end and raises `TaskCancelled`; messages that wait stay in the mailbox.

    Inside a job or a durable pool task every model call and every tool call is a `step`: a loop
    that was killed continues after its last recorded one, and repeats no call before it. A daemon
    starts again: the messages of its mailbox are not stored.

    Cancelling cancels the call or the tools under way and waits until they have ended. A daemon's
    message of that turn is used up.

    >>> import asyncio
    >>> from harn import llm_provider
    >>> from harn.llm.http import Secret
    >>> from harn.llm.openai import OpenAICompatible
    >>> from harn.testing import fresh_runtime
    >>> from harn.testing.fake_provider import FakeModels, Say
    >>> def add(a: int, b: int) -> int:
    ...     return a + b
    >>> async def main() -> str:
    ...     script = [Say(tool_calls=[("add", {"a": 2, "b": 3})]), Say("The sum is 5.")]
    ...     async with fresh_runtime(), FakeModels(script) as models:
    ...         client = OpenAICompatible("local", models.openai_url, Secret("no key"))
    ...         llm_provider("local", client, default_model="small")
    ...         result = await agent_loop("What is 2 + 3?", tools=[add])
    ...         await client.aclose()
    ...         return result.text
    >>> asyncio.run(main())
    'The sum is 5.'
    """
    _check_mode(mode, mailbox)
    steps = AgentSteps(remembers=mode == "once")
    agent = _checked(
        system, tools, max_iterations, max_concurrent_tools, until_done, options, steps
    )
    whole_number("keep_turns", keep_turns, least=1)
    talk = Conversation([Message("user", task)] if isinstance(task, str) else list(task))
    _record("agent_started", {"tools": sorted(agent.tools), "max_iterations": max_iterations})
    if mailbox is not None:
        return await _serve(agent, talk, mailbox, keep_turns)
    return _ended(*await _turn(agent, talk), talk)


async def _serve(
    agent: _Agent, talk: Conversation, mailbox: Mailbox[Any], keep_turns: int
) -> AgentResult:
    """Take one turn for each message, until the mailbox is closed and empty."""
    scene = len(talk.messages)
    turns: deque[int] = deque()  # how many messages each kept turn has
    text = ""
    while True:
        try:
            mail = await mailbox.receive()
        except MailboxClosed:
            return _ended("closed", text, talk)
        before = len(talk.messages)
        talk.messages.append(mail if isinstance(mail, Message) else Message("user", as_text(mail)))
        with shielded():  # a graceful stop waits for the end of the turn
            stop, text = await _turn(agent, talk)
        _record("agent_turn_ended", {"iterations": talk.iteration, "stop": stop})
        turns.append(len(talk.messages) - before)
        if len(turns) > keep_turns:
            del talk.messages[scene : scene + turns.popleft()]


async def _turn(agent: _Agent, talk: Conversation) -> tuple[Stop, str]:
    """Call the model and run its tools until it is done; return why it ended, and its text."""
    runner = current_frame().task
    with runner.runtime.service(OpenAgents).opened(talk, runner):
        for _ in range(agent.max_iterations):
            talk.iteration += 1
            reply = await agent.steps.model(partial(_ask, agent, talk))
            talk.add_reply(reply)
            if not reply.tool_calls and not agent.until_done:
                return "done", reply.text
            results = await parallel_each(
                reply.tool_calls,
                lambda call: _run_tool(agent, call),
                max_concurrent=agent.max_concurrent_tools,
            )
            talk.messages += results
            for call, result in zip(reply.tool_calls, results, strict=True):
                if agent.until_done and call.name == DONE and not result.is_error:
                    return "done", result.text or reply.text
            if not reply.tool_calls:
                talk.messages.append(CONTINUE)
    return "max_iterations", reply.text


def _checked(
    system: str | None,
    tools: Sequence[Callable[..., Any] | Tool],
    max_iterations: int,
    max_concurrent_tools: int,
    until_done: bool,
    options: Mapping[str, Any],
    steps: AgentSteps,
) -> _Agent:
    whole_number("max_iterations", max_iterations, least=1)
    for name in options:
        if name not in OPTIONS:
            raise TypeError(
                f"agent_loop() got an unexpected keyword argument {name!r}"
                f"{did_you_mean(name, sorted(OPTIONS))}"
            )
    if not isinstance(until_done, bool):
        raise InvalidOption("until_done", until_done, "True or False")
    known = tools_of(tools)
    if until_done:
        if DONE in known:
            accepted = f"no tool named {DONE!r}: until_done=True brings its own"
            raise InvalidOption("tools", DONE, accepted)
        known = {**known, DONE: Tool(done)}
    return _Agent(system, known, max_iterations, max_concurrent_tools, until_done, options, steps)


def _check_mode(mode: Mode, mailbox: Mailbox[Any] | None) -> None:
    if mode not in get_args(Mode):
        raise InvalidOption("mode", mode, '"once" or "daemon"')
    if mode == "daemon" and not isinstance(mailbox, Mailbox):
        raise InvalidOption("mailbox", mailbox, 'a mailbox of mailbox_open() with mode="daemon"')
    if mode == "once" and mailbox is not None:
        raise InvalidOption("mailbox", mailbox, 'None, or mode="daemon" with it')


async def _ask(agent: _Agent, talk: Conversation) -> LlmResult:
    specs = [tool.spec for tool in agent.tools.values()]
    reply: LlmResult = await llm_call(talk.messages, agent.system, tools=specs, **agent.options)
    _record("agent_model_called", {"iteration": talk.iteration, **reply.as_dict()["usage"]})
    return reply


async def _run_tool(agent: _Agent, call: ToolCall) -> Message:
    """Run one tool and return the message for the model: its result, or its error."""
    name = call.name if call.name in agent.tools else "no tool"
    text, failed = await agent.steps.tool(call, name, partial(_called, agent.tools, call))
    return Message("tool", text, tool_call_id=call.id, is_error=failed)


async def _called(known: Mapping[str, Tool], call: ToolCall) -> ToolOutcome:
    text, failed = await _outcome(known, call)
    _record("agent_tool_called", {"tool": call.name, "call_id": call.id, "failed": failed})
    return text, failed


async def _outcome(known: Mapping[str, Tool], call: ToolCall) -> ToolOutcome:
    tool = known.get(call.name)
    if tool is None:
        return f"there is no tool {call.name!r}; the tools are: {', '.join(known) or 'none'}", True
    try:
        arguments = tool.arguments(call.arguments)
    except ValueError as error:
        return f"the arguments do not fit: {error}", True
    try:
        if is_async_callable(tool.fn):
            return as_text(await tool.fn(**arguments)), False
        return as_text(await spawn(lambda: tool.fn(**arguments), name=tool.name)), False
    except (ClaimLost, StepChanged):
        raise  # these end the attempt; the model cannot do anything about them
    except Exception as error:
        return error_text(error), True


def _ended(stop: Stop, text: str, talk: Conversation) -> AgentResult:
    result = AgentResult(
        text, stop, talk.iteration, talk.usage, tuple(talk.messages), talk.tool_calls
    )
    summary = result.as_dict()
    del summary["text"]
    _record("agent_finished", summary)
    return result


def _record(kind: str, payload: dict[str, Any]) -> None:
    """Write an event to the log; it never has the text of a message."""
    task = current_frame().task
    current_runtime().event_log.record(
        topics.AGENTS, kind, {"task_id": task.id, "tenant_id": task.ambient.tenant_id, **payload}
    )

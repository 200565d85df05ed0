"""`a2a-sdk` as an independent peer: its server gets our events, its client reaches our triggers.

It is in the dependency group `interop`; without it these tests are not collected.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("a2a", reason="needs the group `interop`")

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import get_data_parts, new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, Role, SendMessageRequest
from starlette.applications import Starlette

from harn import Runtime, trigger_fire, trigger_register
from harn.portal import Listening, bind
from harn.triggers import A2aTarget
from tests.orchestrator.served import site

pytestmark = pytest.mark.filterwarnings("ignore")


class Agent(AgentExecutor):
    """An agent that notes what it was told and answers."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def execute(self, context: Any, event_queue: Any) -> None:
        self.told += get_data_parts(context.message.parts)
        await event_queue.enqueue_event(new_text_message("noted", role=Role.ROLE_AGENT))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        raise NotImplementedError


def card(url: str) -> AgentCard:
    interface = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(
        name="peer",
        description="a peer",
        version="1",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["application/json", "text/plain"],
        default_output_modes=["text/plain"],
    )


async def test_an_a2a_sdk_server_takes_our_event_as_a_message() -> None:
    agent = Agent()
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card("http://127.0.0.1/"))
    app = Starlette(routes=create_jsonrpc_routes(handler, "/agent"))
    async with Runtime(), Listening(app, bind("127.0.0.1", 0)) as listening:
        target = A2aTarget(f"a2a+http://{listening.address}/agent", allow=["127.0.0.1"])
        await trigger_register(
            id="t",
            kind="channel.emit",
            provider="channel",
            match={},
            handler=target,
            retry={"max": 1},
        )
        handle = await trigger_fire("t", {"n": 1})

    assert handle.error is None
    assert handle.result["result"]["message"]["parts"][0]["text"] == "noted"
    assert agent.told[0]["provider_payload"]["payload"] == {"n": 1}


async def test_an_a2a_sdk_client_reaches_our_trigger() -> None:
    headers = {"authorization": "Bearer key of acme 12345"}
    async with site() as served, httpx.AsyncClient(headers=headers, trust_env=False) as http:
        factory = ClientFactory(ClientConfig(streaming=False, httpx_client=http))
        client = factory.create(card(f"http://127.0.0.1:{served.port}/a2a"))
        message = new_text_message("please review", role=Role.ROLE_USER)
        answers = [each async for each in client.send_message(SendMessageRequest(message=message))]
        await served.settled()

    [event] = served.seen
    assert (event.kind, event.tenant_id) == ("a2a.task.received", "acme")
    assert event.get("provider_payload.payload.params.message.parts.0.text") == "please review"
    assert event.id in str(answers)

"""`a2a-sdk`'s own client, and its push notifications, against our `a2a-push` hook."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import (
    A2ACardResolver,
    AuthInterceptor,
    ClientCallContext,
    ClientConfig,
    ClientFactory,
    InMemoryContextCredentialStore,
)
from a2a.client.errors import A2AClientError, AgentCardResolutionError
from a2a.compat.v0_3.types import AgentCard as AgentCard03
from a2a.helpers.proto_helpers import (
    new_data_message,
    new_message,
    new_raw_part,
    new_text_message,
    new_text_part,
    new_text_status_update_event,
    new_url_part,
)
from a2a.server.context import ServerCallContext
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore
from a2a.types.a2a_pb2 import (
    AgentCard,
    AuthenticationInfo,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from a2a.utils.proto_utils import validate_proto_required_fields

from harn import trigger_register
from tests.orchestrator.served import Site, site

ACME, OTHER = "key of acme 12345", "key of other 6789"
BEARER = {"authorization": f"Bearer {ACME}"}


@contextlib.asynccontextmanager
async def peer(
    headers: dict[str, str] = BEARER, **options: Any
) -> AsyncIterator[tuple[Site, Any, AgentCard]]:
    """Yield our site, a client of the SDK that found it by its card, and that card."""
    async with site() as served, httpx.AsyncClient(headers=headers, trust_env=False) as http:
        card = await A2ACardResolver(http, f"http://127.0.0.1:{served.port}").get_agent_card()
        factory = ClientFactory(ClientConfig(httpx_client=http, **options))
        yield served, factory.create(card), card
        await served.settled()


async def send(client: Any, message: Message, **request: Any) -> Any:
    """Send *message* and return the task that answers it."""
    asked = SendMessageRequest(message=message, **request)
    [answer] = [each async for each in client.send_message(asked)]
    return answer.task


def hello(text: str = "please review") -> Message:
    return new_text_message(text, role=Role.ROLE_USER)


async def test_a_client_finds_the_hook_by_its_card_and_its_message_is_an_event() -> None:
    async with peer() as (served, client, _):
        task = await send(client, hello())

    [event] = served.seen
    assert (event.kind, event.tenant_id) == ("a2a.task.received", "acme")
    assert event.get("provider_payload.payload.params.message.parts.0.text") == "please review"
    assert (task.id, task.status.state) == (event.id, TaskState.TASK_STATE_SUBMITTED)


async def test_the_card_is_complete_for_readers_of_both_versions() -> None:
    async with peer() as (served, _, card):
        found = (await served.client.get("/.well-known/agent-card.json")).json()

    validate_proto_required_fields(card)
    old = AgentCard03.model_validate(found)
    assert (old.url, old.preferred_transport) == (f"http://127.0.0.1:{served.port}/a2a", "JSONRPC")
    assert old.capabilities.streaming is False
    assert set(old.security_schemes or {}) == {"bearer", "notificationToken"}


async def test_a_client_of_0_3_is_answered_in_its_terms() -> None:
    async with site() as served, httpx.AsyncClient(headers=BEARER, trust_env=False) as http:
        resolver = A2ACardResolver(http, f"http://127.0.0.1:{served.port}")
        card = await resolver.get_agent_card()
        old = [each for each in card.supported_interfaces if each.protocol_version == "0.3"]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(old)
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        message = hello()
        tasks = [await send(client, message) for _ in range(2)]
        await served.settled()

    [event] = served.seen
    assert event.get("provider_payload.payload.method") == "message/send"
    assert [task.id for task in tasks] == [event.id] * 2
    assert tasks[0].status.state == TaskState.TASK_STATE_SUBMITTED


async def test_every_kind_of_part_comes_through() -> None:
    parts = [
        new_text_part("a"),
        new_raw_part(b"\0\1", "image/png", "x.png"),
        new_url_part("https://x/"),
    ]
    async with peer() as (served, client, _):
        await send(client, new_message(parts, role=Role.ROLE_USER))
        for data in ({"n": 1}, [1], "text", None, False):
            await send(client, new_data_message(data, role=Role.ROLE_USER))

    assert len(served.seen) == 6


@pytest.mark.parametrize("scheme", ["bearer", "notificationToken"])
async def test_a_client_proves_itself_as_the_card_says(scheme: str) -> None:
    credentials = InMemoryContextCredentialStore()
    await credentials.set_credentials("s", scheme, ACME)
    context = ClientCallContext(state={"sessionId": "s"})
    async with site() as served, httpx.AsyncClient(trust_env=False) as http:
        factory = ClientFactory(ClientConfig(httpx_client=http))
        client = await factory.create_from_url(
            f"http://127.0.0.1:{served.port}/a2a", interceptors=[AuthInterceptor(credentials)]
        )
        asked = SendMessageRequest(message=hello())
        [answer] = [each async for each in client.send_message(asked, context=context)]
        await served.settled()

    assert [event.id for event in served.seen] == [answer.task.id]


async def test_a_client_without_a_key_is_refused() -> None:
    async with peer(headers={}) as (served, client, _):
        with pytest.raises(A2AClientError, match="401"):
            await send(client, hello())

    assert served.seen == []


async def test_a_message_that_is_sent_again_is_answered_like_the_first() -> None:
    message = hello()
    async with peer() as (served, client, _):
        first = await send(client, message)
        again = await send(client, message, metadata={"try": 2})  # in a new JSON-RPC envelope

    assert first == again
    assert len(served.seen) == 1


async def test_another_message_under_the_same_id_is_refused() -> None:
    message, other = hello(), hello("approve instead")
    other.message_id = message.message_id
    async with peer() as (served, client, _):
        await send(client, message)
        with pytest.raises(InvalidParamsError, match="came with another body before"):
            await send(client, other)

    assert len(served.seen) == 1


async def test_the_same_id_from_another_tenant_is_another_message() -> None:
    message = hello()
    async with peer() as (served, client, card):
        headers = {"authorization": f"Bearer {OTHER}"}
        await send(client, message)
        async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
            await send(ClientFactory(ClientConfig(httpx_client=http)).create(card), message)

    assert [event.tenant_id for event in served.seen] == ["acme", "other"]


async def test_a_message_that_the_trigger_does_not_want_is_a_rejected_task() -> None:
    async def handler(event: Any) -> None:
        raise AssertionError

    message = hello()
    async with peer() as (served, client, _):
        await trigger_register(
            id="on-agent",
            kind="a2a-push",
            provider="a2a-push",
            match={"filter": {"params.message.contextId": "ours"}},
            handler=handler,
        )
        tasks = [await send(client, message) for _ in range(2)]

    assert tasks[0] == tasks[1]
    assert tasks[0].status.state == TaskState.TASK_STATE_REJECTED
    assert served.seen == []


async def test_streaming_is_refused_as_the_card_says() -> None:
    """A client that believes the card does not stream; one that has another card is refused."""
    async with peer(streaming=True) as (served, client, card):
        assert not card.capabilities.streaming
        task = await send(client, hello())
        card.capabilities.streaming = True
        with pytest.raises(UnsupportedOperationError, match="streaming is not offered"):
            await send(client, hello())
        with pytest.raises(UnsupportedOperationError, match="streaming is not offered"):
            _ = [each async for each in client.subscribe(SubscribeToTaskRequest(id=task.id))]

    assert len(served.seen) == 1


async def test_what_is_not_offered_is_refused_by_the_protocols_own_errors() -> None:
    push = TaskPushNotificationConfig(task_id="t", url="https://x/")
    async with peer() as (served, client, _):
        with pytest.raises(UnsupportedOperationError):
            await client.get_task(GetTaskRequest(id="t"))
        with pytest.raises(UnsupportedOperationError):
            await client.list_tasks(ListTasksRequest())
        with pytest.raises(UnsupportedOperationError):
            await client.cancel_task(CancelTaskRequest(id="t"))
        with pytest.raises(PushNotificationNotSupportedError):
            await client.create_task_push_notification_config(push)
        with pytest.raises(PushNotificationNotSupportedError):
            await send(client, hello(), configuration={"task_push_notification_config": push})

    assert served.seen == []


@pytest.mark.parametrize("version", ["2.0", "0.2", "9" * 5000, "1.0,1.0", "one"])
async def test_another_version_is_refused_by_name(version: str) -> None:
    async with peer() as (served, client, _):
        context = ClientCallContext(service_parameters={"A2A-Version": version})
        asked = SendMessageRequest(message=hello())
        with pytest.raises(VersionNotSupportedError, match=r"1\.0 and 0\.3 are supported"):
            _ = [each async for each in client.send_message(asked, context=context)]

    assert served.seen == []


@pytest.mark.parametrize(
    "message",
    [
        Message(message_id="m", role=Role.ROLE_USER),
        Message(role=Role.ROLE_USER, parts=[new_text_part("x")]),
        Message(message_id="m" * 301, parts=[new_text_part("x")]),
        Message(message_id="m\0", parts=[new_text_part("x")]),
        Message(message_id="m", context_id="c" * 301, parts=[new_text_part("x")]),
        Message(message_id="m", parts=[{}]),
    ],
    ids=["no parts", "no id", "long id", "control", "long context", "empty part"],
)
async def test_a_message_that_is_none_is_bad_params(message: Message) -> None:
    async with peer() as (served, client, _):
        with pytest.raises(InvalidParamsError):
            await send(client, message)

    assert served.seen == []


async def notify(served: Site, event: Any, **config: Any) -> None:
    """Send *event* as the SDK's server sends push notifications."""
    store = InMemoryPushNotificationConfigStore()
    url = f"http://127.0.0.1:{served.port}/a2a"
    context = ServerCallContext()
    await store.set_info(
        "task-1", TaskPushNotificationConfig(task_id="task-1", url=url, **config), context
    )
    async with httpx.AsyncClient(trust_env=False) as http:
        await BasePushNotificationSender(http, store).send_notification("task-1", event)
    await served.settled()


@pytest.mark.parametrize(
    ("config", "tenants"),
    [
        ({"token": ACME}, ["acme"]),
        ({"authentication": AuthenticationInfo(scheme="Bearer", credentials=OTHER)}, ["other"]),
        (
            {
                "token": ACME,
                "authentication": AuthenticationInfo(scheme="Bearer", credentials=ACME),
            },
            ["acme"],
        ),
        (
            {"token": ACME, "authentication": AuthenticationInfo(scheme="Basic", credentials="x")},
            ["acme"],
        ),
        (
            {
                "token": ACME,
                "authentication": AuthenticationInfo(scheme="Bearer", credentials=OTHER),
            },
            [],
        ),
        ({"token": "wrong"}, []),
        ({}, []),
    ],
    ids=["token", "bearer", "both", "a gateway's own", "two tenants", "wrong", "none"],
)
async def test_a_push_notification_proves_itself_by_its_token_or_a_bearer_key(
    config: dict[str, Any], tenants: list[str]
) -> None:
    event = new_text_status_update_event("task-1", "c", TaskState.TASK_STATE_COMPLETED, "done")
    async with site() as served:
        for _ in range(2):  # the second is a repetition
            await notify(served, event, **config)

    assert [event.tenant_id for event in served.seen] == tenants
    for seen in served.seen:
        state = seen.get("provider_payload.payload.statusUpdate.status.state")
        assert state == "TASK_STATE_COMPLETED"
        assert ACME not in str(seen.as_dict()) and OTHER not in str(seen.as_dict())


async def test_there_is_no_card_where_no_hook_is_for_agents() -> None:
    async with site() as served, httpx.AsyncClient(trust_env=False) as http:
        served.intake.replace([])
        with pytest.raises(AgentCardResolutionError, match="404"):
            await A2ACardResolver(http, f"http://127.0.0.1:{served.port}").get_agent_card()

"""Requests that somebody made up: spliced, smuggled, overlong, or carrying secrets."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from harn import ManifestError, TriggerEvent, event_log_read, topics, trigger_fire, trigger_register
from harn.orchestrator import Hook, Key, read_manifest
from harn.portal import build_app
from harn.triggers import SCHEMES, Scheme, sign
from tests.orchestrator.served import NEW, Site, site


@pytest.mark.parametrize("method", [b"POST /hooks/github", b"GET /healthz", b"GET /metrics"])
async def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(
    method: bytes,
) -> None:
    body = b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % (method, len(body))
    async with site() as served:
        answer = await everything(served, head + b"Transfer-Encoding: chunked\r\n\r\n" + body)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1  # what came behind it is not answered
    assert b"connection: close" in answer.lower()
    assert served.seen == []


async def test_a_signed_request_with_two_lengths_is_refused_too() -> None:
    async with site() as served:
        signed = sign("github", NEW, b"{}", served.now())
        lines = [b"%s: %s" % (name.encode(), value.encode()) for name, value in signed.items()]
        head = [
            b"POST /hooks/github HTTP/1.1",
            b"Host: x",
            b"Content-Length: 2",
            b"Transfer-Encoding: chunked",
            *lines,
        ]
        request = b"\r\n".join(head) + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        answer = await everything(served, request)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert served.seen == []


@pytest.mark.parametrize("long", [b"/healthz?%s", b"/healthz HTTP/1.1\r\nX-Long: %s"])
async def test_a_head_of_more_than_64_KiB_is_refused_although_it_comes_in_one_piece(
    long: bytes,
) -> None:
    target = long % (b"x" * 66_000)
    version = b"" if b"HTTP" in long else b" HTTP/1.1"
    async with site() as served:
        answer = await everything(served, b"GET " + target + version + b"\r\nHost: x\r\n\r\n")
        alive = await served.client.get("/healthz", headers={"x-long": "x" * 60_000})

    # Which one depends on whether the whole head was there when the parser looked.
    assert answer.split(b" ")[1] in (b"431", b"400")
    assert alive.status_code == 200


async def test_a_long_header_that_the_parser_let_through_is_a_431() -> None:
    async with site() as served:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/healthz",
            "raw_path": b"/healthz",
            "query_string": b"",
            "headers": [(b"host", b"x"), (b"x-long", b"x" * 65_536)],
        }
        await build_app(served)(scope, refuse_to_read, send)

    assert sent[0]["status"] == 431
    assert (b"connection", b"close") in sent[0]["headers"]


async def refuse_to_read() -> Any:
    raise AssertionError("the body is not read")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("[::1]", 200),
        ("[::1]:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1:80", 200),
        ("[::1", 401),
        ("::1", 401),
        ("[::1].evil.test", 401),
        ("localhost:80:80", 401),
        ("evil.test", 401),
        ("localhost.evil.test", 401),
        ("[::2]", 401),
    ],
)
async def test_S7_this_machine_is_known_by_its_names_with_and_without_a_port(
    host: str, status: int
) -> None:
    async with site() as served:
        answer = await served.client.get("/version", headers={"host": host})

    assert answer.status_code == status


async def test_a_spliced_request_is_refused() -> None:
    """From one signature over `id.time.body` another id, time and body were made."""
    async with site() as served:
        now = served.now()
        body = b'{"note":"hi.%d.type=admin.grant&user=mallory&x="}' % now
        signed = sign("standard", NEW, body, now, "msg_A")
        front, rest = body.split(b".%d." % now, 1)
        forged = {**signed, "webhook-id": f"msg_A.{now}.{front.decode()}"}
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = await served.client.post(
            "/hooks/standard", content=rest, headers={**forged, **form}
        )
        genuine = await served.client.post("/hooks/standard", content=body, headers=signed)

    assert (answer.status_code, genuine.status_code) == (401, 202)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_content_type_that_is_not_signed_does_not_change_what_a_body_says(
    scheme: Scheme,
) -> None:
    payload = {"id": "e1", "type": "thing"}
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with site() as served:
        first = await served.send(scheme, payload, headers=form)
        again = await served.send(scheme, payload)
        await served.settled()

    assert (first.status_code, again.status_code) == (202, 200)
    assert [event.provider_payload["payload"] for event in served.seen] == [payload]


async def test_a_trigger_says_that_its_bodies_are_forms() -> None:
    async with site() as served:
        hook = Hook("on-slack", "/hooks/slack", "slack", "slack", (Key(NEW),), "form")
        served.intake.replace([hook])
        answer = await served.send("slack", b"command=%2Fdeploy&text=now")
        odd = await served.send("slack", b"\xff=1")
        await served.settled()

    assert (answer.status_code, odd.status_code) == (202, 400)
    assert odd.json() == {"error": "the body is not a form"}
    [event] = served.seen
    assert event.provider_payload["payload"] == {"command": "/deploy", "text": "now"}


async def test_a_stripe_retry_that_owes_fewer_deliveries_is_a_duplicate() -> None:
    event = {"id": "evt_1", "type": "invoice.paid", "pending_webhooks": 3, "data": {"n": 1}}
    async with site() as served:
        first = await served.send("stripe", event)
        retry = await served.send("stripe", {**event, "pending_webhooks": 1})
        turned = await served.send("stripe", dict(reversed(event.items())))
        other = await served.send("stripe", {**event, "data": {"n": 2}})
        inner = await served.send("stripe", {**event, "data": {"n": 1, "pending_webhooks": 1}})
        await served.settled()

    assert first.status_code == 202
    assert [answer.json()["status"] for answer in (retry, turned)] == ["duplicate"] * 2
    assert (other.status_code, inner.status_code) == (409, 409)
    assert len(served.seen) == 1


CREDENTIALS = (
    *("authorization", "x-password", "x-user-passwd", "x-session-id", "aws-credentials"),
    *("x-vendor-signature", "x-csrf-token", "cookie", "x-api-key", "apikey", "baggage"),
    *("x-shared-secret", "x-internal-badge"),
)


async def test_S13_headers_that_look_like_credentials_are_kept_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HARN_CREDENTIAL_HEADERS", "badge, stamp")
    caplog.set_level(logging.DEBUG, logger="harn")
    canaries = {name: f"canary-{name}" for name in CREDENTIALS}
    async with site() as served:
        await trigger_register(
            id="on-github",
            kind="webhook",
            provider="github",
            match={},
            handler=fails,
            retry={"max": 1},
        )
        await served.send("github", {"n": 1}, headers={**canaries, "X-GitHub-Event": "push"})
        await trigger_fire("on-github", {}, headers={**canaries, "x-plain": "yes"})
        await served.settled()
        stored = [
            e.as_dict()
            for t in topics.TOPICS
            if "<" not in t.name
            for e in await event_log_read(t.name)
        ]

    assert "canary" not in json.dumps(stored)
    assert "canary" not in caplog.text
    dead = [e["payload"] for e in stored if e["kind"] == "dlq_entry"]
    assert len(dead) == 2
    kept = [entry["event"]["headers"] for entry in dead]
    assert kept[0]["x-github-event"] == "push" and kept[1] == {"x-plain": "yes"}


async def fails(event: TriggerEvent) -> None:
    raise ValueError(str(event.headers))


async def everything(served: Site, request: bytes) -> bytes:
    """Send *request* and read until the other side closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("control", ["\0", "\n", "\x1b", "\x9b", "\u2028"], ids=ascii)
async def test_a_delivery_id_with_a_control_is_the_same_400_on_every_store(
    control: str, storage_url: str
) -> None:
    id = f"evt{control}1"
    message = {"params": {"message": {"messageId": id}}}
    agent = {"authorization": "Bearer key of acme 12345"}
    async with site(storage_url) as served:
        answers = [
            await served.send("stripe", {"id": id}),
            await served.send("slack", {"event_id": id}),
            await served.client.post("/a2a", json=message, headers=agent),
        ]

    assert [answer.status_code for answer in answers] == [400] * 3
    for answer in answers:
        assert answer.json() == {
            "error": "delivery id is not accepted: text without control characters"
        }


async def test_a_dedupe_key_with_a_control_is_a_400(storage_url: str) -> None:
    async with site(storage_url) as served:
        await trigger_register(
            id="on-github",
            kind="webhook",
            provider="github",
            match={},
            handler=fails,
            dedupe_key="provider_payload.payload.after",
        )
        answer = await served.send("github", {"after": "a\0b"})

    assert answer.status_code == 400
    assert answer.json() == {"error": "dedupe_key is not accepted: text without control characters"}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("webhook", '"xml"', "one of json, form"),
        ("webhook", "[1]", "one of json, form"),
        ("a2a-push", '"form"', "only for webhook"),
    ],
)
def test_a_body_format_that_is_none_is_a_mistake_of_the_manifest(
    kind: str, body: str, said: str, tmp_path: Path
) -> None:
    provider = "github" if kind == "webhook" else kind
    (tmp_path / "harn.toml").write_text(
        f'[[triggers]]\nid = "t"\nkind = "{kind}"\nprovider = "{provider}"\n'
        f'handler = "worker://q"\nbody = {body}\n'
    )
    with pytest.raises(ManifestError, match=rf"body: {said}"):
        read_manifest(tmp_path)

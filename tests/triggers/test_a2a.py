"""`a2a://`: a real call to a remote agent, and everything it must not be talked into."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from harn import Runtime, TriggerError, trigger_fire, trigger_register
from harn.triggers import A2aTarget
from harn.triggers.allowed_hosts import check_allowed, read_url
from harn.triggers.http_client import MOST_BODY, post

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LOCAL = check_allowed(["a2a+http://127.0.0.1", "a2a+http://::1"])


class Peer:
    """A remote agent on loopback that answers as told."""

    def __init__(self, answer: bytes | Answer) -> None:
        self.answer = answer
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            headers[":path"] = head[0].split()[1]
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append((headers, body))
            if isinstance(self.answer, bytes):
                writer.write(self.answer)
                await writer.drain()
            else:
                await self.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def peer(
    answer: bytes | Answer, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Peer]:
    made = Peer(answer)
    server = await asyncio.start_server(made.handle, host, port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def reply(status: int, body: Any, *headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} x", f"Content-Length: {len(text)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + text


DONE = reply(200, {"jsonrpc": "2.0", "id": "x", "result": {"task": {"id": "t1"}}})


async def call(port: int, path: str = "/", **options: Any) -> Any:
    uri = f"a2a+http://127.0.0.1:{port}{path}"
    return await fire(A2aTarget(uri, allow=["a2a+http://127.0.0.1"], **options))


async def fire(target: A2aTarget) -> Any:
    await trigger_register(
        id="t", kind="channel.emit", provider="channel", match={}, handler=target, retry={"max": 1}
    )
    return await trigger_fire("t", {"n": 1}, headers={"x-secret-token": "canary"})


async def test_an_event_is_sent_as_a_message_and_the_answer_is_the_receipt() -> None:
    async with Runtime(), peer(DONE) as agent:
        handle = await call(agent.port, "/agent", token="the token of ours")

    [(headers, body)] = agent.requests
    sent = json.loads(body)
    assert handle.result == {"status": 200, "result": {"task": {"id": "t1"}}}
    assert (sent["method"], headers[":path"], headers["a2a-version"]) == (
        "SendMessage",
        "/agent",
        "1.0",
    )
    assert headers["authorization"] == "bearer the token of ours"
    message = sent["params"]["message"]
    assert message["parts"][0]["data"]["provider_payload"]["payload"] == {"n": 1}
    assert b"canary" not in body and "canary" not in str(headers)


async def test_a_chunked_answer_is_read() -> None:
    body = json.dumps({"jsonrpc": "2.0", "result": 1}).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked
    async with Runtime(), peer(answer) as agent:
        handle = await call(agent.port)

    assert handle.result["result"] == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(500, b""), "answered 500"),
        (reply(403, b""), "answered 403"),
        (reply(302, b"", "Location: http://169.254.169.254/"), "answered 302"),
        (reply(200, b"<html>"), "not JSON"),
        (reply(200, [1]), "not JSON-RPC"),
        (reply(200, {"error": {"code": -1, "message": "no"}}), "refused: no"),
        (reply(200, {"error": {}}), "refused: an error"),
        (reply(200, {"error": None}), "refused: an error"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"", "ended the connection too early"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "ended the connection too early"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "Content-Length is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n", "Content-Length is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}", "Content-Length is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n", "Content-Length is not a number"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            "Content-Length is not a number: '2, 3'",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
            "not just chunked",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n", "invalid chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "longer than"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MOST_BODY + 10), "longer than"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "ended the connection too early"),
        (reply(200, b"[" * 100_000), "not JSON"),
    ],
    ids=range(23),
)
async def test_S8_an_odd_answer_is_a_dead_letter_and_nothing_else(answer: bytes, said: str) -> None:
    async with Runtime(), peer(answer) as agent:
        handle = await call(agent.port)

    assert handle.status == "dlq"
    assert said in str(handle.error)
    assert len(agent.requests) == 1


async def test_a_peer_that_says_nothing_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with Runtime(), peer(silent) as agent:
        handle = await call(agent.port, timeout=0.1)

    assert handle.status == "dlq"


async def test_S8_loopback_is_refused_unless_it_is_listed() -> None:
    async with Runtime(), peer(DONE) as agent:
        await trigger_register(
            id="t",
            kind="channel.emit",
            provider="channel",
            match={},
            handler=f"a2a://127.0.0.1:{agent.port}/",
            retry={"max": 1},
        )
        handle = await trigger_fire("t")

    assert "not public" in str(handle.error)
    assert agent.requests == []


async def test_S8_a_resolver_that_changes_its_answer_gains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def flipping(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async with Runtime(), peer(DONE) as agent, peer(DONE, "127.0.0.2", agent.port) as other:
        monkeypatch.setattr(socket, "getaddrinfo", flipping)
        target = A2aTarget(
            f"a2a+http://rebind.example:{agent.port}/", allow=["a2a+http://127.0.0.1"]
        )
        handles = [await fire(target) for _ in range(2)]

    assert [handle.status for handle in handles] == ["dispatched", "dlq"]
    assert asked == ["rebind.example"] * 2  # once for each call: what was checked is connected to
    assert (len(agent.requests), other.requests) == (1, [])


@pytest.mark.parametrize(
    "allow",
    [
        [],
        ["127.0.0.1"],
        ["localhost", "127.0.0.0/8"],
        ["a2a+http://127.0.0.2", "a2a+http://peer.internal"],
        ["a2a://127.0.0.1"],
    ],
    ids=str,
)
async def test_clear_text_goes_only_to_a_host_that_is_listed_with_its_scheme(
    allow: list[str],
) -> None:
    async with Runtime(), peer(DONE) as agent:
        target = A2aTarget(f"a2a+http://127.0.0.1:{agent.port}/", allow=allow, token="canary")
        handle = await fire(target)

    assert "is not called without TLS" in str(handle.error)
    assert 'list "a2a+http://127.0.0.1" under `allow`' in str(handle.error)
    assert agent.requests == []


@pytest.mark.parametrize("listed", ["a2a+http://localhost", "a2a+http://127.0.0.0/8"])
async def test_a_list_is_matched_against_the_name_and_against_the_address(
    listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    async with Runtime(), peer(DONE) as agent:
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, port, *a, **o: [(*found, ("127.0.0.1", port))]
        )
        handle = await fire(A2aTarget(f"a2a+http://localhost:{agent.port}/", allow=[listed]))

    assert handle.status == "dispatched"
    assert len(agent.requests) == 1


async def test_a_header_with_a_line_break_is_not_sent() -> None:
    async with Runtime(), peer(DONE) as agent:
        url = read_url(f"http://127.0.0.1:{agent.port}/")
        with pytest.raises(TriggerError, match="line break"):
            await post(url, b"", {"X": "a\r\nEvil: 1"}, allowed=LOCAL, timeout=5)

    assert agent.requests == []


async def test_S13_the_token_is_in_no_error() -> None:
    async with Runtime(), peer(reply(500, b"")) as agent:
        handle = await call(agent.port, token="canary-token-1234")

    assert "canary" not in str(handle)

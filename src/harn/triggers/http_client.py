"""One HTTP request to an address that was checked.

The name is resolved once, and the connection goes to an address that `allowed_hosts.py` checked;
TLS still verifies the host's name. A redirect is returned as the answer and not followed. There
are no proxies, no cookies and no reuse of connections: a request has one connection, one deadline
and a limit on what it reads.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from harn.errors import TriggerError
from harn.tasks import deadline
from harn.triggers.allowed_hosts import Allowed, Url, choose_address

MOST_BODY = 1024 * 1024
MOST_HEAD = 32 * 1024

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_LENGTH = re.compile(r"[0-9]{1,12}", re.ASCII)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: its status, its headers with names in lower case, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def look_up(host: str, port: int) -> list[str]:
    """Return every address of *host*. Cancelling stops waiting."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TriggerError(f"{host} cannot be looked up: {error.strerror}") from None
    return [str(entry[4][0]) for entry in found]


async def post(
    url: Url,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed: Allowed,
    timeout: float,
    resolve: Resolve = look_up,
) -> Response:
    """Send *body* to *url* and read the answer, all within *timeout* seconds.

    Cancelling closes the connection; the other side may have received the request.
    """
    async with deadline(timeout):
        address = choose_address(url, await resolve(url.host, url.port), allowed)
        reader, writer = await _connect(url, address)
        try:
            writer.write(_head(url, body, headers) + body)
            await writer.drain()
            return await _read(reader)
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise TriggerError(
                f"{url.origin} ended the connection too early: {type(error).__name__}"
            ) from error
        finally:
            writer.transport.abort()


async def _connect(url: Url, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context() if url.scheme == "https" else None
    name = url.host if context is not None else None
    try:
        return await asyncio.open_connection(
            address, url.port, ssl=context, server_hostname=name, limit=MOST_HEAD
        )
    except OSError as error:
        raise TriggerError(f"{url.origin} cannot be reached: {error.strerror or error}") from error


def _head(url: Url, body: bytes, headers: Mapping[str, str]) -> bytes:
    default = 443 if url.scheme == "https" else 80
    host = url.origin.split("://", 1)[1]
    sent = {
        "Host": host.removesuffix(f":{url.port}") if url.port == default else host,
        "Content-Length": str(len(body)),
        "Connection": "close",
        "Accept-Encoding": "identity",
        **headers,
    }
    lines = [f"POST {url.target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise TriggerError("a header or path contains a line break; the request was not sent")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


async def _read(reader: asyncio.StreamReader) -> Response:
    lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    status = _STATUS.fullmatch(lines[0])
    if status is None:
        raise TriggerError("the answer is not HTTP")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = (part.strip() for part in line.decode("latin-1").partition(":"))
        before = headers.get(name.lower())
        headers[name.lower()] = value if before is None else f"{before}, {value}"
    return Response(int(status[1]), headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise TriggerError("the answer's Transfer-Encoding is not just chunked")
        return await _read_chunks(reader)
    if length is None:
        return await _read_up_to(reader, None)
    if not _LENGTH.fullmatch(length):
        raise TriggerError(f"the answer's Content-Length is not a number: {length[:40]!r}")
    return await _read_up_to(reader, int(length))


async def _read_up_to(reader: asyncio.StreamReader, length: int | None) -> bytes:
    found = b""
    while length is None or len(found) < length:
        part = await reader.read(min(65_536, MOST_BODY + 1 - len(found)))
        found += part
        if len(found) > MOST_BODY:
            raise TriggerError(f"the answer is longer than {MOST_BODY:,} bytes")
        if not part:
            if length is not None:
                raise EOFError
            break
    return found if length is None else found[:length]


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while True:
        line = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if line is None:
            raise TriggerError("the answer has an invalid chunk")
        size = int(line[1], 16)
        if len(found) + size > MOST_BODY:
            raise TriggerError(f"the answer is longer than {MOST_BODY:,} bytes")
        if size == 0:
            return found
        found += (await reader.readexactly(size + 2))[:size]

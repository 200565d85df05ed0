"""Read request bodies with limits, and write answers in JSON."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from harn.errors import DeadlineExceeded
from harn.escaping import to_json
from harn.option_checks import read_whole
from harn.orchestrator import Reply
from harn.tasks import deadline

MOST_BODY = 1024 * 1024
READ_WITHIN = 10.0
"""Seconds within which the whole body must arrive."""

HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


async def read_body(request: Request) -> bytes | Reply:
    """Read a body, or return why it is refused. Cancelling leaves the rest unread."""
    try:
        async with deadline(READ_WITHIN):
            body = await _within_bounds(request)
    except DeadlineExceeded:
        return closing(408, "the body took too long")
    except ClientDisconnect:
        return Reply(400, {"error": "the connection ended before the body did"})
    return closing(413, f"at most {MOST_BODY:,} bytes") if body is None else body


async def _within_bounds(request: Request) -> bytes | None:
    """Read the body; None if it is too long, by its Content-Length or by what arrives."""
    length = read_whole(request.headers.get("content-length", "0"))
    if length is None or length > MOST_BODY:
        return None
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


def closing(status: int, error: str) -> Reply:
    """Return a refusal after which the connection is closed: the rest is not read."""
    return Reply(status, {"error": error}, {"Connection": "close"})


def json_answer(reply: Reply) -> Response:
    """Return the response for *reply*."""
    return Response(
        to_json(dict(reply.body)),
        status_code=reply.status,
        headers={**HEADERS, **reply.headers},
        media_type="application/json",
    )

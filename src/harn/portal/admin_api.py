"""`/api/v1/`: operators' verbs, over HTTP and over the socket.

The verbs are those of `orchestrator/admin_verbs.py`. Over HTTP an operator's key is needed; over
the socket in the state directory, access to the file is the proof. A caller that accepts
`application/x-ndjson` gets lines of progress while it waits, then a line with the result or the
error. The work continues if the caller disconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from harn.errors import HarnError, InvalidOption, ManifestError, StorageError
from harn.escaping import to_json
from harn.orchestrator import NotNow, Options, Reply, Running, Verb, find_verbs
from harn.portal.http_messages import HEADERS, json_answer, read_body
from harn.triggers import NotFound

try:
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
except ImportError as _error:  # pragma: no cover - the extra is installed in tests
    raise ImportError("serving needs the extra: install harn-runtime[server]") from _error

logger: logging.Logger = logging.getLogger("harn.portal")

LINES = "application/x-ndjson"
TELL_EVERY = 0.5
"""Seconds between two lines of progress; they also show that the service is alive."""

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    422: "bad_manifest",
    500: "unexpected",
    503: "busy",
}


class Operated(Protocol):
    """The service that runs operators' verbs."""

    def operate(self, verb: Verb, options: Options) -> Running:
        """Start a verb."""


class AdminApi:
    """Answers the requests of operators, who have been authenticated before."""

    def __init__(self, service: Operated) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """Answer one request. Cancelling leaves the verb running."""
        try:
            running = await self._started(request)
        except Exception as error:
            return json_answer(refusal(error))
        if LINES in request.headers.get("accept", ""):
            return StreamingResponse(_lines(running), media_type=LINES, headers=HEADERS)
        try:
            return json_answer(Reply(200, await asyncio.shield(running.task)))
        except Exception as error:
            return json_answer(refusal(error))

    async def _started(self, request: Request) -> Running:
        if _is_foreign(request):
            raise _Refused(_coded(403, "this page may not act here"))
        path = request.scope["raw_path"].decode("ascii", "replace")
        if path == "/admin/reload":  # the path that the specification names
            path = "/api/v1/reload"
        found = find_verbs(path)
        fitting = [(verb, names) for verb, names in found if verb.method == request.method]
        if not fitting:
            raise _Refused(_no_such(request.method, sorted({verb.method for verb, _ in found})))
        [(verb, names)] = fitting
        return self._service.operate(verb, verb.read({**await _fields(request), **names}))


async def _fields(request: Request) -> dict[str, Any]:
    body = await read_body(request)
    if isinstance(body, Reply):
        raise _Refused(
            Reply(body.status, _coded(body.status, body.body["error"]).body, body.headers)
        )
    try:
        fields = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        fields = None
    if not isinstance(fields, dict):
        raise _Refused(_coded(400, "the body is not a JSON object"))
    return fields


async def _lines(running: Running) -> AsyncIterator[str]:
    """Yield progress until the end, then the result or the error."""
    while not running.task.done():
        yield to_json({"progress": running.said}) + "\n"
        await asyncio.wait((running.task,), timeout=TELL_EVERY)
    try:
        yield to_json({"result": running.task.result()}) + "\n"
    except (Exception, asyncio.CancelledError) as error:
        yield to_json(dict(refusal(error).body)) + "\n"


def _is_foreign(request: Request) -> bool:
    """Tell whether a web page of another origin sent the request."""
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def _no_such(method: str, allowed: list[str]) -> Reply:
    if not allowed:
        return _coded(404, "not found")
    refused = _coded(405, f"{method} is not allowed")
    return Reply(405, refused.body, {"Allow": ", ".join(allowed)})


class _Refused(Exception):
    """A request that is refused before a verb starts."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body["error"])
        self.reply = reply


def refusal(error: BaseException) -> Reply:
    """Return the answer for *error*."""
    if isinstance(error, _Refused):
        return error.reply
    for kind, status in (
        (InvalidOption, 400),
        (NotFound, 404),
        (NotNow, 503),
        (StorageError, 503),
        (ManifestError, 422),
        (HarnError, 409),
    ):
        if isinstance(error, kind):
            return _coded(status, str(error))
    if isinstance(error, asyncio.CancelledError):
        return _coded(503, "the service stopped before this ended")
    logger.error("an operator's request failed", exc_info=error)
    return _coded(500, f"unexpected {type(error).__name__}: {error}")


def _coded(status: int, error: str) -> Reply:
    return Reply(status, {"error": error, "code": CODES[status]})

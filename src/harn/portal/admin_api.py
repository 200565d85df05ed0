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
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from harn.error_text import error_text
from harn.errors import HarnError, InvalidOption, ManifestError, StorageError
from harn.escaping import to_json
from harn.orchestrator import ActedBy, Intake, NotNow, Options, Reply, Running, Verb, find_verbs
from harn.portal.dead_letter_export import export_letters
from harn.portal.http_messages import HEADERS, json_answer, read_body
from harn.portal.login import Operators, coded, is_foreign
from harn.portal.shared_reads import SharedReads
from harn.triggers import NotFound

logger: logging.Logger = logging.getLogger("harn.portal")

LINES = "application/x-ndjson"
EXPORT = "/api/v1/dead-letters/export"
TELL_EVERY = 0.5
"""Seconds between two lines of progress; they also show that the service is alive."""


class Operated(Protocol):
    """The service that runs operators' verbs."""

    @property
    def intake(self) -> Intake:
        """Its requests from outside."""

    def operate(self, verb: Verb, options: Options, by: ActedBy | None = None) -> Running:
        """Start a verb that acts; it is written down in the audit."""

    async def look(self, verb: Verb, options: Options) -> dict[str, Any]:
        """Run a verb that only looks."""


class AdminApi:
    """Answers the requests of operators. Over the socket there are no *operators* to ask."""

    def __init__(
        self, service: Operated, reads: SharedReads, operators: Operators | None = None
    ) -> None:
        self._service = service
        self._reads = reads
        self._operators = operators

    async def answer(self, request: Request) -> Response:
        """Answer one request. Cancelling leaves the verb running."""
        try:
            return await self._answer(request)
        except Exception as error:
            return json_answer(refusal(error))

    async def _answer(self, request: Request) -> Response:
        by = self._admitted(request)
        path = request.scope["raw_path"].decode("ascii", "replace")
        if path == EXPORT:
            return await self._export(request)
        verb, names = _verb_of(request, path)
        if verb.method == "GET":
            found = await self._look(verb, verb.read({**_query(request), **names}))
            if _wants_lines(request):
                return StreamingResponse(_one_line(found), media_type=LINES, headers=HEADERS)
            return json_answer(Reply(200, found))
        running = self._service.operate(verb, verb.read({**await _fields(request), **names}), by)
        running.task.add_done_callback(lambda _: self._reads.forget())
        if _wants_lines(request):
            return StreamingResponse(_lines(running), media_type=LINES, headers=HEADERS)
        return json_answer(Reply(200, await asyncio.shield(running.task)))

    def _admitted(self, request: Request) -> ActedBy:
        """Return who sent the request; raise if it may not be answered."""
        address = request.client.host if request.client else ""
        if self._operators is None:
            if is_foreign(request):
                raise _Refused(coded(403, "this page may not act here"))
            return ActedBy("the admin socket", "socket", address)
        operator = self._operators.find(request)
        looks = request.method == "GET"
        check = self._operators.refuse_to_look if looks else self._operators.refuse_to_act
        if (refused := check(request, operator)) is not None:
            raise _Refused(refused)
        assert operator is not None
        return ActedBy(operator.who, operator.via, address)

    async def _export(self, request: Request) -> Response:
        if request.method not in ("GET", "POST"):
            raise _Refused(_no_such(request.method, ["GET", "POST"]))
        runtime = self._service.intake.runtime
        if request.method == "GET":
            return await export_letters(runtime, request.query_params.getlist("id"))
        fields = await _fields(request)
        if fields.keys() - {"ids"} or not isinstance(fields.get("ids", []), list):
            raise InvalidOption("options", sorted(fields), "ids, a list of dead letters' ids")
        return await export_letters(runtime, fields.get("ids", []))

    async def _look(self, verb: Verb, options: Options) -> dict[str, Any]:
        found: dict[str, Any] = await self._reads.get(
            (verb.name, options), partial(self._service.look, verb, options)
        )
        return found


def _verb_of(request: Request, path: str) -> tuple[Verb, dict[str, str]]:
    if path == "/admin/reload":  # the path that the specification names
        path = "/api/v1/reload"
    found = find_verbs(path)
    for verb, names in found:
        if verb.method == request.method:
            return verb, names
    raise _Refused(_no_such(request.method, sorted({verb.method for verb, _ in found})))


def _query(request: Request) -> dict[str, str]:
    """Return the fields of the query; an empty one is not given."""
    fields: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in fields:
            raise InvalidOption("query", name, "each field once")
        if value:
            fields[name] = value
    return fields


def _wants_lines(request: Request) -> bool:
    return LINES in request.headers.get("accept", "")


async def _one_line(found: dict[str, Any]) -> AsyncIterator[str]:
    yield to_json({"result": found}) + "\n"


async def _fields(request: Request) -> dict[str, Any]:
    body = await read_body(request)
    if isinstance(body, Reply):
        raise _Refused(
            Reply(body.status, coded(body.status, body.body["error"]).body, body.headers)
        )
    try:
        fields = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        fields = None
    if not isinstance(fields, dict):
        raise _Refused(coded(400, "the body is not a JSON object"))
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


def _no_such(method: str, allowed: list[str]) -> Reply:
    if not allowed:
        return coded(404, "not found")
    refused = coded(405, f"{method} is not allowed")
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
            return coded(status, str(error))
    if isinstance(error, asyncio.CancelledError):
        return coded(503, "the service stopped before this ended")
    logger.error("an operator's request failed", exc_info=error)
    return coded(500, f"unexpected {error_text(error)}")

"""The HTTP application: requests to triggers, health, metrics, operators' verbs.

`orchestrator/intake.py` reads the body of a request to a trigger.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harn import __version__
from harn.clock import Clock
from harn.errors import InvalidOption, StorageError
from harn.orchestrator import SOCKET, Reply, queue_samples
from harn.portal.admin_api import AdminApi, Operated
from harn.portal.http_messages import HEADERS, closing, json_answer, read_body
from harn.portal.live_events import LiveEvents
from harn.portal.login import Operators
from harn.portal.pages import HOME, Pages
from harn.portal.shared_reads import SharedReads
from harn.portal.store_snapshot import Snapshots
from harn.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from harn.triggers import Headers

logger: logging.Logger = logging.getLogger("harn.portal")

MOST_HEADERS = 100
MOST_HEAD = 64 * 1024
"""The most bytes of a request's target and headers together."""
MOST_LOGGED = 200
"""The most characters of a path in a log line."""

_TOLD = {408: "a slow body", 413: "a large body"}
"""Refusals of a body that are counted."""
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
"""All methods reach the API: it answers a wrong one only to an authenticated operator."""

Endpoint = Callable[[Request], Awaitable[Response]]


class Served(Operated, Protocol):
    """The service, as the application uses it."""

    @property
    def admin_keys(self) -> Sequence[bytes]:
        """The operators' keys; without any, only this machine may look."""

    async def is_ready(self) -> bool:
        """Tell whether events can be accepted."""


def build_app(served: Served, *, read_only: bool = False) -> ASGIApp:
    """Return the application for *served*; with *read_only* no operator may act, with any key."""
    return HeadCheck(served, Starlette(routes=_routes(served, read_only)))


def build_admin_app(served: Served) -> ASGIApp:
    """Return the application of the admin socket: operators' verbs only."""
    reads = SharedReads(served.intake.runtime.clock)
    api = Route("/{path:path}", AdminApi(served, reads).answer, methods=_METHODS)
    return HeadCheck(served, Starlette(routes=[api]))


def _routes(served: Served, read_only: bool) -> list[BaseRoute]:
    runtime = served.intake.runtime
    operators = Operators(served, runtime.clock, read_only=read_only)
    reads = SharedReads(runtime.clock)
    api = _counted(served, AdminApi(served, reads, operators))
    snapshots = Snapshots(runtime, reads)
    live = LiveEvents(snapshots, lambda: served.intake.draining)
    pages = Pages(served, operators, reads, snapshots)
    known = [
        Route("/health", _healthz, methods=["GET"]),
        Route("/healthz", _healthz, methods=["GET"]),
        Route("/readyz", _readyz(served), methods=["GET"]),
        Route("/version", _guarded(served, operators, _version), methods=["GET"]),
        Route("/metrics", _guarded(served, operators, _metrics(served)), methods=["GET"]),
        Route("/admin/reload", api, methods=["POST"]),
        Route("/api/v1/events", _guarded(served, operators, live.answer), methods=["GET"]),
        Route("/api/v1/{path:path}", api, methods=_METHODS),
        Route("/", _to_portal, methods=["GET"]),
        Route("/portal", _to_portal, methods=["GET"]),
        Route("/portal/{path:path}", pages.answer, methods=["GET", "POST"]),
    ]
    return [*known, Route("/{path:path}", OtherRequests(served, known))]


def _counted(served: Served, api: AdminApi) -> Endpoint:
    """Return the API, which counts what it refuses because of the sender."""

    async def answer(request: Request) -> Response:
        answer = await api.answer(request)
        if answer.status_code == 401:
            served.intake.note_refusal("not an operator", 401)
        return answer

    return answer


class OtherRequests:
    """Every other request: an event for a trigger, or a refusal in JSON for any method."""

    def __init__(self, served: Served, routes: Sequence[BaseRoute]) -> None:
        self._served = served
        self._routes = routes
        self._receive = _receive(served)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        allowed = self._allowed(request)
        if request.method in ("GET", "HEAD") and (card := self._card(request)) is not None:
            answer = json_answer(card)
        elif allowed and request.method not in allowed:
            refusal = {"error": f"{request.method} is not allowed"}
            answer = json_answer(Reply(405, refusal, {"Allow": ", ".join(sorted(allowed))}))
        elif request.method != "POST":
            answer = json_answer(Reply(404, {"error": "not found"}))
        else:  # also for an unknown path: the answers must not show which paths exist
            answer = await self._receive(request)
        await answer(scope, receive, send)

    def _card(self, request: Request) -> Reply | None:
        """Return the agent card at the request's path, which needs no key; None if it has none."""
        scheme, host = request.scope["scheme"], request.headers.get("host", "")
        try:
            found = self._served.intake.card(request.url.path, f"{scheme}://{host}")
        except InvalidOption:
            return Reply(400, {"error": "the Host header is not a host"})
        return None if found is None else Reply(200, found)

    def _allowed(self, request: Request) -> set[str]:
        """Return the methods that the path allows; none if it is unknown."""
        found = {"POST"} if self._served.intake.knows(request.url.path) else set()
        for route in self._routes:
            if isinstance(route, Route) and route.matches(request.scope)[0] is Match.PARTIAL:
                found |= route.methods or set()
        return found


class HeadCheck:
    """Checks the head of every request before any of it is used."""

    def __init__(self, served: Served, app: ASGIApp) -> None:
        self._served = served
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose head is refused, and close its connection; pass others on."""
        if scope["type"] == "http" and logger.isEnabledFor(logging.INFO):
            send = _logged(scope, send, self._served.intake.runtime.clock)
        refused = _odd_head(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        self._served.intake.note_refusal(str(refused.body["error"]), refused.status)
        await json_answer(refused)(scope, receive, send)


def _logged(scope: Scope, send: Send, clock: Clock) -> Send:
    """Return a *send* that logs one line for the request when its answer begins."""
    began = clock.monotonic()

    async def logged(message: Message) -> None:
        if message["type"] == "http.response.start":
            client = (scope.get("client") or ("",))[0] or SOCKET  # a local socket has no address
            ms = round((clock.monotonic() - began) * 1000)
            # Without the query, which may contain a secret.
            asked = f"{scope['method']} {scope['path'][:MOST_LOGGED]}"
            level = _level(scope, message["status"])
            logger.log(level, "%s: %d, %d ms, from %s", asked, message["status"], ms, client)
        await send(message)

    return logged


def _level(scope: Scope, status: int) -> int:
    """Return the level of a request's log line: an open page asks once a second."""
    is_page = scope["method"] == "GET" and scope["path"].startswith(HOME)
    return logging.DEBUG if is_page and status < 400 else logging.INFO


def _odd_head(scope: Scope) -> Reply | None:
    """Return the refusal of a request's head, or None."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    names = {name.lower() for name, _ in headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        # A proxy may use the other header, and read another request in the rest of the body.
        return closing(400, "both Content-Length and Transfer-Encoding")
    if len(headers) > MOST_HEADERS:
        return closing(431, "too many headers")
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in headers) > MOST_HEAD:
        # The parser limits only an incomplete head: a long one may arrive in one piece.
        return closing(431, f"a head of more than {MOST_HEAD:,} bytes")
    return None


async def _to_portal(request: Request) -> Response:
    return RedirectResponse(HOME, 307)


async def _healthz(request: Request) -> Response:
    return json_answer(Reply(200, {"status": "ok"}))


async def _version(request: Request) -> Response:
    return json_answer(Reply(200, {"version": __version__}))


def _readyz(served: Served) -> Endpoint:
    async def readyz(request: Request) -> Response:
        ready = await served.is_ready()
        return json_answer(
            Reply(200 if ready else 503, {"status": "ready" if ready else "not ready"})
        )

    return readyz


def _metrics(served: Served) -> Endpoint:
    async def metrics(request: Request) -> Response:
        runtime = served.intake.runtime
        try:
            queues = await queue_samples(runtime)
        except StorageError as error:  # the process's own numbers are worth having all the same
            logger.warning("queues could not be counted: %s", error)
            queues = []
        text = runtime.service(Metrics).exposition(queues)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(text, media_type=kind, headers=HEADERS)

    return metrics


def _guarded(served: Served, operators: Operators, endpoint: Endpoint) -> Endpoint:
    """Allow only operators, who may look."""

    async def guarded(request: Request) -> Response:
        if operators.find(request) is None:
            served.intake.note_refusal("not an operator", 401)
            return json_answer(Reply(401, {"error": "unauthorized"}))
        return await endpoint(request)

    return guarded


def _receive(served: Served) -> Endpoint:
    async def receive(request: Request) -> Response:
        intake = served.intake
        busy = intake.admit(request.client.host if request.client else "")
        if busy is not None:
            return json_answer(busy)
        body = await read_body(request)
        if isinstance(body, Reply):
            if body.status in _TOLD:
                intake.note_refusal(_TOLD[body.status], body.status)
            return json_answer(body)
        return json_answer(await intake.receive(request.url.path, _headers(request), body))

    return receive


def _headers(request: Request) -> Headers:
    found: dict[str, tuple[str, ...]] = {}
    for name, value in request.headers.raw:
        key = name.decode("latin-1").lower()
        found[key] = (*found.get(key, ()), value.decode("latin-1"))
    return found

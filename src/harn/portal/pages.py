"""The pages of the portal, written as HTML for each viewer, and the login.

A page has two parts. Its main part depends only on what is shown and on whether the viewer may act,
so all viewers share it for a second, like the reads behind it. The rest, with the token of the
viewer's session, is written for each request. The script of a page asks for the main part alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from harn import __version__
from harn.masking import mask
from harn.orchestrator import Reply, verb
from harn.portal import page_filters as filters
from harn.portal.admin_api import Operated, refusal
from harn.portal.http_messages import read_body
from harn.portal.login import COOKIE, SESSION_MS, Operator, Operators, is_foreign
from harn.portal.page_table import PAGES, Page, Query
from harn.portal.shared_reads import SharedReads
from harn.portal.static_files import static_answer
from harn.portal.store_snapshot import Snapshots
from harn.portal.usage_totals import UsageTotals

logger: logging.Logger = logging.getLogger("harn.portal")

HOME = "/portal/"
FRAGMENT = "x-portal-fragment"
"""The header with which a page's script asks for the main part alone."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": f"Cookie, {FRAGMENT}",
}
MOST_FORM = 4096


class Pages:
    """Answers the requests for pages, their script and style, and the login."""

    def __init__(
        self, service: Operated, operators: Operators, reads: SharedReads, snapshots: Snapshots
    ) -> None:
        self._service = service
        self._operators = operators
        self._reads = reads
        self.snapshots: Snapshots = snapshots
        self._runtime = service.intake.runtime
        self.usage: UsageTotals = UsageTotals(self._runtime)
        self._templates = _environment()

    async def answer(self, request: Request) -> Response:
        """Answer one request below `/portal/`."""
        path = request.scope["raw_path"].decode("ascii", "replace")
        parts = [unquote(part) for part in path.removeprefix(HOME).split("/")]
        if parts[0] == "static":
            return static_answer(parts[1:])
        if parts == ["login"]:
            return await self._login(request)
        if parts == ["logout"] and request.method == "POST":
            return self._logout(request)
        if request.method != "GET":
            return self._problem(405, "This page can only be looked at.", None)
        operator = self._operators.find(request)
        if operator is None:
            return self._unknown(request)
        return await self._page(request, parts, operator)

    async def _page(self, request: Request, parts: list[str], operator: Operator) -> Response:
        for page in PAGES:
            names = page.names_in(parts)
            if names is not None:
                break
        else:
            return self._problem(404, "There is no such page.", operator)
        query = {name: value for name, value in request.query_params.items() if value}
        key = ("page", page.template, *names.items(), *sorted(query.items()))
        acts = self._operators.may_act(operator)
        try:
            main = await self._reads.get((key, acts), partial(self._main, page, names, query, acts))
        except Exception as error:
            refused = refusal(error)
            return self._problem(refused.status, str(refused.body["error"]), operator)
        if FRAGMENT in request.headers:
            return HTMLResponse(main, headers=HEADERS)
        title = page.title.format(**{name: filters.shown(each) for name, each in names.items()})
        return self._shell(main, title, operator, page.path.partition("/")[0])

    async def _main(self, page: Page, names: Mapping[str, str], query: Query, acts: bool) -> Markup:
        found = await page.read(self, names, query)
        now = self._runtime.clock.now_ms()
        template = self._templates.get_template(page.template)
        return Markup(  # noqa: S704 - jinja has escaped it
            template.render(
                **{**found, "names": names, "query": query, "acts": acts},
                when=partial(filters.when, now_ms=now),
            )
        )

    def _shell(
        self, main: Markup, title: str, operator: Operator | None, here: str, status: int = 200
    ) -> Response:
        text = self._templates.get_template("shell.html").render(
            main=main,
            title=title,
            here=here,
            operator=operator,
            acts=self._operators.may_act(operator),
            read_only=self._operators.read_only,
            storage=mask(self._runtime.storage_url),
            version=__version__,
        )
        return HTMLResponse(text, status_code=status, headers=HEADERS)

    def _problem(self, status: int, error: str, operator: Operator | None) -> Response:
        main = self._templates.get_template("problem.html").render(status=status, error=error)
        return self._shell(Markup(main), "Problem", operator, "", status)  # noqa: S704

    # -- operators -----------------------------------------------------------------------------

    def _unknown(self, request: Request) -> Response:
        if not self._operators.has_keys:
            return self._problem(
                401, "Open the portal under this machine's own name, such as 127.0.0.1.", None
            )
        if FRAGMENT in request.headers:
            return self._problem(401, "The session has ended.", None)
        asked = request.scope["raw_path"].decode("ascii", "replace")
        where = f"{HOME}login?{urlencode({'next': asked})}"
        return RedirectResponse(where, 303, HEADERS)

    async def _login(self, request: Request) -> Response:
        if not self._operators.has_keys:
            return RedirectResponse(HOME, 303, HEADERS)
        after = _below_home(request.query_params.get("next", ""))
        if request.method != "POST":
            return self._form(after, "")
        if is_foreign(request) or "origin" not in request.headers:
            return self._problem(403, "Log in on the portal's own page.", None)
        key = await _key_in(request)
        cookie = None if key is None else self._operators.open_session(key)
        if cookie is None:
            self._service.intake.note_refusal("not an operator", 401)
            return self._form(after, "This is no operator's key.", 401)
        answer = RedirectResponse(after, 303, HEADERS)
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=SESSION_MS // 1000,
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def _logout(self, request: Request) -> Response:
        if is_foreign(request) or "origin" not in request.headers:
            return self._problem(403, "Log out on the portal's own page.", None)
        answer = RedirectResponse(f"{HOME}login", 303, HEADERS)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    def _form(self, after: str, error: str, status: int = 200) -> Response:
        main = self._templates.get_template("login.html").render(after=quote(after), error=error)
        return self._shell(Markup(main), "Log in", None, "login", status)  # noqa: S704

    # -- what pages read -----------------------------------------------------------------------

    async def look(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document of a verb that looks, from the reads that all viewers share."""
        asked = verb(name)
        options = asked.read(dict(fields))
        found: dict[str, Any] = await self._reads.get(
            (name, options), partial(self._service.look, asked, options)
        )
        return found


def _below_home(path: str) -> str:
    """Return *path* if it is a page of the portal; a login leads nowhere else."""
    return path if path.startswith(HOME) and "\\" not in path and "//" not in path else HOME


async def _key_in(request: Request) -> str | None:
    """Read the key of a login form; None if there is none."""
    body = await read_body(request)
    if isinstance(body, Reply) or len(body) > MOST_FORM:
        return None
    try:
        return parse_qs(body.decode("ascii"), max_num_fields=4).get("key", [None])[0]
    except (ValueError, UnicodeDecodeError):
        return None


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("harn.portal", "templates"),
        autoescape=True,
        undefined=ChainableUndefined,  # a record that lacks a field must not take the page away
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("shown", "lines", "pretty", "number", "usd", "span", "part")
    found.filters.update({name: getattr(filters, name) for name in names})
    found.globals.update(spark=filters.spark, bar=filters.bar, columns=filters.columns)
    return found

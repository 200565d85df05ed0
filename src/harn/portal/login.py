"""Who may look, and who may act: by key, by the session of a browser, or on this machine.

Without keys, everyone on this machine may look, under its own names only: a web page whose name
resolves to this machine is refused. With keys, each request needs one: in an Authorization header,
or in a session, which the login form opens and a cookie carries. A session is signed with the key
that opened it, so no state is kept, and it ends at once when the key is removed.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol

from starlette.requests import Request

from harn.clock import Clock
from harn.option_checks import read_whole
from harn.orchestrator import Reply, matching_key

COOKIE = "harn_portal"
CSRF_HEADER = "x-csrf-token"
SESSION_MS = 12 * 3_600_000
LONGEST_COOKIE = 200

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

_LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


class KeyHolder(Protocol):
    """What has the operators' keys: the service."""

    @property
    def admin_keys(self) -> Sequence[bytes]:
        """The operators' keys; without any, only this machine may look."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who sent a request, and how that is known."""

    who: str
    via: Literal["key", "session", "local", "socket"]
    csrf: str = ""
    """What a POST of this session must bring along."""


class Operators:
    """Finds the operator of a request, and decides what it may do."""

    def __init__(self, holder: KeyHolder, clock: Clock, *, read_only: bool = False) -> None:
        self._holder = holder
        self._clock = clock
        self.read_only: bool = read_only

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed to look."""
        return bool(self._holder.admin_keys)

    def find(self, request: Request) -> Operator | None:
        """Return the operator of *request*; None if it may not even look."""
        keys = self._holder.admin_keys
        if not keys:
            is_local = _LOCAL.fullmatch(request.headers.get("host", "")) is not None
            return Operator("local", "local") if is_local else None
        if "authorization" in request.headers:
            key = _bearer(request, keys)
            return None if key is None else Operator(name_of(key), "key")
        return self._of_session(request.cookies.get(COOKIE, ""), keys)

    def may_act(self, operator: Operator | None) -> bool:
        """Tell whether *operator* may change anything here."""
        return operator is not None and operator.via != "local" and not self.read_only

    def refuse_to_look(self, request: Request, operator: Operator | None) -> Reply | None:
        """Return why *request* may not read; None if it may."""
        if operator is None:
            return coded(401, "unauthorized")
        return coded(403, "this page may not look here") if is_foreign(request) else None

    def refuse_to_act(self, request: Request, operator: Operator | None) -> Reply | None:
        """Return why *request* may not change anything; None if it may."""
        if self.read_only:
            return coded(403, "this portal is read-only")
        if operator is None:
            return coded(401, "unauthorized")
        if operator.via == "local":
            return coded(401, "acting needs an operator's key, and this service has none")
        if is_foreign(request):
            return coded(403, "this page may not act here")
        if operator.via == "session":
            if "origin" not in request.headers:
                return coded(403, "a browser's request says which page it is from")
            if not _same(request.headers.get(CSRF_HEADER, ""), operator.csrf):
                return coded(403, "the page's token is missing or wrong; load the page again")
        return None

    def open_session(self, key: str) -> str | None:
        """Return the cookie of a new session, or None if *key* is no operator's."""
        found = _key_of(key, self._holder.admin_keys)
        if found is None:
            return None
        ends = self._clock.now_ms() + SESSION_MS
        about = f"{ends}.{secrets.token_urlsafe(12)}"
        return f"{about}.{_sign(found, 'session', about)}"

    def _of_session(self, cookie: str, keys: Sequence[bytes]) -> Operator | None:
        about, _, proof = cookie.rpartition(".")
        ends = read_whole(about.partition(".")[0])
        if len(cookie) > LONGEST_COOKIE or ends is None:
            return None
        found = None
        for key in keys:
            if _same(_sign(key, "session", about), proof):
                found = key
        if found is None or ends <= self._clock.now_ms():
            return None
        return Operator(name_of(found), "session", _sign(found, "csrf", cookie))


def coded(status: int, error: str) -> Reply:
    """Return a refusal with the code of its status."""
    return Reply(status, {"error": error, "code": CODES[status]})


def is_foreign(request: Request) -> bool:
    """Tell whether a web page of another origin sent the request."""
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def name_of(key: bytes) -> str:
    """Return the name by which the audit knows a key: a part of its digest."""
    return f"key:{sha256(key).hexdigest()[:8]}"


def _bearer(request: Request, keys: Sequence[bytes]) -> bytes | None:
    word, _, token = request.headers.get("authorization", "").partition(" ")
    found = _key_of(token, keys)
    return found if word.lower() == "bearer" else None


def _key_of(text: str, keys: Sequence[bytes]) -> bytes | None:
    return matching_key(((key, key) for key in keys), text.strip())


def _sign(key: bytes, purpose: str, text: str) -> str:
    proof = hmac.new(key, f"harn portal {purpose}\n{text}".encode(), sha256)
    return proof.hexdigest()


def _same(one: str, other: str) -> bool:
    encoded = one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape")
    return hmac.compare_digest(*encoded)

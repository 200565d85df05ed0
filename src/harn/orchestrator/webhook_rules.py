"""Checks and reads a request to a trigger: its sender, kind, delivery and payload. Pure.

No decision depends on a header that is not signed: the kind of event and the payload are read from
the body, the trigger says whether that is JSON or a form, and the tenant is that of the key that
signed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

from harn.errors import InvalidOption
from harn.naming import has_controls
from harn.orchestrator import a2a_rules as a2a
from harn.orchestrator.body_formats import BodyFormat
from harn.orchestrator.matching_key import matching_key
from harn.triggers import Genuine, Headers, Scheme, Unproven, is_credential, verify

Proof = Scheme | Literal["bearer"]

MOST_HEADERS_KEPT = 40
STRIPE_DELIVERY = frozenset(("pending_webhooks",))
"""Fields of a Stripe event that differ between two deliveries of it."""
MOST_FIELDS = 1000

_GITHUB = (
    ("zen", "ping"),
    ("pull_request", "pull_request"),
    ("issue", "issues"),
    ("release", "release"),
    ("deployment", "deployment"),
    ("workflow_run", "workflow_run"),
    ("check_run", "check_run"),
    ("commits", "push"),
)
"""The kind of a GitHub event by the keys of its body; the header with the kind is not signed."""


@dataclass(frozen=True, slots=True)
class Key:
    """A secret that authenticates a sender, and the sender's tenant."""

    secret: bytes
    tenant_id: str | None = None

    def __repr__(self) -> str:
        return f"Key(***, {self.tenant_id!r})"


@dataclass(frozen=True, slots=True)
class Hook:
    """A trigger that is served over HTTP: its path, and how senders authenticate."""

    trigger_id: str
    path: str
    provider: str
    proof: Proof
    keys: tuple[Key, ...]
    body: BodyFormat = "json"


@dataclass(frozen=True, slots=True)
class Proven:
    """A request whose sender is authenticated."""

    delivery: str
    digest: str
    tenant_id: str | None


def prove(hook: Hook, headers: Headers, body: bytes, now_s: float) -> Proven | Unproven:
    """Authenticate a request; every key is compared, also after one matches."""
    if hook.proof == "bearer":
        return _bearer(hook, headers, body)
    found: Proven | Unproven = Unproven("no key made this signature")
    for key in hook.keys:
        answer = verify(hook.proof, [key.secret], headers, body, now_s)
        if isinstance(answer, Genuine):
            found = Proven(answer.delivery, answer.digest, key.tenant_id)
        elif isinstance(found, Unproven):
            found = answer
    return found


def _bearer(hook: Hook, headers: Headers, body: bytes) -> Proven | Unproven:
    """Authenticate a request by its tokens; two tokens of different tenants are refused."""
    keys = [(key.secret, key) for key in hook.keys]
    found = [key for token in _tokens(hook, headers) if (key := matching_key(keys, token))]
    if not found:
        return Unproven("no key like this")
    if any(key.tenant_id != found[0].tenant_id for key in found):
        return Unproven("keys of two tenants")
    digest = sha256(body).hexdigest()
    return Proven(f"body:{digest}", digest, found[0].tenant_id)


def _tokens(hook: Hook, headers: Headers) -> Iterator[str]:
    """Yield the tokens of a request: the bearer token, and for A2A the notification's token.

    An A2A peer may send both: push notifications have their own header.
    """
    word, _, token = _only(headers, "authorization").partition(" ")
    if word.lower() == "bearer":
        yield token.strip()
    if hook.provider == a2a.PROVIDER:
        yield _only(headers, a2a.NOTIFICATION_TOKEN).strip()


def _only(headers: Headers, name: str) -> str:
    """Return the only value of the header *name*; empty if it is missing or was sent twice."""
    values = headers.get(name, ())
    return values[0] if len(values) == 1 else ""


def read_body(body: bytes, format: BodyFormat) -> Any:
    """Read a body in the trigger's *format*; raise `ValueError` if it is not in that format.

    >>> read_body(b"text=hi&n=1", "form")
    {'text': 'hi', 'n': '1'}
    """
    if format == "form":
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        return dict(pairs)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from None


def kind_of(provider: str, payload: Any) -> str:
    """Return the kind of event, read from the signed body.

    >>> kind_of("github", {"action": "opened", "pull_request": {}})
    'pull_request.opened'
    >>> kind_of("stripe", {"type": "invoice.paid"})
    'invoice.paid'
    """
    if provider == a2a.PROVIDER:
        return a2a.RECEIVED
    if not isinstance(payload, Mapping):
        return "webhook"
    if provider == "github":
        return _github_kind(payload)
    inner = payload.get("event")
    if provider == "slack" and isinstance(inner, Mapping):
        return _word(inner.get("type"))
    return _word(payload.get("type"))


def _github_kind(payload: Mapping[str, Any]) -> str:
    kind = next((kind for part, kind in _GITHUB if part in payload), "webhook")
    if kind == "issues" and "comment" in payload:
        kind = "issue_comment"
    action = payload.get("action")
    return f"{kind}.{action}" if isinstance(action, str) and _word(action) == action else kind


def _word(value: Any) -> str:
    is_word = isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable()
    return str(value) if is_word else "webhook"


def delivery_of(hook: Hook, proven: Proven, payload: Any) -> str:
    """Return the name of a delivery, from signed data: an id in the body, else the body's digest.

    An id with a control character is refused, because not every store can keep it.
    """
    if not isinstance(payload, Mapping) or proven.delivery.startswith("id:"):
        return proven.delivery
    inner: Any = None
    if hook.proof == "stripe":
        inner = payload.get("id")
    elif hook.proof == "slack":
        inner = payload.get("event_id")
    elif hook.provider == a2a.PROVIDER:
        inner = (a2a.message_in(payload) or {}).get("messageId")
    if isinstance(inner, str) and 0 < len(inner) <= a2a.LONGEST_ID:
        if has_controls(inner):
            raise InvalidOption("delivery id", inner, "text without control characters")
        return f"id:{inner}"
    return proven.delivery


def digest_of(hook: Hook, proven: Proven, payload: Any) -> str:
    """Return the digest of a delivery's content, which is equal for a repetition.

    For Stripe, fields that differ between deliveries of one event are left out. For A2A, only the
    message counts: sent again, it has another envelope.
    """
    if not isinstance(payload, Mapping) or proven.delivery.startswith("id:"):
        return proven.digest
    if hook.provider == a2a.PROVIDER:
        message = a2a.message_in(payload)
        return proven.digest if message is None else a2a.message_digest(message)
    if hook.proof != "stripe" or "id" not in payload:
        return proven.digest
    content = {name: value for name, value in payload.items() if name not in STRIPE_DELIVERY}
    return sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def kept_headers(headers: Headers, more: Sequence[str] = ()) -> dict[str, str]:
    """Return the headers that are kept with an event: none that may contain a secret.

    *more* are further words that mark a header's name as that of a credential.
    """
    kept: dict[str, str] = {}
    for name, values in headers.items():
        if len(kept) < MOST_HEADERS_KEPT and not is_credential(name, more):
            kept[name[:100]] = values[0][:500] if values else ""
    return kept

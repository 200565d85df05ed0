"""Verify a webhook's signature: four schemes, on the raw bytes, before anything is parsed.

    github      X-Hub-Signature-256: sha256=<hex>                       signs the body only
    stripe      Stripe-Signature: t=<s>,v1=<hex>[,v1=<hex>]             signs `t.body`
    slack       X-Slack-Signature: v0=<hex>, X-Slack-Request-Timestamp  signs `v0:t:body`
    standard    webhook-id, -timestamp, -signature: v1,<base64> ...     signs `id.t.body`

All active keys are compared, in constant time, so that keys can be replaced without a gap. A
signed time may differ from ours by five minutes either way. What a scheme does not sign proves
nothing: a GitHub delivery is identified by its body's digest, because its id is only a header.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harn.errors import InvalidOption

Scheme = Literal["github", "stripe", "slack", "standard"]

TOLERANCE_S = 300
SHORTEST_SECRET = 8
"""Bytes; a shorter one could be guessed."""
MOST_SIGNATURES = 16
"""The most signatures compared in one request."""

_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}", re.ASCII)
"""No dot: otherwise one signed text `id.t.body` could be read as another id and body."""


@dataclass(frozen=True, slots=True)
class Genuine:
    """A request that one of our keys signed.

    *delivery* identifies it: a second request with the same one is a repetition. *digest* is the
    body's: the same *delivery* with another *digest* is a conflict, not a repetition.
    """

    delivery: str
    digest: str


@dataclass(frozen=True, slots=True)
class Unproven:
    """A request without a valid signature; *reason* is for the log, never for the sender."""

    reason: str


Headers = Mapping[str, Sequence[str]]
"""Lower-case names, each with every value that was sent."""


def verify(
    scheme: Scheme, secrets: Sequence[bytes], headers: Headers, body: bytes, now_s: float
) -> Genuine | Unproven:
    """Decide whether *body* was signed with one of *secrets*, by the rules of *scheme*.

    >>> secret, body = b"it's a secret", b"{}"
    >>> mark = "sha256=" + hmac.new(secret, body, "sha256").hexdigest()
    >>> verify("github", [secret], {"x-hub-signature-256": [mark]}, body, 0).digest[:8]
    '44136fa3'
    >>> verify("github", [b"another one"], {"x-hub-signature-256": [mark]}, body, 0)
    Unproven(reason='no key made this signature')
    """
    if not secrets:
        return Unproven("no key is configured")
    return _SCHEMES[scheme](secrets, headers, body, now_s)


def _github(
    secrets: Sequence[bytes], headers: Headers, body: bytes, now_s: float
) -> Genuine | Unproven:
    given = _only(headers, "x-hub-signature-256")
    if given is None or not given.startswith("sha256="):
        return Unproven("no single sha256 signature")
    return _judged(secrets, body, [given.removeprefix("sha256=")], body)


def _stripe(
    secrets: Sequence[bytes], headers: Headers, body: bytes, now_s: float
) -> Genuine | Unproven:
    given = _only(headers, "stripe-signature")
    if given is None or len(given) > 4096:
        return Unproven("no single signature header")
    times: list[str] = []
    marks: list[str] = []
    for item in given.split(","):
        name, _, value = item.strip().partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":
            marks.append(value)
    if len(times) != 1 or not all(map(_HEX.fullmatch, marks)):
        return Unproven("no single time, or a mangled signature")
    if late := _off(times[0], now_s):
        return Unproven(late)
    return _judged(secrets, times[0].encode() + b"." + body, marks, body)


def _slack(
    secrets: Sequence[bytes], headers: Headers, body: bytes, now_s: float
) -> Genuine | Unproven:
    given = _only(headers, "x-slack-signature")
    time = _only(headers, "x-slack-request-timestamp")
    if given is None or time is None or not given.startswith("v0="):
        return Unproven("no single v0 signature and time")
    if late := _off(time, now_s):
        return Unproven(late)
    signed = b"v0:" + time.encode() + b":" + body
    return _judged(secrets, signed, [given.removeprefix("v0=")], body)


def _standard(
    secrets: Sequence[bytes], headers: Headers, body: bytes, now_s: float
) -> Genuine | Unproven:
    id = _only(headers, "webhook-id")
    time = _only(headers, "webhook-timestamp")
    given = _only(headers, "webhook-signature")
    if id is None or time is None or given is None or not _ID.fullmatch(id):
        return Unproven("no single id, time and signature")
    if late := _off(time, now_s):
        return Unproven(late)
    marks = [
        mark
        for version, _, mark in (one.partition(",") for one in given.split())
        if version == "v1"
    ]
    signed = b".".join((id.encode(), time.encode(), body))
    hexes = [made for mark in marks[:MOST_SIGNATURES] if (made := _hex_of_base64(mark))]
    return _judged(secrets, signed, hexes, body, f"id:{id}")


_Verifier = Callable[[Sequence[bytes], Headers, bytes, float], Genuine | Unproven]
_SCHEMES: dict[Scheme, _Verifier] = {
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
    "standard": _standard,
}
SCHEMES = tuple(_SCHEMES)


def _judged(
    secrets: Sequence[bytes], signed: bytes, marks: Sequence[str], body: bytes, id: str = ""
) -> Genuine | Unproven:
    """Tell whether a key made one of *marks*; a delivery without an *id* is known by its body."""
    if not _made_by(secrets, signed, marks):
        return Unproven("no key made this signature")
    digest = hashlib.sha256(body).hexdigest()
    return Genuine(id or f"body:{digest}", digest)


def _made_by(secrets: Sequence[bytes], signed: bytes, marks: Sequence[str]) -> bool:
    """Compare every mark with the signature by every key; never stop early, for constant time."""
    genuine = False
    candidates = [mark.encode() for mark in marks[:MOST_SIGNATURES] if _HEX.fullmatch(mark)]
    for secret in secrets:
        expected = hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()
        for mark in candidates:
            genuine |= hmac.compare_digest(expected, mark)
    return genuine


def _only(headers: Headers, name: str) -> str | None:
    """Return the only value of *name*; None if the header is missing or was sent twice."""
    values = headers.get(name, ())
    return values[0] if len(values) == 1 and values[0].isascii() else None


def _off(time: str, now_s: float) -> str | None:
    """Return what is wrong with a signed *time*, or None."""
    if not _SECONDS.fullmatch(time):
        return "a time that is not whole seconds"
    return "a time too far off" if abs(now_s - int(time)) > TOLERANCE_S else None


def _hex_of_base64(mark: str) -> str | None:
    try:
        made = base64.b64decode(mark, validate=True)
    except (binascii.Error, ValueError):
        return None
    # The decoder accepts several spellings; only the one that encodes back to itself is valid.
    return made.hex() if base64.b64encode(made).decode() == mark else None


def signing_key(scheme: Scheme, secret: str, name: str) -> bytes:
    """Return the signing key for a secret's text; an error shows *name* instead of the secret.

    Standard Webhooks writes keys as `whsec_<base64>`; plain text is used as it is. A secret of
    under eight bytes is refused.
    """
    text = secret.strip()
    key = text.encode()
    if scheme == "standard" and text.startswith("whsec_"):
        try:
            key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidOption("secret", f"<{name}>", "base64 after whsec_") from None
    if len(key) < SHORTEST_SECRET:
        raise InvalidOption("secret", f"<{name}>", f"at least {SHORTEST_SECRET} bytes")
    return key


def sign(
    scheme: Scheme, secret: bytes, body: bytes, now_s: int, id: str = "msg_1"
) -> dict[str, str]:
    """Return the headers that a sender of *scheme* would send; for tests and for `fire`.

    >>> sorted(sign("slack", b"a good secret", b"{}", 0))
    ['x-slack-request-timestamp', 'x-slack-signature']
    """
    if scheme == "github":
        return {"x-hub-signature-256": f"sha256={_hmac(secret, body).hex()}"}
    if scheme == "stripe":
        mark = _hmac(secret, f"{now_s}.".encode() + body).hex()
        return {"stripe-signature": f"t={now_s},v1={mark}"}
    if scheme == "slack":
        mark = _hmac(secret, f"v0:{now_s}:".encode() + body).hex()
        return {"x-slack-request-timestamp": str(now_s), "x-slack-signature": f"v0={mark}"}
    mark = base64.b64encode(_hmac(secret, f"{id}.{now_s}.".encode() + body)).decode()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{mark}",
    }


def _hmac(secret: bytes, signed: bytes) -> bytes:
    return hmac.new(secret, signed, hashlib.sha256).digest()

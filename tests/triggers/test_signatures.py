"""Ten thousand lies and a thousand truths, against the pure verifier."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator

import pytest

from harn import InvalidOption
from harn.triggers.signatures import (
    SCHEMES,
    Genuine,
    Scheme,
    Unproven,
    sign,
    signing_key,
    verify,
)

NOW = 1_767_225_600
OLD, NEW, FOREIGN = b"the old signing key", b"the new signing key", b"somebody else's key"
BODY = b'{"id":"evt_1","type":"push","n":[1,2,3],"text":"gr\xc3\xbc\xc3\x9fe"}'

Request = tuple[dict[str, list[str]], bytes]


def signed(
    scheme: Scheme, secret: bytes = NEW, body: bytes = BODY, at: int = NOW, id: str = "msg_1"
) -> Request:
    return {name: [value] for name, value in sign(scheme, secret, body, at, id).items()}, body


def accepted(scheme: Scheme, request: Request, now: float = NOW) -> bool:
    return isinstance(verify(scheme, [OLD, NEW], *request, now), Genuine)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_G15_a_thousand_valid_requests_under_two_rotated_keys_are_all_accepted(
    scheme: Scheme,
) -> None:
    chance = random.Random(scheme)
    for number in range(1000):
        body = chance.randbytes(chance.randrange(200))
        at = NOW + chance.randint(-300, 300)

        assert accepted(scheme, signed(scheme, chance.choice((OLD, NEW)), body, at, f"m{number}"))


@pytest.mark.parametrize(
    "id", ["msg.1", "msg 1", "msg:1", "msg_1\n", "m\x00", "mäh", "", "m" * 257]
)
def test_a_standard_id_of_other_characters_is_refused_although_it_is_signed(id: str) -> None:
    assert isinstance(verify("standard", [NEW], *signed("standard", id=id), NOW), Unproven)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_S4_ten_thousand_mutated_requests_are_all_refused(
    scheme: Scheme, at_least: Callable[[int], int]
) -> None:
    chance = random.Random(f"lies about {scheme}")
    genuine = signed(scheme)
    tried = 0
    while tried < at_least(2500):  # for each of four schemes
        headers, body = mutate(chance, *genuine)
        if (headers, body) == genuine:
            continue
        tried += 1
        assert not accepted(scheme, (headers, body)), (headers, body)


def mutate(chance: random.Random, headers: dict[str, list[str]], body: bytes) -> Request:
    """Change the body, or what is signed beside it, or the signature itself."""
    headers = {name: list(values) for name, values in headers.items()}
    name = chance.choice(sorted(headers))
    value = headers[name][0]
    kind = chance.randrange(9)
    if kind == 0 and body:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([body[at] ^ (1 << chance.randrange(8))]) + body[at + 1 :]
    elif kind == 1:
        body = body[: chance.randrange(len(body))]
    elif kind == 2:
        body = body + chance.choice([b" ", b"\n", b"\0", b"\xef\xbb\xbf"])
    elif kind == 3:
        at = chance.randrange(len(value))
        headers[name] = [
            value[:at] + chr(ord(value[at]) ^ (1 << chance.randrange(7))) + value[at + 1 :]
        ]
    elif kind == 4:
        headers[name] = [value[: chance.randrange(len(value))]]
    elif kind == 5:
        del headers[name]
    elif kind == 6:
        headers[name] = [value, value]
    elif kind == 7:
        headers[name] = [chance.choice(["", " ", "é", value + "é", "nan", "-1", "1e9", value * 2])]
    else:
        headers[name] = [value.upper() if value.upper() != value else value + "0"]
    return headers, body


def lies(scheme: Scheme) -> Iterator[tuple[str, Request]]:
    headers, body = signed(scheme)
    yield "another's key", signed(scheme, FOREIGN)
    yield "an empty key", signed(scheme, b"")
    yield "no headers", ({}, body)
    yield "re-encoded body", (headers, body.replace(b",", b", "))
    yield "byte order mark", (headers, b"\xef\xbb\xbf" + body)
    if scheme == "github":
        mark = headers["x-hub-signature-256"][0]
        yield "sha1 downgrade", ({"x-hub-signature": ["sha1=" + mark[7:47]]}, body)
        yield (
            "base64 for hex",
            (
                {
                    "x-hub-signature-256": [
                        "sha256=" + base64.b64encode(bytes.fromhex(mark[7:])).decode()
                    ]
                },
                body,
            ),
        )
        return
    for off in (-301, 301, -86_400, 86_400):
        yield f"{off} seconds off", signed(scheme, at=NOW + off)
    yield "milliseconds", signed(scheme, at=NOW * 1000)
    for odd in ("nan", "-1", f"{NOW}.0", f" {NOW}", f"+{NOW}", "١٧٦٧٢٢٥٦٠٠", "", f"{NOW}" * 9):
        odd_headers = {
            name: [value.replace(str(NOW), odd) for value in values]
            for name, values in headers.items()
        }
        yield f"time {odd!r}", (odd_headers, body)
    if scheme == "stripe":
        value = headers["stripe-signature"][0]
        yield "v0 downgrade", ({"stripe-signature": [value.replace("v1=", "v0=")]}, body)
        yield "two times", ({"stripe-signature": [f"t={NOW - 999}," + value]}, body)
        yield (
            "genuine one after too many",
            (
                {
                    "stripe-signature": [
                        f"t={NOW},"
                        + "v1="
                        + "0" * 64
                        + (",v1=" + "0" * 64) * 20
                        + value[value.index(",") :]
                    ]
                },
                body,
            ),
        )
    if scheme == "slack":
        value = headers["x-slack-signature"][0]
        yield "v1", ({**headers, "x-slack-signature": [value.replace("v0=", "v1=")]}, body)
    if scheme == "standard":
        value = headers["webhook-signature"][0]
        yield "v2", ({**headers, "webhook-signature": [value.replace("v1,", "v2,")]}, body)
        yield "v1a", ({**headers, "webhook-signature": [value.replace("v1,", "v1a,")]}, body)
        yield (
            "another spelling of the same bytes",
            ({**headers, "webhook-signature": [respelled(value)]}, body),
        )
        yield "another id", ({**headers, "webhook-id": ["msg_2"]}, body)
        yield "moved dot", ({**headers, "webhook-id": [f"msg_1.{NOW}"]}, body)
        yield (
            "url-safe base64",
            (
                {**headers, "webhook-signature": [value.replace("=", "")]},
                body,
            ),
        )


def respelled(value: str) -> str:
    """Write the last sextet differently; a forgiving decoder reads the same bytes."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = value[:-2] + alphabet[alphabet.index(value[-2]) ^ 1] + "="
    assert base64.b64decode(other[3:]) == base64.b64decode(value[3:])
    return other


@pytest.mark.parametrize(
    ("scheme", "name", "request_"),
    [(scheme, *lie) for scheme in SCHEMES for lie in lies(scheme)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_S4_each_known_trick_is_refused(scheme: Scheme, name: str, request_: Request) -> None:
    assert not accepted(scheme, request_)


@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each != "github"])
@pytest.mark.parametrize("off", [-300, 0, 300])
def test_five_minutes_either_way_are_tolerated(scheme: Scheme, off: int) -> None:
    assert accepted(scheme, signed(scheme, at=NOW + off))


def test_during_rotation_a_sender_may_send_both_signatures() -> None:
    first, _ = signed("standard", FOREIGN)
    second, _ = signed("standard", NEW)
    both = f"{first['webhook-signature'][0]} {second['webhook-signature'][0]}"

    assert accepted("standard", ({**second, "webhook-signature": [both]}, BODY))


def test_S24_what_a_scheme_does_not_sign_names_no_delivery() -> None:
    headers, body = signed("github")
    one = verify("github", [NEW], {**headers, "x-github-delivery": ["1"]}, body, NOW)
    two = verify("github", [NEW], {**headers, "x-github-delivery": ["2"]}, body, NOW)

    assert one == two
    assert isinstance(one, Genuine) and one.delivery.startswith("body:")


def test_no_key_at_all_refuses_everything() -> None:
    assert verify("github", [], *signed("github"), NOW) == Unproven("no key is configured")


@pytest.mark.parametrize("secret", ["", "   ", "short", "whsec_", "whsec_!!!!", "whsec_AAAA"])
def test_an_empty_or_broken_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        signing_key("standard", secret, "HOOK_SECRET")

    assert "HOOK_SECRET" in str(refused.value)
    assert not secret.strip() or secret not in str(refused.value)


def test_a_standard_key_is_base64_behind_its_prefix() -> None:
    assert signing_key("standard", "whsec_" + base64.b64encode(NEW).decode(), "x") == NEW

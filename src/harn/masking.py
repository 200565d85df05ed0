"""Masking secrets: every URL goes through `mask` before it is shown in a message.

`mask_fields` masks the fields of JSON whose names say that they hold a secret.

A URL that is not well formed is shown too, in the error that rejects it. So nothing here relies on
its form: a part that may be a password is masked, even if a host or a path is masked with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

MASK = "***"

_SECRET = re.compile(r"passw|pwd|secret|token", re.IGNORECASE)
_IS_KEYWORDS = re.compile(r"\s*\w+\s*=")
_KEYWORD = re.compile(r"([\w-]+)\s*=\s*('(?:[^'\\]|\\.)*'?|(?:\\.|\S)*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?:[A-Za-z][\w+.-]*:)?//+")
_PORT = re.compile(r"[^:@]*:\d*(?:[/?,]|$)")
_QUERY = re.compile(r"\?[\w%.-]+=")
# Each part that may have to be tried again is bounded: a text of a megabyte takes a moment.
_IN_TEXT = (  # compiled at its first use: few commands need it, and it takes a while
    r"(?i)[A-Za-z][\w+.-]{0,30}://[^\s\"]*|postgres(?:ql)?:[^\s\"]{0,1000}@[^\s\"]*"
    r"|passw\w{0,60}\s{0,20}=\s{0,20}(?:'(?:[^'\\]|\\.){0,1000}'|[^\s\"]+)"
)

SECRET_NAMES = (
    *("access_key", "api_key", "apikey", "auth", "authorization", "bearer", "cookie", "credential"),
    *("credentials", "jwt", "passphrase", "passwd", "password", "private_key", "pwd", "secret"),
    *("secret_key", "session_key", "signature", "signing_key", "token"),
)
"""A field that has one of these as words of its name holds a secret: `db_password`, `apiToken`."""
_JOINED = ("password", "passwd", "secret", "credential", "apikey")
"""Words that are found inside other words, too: `userpassword`."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[^0-9a-z]+")
DEEPEST = 100
LONGEST_NAME = 200
"""How much of a field's name is looked at."""


def mask(url: str) -> str:
    """Return *url*, or a connection string of libpq's, without its passwords.

    >>> mask("postgresql://me:secret@db/app?sslmode=require")
    'postgresql://me:***@db/app?sslmode=require'
    >>> mask("host=db user=me password='s e'")
    'host=db user=me password=***'
    """
    shown, end = [], 0
    for start, stop in _secrets(url):
        shown += [url[end:start], MASK]
        end = stop
    return "".join([*shown, url[end:]])


def mask_text(text: str) -> str:
    """Return *text*, which may contain URLs, without their passwords.

    >>> mask_text("no such thing as (mysql://me:secret@db)")
    'no such thing as (mysql://me:***@db)'
    """
    if "://" not in text and "@" not in text and "passw" not in text.lower():
        return text  # nearly every text, and the search below is slow
    return re.sub(_IN_TEXT, lambda found: mask(found[0]), text)


@lru_cache(maxsize=8192)
def is_secret_name(name: str, more: tuple[str, ...] = ()) -> bool:
    """Tell whether a field called *name* may hold a secret; *more* are the operator's names.

    >>> [is_secret_name(each) for each in ("apiToken", "X-Api-Key", "max_tokens", "key")]
    [True, True, False, False]
    """
    words = _words(name[:LONGEST_NAME])
    if any(part in words for part in _JOINED):
        return True
    return any(f"_{_words(secret)}_" in f"_{words}_" for secret in (*SECRET_NAMES, *more))


def mask_fields(
    value: Any, more: tuple[str, ...] = (), in_text: Callable[[str], str] = mask_text
) -> Any:
    """Return *value*, which is JSON, with the fields masked whose names say they hold a secret.

    *in_text* masks what remains inside the texts. Deeper than a hundred levels all is masked.

    >>> mask_fields({"user": "me", "password": "x", "urls": ["http://me:x@host"]})
    {'user': 'me', 'password': '***', 'urls': ['http://me:***@host']}
    """
    return _masked(value, more, in_text, 0)


def _masked(value: Any, more: tuple[str, ...], in_text: Callable[[str], str], depth: int) -> Any:
    if isinstance(value, str):
        return in_text(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= DEEPEST:
        return MASK
    if not isinstance(value, dict):
        return [_masked(each, more, in_text, depth + 1) for each in value]
    return {
        in_text(name): MASK
        if each is not None and is_secret_name(name, more)
        else _masked(each, more, in_text, depth + 1)
        for name, each in value.items()
    }


def _words(name: str) -> str:
    return _NO_WORD.sub("_", _HUMP.sub("_", name).casefold()).strip("_")


def without_secrets_of(url: str, text: str) -> str:
    """Return *text*, such as a server's message, without the passwords that *url* holds."""
    found = {url[start:stop] for start, stop in _secrets(url)}
    for secret in sorted(found | {unquote(each) for each in found}, key=len, reverse=True):
        text = text.replace(secret, MASK) if secret else text
    return text


def _secrets(url: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each password, in order."""
    if _IS_KEYWORDS.match(url):
        yield from (each.span(2) for each in _KEYWORD.finditer(url) if _SECRET.search(each[1]))
        return
    at = _end_of_credentials(url)
    if at > 0:
        authority = _AUTHORITY.match(url)
        colon = url.find(":", authority.end() if authority else 0, at)
        if colon >= 0:
            yield colon + 1, at
    begin = url.find("?", max(at, 0)) + 1
    for option in url[begin:].split("&") if begin else []:
        name, equals, value = option.partition("=")
        start = begin + len(name) + len(equals)
        if equals and _SECRET.search(unquote(name)):
            yield start, start + len(value)
        begin += len(option) + 1


def _end_of_credentials(url: str) -> int:
    """Return the place of the `@` before the host, or -1.

    It is the last one before the options: a password that was not percent-encoded may hold others.
    """
    query = _QUERY.search(url)
    at = url.rfind("@", 0, query.start() if query else len(url))
    authority = _AUTHORITY.match(url)
    if at < 0 and not _PORT.match(url, authority.end() if authority else 0):
        at = url.rfind("@")
    return at

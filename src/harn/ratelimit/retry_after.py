"""How long a provider's response asks callers to wait, and which errors may pass, for any client.

These headers are read: `Retry-After` (seconds or a date), `retry-after-ms`, OpenAI's
`x-ratelimit-remaining-*` and `x-ratelimit-reset-*`, Anthropic's `anthropic-ratelimit-*-remaining`
and `-reset`. A remaining count only matters when it is 0. A value that cannot be read is ignored.
litellm passes a provider's headers on as `llm_provider-retry-after` and so on; they mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from harn.clock import from_iso
from harn.errors import HarnError, InvalidOption
from harn.option_checks import is_number, is_whole

RETRYABLE = frozenset({408, 425, 429, 502, 503, 504, 529})
"""Timeout, too early, too many requests, bad gateway, unavailable, gateway timeout, overloaded."""
TRANSIENT = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ClientConnectionError",
        "ClientOSError",
        "ConnectError",
        "ConnectTimeout",
        "NetworkError",
        "OverloadedError",
        "PoolTimeout",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "ServerDisconnectedError",
        "ServerTimeoutError",
        "ServiceUnavailableError",
        "TimeoutException",
        "WriteError",
        "WriteTimeout",
    }
)
"""Names of errors of client libraries that mean a network failure or a timeout."""

PASSED_ON = "llm_provider-"
"""What litellm puts before the name of a provider's header."""

_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def wait_in(hint: object, now_ms: int) -> float | None:
    """Return how many seconds *hint* asks to wait, or None if it names no time.

    A hint is a number of seconds, a timedelta, the text of a header, a mapping of headers, or
    any object that has `headers` or a `response` with them.

    >>> wait_in("12", 0), wait_in({"Retry-After": "2"}, 0), wait_in("6m0s", 0)
    (12.0, 2.0, 360.0)
    """
    if isinstance(hint, timedelta):
        hint = hint.total_seconds()
    if is_whole(hint) or isinstance(hint, float):
        if not is_number(hint) or hint < 0:
            raise InvalidOption("retry_after", hint, "seconds, 0 or more")
        return float(hint)
    if isinstance(hint, str):
        seconds = _moment(hint, now_ms)
        if seconds is None:
            raise InvalidOption("retry_after", hint, "seconds, a duration or an HTTP date")
        return seconds
    headers = headers_of(hint)
    return None if headers is None else wait_in_headers(headers, now_ms)


def headers_of(thing: object) -> dict[str, str] | None:
    """Return the headers of a response, an error or a mapping, names in lower case, or None."""
    for found in (
        thing,
        getattr(thing, "headers", None),
        getattr(getattr(thing, "response", None), "headers", None),
        getattr(thing, "litellm_response_headers", None),
    ):
        items = getattr(found, "items", None)
        if callable(items) and (headers := _named(items())):
            return headers
    return None


def _named(items: Iterable[tuple[object, object]]) -> dict[str, str]:
    headers = {str(name).lower(): str(value) for name, value in items}
    passed_on = [name for name in headers if name.startswith(PASSED_ON)]
    for name in passed_on:
        headers.setdefault(name.removeprefix(PASSED_ON), headers[name])
    return headers


def wait_in_headers(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Return the longest wait in seconds that *headers*, with names in lower case, ask for."""
    if (text := headers.get("retry-after-ms")) is not None and _is_number(text):
        return max(0.0, float(text) / 1000)
    if (text := headers.get("retry-after")) is not None:
        seconds = _moment(text, now_ms)
        if seconds is not None:
            return seconds
    waits = [seconds for seconds in _exhausted(headers, now_ms) if seconds is not None]
    return max(waits, default=None)


def _exhausted(headers: Mapping[str, str], now_ms: int) -> Iterator[float | None]:
    for name, value in headers.items():
        if value.strip() != "0":
            continue
        if name.startswith("x-ratelimit-remaining"):
            yield _moment(headers.get(name.replace("remaining", "reset"), ""), now_ms)
        elif name.startswith("anthropic-ratelimit-") and name.endswith("-remaining"):
            reset = f"{name.removesuffix('-remaining')}-reset"
            yield _moment(headers.get(reset, ""), now_ms)


def _moment(text: str, now_ms: int) -> float | None:
    """Read seconds, a duration such as `6m0s`, or a date; return the seconds from now."""
    text = text.strip()
    if _is_number(text):
        return float(text)
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        return max(0.0, (from_iso(text) - now_ms) / 1000)
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_ms / 1000)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII) is not None


def status_of(error: object) -> int | None:
    """Return the HTTP status of *error*, from the attributes that client libraries use."""
    for thing in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            status: Any = getattr(thing, name, None)
            if type(status) is int and 100 <= status < 600:
                return status
    return None


def is_retryable(error: BaseException) -> bool:
    """Tell whether a retry may help: after rate limits, overload, network errors and timeouts.

    Never after a cancel or a deadline. An error of harn says so itself (`retryable`).

    >>> is_retryable(ConnectionResetError()), is_retryable(ValueError())
    (True, False)
    """
    if not isinstance(error, Exception):
        return False
    if isinstance(error, HarnError):
        return getattr(error, "retryable", False) is True
    status = status_of(error)
    if status is not None:
        return status in RETRYABLE
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return any(each.__name__ in TRANSIENT for each in type(error).__mro__)

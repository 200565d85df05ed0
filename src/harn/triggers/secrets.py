"""Secrets of a runtime: known by value, so that no error, log or audit repeats them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harn.runtime import Runtime

MASK = "***"
_SHORTEST = 4

SENSITIVE_HEADERS = frozenset(
    (
        "authorization",
        "cookie",
        "proxy-authorization",
        "set-cookie",
        "stripe-signature",
        "webhook-signature",
        "x-api-key",
        "x-auth-token",
        "x-hub-signature",
        "x-hub-signature-256",
        "x-slack-signature",
    )
)
"""Headers that are never kept with an event."""


class Secrets:
    """The values that must not be shown: `runtime.service(Secrets)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._values: set[str] = set()

    def register(self, value: str) -> None:
        """Mask *value* from now on, wherever `mask` is asked."""
        if len(value.strip()) >= _SHORTEST:
            self._values.add(value.strip())

    def mask(self, text: str) -> str:
        """Return *text* without any secret that is known."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return text

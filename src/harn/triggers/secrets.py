"""Secrets of a runtime: known by value, so that no error, log or audit repeats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harn.runtime import Runtime

MASK = "***"
_SHORTEST = 4

CREDENTIAL_WORDS = (
    *("auth", "baggage", "cookie", "credential", "key", "passwd", "password"),
    *("secret", "session", "signature", "token"),
)
"""A header whose name holds one of these is never kept with an event."""


def is_credential(name: str, more: Sequence[str] = ()) -> bool:
    """Tell whether a header called *name* may carry a secret; *more* are words of the operator's.

    >>> is_credential("X-Session-Id"), is_credential("X-GitHub-Event")
    (True, False)
    """
    folded = name.casefold()
    return any(word in folded for word in (*CREDENTIAL_WORDS, *more))


def without_credentials(headers: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """Return *headers* without those that may carry a secret."""
    return {name: value for name, value in headers.items() if not is_credential(name, more)}


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

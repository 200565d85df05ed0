"""Secrets of a runtime: kept by value, so that errors, logs and audit records can mask them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harn.runtime import Runtime

MASK = "***"
_SHORTEST = 4

CREDENTIAL_WORDS = (
    *("auth", "baggage", "cookie", "credential", "key", "passwd", "password"),
    *("secret", "session", "signature", "token"),
)
"""A header whose name contains one of these is never kept with an event."""


def is_credential(name: str, more: Sequence[str] = ()) -> bool:
    """Tell whether a header called *name* may contain a secret; *more* are the operator's words.

    >>> is_credential("X-Session-Id"), is_credential("X-GitHub-Event")
    (True, False)
    """
    return _any_of(*CREDENTIAL_WORDS, *more).search(name.casefold()) is not None


@lru_cache(maxsize=16)
def _any_of(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, words)))


def without_credentials(headers: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """Return *headers* without those that may contain a secret."""
    return {name: value for name, value in headers.items() if not is_credential(name, more)}


class Secrets:
    """The values that must not be shown: `runtime.service(Secrets)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._values: set[str] = set()

    def register(self, value: str) -> None:
        """Make `mask` hide *value* from now on; one of under four characters is ignored."""
        if len(value.strip()) >= _SHORTEST:
            self._values.add(value.strip())

    def mask(self, text: str) -> str:
        """Return *text* with every registered secret replaced."""
        # The longest first: a secret may be part of another one.
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return text

"""Which of several keys a text is, found in a time that tells nothing about them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import TypeVar

T = TypeVar("T")


def matching_key(keys: Iterable[tuple[bytes, T]], text: str) -> T | None:
    """Return what belongs to the key that *text* is, or None; every key is compared.

    >>> matching_key([(b"one", 1), (b"two", 2)], "two")
    2
    """
    # Compare digests, which have one length: the time then tells nothing about a key's length.
    mark = sha256(text.encode("utf-8", "surrogateescape")).digest()
    found: T | None = None
    for key, owner in keys:
        if hmac.compare_digest(sha256(key).digest(), mark):
            found = owner
    return found

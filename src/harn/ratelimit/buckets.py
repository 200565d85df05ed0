"""Requests to the limiter and its answers: checked where they enter, frozen afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from harn.duration import Duration, to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.option_checks import whole_number
from harn.records import Record, fields_of

MOST_UNITS = 2**53 - 1
MOST_KEY = 512
DEFAULT_WINDOW_MS = 60_000
FIELDS = ("key", "limit", "units", "window_ms")


@dataclass(frozen=True, slots=True)
class Bucket:
    """At most *limit* units of *key* in any *window_ms*, of which a request wants *units*.

    All callers that name the same key share it. A request of 0 units is not limited.

    >>> Bucket("provider:acme:rpm", limit=600, window_ms="1m")
    Bucket(key='provider:acme:rpm', limit=600, units=1, window_ms=60000)
    """

    key: str
    limit: int
    units: int = 1
    window_ms: int = DEFAULT_WINDOW_MS

    def __init__(
        self, key: str, limit: int, units: int = 1, window_ms: Duration = DEFAULT_WINDOW_MS
    ) -> None:
        put = object.__setattr__
        put(self, "key", check_key(key))
        put(self, "limit", check_units("limit", limit, least=1))
        put(self, "units", check_units("units", units))
        put(self, "window_ms", _window(window_ms))


def check_key(key: object, option: str = "key") -> str:
    """Return *key* if it may name a bucket, the same on every store."""
    if not isinstance(key, str) or not key.strip() or len(key) > MOST_KEY:
        raise InvalidOption(option, key, f"text of 1 to {MOST_KEY} characters, not only spaces")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise InvalidOption(option, key, "text without lone surrogates") from None
    if "\0" in key:
        raise InvalidOption(option, key, "text without NUL")
    return key


def check_units(option: str, value: object, *, least: int = 0) -> int:
    """Return *value* if it is a number of units that every store can hold."""
    if type(value) is int and least <= value <= MOST_UNITS:
        return value  # every acquire asks twice
    return whole_number(option, value, least=least, most=MOST_UNITS)


def _window(value: Duration) -> int:
    ms = value if type(value) is int and 0 < value < 10**12 else to_ms(value, "window_ms")
    if ms < 1:
        raise InvalidOption("window_ms", value, "at least one millisecond")
    return ms


def read_buckets(
    buckets: Iterable[Bucket | Mapping[str, Any]] | None,
    key: str | None,
    limit: int | None,
    units: int,
    window_ms: Duration,
) -> tuple[Bucket, ...]:
    """Return the buckets that `durable_rate_limit_acquire` was given, as a list or as one key."""
    if buckets is None:
        if key is None:
            raise InvalidOption("key", key, "a key and a limit, or buckets")
        if limit is None:
            raise InvalidOption("limit", limit, f"a whole number from 1 to {MOST_UNITS:,}")
        return (Bucket(key, limit, units, window_ms),)
    if key is not None or limit is not None:
        given = "key" if key is not None else "limit"
        raise InvalidOption("buckets", buckets, f"either buckets or {given}, not both")
    if isinstance(buckets, Mapping | str | bytes) or not isinstance(buckets, Iterable):
        raise InvalidOption("buckets", buckets, "a list of buckets")
    found = tuple([each if type(each) is Bucket else _bucket(each) for each in buckets])
    if not found:
        raise InvalidOption("buckets", buckets, "at least one bucket")
    if len({bucket.key for bucket in found}) < len(found):
        keys = [bucket.key for bucket in found]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidOption("buckets", twice, f"each key once; {twice!r} is there twice")
    return found


def _bucket(given: Bucket | Mapping[str, Any]) -> Bucket:
    if isinstance(given, Bucket):
        return given
    if not isinstance(given, Mapping):
        raise InvalidOption("buckets", given, "Bucket(...) or a mapping with key and limit")
    for name in given:
        if name not in FIELDS:
            accepted = f"only {', '.join(FIELDS)}{did_you_mean(name, FIELDS)}"
            raise InvalidOption("buckets", name, accepted)
    for name in ("key", "limit"):
        if name not in given:
            raise InvalidOption(name, None, "every bucket has a key and a limit")
    return Bucket(**given)


class BucketGrant(Record, msgspec.Struct, frozen=True):
    """What was asked of one bucket, and what was charged: at most its limit.

    >>> import asyncio
    >>> from harn import durable_rate_limit_acquire
    >>> from harn.testing import fresh_runtime
    >>> async def main() -> list[BucketGrant]:
    ...     async with fresh_runtime():
    ...         grant = await durable_rate_limit_acquire(key="tpm", limit=1000, units=5000)
    ...         return grant.buckets
    >>> asyncio.run(main())
    [BucketGrant(key='tpm', limit=1000, units=5000, charged_units=1000, window_ms=60000)]
    """

    key: str
    limit: int
    units: int
    charged_units: int
    window_ms: int


class Reservation(Protocol):
    """The units of a grant in the store."""

    async def settle(self, actual: Mapping[str, int]) -> bool:
        """Correct the units that were charged."""

    @property
    def age(self) -> float:
        """Seconds since the units were charged."""

    async def renew(self) -> bool:
        """Count the units from now on."""


@dataclass(frozen=True, slots=True)
class RateLimitGrant(Record):
    """The answer of the limiter: granted (*ok*), or *timed_out* and when to try again.

    *retry_after_ms* is 0 when granted.

    >>> import asyncio
    >>> from harn import durable_rate_limit_acquire
    >>> from harn.testing import fresh_runtime
    >>> async def main() -> RateLimitGrant:
    ...     async with fresh_runtime():
    ...         await durable_rate_limit_acquire(key="rpm", limit=1)
    ...         return await durable_rate_limit_acquire(key="rpm", limit=1, timeout_ms=0)
    >>> grant = asyncio.run(main())
    >>> grant.ok, grant.timed_out, grant.retry_after_ms
    (False, True, 60000)
    """

    ok: bool
    timed_out: bool
    waited_ms: int
    retry_after_ms: int
    state_path: str
    buckets: list[BucketGrant]
    _held: Reservation | None = field(default=None, repr=False, compare=False)

    async def settle(self, actual: Mapping[str, int]) -> bool:
        """Correct the units that were charged to those that were used, by key.

        Fewer units free the difference at once; more units only delay later requests. A second
        settle replaces the first. False when it is too late, because the window of the grant has
        passed. After a cancel each bucket is either settled or unchanged.

        >>> import asyncio
        >>> from harn import durable_rate_limit_acquire
        >>> from harn.testing import fresh_runtime
        >>> async def main() -> bool:
        ...     async with fresh_runtime():
        ...         grant = await durable_rate_limit_acquire(key="tpm", limit=1000, units=800)
        ...         return await grant.settle({"tpm": 350})
        >>> asyncio.run(main())
        True
        """
        known = {bucket.key for bucket in self.buckets}
        if not isinstance(actual, Mapping):
            raise InvalidOption("actual", actual, "a mapping of key to units")
        for key, units in actual.items():
            if key not in known:
                accepted = f"a key of this grant{did_you_mean(key, known)}"
                raise InvalidOption("actual", key, accepted)
            check_units(key, units)
        if self._held is None or not actual:
            return False
        return await self._held.settle(actual)

    def as_dict(self) -> dict[str, Any]:
        """Return every field, JSON-ready."""
        return {**fields_of(self), "buckets": [bucket.as_dict() for bucket in self.buckets]}

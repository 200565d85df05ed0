"""Rate limits that hold across processes: reserve in a transaction, wait outside it, settle.

`durable_rate_limit_acquire` charges all its buckets or none, and waits in line while there is no
room. This file decides which store holds the rows: the file that was named; else the runtime's
storage, if that is PostgreSQL; else `rate-limits.sqlite` in the state directory. Under a fake clock
the rows are in a second file or schema beside it, so that a test never changes real limits.

On PostgreSQL the server's time is used. Only processes of one machine share a file; there it is
the machine's monotonic time, which all of them read alike and which cannot be set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from harn.current import current_runtime
from harn.duration import Duration, to_ms
from harn.errors import InvalidOption
from harn.masking import mask
from harn.ratelimit.buckets import (
    DEFAULT_WINDOW_MS,
    Bucket,
    BucketGrant,
    RateLimitGrant,
    read_buckets,
)
from harn.ratelimit.limiter_files import FILE, is_postgres
from harn.ratelimit.metrics import LimiterMetrics
from harn.ratelimit.process_identity import owner_here
from harn.ratelimit.records import Granted, Want
from harn.ratelimit.reservation import StoredReservation
from harn.ratelimit.store_limiter import StoreLimiter
from harn.storage import Store

if TYPE_CHECKING:
    from harn.clock import Clock
    from harn.runtime import Runtime

MEMORY = "memory://"
MOST_NAMES = 1000


class Limiter:
    """A runtime's limiter: a `StoreLimiter` for each store that its callers have named."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_url: dict[tuple[str, Clock], StoreLimiter] = {}
        self._by_name: dict[tuple[object, str, Clock], StoreLimiter] = {}
        self._own_stores: list[Store] = []
        self._shared_store: Store | None = None
        if is_postgres(runtime.storage_url):
            # Opened here, not later: services close in reverse order, so it outlives this one.
            self._shared_store = runtime.service(Store)
        self.metrics: LimiterMetrics = LimiterMetrics(runtime, self._by_url.values())

    def at(self, state_path: str | os.PathLike[str] | None, file: str = FILE) -> StoreLimiter:
        """Return the limiter of the store that *state_path* names; without one, of *file*."""
        clock = self._runtime.clock
        try:
            return self._by_name[state_path, file, clock]
        except (KeyError, TypeError):
            pass  # not known yet, or no path
        if state_path is not None and not isinstance(state_path, str | os.PathLike):
            raise InvalidOption("state_path", state_path, "a path, or a postgresql:// URL")
        found = self._at_url(self._url(state_path, file, clock.is_fake), clock)
        if len(self._by_name) < MOST_NAMES:
            self._by_name[state_path, file, clock] = found
        return found

    def in_memory(self) -> StoreLimiter:
        """Return a limiter that no other process shares."""
        return self._at_url(MEMORY, self._runtime.clock)

    async def aclose(self) -> None:
        """Remove this runtime's tickets from every line and close the stores that it opened."""
        for each in self._by_url.values():
            await each.aclose()
        for store in self._own_stores:
            await store.aclose()

    def _at_url(self, url: str, clock: Clock) -> StoreLimiter:
        found = self._by_url.get((url, clock))
        if found is None:
            found = self._by_url[url, clock] = self._open(url, clock)
        return found

    def _url(self, state_path: str | os.PathLike[str] | None, file: str, is_fake: bool) -> str:
        if state_path is None:
            return self._default_url(file, is_fake)
        if isinstance(state_path, str) and "://" in state_path:
            return _given_url(state_path, is_fake)
        if not str(state_path).strip():
            raise InvalidOption("state_path", state_path, "a path, or a postgresql:// URL")
        return _file_url(Path(os.fspath(state_path)), is_fake)

    def _default_url(self, file: str, is_fake: bool) -> str:
        runtime = self._runtime
        if self._shared_store is not None:
            return _mock_schema(runtime.storage_url) if is_fake else runtime.storage_url
        if is_fake and runtime.storage_url.startswith(MEMORY):
            return MEMORY
        return _file_url(runtime.state_dir / file, is_fake)

    def _open(self, url: str, clock: Clock) -> StoreLimiter:
        is_remote = is_postgres(url)
        if url == self._runtime.storage_url and self._shared_store is not None:
            store = self._shared_store
        else:
            durability = "?durability=normal" if url.startswith("sqlite") else ""
            store = Store(self._runtime, f"{url}{durability}")
            self._own_stores.append(store)
        shown = mask(url) if is_remote else str(store.place.path)
        return StoreLimiter(
            store,
            MEMORY if store.is_memory else shown,
            clock,
            owner_here(self._runtime.ids.uuid7()),
            None if is_remote and not clock.is_fake else _reader(clock),
            is_shared=not store.is_memory,
        )


def _given_url(url: str, is_fake: bool) -> str:
    if is_postgres(url):
        return _mock_schema(url) if is_fake else url
    if url.startswith(MEMORY):
        return MEMORY
    if url.startswith("sqlite:///"):
        return _file_url(Path(url.removeprefix("sqlite:///")), is_fake)
    accepted = "a path, or a sqlite:///path, postgresql:// or memory:// URL"
    raise InvalidOption("state_path", mask(url), accepted)


def _reader(clock: Clock) -> Any:
    if clock.is_fake:
        return lambda: clock.now_ms() * 1000
    return lambda: int(clock.monotonic() * 1e6)


def _mock_schema(url: str) -> str:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    options["schema"] = f"{options.get('schema', 'harn')}_mock"
    return parts._replace(query=urlencode(options)).geturl()


def _file_url(path: Path, fake: bool) -> str:
    where = os.path.abspath(path)
    if "?" in where or "\0" in where:
        raise InvalidOption("state_path", str(path), "a path without '?' or NUL")
    return f"sqlite:///{where}{'.mock' if fake else ''}"


async def durable_rate_limit_acquire(
    *,
    buckets: Iterable[Bucket | Mapping[str, Any]] | None = None,
    key: str | None = None,
    limit: int | None = None,
    units: int = 1,
    window_ms: Duration = DEFAULT_WINDOW_MS,
    timeout_ms: Duration | None = None,
    state_path: str | os.PathLike[str] | None = None,
) -> RateLimitGrant:
    """Reserve units of every bucket at once, waiting until all of them have room.

    Give *buckets*, or one as *key*, *limit*, *units* and *window_ms*. Callers that name the same
    key share it, in every process that uses the same store; requests that share a bucket are served
    in the order they came. A request for more units than the limit waits for an empty window and
    charges all of it. After *timeout_ms* the answer has `timed_out` set and nothing was charged;
    0 never waits.

    Cancelling releases the place in line, and units that were granted before the cancel arrived.

    >>> import asyncio
    >>> from harn.testing import fresh_runtime
    >>> async def main() -> list[bool]:
    ...     async with fresh_runtime():
    ...         first = await durable_rate_limit_acquire(key="test", limit=1)
    ...         second = await durable_rate_limit_acquire(key="test", limit=1, timeout_ms=0)
    ...         return [first.ok, second.timed_out]
    >>> asyncio.run(main())
    [True, True]
    """
    wanted = read_buckets(buckets, key, limit, units, window_ms)
    timeout = None if timeout_ms is None else to_ms(timeout_ms, "timeout_ms") / 1000
    limiter = current_runtime().service(Limiter)
    return await acquire(limiter, limiter.at(state_path), wanted, timeout)


async def acquire(
    limiter: Limiter,
    store_limiter: StoreLimiter,
    buckets: Sequence[Bucket],
    timeout: float | None,
    cooldowns: tuple[str, ...] = (),
    *,
    replaces: bool = False,
) -> RateLimitGrant:
    """Reserve *buckets*, once none of them and none of *cooldowns* is paused.

    A cooldown is a key that is paused and never charged.

    With *replaces* the limits given here hold from now on, instead of earlier ones of their keys.

    Cancelling leaves the line, and releases units that were granted before the cancel arrived.
    """
    wants = tuple(
        [
            Want(each.key, each.limit, each.window_ms * 1000, min(each.units, each.limit), replaces)
            for each in buckets
        ]
    )
    asked = tuple([want for want in wants if want.charge])
    if cooldowns:  # whatever limit and span: nothing is charged
        asked += tuple(Want(key, 1, 1_000_000, 0) for key in cooldowns)
    metrics, shown = limiter.metrics, store_limiter.shown
    if not asked:
        nothing = Granted(-1, (None,) * len(wants))
        held = StoredReservation(metrics, store_limiter, wants, nothing)
        return _granted(buckets, nothing, 0, shown, held)
    clock = store_limiter.clock
    started = clock.monotonic()
    verdict = await store_limiter.ask(asked, timeout)
    waited = round((clock.monotonic() - started) * 1000)
    metrics.asked(wants, verdict, waited)
    if not isinstance(verdict, Granted):
        answers = [_answer(each, 0) for each in buckets]
        after = max(1, -(-verdict.wait // 1000))
        return RateLimitGrant(False, True, waited, after, shown, answers)
    if len(asked) != len(wants):
        rows = {want.key: row for want, row in zip(asked, verdict.rows, strict=True)}
        verdict = Granted(verdict.at, tuple(rows.get(want.key) for want in wants))
    held = StoredReservation(metrics, store_limiter, wants, verdict)
    return _granted(buckets, verdict, waited, shown, held)


def _granted(
    buckets: Sequence[Bucket], got: Granted, waited: int, shown: str, held: StoredReservation
) -> RateLimitGrant:
    answers = [
        _answer(bucket, 0 if row is None else row[2])
        for bucket, row in zip(buckets, got.rows, strict=True)
    ]
    return RateLimitGrant(True, False, waited, 0, shown, answers, held)


def _answer(bucket: Bucket, charged: int) -> BucketGrant:
    return BucketGrant(bucket.key, bucket.limit, bucket.units, charged, bucket.window_ms)

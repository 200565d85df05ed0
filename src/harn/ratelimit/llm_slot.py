"""A model call within its provider's limits: take a call slot, reserve quota, call, settle.

`llm_slot` wraps a call of any client. `with_rate_limit` also retries after errors that may pass.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from harn.checks import whole_number
from harn.clock import sleep_until
from harn.current import current_runtime
from harn.duration import Duration, to_ms
from harn.errors import HarnError, RateLimitError
from harn.ratelimit.buckets import RateLimitGrant, check_units
from harn.ratelimit.call_slots import CallSlots, CallSlotsByRoute
from harn.ratelimit.limiter import Limiter, acquire
from harn.ratelimit.provider_limits import (
    Providers,
    buckets_of,
    check_route,
    prefix_of,
    travel_ms,
    units_of,
)
from harn.ratelimit.retry_after import is_retryable, status_of, wait_in
from harn.ratelimit.store_limiter import StoreLimiter
from harn.ratelimit.window import LONGEST_PAUSE
from harn.runtime import Runtime
from harn.tasks import check_callable, runner_for

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("harn.ratelimit")

FILE = "llm-rate-limits.sqlite"
LONGEST_BACKOFF = 30.0
TOO_MANY = frozenset({429, 503, 529})


class LlmSlot:
    """The permission to make one call; see `llm_slot`."""

    def __init__(
        self, provider: str, model: str | None, input_tokens: int, output_tokens: int
    ) -> None:
        self.provider = provider
        self.model = model
        self.waited_ms: int = 0
        self._tokens = (input_tokens, output_tokens)
        self._prefixes = [prefix_of(provider, None)]
        if model is not None:
            self._prefixes.append(prefix_of(provider, model))
        self._call_slots: list[CallSlots] = []
        self._store_limiter: StoreLimiter | None = None
        self._grant: RateLimitGrant | None = None
        self._runtime: Runtime | None = None
        self._told = False

    async def __aenter__(self) -> Self:
        if self._runtime is not None:
            raise HarnError("a slot can be entered once; ask for a new one")
        self._runtime = runtime = current_runtime()
        try:
            await self._take_call_slots(runtime)
            await self._reserve(runtime)
        except BaseException:
            self._release_call_slots()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, Exception) and not self._told:
                await self._learn_from(error)
        finally:
            self._release_call_slots()

    async def sending(self) -> None:
        """Report that the request is sent now, so that an old reservation counts from now on.

        Call it if your client may have waited for a connection or a lock since the block was
        entered; `llm_call` and `llm_stream` do. A request may travel to its provider for
        `HARN_LLM_RATE_LIMIT_TRAVEL_MS`. If half of that has passed since the reservation, it is
        counted from now on; if it no longer counts at all, this waits for a new one.

        Cancelling leaves the quota used, possibly twice for one window.
        """
        if self._grant is None or self._runtime is None:
            raise HarnError("this slot has not been entered; use `async with llm_slot(...)`")
        held = self._grant._held
        if held is None or held.age * 2000 <= travel_ms(self._runtime):
            return
        if not await held.renew():
            await self._reserve(self._runtime)

    async def settle(
        self, *, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> bool:
        """Correct the reservation to the tokens that were used; see `RateLimitGrant.settle`.

        A number that is not given stays as reserved. False when there was nothing to correct.
        """
        for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if value is not None:
                check_units(name, value)
        went_in = self._tokens[0] if input_tokens is None else input_tokens
        came_out = self._tokens[1] if output_tokens is None else output_tokens
        self._tokens = (went_in, came_out)
        if self._grant is None:
            return False
        actual: dict[str, int] = {}
        for prefix in self._prefixes:
            actual |= units_of(prefix, went_in, came_out)
        held = {bucket.key for bucket in self._grant.buckets if not bucket.key.endswith(":rpm")}
        return await self._grant.settle({key: actual[key] for key in held})

    async def retry_after(self, hint: Any) -> float | None:
        """Make all callers of this route wait, in every process, for as long as *hint* says.

        *hint* is a number of seconds, the text of a `Retry-After` header, a mapping of headers,
        or a response or error that has them. Returns the seconds (at most an hour), or None if the
        hint names no time. A longer wait that is already in force stays.
        """
        if self._store_limiter is None or self._runtime is None:
            raise HarnError("this slot has not been entered; use `async with llm_slot(...)`")
        seconds = wait_in(hint, self._runtime.clock.now_ms())
        if not seconds:
            return seconds
        self._told = True
        length = min(int(seconds * 1e6), LONGEST_PAUSE)
        await self._store_limiter.pause([f"{self._prefixes[-1]}:cooldown"], length)
        return length / 1e6

    async def feedback(
        self, headers: Mapping[str, str] | None, *, status: int | None = None
    ) -> float | None:
        """Read the *headers* of a response; return the seconds that all callers now wait.

        `Retry-After` is ignored if *status* says that the call succeeded. A remaining count of 0
        is read from every response.
        """
        if not headers:
            return None
        known = {str(name).lower(): str(value) for name, value in headers.items()}
        if status is not None and status < 400:
            known.pop("retry-after", None)
            known.pop("retry-after-ms", None)
        return await self.retry_after(known)

    async def _take_call_slots(self, runtime: Runtime) -> None:
        providers = runtime.service(Providers)
        for number, prefix in enumerate(self._prefixes):
            limits = providers.limits(self.provider, self.model if number else None)
            slots = runtime.service(CallSlotsByRoute).of(prefix)
            if limits is None or limits.concurrency is None:
                slots.resize(None)
                continue
            await slots.take(limits.concurrency)
            self._call_slots.append(slots)

    def _release_call_slots(self) -> None:
        while self._call_slots:
            self._call_slots.pop().release()

    async def _reserve(self, runtime: Runtime) -> None:
        limiter, settings = runtime.service(Limiter), runtime.settings
        providers = runtime.service(Providers)
        if settings.llm_rate_limit_durable:
            store_limiter = limiter.at(settings.llm_rate_limit_state_path, FILE)
        else:
            store_limiter = limiter.in_memory()
        self._store_limiter = store_limiter
        buckets = []
        for number, prefix in enumerate(self._prefixes):
            limits = providers.limits(self.provider, self.model if number else None)
            if limits is not None:
                buckets += buckets_of(limits, prefix, *self._tokens, travel_ms(runtime))
        gates = tuple(f"{prefix}:cooldown" for prefix in self._prefixes)
        wait_ms = settings.llm_rate_limit_max_wait_ms
        timeout = None if wait_ms is None else wait_ms / 1000
        grant = await acquire(limiter, store_limiter, buckets, timeout, gates)
        if not grant.ok:
            route = self.provider if self.model is None else f"{self.provider}/{self.model}"
            raise RateLimitError(
                f"no quota for {route} within {grant.waited_ms} ms; try again in "
                f"{grant.retry_after_ms} ms, or raise HARN_LLM_RATE_LIMIT_MAX_WAIT_MS"
            )
        self.waited_ms += grant.waited_ms
        self._grant = grant

    async def _learn_from(self, error: Exception) -> None:
        if status_of(error) not in TOO_MANY:
            return
        try:
            await self.retry_after(error)
        except HarnError as failure:
            logger.warning(
                "the Retry-After of %s did not reach other callers: %s", self.provider, failure
            )


def llm_slot(
    provider: str, model: str | None = None, input_tokens: int = 0, output_tokens: int = 0
) -> LlmSlot:
    """Wait until a call to *provider* is within its limits; use it as `async with`.

    First it waits for a call slot, which bounds the calls under way in this process. Then it waits
    for the quota of provider and model together, and reserves the given tokens. Inside the block,
    make the call with any client, then `await slot.settle(input_tokens=..., output_tokens=...)`
    with the tokens that were used. An error that leaves the block with the status 429, 503 or 529
    and a `Retry-After` makes all callers wait, in every process; so does `slot.retry_after`.

    Cancelling the wait releases the call slot and the quota; inside the block the quota stays used.

    >>> import asyncio
    >>> from harn import llm_rate_limit
    >>> from harn.testing import fresh_runtime
    >>> async def main() -> bool:
    ...     async with fresh_runtime():
    ...         llm_rate_limit("acme", rpm=600, tpm=90_000)
    ...         async with llm_slot("acme", "big-2", input_tokens=900, output_tokens=500) as slot:
    ...             return await slot.settle(input_tokens=870, output_tokens=120)
    >>> asyncio.run(main())
    True
    """
    check_route(provider, model)
    check_units("input_tokens", input_tokens)
    check_units("output_tokens", output_tokens)
    return LlmSlot(provider, model, input_tokens, output_tokens)


@overload
async def with_rate_limit(
    provider: str,
    fn: Callable[[], Awaitable[T]],
    max_retries: int = 5,
    backoff_ms: Duration = 1000,
    *,
    model: str | None = None,
) -> T: ...


@overload
async def with_rate_limit(
    provider: str,
    fn: Callable[[], T],
    max_retries: int = 5,
    backoff_ms: Duration = 1000,
    *,
    model: str | None = None,
) -> T: ...


async def with_rate_limit(
    provider: str,
    fn: Callable[[], T] | Callable[[], Awaitable[T]],
    max_retries: int = 5,
    backoff_ms: Duration = 1000,
    *,
    model: str | None = None,
) -> T:
    """Call *fn* inside a slot of *provider*, retry errors that may pass, and return its value.

    These are rate limits, overload, network errors and timeouts. They are recognised by status code
    or by the error's type, with any client library. At most *max_retries* more calls are made.
    Between them it waits as long as the provider asked, else *backoff_ms*, doubled each time up to
    30 s. The last error is raised as it is. A cancel or a deadline is never retried.

    >>> import asyncio
    >>> from harn.testing import fresh_runtime
    >>> answers = iter([ConnectionResetError(), "hello"])
    >>> async def ask() -> str:
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> async def main() -> str:
    ...     async with fresh_runtime(autojump=True):
    ...         return await with_rate_limit("acme", ask)
    >>> asyncio.run(main())
    'hello'
    """
    whole_number("max_retries", max_retries, least=0)
    pause = to_ms(backoff_ms, "backoff_ms") / 1000
    check_callable(fn)
    runtime = current_runtime()
    call = runner_for(runtime, "auto").bind(fn)
    for left in range(max_retries, -1, -1):
        slot = llm_slot(provider, model)
        try:
            async with slot:
                return cast(T, await call())
        except Exception as error:
            if not left or not is_retryable(error):
                raise
            logger.info(
                "a call to %s failed (%s); retries left: %d", provider, type(error).__name__, left
            )
        if not slot._told:  # otherwise the next slot waits as long as the provider asked
            clock = runtime.clock
            await sleep_until(clock, clock.monotonic() + min(pause, LONGEST_BACKOFF))
            pause *= 2
    raise AssertionError("unreachable")

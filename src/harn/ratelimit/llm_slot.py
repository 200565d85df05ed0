"""A model call within its limits: take a call slot, reserve budget and quota, call, settle.

`llm_slot` wraps a call of any client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from harn.context import Task
from harn.current import current_frame
from harn.errors import HarnError, RateLimitError
from harn.ratelimit.buckets import RateLimitGrant, check_units
from harn.ratelimit.budgets import BudgetReservation, reserve_budget
from harn.ratelimit.call_slots import CallSlots, CallSlotsByRoute
from harn.ratelimit.limiter import Limiter, acquire
from harn.ratelimit.limiter_files import LLM_FILE
from harn.ratelimit.provider_limits import (
    Providers,
    buckets_of,
    check_route,
    prefix_of,
    travel_ms,
    units_of,
)
from harn.ratelimit.retry_after import headers_of, status_of, wait_in
from harn.ratelimit.store_limiter import StoreLimiter
from harn.ratelimit.usage_records import record_call
from harn.ratelimit.window import LONGEST_PAUSE
from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.ratelimit")

TOO_MANY = frozenset({429, 503, 529})


class LlmSlot:
    """The permission to make one call; see `llm_slot`.

    >>> import harn
    >>> async def main() -> bool:
    ...     async with harn.llm_slot("acme", input_tokens=100) as slot:
    ...         return await slot.settle(input_tokens=90, output_tokens=10)
    >>> harn.run(main)
    False
    """

    def __init__(
        self,
        provider: str,
        model: str | None,
        input_tokens: int,
        output_tokens: int,
        is_retry: bool,
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
        self._budget: BudgetReservation | None = None
        self._runtime: Runtime | None = None
        self._task: Task | None = None
        self._began = 0.0
        self._has_paused = False
        self._is_retry = is_retry
        self._cached_tokens = 0
        self._is_settled = False

    async def __aenter__(self) -> Self:
        if self._runtime is not None:
            raise HarnError("a slot can be entered once; ask for a new one")
        self._task = task = current_frame().task
        self._runtime = runtime = task.runtime
        try:
            await self._take_call_slots(runtime)
            await self._reserve_all(runtime, task.ambient.tenant_id)
        except BaseException:
            self._release_call_slots()
            raise
        self._began = runtime.clock.monotonic()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, Exception) and not self._has_paused:
                await self._learn_from(error)
        finally:
            self._release_call_slots()
            self._record(error)

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
        self,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int = 0,
    ) -> bool:
        """Correct the reservation to the tokens that were used; see `RateLimitGrant.settle`.

        *cached_tokens* are those of the input that the provider read from its cache. A number that
        is not given stays as reserved. False when there was nothing to correct. After a cancel,
        quota and budget are each either settled or unchanged.
        """
        given = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        for name, value in {**given, "cached_tokens": cached_tokens}.items():
            if value is not None:
                check_units(name, value)
        went_in = self._tokens[0] if input_tokens is None else input_tokens
        came_out = self._tokens[1] if output_tokens is None else output_tokens
        self._tokens = (went_in, came_out)
        self._cached_tokens = cached_tokens
        self._is_settled = True
        if self._grant is None:
            return False
        charged = await self._settle_quota(went_in, came_out)
        if self._budget is not None:
            charged = await self._budget.settle(went_in, came_out, cached_tokens) or charged
        return charged

    async def _settle_quota(self, went_in: int, came_out: int) -> bool:
        assert self._grant is not None
        actual: dict[str, int] = {}
        for prefix in self._prefixes:
            actual |= units_of(prefix, went_in, came_out)
        held = {bucket.key for bucket in self._grant.buckets if not bucket.key.endswith(":rpm")}
        return await self._grant.settle({key: actual[key] for key in held})

    async def retry_after(self, hint: Any) -> float | None:
        """Make all callers of this route wait, in every process, for as long as *hint* says.

        *hint* is a number of seconds, the text of a `Retry-After` header, a mapping of headers,
        or a response or error that has them. Returns the seconds (at most an hour), or None if the
        hint names no time. A longer wait that is already in force stays. Cancelling does not stop
        it.
        """
        if self._store_limiter is None or self._runtime is None:
            raise HarnError("this slot has not been entered; use `async with llm_slot(...)`")
        seconds = wait_in(hint, self._runtime.clock.now_ms())
        if not seconds:
            return seconds
        self._has_paused = True
        length = int(min(seconds * 1e6, LONGEST_PAUSE))
        await self._store_limiter.pause([f"{self._prefixes[-1]}:cooldown"], length)
        return length / 1e6

    async def feedback(
        self, headers: Mapping[str, str] | None, *, status: int | None = None
    ) -> float | None:
        """Read the *headers* of a response; return the seconds that all callers now wait.

        `Retry-After` is ignored if *status* says that the call succeeded. A remaining count of 0
        is read from every response. Cancelling does not stop it.
        """
        if not headers:
            return None
        known = headers_of(headers) or {}
        if status is not None and status < 400:
            known = {name: each for name, each in known.items() if "retry-after" not in name}
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

    async def _reserve_all(self, runtime: Runtime, tenant_id: str | None) -> None:
        """Reserve of the tenant's budget, then of the quota.

        A call that waits for its tenant's budget must not stand in the line of a quota, where it
        would hold up other tenants.
        """
        route = (self.provider, self.model)
        store_limiter = self._limiter_of(runtime)
        began = runtime.clock.monotonic()
        self._budget = await reserve_budget(runtime, store_limiter, tenant_id, route, self._tokens)
        self.waited_ms = round((runtime.clock.monotonic() - began) * 1000)
        try:
            await self._reserve(runtime)
        except BaseException:
            if self._budget is not None:
                await self._budget.release()
            raise

    def _limiter_of(self, runtime: Runtime) -> StoreLimiter:
        limiter, settings = runtime.service(Limiter), runtime.settings
        if settings.llm_rate_limit_durable:
            return limiter.at(settings.llm_rate_limit_state_path, LLM_FILE)
        return limiter.in_memory()

    async def _reserve(self, runtime: Runtime) -> None:
        limiter, settings = runtime.service(Limiter), runtime.settings
        providers = runtime.service(Providers)
        self._store_limiter = store_limiter = self._limiter_of(runtime)
        buckets = []
        for number, prefix in enumerate(self._prefixes):
            limits = providers.limits(self.provider, self.model if number else None)
            if limits is not None:
                buckets += buckets_of(limits, prefix, *self._tokens, travel_ms(runtime))
        cooldowns = tuple(f"{prefix}:cooldown" for prefix in self._prefixes)
        wait_ms = settings.llm_rate_limit_max_wait_ms
        timeout = None if wait_ms is None else wait_ms / 1000
        grant = await acquire(limiter, store_limiter, buckets, timeout, cooldowns)
        if not grant.ok:
            route = self.provider if self.model is None else f"{self.provider}/{self.model}"
            raise RateLimitError(
                f"no quota for {route} within {grant.waited_ms} ms; try again in "
                f"{grant.retry_after_ms} ms, or raise HARN_LLM_RATE_LIMIT_MAX_WAIT_MS",
                retry_after_ms=grant.retry_after_ms,
            )
        self.waited_ms += grant.waited_ms
        self._grant = grant

    def _record(self, error: BaseException | None) -> None:
        """Leave the call's record in the topic `llm.usage`, if it is one of tokens."""
        went_in, came_out = self._tokens
        is_counted = went_in or came_out or self._is_settled
        if self._task is None or self._runtime is None or not is_counted:
            return
        if error is not None and not self._is_settled:
            went_in = came_out = 0
        record_call(
            self._task,
            (self.provider, self.model),
            (went_in, came_out, self._cached_tokens),
            retried=self._is_retry,
            error=error,
            estimated=error is None and not self._is_settled,
            waited_ms=self.waited_ms,
            duration_ms=round((self._runtime.clock.monotonic() - self._began) * 1000),
        )

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
    provider: str,
    model: str | None = None,
    input_tokens: int = 0,
    output_tokens: int = 0,
    *,
    is_retry: bool = False,
) -> LlmSlot:
    """Wait until a call to *provider* is within its limits; use it as `async with`.

    First it waits for a call slot, which bounds the calls under way in this process. Then it waits
    for the quota of provider and model together, and reserves the given tokens; before that, it
    reserves of the tenant's budget, or raises `RateLimitError` (see `llm_budget`). Inside the
    block, make the call with any client, then `await slot.settle(input_tokens=...,
    output_tokens=...)` with the tokens that were used. An error that leaves the block with the
    status 429, 503 or 529 and a `Retry-After` makes all callers wait, in every process; so does
    `slot.retry_after`.

    The end of the block leaves a record in the topic `llm.usage`, unless no tokens were reserved
    or settled; *is_retry* is noted there.

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
    return LlmSlot(provider, model, input_tokens, output_tokens, is_retry)

"""`with_rate_limit`: a call of any client in a slot, retried after errors that may pass."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

from harn.clock import sleep_until
from harn.current import current_runtime
from harn.duration import Duration, to_ms
from harn.option_checks import whole_number
from harn.ratelimit.llm_slot import llm_slot
from harn.ratelimit.retry_after import is_retryable
from harn.tasks import check_callable, runner_for

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("harn.ratelimit")

LONGEST_BACKOFF = 30.0


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
        slot = llm_slot(provider, model, is_retry=left < max_retries)
        try:
            async with slot:
                return cast(T, await call())
        except Exception as error:
            if not left or not is_retryable(error):
                raise
            logger.info(
                "a call to %s failed (%s); retries left: %d", provider, type(error).__name__, left
            )
        if not slot._has_paused:  # otherwise the next slot waits as long as the provider asked
            clock = runtime.clock
            await sleep_until(clock, clock.monotonic() + min(pause, LONGEST_BACKOFF))
            pause *= 2
    raise AssertionError("unreachable")

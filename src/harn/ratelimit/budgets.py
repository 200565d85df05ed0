"""Budgets of tenants: how many dollars and tokens their model calls may use in a window.

A call reserves what it may cost before it is sent, and is corrected afterwards to what it did cost:
the same rows as those of rate limits, in the same store, so they hold across processes. A tenant's
budget is set with `llm_budget`, or in the catalogue:

    [budgets.acme]
    usd = 5.0
    tokens = 2_000_000
    window = "1d"
    on_spent = "wait"
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from harn.clock import iso
from harn.current import current_runtime
from harn.duration import Duration, roughly, to_ms, to_text
from harn.errors import InvalidOption, ManifestError, RateLimitError, did_you_mean
from harn.naming import joined
from harn.option_checks import is_number
from harn.ratelimit.buckets import MOST_UNITS, Bucket, RateLimitGrant, check_key, check_units
from harn.ratelimit.limiter import Limiter, acquire
from harn.ratelimit.model_files import catalogues, tables
from harn.ratelimit.model_prices import Price, Prices
from harn.records import SparseRecord

if TYPE_CHECKING:
    from harn.ratelimit.store_limiter import StoreLimiter
    from harn.runtime import Runtime

OnSpent = Literal["refuse", "wait"]

NANO = 1_000_000_000
"""Units in a dollar: a token of the cheapest model costs many of them."""
FIELDS = ("usd", "tokens", "window", "on_spent")
NO_TENANT = ""
"""Stands in a bucket's key for calls without a tenant; no tenant's id is empty."""


@dataclass(frozen=True, slots=True)
class Budget(SparseRecord):
    """What the model calls of a tenant may use in any *window_ms*.

    *on_spent* tells what happens to a call that does not fit: `"refuse"` raises `RateLimitError`,
    `"wait"` delays it until it fits.

    >>> import harn
    >>> async def main() -> int:
    ...     harn.llm_budget("acme", tokens=10_000)
    ...     return harn.llm_budget("acme").tokens
    >>> harn.run(main)
    10000
    """

    tenant_id: str | None
    usd: float | None = None
    tokens: int | None = None
    window_ms: int = 86_400_000
    on_spent: OnSpent = "refuse"

    def __str__(self) -> str:
        parts = []
        if self.usd is not None:
            parts.append(f"{self.usd:g} USD")
        if self.tokens is not None:
            parts.append(f"{self.tokens:,} tokens")
        return f"{' and '.join(parts)} in any {to_text(self.window_ms / 1000)}"


class Budgets:
    """The budgets of a runtime: those of the catalogue, and those set at run time."""

    def __init__(self, runtime: Runtime) -> None:
        self._known = read_budgets(runtime.settings.providers)

    def of(self, tenant_id: str | None) -> Budget | None:
        """Return the budget in force for *tenant_id*."""
        return self._known.get(tenant_id)

    def set(self, budget: Budget) -> None:
        """Put *budget* in force."""
        self._known[budget.tenant_id] = budget


def llm_budget(
    tenant_id: str | None,
    *,
    usd: float | None = None,
    tokens: int | None = None,
    window: Duration = "1d",
    on_spent: OnSpent = "refuse",
) -> Budget | None:
    """Set what the model calls of *tenant_id* may use in any *window*, or return its budget.

    A call reserves its estimated tokens, and their price, before it is sent; afterwards the
    reservation is corrected to what it used. What all processes with the same store have used
    counts. A call that does not fit is refused with `RateLimitError`, or waits. *tenant_id* None
    means the calls without a tenant. A budget replaces the earlier one of the tenant, and what was
    used stays counted; with another *window* the count begins again. With no limits given, returns
    the `Budget` in force, or None.

    >>> import asyncio
    >>> async def main() -> str:
    ...     llm_budget("acme", usd=5, tokens=2_000_000)
    ...     return str(llm_budget("acme"))
    >>> asyncio.run(main())
    '5 USD and 2,000,000 tokens in any 1d'
    """
    budgets = current_runtime().service(Budgets)
    if tenant_id is not None:
        check_key(tenant_id, "tenant_id")
    if usd is not None or tokens is not None:
        budgets.set(_checked(tenant_id, usd, tokens, window, on_spent))
    return budgets.of(tenant_id)


def _checked(
    tenant_id: str | None, usd: Any, tokens: Any, window: Duration, on_spent: Any
) -> Budget:
    if usd is not None:
        if not is_number(usd) or not 1 / NANO <= usd <= MOST_UNITS / NANO:
            raise InvalidOption("usd", usd, f"dollars above 0, at most {MOST_UNITS // NANO:,}")
        usd = float(usd)
    if tokens is not None:
        check_units("tokens", tokens, least=1)
    window_ms = to_ms(window, "window")
    if window_ms < 1:
        raise InvalidOption("window", window, "at least one millisecond")
    if on_spent not in get_args(OnSpent):
        raise InvalidOption("on_spent", on_spent, '"refuse" or "wait"')
    return Budget(tenant_id, usd, tokens, window_ms, on_spent)


def read_budgets(given: Path | None) -> dict[str | None, Budget]:
    """Read the budgets of every tenant from the first catalogue that has any."""
    for path, document in catalogues(given):
        found = tables(path, "budgets", document.get("budgets", {}))
        if found:
            return {tenant: _entry(path, tenant, table) for tenant, table in found}
    return {}


def _entry(path: Path, tenant: str, table: dict[str, Any]) -> Budget:
    where = f"{path}: [budgets.{tenant}]"
    for name in table:
        if name not in FIELDS:
            raise ManifestError(f"{where} has an unknown key {name!r}{did_you_mean(name, FIELDS)}")
    if "usd" not in table and "tokens" not in table:
        raise ManifestError(f"{where} needs usd or tokens")
    try:
        check_key(tenant, "tenant_id")
        return _checked(
            tenant,
            table.get("usd"),
            table.get("tokens"),
            table.get("window", "1d"),
            table.get("on_spent", "refuse"),
        )
    except InvalidOption as error:
        raise ManifestError(f"{where} {error}") from None


class BudgetReservation:
    """What a call has reserved of its tenant's budget."""

    def __init__(self, budget: Budget, price: Price | None, grant: RateLimitGrant) -> None:
        self._budget = budget
        self._price = price
        self._grant = grant

    async def settle(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> bool:
        """Correct the reservation to what the call used; false when the window has passed.

        Cancelling does not stop it.
        """
        return await self._grant.settle(
            _units(self._budget, self._price, input_tokens, output_tokens, cached_tokens)
        )

    async def release(self) -> None:
        """Free everything: the call was not made. Cancelling does not stop it."""
        await self._grant.settle({bucket.key: 0 for bucket in self._grant.buckets})


async def reserve_budget(
    runtime: Runtime,
    store_limiter: StoreLimiter,
    tenant_id: str | None,
    route: tuple[str, str | None],
    tokens: tuple[int, int],
) -> BudgetReservation | None:
    """Reserve what a call may use of its tenant's budget; None if the tenant has none.

    Raises `RateLimitError`, or waits, if it does not fit. Cancelling leaves nothing reserved.
    """
    budget = runtime.service(Budgets).of(tenant_id)
    if budget is None:
        return None
    price = runtime.service(Prices).of(*route)
    if budget.usd is not None and price is None:
        raise RateLimitError(_without_price(budget, route))
    units = _units(budget, price, *tokens)
    buckets = [
        Bucket(key, limit, min(units[key], MOST_UNITS), budget.window_ms)
        for key, limit in _limits(budget).items()
    ]
    wait_ms = 0 if budget.on_spent == "refuse" else runtime.settings.llm_rate_limit_max_wait_ms
    timeout = None if wait_ms is None else wait_ms / 1000
    grant = await acquire(runtime.service(Limiter), store_limiter, buckets, timeout, replaces=True)
    if not grant.ok:
        raise _spent(runtime, budget, grant)
    return BudgetReservation(budget, price, grant)


def _limits(budget: Budget) -> dict[str, int]:
    limits = {}
    if budget.usd is not None:
        limits[_key(budget, "usd")] = round(budget.usd * NANO)
    if budget.tokens is not None:
        limits[_key(budget, "tokens")] = budget.tokens
    return limits


def _units(
    budget: Budget, price: Price | None, input_tokens: int, output_tokens: int, cached: int = 0
) -> dict[str, int]:
    units = {}
    if budget.usd is not None and price is not None:
        cost = price.of(input_tokens, output_tokens, cached)
        units[_key(budget, "usd")] = min(math.ceil(round(cost * NANO, 3)), MOST_UNITS)
    if budget.tokens is not None:
        units[_key(budget, "tokens")] = min(input_tokens + output_tokens, MOST_UNITS)
    return units


def _key(budget: Budget, unit: str) -> str:
    tenant = NO_TENANT if budget.tenant_id is None else budget.tenant_id
    return joined("llm", "budget", tenant, str(budget.window_ms), unit)


def _spent(runtime: Runtime, budget: Budget, grant: RateLimitGrant) -> RateLimitError:
    frees = iso(runtime.clock.now_ms() + grant.retry_after_ms)
    wants = ", ".join(_wanted(bucket.key, bucket.units) for bucket in grant.buckets)
    return RateLimitError(
        f"the budget of {_owner(budget)}, {budget}, has no room for a call that may use {wants}; "
        f"it will have room in {roughly(grant.retry_after_ms)}, at {frees}: wait, "
        "lower max_tokens, or raise it with llm_budget()",
        retry_after_ms=grant.retry_after_ms,
    )


def _wanted(key: str, units: int) -> str:
    return f"{units / NANO:.6g} USD" if key.endswith(":usd") else f"{units:,} tokens"


def _without_price(budget: Budget, route: tuple[str, str | None]) -> str:
    provider, model = route
    name = provider if model is None else f"{provider}/{model}"
    return (
        f"the budget of {_owner(budget)} is in dollars, and the price of {name} is not known: "
        "set it with llm_price(), or in providers.toml"
    )


def _owner(budget: Budget) -> str:
    return "calls without a tenant" if budget.tenant_id is None else f"tenant {budget.tenant_id!r}"

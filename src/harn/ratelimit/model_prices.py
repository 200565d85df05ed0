"""What models cost: from the catalogue, or set with `llm_price`. A price may be unknown.

[providers.local.models.small]
input_usd_per_million = 0.1
output_usd_per_million = 0.4
cached_input_usd_per_million = 0.01    # input that the provider read from its cache
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harn.current import current_runtime
from harn.errors import InvalidOption, ManifestError
from harn.option_checks import is_number
from harn.ratelimit.model_files import catalogues, tables
from harn.ratelimit.provider_limits import check_route
from harn.records import SparseRecord

if TYPE_CHECKING:
    from harn.runtime import Runtime

FIELDS = ("input_usd_per_million", "output_usd_per_million", "cached_input_usd_per_million")


@dataclass(frozen=True, slots=True)
class Price(SparseRecord):
    """The price of a model in dollars per million tokens.

    Without *cached_input_usd_per_million*, cached input costs what other input does.

    >>> Price(2.0, 8.0).of(input_tokens=1000, output_tokens=500)
    0.006
    """

    input_usd_per_million: float = 0.0
    output_usd_per_million: float = 0.0
    cached_input_usd_per_million: float | None = None

    def of(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the dollars that a call costs; *cached_tokens* are part of its input."""
        cached = self.cached_input_usd_per_million
        if cached is None:
            cached = self.input_usd_per_million
        plain = max(0, input_tokens - cached_tokens)
        total = plain * self.input_usd_per_million + output_tokens * self.output_usd_per_million
        return (total + min(cached_tokens, input_tokens) * cached) / 1e6


class Prices:
    """The prices that a runtime knows."""

    def __init__(self, runtime: Runtime) -> None:
        self._known = read_prices(runtime.settings.providers)

    def of(self, provider: str, model: str | None) -> Price | None:
        """Return the price of *model*, or None if it is not known."""
        return None if model is None else self._known.get((provider, model))

    def set(self, provider: str, model: str, price: Price) -> None:
        """Use *price* for *model* from now on."""
        self._known[provider, model] = price


def llm_price(
    provider: str,
    model: str,
    *,
    input_usd_per_million: float | None = None,
    output_usd_per_million: float | None = None,
    cached_input_usd_per_million: float | None = None,
) -> Price | None:
    """Set what *model* costs in this runtime, or return its price; None if it is not known.

    The price overrides that of the catalogue. It is used for the records of `llm_usage`, the cost
    counter, and budgets in dollars.

    >>> import asyncio
    >>> async def main() -> float:
    ...     llm_price("acme", "big-2", input_usd_per_million=2, output_usd_per_million=8)
    ...     return llm_price("acme", "big-2").of(input_tokens=1000, output_tokens=500)
    >>> asyncio.run(main())
    0.006
    """
    check_route(provider, model)
    if not isinstance(model, str):
        raise InvalidOption("model", model, "the name of a model")
    values = (input_usd_per_million, output_usd_per_million, cached_input_usd_per_million)
    given = {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}
    for name, value in given.items():
        if not _is_price(value):
            raise InvalidOption(name, value, "a number of at least 0")
    prices = current_runtime().service(Prices)
    if given:
        prices.set(provider, model, _price(given))
    return prices.of(provider, model)


def read_prices(given: Path | None) -> dict[tuple[str, str], Price]:
    """Read the prices of every model from the first catalogue that has any."""
    for path, document in catalogues(given):
        found: dict[tuple[str, str], Price] = {}
        for provider, entry in tables(path, "providers", document.get("providers", {})):
            where = f"providers.{provider}.models"
            for model, table in tables(path, where, entry.get("models", {})):
                given_here = {name: table[name] for name in FIELDS if name in table}
                for name, value in given_here.items():
                    if not _is_price(value):
                        raise ManifestError(
                            f"{path}: [{where}.{model}] {name} is a number of at least 0, "
                            f"not {value!r}"
                        )
                if given_here:
                    found[provider, model] = _price(given_here)
        if found:
            return found
    return {}


def _is_price(value: Any) -> bool:
    return is_number(value) and value >= 0


def _price(given: Mapping[str, float]) -> Price:
    return Price(**{name: float(value) for name, value in given.items()})

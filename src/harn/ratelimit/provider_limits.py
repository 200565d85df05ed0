"""Limits of model providers and their models, from three sources.

    catalogue   `providers.toml` or `harn.toml`
    environment `HARN_RATE_LIMIT_<PROVIDER>[_<MODEL>]_...`
    runtime     `llm_rate_limit("acme", rpm=600)`

A later source overrides an earlier one field by field. A limit of a provider holds for all its
models together; a model may also have limits of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from harn.current import current_runtime
from harn.errors import InvalidOption, ManifestError, did_you_mean
from harn.naming import joined
from harn.option_checks import LARGEST, whole_number
from harn.ratelimit.buckets import Bucket, check_key
from harn.ratelimit.model_files import catalogues, tables
from harn.records import SparseRecord
from harn.settings import rate_limit_variables

if TYPE_CHECKING:
    from harn.runtime import Runtime

MINUTE_MS = 60_000
TRAVEL_MS = 1000
"""Milliseconds that a request may take to reach its provider, if no setting says otherwise."""

Limits = dict[str, int | None]
"""The limits of one source, by field; None removes the limit of an earlier source."""


@dataclass(frozen=True, slots=True)
class ProviderLimits(SparseRecord):
    """The limits of a provider, or of one of its models; None where there is none.

    Rates are per minute. *concurrency* bounds the calls under way in this process.

    >>> ProviderLimits(rpm=600).as_dict()
    {'rpm': 600}
    """

    rpm: int | None = None
    tpm: int | None = None
    input_tpm: int | None = None
    output_tpm: int | None = None
    concurrency: int | None = None


FIELDS = tuple(each.name for each in fields(ProviderLimits))
_ENDINGS = tuple(f"_{name.upper()}" for name in FIELDS)


class Providers:
    """A runtime's limits of providers, from all three sources."""

    def __init__(self, runtime: Runtime) -> None:
        self._catalogue = read_catalogue(runtime.settings.providers)
        self._environment = rate_limit_variables()
        self._overrides: dict[tuple[str, str | None], Limits] = {}

    def limits(self, provider: str, model: str | None = None) -> ProviderLimits | None:
        """Return the limits in force for *provider*, or those of its *model* alone."""
        found: Limits = dict(self._catalogue.get((provider, model), {}))
        found.update(from_environment(self._environment, provider, model))
        found.update(self._overrides.get((provider, model), {}))
        limits = {name: value for name, value in found.items() if value is not None}
        return ProviderLimits(**limits) if limits else None

    def override(self, provider: str, model: str | None, given: Mapping[str, int]) -> None:
        """Replace the limits set at run time; if no value is above 0, remove all limits."""
        if all(value <= 0 for value in given.values()):
            self._overrides[provider, model] = dict.fromkeys(FIELDS)
        else:
            self._overrides[provider, model] = _cleared(given)


@overload
def llm_rate_limit(provider: str, model: str | None = None) -> ProviderLimits | None: ...
@overload
def llm_rate_limit(
    provider: str,
    model: str | None = None,
    *,
    rpm: int | None = None,
    tpm: int | None = None,
    input_tpm: int | None = None,
    output_tpm: int | None = None,
    concurrency: int | None = None,
) -> ProviderLimits | bool | None: ...
def llm_rate_limit(
    provider: str,
    model: str | None = None,
    *,
    rpm: int | None = None,
    tpm: int | None = None,
    input_tpm: int | None = None,
    output_tpm: int | None = None,
    concurrency: int | None = None,
) -> ProviderLimits | bool | None:
    """Set limits of *provider*, or of one *model* of it, for this runtime; or return them.

    The given limits replace those of earlier calls, and override catalogue and environment field
    by field; returns True. A value of 0 or less removes that limit; if all given values are so,
    all limits are removed. With nothing given, returns the `ProviderLimits` in force, or None.

    >>> import asyncio
    >>> async def main() -> ProviderLimits | bool | None:
    ...     llm_rate_limit("acme", rpm=600, concurrency=8)
    ...     return llm_rate_limit("acme")
    >>> asyncio.run(main())
    ProviderLimits(rpm=600, tpm=None, input_tpm=None, output_tpm=None, concurrency=8)
    """
    check_route(provider, model)
    named = zip(FIELDS, (rpm, tpm, input_tpm, output_tpm, concurrency), strict=True)
    given = {name: value for name, value in named if value is not None}
    for name, value in given.items():
        whole_number(
            name, value, most=LARGEST - 1, wanted="a whole number; 0 or less removes the limit"
        )
    providers = current_runtime().service(Providers)
    if not given:
        return providers.limits(provider, model)
    providers.override(provider, model, given)
    return True


def check_route(provider: str, model: str | None) -> None:
    """Raise InvalidOption for names that cannot be a provider's or a model's."""
    if len(check_key(provider, "provider")) > 200:
        raise InvalidOption("provider", provider, "at most 200 characters")
    if model is not None and len(check_key(model, "model")) > 200:
        raise InvalidOption("model", model, "at most 200 characters")


def prefix_of(provider: str, model: str | None) -> str:
    """Return the prefix of the keys of a route's buckets."""
    if model is None:
        return f"llm:provider:{provider}"
    return f"{joined('llm', 'model', provider)}:{model}"


def travel_ms(runtime: Runtime) -> int:
    """Return the milliseconds that a request may take to reach its provider.

    The provider counts a request when it arrives. Under a fake clock the time is 0, unless the
    settings say otherwise.
    """
    given = runtime.settings.llm_rate_limit_travel_ms
    if given is not None:
        return given
    return 0 if runtime.clock.is_fake else TRAVEL_MS


def buckets_of(
    limits: ProviderLimits, prefix: str, input_tokens: int, output_tokens: int, travel_ms: int = 0
) -> list[Bucket]:
    """Return the buckets that a call charges under *limits*.

    We date a charge up to *travel_ms* before the provider does, so it counts that much longer
    than a minute.

    >>> [each.key for each in buckets_of(ProviderLimits(rpm=5, tpm=9), "llm:provider:x", 1, 1)]
    ['llm:provider:x:rpm', 'llm:provider:x:tpm']
    """
    units = units_of(prefix, input_tokens, output_tokens)
    return [
        Bucket(key, limit, units[key], MINUTE_MS + travel_ms)
        for name in FIELDS[:4]
        if (limit := getattr(limits, name)) is not None and (key := f"{prefix}:{name}")
    ]


def units_of(prefix: str, input_tokens: int, output_tokens: int) -> dict[str, int]:
    """Return what a call costs each bucket under *prefix*."""
    return {
        f"{prefix}:rpm": 1,
        f"{prefix}:tpm": input_tokens + output_tokens,
        f"{prefix}:input_tpm": input_tokens,
        f"{prefix}:output_tpm": output_tokens,
    }


def from_environment(
    variables: Mapping[str, int], provider: str, model: str | None = None
) -> Limits:
    """Return the limits of a provider, or of one of its models, among *variables*.

    >>> from_environment({"ACME": 60, "ACME_TPM": 9000, "ACME_BIG_2_RPM": 5}, "acme")
    {'rpm': 60, 'tpm': 9000}
    >>> from_environment({"ACME": 60, "ACME_TPM": 9000, "ACME_BIG_2_RPM": 5}, "acme", "big-2")
    {'rpm': 5}
    """
    name = variable_name(provider) if model is None else variable_name(f"{provider} {model}")
    found: Limits = {}
    if model is None and name in variables and not name.endswith(_ENDINGS):
        if variables[name] <= 0:
            found = dict.fromkeys(FIELDS)
        else:
            found["rpm"] = variables[name]
    given = {
        field: variables[f"{name}_{field.upper()}"]
        for field in FIELDS
        if f"{name}_{field.upper()}" in variables
    }
    return {**found, **_cleared(given)}


def _cleared(given: Mapping[str, int]) -> Limits:
    return {name: value if value > 0 else None for name, value in given.items()}


def variable_name(name: str) -> str:
    """Return *name* in the form that it has in the name of an environment variable.

    >>> variable_name("gpt-oss:120b")
    'GPT_OSS_120B'
    """
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()


def read_catalogue(given: Path | None) -> dict[tuple[str, str | None], Limits]:
    """Read the limits of every provider and model from the first catalogue that has any."""
    for path, document in catalogues(given):
        if found := _limits(path, document):
            return found
    return {}


def _limits(path: Path, document: Mapping[str, Any]) -> dict[tuple[str, str | None], Limits]:
    found: dict[tuple[str, str | None], Limits] = {}
    for provider, entry in tables(path, "providers", document.get("providers", {})):
        where = f"providers.{provider}"
        found[provider, None] = _entry(path, where, entry)
        for model, inner in tables(path, f"{where}.models", entry.get("models", {})):
            found[provider, model] = _entry(path, f"{where}.models.{model}", inner)
    for model, entry in tables(path, "models", document.get("models", {})):
        if isinstance(owner := entry.get("provider"), str):
            found[owner, model] = _entry(path, f"models.{model}", entry)
    return {route: limits for route, limits in found.items() if limits}


def _entry(path: Path, where: str, entry: Mapping[str, Any]) -> Limits:
    """Read the table `rate_limits`, which overrides limits that stand beside it."""
    found: Limits = {
        name: _limit(path, where, name, entry[name]) for name in FIELDS if name in entry
    }
    limits = entry.get("rate_limits", {})
    if not isinstance(limits, dict):
        raise ManifestError(f"{path}: [{where}] rate_limits is a table")
    for name, value in limits.items():
        if name not in FIELDS:
            raise ManifestError(
                f"{path}: [{where}.rate_limits] knows {', '.join(FIELDS)}, not {name!r}"
                f"{did_you_mean(name, FIELDS)}"
            )
        found[name] = _limit(path, f"{where}.rate_limits", name, value)
    return {name: value for name, value in found.items() if value}


def _limit(path: Path, where: str, name: str, value: object) -> int:
    try:
        return whole_number(name, value, least=0, most=LARGEST - 1)
    except InvalidOption as error:
        raise ManifestError(f"{path}: [{where}] {error}") from None

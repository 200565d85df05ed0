"""The providers of a runtime, their configuration in `providers.toml`, and the choice of one.

    [providers.local]
    kind = "openai"                        # or "anthropic"
    base_url = "http://127.0.0.1:8000/v1"
    api_key_env = "LOCAL_API_KEY"          # the variable's name, never the key
    default_model = "small"
    rpm = 600                              # limits: see the rate limits page

    [providers.local.models.small]
    input_usd_per_million = 0.1
    output_usd_per_million = 0.4

The file is `providers.toml` in the working directory, or the one that `HARN_PROVIDERS` names; the
`[providers]` tables may also be in `harn.toml`. `openai` and `anthropic` need no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harn.current import current_runtime
from harn.duration import to_seconds
from harn.errors import InvalidOption, ManifestError, did_you_mean
from harn.llm.anthropic import AnthropicMessages
from harn.llm.http import Secret
from harn.llm.messages import Usage
from harn.llm.openai import OpenAICompatible
from harn.llm.provider import Provider
from harn.ratelimit import Price, Prices, catalogues
from harn.runtime import Runtime
from harn.settings import read_secret

KINDS: dict[str, Callable[..., Provider]] = {
    "openai": OpenAICompatible,
    "anthropic": AnthropicMessages,
}
LIMITS = ("rpm", "tpm", "input_tpm", "output_tpm", "concurrency", "rate_limits")
FIELDS = ("kind", "base_url", "api_key_env", "default_model", "timeout", "models", *LIMITS)


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """The configuration of a provider."""

    name: str
    kind: str
    base_url: str
    api_key_env: str | None = None
    default_model: str | None = None
    timeout: float = 120.0


BUILT_IN = {
    "openai": ProviderEntry("openai", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ProviderEntry(
        "anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"
    ),
}


@dataclass(frozen=True, slots=True)
class Route:
    """The provider, model and client of one call."""

    provider: str
    model: str
    client: Provider
    price: Price | None = None

    def cost_usd(self, usage: Usage) -> float | None:
        """Return the dollars that *usage* costs; None if the price is not known."""
        if self.price is None:
            return None
        return self.price.of(usage.input_tokens, usage.output_tokens, usage.cached_tokens)


class Models:
    """The providers of a runtime: registered ones first, then configured ones."""

    def __init__(self, runtime: Runtime) -> None:
        self._catalogue = runtime.settings.providers
        self._prices = runtime.service(Prices)
        self._entries: dict[str, ProviderEntry] | None = None
        self._clients: dict[str, Provider] = {}
        self._registered: dict[str, str | None] = {}

    def register(self, name: str, client: Provider, default_model: str | None) -> None:
        """Use *client* for calls to *name* from now on."""
        self._clients[name] = client
        self._registered[name] = default_model

    def route(self, provider: str | None, model: str | None) -> Route:
        """Return the route for *provider* and *model*, or for the default ones."""
        name = provider or self._default()
        entry = self.entries.get(name)
        if name not in self._registered and entry is None:
            known = sorted({*self._registered, *self.entries})
            near = did_you_mean(name, known)
            raise InvalidOption("provider", name, f"one of {', '.join(known)}{near}")
        chosen = model or self._registered.get(name) or (entry.default_model if entry else None)
        if not chosen:
            raise InvalidOption(
                "model", model, f"a name: {name} has no default_model in providers.toml"
            )
        price = self._prices.of(name, chosen)
        return Route(name, chosen, self._client(name, entry), price)

    @property
    def entries(self) -> dict[str, ProviderEntry]:
        """Every configured provider, by name; read on first use."""
        if self._entries is None:
            self._entries = {**BUILT_IN, **load_entries(self._catalogue)}
        return self._entries

    async def aclose(self) -> None:
        """Close the clients that were made from the configuration."""
        for name, client in self._clients.items():
            if name not in self._registered and hasattr(client, "aclose"):
                await client.aclose()

    def _default(self) -> str:
        if len(self._registered) == 1:
            return next(iter(self._registered))
        own = [name for name in self.entries if name not in BUILT_IN]
        if len(own) == 1 and not self._registered:
            return own[0]
        raise InvalidOption(
            "provider",
            None,
            "a name, because there is not exactly one provider; "
            "register yours with llm_provider(name, client)",
        )

    def _client(self, name: str, entry: ProviderEntry | None) -> Provider:
        if name not in self._clients:
            assert entry is not None
            key = Secret((read_secret(entry.api_key_env) if entry.api_key_env else None) or "")
            made = KINDS[entry.kind](name, entry.base_url, key, timeout=entry.timeout)
            self._clients[name] = made
        return self._clients[name]


def llm_provider(name: str, client: Provider, *, default_model: str | None = None) -> None:
    """Register *client* as the provider *name* of this runtime.

    A client is any object with the three methods of `Provider`.

    >>> import asyncio
    >>> from harn import Delta, ModelReply, Usage, llm_call
    >>> from harn.testing import fresh_runtime
    >>> class Echo:
    ...     async def complete(self, request):
    ...         return ModelReply(request.messages[-1].text, Usage(1, 1), request.model)
    ...     async def stream(self, request):
    ...         yield Delta(request.messages[-1].text)
    ...     def count_tokens(self, request):
    ...         return 1
    >>> async def main() -> str:
    ...     async with fresh_runtime():
    ...         llm_provider("echo", Echo(), default_model="small")
    ...         return (await llm_call("Hello")).text
    >>> asyncio.run(main())
    'Hello'
    """
    if not isinstance(name, str) or not name:
        raise InvalidOption("name", name, "a non-empty string")
    if not isinstance(client, Provider):
        raise InvalidOption("client", client, "an object with complete, stream and count_tokens")
    current_runtime().service(Models).register(name, client, default_model)


def load_entries(given: Path | None) -> dict[str, ProviderEntry]:
    """Read the providers from *given*, else from the first catalogue that has any."""
    for path, document in catalogues(given):
        if found := _entries(path, document.get("providers", {})):
            return found
    return {}


def _entries(path: Path, tables: Any) -> dict[str, ProviderEntry]:
    if not isinstance(tables, dict):
        raise ManifestError(f"{path.name}: [providers] must be a table of tables")
    return {
        name: _entry(path, name, table)
        for name, table in tables.items()
        if isinstance(table, dict) and ("base_url" in table or name not in BUILT_IN)
    }


def _entry(path: Path, name: str, table: dict[str, Any]) -> ProviderEntry:
    where = f"{path.name}: [providers.{name}]"
    for key in table:
        if key not in FIELDS:
            raise ManifestError(f"{where} has an unknown key {key!r}{did_you_mean(key, FIELDS)}")
    kind = table.get("kind", "openai")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ManifestError(f"{where} kind={kind!r}: one of {', '.join(KINDS)}")
    base_url = table.get("base_url")
    if not isinstance(base_url, str) or not base_url.startswith(("http://", "https://")):
        raise ManifestError(f"{where} base_url={base_url!r}: an http:// or https:// address")
    try:
        timeout = to_seconds(table.get("timeout", 120.0), "timeout")
    except InvalidOption as error:
        raise ManifestError(f"{where} {error}") from None
    for key in ("api_key_env", "default_model"):
        if not isinstance(table.get(key, ""), str):
            raise ManifestError(f"{where} {key}={table[key]!r}: a text")
    if not isinstance(table.get("models", {}), dict):
        raise ManifestError(f"{where} models: a table for each model")
    return ProviderEntry(
        name=name,
        kind=kind,
        base_url=base_url,
        api_key_env=table.get("api_key_env"),
        default_model=table.get("default_model"),
        timeout=timeout,
    )

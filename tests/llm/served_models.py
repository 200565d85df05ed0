"""A runtime whose provider `fake` is a scripted server on a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from harn import Runtime, llm_provider
from harn.llm.anthropic import AnthropicMessages
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing.fake_provider import FakeModels

FORMATS = ["openai", "anthropic"]


@contextlib.asynccontextmanager
async def models(
    script: Any = None, kind: str = "openai", **options: Any
) -> AsyncIterator[FakeModels]:
    """Open a runtime with *options*; its provider follows *script*."""
    async with FakeModels(script) as server, Runtime(**options), provider_at(server, kind):
        yield server


@contextlib.asynccontextmanager
async def provider_at(server: FakeModels, kind: str = "openai") -> AsyncIterator[None]:
    """Register *server* as the provider `fake` of the current runtime."""
    client = (
        OpenAICompatible("fake", server.openai_url, Secret(""))
        if kind == "openai"
        else AnthropicMessages("fake", server.url, Secret(""))
    )
    llm_provider("fake", client, default_model="m-1")
    try:
        yield
    finally:
        await client.aclose()

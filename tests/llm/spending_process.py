"""A process that calls a model until the budget of its tenant is spent: URL, state dir, storage."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from harn import RateLimitError, Runtime, llm_budget, llm_call, llm_provider
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible

TOKENS = 3000
RESERVED = 100


async def main(url: str, state_dir: str, storage: str) -> None:
    async with Runtime(state_dir=Path(state_dir), storage=storage, tenant_id="acme"):
        client = OpenAICompatible("fake", url, Secret(""))
        llm_provider("fake", client, default_model="m-1")
        llm_budget("acme", tokens=TOKENS)
        print("ready", flush=True)
        sys.stdin.readline()
        await spend()
        await client.aclose()


async def spend() -> int:
    """Call until a call is refused; return how many were not."""
    made = 0
    try:
        while True:
            await llm_call("hello", max_tokens=RESERVED)
            made += 1
    except RateLimitError:
        return made


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))

"""A tenant's budget holds for all processes together, as the provider counts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from harn import RateLimitError, Runtime, llm_budget, llm_call, llm_usage
from harn.testing.fake_provider import Fail, FakeModels, Say
from tests.llm.served_models import models, provider_at
from tests.llm.spending_process import RESERVED, TOKENS, spend

PROCESSES = 2
CHILD = str(Path(__file__).with_name("spending_process.py"))
LONGEST_ESTIMATE = RESERVED + 10


def some_tokens(body: dict[str, Any]) -> Say:
    return Say("ok", usage=(40, 30))


async def start(*argv: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        CHILD,
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(CHILD).parents[2],
        env={"PYTHONPATH": str(Path(CHILD).parents[2])},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_processes_together_never_spend_more_than_the_budget(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storage = f"sqlite:///{tmp_path}/events.sqlite"
    if engine == "postgres":
        storage = request.getfixturevalue("postgres_url")
    async with FakeModels(some_tokens) as server:
        children = await asyncio.gather(
            *(start(server.openai_url, str(tmp_path), storage) for _ in range(PROCESSES))
        )
        ended = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
        assert [child.returncode for child in children] == [0] * PROCESSES, ended

        async with (
            Runtime(state_dir=tmp_path, storage=storage, tenant_id="acme"),
            provider_at(server),
        ):
            llm_budget("acme", tokens=TOKENS)
            await spend()  # what is left
            [total] = await llm_usage()
    spent = sum(each.tokens for each in server.received)

    assert TOKENS - LONGEST_ESTIMATE < spent <= TOKENS
    assert (total.tenant, total.calls) == ("acme", len(server.received))
    assert total.input_tokens + total.output_tokens == spent


async def test_a_refused_call_is_not_sent_and_leaves_no_record(tmp_path: Path) -> None:
    async with models([Say("ok", usage=(90, 10))], state_dir=tmp_path, tenant_id="acme") as server:
        llm_budget("acme", tokens=200)
        await llm_call("hello", max_tokens=100)

        with pytest.raises(RateLimitError, match="tenant 'acme'"):
            await llm_call("hello", max_tokens=100)

        [total] = await llm_usage()
    assert len(server.received) == total.calls == 1


async def test_a_call_that_its_provider_refused_costs_nothing(tmp_path: Path) -> None:
    script = [Fail(500)] * 3 + [Say("ok", usage=(90, 10))]
    async with models(script, state_dir=tmp_path, tenant_id="acme"):
        llm_budget("acme", tokens=150)

        assert (await llm_call("hello", max_tokens=100, backoff_ms=0)).text == "ok"

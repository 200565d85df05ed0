"""`harn usage`, from another process than those that called models."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime, drain, llm_price, llm_slot, worker_queue
from harn.cli import invoke
from harn.cli.usage_command import _dollars, _short, usage_text
from harn.llm.usage import UsageSums
from harn.storage import Event


def spend(storage: str, model: str = "m-1") -> None:
    """Call a model for two tenants: one in a job, one twice elsewhere."""

    async def call(used: int) -> None:
        async with llm_slot("fake", model) as slot:
            await slot.settle(input_tokens=used, output_tokens=used // 10)

    async def review(job: Any) -> None:
        await call(job.payload)

    async def main() -> None:
        async with Runtime(storage=storage):
            llm_price("fake", model, input_usd_per_million=10)
            await worker_queue("reviews").enqueue(1_200_000, tenant_id="acme")
            await drain("reviews", review)
        async with Runtime(storage=storage, tenant_id="zeta"):
            await call(100)
            await call(200)

    asyncio.run(main())


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert invoke(["usage", *argv]) == 0
    return capsys.readouterr().out


def test_usage_is_added_up_for_each_tenant(
    lasting_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spend(lasting_url)

    found = json.loads(shown(capsys, "--json", "--storage", lasting_url))

    assert found["by"] == ["tenant"]
    assert found["since"].endswith("Z")
    acme, zeta = found["usage"]
    assert (acme["tenant"], acme["calls"], acme["cost_usd"]) == ("acme", 1, 12.0)
    assert (zeta["tenant"], zeta["calls"], zeta["input_tokens"]) == ("zeta", 2, 300)
    assert (zeta["cost_usd"], zeta["unpriced"]) == (None, 2)
    assert (found["total"]["calls"], found["total"]["output_tokens"]) == (3, 120_030)


def test_usage_is_grouped_by_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = f"sqlite:///{tmp_path}/events.sqlite"
    spend(storage)

    argv = ("--json", "--storage", storage, "--by", "queue, model,day", "--since", "1h")
    found = json.loads(shown(capsys, *argv))["usage"]

    assert [(each["queue"], each["model"], each["calls"]) for each in found] == [
        (None, "m-1", 2),
        ("reviews", "m-1", 1),
    ]
    assert len(found[0]["day"]) == len("2026-01-01")


def test_a_table_shows_short_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = f"sqlite:///{tmp_path}/events.sqlite"
    spend(storage)

    lines = shown(capsys, "--storage", storage).splitlines()

    assert lines[0].split() == ["tenant", "calls", "failed", "input", "output", "cost"]
    assert lines[1].split() == ["acme", "1", "0", "1.2M", "120k", "$12.00"]
    assert lines[3].split()[:2] == ["total", "3"]
    assert lines[-1] == "calls without a known price, not in the cost: 2"


def test_text_fits_sixty_columns() -> None:
    sums = UsageSums(("tenant", "model", "queue", "day"))
    total = UsageSums(())
    for tenant in ("acme", "a-tenant-with-a-long-name"):
        model = "a-model-with-a-rather-long-name-2026-11-16"
        call = {"tenant_id": tenant, "model": model, "queue": "q", "input_tokens": 10**9}
        event = Event(1, "llm.usage", "llm_called", call, {}, 0)
        sums.add(event)
        total.add(event)

    text = usage_text(sums.totals(), total.totals(), width=60)

    assert max(map(len, text.splitlines())) <= 60
    for part in ("a-tenant-with-a-long-name", "1970-01-01", "1.0G", "total"):
        assert part in text


def test_without_calls_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--state-dir", str(tmp_path))
    document = json.loads(shown(capsys, "--json", "--state-dir", str(tmp_path)))

    assert text.startswith("no model was called in this time")
    assert (document["usage"], document["total"]) == ([], None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argv", [("--by", "tennant"), ("--by", "day,day"), ("--since", "soon")])
def test_a_wrong_question_is_wrong_usage(
    argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["usage", "--state-dir", str(tmp_path), *argv]) == 2

    assert capsys.readouterr().err.count("\n") == 1


def test_numbers_are_short() -> None:
    numbers = (0, 999, 1000, 99_940, 123_456, 7_000_000, 2 * 10**9)
    assert [_short(each) for each in numbers] == [
        "0",
        "999",
        "1.0k",
        "99.9k",
        "123k",
        "7.0M",
        "2.0G",
    ]
    assert [_dollars(each) for each in (None, 0.0, 0.00123, 1234.5)] == [
        "?",
        "$0.00",
        "$0.0012",
        "$1,234.50",
    ]

"""`harn ratelimit ls`, from another process than the one that holds the units."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from harn import Bucket, Runtime, durable_rate_limit_acquire as acquire, llm_slot
from harn.cli import invoke


def listed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, dict[str, Any]]:
    assert invoke(["ratelimit", "ls", "--json", *argv]) == 0
    return {each["key"]: each for each in json.loads(capsys.readouterr().out)["buckets"]}


def use_some(**options: Any) -> None:
    async def main() -> None:
        async with Runtime(**options):
            await acquire(buckets=[Bucket("a", 5, units=3, window_ms="1h"), Bucket("b", 9)])
            await acquire(key="soon\nfree", limit=1, window_ms=1)

    asyncio.run(main())


def test_use_and_limits_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use_some(state_dir=tmp_path)

    found = listed(capsys, "--state-dir", str(tmp_path))

    assert set(found) == {"a", "b"}
    assert found["a"]["store"] == str(tmp_path / "rate-limits.sqlite")
    assert (found["a"]["used"], found["a"]["limit"], found["a"]["window_ms"]) == (3, 5, 3_600_000)
    assert (found["a"]["reservations"], found["a"]["waiting"]) == (1, 0)
    assert 3_000_000 < found["a"]["frees_in_ms"] <= 3_600_000
    assert found["a"]["frees_at"].endswith("Z")


def use_two_rules(state_dir: Path) -> None:
    async def main() -> None:
        async with Runtime(state_dir=state_dir):
            await acquire(key="a", limit=5, window_ms="1m")
            await acquire(key="a", limit=40, window_ms="1h")

    asyncio.run(main())


def test_every_rule_in_force_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use_two_rules(tmp_path)

    found = listed(capsys, "--state-dir", str(tmp_path))

    assert found["a"]["rules"] == [
        {"limit": 40, "window_ms": 3_600_000},
        {"limit": 5, "window_ms": 60_000},
    ]
    assert (found["a"]["limit"], found["a"]["window_ms"]) == (40, 3_600_000)


def test_the_table_has_a_line_for_every_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_two_rules(tmp_path)

    assert invoke(["ratelimit", "ls", "--state-dir", str(tmp_path)]) == 0

    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["a", "2", "40", "1h"]
    assert second.split() == ["a", "5", "1m"]


def test_postgres_is_listed_by_the_servers_time(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    use_some(storage=postgres_url)

    found = listed(capsys, "--storage", postgres_url)

    assert found["a"]["used"] == 3
    assert 3_000_000 < found["a"]["frees_in_ms"] <= 3_600_000


def test_idle_buckets_are_listed_when_asked_for_and_cannot_break_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_some(state_dir=tmp_path)

    assert invoke(["ratelimit", "ls", "--all", "--state-dir", str(tmp_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].split() == [
        "bucket",
        "used",
        "limit",
        "window",
        "waiting",
        "frees",
        "paused",
        "until",
    ]
    assert "soon\\nfree" in lines[3]


async def test_those_who_wait_and_pauses_are_shown_while_they_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Runtime(state_dir=tmp_path):
        await acquire(key="a", limit=1)
        waiting = [asyncio.create_task(acquire(key="a", limit=1)) for _ in range(3)]
        async with llm_slot("acme") as slot:
            await slot.retry_after(30)
        await acquire(key="b", limit=1)  # those before it have their tickets now

        found = await asyncio.to_thread(listed, capsys, "--state-dir", str(tmp_path))

        assert found["a"]["waiting"] == 3
        assert found["llm:provider:acme:cooldown"]["paused_until"].endswith("Z")
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@pytest.mark.parametrize("as_json", [True, False])
def test_nothing_in_use_is_not_an_error_and_makes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    argv = ["ratelimit", "ls", "--state-dir", str(tmp_path / "none")]

    assert invoke([*argv, "--json"] if as_json else argv) == 0

    shown = capsys.readouterr().out
    assert shown == ('{\n  "buckets": []\n}\n' if as_json else "no bucket is in use\n")
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_not_there_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["ratelimit", "ls", "--state-path", str(tmp_path / "missing.sqlite")]) == 2
    assert "there is no file" in capsys.readouterr().err

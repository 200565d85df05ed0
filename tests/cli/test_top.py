"""`harn top`: what it shows of a store, and how it behaves where there is none."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    Child,
    NewJob,
    Runtime,
    SchedulerPolicy,
    durable_rate_limit_acquire,
    pool_create,
    supervisor_start,
    worker_queue,
)
from harn.cli import invoke
from harn.cli.top import Earlier
from harn.orchestrator import overview


async def fill() -> None:
    policy = SchedulerPolicy(strategy="drr", weights={"acme": 3})
    queue = worker_queue("tri[b]age", policy)
    jobs = [NewJob(n, tenant_id=tenant) for n in range(9) for tenant in ("acme", "b[/]ob")]
    await queue.enqueue_many(jobs)
    for each in await queue.claim_many("worker", 8):
        await each.ack()
    claim = await queue.claim_next("worker")
    assert claim is not None
    await claim.fail("bad \x1b[31mcolours\nand lines")
    await durable_rate_limit_acquire(key="api", limit=10, units=4)

    async def child(ctx: harn.ChildContext) -> None:
        raise ValueError("the child died")

    supervisor = await supervisor_start(children=[Child("reader", child, restart="never")])
    await supervisor.wait()


async def journal() -> None:
    pool = await pool_create(name="reports", scope="pipeline", pipeline_id="nightly")
    await (await pool.submit(lambda: 1 / 0)).wait()
    await (await pool.submit(lambda: 1)).wait()


def look(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert invoke(["top", "--once", "--json", "--state-dir", str(state_dir)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_place_without_a_store_gets_a_sentence_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "state"

    assert invoke(["top", "--once", "--state-dir", str(missing)]) == 0

    said = capsys.readouterr().out
    assert "nothing here yet" in said
    assert "--state-dir" in said
    assert said.count("\n") == 1
    assert look(missing, capsys)["note"] == said.strip()
    assert not missing.exists()


def test_an_empty_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def nothing() -> None:
        await harn.event_log_read("a.topic")

    harn.run(nothing, state_dir=tmp_path)

    assert invoke(["top", "--once", "--state-dir", str(tmp_path)]) == 0
    assert "the store is empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [(["top", "--json"], "--once"), (["top"], "not a terminal")],
)
def test_what_cannot_be_shown_is_wrong_usage(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(argv) == 2
    assert said in capsys.readouterr().err


def test_it_tells_queues_shares_limits_supervisors_and_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harn.run(fill, state_dir=tmp_path)

    found = look(tmp_path, capsys)

    [queue] = found["queues"]
    assert (queue["ready"], queue["in_flight"], queue["acked"]) == (9, 1, 8)
    entitled = {each["key"]: (each["share"], each["entitled"]) for each in queue["shares"]}
    assert entitled == {"acme": (66.7, 75.0), "b[/]ob": (33.3, 25.0)}
    assert [(each["key"], each["used"], each["limit"]) for each in found["limits"]] == [
        ("api", 4, 10)
    ]
    assert {each["kind"] for each in found["failures"]} == {"job", "failed"}


def test_names_are_shown_as_plain_text_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harn.run(fill, state_dir=tmp_path)

    assert invoke(["top", "--once", "--state-dir", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert "tri[b]age" in shown
    assert "b[/]ob" in shown
    assert "\\x1b[31mcolours\\nand lines" in shown
    assert "\x1b" not in shown


def test_journals_alone_are_shown_and_no_store_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with Runtime(state_dir=tmp_path, storage="memory://"):
            await journal()

    import asyncio

    asyncio.run(main())

    [pool] = look(tmp_path, capsys)["pools"]

    assert (pool["pool"], pool["counts"]) == ("reports", {"failed": 1, "completed": 1})
    assert not (tmp_path / "events.sqlite").exists()


def test_a_damaged_journal_is_shown_with_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pools").mkdir()
    (tmp_path / "pools" / "a__b.jsonl").write_bytes(b'{"kind":"pool","v":99,"crc":"0"}\n')

    [pool] = look(tmp_path, capsys)["pools"]

    assert pool["note"]


async def test_it_looks_at_every_engine(storage_url: str, tmp_path: Path) -> None:
    async with Runtime(storage=storage_url, state_dir=tmp_path) as runtime:
        await fill()
        found = await overview(runtime, tmp_path)

    assert found["queues"][0]["acked"] == 8
    assert found["limits"][0]["used"] == 4


def test_shares_count_from_the_first_look() -> None:
    def seen(a: int, b: int) -> dict[str, Any]:
        keys = {"ready": 5, "in_flight": 0, "weight": 1}
        shares = [
            {"key": "a", "selected_total": a, **keys},
            {"key": "b", "selected_total": b, **keys},
        ]
        return {"queues": [{"queue": "q", "strategy": "drr", "shares": shares}]}

    earlier = Earlier()
    first = earlier.compare(seen(1000, 0))["queues"][0]["shares"]
    later = earlier.compare(seen(1001, 3))["queues"][0]["shares"]

    assert [each["share"] for each in first] == [None, None]
    assert [each["share"] for each in later] == [25.0, 75.0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_live_view_ends_cleanly_at_a_signal(tmp_path: Path, number: int) -> None:
    harn.run(fill, state_dir=tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "harn", "top", "--state-dir", str(tmp_path)],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"},
    )
    os.close(theirs)
    shown = b""
    while b"recent failures" not in shown:
        shown += os.read(ours, 65536)

    process.send_signal(number)
    with os.fdopen(ours, "rb", closefd=True) as rest:
        try:
            while rest.read1():
                pass
        except OSError:  # the other side has closed: this is how a terminal says it
            pass
    _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (0, b"")


def test_a_policy_that_was_set_in_code_is_no_warning_unless_the_environment_asks_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harn.run(fill, state_dir=tmp_path)

    unasked = look(tmp_path, capsys)["warnings"]
    monkeypatch.setenv("HARN_SCHEDULER_STRATEGY", "drr")
    monkeypatch.setenv("HARN_SCHEDULER_QUANTUM", "7")
    asked = look(tmp_path, capsys)["warnings"]

    assert unasked == []
    assert len(asked) == 1 and "another policy" in asked[0]

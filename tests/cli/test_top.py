"""`harn top`: what it shows of a store, and how it behaves where there is none."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
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
from harn.cli.top_live import Earlier, View, keys_in, pressed
from harn.orchestrator import overview
from tests.terminals import on_terminal


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


def test_pools_that_processes_share_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        pool = await pool_create(name="gpu", scope="tenant", scope_id="acme", max_concurrent=4)
        await (await pool.submit(lambda: 1 / 0)).wait()
        await (await pool.submit(lambda: 1)).wait()

    harn.run(main, state_dir=tmp_path, storage=f"sqlite:///{tmp_path / 'events.sqlite'}")

    [pool] = look(tmp_path, capsys)["shared_pools"]

    assert pool == {
        "pool": "gpu",
        "pool_id": harn.pool_id("tenant", "acme", "gpu"),
        "scope": "tenant",
        "scope_id": "acme",
        "max_concurrent": 4,
        "running": 0,
        "queued": 0,
        "blocked": 0,
        "completed": 1,
        "failed": 1,
        "processes": [],
    }
    assert invoke(["top", "--once", "--state-dir", str(tmp_path)]) == 0
    assert "pools shared through the store" in capsys.readouterr().out


def test_a_pool_of_two_processes_is_one_row_with_what_each_of_them_runs(
    lasting_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = ["top", "--once", "--storage", lasting_url]
    with (
        ended(holder(lasting_url, tasks=2, running=2)) as first,
        ended(holder(lasting_url, tasks=2, running=1)) as second,
    ):
        assert invoke([*looked, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert invoke(looked) == 0
        shown = capsys.readouterr().out

    [pool] = found["shared_pools"]
    counts = [pool[name] for name in ("max_concurrent", "running", "queued")]
    assert counts == [3, 3, 1]
    held = {each["pid"]: (each["running"], each["alive"]) for each in pool["processes"]}
    assert held == {first.pid: (2, True), second.pid: (1, True)}
    assert found["queues"] == []
    rows = [line.split() for line in shown.splitlines()]
    assert ["gpu", "tenant", "acme", "3", "3", "1", "0", "0", "0"] in rows
    by_process = {row[4]: row[5] for row in rows if row[:2] == ["gpu", "acme"]}
    assert by_process == {str(first.pid): "2", str(second.pid): "1"}
    assert pool["pool_id"] not in shown


def holder(url: str, tasks: int, running: int) -> subprocess.Popen[str]:
    """Start a process with the pool; return when the pool has its *tasks* and so many run."""
    program = Path(__file__).with_name("pool_holder.py")
    argv = [sys.executable, str(program), url, str(tasks), str(running)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


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


def test_shares_and_rates_count_from_earlier_looks() -> None:
    def seen(a: int, b: int) -> dict[str, Any]:
        keys = {"ready": 5, "in_flight": 0, "weight": 1}
        shares = [
            {"key": "a", "selected_total": a, **keys},
            {"key": "b", "selected_total": b, **keys},
        ]
        queue = {"queue": "q", "strategy": "drr", "max_concurrent_per_key": 0, "acked": a + b}
        return {"queues": [{**queue, "shares": shares}]}

    earlier = Earlier()
    [first] = earlier.compare(seen(1000, 0), 10.0)["queues"]
    [later] = earlier.compare(seen(1001, 3), 12.0)["queues"]

    assert [each["share"] for each in first["shares"]] == [None, None]
    assert [each["share"] for each in later["shares"]] == [25.0, 75.0]
    assert (first["jobs_per_second"], later["jobs_per_second"]) == (None, 2.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_live_view_ends_cleanly_at_a_signal(tmp_path: Path, number: int) -> None:
    harn.run(fill, state_dir=tmp_path)
    with on_terminal("top", "--state-dir", str(tmp_path), columns=120) as terminal:
        terminal.draws("recent failures", "jobs/s", "consumers", "q quit")

        terminal.process.send_signal(number)

        assert terminal.ends() == 0
    assert terminal.shown.endswith(LEFT)


LEFT = "\x1b[?25h\x1b[?1049l"
"""The cursor comes back, and the screen that was there before."""


def test_keys_filter_sort_pause_and_quit(tmp_path: Path) -> None:
    harn.run(fill, state_dir=tmp_path)
    with on_terminal("top", "--state-dir", str(tmp_path)) as terminal:
        terminal.draws("tri[b]age", "acme", "sort: name")
        terminal.types("s")
        terminal.draws("sort: ready")
        terminal.types("/b[/]ob")
        terminal.draws("filter: b[/]ob_")
        terminal.types("\r")
        screen = terminal.draws("/ filter: b[/]ob", "b[/]ob")
        assert "acme" not in screen
        terminal.types("p")
        terminal.draws("p paused")
        terminal.types("\x1b")
        terminal.draws("acme", "p paused")
        terminal.types("q")

        assert terminal.ends() == 0
    assert terminal.shown.endswith(LEFT)


def test_what_does_not_fit_the_screen_is_scrolled_to() -> None:
    view = View()
    for key in keys_in("jj\x1b[B\x1b[A\x1b[6~"):
        view = pressed(view, key, page=20)

    assert view.first == 22
    assert pressed(view, "page up", page=30).first == 0


def test_letters_are_text_while_a_filter_is_typed() -> None:
    view = View()
    for key in keys_in("/qs\x7fp\x1b[A\r"):
        view = pressed(view, key)

    assert view == View(wanted="qp")
    assert pressed(view, "escape") == View()
    assert pressed(pressed(view, "/"), "escape") == View()


def test_a_filter_can_be_given_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harn.run(fill, state_dir=tmp_path)

    assert invoke(["top", "--once", "--filter", "ACME", "--state-dir", str(tmp_path)]) == 0
    found = capsys.readouterr().out
    assert invoke(["top", "--once", "--filter", "zzz", "--state-dir", str(tmp_path)]) == 0

    assert "acme" in found and "b[/]ob" not in found
    assert "nothing here matches 'zzz'" in capsys.readouterr().out


def test_consumers_and_caps_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        policy = SchedulerPolicy(strategy="drr", max_concurrent_per_key=2)
        await worker_queue("capped", policy).enqueue_many([NewJob(n) for n in range(3)])
        await harn.drain("capped", look_on, policy=policy, stop_when_empty=True)

    async def look_on(job: harn.Job) -> None:
        seen.append(await overview(harn.current_runtime(), tmp_path))

    seen: list[dict[str, Any]] = []
    harn.run(main, state_dir=tmp_path)

    [queue] = seen[0]["queues"]
    assert (queue["consumers"], queue["max_concurrent_per_key"]) == (1, 2)
    assert [each["cap"] for each in queue["shares"]] == [2]


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

"""`harn orchestrator queue jobs|job|cancel|retry|pause|resume`, from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Job, NewJob, drain, step, worker_queue
from harn.cli import invoke

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["sqlite", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "store"
    return f"file:///{path}" if request.param == "file" else f"sqlite:///{path}.sqlite"


@pytest.fixture
def run(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """Run a command about queues where there is no manifest."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        place = ("--storage", storage, "--state-dir", str(tmp_path / "state"))
        code = invoke(["orchestrator", "queue", *argv, *place])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def fill(storage: str) -> None:
    """Leave job 1 acked, job 2 dead, and jobs 3 to 5 ready."""

    async def main() -> None:
        queue = worker_queue("triage")
        await queue.enqueue({"pr": 1}, tenant_id="acme")
        await queue.enqueue({"pr": 2}, tenant_id="acme", max_attempts=1)

        def handler(job: Job) -> str:
            if job.id == 2:
                raise ValueError("no such pull request")
            return "reviewed"

        await drain("triage", handler)
        await queue.enqueue_many([NewJob(n, tenant_id="globex") for n in (3, 4, 5)])

    harn.run(main, storage=storage)


def as_json(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert (code, err) == (0, "")
    return json.loads(out)


def test_jobs_are_listed_by_status_tenant_and_page(run: Run, storage: str) -> None:
    fill(storage)

    listed = as_json(run("jobs", "triage", "--json"))
    ready = as_json(run("jobs", "triage", "--status", "ready", "--limit", "2", "--json"))
    rest = as_json(
        run("jobs", "triage", "--status", "ready", "--after", str(ready["next_after"]), "--json")
    )
    acme = as_json(run("jobs", "triage", "--tenant", "acme", "--json"))

    assert [job["status"] for job in listed["jobs"]] == ["acked", "dead", *["ready"] * 3]
    assert ([job["id"] for job in ready["jobs"]], ready["next_after"]) == ([3, 4], 4)
    assert ([job["id"] for job in rest["jobs"]], rest["next_after"]) == ([5], None)
    assert [job["id"] for job in acme["jobs"]] == [1, 2]


def test_text_fits_sixty_columns(run: Run, storage: str) -> None:
    fill(storage)

    _, listed, _ = run("jobs", "triage", "--limit", "3")
    _, shown, _ = run("job", "triage", "1")

    for text in (listed, shown):
        assert max(map(len, text.splitlines())) <= 60
    assert listed.splitlines()[0].split() == ["id", "status", "tenant", "tries", "age", "what"]
    assert listed.splitlines()[-1] == "there may be more: --after 3"
    assert "outcome           reviewed" in shown


def test_a_job_for_a_time_beyond_the_calendar_is_shown(run: Run, storage: str) -> None:
    never, ever = datetime.max, datetime.min

    async def main() -> None:
        queue = worker_queue("triage")
        await queue.enqueue(1, not_before=never.replace(tzinfo=UTC))
        await queue.enqueue(2, not_before=ever.replace(tzinfo=timezone(timedelta(hours=14))))

    harn.run(main, storage=storage)

    told = [run(verb, "triage", id) for verb in ("job", "explain") for id in ("1", "2")]

    assert [(code, err) for code, _, err in told] == [(0, "")] * 4
    assert "not before        +10000-01-01T00:00:00.000Z" in told[0][1]
    assert "not before        0000-12-31T10:00:00.000Z" in told[1][1]
    assert "10000-01-01" in told[2][1]


def test_a_job_shows_its_steps_with_their_durations(run: Run, storage: str) -> None:
    async def handler(job: Job) -> None:
        for _ in range(2):
            await step("fetch a page", lambda: None)

    async def main() -> None:
        await worker_queue("triage").enqueue(None)
        await drain("triage", handler)

    harn.run(main, storage=storage)

    _, shown, _ = run("job", "triage", "1")
    told = as_json(run("job", "triage", "1", "--json"))

    lines = shown.splitlines()
    start = lines.index("  steps")
    assert all(re.match(r" +\d+ ms  fetch a page", line) for line in lines[start + 1 :])
    assert lines[start + 2].endswith(" (2)")
    assert [each["number"] for each in told["steps"]] == [0, 1]


def test_a_dead_job_shows_its_error_and_is_retried(run: Run, storage: str) -> None:
    fill(storage)

    _, shown, _ = run("job", "triage", "2")
    retried = as_json(run("retry", "triage", "2", "--json"))
    again = run("retry", "triage", "2")

    assert "ValueError: no such pull request" in shown and "Traceback" in shown
    assert (retried["job"]["status"], retried["job"]["attempts"]) == ("ready", 0)
    assert again == (
        1,
        "",
        "error: job 2 of queue 'triage' is ready: only a dead job can be retried\n",
    )


def test_a_job_is_cancelled_once_with_its_reason(run: Run, storage: str) -> None:
    fill(storage)

    cancelled = run("cancel", "triage", "3", "--reason", "a mistake")
    job = as_json(run("job", "triage", "3", "--json"))
    code, _, err = run("cancel", "triage", "3")

    assert cancelled == (0, "triage: cancelled job 3\n", "")
    assert (job["status"], job["error"]) == ("cancelled", "a mistake")
    assert (code, err.count("\n")) == (1, 1)
    assert "is cancelled: only a job that is not settled can be cancelled" in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("job", "triage", "99"), "queue 'triage' has no job 99"),
        (("cancel", "triage", "99"), "queue 'triage' has no job 99"),
        (("retry", "triage", "9" * 30), "queue 'triage' has no job 999"),
        (("job", "triage", "one"), "queue 'triage' has no job one"),
        (("job", "triag", "1"), "no queue 'triag' in this store; did you mean 'triage'?"),
        (("jobs", "triag"), "no queue 'triag' in this store; did you mean 'triage'?"),
        (("pause", "triag"), "no queue 'triag' in this store; did you mean 'triage'?"),
        (("resume", "triage"), "queue 'triage' is not paused"),
        (("resume", "triage", "--tenant", "x"), "tenant 'x' of queue 'triage' is not paused"),
        (("jobs", "triage", "--status", "redy"), "did you mean 'ready'?"),
    ],
)
def test_what_does_not_apply_is_one_line_and_exit_code_1(
    run: Run, storage: str, argv: tuple[str, ...], said: str
) -> None:
    fill(storage)

    code, out, err = run(*argv, "--json")

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err


def test_where_there_is_no_store_none_is_made(run: Run, tmp_path: Path) -> None:
    for argv in (("jobs", "q"), ("job", "q", "1"), ("cancel", "q", "1"), ("pause", "q")):
        code, out, err = run(*argv)
        assert (code, out, err.count("\n")) == (1, "", 1)

    assert list(tmp_path.iterdir()) == []


def test_a_pause_is_named_by_ls_explain_and_top(run: Run, storage: str, capsys: Any) -> None:
    fill(storage)
    assert run("pause", "triage", "--tenant", "globex", "--reason", "too many")[0] == 0

    _, listed, _ = run("ls")
    tenant = as_json(run("explain", "triage", "3", "--json"))
    paused = run("pause", "triage")
    twice = run("pause", "triage")
    whole = as_json(run("explain", "triage", "3", "--json"))
    assert invoke(["top", "--once", "--storage", storage]) == 0
    top = capsys.readouterr().out

    assert "triage: paused for globex" in listed.splitlines()
    assert tenant["verdict"].startswith("its tenant 'globex' is paused since 20")
    assert tenant["verdict"].endswith(": too many")
    assert (paused[1], twice[0], twice[2]) == (
        "triage: paused\n",
        1,
        "error: queue 'triage' is paused already\n",
    )
    assert whole["verdict"].startswith("its queue is paused since")
    assert "all, globex" in top

    assert run("resume", "triage")[1] == "triage: resumed\n"
    assert run("resume", "triage", "--tenant", "globex")[0] == 0
    free = as_json(run("explain", "triage", "3", "--json"))
    assert "pause" not in free
    assert free["verdict"].endswith("; no consumer of this queue is alive")


def test_explain_of_a_cancelled_job_says_so(run: Run, storage: str) -> None:
    fill(storage)
    run("cancel", "triage", "3")

    document = as_json(run("explain", "triage", "3", "--json"))

    assert document["verdict"] == "it was cancelled"


def test_explain_and_top_name_who_works_on_a_job(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harn.cli.colours import plain
    from harn.cli.top_tables import body
    from harn.orchestrator import explain, overview

    seen: dict[str, Any] = {}

    async def handler(job: Job) -> None:
        runtime = harn.current_runtime()
        seen["verdict"] = (await explain(runtime, "triage", job.id))["verdict"]
        seen["top"] = plain("\n".join(body(await overview(runtime, tmp_path))))

    async def main() -> None:
        await worker_queue("triage").enqueue(1)
        await drain("triage", handler, consumer_id="worker-a")

    harn.run(main, storage=storage)

    assert "it is running: worker-a (process " in seen["verdict"]
    lines = seen["top"].splitlines()
    row = lines[lines.index("consumers that are alive") + 2]
    assert row.split()[0] == "worker-a" and row.split()[-2:] == ["1", "triage"]

"""The spec's producer and consumer manifests, worked from the command line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import NewJob, SchedulerPolicy, worker_queue
from harn.cli import invoke

PRODUCER = """
[[triggers]]
id = "incoming-review-task"
kind = "a2a-push"
provider = "a2a-push"
match = { events = ["a2a.task.received"] }
handler = "worker://triage"
priority = "high"
"""
CONSUMER = """
[exports]
handlers = "lib.py"

[[triggers]]
id = "incoming-review-task"
kind = "a2a-push"
provider = "a2a-push"
match = { events = ["a2a.task.received"] }
handler = "handlers::on_task"
"""
FIRE = ("fire", "incoming-review-task", "--config", "producer/harn.toml")
LIB = """
import pathlib, time

def on_task(event):
    n = event.get("provider_payload.payload.n")
    if n == "boom":
        raise ValueError("boom")
    if n == "slow":
        pathlib.Path("started").touch()
        time.sleep(0.3)
    return {"n": n}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in (("producer", PRODUCER), ("consumer", CONSUMER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "harn.toml").write_text(text)
    (tmp_path / "consumer" / "lib.py").write_text(LIB)
    return tmp_path


def harn_command(place: Path, *argv: str, check: bool = True, **environ: str) -> Any:
    """Run a command here: most of the time of a process of its own would be its start."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(place)
        for name, value in environ.items():
            patch.setenv(name, value)
        code = invoke(["orchestrator", *argv])
    assert not check or code == 0, err.getvalue()
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def command_of_another_process(place: Path, *argv: str, **environ: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "harn", "orchestrator", *argv],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stderr
    return done


def queue(place: Path, *argv: str, run: Any = harn_command, **environ: Any) -> Any:
    base = ("queue", "--config", "consumer/harn.toml", "--state-dir", "state")
    return json.loads(run(place, *base, *argv, "--json", **environ).stdout)


def fire(place: Path, n: Any, *argv: str) -> Any:
    payload = json.dumps({"n": n})
    return harn_command(
        place,
        *FIRE,
        *("--state-dir", "state", "--payload", payload, "--json", *argv),
    )


def test_what_a_producer_fires_a_consumer_drains(place: Path) -> None:
    receipt = json.loads(fire(place, 1).stdout)
    fire(place, "boom")

    listed = queue(place, "ls")
    drained = ("drain", "triage", "--consumer-id", "worker-a")
    report = queue(place, *drained, run=command_of_another_process)

    assert receipt["status"] == "dispatched"
    assert receipt["result"]["queue"] == "triage"
    assert listed["worker_queues"][0]["ready"] == 2
    assert listed["scheduler"]["policy"]["strategy"] == {"kind": "fifo"}
    assert (report["drained"], report["acked"], report["deferred"]) == (2, 1, 1)
    assert (report["consumer_id"], report["claim_ttl_ms"]) == ("worker-a", 300_000)
    assert report["responses"][0]["outcome"] == {"n": 1}
    assert "boom" in report["responses"][1]["error"]
    assert report["summary"]["in_flight"] == 1


@harn.durable(name="queue-cli-test:triple")
def triple(n: int) -> int:
    raise NotImplementedError("no worker runs it here")


def test_a_drain_that_can_run_no_job_says_why(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        queue = worker_queue("other")
        await queue.enqueue_many([NewJob(n, trigger_id="elsewhere") for n in range(2)])
        await queue.enqueue(1)
        await queue.submit(triple, 7)
        await worker_queue("still").enqueue(1)
        await worker_queue("still").pause()

    def note(name: str) -> str:
        where = ("--config", str(place / "consumer"), "--state-dir", str(place / "state"))
        assert invoke(["orchestrator", "queue", "drain", name, "--json", *where]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["drained"] == 0
        return str(report["note"])

    harn.run(main, state_dir=place / "state")

    assert note("other") == (
        "nothing was drained: 1 ready job is of functions ('queue-cli-test:triple'), which `harn "
        "worker` runs; 2 ready jobs are of triggers ('elsewhere') that harn.toml does not run "
        "here; 1 ready job has no trigger: a program drains such jobs with `harn.drain`"
    )
    assert note("still") == "queue 'still' is paused"


def test_draining_a_queue_that_never_was_says_so(place: Path) -> None:
    fire(place, 1)

    report = queue(place, "drain", "triag")
    done = queue(place, "drain", "triage")

    assert report["drained"] == 0
    assert report["note"] == "no job was ever put into queue 'triag'; did you mean 'triage'?"
    assert (done["drained"], "note" in done) == (1, False)


def seed(place: Path, jobs: list[NewJob], policy: SchedulerPolicy, picks: int) -> None:
    async def main() -> None:
        found = worker_queue("triage", policy)
        await found.enqueue_many(jobs)
        for claim in await found.claim_many("w", picks) if picks else []:
            await claim.ack()

    harn.run(main, state_dir=place / "state")


def test_the_scheduler_block_tells_the_truth_from_another_process(place: Path) -> None:
    policy = SchedulerPolicy(strategy="drr", weights={"a": 3})
    seed(place, [NewJob(n, tenant_id=t) for n in range(20) for t in "ab"], policy, 10)

    policy_here = {"HARN_SCHEDULER_STRATEGY": "drr", "HARN_SCHEDULER_WEIGHTS": "a:3"}
    listed = queue(place, "ls", run=command_of_another_process, **policy_here)

    assert "warnings" not in listed
    [block] = listed["scheduler"]["per_queue"]
    assert (block["strategy"], block["fairness_key"]) == ("drr", "tenant")
    assert block["rounds_completed"] == 3
    a, b = block["keys"]
    assert {key: a[key] for key in ("fairness_key", "weight", "selected_total", "ready_jobs")} == {
        "fairness_key": "a",
        "weight": 3,
        "selected_total": 7,
        "ready_jobs": 13,
    }
    assert (b["selected_total"], b["ready_jobs"]) == (3, 17)
    assert a["deficit"] + b["deficit"] == 2


def test_ls_warns_when_policies_differ(place: Path) -> None:
    seed(place, [NewJob(1)], SchedulerPolicy(strategy="drr"), 1)

    done = harn_command(place, "queue", "--state-dir", "state")

    assert "another policy" in done.stderr
    assert "triage" in done.stdout


def test_names_cannot_reach_the_terminal_as_escapes(place: Path) -> None:
    done = harn_command(
        place, "queue", "--state-dir", "state", "explain", "x\x1b[2J", "1", check=False
    )

    assert done.returncode == 1
    assert "\x1b" not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1


def test_explain_says_why_a_job_is_not_running(place: Path) -> None:
    policy = SchedulerPolicy(strategy="drr", max_concurrent_per_key=1)

    async def main() -> None:
        found = worker_queue("triage", policy)
        await found.enqueue_many([NewJob(n, tenant_id=t) for n in range(3) for t in "ab"])
        await found.enqueue("later", not_before="1h")
        await found.claim_next("holder", ttl="10m")

    harn.run(main, state_dir=place / "state")
    held = queue(place, "explain", "triage", "1")
    capped = queue(place, "explain", "triage", "3")
    waiting = queue(place, "explain", "triage", "4")
    later = queue(place, "explain", "triage", "7")
    text = harn_command(place, "queue", "--state-dir", "state", "explain", "triage", "3").stdout

    assert held["claim"]["consumer_id"] == "holder"
    assert 0 < held["claim"]["expires_in_ms"] <= 600_000
    assert "holder holds it" in held["verdict"]
    assert capped["scheduling"]["is_capped"] is True
    assert "as many as it may" in capped["verdict"]
    assert waiting["scheduling"]["ahead_in_key"] == 1
    assert later["not_before_in_ms"] > 3_000_000
    assert "as many as it may" in text


def test_purge_needs_to_be_confirmed(place: Path) -> None:
    fire(place, 1)

    refused = harn_command(place, "queue", "--state-dir", "state", "purge", "triage", check=False)
    purged = queue(place, "purge", "triage", "--confirm")

    assert refused.returncode == 1
    assert "--confirm" in refused.stderr
    assert purged["purged"] == 1
    assert purged["summary"]["purged"] == 1


def test_metrics_has_every_family_and_at_most_200_keys(place: Path) -> None:
    jobs = [NewJob(n, tenant_id=f"t{n:04}") for n in range(400)]
    seed(place, jobs, SchedulerPolicy(strategy="drr"), 300)

    text = harn_command(place, "metrics", "--state-dir", "state").stdout

    for family in ("selections", "deferrals", "starvation_promotions"):
        assert f"harn_scheduler_{family}_total{{" in text
    for gauge in ("harn_scheduler_deficit{", "harn_scheduler_oldest_eligible_age_seconds{"):
        assert 0 < text.count(gauge) <= 201
    assert 'harn_worker_queue_depth{queue="triage"} 100.0' in text
    assert "harn_worker_queue_claim_age_seconds_bucket{" in text
    assert 'fairness_key="other"' in text


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["queue", "drain", "triage", "--config", "nowhere.toml"], 1, "nowhere.toml"),
        (["queue", "drain", "triage", "--claim-ttl", "soon"], 2, "duration"),
        (["queue", "lss"], 2, "ls"),
        (["queue", "purge", "x.claims", "--confirm"], 1, "x.claims"),
        (["queue", "explain", "nothing", "1"], 1, "no queue"),
        (["fire", "incoming-review-tusk", "--config", "producer/harn.toml"], 1, "did you mean"),
        ([*FIRE, "--payload", "{"], 1, "--payload is not JSON"),
        ([*FIRE, "--payload", "NaN"], 1, "--payload is not JSON: JSON has no NaN"),
        ([*FIRE, "--payload", "@latin.json"], 1, "--payload is not JSON"),
        (
            [*FIRE, "--payload", "@none.json"],
            1,
            "--payload: none.json cannot be read: No such file",
        ),
        ([*FIRE, "--shutdown-timeout", "0s"], 2, "a duration above 0, at most 1d"),
        (["queue", "drain", "triage", "--shutdown-timeout", "2d"], 2, "at most 1d"),
        (["dlq", "--replay", "x", "--shutdown-timeout", "2d"], 2, "at most 1d"),
        ([*FIRE, "--tenant", "a\nb"], 1, "tenant_id='a\\nb' is not accepted"),
        (["queue", "drain", "triage", "--claim-ttl", "5"], 2, "a duration with its unit"),
        (["queue", "drain", "triage", "--claim-ttl", "5300w"], 2, "at most 100 years"),
    ],
    ids=str,
)
def test_errors_are_one_line_with_an_exit_code(
    place: Path, argv: list[str], code: int, said: str
) -> None:
    seed(place, [NewJob(1)], SchedulerPolicy(), 0)
    (place / "latin.json").write_bytes('"é"'.encode("latin-1"))

    done = harn_command(place, *argv, "--state-dir", "state", check=False)

    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ("queue",),
        ("queue", "ls"),
        ("queue", "purge", "triage", "--confirm"),
        ("dlq",),
        ("inspect", "--config", "producer/harn.toml"),
        ("metrics",),
    ],
)
def test_looking_where_there_is_no_store_says_so_and_makes_nothing(
    place: Path, argv: tuple[str, ...]
) -> None:
    there = sorted(place.rglob("*"))

    text = harn_command(place, *argv, "--state-dir", "state")
    document = harn_command(place, *argv, "--storage", "file:///state", "--json")

    assert f"there is no store at {place}/state/events.sqlite" in text.stdout
    assert "there is no store" in json.loads(document.stdout)["note"]
    assert text.stderr == document.stderr == ""
    assert sorted(place.rglob("*")) == there


def test_a_store_that_cannot_be_made_is_one_line_too(place: Path) -> None:
    (place / "state").write_text("a file, no directory")

    done = harn_command(place, *FIRE, "--state-dir", "state", check=False)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "is not a directory" in done.stderr


def test_an_empty_listing_has_the_scheduler_block_all_the_same(place: Path) -> None:
    found = harn_command(place, "queue", "ls", "--json", HARN_SCHEDULER_STRATEGY="drr").stdout

    document = json.loads(found)
    assert document["worker_queues"] == []
    assert document["scheduler"]["policy"]["strategy"]["kind"] == "deficit-round-robin"
    assert document["scheduler"]["per_queue"] == []


@pytest.mark.parametrize(
    "argv",
    [
        ("queue", "explain", "triage", "1"),
        ("dlq", "--discard", "dlq_1"),
        ("dlq", "--replay", "dlq_1", "--config", "producer/harn.toml"),
        ("replay", "evt_1", "--config", "producer/harn.toml"),
    ],
)
def test_what_is_asked_for_cannot_be_in_a_store_that_is_not_there(
    place: Path, argv: tuple[str, ...]
) -> None:
    done = harn_command(place, *argv, "--state-dir", "state", check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no store at ")
    assert not (place / "state").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HARN_SCHEDULER_STRATEGY", "fifoo"),
        ("HARN_SCHEDULER_FAIRNESS_KEY", "tenants"),
        ("HARN_SCHEDULER_QUANTUM", "0"),
        ("HARN_SCHEDULER_STARVATION_AGE_MS", "-1"),
        ("HARN_SCHEDULER_MAX_CONCURRENT_PER_KEY", "x"),
        ("HARN_SCHEDULER_DEFAULT_WEIGHT", "0"),
        ("HARN_SCHEDULER_WEIGHTS", "a"),
        ("HARN_SCHEDULER_WEIGHTS", "a:0"),
        ("HARN_SCHEDULER_WEIGHTS", "a:1,a:2"),
    ],
)
def test_D4_bad_settings_are_refused_with_the_variables_name(variable: str, value: str) -> None:
    with pytest.raises(harn.InvalidOption, match=variable):
        SchedulerPolicy.from_env({variable: value})


def test_a_weight_key_may_contain_a_colon() -> None:
    policy = SchedulerPolicy.from_env({"HARN_SCHEDULER_WEIGHTS": " a:b:3 , c:2"})

    assert policy.weights == {"a:b": 3, "c": 2}


def test_a_job_of_another_trigger_is_not_claimed(place: Path) -> None:
    seed(place, [NewJob(1, trigger_id="somebody-elses"), NewJob(2)], SchedulerPolicy(), 0)
    fire(place, 3)

    report = queue(place, "drain", "triage")

    assert report["acked"] == 1
    assert report["summary"]["ready"] == 2


def test_G12_a_terminated_drain_finishes_its_job_and_exits_with_0(place: Path) -> None:
    for n in ("slow", 1, 2):
        fire(place, n)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "harn", "orchestrator", "queue", "drain", "triage"),
            *("--config", "consumer/harn.toml", "--state-dir", "state", "--json"),
        ],
        cwd=place,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (place / "started").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)

    report = json.loads(out)
    assert process.returncode == 0
    assert (report["acked"], report["summary"]["ready"]) == (1, 2)
    assert report["summary"]["in_flight"] == 0


def test_a_dead_job_from_code_is_replayed_without_a_manifest(tmp_path: Path) -> None:
    async def main() -> None:
        await worker_queue("q").enqueue({"n": 1}, max_attempts=1)
        await harn.drain("q", lambda job: 1 / 0)

    harn.run(main, state_dir=tmp_path / "state")
    dlq = ("dlq", "--state-dir", "state", "--json")
    [letter] = json.loads(harn_command(tmp_path, *dlq).stdout)["entries"]

    done = json.loads(harn_command(tmp_path, *dlq, "--replay", letter["id"]).stdout)

    [handle] = done["handles"]
    assert handle["result"] == {"queue": "q", "job_id": 1, "status": "ready"}
    again = harn_command(tmp_path, *dlq, "--replay", letter["id"], check=False)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)

"""The service as a real process: signals, reloads, kills, queues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from harn import Runtime
from harn.clock import SystemClock
from harn.testing import FakeClock
from harn.triggers import Triggers
from harn.workers import worker_queue
from tests.orchestrator.processes import SECRET, ledger, post, serving, until

MANIFEST = """
[exports]
handlers = "handlers.py"

[[triggers]]
id = "hook"
kind = "webhook"
provider = "github"
match = { path = "/hooks/github" }
handler = "handlers::note"
secrets = { signing = ["GITHUB_SECRET"] }
"""
HANDLERS = """
import asyncio, os, pathlib

HERE = pathlib.Path(__file__).parent

def write(line):
    with open(HERE / "ledger", "a") as file:
        file.write(line + chr(10))

async def note(event):
    write(f"v1 {event.get('provider_payload.payload.n')}")

async def slow(event):
    write("begun")
    await asyncio.sleep(1)
    write("ended")

async def wait(event):
    import harn
    write("begun")
    await harn.sleep("1h")

async def die(event):
    write("dying")
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "harn.toml").write_text(MANIFEST)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


def test_X1_a_served_manifest_takes_webhooks_and_ends_with_0_on_sigterm(place: Path) -> None:
    with serving(place) as process:
        url = process.url
        answer = post(url, {"n": 1})
        until(lambda: ledger(place))
        ready = httpx2.get(f"{url}/readyz", trust_env=False)
        process.signal(signal.SIGTERM)

        assert process.ends() == 0
    assert (answer.status_code, ready.status_code) == (202, 200)
    assert ledger(place) == ["v1 1"]
    assert SECRET not in "".join(process.lines)


def test_X1_work_under_way_finishes_before_the_end(place: Path) -> None:
    (place / "harn.toml").write_text(MANIFEST.replace("::note", "::slow"))
    with serving(place) as process:
        post(process.url, {"n": 1})
        until(lambda: "begun" in ledger(place))
        process.signal(signal.SIGTERM)

        assert process.ends() == 0
    assert ledger(place) == ["begun", "ended"]


def test_X1_a_second_signal_does_not_wait_and_the_work_is_not_lost(place: Path) -> None:
    slow = HANDLERS.replace("asyncio.sleep(1)", "asyncio.sleep(60)")
    (place / "handlers.py").write_text(slow)
    (place / "harn.toml").write_text(MANIFEST.replace("::note", "::slow"))
    with serving(place) as process:
        post(process.url, {"n": 1})
        until(lambda: "begun" in ledger(place))
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGTERM)
        time.sleep(0.2)
        process.signal(signal.SIGTERM)
        assert process.ends(15) == 0

    (place / "harn.toml").write_text(MANIFEST)
    with serving(place) as process:
        process.reports("ready")
        until(lambda: "v1 1" in ledger(place))
    assert ledger(place) == ["begun", "v1 1"]


def test_a_handler_that_waits_is_stopped_at_once_and_its_event_is_dispatched_again(
    place: Path,
) -> None:
    (place / "harn.toml").write_text(MANIFEST.replace("::note", "::wait"))
    with serving(place, "--shutdown-timeout", "1h") as process:
        post(process.url, {"n": 1})
        until(lambda: "begun" in ledger(place))
        process.signal(signal.SIGTERM)
        assert process.ends(30) == 0
        assert process.reports("stopped")["finished"] is True
    letters = json.loads(run(place, "dlq", "--json").stdout)

    (place / "harn.toml").write_text(MANIFEST)
    with serving(place) as process:
        process.reports("ready")
        until(lambda: "v1 1" in ledger(place))

    assert ledger(place) == ["begun", "v1 1"]
    assert letters["pending_entries"] == 0


def test_a_signal_while_it_starts_is_not_lost(place: Path) -> None:
    slow_import = HANDLERS + "\nimport time\nwrite('importing')\ntime.sleep(0.5)\n"
    (place / "handlers.py").write_text(slow_import)
    with serving(place) as process:
        until(lambda: ledger(place))
        process.signal(signal.SIGTERM)

        assert process.ends() == 0


def test_a_reload_puts_a_new_version_in_force_and_keeps_the_old_one_on_a_mistake(
    place: Path,
) -> None:
    with serving(place) as process:
        url = process.url
        post(url, {"n": 1})
        (place / "handlers.py").write_text(HANDLERS.replace("v1", "v2"))
        process.signal(signal.SIGHUP)
        reloaded = process.reports("reloaded")
        post(url, {"n": 2})
        (place / "harn.toml").write_text(MANIFEST.replace("webhook", "webhok"))
        process.signal(signal.SIGHUP)
        failed = process.reports("reload failed")
        post(url, {"n": 3})
        until(lambda: len(ledger(place)) == 3)

    assert reloaded["changed"] == ["hook@v2"]
    assert "did you mean 'webhook'" in failed["error"]
    assert ledger(place) == ["v1 1", "v2 2", "v2 3"]


def test_a_new_setup_that_fails_does_not_end_the_service(place: Path) -> None:
    with serving(place) as process:
        url = process.url
        text = (place / "harn.toml").read_text()
        (place / "harn.toml").write_text(f'[orchestrator]\nsetup = "handlers::fails"\n{text}')
        (place / "handlers.py").write_text(f"{HANDLERS}\ndef fails():\n    1 / 0\n")
        process.signal(signal.SIGHUP)
        failed = process.reports("reload failed")
        post(url, {"n": 1})
        until(lambda: ledger(place))

    reason = "the setup 'handlers::fails' failed: ZeroDivisionError: division by zero"
    assert failed["error"] == reason
    assert "in fails" in "".join(process.lines)  # the place, in a traceback
    assert ledger(place) == ["v1 1"]


def test_a_signal_ends_a_service_whose_new_setup_hangs(place: Path) -> None:
    with serving(place) as process:
        process.reports("ready")
        text = (place / "harn.toml").read_text()
        (place / "harn.toml").write_text(f'[orchestrator]\nsetup = "handlers::hangs"\n{text}')
        hangs = "\nasync def hangs():\n    write('hangs')\n    await asyncio.Event().wait()\n"
        (place / "handlers.py").write_text(HANDLERS + hangs)
        process.signal(signal.SIGHUP)
        until(lambda: ledger(place))
        process.signal(signal.SIGTERM)
        stopped = process.reports("stopped")
        code = process.ends()

    assert (code, stopped["finished"]) == (0, True)


async def test_S26_a_kill_between_accept_and_dispatch_dispatches_once_afterwards(
    place: Path,
) -> None:
    (place / "harn.toml").write_text(MANIFEST.replace("::note", "::die"))
    with serving(place) as process:
        url = process.url
        try:
            answered = post(url, {"n": 1}).status_code
        except httpx2.HTTPError:
            answered = None  # it was killed before its answer got out
        assert process.ends() == -signal.SIGKILL
    assert answered in (202, None)

    seen: list[Any] = []
    clock = FakeClock(start=SystemClock().now_ms() + 40_000)
    async with Runtime(state_dir=place / "state", clock=clock) as runtime:
        from harn import trigger_register

        async def note(event: Any) -> None:
            seen.append(event.get("provider_payload.payload.n"))

        await trigger_register(id="hook", kind="webhook", provider="github", match={}, handler=note)
        await clock.advance("1s")
        await runtime.service(Triggers).dispatcher.idle()

    assert seen == [1]


def test_S3_a_public_bind_without_keys_is_refused(place: Path) -> None:
    done = run(place, "serve", "--bind", "0.0.0.0:0")

    assert done.returncode == 1
    assert "can be reached from outside" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_keys_a_public_bind_is_allowed_and_operators_need_them(place: Path) -> None:
    (place / "harn.toml").write_text(MANIFEST + '\n[serve]\nkeys = ["ADMIN_KEY"]\n')
    key = "0123456789abcdef0123"
    with serving(place, "--bind", "0.0.0.0:0", env={"ADMIN_KEY": key}) as process:
        url = process.url.replace("0.0.0.0", "127.0.0.1")
        without = httpx2.get(f"{url}/metrics", trust_env=False).status_code
        headers = {"authorization": f"Bearer {key}"}
        with_key = httpx2.get(f"{url}/metrics", headers=headers, trust_env=False).status_code
        reload = httpx2.post(f"{url}/admin/reload", headers=headers, trust_env=False)

    assert (without, with_key, reload.status_code) == (401, 200, 200)
    assert key not in "".join(process.lines)


@pytest.mark.parametrize(
    ("secret", "said"), [(None, "not set"), ("", "not set"), ("short", "at least 8 bytes")]
)
def test_S4_a_missing_or_short_secret_is_refused_at_start(
    place: Path, secret: str | None, said: str
) -> None:
    done = run(place, "serve", "--bind", "127.0.0.1:0", secret=secret)

    assert done.returncode == 1
    assert said in done.stderr and "GITHUB_SECRET" in done.stderr
    assert done.stderr.count("\n") == 1


async def test_queues_with_work_for_the_manifest_are_consumed(place: Path) -> None:
    async with Runtime(state_dir=place / "state"):
        event = {
            "id": "e1",
            "provider": "github",
            "kind": "push",
            "received_at": "2026-01-01T00:00:00Z",
            "occurred_at": "2026-01-01T00:00:00Z",
            "provider_payload": {"payload": {"n": 7}},
        }
        queue = worker_queue("triage")
        await queue.enqueue(event, trigger_id="hook")
        await queue.enqueue(event, trigger_id="somebody-elses")

    with serving(place) as process:
        process.reports("ready")
        until(lambda: ledger(place))
        process.signal(signal.SIGTERM)
        assert process.ends() == 0

    async with Runtime(state_dir=place / "state"):
        summary = await worker_queue("triage").summary()
    assert ledger(place) == ["v1 7"]
    assert (summary.acked, summary.ready) == (1, 1)


def run(place: Path, *args: str, secret: str | None = SECRET) -> subprocess.CompletedProcess[str]:
    import os

    env = {key: value for key, value in os.environ.items() if key != "GITHUB_SECRET"}
    if secret is not None:
        env["GITHUB_SECRET"] = secret
    command = [sys.executable, "-m", "harn", "orchestrator", *args]
    if args[0] != "check":
        command += ["--state-dir", str(place / "state")]
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=60)


def test_check_tells_every_mistake_and_exits_with_1(place: Path) -> None:
    good = run(place, "check")
    (place / "harn.toml").write_text(
        MANIFEST.replace("::note", "::nott").replace("webhook", "webhok")
    )
    bad = run(place, "check")
    (place / "harn.toml").write_text(MANIFEST.replace("::note", "::nott"))
    missing = run(place, "check", "--json")
    schema = run(place, "check", "--schema")

    assert (good.returncode, good.stdout) == (0, "ok: 1 trigger\n")
    assert (bad.returncode, "did you mean 'webhook'" in bad.stdout) == (1, True)
    assert "did you mean 'note'" in json.loads(missing.stdout)["problems"][0]["message"]
    assert json.loads(schema.stdout)["title"] == "harn.toml"


def test_dead_letters_from_the_command_line(place: Path) -> None:
    (place / "handlers.py").write_text("def note(event):\n    raise RuntimeError('down')\n")
    fired = run(place, "fire", "hook", "--payload", '{"n": 1}', "--json")
    letter = json.loads(fired.stdout)
    listed = json.loads(run(place, "dlq", "--json").stdout)
    failed = run(place, "dlq", "--replay", letter["dlq_entry_id"])
    (place / "handlers.py").write_text("def note(event):\n    return 'up'\n")
    inspected = json.loads(run(place, "inspect", "--json").stdout)
    again = run(place, "replay", letter["event_id"], "--json")
    unknown = run(place, "dlq", "--replay", "dlq_x")
    discarded = run(place, "dlq", "--discard", letter["dlq_entry_id"])

    assert (fired.returncode, letter["status"]) == (1, "dlq")
    assert (listed["pending_entries"], listed["entries"][0]["id"]) == (1, letter["dlq_entry_id"])
    assert failed.returncode == 1
    assert inspected["dlq_depth"] == 2
    assert inspected["circuits"][0]["state"] == "open"
    assert again.returncode == 1 and "circuit is open" in again.stdout
    assert (unknown.returncode, unknown.stderr) == (1, "error: no dead letter 'dlq_x'\n")
    assert discarded.returncode == 0


def test_several_processes_dispatch_a_delivery_once(place: Path) -> None:
    with serving(place) as one, serving(place) as two:
        urls = [one.url, two.url]
        answers = [post(urls[n % 2], {"n": 5}).json()["status"] for n in range(6)]
        until(lambda: ledger(place))
        for process in (one, two):
            process.signal(signal.SIGTERM)
            assert process.ends() == 0

    assert sorted(answers) == ["accepted"] + ["duplicate"] * 5
    assert ledger(place) == ["v1 5"]


def test_a_manifest_sends_a_webhook_to_a_channel_without_code(place: Path) -> None:
    manifest = MANIFEST.replace("handlers::note", "channel://orders")
    reader = """
[[triggers]]
id = "reader"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:orders"] }
handler = "handlers::note"
"""
    (place / "harn.toml").write_text(manifest + reader)

    with serving(place) as process:
        answer = post(process.url, {"n": 1})
        until(lambda: ledger(place))

    assert answer.status_code == 202
    assert ledger(place) == ["v1 1"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_each_request_dispatch_and_failure_is_a_line_of_the_log(place: Path, format: str) -> None:
    (place / "handlers.py").write_text("def note(event):\n    raise RuntimeError('down')\n")
    env = {"HARN_LOG": format}
    with serving(place, env=env) as process:
        post(process.url, {"n": 1})
        until(lambda: any("dlq, attempts" in line for line in process.lines))

    found = [line for line in process.lines if "harn.portal" in line or "harn.triggers" in line]
    if format == "json":
        for line in found:
            assert {"at", "level", "logger", "message"} <= json.loads(line).keys()
    for part in (": 202, ", "failed in attempt 1", "is a dead letter now", " dlq, attempts: "):
        assert sum(part in line for line in found) == 1, part
    assert all(SECRET not in line for line in found)

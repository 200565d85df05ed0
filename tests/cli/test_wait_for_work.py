"""Commands that dispatch run the setup and wait for the work that they caused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harn.cli import invoke
from harn.cli.progress import live_line

TRIGGER = """
[[triggers]]
id = "{id}"
kind = "channel.emit"
provider = "channel"
match = {{ events = ["channel:{id}"] }}
handler = {handler}
retry = {{ max = 1, backoff = "immediate" }}
"""
HEAD = '[exports]\nhandlers = "handlers.py"\n[orchestrator]\nsetup = "handlers::setup"\n'
HANDLERS = """
import asyncio, pathlib
import harn

HERE = pathlib.Path(__file__).parent

async def setup():
    await harn.pool_create(name="work", max_concurrent=2)

def work(event):
    async def run():
        what = event.get("provider_payload.payload")
        await asyncio.sleep(0.05)
        while what == "until shown" and not (HERE / "shown").exists():
            await asyncio.sleep(0.01)
        if what == "hang":
            await asyncio.Event().wait()
        if what == "fail" and not (HERE / "mended").exists():
            raise RuntimeError("boom")
        with open(HERE / "ledger", "a") as file:
            file.write(f"{what}\\n")
    return run

async def submit(event):
    await harn.pool_get("work").submit(work(event))

async def emit(event):
    await harn.channel_emit("elsewhere", event.get("provider_payload.payload"))

def boom(event):
    raise RuntimeError("boom")
"""
UNWELL = [('"fail"', "60s", "RuntimeError: boom"), ('"hang"', "200ms", "had not ended in time")]
"""Work that does not end well: its payload, how long it is waited for, and what is said."""
POOL = '{ pool = "work", task_factory = "handlers::work" }'

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """Run a command of the orchestrator in a place with handlers and a manifest."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    write(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke(["orchestrator", *argv, "--state-dir", "state"])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def write(place: Path, *, head: str = HEAD, **handlers: str) -> None:
    wanted = {
        "pooled": POOL,
        "local": '"handlers::submit"',
        "queued": '"worker://triage"',
        "boom": '"handlers::boom"',
        **handlers,
    }
    tables = [TRIGGER.format(id=id, handler=handler) for id, handler in wanted.items()]
    (place / "harn.toml").write_text(head + "".join(tables))


def ledger(place: Path) -> list[str]:
    path = place / "ledger"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("trigger", ["pooled", "local"])
def test_fire_waits_for_the_pool_work_that_it_caused(
    run: Run, tmp_path: Path, trigger: str
) -> None:
    code, out, err = run("fire", trigger, "--payload", '"one"')

    assert (code, err, ledger(tmp_path)) == (0, "", ["one"])
    assert out.endswith("work: 1 pool task completed\n")


def test_fire_tells_its_work_in_its_one_document(run: Run) -> None:
    code, out, err = run("fire", "pooled", "--payload", '"one"', "--json")

    assert (code, err) == (0, "")
    assert json.loads(out)["work"] == {"completed": 1, "failed": 0, "unfinished": 0}


@pytest.mark.parametrize(("payload", "within", "said"), UNWELL)
def test_fire_whose_pool_work_does_not_end_well_is_exit_1_with_one_line(
    run: Run, payload: str, within: str, said: str
) -> None:
    for more in ([], ["--json"]):
        code, out, err = run(
            "fire", "pooled", "--payload", payload, "--shutdown-timeout", within, *more
        )

        assert code == 1
        assert err.startswith("error: pooled: ") and said in err and err.count("\n") == 1
        if more:
            assert json.loads(out)["work"]["completed"] == 0


def test_55_fire_that_ends_in_the_dead_letters_says_so_in_one_line(run: Run) -> None:
    for more in ([], ["--json"]):
        code, out, err = run("fire", "boom", *more)

        assert code == 1
        assert err.startswith("error: boom: dead letter dlq_") and err.count("\n") == 1
        assert "handler raised RuntimeError: boom" in err
        assert json.loads(out)["status"] == "dlq" if more else "status: dlq" in out


def test_fire_of_a_trigger_named_like_a_command_that_serves_says_one_line(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, serve='"handlers::boom"')

    code, _, err = run("fire", "serve")

    assert code == 1
    assert err.startswith("error: serve: dead letter dlq_") and err.count("\n") == 1


def test_fire_reaches_a_trigger_that_the_setup_registered(run: Run, tmp_path: Path) -> None:
    text = HANDLERS.replace(
        'await harn.pool_create(name="work", max_concurrent=2)',
        'await harn.pool_create(name="work", max_concurrent=2); '
        'await harn.trigger_register(id="coded", kind="channel.emit", provider="channel", '
        'match={"events": ["channel:elsewhere"]}, handler=harn.SpawnToPool("work", work))',
    )
    (tmp_path / "handlers.py").write_text(text)
    write(tmp_path, emitting='"handlers::emit"')

    assert run("fire", "coded", "--payload", '"direct"')[0] == 0
    assert run("fire", "emitting", "--payload", '"emitted"')[0] == 0
    code, _, err = run("fire", "codet")

    assert ledger(tmp_path) == ["direct", "emitted"]
    assert (code, err) == (1, "error: harn.toml has no trigger 'codet'; did you mean 'coded'?\n")


def drain(run: Run, place: Path, handler: str, *more: str) -> tuple[int, dict[str, Any], str]:
    """Drain the queue with a manifest that handles its jobs here."""
    write(place, queued=handler)
    code, out, err = run("queue", "drain", "triage", "--json", *more)
    write(place)
    return code, json.loads(out), err


@pytest.mark.parametrize("handler", [POOL, '"handlers::submit"'])
def test_drain_acks_a_job_when_the_pool_work_that_it_caused_completed(
    run: Run, tmp_path: Path, handler: str
) -> None:
    run("fire", "queued", "--payload", '"one"')

    code, report, err = drain(run, tmp_path, handler)

    assert (code, report["acked"], err, ledger(tmp_path)) == (0, 1, "", ["one"])


@pytest.mark.parametrize("handler", [POOL, '"handlers::submit"'])
@pytest.mark.parametrize(("payload", "within", "said"), UNWELL)
def test_drain_does_not_ack_a_job_whose_pool_work_did_not_end_well(
    run: Run, tmp_path: Path, handler: str, payload: str, within: str, said: str
) -> None:
    (tmp_path / "harn.toml").write_text(
        (tmp_path / "harn.toml").read_text().replace("max = 1", "max = 3")
    )
    run("fire", "queued", "--payload", payload)

    code, report, err = drain(run, tmp_path, handler, "--shutdown-timeout", within)

    assert (code, report["acked"]) == (1, 0)
    assert err.startswith("error: job 1 of triage is not acked: ")
    assert said in err and err.count("\n") == 1


def test_a_dead_letter_goes_only_when_its_replayed_work_ended_well(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, head=HEAD.partition("[orchestrator]")[0])  # no setup, so no pool
    letter = json.loads(run("fire", "pooled", "--payload", '"fail"', "--json")[1])["dlq_entry_id"]
    write(tmp_path)

    failed, _, err = run("dlq", "--replay", letter)
    left = json.loads(run("dlq", "--json")[1])["pending_entries"]
    (tmp_path / "mended").touch()
    code, out, silent = run("dlq", "--replay", letter)

    assert (failed, left) == (1, 1)
    assert "RuntimeError: boom" in err and err.count("\n") == 1
    assert (code, silent, ledger(tmp_path)) == (0, "", ["fail"])
    assert out.endswith("work: 1 pool task completed\n")
    assert json.loads(run("dlq", "--json")[1])["pending_entries"] == 0


def test_replay_waits_for_the_pool_work_that_it_caused(run: Run, tmp_path: Path) -> None:
    event = json.loads(run("fire", "pooled", "--payload", '"one"', "--json")[1])["event_id"]

    code, out, err = run("replay", event, "--json")

    assert (code, err, ledger(tmp_path)) == (0, "", ["one", "one"])
    assert json.loads(out)["work"] == [{"completed": 1, "failed": 0, "unfinished": 0}]


def test_replay_whose_pool_work_fails_is_exit_1_with_one_line(run: Run) -> None:
    event = json.loads(run("fire", "pooled", "--payload", '"fail"', "--json")[1])["event_id"]

    code, _, err = run("replay", event)

    assert code == 1
    assert err.startswith("error: pooled: failed: ") and err.count("\n") == 1


def test_a_terminal_sees_what_is_waited_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = live_line.show

    def show(text: str) -> None:
        draw(text)
        (tmp_path / "shown").touch()

    monkeypatch.setattr("harn.cli.progress.on_terminal", lambda: True)
    monkeypatch.setattr(live_line, "show", show)

    _, _, err = run("fire", "pooled", "--payload", '"until shown"')

    assert "waiting for 1 pool task\x1b[K" in err

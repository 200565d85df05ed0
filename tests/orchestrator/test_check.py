"""`orchestrator check` lists every mistake in one run, each at its line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harn.cli import invoke

MISTAKES = """[exports]
handlers = "handlers.py"

[orchestrator]
setup = "handlers::no_setup"

[[triggers]]
id = "impossible"
kind = "cron"
provider = "cron"
schedule = "0 0 31 2 *"
timezone = "Mars/Olympus"
catchup_mode = "newest"
handler = "handlers::missing"

[[triggers]]
id = "handled"
kind = "cron"
provider = "cron"
handler = "handlers::also_missing"
[triggers.match]
schedule = "0 0 30 2 *"
timezone = "Mars/Olympus"

[[triggers]]
id = "unhandled"
kind = "webhook"
provider = "githb"
path = "no slash"
priority = "urgent"

[[triggers]]
id = "never"
kind = "cron"
provider = "cron"
handler = "handlers::work"

[[triggers]]
id = "twice"
kind = "channel.emit"
provider = "channel"
handler = "handlers::work"
match = { events = "push", topic = "" }
rate_limit = { max = 0, period = "-1s" }
"""
EXPECTED = [
    "5 orchestrator.setup",
    "11 triggers[0].schedule",
    "12 triggers[0].timezone",
    "13 triggers[0].catchup_mode",
    "14 triggers[0].handler",
    "20 triggers[1].handler",
    "22 triggers[1].match.schedule",
    "23 triggers[1].match.timezone",
    "25 triggers[2].handler",
    "28 triggers[2].provider",
    "29 triggers[2].path",
    "30 triggers[2].priority",
    "32 triggers[3].schedule",
    "43 triggers[4].match.events",
    "43 triggers[4].match.topic",
    "44 triggers[4].rate_limit.max",
    "44 triggers[4].rate_limit.period",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "handlers.py").write_text("def work(event):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_mistake_of_every_trigger_is_told_in_one_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "harn.toml").write_text(MISTAKES)

    assert invoke(["orchestrator", "check", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    places = [f"{each['line']} {each['table']}.{each['key']}" for each in found["problems"]]
    assert sorted(places) == sorted(EXPECTED)
    assert found["ok"] is False


def test_the_text_gives_each_mistake_its_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "harn.toml").write_text(MISTAKES)

    assert invoke(["orchestrator", "check"]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EXPECTED)
    assert all(line.startswith("harn.toml:") for line in lines)
    assert any(
        line.startswith("harn.toml:12: triggers[0].timezone: 'Mars/Olympus': an IANA zone")
        for line in lines
    )


def test_an_export_that_is_written_wrong_is_one_mistake(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "harn.toml").write_text(
        '[exports]\nhandlers = "../handlers.py"\n[[triggers]]\nid = "a"\n'
        'kind = "channel.emit"\nprovider = "channel"\nhandler = "handlers::work"\n'
    )

    assert invoke(["orchestrator", "check"]) == 1

    assert capsys.readouterr().out.count("\n") == 1


def test_a_manifest_that_is_right_is_told_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "harn.toml").write_text(
        '[exports]\nhandlers = "handlers.py"\n[[triggers]]\nid = "a"\nkind = "cron"\n'
        'provider = "cron"\nschedule = "0 2 29 2 *"\ntimezone = "Europe/Berlin"\n'
        'handler = "handlers::work"\n'
    )

    assert invoke(["orchestrator", "check"]) == 0

    assert capsys.readouterr().out == "ok: 1 trigger\n"

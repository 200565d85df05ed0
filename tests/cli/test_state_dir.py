"""A state directory that cannot be one is an error of every command, told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harn.cli import invoke

COMMANDS = [
    ["orchestrator", "queue"],
    ["orchestrator", "queue", "ls"],
    ["orchestrator", "queue", "drain", "triage"],
    ["orchestrator", "queue", "purge", "triage", "--confirm"],
    ["orchestrator", "queue", "explain", "triage", "1"],
    ["orchestrator", "fire", "t"],
    ["orchestrator", "dlq"],
    ["orchestrator", "dlq", "--replay", "dlq_1"],
    ["orchestrator", "dlq", "--discard", "dlq_1"],
    ["orchestrator", "replay", "trigger_evt_1"],
    ["orchestrator", "inspect"],
    ["orchestrator", "metrics"],
    ["orchestrator", "check"],
    ["orchestrator", "serve", "--no-http"],
    ["log", "verify"],
    ["log", "rebuild"],
    ["log", "backup", "copy.sqlite"],
    ["log", "export", "-"],
    ["log", "import", "-"],
    ["log", "tail", "worker.triage", "--no-follow"],
    ["log", "trim", "worker.triage", "--keep", "1"],
    ["ratelimit", "ls"],
    ["top", "--once"],
]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("below", ["", "inner"])
def test_a_file_in_the_state_directorys_place_is_exit_1_for_every_command(
    argv: list[str],
    below: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").write_text("not a directory")
    (tmp_path / "harn.toml").write_text(
        '[[triggers]]\nid = "t"\nkind = "channel.emit"\nprovider = "channel"\n'
        'handler = "worker://triage"\n'
    )

    assert invoke([*argv, "--state-dir", str(Path("state") / below)]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "state is not a directory" in shown.err
    assert shown.err.count("\n") == 1
    assert (tmp_path / "state").read_text() == "not a directory"

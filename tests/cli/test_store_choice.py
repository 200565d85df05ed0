"""Which store a command uses: `--storage`, then `HARN_STORAGE`, then the state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import harn
from harn.cli import invoke
from harn.cli.store_choice import chosen_store

NAMED, GIVEN = "sqlite:////named.sqlite", "sqlite:////given.sqlite"


@pytest.mark.parametrize("state_dir", [None, Path("there")])
@pytest.mark.parametrize(
    ("storage", "variable", "chosen"),
    [
        (None, None, None),
        (None, NAMED, NAMED),
        (GIVEN, None, GIVEN),
        (GIVEN, NAMED, GIVEN),
    ],
)
def test_a_flag_wins_over_the_variable_which_wins_over_the_state_directory(
    storage: str | None,
    variable: str | None,
    chosen: str | None,
    state_dir: Path | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable is not None:
        monkeypatch.setenv("HARN_STORAGE", variable)

    assert chosen_store(storage, state_dir) == (state_dir or Path(".harn"), chosen)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with one job, named by the variable; the state directory holds none."""

    async def enqueue() -> None:
        await harn.worker_queue("mine").enqueue({"n": 1})

    url = f"sqlite:///{tmp_path}/shared.sqlite"
    harn.run(enqueue, storage=url)
    monkeypatch.setenv("HARN_STORAGE", url)
    return url


@pytest.mark.parametrize(
    "argv",
    [
        ["orchestrator", "queue", "ls"],
        ["orchestrator", "metrics"],
        ["log", "verify"],
        ["log", "export", "-"],
        ["log", "tail", "worker.mine", "--no-follow", "--after", "0"],
        ["top", "--once"],
    ],
)
def test_every_command_finds_the_variables_store_beside_a_state_directory(
    shared: str, tmp_path: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([*argv, "--state-dir", str(tmp_path / "state")]) == 0

    shown = capsys.readouterr().out
    assert "mine" in shown or "2 records in 2 topics" in shown
    assert not list(tmp_path.glob("state/*.sqlite"))


def test_a_fired_job_lands_in_the_variables_store(
    shared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "harn.toml"
    config.write_text(
        '[[triggers]]\nid = "t"\nkind = "a2a-push"\nprovider = "a2a-push"\n'
        'match = { events = ["a2a.task.received"] }\nhandler = "worker://mine"\n'
    )
    where = ["--config", str(config), "--state-dir", str(tmp_path / "state")]

    assert invoke(["orchestrator", "fire", "t", "--payload", "{}", *where]) == 0

    capsys.readouterr()
    assert invoke(["orchestrator", "queue", "ls", "--storage", shared, "--json"]) == 0
    shown = capsys.readouterr().out
    assert '"ready": 2' in shown, shown

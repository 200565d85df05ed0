"""A database password is in nothing that a command or an error shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from harn import HarnError, InvalidOption, Runtime, durable_rate_limit_acquire
from harn.cli import invoke
from harn.cli.target import CommandTarget
from harn.settings import Settings
from harn.storage import Store, read_url

BAD = [
    "postgresql+psycopg://u:PWSECRET@h/db",
    "mysql://u:PWSECRET@h",
    "postgresql:u:PWSECRET@h",
    "postgresql:/u:PWSECRET@h/db",
    "sqlite://u:PWSECRET@h/x",
    "file://u:PWSECRET@h/x?oops",
    "sqlite:///x?password=PWSECRET",
    "memory://?password=PWSECRET",
    "postgresql://u:PWSECRET/x@h/db",
    "postgresql://u:PWSECRET?x@h/db",
    "postgresql://u:PWSECRET#x@h/db",
    "postgresql://u:PWSECRET@h/db?schema=a%20b",
    "postgresql://u:PWSECRET@h/db?pool_size=many",
    "host=h user=u password=PWSECRET",
    "u:PWSECRET@h/db",
]
AWAY = "postgresql://u:PWSECRET@127.0.0.1:1/db?sslpassword=PWSECRET&busy_timeout=50ms"
COMMANDS = [
    ["log", "verify"],
    ["log", "rebuild"],
    ["log", "backup", "copy.sqlite"],
    ["log", "export", "-"],
    ["log", "tail", "x"],
    ["log", "trim", "x", "--keep", "1"],
    ["orchestrator", "queue", "ls"],
    ["orchestrator", "queue", "drain", "q"],
    ["orchestrator", "queue", "purge", "q"],
    ["orchestrator", "queue", "jobs", "q"],
    ["orchestrator", "queue", "pause", "q"],
    ["orchestrator", "dlq"],
    ["orchestrator", "inspect"],
    ["orchestrator", "metrics"],
    ["orchestrator", "replay", "1"],
    ["worker", "json", "--queue", "q"],
    ["ratelimit", "ls"],
    ["top", "--once"],
    ["doctor"],
]


@pytest.fixture(autouse=True)
def in_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "harn.toml").write_text("")


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_no_command_shows_the_password_of_a_url_that_it_refuses(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARN_DEBUG", "1")
    monkeypatch.setenv("HARN_LOG_LEVEL", "debug")
    for url in [*BAD, AWAY]:
        code = invoke([*argv, "--storage", url])
        shown = "".join(capfd.readouterr())

        assert "PWSECRET" not in shown
        if argv[0] != "ratelimit":  # it reads a storage URL only if it is PostgreSQL's
            assert code == 1, (url, shown)
        assert "unexpected" not in shown


@pytest.mark.parametrize("argv", [["log", "verify"], ["log", "import"], ["harn"], ["doctor"]])
def test_a_url_in_the_wrong_place_of_a_command_line_is_masked_too(
    argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    for url in [*BAD, AWAY]:
        invoke([*argv, url])

        assert "PWSECRET" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("url", BAD)
async def test_no_error_of_the_python_api_holds_the_password(url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        async with Runtime(storage=url) as runtime:
            runtime.service(Store)

    assert "PWSECRET" not in f"{refused.value!r} {refused.value} {refused.value.value}"


async def test_a_server_that_is_away_is_named_without_its_password() -> None:
    async with Runtime(storage=AWAY) as runtime:
        with pytest.raises(HarnError) as away:
            await runtime.event_log.emit("a", "k", 1)

    assert "u:***@127.0.0.1:1" in str(away.value)
    assert "PWSECRET" not in f"{away.value!r} {away.value} {away.value.__cause__}"


async def test_a_limiters_state_path_is_no_url_of_an_unknown_kind(tmp_path: Path) -> None:
    async with Runtime():
        with pytest.raises(InvalidOption) as refused:
            await durable_rate_limit_acquire(key="k", limit=1, state_path="mysql://u:PWSECRET@h/x")

    assert "PWSECRET" not in f"{refused.value}"
    assert not list(tmp_path.glob("mysql*"))


def test_no_record_shows_the_password_in_its_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_STORAGE", AWAY)

    shown = f"{Settings.load()!r} {read_url(AWAY)!r} {CommandTarget(storage=AWAY)!r}"

    assert "PWSECRET" not in shown

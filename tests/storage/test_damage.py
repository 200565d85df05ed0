"""A damaged SQLite store: every command and call says so, and reads what can be read."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import harn
from harn import HarnError, Runtime, StorageCorrupt
from harn.cli import invoke
from harn.storage import Store
from harn.storage.log import list_topics

Damage = Callable[[Path], None]


def changed(sql: str) -> Damage:
    """Change rows as no constraint would allow."""

    def change(path: Path) -> None:
        loose = apsw.Connection(str(path))
        loose.execute("PRAGMA writable_schema = ON").fetchall()
        loose.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(replace(sql,"
            " ' STRICT, WITHOUT ROWID', ' WITHOUT ROWID'), ' STRICT', ''), ' NOT NULL', '')"
            " WHERE name IN ('events', 'topics', 'jobs', 'queues')"
        ).fetchall()
        loose.close()
        broken = apsw.Connection(str(path))
        broken.execute(sql).fetchall()
        broken.close()

    return change


def zeroed(page: int) -> Damage:
    def zero(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(page * 4096)
            file.write(bytes(4096))

    return zero


def written_over(path: Path) -> None:
    path.write_text("hello " * 2000)


DAMAGE: dict[str, Damage] = {
    "NULL payload": changed("UPDATE events SET payload = NULL WHERE id = 1"),
    "NULL headers": changed("UPDATE events SET headers = NULL WHERE id = 1"),
    "NULL kind": changed("UPDATE events SET kind = NULL WHERE id = 1"),
    "a time of text": changed("UPDATE events SET occurred_at_ms = 'soon' WHERE id = 1"),
    "no JSON": changed("UPDATE events SET payload = x'7b7b' WHERE id = 1"),
    "a number for JSON": changed("UPDATE events SET payload = 7 WHERE id = 1"),
    "other JSON": changed("UPDATE events SET payload = CAST('[1,2]' AS BLOB)"),
    "other headers": changed("UPDATE events SET headers = CAST('[1]' AS BLOB)"),
    "no head": changed("UPDATE topics SET head = NULL"),
    "a job without state": changed("UPDATE jobs SET state = NULL, attempts = 'x'"),
    "a queue without round": changed("UPDATE queues SET round = NULL, policy = '{{'"),
    **{f"page {page} zeroed": zeroed(page) for page in (0, 1, 2, 3, 5, 8, 12, 16, 20)},
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "its first bytes": lambda path: os.truncate(path, 50),
    "no database": written_over,
}
COMMANDS = [
    ["log", "verify"],
    ["log", "export", "out.jsonl"],
    ["log", "tail", "worker.q", "--no-follow", "--after", "0"],
    ["log", "rebuild"],
    ["log", "trim", "news", "--keep", "0"],
    ["orchestrator", "queue", "ls"],
    ["orchestrator", "queue", "explain", "q", "1"],
    ["orchestrator", "queue", "drain", "q"],
    ["orchestrator", "queue", "purge", "q"],
    ["orchestrator", "dlq"],
    ["orchestrator", "inspect"],
    ["orchestrator", "metrics"],
    ["orchestrator", "replay", "x"],
    ["orchestrator", "fire", "t", "--payload", "{}"],
    ["top", "--once"],
]
MANIFEST = """
[[triggers]]
id = "t"
kind = "a2a-push"
provider = "a2a-push"
match = { events = ["a2a.task.received"] }
handler = "worker://q"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a queue in every state and some records."""

    async def fill() -> None:
        queue = harn.worker_queue("q")
        await queue.enqueue_many([{"n": n} for n in range(6)])
        for settle in ("ack", "fail", None):
            claim = await queue.claim_next("me")
            assert claim is not None
            if settle == "ack":
                await claim.ack()
            if settle == "fail":
                await claim.fail("bad")
        for n in range(3):
            await harn.event_log_emit("news", "k", f"{n}" * 20_000)

    (tmp_path / "harn.toml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    harn.run(fill, storage=f"sqlite:///{tmp_path}/events.sqlite")
    return tmp_path / "events.sqlite"


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_command_ends_in_a_bare_exception(
    path: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = path.read_bytes()
    for argv in COMMANDS:
        Path("out.jsonl").unlink(missing_ok=True)
        for beside in path.parent.glob("events.sqlite-*"):
            beside.unlink()
        path.write_bytes(whole)
        DAMAGE[damage](path)

        code = invoke([*argv, "--storage", f"sqlite:///{path}"])

        told = capfd.readouterr().err
        assert code in (0, 1), (argv, told)
        assert "unexpected" not in told, (argv, told)
        assert "Traceback" not in told, (argv, told)


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_finds_it(path: Path, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    DAMAGE[damage](path)

    assert invoke(["log", "verify", "--storage", f"sqlite:///{path}", "--json"]) == 1

    found = json.loads(capfd.readouterr().out)
    assert not found["ok"]
    assert found["pages"] or found["damaged"] or found["differences"]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_no_call_ends_in_a_bare_exception(path: Path, damage: str) -> None:
    DAMAGE[damage](path)
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        queue = harn.worker_queue("q")
        for call in (
            lambda: runtime.event_log.read("worker.q"),
            lambda: runtime.event_log.head("news"),
            lambda: runtime.event_log.emit("news", "k", 1),
            lambda: runtime.service(Store).run(list_topics, write=False),
            lambda: queue.enqueue({"n": 7}),
            lambda: queue.claim_next("you"),
            queue.summary,
            harn.worker_queues,
        ):
            answers: list[Any] = await asyncio.gather(call(), return_exceptions=True)
            answer = answers[0]
            assert not isinstance(answer, Exception) or isinstance(answer, HarnError), answer


def test_an_export_leaves_out_what_cannot_be_read_and_says_so(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed(
        "UPDATE events SET payload = NULL"
        " WHERE id = 2 AND topic_id = (SELECT topic_id FROM topics WHERE name = 'news')"
    )(path)

    assert invoke(["log", "export", "out.jsonl", "--storage", f"sqlite:///{path}"]) == 1

    assert "left out: news record 2" in capfd.readouterr().err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines if line.get("topic") == "news"] == [1, 3]
    with pytest.raises(StorageCorrupt, match="record 2"):
        invoke_raising(["import", f"sqlite:///{path}", "--storage", "sqlite:///new.sqlite"])


def invoke_raising(argv: list[str]) -> None:
    from harn.cli.log_commands import log

    log.main(args=argv, standalone_mode=False)


async def test_a_job_whose_record_is_null_is_buried_and_the_rest_is_drained(path: Path) -> None:
    changed(
        "UPDATE events SET payload = NULL"
        " WHERE id = 4 AND topic_id = (SELECT topic_id FROM topics WHERE name = 'worker.q')"
    )(path)
    done: list[int] = []

    async def handler(job: harn.Job) -> None:
        done.append(job.payload["n"])

    async with Runtime(storage=f"sqlite:///{path}"):
        await harn.drain("q", handler)

    assert done == [4, 5]

"""How-to pages whose commands can be run here: they are, as they are written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import harn
from harn import worker_queue

DOCS = Path(__file__).parent.parent.parent / "docs"
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(page: str, *left_out: str) -> list[str]:
    text = (DOCS / "how-to" / f"{page}.md").read_text()
    lines = [line for block in SHELL.findall(text) for line in block.splitlines()]
    return [line for line in lines if not any(word in line for word in left_out)]


def run(line: str, place: Path, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HARN_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", line],
        cwd=place,
        env={**kept, "PATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_moving_from_sqlite_to_postgres_keeps_jobs_and_their_ids(
    tmp_path: Path, postgres_url: str
) -> None:
    async def fill() -> None:
        queue = worker_queue("triage")
        await queue.enqueue_many(range(5))
        claim = await queue.claim_next("worker")
        assert claim is not None
        await claim.ack()

    harn.run(fill, state_dir=tmp_path / ".harn")

    steps = commands("sqlite-to-postgres", "pip install", "serve", "export NEW")
    run("\n".join(steps), tmp_path, NEW=postgres_url)  # one shell: an export counts afterwards

    assert any("harn log import" in line for line in steps)
    told = json.loads(
        run(f"harn orchestrator queue ls --json --storage '{postgres_url}'", tmp_path)
    )
    [queue] = told["worker_queues"]
    assert (queue["ready"], queue["acked"]) == (4, 1)

    async def next_id() -> int:
        return (await worker_queue("triage").enqueue("one more")).job_id

    assert harn.run(next_id, storage=postgres_url) == 6


def test_what_to_do_when_a_queue_is_stuck_can_be_typed_as_it_stands(tmp_path: Path) -> None:
    async def fill() -> None:
        queue = worker_queue("triage")
        await queue.enqueue_many(range(17))
        dead = await queue.enqueue("dead", priority="high", max_attempts=1)
        assert dead.job_id == 18
        for claim in await queue.claim_many("worker", 2):
            await claim.fail("it broke")
        await queue.pause()
        await queue.pause(tenant_id="acme")

    harn.run(fill, state_dir=tmp_path / ".harn")
    (tmp_path / "harn.toml").write_text("")

    for line in commands("stuck-queue"):
        run(line, tmp_path)

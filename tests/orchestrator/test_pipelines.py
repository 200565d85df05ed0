"""Pools of a pipeline under the orchestrator: named after the manifest's directory, or by it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime, channel_emit, pool_get, runtime_context, trigger_fire, trigger_list
from harn.cli import invoke
from harn.orchestrator import ManifestProblems, Service, read_manifest
from tests.orchestrator.processes import ledger, serving, until

MANIFEST = '[exports]\nrecipe = "recipe.py"\n[orchestrator]\nsetup = "recipe::setup"\n'

WEBHOOKS = """
from harn import Backpressure, SpawnToPool, fair_round_robin, pool_create, trigger_register

done = []

async def setup():
    bp = Backpressure()
    await pool_create(
        name="webhook-work",
        max_concurrent=10,
        queue=fair_round_robin("source"),
        backpressure=bp.ring_buffer(500),
        scope="pipeline",
    )
    await trigger_register(
        id="webhook-router",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:webhook.received"]},
        handler=SpawnToPool(
            pool="webhook-work",
            key_from="provider_payload.payload.source",
            priority_from="provider_payload.payload.urgency",
            task_factory=task,
        ),
    )

def task(event):
    payload = event.provider_payload["payload"]
    return lambda: done.append(payload["source"])
"""
TENANTS = """
from harn import Backpressure, SpawnToPool, fair_round_robin, pool_create, trigger_register

done = []

async def setup():
    bp = Backpressure()
    await pool_create(
        name="tenant-agents",
        max_concurrent=20,
        queue=fair_round_robin("tenant_id"),
        backpressure=bp.queue(5000, "block_submitter"),
        scope="pipeline",
    )
    await trigger_register(
        id="tenant-agent-router",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:agent_task.requested"]},
        handler=SpawnToPool(
            pool="tenant-agents",
            key_from="provider_payload.payload.tenant_id",
            priority_from="provider_payload.payload.priority",
            task_factory=task,
        ),
    )

def task(event):
    request = event.provider_payload["payload"]
    return lambda: done.append(request["tenant_id"])
"""
REPORTS = """
from harn import Backpressure, fifo, pool_create, pool_get, trigger_register

done = []

async def setup():
    bp = Backpressure()
    await pool_create(
        name="nightly-reports",
        max_concurrent=3,
        queue=fifo(),
        backpressure=bp.queue(50000, "fail_submitter"),
        scope="pipeline",
    )
    await trigger_register(
        id="nightly-report-cron",
        kind="cron",
        provider="cron",
        match={"schedule": "0 2 * * *"},
        handler=fan_out,
    )

async def fan_out(event):
    pool = pool_get("nightly-reports")
    for customer in ("acme", "globex"):
        key = f"{event.occurred_at_date}:{customer}"
        await pool.submit(lambda customer=customer: done.append(customer), idempotency_key=key)
"""
RECIPES = {"webhook-work": WEBHOOKS, "tenant-agents": TENANTS, "nightly-reports": REPORTS}


def write(tmp_path: Path, recipe: str, more: str = "") -> Path:
    place = tmp_path / "my pipeline"
    place.mkdir()
    (place / "harn.toml").write_text(MANIFEST + more)
    (place / "recipe.py").write_text(recipe)
    return place


@pytest.mark.parametrize("pool", RECIPES)
def test_a_recipe_of_the_cookbook_starts_under_serve_as_it_stands(
    tmp_path: Path, pool: str
) -> None:
    place = write(tmp_path, RECIPES[pool])

    with serving(place, "--no-http") as process:
        process.reports("ready")
        process.signal(signal.SIGTERM)

        assert process.ends() == 0
    # Everything but letters, digits, dot and dash is encoded: the name of a file is exact.
    assert [each.name for each in (place / "state/pools").glob("*.jsonl")] == [
        f"my%20pipeline__{pool}.jsonl"
    ]


async def settled(pool_name: str) -> Any:
    pool = pool_get(pool_name)
    assert pool is not None
    for task in list(pool._slots.pending()):
        await task.wait()
    return pool


@pytest.mark.parametrize(
    ("name", "channel", "payload"),
    [
        ("webhook-work", "webhook.received", {"source": "github", "urgency": 1}),
        ("tenant-agents", "agent_task.requested", {"tenant_id": "acme", "priority": 2}),
    ],
)
async def test_what_a_recipe_registers_stays_in_force_and_works(
    tmp_path: Path, name: str, channel: str, payload: dict[str, Any]
) -> None:
    place = write(tmp_path, RECIPES[name])

    async with Runtime(state_dir=place / "state") as runtime:
        service = Service(runtime, place / "harn.toml")
        await service.start()
        await service.reload()
        await channel_emit(channel, payload)
        pool = await settled(name)

        assert [task.status for task in pool.snapshot().tasks] == ["completed"]
        assert pool.snapshot().scope_id == "my pipeline"


async def test_the_burst_absorber_runs_once_for_each_customer(tmp_path: Path) -> None:
    place = write(tmp_path, REPORTS)

    async with Runtime(state_dir=place / "state") as runtime:
        await Service(runtime, place / "harn.toml").start()
        assert [each.id for each in trigger_list()] == ["nightly-report-cron"]
        for _ in range(2):
            await trigger_fire("nightly-report-cron", None, occurred_at_date="2026-01-02")
        pool = await settled("nightly-reports")

        assert [task.status for task in pool.snapshot().tasks] == ["completed"] * 2


async def test_the_manifest_names_the_pipeline_for_its_handlers(tmp_path: Path) -> None:
    place = write(tmp_path, "def setup():\n    pass\n", 'pipeline = "nightly"\n')

    async with Runtime() as runtime:
        await Service(runtime, place / "harn.toml").start(consume=False)

        assert runtime_context().pipeline_id == "nightly"
    async with Runtime(pipeline_id="given") as runtime:
        (place / "harn.toml").write_text(MANIFEST)
        await Service(runtime, place / "harn.toml").start(consume=False)

        assert runtime_context().pipeline_id == "given"


@pytest.mark.parametrize("name", ['""', '" a"', '"a\\n"', '"\\u007f"', "7", f'"{"x" * 129}"'])
def test_a_bad_name_of_a_pipeline_is_a_mistake_with_its_line(tmp_path: Path, name: str) -> None:
    place = write(tmp_path, "", f"pipeline = {name}\n")

    with pytest.raises(ManifestProblems, match=r"harn.toml:5: orchestrator.pipeline: ") as caught:
        read_manifest(place / "harn.toml")

    assert len(caught.value.problems) == 1


def test_a_directory_stands_for_the_manifest_in_it(tmp_path: Path) -> None:
    place = write(tmp_path, "def setup():\n    return 7\n")

    manifest = read_manifest(place)

    assert manifest.resolver().resolve("recipe::setup")() == 7
    assert manifest.pipeline_id == "my pipeline"


BACKLOG = """
import asyncio, os, pathlib
import harn

HERE = pathlib.Path(__file__).parent

async def setup():
    await harn.pool_create(name="work", scope="pipeline", max_concurrent=2)
    if not (HERE / "ledger").exists():
        for n in range(6):
            await harn.pool_get("work").submit(work, n)
        (HERE / "submitted").touch()

def write(line):
    with open(HERE / "ledger", "a") as file:
        file.write(line + chr(10))

@harn.durable(rerun=True)
async def work(n):
    write(f"{os.environ['RUN']} began {n}")
    while n != "mine" and not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    write(f"{os.environ['RUN']} ended {n}")

async def submit(event):
    await harn.pool_get("work").submit(work, "mine")
"""
BACKLOG_TRIGGERS = """
[serve]
queues = []
[[triggers]]
id = "mine"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:mine"] }
handler = "recipe::submit"
"""


def test_a_command_leaves_the_backlog_of_a_killed_service_to_the_next_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = write(tmp_path, BACKLOG, BACKLOG_TRIGGERS)
    with serving(place, "--no-http", env={"RUN": "killed"}) as process:
        until(lambda: len(ledger(place)) == 2 and (place / "submitted").exists())
        process.signal(signal.SIGKILL)
        process.ends()
    (place / "ledger").write_text("")

    monkeypatch.chdir(place)
    monkeypatch.setenv("RUN", "command")
    command = ("--state-dir", "state", "--json")
    assert invoke(["orchestrator", "fire", "mine", *command]) == 0
    event = json.loads(capfd.readouterr().out)["event_id"]
    assert invoke(["orchestrator", "replay", event, *command]) == 0
    assert invoke(["orchestrator", "queue", "drain", "jobs", *command]) == 0
    assert ledger(place) == ["command began mine", "command ended mine"] * 2

    (place / "go").touch()
    with serving(place, "--no-http", env={"RUN": "next"}):
        until(lambda: len(ledger(place)) == 4 + 12)
    ended = [line for line in ledger(place)[4:] if "ended" in line]
    assert sorted(ended) == [f"next ended {n}" for n in range(6)]

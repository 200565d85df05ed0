"""Two hundred agents of five tenants, two processes, one budget.

    python examples/agents_in_budget.py

Look at the last lines: the provider itself counts what arrives in any minute, and never sees more
than its limit although two processes share it; nearly all of the budget is used; and in each
process the tenants take turns, whoever submitted first. It takes a little over a minute, because
that is how long a minute's budget lasts. Ctrl-C at any time leaves nothing running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter

import harn
from harn import agent_loop, fair_round_robin, llm_provider, llm_rate_limit, pool_create, pool_wait
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing.models import FakeModels, Say

TENANTS = ("ash", "birch", "cedar", "dogwood", "elm")
PROCESSES = 2
USED = (24, 8)  # tokens that the provider counts for each call


def lookup(word: str) -> str:
    """Look a word up."""
    return f"{word}: a tree"


def answer(body: dict) -> Say:
    """What the provider says: first a tool call, then the answer."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return Say("It is a tree.", usage=USED)
    return Say(tool_calls=[("lookup", {"word": "ash"})], usage=USED)


async def work(url: str, agents: int, rpm: int) -> None:
    """One process: a pool, and the agents of every tenant in it."""
    client = OpenAICompatible("fake", url, Secret("not-a-real-key"))
    llm_provider("fake", client, default_model="small")
    llm_rate_limit("fake", rpm=rpm, tpm=rpm * sum(USED) * 2)
    harn.defer(client.aclose)
    started: list[str] = []

    async def agent(tenant: str) -> str:
        started.append(tenant)
        return (await agent_loop(f"What is an {tenant}?", tools=[lookup], max_tokens=32)).text

    async with await pool_create(
        name="agents", max_concurrent=10, queue=fair_round_robin("tenant_id")
    ) as pool:
        tasks = [  # the first tenant submits all of its work before the second one comes
            await pool.submit(lambda tenant=tenant: agent(tenant), tenant_id=tenant)
            for tenant in TENANTS
            for _ in range(agents // len(TENANTS))
        ]
        everyone_here = pool.snapshot(tasks=False).active  # these had slots before the others came
        outcomes = await pool_wait(tasks)
    failed = [outcome.error for outcome in outcomes if outcome.status != "completed"]
    gap = widest_gap(started[everyone_here:])
    print(json.dumps({"gap": gap, "failed": failed[:3], "agents": len(outcomes)}))


def widest_gap(started: list[str]) -> int:
    """How far two tenants ever were apart in starts, while all of them had work waiting."""
    left = Counter(started)
    counts = Counter(dict.fromkeys(TENANTS, 0))
    widest = 0
    for tenant in started:
        counts[tenant] += 1
        widest = max(widest, max(counts.values()) - min(counts.values()))
        if counts[tenant] == left[tenant]:
            break  # this tenant has nothing more: the others rightly go on without it
    return widest


async def run_worker(command: list[str], environ: dict[str, str]) -> dict:
    """One worker process, from its start to its report; cancelled, it takes the process along."""
    worker = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await worker.communicate()
    finally:
        if worker.returncode is None:
            worker.terminate()
            await worker.wait()
    return json.loads(output)


async def main(agents: int, rpm: int) -> int:
    """Start the provider and the processes, wait, and tell what the provider saw."""
    with tempfile.TemporaryDirectory() as state:
        async with FakeModels(answer) as models:
            environ = {**os.environ, "HARN_STATE_DIR": state}
            command = [sys.executable, __file__, "--worker", models.openai_url]
            numbers = ["--agents", str(agents // PROCESSES), "--rpm", str(rpm)]

            async def worker(_: int) -> dict:
                return await run_worker([*command, *numbers], environ)

            reports = await harn.parallel(PROCESSES, worker)
            requests, _ = models.busiest(59.5)  # half a second for the way to the provider
    summary = {
        "agents": sum(report["agents"] for report in reports),
        "failed": [error for report in reports for error in report["failed"]],
        "calls": len(models.received),
        "rpm": rpm,
        "busiest_minute": requests,
        "used": round(min(requests, rpm) / min(rpm, len(models.received)), 3),
        "over_limit": requests > rpm,
        "widest_gap_between_tenants": max(report["gap"] for report in reports),
    }
    print(json.dumps(summary, indent=2))
    return 1 if summary["over_limit"] or summary["failed"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--rpm", type=int, default=300)
    options = parser.parse_args()
    if options.worker:
        harn.run(work, options.worker, options.agents, options.rpm)
    else:
        sys.exit(harn.run(main, options.agents, options.rpm))

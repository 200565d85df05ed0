"""Two hundred agents of five tenants, two processes, one budget.

    python examples/agents_in_budget.py

Look at the last lines: the provider itself counts the requests that arrive in any sixty seconds,
and their tokens, and never sees more than its limits although two processes share them; in its
busiest minute nearly all of both is used; and in each process the tenants take turns, in whatever
order they submitted. It takes a little over a minute, because that is how long a minute's budget
lasts. Ctrl-C at any time leaves nothing running.
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
from harn.testing.fake_provider import FakeModels, Say

TENANTS = ("ash", "birch", "cedar", "dogwood", "elm")
PROCESSES = 2
ASKED, ANSWERED = (24, 8), (36, 12)  # tokens that the provider counts for an agent's two calls
TOKENS = (sum(ASKED) + sum(ANSWERED)) // 2  # of a call: both limits are reached together


def lookup(word: str) -> str:
    """Look a word up."""
    return f"{word}: a tree"


def answer(body: dict) -> Say:
    """What the provider says: first a tool call, then the answer."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return Say("It is a tree.", usage=ANSWERED)
    return Say(tool_calls=[("lookup", {"word": "ash"})], usage=ASKED)


async def work(url: str, agents: int, rpm: int) -> None:
    """One process: a pool, and the agents of every tenant in it."""
    client = OpenAICompatible("fake", url, Secret("not-a-real-key"))
    llm_provider("fake", client, default_model="small")
    llm_rate_limit("fake", rpm=rpm, tpm=rpm * TOKENS)
    harn.defer(client.aclose)
    started: list[str] = []

    async def agent(tenant: str) -> str:
        started.append(tenant)
        return (await agent_loop(f"What is an {tenant}?", tools=[lookup], max_tokens=32)).text

    async with await pool_create(
        name="agents", max_concurrent=10, queue=fair_round_robin("tenant_id")
    ) as pool:
        tasks = [  # the first tenant submits all of its work before the second one comes
            await pool.submit(agent, tenant, tenant_id=tenant)
            for tenant in TENANTS
            for _ in range(agents // len(TENANTS))
        ]
        first_active = pool.snapshot(tasks=False).active  # these had slots before the others came
        outcomes = await pool_wait(tasks)
    failed = [outcome.error for outcome in outcomes if outcome.status != "completed"]
    gap = widest_gap(started[first_active:])
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

            async with harn.scope() as nursery:
                showing = nursery.spawn(show_progress, models, agents)
                reports = await harn.parallel(PROCESSES, worker)
                showing.cancel()
    summary = {
        "agents": sum(report["agents"] for report in reports),
        "failed": [error for report in reports for error in report["failed"]],
        **what_arrived(models, {"requests": rpm, "tokens": rpm * TOKENS}),
        "widest_gap_between_tenants": max(report["gap"] for report in reports),
    }
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(json.dumps(summary, indent=2))
    return 1 if summary["over_limit"] or summary["failed"] else 0


async def show_progress(models: FakeModels, agents: int) -> None:
    """Count the requests on a terminal, where a minute without a word is long."""
    while sys.stderr.isatty():
        arrived = f"{len(models.received)} of {agents * 2} requests have arrived"
        print(f"\r{arrived}", end="", file=sys.stderr, flush=True)
        await harn.sleep("500ms")


def what_arrived(models: FakeModels, limits: dict[str, int]) -> dict:
    """Hold what the provider saw against its limits: no sixty seconds may have more."""
    total = {
        "requests": len(models.received),
        "tokens": sum(each.tokens for each in models.received),
    }
    busiest = dict(zip(limits, models.busiest(60.0), strict=True))
    return {
        "arrived": total,
        "limits": limits,
        "busiest_minute": busiest,
        "used": {  # of what that minute could have had
            name: round(busiest[name] / max(1, min(limit, total[name])), 3)
            for name, limit in limits.items()
        },
        "over_limit": any(busiest[name] > limit for name, limit in limits.items()),
    }


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

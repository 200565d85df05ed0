"""The second half of `harn demo`: a durable queue, two tenants 3:1, and a worker that is killed.

Run as a module it is one of the workers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

from harn.cli.progress import bar, live_line
from harn.plurals import counted

WEIGHTS = {"acme": 3, "bob": 1}
JOBS = 80
"""Jobs of each tenant."""
LOOKED_AT = 80
"""The first claims, whose shares are compared with the weights: both tenants have jobs then."""
LIFE = "1500ms"
KILL_AFTER = 10
"""Jobs that the worker finishes before it is killed."""


async def play() -> dict[str, Any]:
    """Enqueue, start two workers, kill one in the middle of its work, and read the log."""
    import harn

    with tempfile.TemporaryDirectory(prefix="harn-demo-") as home:
        url = f"sqlite:///{home}/events.sqlite"
        async with harn.Runtime(storage=url):
            queue = harn.worker_queue("reviews", _policy())
            await queue.enqueue_many(
                [harn.NewJob(n, tenant_id=t) for n in range(JOBS) for t in WEIGHTS]
            )
            doomed, other = _worker(url, "doomed"), _worker(url, "other")
            try:
                await _until_at_work("doomed")
                doomed.kill()
                await _until_empty()
            finally:
                for each in (doomed, other):
                    each.kill()
                    each.wait()
            return await _read_log()


def _policy() -> Any:
    from harn import SchedulerPolicy

    return SchedulerPolicy(strategy="drr", weights=dict(WEIGHTS))


def _worker(url: str, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "harn.cli.demo.queue_act", url, name]
    # In its own session: Ctrl-C at a terminal reaches only this process, which ends the worker.
    return subprocess.Popen(command, start_new_session=True)  # noqa: S603 - our own module


async def _until_at_work(consumer: str) -> None:
    """Wait until *consumer* has finished some jobs and has claimed others."""
    import harn

    while True:
        seen = Counter(
            event.kind
            for event in await harn.event_log_read("worker.reviews.claims")
            if event.payload.get("consumer_id") == consumer
        )
        live_line.show(f"two workers: {bar(seen['job_acked'], KILL_AFTER)} before one is killed")
        if seen["job_acked"] >= KILL_AFTER and seen["job_claimed"] > seen["job_acked"]:
            return
        await harn.sleep("10ms")


async def _until_empty() -> None:
    import harn

    queue = harn.worker_queue("reviews", _policy())
    while True:
        summary = await queue.summary()
        live_line.show(f"the other worker takes over: {bar(summary.acked, len(WEIGHTS) * JOBS)}")
        if not summary.ready + summary.in_flight + summary.scheduled:
            live_line.end()
            return
        await harn.sleep("50ms")


async def _read_log() -> dict[str, Any]:
    """Return what happened, read from the log alone."""
    from harn import event_log_read

    tenants = {e.id: e.payload["tenant_id"] for e in await event_log_read("worker.reviews")}
    claims = await event_log_read("worker.reviews.claims")
    claimed = [e.payload for e in claims if e.kind == "job_claimed"]
    first = [each for each in claimed if each["attempt"] == 1][:LOOKED_AT]
    served = Counter(tenants[each["job_event_id"]] for each in first)
    acked = Counter(e.payload["job_event_id"] for e in claims if e.kind == "job_acked")
    total = sum(WEIGHTS.values())
    return {
        "jobs": len(tenants),
        "acked_once": sum(count == 1 for count in acked.values()),
        "acked_twice": sum(count > 1 for count in acked.values()),
        "lost": len(tenants) - len(acked),
        "taken_over": sum(each["attempt"] > 1 for each in claimed),
        "shares": [
            {
                "tenant": tenant,
                "weight": weight,
                "promised": weight / total,
                "served": served[tenant] / len(first),
            }
            for tenant, weight in WEIGHTS.items()
        ],
    }


def render(act: dict[str, Any]) -> str:
    """Return the result in a few lines."""
    from harn.cli.tables import table

    rows = [
        [each["tenant"], each["weight"], f"{each['promised']:.0%}", f"{each['served']:.0%}"]
        for each in act["shares"]
    ]
    return "\n".join(
        [
            f"A durable queue of {act['jobs']} jobs, two workers, one of them killed (SIGKILL) in "
            "the middle of its work.",
            "",
            table(["tenant", "weight", "promised", "served"], rows),
            "",
            f"{act['acked_once']} jobs done once, {act['acked_twice']} twice, {act['lost']} lost; "
            f"{counted(act['taken_over'], 'job')} taken over from the dead worker.",
        ]
    )


def main() -> None:
    """Work until killed."""
    import harn

    url, name = sys.argv[1:]

    async def handler(job: harn.Job) -> None:
        await harn.sleep("40ms")

    async def work() -> None:
        await harn.drain(
            "reviews",
            handler,
            consumer_id=name,
            claim_ttl=LIFE,
            concurrency=3,
            stop_when_empty=False,
            policy=_policy(),
        )

    harn.run(work, storage=url)


if __name__ == "__main__":
    main()

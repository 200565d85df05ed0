"""A producer or a consumer of the crash tests, as a process of its own.

Everything it does goes to a private ledger first and last, with `O_APPEND` and fsync, so that the
checker never has to ask the system under test what happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import harn
from harn import Job, NewJob, SchedulerPolicy, drain, worker_queue

POLICY = SchedulerPolicy(strategy="drr", weights={"t0": 3})


class Ledger:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, **line: object) -> None:
        text = json.dumps({**line, "pid": os.getpid(), "t": time.monotonic()})
        os.write(self._fd, text.encode() + b"\n")
        os.fsync(self._fd)


async def produce(ledger: Ledger, name: str, jobs: int, batch: int) -> None:
    queue = worker_queue("q", POLICY)
    for start in range(0, jobs, batch):
        keys = [f"{name}-{n}" for n in range(start, min(start + batch, jobs))]
        items = [
            NewJob({"key": key}, tenant_id=f"t{n % 3}", dedupe_key=key, max_attempts=0)
            for n, key in enumerate(keys)
        ]
        receipts = await queue.enqueue_many(items)
        ledger.note(phase="acked", keys=keys, jobs=[each.job_id for each in receipts])


async def consume(ledger: Ledger, ttl: str, concurrency: int) -> None:
    async def handler(job: Job) -> str:
        ledger.note(phase="start", job=job.id, attempt=job.attempts)
        await asyncio.sleep(0.002)
        ledger.note(phase="end", job=job.id, attempt=job.attempts)
        return str(job.payload["key"])

    await drain(
        "q",
        handler,
        claim_ttl=ttl,
        concurrency=concurrency,
        stop_when_empty=False,
        policy=POLICY,
    )


async def freeze(ledger: Ledger, ttl: str) -> None:
    """Claim one job, say so, wait to be stopped and woken, then try to ack."""
    claim = await worker_queue("q", POLICY).claim_next(f"zombie-{os.getpid()}", ttl=ttl)
    assert claim is not None
    ledger.note(phase="held", job=claim.job.id)
    sys.stdin.readline()
    try:
        done: object = await claim.ack("late")
    except harn.ClaimLost:
        done = "lost"
    ledger.note(phase="woken", job=claim.job.id, acked=done)


def main() -> None:
    role, url, path, *rest = sys.argv[1:]
    ledger = Ledger(path)
    if role == "produce":
        harn.run(produce, ledger, rest[0], int(rest[1]), int(rest[2]), storage=url)
    elif role == "consume":
        harn.run(consume, ledger, rest[0], int(rest[1]), storage=url)
    else:
        harn.run(freeze, ledger, rest[0], storage=url)


if __name__ == "__main__":
    main()

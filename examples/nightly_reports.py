"""Thousands of reports at two in the morning, three at a time, each one once.

    python examples/nightly_reports.py

The night passes in virtual time. In the middle of it the process is killed and a new one takes
over: the reports that were queued go on, those that were being made are made again, and none is
made for the same customer and date after it is done.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import harn
from harn import (
    Backpressure,
    Runtime,
    TriggerEvent,
    durable,
    fifo,
    pool_create,
    pool_get,
    trigger_register,
)
from harn.testing import FakeClock

MIDNIGHT = "2026-01-01T00:00:00Z"


@durable(name="nightly_reports:generate_report", rerun=True)
async def generate_report(customer: str, date: str) -> str:
    """Make a report: a slow call to another company's API, then an upload."""
    await harn.sleep("2m")
    upload(customer, date)
    return f"report of {date} for {customer}"


def upload(customer: str, date: str) -> None:
    """Note the report where it can be counted."""
    with open(Path(os.environ["REPORTS"]) / "uploads", "a") as uploads:
        uploads.write(f"{date}:{customer}\n")


async def setup(customers: int) -> None:
    """Make the pool, whose queue survives a restart, and the nightly trigger."""
    await pool_create(
        name="nightly-reports",
        max_concurrent=3,
        queue=fifo(),
        backpressure=Backpressure().queue(50_000, "fail_submitter"),
        scope="pipeline",
        pipeline_id="nightly",
    )

    async def fan_out(event: TriggerEvent) -> int:
        pool = pool_get("nightly-reports", required=True)
        for n in range(customers):
            date = event.occurred_at_date
            await pool.submit(
                partial(generate_report, f"customer-{n}", date),
                idempotency_key=f"{date}:customer-{n}",
            )
        return customers

    await trigger_register(
        id="nightly-report-cron",
        kind="cron",
        provider="cron",
        match={"schedule": "0 2 * * *", "catchup_mode": "latest"},
        handler=fan_out,
    )


async def night(state_dir: str, start: str, hours: float) -> None:
    """Live through *hours* of the night, from *start*."""
    clock = FakeClock(start)
    async with Runtime(state_dir=state_dir, clock=clock):
        await setup(int(os.environ.get("CUSTOMERS", "60")))
        await clock.advance(hours=hours)
        if start == MIDNIGHT:
            os._exit(9)  # a quarter past two, the power fails


def main(state_dir: str) -> Counter[str]:
    """Run the night in two processes, one after the other; return how often each was made."""
    print("the night begins, in a process of its own", flush=True)
    first = [sys.executable, __file__, state_dir]
    killed = subprocess.run(first, env={**os.environ, "REPORTS": state_dir})  # noqa: S603
    assert killed.returncode == 9
    os.environ["REPORTS"] = state_dir
    half = len(made(state_dir))
    print(f"the plug was pulled after {half} reports; another process takes over", flush=True)
    asyncio.run(night(state_dir, "2026-01-01T02:15:00Z", hours=4))
    print(f"{half} reports before the plug was pulled, {len(made(state_dir))} in the morning")
    return made(state_dir)


def made(state_dir: str) -> Counter[str]:
    """Count the uploads, by date and customer."""
    path = Path(state_dir) / "uploads"
    return Counter(path.read_text().split()) if path.exists() else Counter()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(night(sys.argv[1], MIDNIGHT, hours=2.25))
    else:
        with tempfile.TemporaryDirectory() as directory:
            counts = main(directory)
        most = max(counts.values())
        print("each of them was made once" if most == 1 else f"one was made {most} times")

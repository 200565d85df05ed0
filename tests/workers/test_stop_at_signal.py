"""A consumer's process gets a signal: its jobs can be claimed by another process at once."""

from __future__ import annotations

import signal

import pytest

import harn
from tests.signalled import program

CONSUMER = """
import asyncio, sys, time
import harn

def begin():
    print("ready", flush=True)

async def waits(job):
    begin()
    await harn.sleep("1h")

async def ignores(job):
    begin()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def blocks(job):
    begin()
    while True:  # in steps: a signal just before a long sleep would not end it
        time.sleep(0.05)

def thread(job):
    begin()
    time.sleep(3600)

async def process(job):
    await harn.spawn(time.sleep, 3600, isolation="process")

async def main():
    queue = harn.worker_queue("q")
    await queue.enqueue(1)
    if sys.argv[2] == "process":
        asyncio.get_running_loop().call_later(0.3, begin)
    await harn.drain("q", globals()[sys.argv[2]], claim_ttl="1h", consumer_id="a")

harn.run(main, storage=sys.argv[1], shutdown_timeout="500ms")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", ["waits", "ignores", "blocks", "thread", "process"])
def test_65_claims_are_released_before_the_exit(
    handler: str, number: int, lasting_url: str
) -> None:
    with program(CONSUMER, lasting_url, handler) as running:
        running.reports("ready")
        running.signal(number)
        ended = running.ends()

    async def take() -> tuple[int, int]:
        claim = await harn.worker_queue("q").claim_next("b")
        assert claim is not None
        return claim.job.payload, claim.attempt

    assert ended.code in (128 + number, -signal.SIGINT)
    if number == signal.SIGTERM:
        assert "Traceback" not in ended.err
    assert harn.run(take, storage=lasting_url) == (1, 1)

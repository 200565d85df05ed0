"""An agent that is killed in its fourth model call, and continues with the first three answers.

    python examples/resumable_agent.py

Look at the printed summary: the provider itself counts its calls. The first three were made once,
although two processes worked on the job; the fourth was under way when its process was killed, so
it was made again. It takes about ten seconds, most of them until the dead worker's lease
expires. Nothing is left running.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import harn
from harn import agent_loop, drain, durable, llm_provider, worker_queue
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing.fake_provider import FakeModels, Say, Slow

PAGES = 5
KILLED_IN = 4  # the model call in which the first worker is killed


@durable(name="examples:research")
async def research(question: str, notes: str) -> dict:
    """Let an agent read pages until it can answer; *notes* is a file that lists what it read."""

    def read_page(number: int) -> str:
        """Read a page."""
        with open(notes, "a") as file:
            print(number, file=file)
        return f"the text of page {number}"

    result = await agent_loop(question, tools=[read_page])
    return {"text": result.text, "tokens": result.usage.total_tokens}


async def work(url: str, state_dir: str) -> None:
    """Be a worker: run the jobs of the queue until this process is stopped."""
    async with harn.Runtime(state_dir=state_dir):
        client = OpenAICompatible("fake", url, Secret("not-a-real-key"))
        llm_provider("fake", client, default_model="small")
        await drain("research", stop_when_empty=False)


class Provider:
    """Says which page to read next. The first time it gets the fourth call, it does not answer."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.is_held = asyncio.Event()

    def answer(self, body: dict) -> Say | Slow:
        """Answer a call, known by the number of pages that were read before it."""
        call = 1 + sum(message["role"] == "tool" for message in body["messages"])
        self.calls[call] += 1
        if call > PAGES:
            return Say("The answer is on page five.", usage=(100, 10))
        page = Say(tool_calls=[("read_page", {"number": call})], usage=(100, 10))
        if call == KILLED_IN and not self.is_held.is_set():
            self.is_held.set()
            return Slow(600, page)
        return page


async def start_worker(url: str, state_dir: str) -> asyncio.subprocess.Process:
    """Start a worker whose death is noticed after five seconds, not fifteen."""
    environ = {**os.environ, "HARN_LEASE_MS": "5000", "HARN_LEASE_RENEW_MS": "1000"}
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--worker", url, state_dir, env=environ
    )


async def main() -> None:
    """Kill the first worker in the fourth call, and let another one finish the job."""
    provider = Provider()
    with tempfile.TemporaryDirectory() as place:
        state_dir, notes = f"{place}/state", Path(place, "notes")
        async with FakeModels(provider.answer) as models, harn.Runtime(state_dir=state_dir):
            url = models.openai_url
            receipt = await worker_queue("research").submit(research, "where is it?", str(notes))
            first = await start_worker(url, state_dir)
            await provider.is_held.wait()
            first.kill()
            await first.wait()

            second = await start_worker(url, state_dir)
            try:
                outcome = await receipt.result(timeout="2m")
            finally:
                second.terminate()
                await second.wait()
            steps = [step.name for step in (await receipt.state()).steps]
            pages = sorted(map(int, notes.read_text().split()))
    print(json.dumps({**outcome, "calls": provider.calls, "pages": pages, "steps": steps}))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        harn.run(work, *sys.argv[2:])
    else:
        asyncio.run(main())

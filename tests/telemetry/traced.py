"""A program that is traced with the real SDK: `python traced.py ROLE OTLP_URL STATE_DIR`."""

from __future__ import annotations

import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import harn
from harn import Job, drain, llm_call, llm_provider, worker_queue
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing.models import FakeModels, Say


async def ask() -> str:
    async with FakeModels(lambda body: Say("yes", usage=(3, 1))) as models:
        client = OpenAICompatible("fake", models.openai_url, Secret("not-a-real-key"))
        llm_provider("fake", client, default_model="small")
        try:
            return (await llm_call("Is it?", provider="fake", max_tokens=8)).text
        finally:
            await client.aclose()


async def produce() -> None:
    """A webhook comes in and becomes a job."""
    with trace.get_tracer("app").start_as_current_span("webhook"):
        await worker_queue("triage").enqueue({"pr": 1984})


async def consume() -> None:
    """Another process works it off, and asks a model."""

    async def handler(job: Job) -> str:
        return await ask()

    report = await drain("triage", handler)
    assert report.acked == 1, report.responses


async def in_process() -> None:
    """A webhook to a trigger, to a pool, to a model."""
    await harn.pool_create(name="work")
    await harn.trigger_register(
        id="router",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:asked"]},
        handler=harn.SpawnToPool(pool="work", task_factory=lambda event: ask),
    )
    with trace.get_tracer("app").start_as_current_span("webhook"):
        receipt = await harn.channel_emit("asked", {})
        outcome = await harn.pool_wait(receipt.dispatched[0].result)
        assert outcome.result == "yes", outcome


if __name__ == "__main__":
    role, url, state_dir = sys.argv[1:]
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    trace.set_tracer_provider(provider)
    roles = {"produce": produce, "consume": consume, "in_process": in_process}
    harn.run(roles[role], state_dir=state_dir)
    provider.shutdown()

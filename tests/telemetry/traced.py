"""A program that is traced with the real SDK: `python traced.py ROLE OTLP_URL STATE_DIR`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import harn
from harn import Job, drain, llm_call, llm_provider, worker_queue
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing.fake_provider import FakeModels, Say
from harn.triggers import Triggers


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
        handle = await receipt.dispatched[0].wait()
        outcome = await harn.pool_wait(handle.result)
        assert outcome.result == "yes", outcome


async def register(handler: Any, **flow: Any) -> None:
    await harn.trigger_register(
        id="router",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:asked"]},
        handler=handler,
        **flow,
    )


async def failing() -> None:
    """A handler that fails, for an event that comes outside any span."""

    async def handler(event: Any) -> None:
        raise ValueError("no luck")

    await register(handler, retry={"max": 1})
    receipt = await harn.channel_emit("asked", {})
    handle = await receipt.dispatched[0].wait()
    assert handle.status == "dlq", handle


async def accept() -> None:
    """An event is taken in, and the process ends before its handler does."""

    async def handler(event: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    begun = asyncio.Event()
    await register(handler)
    await harn.channel_emit("asked", {})
    await begun.wait()


async def take_over() -> None:
    """Another process finds the event and dispatches it."""

    async def handler(event: Any) -> None:
        done.set()

    done = asyncio.Event()
    await register(handler)
    await done.wait()
    await harn.current_runtime().service(Triggers).dispatcher.idle()


if __name__ == "__main__":
    role, url, state_dir = sys.argv[1:]
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    trace.set_tracer_provider(provider)
    harn.run(globals()[role], state_dir=state_dir)
    provider.shutdown()

"""Every webhook goes to one channel, and from there into one pool that is fair to all senders.

The pool runs ten at a time and keeps the newest five hundred; a sender of a burst cannot starve the
others. The sender's name is the trigger that proved who sent it, never something in the body.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from harn import (
    Backpressure,
    SpawnToPool,
    TriggerEvent,
    channel_emit,
    durable,
    fair_round_robin,
    pool_create,
)


async def setup() -> None:
    """Make the pool before the triggers start; queued work of an earlier run goes on."""
    await pool_create(
        name="webhook-work",
        max_concurrent=10,
        queue=fair_round_robin("source"),
        backpressure=Backpressure().ring_buffer(500),
        scope="pipeline",
        pipeline_id="webhooks",
    )


async def received(event: TriggerEvent) -> str:
    """Pass a proven webhook on to the channel, once for each delivery."""
    payload = {
        "source": event.provider,
        "urgency": event.get("provider_payload.payload.urgency", 0),
        "body": event.get("provider_payload.payload"),
    }
    receipt = await channel_emit("webhook.received", payload, id=event.id)
    return receipt.event_id


@durable(name="webhook_processor:process_webhook", rerun=True)
def process_webhook(payload: dict[str, Any]) -> str:
    """Do the work. Running it twice for the same body must be harmless: it may happen."""
    line = json.dumps({"source": payload["source"], "n": payload["body"].get("n")})
    with open(Path(os.environ.get("WEBHOOK_LEDGER", "processed.jsonl")), "a") as ledger:
        ledger.write(line + "\n")
    return payload["source"]


def make_task(event: TriggerEvent) -> Any:
    """Make the closure that the pool runs for one event."""
    return partial(process_webhook, event.provider_payload["payload"])


router = SpawnToPool(
    pool="webhook-work",
    key_from="provider_payload.payload.source",
    priority_from="provider_payload.payload.urgency",
    task_factory=make_task,
)

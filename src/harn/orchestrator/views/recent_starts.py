"""The pace at which a queue's jobs were started lately, read from its log."""

from __future__ import annotations

from collections import Counter
from typing import Any

from harn.orchestrator.views.predicted_start import Pace
from harn.runtime import Runtime
from harn.storage import Event, Store
from harn.storage.log import newest
from harn.topics import queue_topics

LOOKED_AT = 500
"""The newest records of a queue's claims that are read."""
RECENT_MS = 600_000


async def recent_starts(runtime: Runtime, queue: str) -> Pace:
    """Count the jobs that were claimed lately. Cancelling leaves nothing behind."""
    topic = queue_topics(queue).claims
    found = await runtime.service(Store).run(lambda: newest(topic, LOOKED_AT), write=False)
    return pace_of(found, runtime.clock.now_ms())


def pace_of(records: list[Event], now: int) -> Pace:
    """Return the pace of the claims in *records* that are not older than ten minutes."""
    claims = [each for each in records if each.kind == "job_claimed"]
    recent = [each for each in claims if each.occurred_at_ms > now - RECENT_MS]
    if not recent:
        return Pace(RECENT_MS if claims else 0)
    keys = Counter(_key(each.payload) for each in recent)
    # With older records left out, the time since the oldest is what these were started in.
    whole = len(recent) < len(claims)
    since = now - RECENT_MS if whole else recent[0].occurred_at_ms
    return Pace(max(1000, now - since), len(recent), keys)


def _key(claim: Any) -> str:
    scheduling = claim.get("scheduling") if isinstance(claim, dict) else None
    return str(scheduling.get("key")) if isinstance(scheduling, dict) else ""

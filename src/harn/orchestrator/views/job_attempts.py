"""The attempts at one job: when each began and ended, how, and which consumer made it.

A job's row keeps when its failed attempts ended. The response of each, which the row does not name,
has the rest: it is found by its time, because the records of a topic are in the order of time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from harn.clock import iso
from harn.runtime import Runtime
from harn.storage import Operation, Store, decode
from harn.storage.log import head, read
from harn.storage.queue import JobView, stored_jobs
from harn.topics import queue_topics

PAGE = 200
"""Records that are read at once where an attempt's response must be."""
MOST_FOUND = 8
"""The newest failed attempts whose responses are looked for."""


async def attempts_of(runtime: Runtime, queue: str, view: JobView) -> list[dict[str, Any]]:
    """Return the attempts at a job, oldest first. Cancelling leaves nothing behind."""
    kept = decode(view.history.encode()) if view.history else []
    found = [_entry(each) for each in kept]
    topic = queue_topics(queue).responses
    for entry in [each for each in found if each["status"] in ("failed", "dead")][-MOST_FOUND:]:
        response = await runtime.service(Store).run(
            partial(_response_at, topic, view.id, entry["ended_at_ms"]), write=False
        )
        if response is not None:
            entry |= _told(response)
    if (last := await _last(runtime, queue, view)) is not None:
        found.append(last)
    return [_shown(each) for each in found]


def _entry(kept: dict[str, Any]) -> dict[str, Any]:
    return {
        "attempt": kept.get("attempt"),
        "status": kept.get("status"),
        "consumer_id": None,
        "started_at_ms": None,
        "ended_at_ms": kept.get("at_ms"),
        "duration_ms": None,
        "error": kept.get("error"),
    }


async def _last(runtime: Runtime, queue: str, view: JobView) -> dict[str, Any] | None:
    """Return the attempt that is running, or that succeeded: the history has neither."""
    attempt = {**_entry({}), "attempt": view.attempts, "started_at_ms": view.claimed_at}
    if view.held:
        return {**attempt, "status": "running", "consumer_id": view.consumer}
    stored = await runtime.service(Store).run(
        lambda: stored_jobs.read_jobs(queue, [view.id]), write=False
    )
    answer = decode(stored[0].answer) if stored and stored[0].answer else None
    if view.settled_at is None or not isinstance(answer, dict) or answer.get("error") is not None:
        return None
    return {**attempt, "status": "acked", **_told(answer)}


def _told(response: dict[str, Any]) -> dict[str, Any]:
    ended, took = response.get("handled_at_ms"), response.get("handler_ms")
    started = ended - took if isinstance(ended, int) and isinstance(took, int) else None
    return {
        "consumer_id": response.get("consumer_id"),
        "started_at_ms": started,
        "ended_at_ms": ended,
        "duration_ms": took,
    }


def _shown(attempt: dict[str, Any]) -> dict[str, Any]:
    times = {
        name: None if attempt[f"{name}_ms"] is None else iso(attempt[f"{name}_ms"])
        for name in ("started_at", "ended_at")
    }
    kept = ("attempt", "status", "consumer_id", "duration_ms", "error")
    return {**{name: attempt[name] for name in kept}, **times}


def _response_at(topic: str, job_id: int, at_ms: int) -> Operation[dict[str, Any] | None]:
    """Find the response of a job that was written at *at_ms*."""
    low, high = 0, (yield from head(topic))
    while high - low > PAGE:
        middle = (low + high) // 2
        found, _ = yield from read(topic, middle, 1)
        if found and found[0].occurred_at_ms < at_ms:
            low = middle
        else:
            high = middle
    records, _ = yield from read(topic, low, 2 * PAGE)
    for record in records:
        if record.occurred_at_ms > at_ms:
            break
        payload = record.payload
        if record.occurred_at_ms == at_ms and payload.get("job_event_id") == job_id:
            return dict(payload)
    return None

"""Records of a queue that an operation gathers, to be appended with its commit."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from harn.storage.contract import Draft
from harn.storage.queue.queue_row import QueueState
from harn.topics import queue_topics

_encode = msgspec.json.encode


@lru_cache(maxsize=1024)
def queue_headers(queue: str) -> bytes:
    """Encode the headers of a queue's claim and response records."""
    return _encode({"queue": queue})


def note(state: QueueState, kind: str, record: dict[str, Any]) -> None:
    """Add a record to the queue's claims."""
    topic, headers = queue_topics(state.name).claims, queue_headers(state.name)
    state.drafts.append(Draft(topic, kind, _encode(record), headers, state.now))

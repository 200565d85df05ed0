"""Every topic of the event log and every record kind we write, on one page.

`TOPICS` is what the reference page lists and what a test compares it with; the functions below
build the names that contain a queue or another user's word.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from harn.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic (or, with `<...>` in its name, a family of them) and the kinds found there."""

    name: str
    kinds: tuple[str, ...]
    meaning: str


POOL_AUDIT = "lifecycle.pool.audit"

TOPICS = (
    Topic(
        POOL_AUDIT,
        ("pool_submit", "pool_dequeue", "pool_drop"),
        "One receipt per submit, start and drop of a pool task.",
    ),
)

WORKER_QUEUES = "worker.queues"
MAX_QUEUE_NAME = 128

_PLAIN = re.compile(r"(?!--)[A-Za-z0-9._-]+", re.ASCII)
_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.")
_LONGEST = 128


@dataclass(frozen=True, slots=True)
class QueueTopics:
    """The three topics of a worker queue."""

    jobs: str
    claims: str
    responses: str


def queue_topics(queue: str) -> QueueTopics:
    """Return the topics of *queue*; no two queues share one, and none is the catalogue's.

    >>> queue_topics("triage").claims
    'worker.triage.claims'
    >>> queue_topics("crème brûlée").jobs
    'worker.--cr-c3-a8me-20br-c3-bbl-c3-a9e'
    """
    name = f"worker.{_in_topic(check_queue_name(queue))}"
    return QueueTopics(name, f"{name}.claims", f"{name}.responses")


def check_queue_name(queue: str) -> str:
    """Return *queue* if it may be a queue's name, the same on every store."""
    accepted = f"1 to {MAX_QUEUE_NAME} printable characters"
    if not isinstance(queue, str) or not 0 < len(queue) <= MAX_QUEUE_NAME:
        raise InvalidOption("queue", queue, accepted)
    if not queue.isprintable() or not queue.strip():
        raise InvalidOption("queue", queue, accepted)
    if queue == "queues" or queue.endswith((".claims", ".responses")):
        raise InvalidOption(
            "queue", queue, "a name that is not 'queues' and does not end in .claims or .responses"
        )
    return queue


def _in_topic(name: str) -> str:
    # Plain names stand for themselves. Any other is written byte by byte behind "--", which no
    # plain name starts with; after it "-" is always followed by two hex digits, so "---" can only
    # be the mark of a name that was cut and ends in its hash.
    if _PLAIN.fullmatch(name):
        return name
    raw = name.encode()
    text = "--" + "".join(chr(byte) if byte in _KEPT else f"-{byte:02x}" for byte in raw)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:80]}---{hashlib.sha256(raw).hexdigest()[:32]}"

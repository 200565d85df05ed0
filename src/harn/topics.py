"""Every topic of the event log and every record kind we write, on one page.

`TOPICS` is what the reference page lists and what a test compares it with; the functions below
build the names that contain the name of a queue, channel or waitpoint.
"""

from __future__ import annotations

import functools
import hashlib
import re

import msgspec

from harn.errors import InvalidOption
from harn.naming import check_printable_name


class Topic(msgspec.Struct, frozen=True):
    """A topic (or, with `<...>` in its name, a family of them) and the kinds found there."""

    name: str
    kinds: tuple[str, ...]
    meaning: str


POOL_AUDIT = "lifecycle.pool.audit"
AGENTS = "agents.lifecycle"
LLM_USAGE = "llm.usage"
LLM_CALLED = "llm_called"
"""The kind of a record of `llm.usage`; programs may emit others to the topic."""
SUPERVISOR_LIFECYCLE = "supervisor.lifecycle"
CHANNEL_AUDIT = "lifecycle.channel.audit"
TRIGGER_ENVELOPES = "trigger.inbox.envelopes"
TRIGGER_CLAIMS = "trigger.inbox.claims"
TRIGGER_OUTBOX = "trigger.outbox"
TRIGGER_ATTEMPTS = "trigger.attempts"
TRIGGER_DLQ = "trigger.dlq"
TRIGGER_FLOW = "trigger.flow"
TRIGGER_OWNERS = "trigger.owners"
TRIGGER_INTAKE = "trigger.intake.audit"
TRIGGER_LIFECYCLE = "triggers.lifecycle"
CRON_STATE = "connectors.cron.state"
STORED_VALUES = "state.values"
AGENT_STATE = "state.agents"
OPERATORS_AUDIT = "operators.audit"

TOPICS: tuple[Topic, ...] = (
    Topic("worker.queues", ("queue_seen",), "The catalogue: one record for each worker queue."),
    Topic("worker.<queue>", ("trigger_dispatch",), "The jobs of a worker queue."),
    Topic(
        "worker.<queue>.claims",
        (
            "job_claimed",
            "claim_renewed",
            "job_acked",
            "job_failed",
            "job_released",
            "job_dead",
            "job_purged",
            "job_cancelled",
            "job_retried",
            "jobs_woken",
            "keys_changed",
            "queue_paused",
            "queue_resumed",
            "jobs_parked",
            "jobs_unparked",
            "jobs_trimmed",
            "tickets_bound",
            "step_recorded",
            "pool_opened",
            "jobs_blocked",
            "jobs_admitted",
            "job_withdrawn",
            "job_cancel_asked",
        ),
        "What happened to a queue's jobs, what its fairness keys are made of, and its pauses.",
    ),
    Topic("worker.<queue>.responses", ("job_response",), "What handlers returned or raised."),
    Topic(
        POOL_AUDIT,
        ("pool_submit", "pool_dequeue", "pool_drop"),
        "One receipt per submit, start and drop of a pool task.",
    ),
    Topic(
        AGENTS,
        (
            "agent_started",
            "agent_model_called",
            "agent_tool_called",
            "agent_turn_ended",
            "agent_finished",
        ),
        "What an agent loop did, without what was said.",
    ),
    Topic(LLM_USAGE, (LLM_CALLED,), "What each model call used, for whom, and its cost."),
    Topic(
        SUPERVISOR_LIFECYCLE,
        (
            "supervisor_started",
            "child_started",
            "child_restart_started",
            "child_output",
            "child_stopped",
            "child_failed",
            "child_restarted",
            "child_suppressed",
            "child_escalated",
            "child_abandoned",
            "supervisor_stopping",
            "supervisor_stopped",
            "supervisor_completed",
        ),
        "What supervisors and their children do.",
    ),
)

TOPICS += (
    Topic(
        CHANNEL_AUDIT,
        ("channel_emit_receipt", "channel_match_receipt"),
        "One receipt per emit, and one per trigger that it reached.",
    ),
    Topic("channels.<name>", ("channel.emit",), "What was emitted on a channel."),
    Topic(
        TRIGGER_ENVELOPES,
        ("event_ingested",),
        "Events on their way to a trigger, written before their arrival is acknowledged.",
    ),
    Topic(
        TRIGGER_CLAIMS,
        ("dedupe_claim", "dedupe_pruned", "envelope_taken"),
        "Which deliveries are known, and envelopes that another process took over.",
    ),
    Topic(
        TRIGGER_OUTBOX,
        ("dispatch_succeeded", "dispatch_failed", "dispatch_skipped"),
        "How each dispatch ended.",
    ),
    Topic(
        TRIGGER_ATTEMPTS,
        ("attempt_recorded", "retry_scheduled"),
        "Every attempt at a handler, and when the next one is due.",
    ),
    Topic(
        TRIGGER_DLQ,
        ("dlq_moved", "dlq_entry"),
        "Dead letters; the latest `dlq_entry` of an id tells its state.",
    ),
    Topic(
        TRIGGER_FLOW,
        (
            "batch_enqueued",
            "batch_dispatched",
            "debounce_seen",
            "debounce_selected",
            "rate_limit_allowed",
            "rate_limit_blocked",
            "throttle_wait",
            "throttle_acquired",
            "singleton_acquired",
            "singleton_skipped",
            "singleton_released",
            "concurrency_waiting",
            "concurrency_acquired",
            "concurrency_released",
            "circuit_changed",
            "marks_expired",
        ),
        "What triggers' gates and destinations' circuits decided.",
    ),
    Topic(
        TRIGGER_OWNERS,
        ("owner_alive", "owner_left", "owner_forgotten"),
        "Which processes dispatch, and when their leases expire.",
    ),
    Topic(
        TRIGGER_INTAKE,
        ("requests_refused", "delivery_conflict"),
        "Requests that were not let in, counted and not copied.",
    ),
    Topic(
        TRIGGER_LIFECYCLE,
        ("trigger_registered", "trigger_draining", "trigger_terminated"),
        "Triggers and their versions as they come and go.",
    ),
    Topic(CRON_STATE, ("cron_fired",), "The instants of schedules that have fired."),
)

TOPICS += (
    Topic(
        "waitpoints.<id>",
        ("completed", "cancelled"),
        "How a durable waitpoint was settled: its first record counts.",
    ),
    Topic(
        STORED_VALUES,
        ("state_set", "state_deleted"),
        "What `store_set` and its relatives wrote: the latest record of a key holds.",
    ),
    Topic(
        OPERATORS_AUDIT,
        ("operator_acted",),
        "What operators did over HTTP or the admin socket: who, when, what, and how it ended.",
    ),
    Topic(
        AGENT_STATE,
        ("state_set", "state_deleted"),
        "What `agent_state_set` and its relatives wrote, by agent session.",
    ),
)

WORKER_QUEUES = "worker.queues"
MAX_QUEUE_NAME = 128

_PLAIN = re.compile(r"(?!--)[A-Za-z0-9._-]+", re.ASCII)
_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.")
_LONGEST = 128


class QueueTopics(msgspec.Struct, frozen=True):
    """The three topics of a worker queue."""

    jobs: str
    claims: str
    responses: str


@functools.lru_cache(maxsize=4096)
def queue_topics(queue: str) -> QueueTopics:
    """Return the topics of *queue*; no two queues share one, and none is the catalogue's.

    >>> queue_topics("triage").claims
    'worker.triage.claims'
    >>> queue_topics("crème brûlée").jobs
    'worker.--cr-c3-a8me-20br-c3-bbl-c3-a9e'
    """
    name = f"worker.{_in_topic(check_queue_name(queue))}"
    return QueueTopics(name, f"{name}.claims", f"{name}.responses")


def by_others(topic: str) -> str:
    """Return the name that grows when another process writes to *topic*.

    The topics of a queue share one such name. No topic has it.

    >>> by_others("worker.triage.claims") == by_others("worker.triage")
    True
    """
    return topic.removesuffix(".claims").removesuffix(".responses") + " by others"


def channel_topic(name: str) -> str:
    """Return the topic of the channel *name*; no two channels share one.

    >>> channel_topic("webhook.received")
    'channels.webhook.received'
    """
    return f"channels.{_in_topic(name)}"


def waitpoint_topic(id: str) -> str:
    """Return the topic of the waitpoint *id*; no two waitpoints share one.

    >>> waitpoint_topic("connector.shutdown")
    'waitpoints.connector.shutdown'
    """
    return f"waitpoints.{_in_topic(id)}"


def check_queue_name(queue: str) -> str:
    """Return *queue* if it may be a queue's name, the same on every store."""
    check_printable_name("queue", queue, MAX_QUEUE_NAME)
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

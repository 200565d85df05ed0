"""The records that users of a worker queue see: jobs as they enter, and as handlers get them."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from sys import float_info
from typing import Any, Literal

import msgspec

from harn.duration import Duration, to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.naming import has_controls
from harn.option_checks import is_number, whole_number
from harn.records import SparseRecord
from harn.storage import MAX_PAYLOAD, encode, encode_headers
from harn.storage.queue import PRIORITIES, JobDraft, job_charges
from harn.telemetry.spans import trace_headers, tracing

Priority = Literal["high", "normal", "low"]

MAX_NAME = 256
LONGEST_TTL_MS = 365 * 86_400_000
USUAL_COST = 1
USUAL_ATTEMPTS = 5


class Job(SparseRecord, msgspec.Struct, frozen=True):
    """A job as its handler gets it.

    >>> Job(1, "q", {}, "high", None, None, None, {}, 0, 1, 5, None).as_dict()["priority"]
    'high'
    """

    id: int
    queue: str
    payload: Any
    priority: str
    tenant_id: str | None
    trigger_id: str | None
    binding_key: str | None
    headers: dict[str, Any]
    enqueued_at_ms: int
    attempts: int
    max_attempts: int
    dedupe_key: str | None
    function: str | None = None


class NewJob(msgspec.Struct, frozen=True):
    """A job for `enqueue_many`, with the keywords of `enqueue`.

    >>> NewJob({"pr": 1984}, tenant_id="acme").priority
    'normal'
    """

    payload: Any
    trigger_id: str | None = None
    priority: Priority = "normal"
    tenant_id: str | None = None
    binding_key: str | None = None
    headers: dict[str, Any] | None = None
    dedupe_key: str | None = None
    not_before: datetime | Duration | None = None
    max_attempts: int = USUAL_ATTEMPTS
    cost: float = USUAL_COST
    binding_version: int | None = None
    replay_of_event_id: str | None = None
    function: str | None = None


class _Record(msgspec.Struct, omit_defaults=True):
    """A `trigger_dispatch` record; a function and a cost are written where there are any."""

    queue: str
    trigger_id: str | None
    binding_key: str | None
    binding_version: int | None
    event: Any
    replay_of_event_id: str | None
    priority: str
    max_attempts: int
    tenant_id: str | None
    dedupe_key: str | None
    not_before_ms: int | None
    delay_ms: int | None
    headers: dict[str, Any] | None
    function: str | None = None
    cost: float = 1


def draft_job(queue: str, item: Any, *, is_exact: bool = False) -> JobDraft:
    """Check and encode one job; a bare payload is a job with the defaults.

    With *is_exact* the caller knows that JSON does not change the payload.
    """
    job = item if isinstance(item, NewJob) else NewJob(item)
    if tracing():  # the handler continues the trace of the code that enqueued the job
        job = msgspec.structs.replace(job, headers={**trace_headers(), **(job.headers or {})})
    # Without a loop: each job of a large batch is checked here, and most of these are None.
    if job.trigger_id is not None:
        check_name("trigger_id", job.trigger_id)
    if job.tenant_id is not None:
        check_name("tenant_id", job.tenant_id)
    if job.binding_key is not None:
        check_name("binding_key", job.binding_key)
    if job.function is not None:
        check_name("function", job.function)
    if job.dedupe_key is not None:
        _check_dedupe(job.dedupe_key)
    if job.priority not in PRIORITIES:
        near = did_you_mean(job.priority, PRIORITIES) if isinstance(job.priority, str) else ""
        raise InvalidOption("priority", job.priority, f"high, normal or low{near}")
    if job.max_attempts is not USUAL_ATTEMPTS:  # by identity: `5.0` is equal to it
        accepts = "a whole number; 0 means forever"
        whole_number("max_attempts", job.max_attempts, least=0, most=(1 << 31) - 1, wanted=accepts)
    not_before_ms, delay_ms = _when(job.not_before)
    cost = None
    if job.cost is not USUAL_COST:  # `True` and `Decimal(1)` are equal to it
        check_cost(job.cost)
        cost = job_charges.stored_cost(job.cost)
    if job.headers is not None:
        encode_headers(job.headers)
    record = _Record(
        queue=queue,
        trigger_id=job.trigger_id,
        binding_key=job.binding_key,
        binding_version=job.binding_version,
        event=msgspec.Raw(encode("payload", job.payload, MAX_PAYLOAD, is_exact=is_exact)),
        replay_of_event_id=job.replay_of_event_id,
        priority=job.priority,
        max_attempts=job.max_attempts,
        tenant_id=job.tenant_id,
        dedupe_key=job.dedupe_key,
        not_before_ms=not_before_ms,
        delay_ms=delay_ms,
        headers=job.headers or None,
        function=job.function,
        cost=job.cost,
    )
    body = msgspec.json.encode(record)
    if len(body) > MAX_PAYLOAD:
        raise InvalidOption("payload", f"{len(body):,} bytes", f"at most {MAX_PAYLOAD:,} bytes")
    return JobDraft(
        body,
        _headers(queue, job),
        PRIORITIES.index(job.priority),
        job.tenant_id,
        job.binding_key,
        job.trigger_id,
        job.dedupe_key,
        job.max_attempts,
        not_before_ms,
        delay_ms,
        job.function,
        cost=cost,
    )


def _headers(queue: str, job: NewJob) -> bytes:
    event_id = job.payload.get("id") if isinstance(job.payload, dict) else None
    if not isinstance(event_id, str):
        event_id = None
    if job.trigger_id is job.binding_key is event_id is None:
        return _usual_headers(queue, job.priority)
    headers = {"queue": queue, "priority": job.priority}
    if job.trigger_id is not None:
        headers["trigger_id"] = job.trigger_id
    if job.binding_key is not None:
        headers["binding_key"] = job.binding_key
    if event_id is not None:
        headers["event_id"] = event_id
    return msgspec.json.encode(headers)


@lru_cache(maxsize=1024)
def _usual_headers(queue: str, priority: str) -> bytes:
    return msgspec.json.encode({"queue": queue, "priority": priority})


def read_job(queue: str, id: int, body: bytes, at: int, attempts: int, most: int) -> Job:
    """Read a job back from its record; a ValueError if the record is damaged."""
    record = _decoder.decode(body)
    return Job(
        id,
        queue,
        record.event,
        record.priority,
        record.tenant_id,
        record.trigger_id,
        record.binding_key,
        record.headers or {},
        at,
        attempts,
        most,
        record.dedupe_key,
        record.function,
    )


_decoder = msgspec.json.Decoder(_Record)


def check_name(option: str, value: object) -> None:
    """Refuse a name that is not short, printable text; None is no name."""
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise InvalidOption(option, value, f"1 to {MAX_NAME} printable characters, or None")


def check_consumer(consumer_id: object) -> str:
    """Return *consumer_id* if it may name a consumer."""
    check_name("consumer_id", consumer_id)
    if not isinstance(consumer_id, str) or not consumer_id.strip():
        raise InvalidOption("consumer_id", consumer_id, "a name that is not blank")
    return consumer_id


def check_reason(reason: object, option: str = "reason") -> None:
    """Refuse what is neither None nor text that a record can hold."""
    if reason is not None and not (isinstance(reason, str) and _is_unicode(reason)):
        raise InvalidOption(option, reason, "text, or None")


def _is_unicode(text: str) -> bool:
    """Tell whether *text* is free of lone surrogates."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


def check_ttl(ttl: Duration) -> int:
    """Read a claim's time to live as milliseconds, at least one."""
    ms = to_ms(ttl, "ttl")
    if not 1 <= ms <= LONGEST_TTL_MS:
        raise InvalidOption("ttl", ttl, 'a duration between "1ms" and a year')
    return ms


def _check_dedupe(key: object) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= 512 or has_controls(key):
        raise InvalidOption("dedupe_key", key, "1 to 512 characters, none of them a control")


def check_cost(cost: object) -> None:
    """Refuse a cost that is not a finite number of at least 0."""
    if not is_number(cost) or not 0 <= cost <= float_info.max:
        raise InvalidOption("cost", cost, "a finite number, 0 or more")


def _when(not_before: datetime | Duration | None) -> tuple[int | None, int | None]:
    if not_before is None:
        return None, None
    if isinstance(not_before, datetime):
        if not_before.tzinfo is None:
            raise InvalidOption("not_before", not_before, "a datetime with a time zone")
        return round(not_before.timestamp() * 1000), None
    return None, to_ms(not_before, "not_before")

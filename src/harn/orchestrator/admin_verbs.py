"""The verbs of a service: one table for HTTP, the admin socket and commands.

A verb has a path under `/api/v1/`, options that are checked before it starts, and a function that
returns a JSON-ready document. The HTTP server, the socket in the state directory and the commands
that run without a service all use this table: a new verb is one function and one line in `VERBS`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

import msgspec

from harn.errors import InvalidOption, did_you_mean
from harn.masking import mask
from harn.orchestrator.drain_note import LOOKED_AT, why_none
from harn.orchestrator.finishing import Finishing
from harn.orchestrator.manifest_consumer import manifest_consumer
from harn.orchestrator.queue_verbs import (
    CancelJob,
    PauseQueue,
    ResumeQueue,
    RetryJob,
    cancel_job,
    pause_queue,
    resume_queue,
    retry_job,
)
from harn.orchestrator.verb_options import Options, Tell
from harn.plurals import counted
from harn.pools import WorkDone, causing
from harn.teardown import retrieve
from harn.triggers import DeadLetters, DispatchHandle, NotFound, compare_mapping
from harn.workers import Consumer, worker_queues

if TYPE_CHECKING:
    from harn.orchestrator.service import Service

API = "/api/v1/"
WORK_WITHIN = 30.0
LONGEST_WAIT = 86_400.0


class DispatchOptions(Options, frozen=True, kw_only=True):
    """Options of a verb that dispatches."""

    work_within: float = WORK_WITHIN
    """Seconds that the pool tasks caused by this may take."""

    def __post_init__(self) -> None:
        if not 0 < self.work_within <= LONGEST_WAIT:
            raise ValueError(f"work_within is more than 0 and at most {LONGEST_WAIT:,.0f} seconds")


class Fire(DispatchOptions, frozen=True, kw_only=True):
    """Fire *trigger* with *payload*, for *tenant*."""

    trigger: str
    payload: Any = None
    tenant: str | None = None


class Replay(DispatchOptions, frozen=True, kw_only=True):
    """Dispatch *event* again, to *trigger* or to all triggers that it reached."""

    event: str
    trigger: str | None = None


class ReplayLetter(DispatchOptions, frozen=True, kw_only=True):
    """Dispatch the dead letter *letter* again."""

    letter: str


class DiscardLetter(Options, frozen=True, kw_only=True):
    """Discard the dead letter *letter*."""

    letter: str
    reason: str | None = None


class Drain(DispatchOptions, frozen=True, kw_only=True):
    """Drain *queue* until it is empty."""

    queue: str
    consumer_id: str | None = None
    claim_ttl: float = 300.0
    concurrency: int = 1
    wait: bool = False
    """Wait for more when the queue is empty; a service does that anyway."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: its path, its options, and the function that runs it."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    options: type[Options]
    run: Callable[[Service, Any, Tell], Awaitable[dict[str, Any]]]

    def names_in(self, parts: Sequence[str]) -> dict[str, str] | None:
        """Return the names in a path's *parts*; None if it is not this verb's path."""
        own = self.path.split("/")
        if len(own) != len(parts):
            return None
        names = {}
        for wanted, part in zip(own, parts, strict=True):
            if wanted.startswith("{"):
                names[wanted[1:-1]] = part
            elif wanted != part:
                return None
        return names

    def read(self, fields: Mapping[str, Any]) -> Any:
        """Check *fields* and return the options; raise `InvalidOption` if one is wrong."""
        try:
            return msgspec.convert(dict(fields), self.options)
        except (msgspec.ValidationError, ValueError) as error:
            raise InvalidOption("options", sorted(fields), str(error)) from None

    def address(self, options: Options) -> tuple[str, dict[str, Any]]:
        """Return the full path and the body of a request with *options*."""
        body = msgspec.structs.asdict(options)
        parts = [
            quote(str(body.pop(part[1:-1])), safe="") if part.startswith("{") else part
            for part in self.path.split("/")
        ]
        return API + "/".join(parts), body


async def _about(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "manifest": str(service.path.resolve()),
        "state_dir": str(service.runtime.state_dir.resolve()),
        "storage": mask(service.runtime.storage_url),
    }


async def _reload(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    return await service.reload()


async def _fire(service: Service, options: Fire, tell: Tell) -> dict[str, Any]:
    triggers, manifest = service.triggers, service.manifest
    if triggers.find(options.trigger) is None:
        known = [*(each.id for each in manifest.triggers), *(t.id for t in triggers.active())]
        near = did_you_mean(options.trigger, known)
        raise NotFound(f"{manifest.path.name} has no trigger {options.trigger!r}{near}")
    found = manifest.trigger(options.trigger)
    fields: dict[str, Any] = {"headers": {"x-harn-synthetic": "true"}}
    if tenant := options.tenant or (found.tenant_id if found is not None else None):
        fields["tenant_id"] = tenant
    with causing() as caused:
        handle = await triggers.fire(options.trigger, options.payload, **fields)
    done = await Finishing(service.runtime, options.work_within, tell)(caused)
    return {**handle.as_dict(), "work": done.as_dict()}


async def _replay(service: Service, options: Replay, tell: Tell) -> dict[str, Any]:
    finish = Finishing(service.runtime, options.work_within, tell)
    letters = service.runtime.service(DeadLetters)
    handles = await letters.replay_event(options.event, options.trigger, finish)
    if not handles:
        raise NotFound(f"event {options.event} did not go to trigger {options.trigger!r}")
    return await _replayed(service, handles, finish.seen)


async def _replay_letter(service: Service, options: ReplayLetter, tell: Tell) -> dict[str, Any]:
    finish = Finishing(service.runtime, options.work_within, tell)
    handle = await service.runtime.service(DeadLetters).replay(options.letter, finish)
    return await _replayed(service, [handle], finish.seen)


async def _replayed(
    service: Service, handles: Sequence[DispatchHandle], done: Sequence[WorkDone]
) -> dict[str, Any]:
    shown = []
    for handle in handles:
        mapping = await compare_mapping(service.runtime, handle)
        shown.append({**handle.as_dict(), **({"mapping": mapping} if mapping else {})})
    return {"handles": shown, "work": [each.as_dict() for each in done]}


async def _discard_letter(service: Service, options: DiscardLetter, tell: Tell) -> dict[str, Any]:
    letters = service.runtime.service(DeadLetters)
    return {"discarded": await letters.discard(options.letter, options.reason)}


async def _drain(service: Service, options: Drain, tell: Tell) -> dict[str, Any]:
    name = options.queue
    known = [each.queue for each in await worker_queues()]
    total = 0

    def progress(consumer: Consumer) -> None:
        tell(f"{name}: {consumer.drained} of {counted(max(total, consumer.drained), 'job')}")

    consumer, runner = manifest_consumer(
        service.runtime,
        name,
        service.manifest,
        consumer_id=options.consumer_id,
        claim_ttl=options.claim_ttl,
        concurrency=options.concurrency,
        stop_when_empty=not options.wait,
        work_within=options.work_within,
        progress=progress,
    )
    total = (await consumer.queue.summary()).ready
    report = (await service.run_consumer(consumer)).as_dict()
    if not report["drained"] and (note := await _why_none(service, consumer, known)) is not None:
        report["note"] = note
    if runner.unwell:
        report["not_acked"] = {str(job): why for job, why in runner.unwell.items()}
    return report


async def _why_none(service: Service, consumer: Consumer, known: Sequence[str]) -> str | None:
    """Return why nothing was drained, if there is more to say than that no job is ready."""
    queue = consumer.queue
    if queue.name not in known:
        return f"no job was ever put into queue {queue.name!r}{did_you_mean(queue.name, known)}"
    if (await queue.summary()).paused:
        return f"queue {queue.name!r} is paused"
    ready = await queue.jobs(status="ready", limit=LOOKED_AT)
    return why_none(ready, consumer.triggers or (), service.manifest.path.name)


VERBS: tuple[Verb, ...] = (
    Verb("service", "GET", "service", Options, _about),
    Verb("reload", "POST", "reload", Options, _reload),
    Verb("fire", "POST", "triggers/{trigger}/fire", Fire, _fire),
    Verb("replay", "POST", "events/{event}/replay", Replay, _replay),
    Verb("replay letter", "POST", "dead-letters/{letter}/replay", ReplayLetter, _replay_letter),
    Verb("discard letter", "POST", "dead-letters/{letter}/discard", DiscardLetter, _discard_letter),
    Verb("drain", "POST", "queues/{queue}/drain", Drain, _drain),
    Verb("pause queue", "POST", "queues/{queue}/pause", PauseQueue, pause_queue),
    Verb("resume queue", "POST", "queues/{queue}/resume", ResumeQueue, resume_queue),
    Verb("cancel job", "POST", "queues/{queue}/jobs/{job}/cancel", CancelJob, cancel_job),
    Verb("retry job", "POST", "queues/{queue}/jobs/{job}/retry", RetryJob, retry_job),
)


def verb(name: str) -> Verb:
    """Return the verb called *name*."""
    return next(each for each in VERBS if each.name == name)


def find_verbs(path: str) -> list[tuple[Verb, dict[str, str]]]:
    """Return the verbs at *path*, which is still percent-encoded, with the names in it.

    >>> [(found.name, names) for found, names in find_verbs("/api/v1/triggers/a%2Fb/fire")]
    [('fire', {'trigger': 'a/b'})]
    """
    if not path.startswith(API):
        return []
    parts = [unquote(part) for part in path.removeprefix(API).split("/")]
    found = [(each, each.names_in(parts)) for each in VERBS]
    return [(each, names) for each, names in found if names is not None]


class Running:
    """A running verb. It continues if its caller disconnects.

    `said` is its latest line of progress.
    """

    def __init__(self, service: Service, verb: Verb, options: Options) -> None:
        self.said: str = ""
        self.task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(
            verb.run(service, options, self._tell)
        )
        self.task.add_done_callback(retrieve)  # the caller may have disconnected
        service.runtime.own(self.task)

    def _tell(self, line: str) -> None:
        self.said = line

"""The verbs of a service: one table for HTTP, the admin socket and commands.

A verb has a path under `/api/v1/`, options that are checked before it starts, and a function that
returns a JSON-ready document. The HTTP server, the socket in the state directory and the commands
that run without a service all use this table: a new verb is one function and one line in `VERBS`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

import msgspec

from harn.errors import HarnError, InvalidOption, did_you_mean
from harn.masking import mask
from harn.orchestrator import read_verbs as look
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
from harn.orchestrator.views import masked
from harn.plurals import counted
from harn.pools import WorkDone, causing
from harn.teardown import retrieve
from harn.topics import OPERATORS_AUDIT
from harn.triggers import DeadLetters, DispatchHandle, NotFound, compare_mapping
from harn.workers import Consumer, worker_queues

if TYPE_CHECKING:
    from harn.orchestrator.service import Service

logger: logging.Logger = logging.getLogger("harn.orchestrator")

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
    needs_manifest: bool = False
    """Whether it needs a service that runs a manifest; the others need only the store."""

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
        """Check *fields* and return the options; raise `InvalidOption` if one is wrong.

        Those of a GET request come from its query, so a number is text there.
        """
        try:
            return msgspec.convert(dict(fields), self.options, strict=self.method != "GET")
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
        "manifest": None if service.path is None else str(service.path.resolve()),
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
    letters = service.runtime.service(DeadLetters)
    await letters.get(options.letter)
    try:
        handle = await letters.replay(options.letter, finish)
    except NotFound as error:  # the letter is there; its trigger is not, in this process
        raise HarnError(f"dead letter {options.letter} cannot be replayed here: {error}") from None
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
    Verb("reload", "POST", "reload", Options, _reload, needs_manifest=True),
    Verb("fire", "POST", "triggers/{trigger}/fire", Fire, _fire, needs_manifest=True),
    Verb("replay", "POST", "events/{event}/replay", Replay, _replay, needs_manifest=True),
    Verb("replay letter", "POST", "dead-letters/{letter}/replay", ReplayLetter, _replay_letter),
    Verb("discard letter", "POST", "dead-letters/{letter}/discard", DiscardLetter, _discard_letter),
    Verb("drain", "POST", "queues/{queue}/drain", Drain, _drain, needs_manifest=True),
    Verb("pause queue", "POST", "queues/{queue}/pause", PauseQueue, pause_queue),
    Verb("resume queue", "POST", "queues/{queue}/resume", ResumeQueue, resume_queue),
    Verb("cancel job", "POST", "queues/{queue}/jobs/{job}/cancel", CancelJob, cancel_job),
    Verb("retry job", "POST", "queues/{queue}/jobs/{job}/retry", RetryJob, retry_job),
    Verb("queues", "GET", "queues", Options, look.list_queues),
    Verb("queue", "GET", "queues/{queue}", look.OneQueue, look.one_queue),
    Verb("jobs", "GET", "queues/{queue}/jobs", look.ListJobs, look.list_jobs),
    Verb("job", "GET", "queues/{queue}/jobs/{job}", look.OneJob, look.one_job),
    Verb("pools", "GET", "pools", Options, look.list_pools),
    Verb("limits", "GET", "limits", Options, look.list_limits),
    Verb("triggers", "GET", "triggers", Options, look.list_triggers),
    Verb("dead letters", "GET", "dead-letters", look.ListLetters, look.list_letters),
    Verb("usage", "GET", "usage", look.Usage, look.usage),
    Verb("consumers", "GET", "consumers", Options, look.list_consumers),
    Verb("supervisors", "GET", "supervisors", Options, look.list_supervisors),
    Verb("topics", "GET", "log", Options, look.list_topics),
    Verb("log", "GET", "log/{topic}", look.ReadLog, look.read_log),
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


@dataclass(frozen=True, slots=True)
class ActedBy:
    """Who asked for a verb: a key by its name, how it was shown, and from which address."""

    who: str
    via: str
    address: str


class Running:
    """A running verb. It continues if its caller disconnects.

    `said` is its latest line of progress. What an operator did is in the audit before the task
    ends, whether it worked or not.
    """

    def __init__(
        self, service: Service, verb: Verb, options: Options, by: ActedBy | None = None
    ) -> None:
        self.said: str = ""
        self._runtime = service.runtime
        self.task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(
            self._run(service, verb, options, by)
        )
        self.task.add_done_callback(retrieve)  # the caller may have disconnected
        service.runtime.own(self.task)

    async def _run(
        self, service: Service, verb: Verb, options: Options, by: ActedBy | None
    ) -> dict[str, Any]:
        try:
            document = await verb.run(service, options, self._tell)
        except Exception as error:
            await self._note(verb, options, by, str(error))
            raise
        await self._note(verb, options, by, None)
        return document

    async def _note(
        self, verb: Verb, options: Options, by: ActedBy | None, error: str | None
    ) -> None:
        """Write the act to the audit; without its payload, which may be anything."""
        if by is None:
            return
        given = msgspec.structs.asdict(options)
        given.pop("payload", None)
        record = {
            "who": by.who,
            "via": by.via,
            "address": by.address,
            "verb": verb.name,
            "options": given,
            "ok": error is None,
            "error": error,
        }
        try:
            shown = masked(self._runtime, record)
            await self._runtime.event_log.emit(OPERATORS_AUDIT, "operator_acted", shown)
        except HarnError as failed:
            logger.warning("an operator's act could not be audited: %s", failed)

    def _tell(self, line: str) -> None:
        self.said = line

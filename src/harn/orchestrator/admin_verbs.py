"""The verbs of a service: one table for HTTP, the admin socket and commands.

A verb has a path under `/api/v1/`, options that are checked before it starts, and a function that
returns a JSON-ready document. The HTTP server, the socket in the state directory and the commands
that run without a service all use this table: a new verb is one function and one line in `VERBS`.
A function is loaded when its verb is first run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

import msgspec

from harn.errors import InvalidOption
from harn.orchestrator import verb_options as given
from harn.orchestrator.verb_options import Options, Tell

if TYPE_CHECKING:
    from harn.orchestrator.service import Service

API = "/api/v1/"


class Verb(msgspec.Struct, frozen=True):
    """One verb: its path, its options, and the function that runs it."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    options: type[Options]
    function: str
    """Its function, as `module.name` in this room."""
    needs_manifest: bool = False
    """Whether it needs a service that runs a manifest; the others need only the store."""

    @property
    def run(self) -> Callable[[Service, Any, Tell], Awaitable[dict[str, Any]]]:
        """Its function, which takes the service, the options and what receives its progress."""
        module, name = self.function.split(".")
        function: Callable[[Service, Any, Tell], Awaitable[dict[str, Any]]] = getattr(
            import_module(f"{__package__}.{module}"), name
        )
        return function

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


VERBS: tuple[Verb, ...] = (
    Verb("service", "GET", "service", Options, "service_verbs.about"),
    Verb("reload", "POST", "reload", Options, "service_verbs.reload", True),
    Verb("fire", "POST", "triggers/{trigger}/fire", given.Fire, "fire_verb.fire", True),
    Verb("replay", "POST", "events/{event}/replay", given.Replay, "replay_verbs.replay", True),
    Verb(
        "replay letter",
        "POST",
        "dead-letters/{letter}/replay",
        given.ReplayLetter,
        "replay_verbs.replay_letter",
    ),
    Verb(
        "discard letter",
        "POST",
        "dead-letters/{letter}/discard",
        given.DiscardLetter,
        "replay_verbs.discard_letter",
    ),
    Verb("drain", "POST", "queues/{queue}/drain", given.Drain, "drain_verb.drain", True),
    Verb(
        "pause queue",
        "POST",
        "queues/{queue}/pause",
        given.PauseQueue,
        "queue_verbs.pause_queue",
    ),
    Verb(
        "resume queue",
        "POST",
        "queues/{queue}/resume",
        given.ResumeQueue,
        "queue_verbs.resume_queue",
    ),
    Verb(
        "cancel job",
        "POST",
        "queues/{queue}/jobs/{job}/cancel",
        given.CancelJob,
        "queue_verbs.cancel_job",
    ),
    Verb(
        "retry job",
        "POST",
        "queues/{queue}/jobs/{job}/retry",
        given.RetryJob,
        "queue_verbs.retry_job",
    ),
    Verb("queues", "GET", "queues", Options, "read_verbs.list_queues"),
    Verb("queue", "GET", "queues/{queue}", given.OneQueue, "read_verbs.one_queue"),
    Verb("jobs", "GET", "queues/{queue}/jobs", given.ListJobs, "read_verbs.list_jobs"),
    Verb("job", "GET", "queues/{queue}/jobs/{job}", given.OneJob, "read_verbs.one_job"),
    Verb("pools", "GET", "pools", Options, "read_verbs.list_pools"),
    Verb("limits", "GET", "limits", Options, "read_verbs.list_limits"),
    Verb("triggers", "GET", "triggers", Options, "read_verbs.list_triggers"),
    Verb("dead letters", "GET", "dead-letters", given.ListLetters, "read_verbs.list_letters"),
    Verb("usage", "GET", "usage", given.ReadUsage, "read_verbs.usage"),
    Verb("consumers", "GET", "consumers", Options, "read_verbs.list_consumers"),
    Verb("supervisors", "GET", "supervisors", Options, "read_verbs.list_supervisors"),
    Verb("topics", "GET", "log", Options, "read_verbs.list_topics"),
    Verb("log", "GET", "log/{topic}", given.ReadLog, "read_verbs.read_log"),
)


def names_in_path(pattern: str, parts: Sequence[str]) -> dict[str, str] | None:
    """Return the *parts* of a path that *pattern* names; None if they are not such a path.

    >>> names_in_path("queues/{queue}/jobs", ["queues", "q", "jobs"])
    {'queue': 'q'}
    """
    wanted = pattern.split("/")
    if len(wanted) != len(parts):
        return None
    names = {}
    for word, part in zip(wanted, parts, strict=True):
        if word.startswith("{"):
            names[word[1:-1]] = part
        elif word != part:
            return None
    return names


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
    found = [(each, names_in_path(each.path, parts)) for each in VERBS]
    return [(each, names) for each, names in found if names is not None]

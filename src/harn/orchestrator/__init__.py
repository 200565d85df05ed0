"""The orchestrator: runs the triggers and worker queues of a manifest.

manifest.py           harn.toml as frozen records
manifest_triggers.py  its [[triggers]] tables
trigger_checks.py     the parts of such a table, checked one by one
manifest_errors.py    mistakes in a manifest, each with its line
manifest_schema.py    the JSON Schema of harn.toml, for editors
manifest_exports.py   from `handlers::on_task` to a callable
secret_names.py       the names of secrets; their values are read at the start
loaded_manifest.py    a manifest with its handlers and secrets, before it takes effect
serving_plan.py       the same for one that is served: with its hooks and operators' keys
manifest_changes.py   what differs between two plans
service.py            the service: start, reload, drain
served_queues.py      the consumers of its queues
listen_address.py     which addresses it may listen on
admin_verbs.py        what an operator may ask of a running service: the table
verb_options.py       the options of each verb
service_verbs.py      the verbs about the service itself
fire_verb.py          the one that fires a trigger
replay_verbs.py       those about what was dispatched before
drain_verb.py         the one that drains a queue
queue_verbs.py        those about a queue and its jobs
read_verbs.py         those that only look
running_verb.py       a verb that runs in a service, and its audit
admin_socket.py       the socket in the state directory, and the lock of its owner
drain_note.py         why a drain found nothing to do although jobs are ready
caused_work.py        wait for the pool tasks that a dispatch caused
manifest_consumer.py  a worker queue's consumer for a manifest's handlers
body_formats.py       the formats of a request's body
webhook_rules.py      checks and reads a request to a trigger
a2a_rules.py          checks and answers an A2A call
matching_key.py       which of several keys a sender shows
agent_card.py         the A2A agent card: what the hooks for agents offer
intake.py             requests, checked and accepted as events
views/                read-only views: queues, jobs, triggers, everything
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.orchestrator.admin_socket import SOCKET, AdminSocket, connect, own
    from harn.orchestrator.admin_verbs import VERBS, Verb, find_verbs, names_in_path, verb
    from harn.orchestrator.intake import Intake, Reply
    from harn.orchestrator.listen_address import check_exposure, check_loopback, read_keys
    from harn.orchestrator.manifest import Manifest, ServeOptions, examine_manifest, read_manifest
    from harn.orchestrator.manifest_consumer import manifest_consumer
    from harn.orchestrator.manifest_errors import ManifestProblems, Problem
    from harn.orchestrator.manifest_exports import Exports
    from harn.orchestrator.manifest_schema import manifest_schema
    from harn.orchestrator.manifest_triggers import ManifestTrigger, unservable
    from harn.orchestrator.matching_key import matching_key
    from harn.orchestrator.queue_verbs import known_job, known_queue
    from harn.orchestrator.running_verb import ActedBy, Running
    from harn.orchestrator.service import NotNow, Service
    from harn.orchestrator.verb_options import (
        LONGEST_WAIT,
        CancelJob,
        DiscardLetter,
        Drain,
        Fire,
        Options,
        PauseQueue,
        Replay,
        ReplayLetter,
        ResumeQueue,
        RetryJob,
    )
    from harn.orchestrator.views import (
        explain,
        inspection,
        masked,
        overview,
        queue_samples,
        queues_view,
        shares_of,
    )
    from harn.orchestrator.webhook_rules import Hook, Key
else:
    front_door(
        __name__,
        {
            "admin_socket": "SOCKET AdminSocket connect own",
            "admin_verbs": "VERBS Verb find_verbs names_in_path verb",
            "manifest_exports": "Exports",
            "listen_address": "check_exposure check_loopback read_keys",
            "intake": "Intake Reply",
            "manifest": "Manifest ServeOptions examine_manifest read_manifest",
            "manifest_consumer": "manifest_consumer",
            "manifest_errors": "ManifestProblems Problem",
            "manifest_schema": "manifest_schema",
            "manifest_triggers": "ManifestTrigger unservable",
            "matching_key": "matching_key",
            "queue_verbs": "known_job known_queue",
            "running_verb": "ActedBy Running",
            "service": "NotNow Service",
            "verb_options": """
                LONGEST_WAIT CancelJob DiscardLetter Drain Fire Options PauseQueue Replay
                ReplayLetter ResumeQueue RetryJob
            """,
            "views": "explain inspection masked overview queue_samples queues_view shares_of",
            "webhook_rules": "Hook Key",
        },
    )

__all__ = [
    "LONGEST_WAIT",
    "SOCKET",
    "VERBS",
    "ActedBy",
    "AdminSocket",
    "CancelJob",
    "DiscardLetter",
    "Drain",
    "Exports",
    "Fire",
    "Hook",
    "Intake",
    "Key",
    "Manifest",
    "ManifestProblems",
    "ManifestTrigger",
    "NotNow",
    "Options",
    "PauseQueue",
    "Problem",
    "Replay",
    "ReplayLetter",
    "Reply",
    "ResumeQueue",
    "RetryJob",
    "Running",
    "ServeOptions",
    "Service",
    "Verb",
    "check_exposure",
    "check_loopback",
    "connect",
    "examine_manifest",
    "explain",
    "find_verbs",
    "inspection",
    "known_job",
    "known_queue",
    "manifest_consumer",
    "manifest_schema",
    "masked",
    "matching_key",
    "names_in_path",
    "overview",
    "own",
    "queue_samples",
    "queues_view",
    "read_keys",
    "read_manifest",
    "shares_of",
    "unservable",
    "verb",
]

"""The orchestrator: runs the triggers and worker queues of a manifest.

manifest.py           harn.toml as frozen records
manifest_triggers.py  its [[triggers]] tables
trigger_checks.py     the parts of such a table, checked one by one
manifest_errors.py    mistakes in a manifest, each with its line
manifest_schema.py    the JSON Schema of harn.toml, for editors
exports.py            from `handlers::on_task` to a callable
secret_names.py       the names of secrets; their values are read at the start
manifest_plan.py      a manifest with its handlers and secrets, before it takes effect
manifest_changes.py   what differs between two plans
service.py            the service: start, reload, drain
exposure.py           which addresses it may listen on
admin_verbs.py        what an operator may ask of a running service
queue_verbs.py        those verbs that are about a queue and its jobs
read_verbs.py         those verbs that only look
verb_options.py       the options that all verbs share
admin_socket.py       the socket in the state directory, and the lock of its owner
drain_note.py         why a drain found nothing to do although jobs are ready
finishing.py          wait for the pool tasks that a dispatch caused
manifest_consumer.py  a worker queue's consumer for a manifest's handlers
webhook_rules.py      checks and reads a request to a trigger
a2a_rules.py          checks and answers an A2A call
agent_card.py         the A2A agent card: what the hooks for agents offer
intake.py             requests, checked and accepted as events
views/                read-only views: queues, jobs, triggers, everything
"""

from harn.orchestrator.admin_socket import SOCKET, AdminSocket, connect, own
from harn.orchestrator.admin_verbs import (
    VERBS,
    ActedBy,
    DiscardLetter,
    Drain,
    Fire,
    Replay,
    ReplayLetter,
    Running,
    Verb,
    find_verbs,
    verb,
)
from harn.orchestrator.exports import Exports
from harn.orchestrator.exposure import check_exposure, check_loopback, read_keys
from harn.orchestrator.intake import Intake, Reply
from harn.orchestrator.manifest import (
    Manifest,
    ServeOptions,
    examine_manifest,
    read_manifest,
)
from harn.orchestrator.manifest_consumer import manifest_consumer
from harn.orchestrator.manifest_errors import ManifestProblems, Problem
from harn.orchestrator.manifest_schema import manifest_schema
from harn.orchestrator.manifest_triggers import ManifestTrigger, unservable
from harn.orchestrator.queue_verbs import (
    CancelJob,
    PauseQueue,
    ResumeQueue,
    RetryJob,
    known_job,
    known_queue,
)
from harn.orchestrator.service import NotNow, Service
from harn.orchestrator.verb_options import Options
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

__all__ = [
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

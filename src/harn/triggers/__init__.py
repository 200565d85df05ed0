"""Triggers: an event finds its handlers.

event.py        TriggerEvent, and dotted paths into it
matching.py     which bindings an event reaches, and in which order
binding.py      a trigger, checked, with its version
flow.py         the gates' options and decisions; gates.py carries them out; line.py, who waits
retry.py        when a failed dispatch is tried again; circuit.py, when a destination is left alone
handlers.py     SpawnToPool, worker://, functions; a2a.py, a2a:// over outbound.py and guard.py
dispatch.py     one event on its way; dispatcher.py, attempts and outcome; outcomes.py, its records
deadletters.py  what can be done about what failed
tending.py      signs of life, and what other processes left behind
cron.py         schedules; sources.py, what comes by itself: schedules and topics
jobs.py         an event that comes back out of a worker queue
signatures.py   who signed a webhook; secrets.py, what is never shown
registry.py     the triggers of a runtime; verbs.py, trigger_register, channel_emit and their kin
"""

from harn.triggers.a2a import A2aRights, A2aTarget
from harn.triggers.binding import (
    KINDS,
    PROVIDERS,
    Binding,
    TriggerBinding,
    check_binding,
    check_id,
    check_kind,
    check_priority,
    check_provider,
)
from harn.triggers.circuit import circuit_state
from harn.triggers.cron import check_catchup, check_expression, check_schedule, check_zone
from harn.triggers.deadletters import DeadLetters, Letters
from harn.triggers.dispatch import Dispatch, DispatchHandle
from harn.triggers.event import TriggerEvent, check_tenant, event_from
from harn.triggers.guard import check_allowed
from harn.triggers.handlers import Call, LocalTarget, SpawnToPool, Target, check_handler
from harn.triggers.jobs import JobRunner
from harn.triggers.matching import check_match, is_wanted
from harn.triggers.registry import Accepted, EmitReceipt, Triggers
from harn.triggers.retry import FROM_MANIFEST
from harn.triggers.secrets import Secrets, is_credential
from harn.triggers.signatures import (
    SCHEMES,
    Genuine,
    Headers,
    Refused,
    Scheme,
    sign,
    signing_key,
    verify,
)
from harn.triggers.verbs import (
    channel_emit,
    trigger_fire,
    trigger_list,
    trigger_register,
    trigger_unregister,
)

__all__ = [
    "FROM_MANIFEST",
    "KINDS",
    "PROVIDERS",
    "SCHEMES",
    "A2aRights",
    "A2aTarget",
    "Accepted",
    "Binding",
    "Call",
    "DeadLetters",
    "Dispatch",
    "DispatchHandle",
    "EmitReceipt",
    "Genuine",
    "Headers",
    "JobRunner",
    "Letters",
    "LocalTarget",
    "Refused",
    "Scheme",
    "Secrets",
    "SpawnToPool",
    "Target",
    "TriggerBinding",
    "TriggerEvent",
    "Triggers",
    "channel_emit",
    "check_allowed",
    "check_binding",
    "check_catchup",
    "check_expression",
    "check_handler",
    "check_id",
    "check_kind",
    "check_match",
    "check_priority",
    "check_provider",
    "check_schedule",
    "check_tenant",
    "check_zone",
    "circuit_state",
    "event_from",
    "is_credential",
    "is_wanted",
    "sign",
    "signing_key",
    "trigger_fire",
    "trigger_list",
    "trigger_register",
    "trigger_unregister",
    "verify",
]

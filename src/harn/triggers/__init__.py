"""Triggers: an event finds its handlers.

event.py           TriggerEvent, and dotted paths into it
matching.py        which bindings an event reaches, and in which order
binding.py         a trigger, checked, with its version
trigger_options.py its options as type checkers read them
registry.py        the triggers of a runtime: register, accept events, fire, emit, replay
targets.py         where an event goes: functions, SpawnToPool, worker://, channel://; a2a.py, a2a://
http_client.py     one HTTP request to a checked address
allowed_hosts.py   which addresses may be called
gate_rules.py      the options and decisions of the gates before a handler
gates.py           those decisions, carried out on the store
batch_gate.py      which event dispatches a batch
gate_queue.py      the dispatches of this process that wait at one gate
retry.py           when a failed dispatch is tried again
circuit_breaker.py when a destination that keeps failing is not called
stored_circuits.py those decisions, carried out on the store
delivery.py        one delivery to a trigger: its name, its call, whether it is a replay
dedupe_claims.py   what makes an event a duplicate
dispatch_state.py  one event on its way to one binding
dispatcher.py      a dispatch from its envelope to its outcome
attempts.py        the calls of its handler, and the waits between them
handler_failure.py what a handler raised, without secrets
emit_receipt.py    what an emit returns
outcomes.py        the records that a dispatch ends with
recovery.py        this process's lease, and the events of processes that died
replay_mapping.py  whether a replay has the same pool, key and priority as before
dead_letters.py    list, replay and discard what failed; replay any event
cron.py            schedules
sources.py         what makes events without a caller: schedules and topics
job_runner.py      runs the job of a worker queue that holds an event
signatures.py      whether a webhook's signature is valid
secrets.py         values and headers that are never shown
duplicate_count.py how many repeated events were refused; not_found.py, an error
trigger_verbs.py   the public verbs: they use the current runtime
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.triggers.a2a import A2aRights, A2aTarget
    from harn.triggers.allowed_hosts import check_allowed, read_url
    from harn.triggers.binding import (
        KINDS,
        OPTIONS,
        PROVIDERS,
        Binding,
        TriggerBinding,
        check_binding,
        check_id,
        check_kind,
        check_priority,
        check_provider,
    )
    from harn.triggers.circuit_breaker import circuit_state
    from harn.triggers.cron import check_catchup, check_expression, check_schedule, check_zone
    from harn.triggers.dead_letters import DeadLetters, Letters
    from harn.triggers.delivery import Call
    from harn.triggers.dispatch_state import Dispatch, DispatchHandle
    from harn.triggers.duplicate_count import Repetitions
    from harn.triggers.emit_receipt import EmitReceipt
    from harn.triggers.event import TriggerEvent, check_tenant, event_from
    from harn.triggers.gate_rules import GATES
    from harn.triggers.job_runner import JobRunner
    from harn.triggers.matching import check_match, is_wanted
    from harn.triggers.not_found import NotFound
    from harn.triggers.registry import Accepted, Triggers
    from harn.triggers.replay_mapping import compare_mapping
    from harn.triggers.retry import FROM_MANIFEST
    from harn.triggers.secrets import Secrets, is_credential
    from harn.triggers.signatures import (
        SCHEMES,
        Genuine,
        Headers,
        Scheme,
        Unproven,
        sign,
        signing_key,
        verify,
    )
    from harn.triggers.targets import LocalTarget, SpawnToPool, Target, check_handler
    from harn.triggers.trigger_options import FlowOptions, MatchOptions
    from harn.triggers.trigger_verbs import (
        channel_emit,
        trigger_fire,
        trigger_list,
        trigger_register,
        trigger_unregister,
    )
else:
    front_door(
        __name__,
        {
            "a2a": "A2aRights A2aTarget",
            "allowed_hosts": "check_allowed read_url",
            "binding": """
                KINDS OPTIONS PROVIDERS Binding TriggerBinding check_binding check_id check_kind
                check_priority check_provider
            """,
            "circuit_breaker": "circuit_state",
            "cron": "check_catchup check_expression check_schedule check_zone",
            "dead_letters": "DeadLetters Letters",
            "delivery": "Call",
            "dispatch_state": "Dispatch DispatchHandle",
            "event": "TriggerEvent check_tenant event_from",
            "gate_rules": "GATES",
            "job_runner": "JobRunner",
            "matching": "check_match is_wanted",
            "not_found": "NotFound",
            "registry": "Accepted Triggers",
            "emit_receipt": "EmitReceipt",
            "duplicate_count": "Repetitions",
            "replay_mapping": "compare_mapping",
            "retry": "FROM_MANIFEST",
            "secrets": "Secrets is_credential",
            "signatures": "SCHEMES Genuine Headers Scheme Unproven sign signing_key verify",
            "targets": "LocalTarget SpawnToPool Target check_handler",
            "trigger_options": "FlowOptions MatchOptions",
            "trigger_verbs": """
                channel_emit trigger_fire trigger_list trigger_register trigger_unregister
            """,
        },
    )

__all__ = [
    "FROM_MANIFEST",
    "GATES",
    "KINDS",
    "OPTIONS",
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
    "FlowOptions",
    "Genuine",
    "Headers",
    "JobRunner",
    "Letters",
    "LocalTarget",
    "MatchOptions",
    "NotFound",
    "Repetitions",
    "Scheme",
    "Secrets",
    "SpawnToPool",
    "Target",
    "TriggerBinding",
    "TriggerEvent",
    "Triggers",
    "Unproven",
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
    "compare_mapping",
    "event_from",
    "is_credential",
    "is_wanted",
    "read_url",
    "sign",
    "signing_key",
    "trigger_fire",
    "trigger_list",
    "trigger_register",
    "trigger_unregister",
    "verify",
]

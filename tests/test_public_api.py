"""`harn.__all__` is sorted, is exactly what is public, and grows towards the agreed surface."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import harn
from harn.context import Ambient
from harn.eventlog import event_log
from harn.llm.agent import OPTIONS as AGENT_OPTIONS
from harn.llm.call import LlmOptions
from harn.llm.llm_stream import LlmStream
from harn.runtime import RuntimeOptions
from harn.triggers import PROVIDERS, FlowOptions, MatchOptions
from harn.triggers.binding import OPTIONS as TRIGGER_OPTIONS
from harn.triggers.event import SETTABLE
from harn.triggers.matching import MATCH_KEYS
from harn.triggers.trigger_options import EventFields, ProviderName
from harn.workers import held_claim, queue
from harn.workers.function_jobs import JobOptions

STUB = Path(harn.__file__).with_suffix(".pyi")
TYPES = {"Duration", "Owned"}
"""Names for type checkers, which are neither classes nor functions."""


def stubbed_names() -> list[str]:
    tree = ast.parse(STUB.read_text())
    return [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(harn.__all__) == sorted(set(harn.__all__))


def test_type_checkers_see_the_same_names() -> None:
    assert sorted(stubbed_names()) == list(harn.__all__)


@pytest.mark.parametrize("name", sorted({*harn.__all__} - TYPES))
def test_every_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    thing = getattr(harn, name)

    assert inspect.isclass(thing) or inspect.isfunction(thing)
    assert inspect.getdoc(thing), f"{name} has no docstring"
    assert thing.__module__.startswith("harn."), f"{name} is not ours"


def test_the_public_types_can_be_imported() -> None:
    assert all(getattr(harn, name) for name in TYPES)


FUTURE = "done cancelled exception add_done_callback remove_done_callback"
"""What `asyncio.wait` and its relatives use of a task."""
AMBIENT = " ".join(Ambient.__struct_fields__)
SHOWN = {
    "TaskHandle": f"task_id status wait result cancel {FUTURE}",
    "PoolTask": f"""
        id pool pool_id status priority key labels idempotency_key conflicts submitted_at
        submitted_by result error rejection_reason rejection_policy snapshot wait cancel {FUTURE}
    """,
    "Pool": """
        id name max_concurrent scope scope_id created_at submit submit_nowait submit_many size
        snapshot close
    """,
    "Scope": "spawn defer cancel",
    "ParallelStream": "aclose",
    "Subscription": "ready aclose",
    "LlmSlot": "provider model waited_ms sending settle retry_after feedback",
    "LlmStream": "name capacity closed send receive try_send try_receive close",
    "SseStream": "last_event_id receive",
    "RateLimitGrant": """
        ok timed_out waited_ms retry_after_ms buckets state_path settle as_dict
    """,
    "RuntimeContext": f"""
        task_id parent_task_id root_task_id task_name task_group_id scope_id {AMBIENT}
        trace_id span_id context_values cancelled debug as_dict
    """,
    "ChildContext": """
        supervisor_id child_name child_kind attempt restart_count lease_epoch as_dict
    """,
    "Supervisor": "id name strategy state events wait stop",
    "Mutex": "",
    "Permit": "kind key permits released release",
    "Channel": "name capacity closed send receive try_send try_receive close",
    "Mailbox": "name scope closed send receive try_receive close metrics",
    "SharedCell": "key scope get set cas snapshot metrics",
    "SharedMap": "key scope get set delete cas snapshot entries metrics",
    "Atomic": "get set add cas",
}
"""The names that a program sees of the objects that it is given."""


async def given_to_a_program() -> list[object]:
    pool = await harn.pool_create(name="pool")
    return [
        harn.spawn(harn.sleep, "1h"),
        harn.scope(),
        harn.parallel_each_stream([1], harn.sleep),
        harn.event_log_subscribe("news"),
        harn.llm_slot("acme"),
        LlmStream("answer"),
        harn.sse_connect("http://localhost/"),
        await harn.durable_rate_limit_acquire(key="rpm", limit=1),
        harn.runtime_context(),
        harn.ChildContext("supervisor_1", "tick", "task", 1, 0),
        pool,
        await pool.submit(harn.sleep, "1h"),
        await harn.supervisor_start(children=[harn.Child("child", lambda ctx: None)]),
        await harn.sync_mutex_acquire("mutex"),
        harn.mutex("guard"),
        harn.channel(),
        harn.mailbox_open("inbox"),
        harn.shared_cell("cell"),
        harn.shared_map("map"),
        harn.atomic(),
    ]


async def test_what_a_program_is_given_shows_its_public_names_only(runtime: harn.Runtime) -> None:
    given = await given_to_a_program()

    shown = {
        type(each).__name__: {name for name in dir(each) if not name.startswith("_")}
        for each in given
    }

    assert shown == {kind: set(names.split()) for kind, names in SHOWN.items()}


TESTED_APART = {"Runtime", "WorkerQueue", "Claim"}
WITHOUT_OBJECTS = {"Backpressure", "Provider", "PoolHost", "QueueStrategy"}
"""Namespaces, and protocols that a program implements itself."""


def test_every_public_class_with_state_is_in_the_table() -> None:
    classes = {
        name: thing
        for name in harn.__all__
        if inspect.isclass(thing := getattr(harn, name)) and not issubclass(thing, BaseException)
    }

    records = {
        name
        for name, thing in classes.items()
        if dataclasses.is_dataclass(thing) or issubclass(thing, msgspec.Struct)
    }

    assert set(classes) - records <= {*SHOWN, *TESTED_APART, *WITHOUT_OBJECTS}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pool_crate'"):
        harn.pool_crate  # type: ignore[attr-defined]


def test_importing_harn_loads_no_room() -> None:
    import subprocess
    import sys

    code = "import sys, harn; print(sorted(m for m in sys.modules if m.startswith('harn.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['harn.front_door']"


OPTION_TYPES: list[tuple[type, set[str]]] = [
    (RuntimeOptions, set(inspect.signature(harn.Runtime).parameters)),
    (LlmOptions, set(AGENT_OPTIONS)),
    (JobOptions, set(inspect.signature(harn.WorkerQueue.enqueue).parameters) - {"self", "payload"}),
    (MatchOptions, set(MATCH_KEYS)),
    (FlowOptions, set(TRIGGER_OPTIONS)),
    (EventFields, set(SETTABLE) - {"id"}),
]


@pytest.mark.parametrize(
    ("options", "known"), OPTION_TYPES, ids=[options.__name__ for options, _ in OPTION_TYPES]
)
def test_the_type_of_options_has_exactly_those_that_are_accepted(
    options: type, known: set[str]
) -> None:
    assert set(options.__annotations__) == known


def test_the_type_of_the_provider_of_a_trigger_has_exactly_those_that_are_accepted() -> None:
    assert set(get_args(ProviderName)) == {name for names in PROVIDERS.values() for name in names}


def shown(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def left_out(thing: object) -> set[str]:
    return {name for name in object.__dir__(thing) if not name.startswith("_")} - shown(thing)


async def test_an_event_log_shows_its_public_names_only(runtime: harn.Runtime) -> None:
    log = runtime.event_log

    assert shown(log) == {
        *("emit", "read", "subscribe", "record", "trim", "dropped", "damaged", "damaged_total"),
    }
    assert left_out(log) == set(event_log.SEAMS)


async def test_a_worker_queue_shows_its_public_names_only(runtime: harn.Runtime) -> None:
    shown_queue = harn.worker_queue("shown")

    assert shown(shown_queue) == {
        *("name", "policy", "enqueue", "submit", "enqueue_many", "claim_next", "claim_many"),
        *("job", "jobs", "cancel", "retry", "pause", "resume", "summary", "purge"),
    }
    assert left_out(shown_queue) == set(queue.SEAMS)


async def test_a_claim_shows_its_public_names_only(runtime: harn.Runtime) -> None:
    work = harn.worker_queue("shown")
    await work.enqueue(1)

    claim = await work.claim_next("me")

    assert claim is not None
    assert shown(claim) == {
        *("job", "attempt", "claim_id", "expires_at_ms", "renew", "ack", "fail", "release"),
    }
    assert left_out(claim) == set(held_claim.SEAMS)


async def test_a_receipt_and_a_jobs_state_show_their_public_names_only(
    runtime: harn.Runtime,
) -> None:
    receipt = await harn.worker_queue("shown").enqueue(1)

    assert shown(receipt) == {
        *("queue", "job_id", "response_topic", "durability", "duplicate", "ticket", "function"),
        *("result", "state", "cancel", "as_dict"),
    }
    assert shown(await receipt.state()) == {
        *("id", "queue", "status", "payload", "function", "priority", "tenant_id", "trigger_id"),
        *("binding_key", "headers", "dedupe_key", "cost", "enqueued_at_ms", "not_before_ms"),
        *("attempts", "max_attempts", "consumer_id", "claim_expires_at_ms", "settled_at_ms"),
        *("outcome", "outcome_omitted", "error", "traceback", "steps", "is_settled", "as_dict"),
    }

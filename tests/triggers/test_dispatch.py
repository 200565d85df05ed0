"""Events in, handlers called, outcomes written: by the front door."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from harn import (
    InvalidOption,
    Runtime,
    SpawnToPool,
    TriggerError,
    TriggerEvent,
    channel_emit,
    current_runtime,
    event_log_emit,
    event_log_read,
    runtime_context,
    topics,
    trigger_fire,
    trigger_list,
    trigger_register,
    trigger_unregister,
)
from harn.pools import (
    backpressure_queue,
    fail_fast,
    fair_round_robin,
    pool_create,
    pool_wait,
    ring_buffer,
)
from harn.storage import Store
from harn.storage.triggers import has_no_failures
from harn.testing import FakeClock
from harn.triggers import Triggers
from harn.triggers.circuit_breaker import THRESHOLD
from harn.triggers.secrets import Secrets
from harn.triggers.stored_circuits import Circuits

Seen = list[Any]


async def on_channel(name: str, handler: Any, id: str = "t", **flow: Any) -> None:
    await trigger_register(
        id=id,
        kind="channel.emit",
        provider="channel",
        match={"events": [f"channel:{name}"]},
        handler=handler,
        **flow,
    )


def into(seen: Seen) -> Callable[[TriggerEvent], None]:
    async def handler(event: TriggerEvent) -> None:
        seen.append(event.get("provider_payload.payload"))

    return handler  # type: ignore[return-value]


async def records(topic: str) -> list[tuple[str, Any]]:
    return [(event.kind, event.payload) for event in await event_log_read(topic)]


async def test_an_emit_reaches_every_trigger_of_its_channel_and_no_other(runtime: Runtime) -> None:
    seen: Seen = []
    await on_channel("a", into(seen), "one")
    await on_channel("a", into(seen), "two")
    await on_channel("b", into(seen), "three")

    receipt = await channel_emit("a", {"n": 1})

    assert seen == [{"n": 1}, {"n": 1}]
    assert [handle.binding_id for handle in receipt.dispatched] == ["one", "two"]
    assert {handle.status for handle in receipt.dispatched} == {"dispatched"}
    assert not receipt.duplicate


async def test_dispatch_starts_in_the_order_of_ids_whatever_the_registration(
    runtime: Runtime,
) -> None:
    order: Seen = []
    for id in ("c", "a", "b"):
        await on_channel("x", lambda event, id=id: order.append(id), id)

    await channel_emit("x", None)

    kinds = await records(topics.TRIGGER_ENVELOPES)
    assert [payload["trigger_id"] for _, payload in kinds] == ["a", "b", "c"]
    assert sorted(order) == ["a", "b", "c"]


async def test_plain_functions_partials_and_objects_are_handlers_too(runtime: Runtime) -> None:
    class Handler:
        async def __call__(self, event: TriggerEvent) -> str:
            return "object"

    await on_channel("x", lambda event: "plain", "a")
    await on_channel("x", Handler(), "b")

    receipt = await channel_emit("x", None)

    assert [handle.result for handle in receipt.dispatched] == ["plain", "object"]


async def test_a_handler_knows_on_whose_behalf_it_runs(runtime: Runtime) -> None:
    contexts: Seen = []

    async def handler(event: TriggerEvent) -> None:
        contexts.append(runtime_context())

    await on_channel("x", handler)
    handle = await trigger_fire("t", None, tenant_id="acme")

    [context] = contexts
    assert (context.trigger_id, context.binding_key, context.tenant_id) == ("t", "t@v1", "acme")
    assert context.trigger_event_id == handle.event_id


async def test_an_emit_with_a_known_id_dispatches_nothing(runtime: Runtime) -> None:
    seen: Seen = []
    await on_channel("x", into(seen))

    first = await channel_emit("x", 1, id="k")
    second = await channel_emit("x", 2, id="k")
    other = await channel_emit("x", 3, id="l")

    assert seen == [1, 3]
    assert (second.duplicate, second.event_id, second.dispatched) == (True, first.event_id, ())
    assert not other.duplicate


async def test_a_binding_may_know_events_by_a_path(runtime: Runtime) -> None:
    seen: Seen = []
    await on_channel("x", into(seen), dedupe_key="provider_payload.payload.order")

    for order in (1, 1, 2, None, None):
        await channel_emit("x", {"order": order})

    assert seen == [{"order": 1}, {"order": 2}, {"order": None}, {"order": None}]


async def test_a_fire_waits_for_the_result_and_skips_matching(runtime: Runtime) -> None:
    await on_channel("x", lambda event: event.get("provider_payload.payload") * 2)

    handle = await trigger_fire("t", 21)

    assert (handle.status, handle.result, handle.error) == ("dispatched", 42, None)
    assert handle.as_dict()["binding_version"] == 1


async def test_a_failing_handler_is_retried_and_then_a_dead_letter(runtime: Runtime) -> None:
    attempts: Seen = []

    def fail(event: TriggerEvent) -> None:
        attempts.append(event.id)
        raise ValueError("no good")

    await on_channel("x", fail, retry={"max": 3, "backoff": "immediate"})
    handle = await trigger_fire("t", {"n": 1})

    assert len(attempts) == 3
    assert handle.status == "dlq"
    assert handle.error == "handler raised ValueError: no good"
    [(kind, moved), (last, entry)] = await records(topics.TRIGGER_DLQ)
    assert (kind, last) == ("dlq_moved", "dlq_entry")
    assert (moved["trigger_id"], moved["binding_key"]) == ("t", "t@v1")
    assert (moved["attempt_count"], moved["final_error"]) == (3, handle.error)
    assert [each["attempt"] for each in moved["attempts"]] == [1, 2, 3]
    assert moved["event"] == entry["event"]
    assert (entry["id"], entry["state"], entry["error_class"]) == (
        handle.dlq_entry_id,
        "pending",
        "handler_panic",
    )
    assert [each["attempt"] for each in entry["retry_history"]] == [1, 2, 3]
    assert entry["event"]["provider_payload"]["payload"] == {"n": 1}


async def test_a_retry_waits_as_its_schedule_says(runtime: Runtime, clock: FakeClock) -> None:
    times: Seen = []

    async def fail_twice(event: TriggerEvent) -> str:
        times.append(clock.monotonic())
        if len(times) < 3:
            raise RuntimeError("not yet")
        return "done"

    await on_channel("x", fail_twice)
    receipt = await channel_emit("x", None)
    assert receipt.dispatched[0].status == "waiting"

    await clock.advance("10m")
    handle = await receipt.dispatched[0].wait()

    assert times == [0, 5, 305]
    assert (handle.status, handle.result) == ("dispatched", "done")


async def test_five_failures_in_a_row_open_the_circuit(runtime: Runtime, clock: FakeClock) -> None:
    failing = True

    async def handler(event: TriggerEvent) -> str:
        if failing:
            raise RuntimeError("down")
        return "up"

    await on_channel("x", handler, retry={"backoff": "immediate"})

    first = await trigger_fire("t")
    second = await trigger_fire("t")
    [_, (_, one), _, (_, two)] = await records(topics.TRIGGER_DLQ)
    await clock.advance("60s")
    failing = False
    third = await trigger_fire("t")

    assert "circuit opened" in str(first.error)
    assert "circuit is open" in str(second.error)
    assert (one["attempt_count"], two["attempt_count"]) == (5, 0)
    assert third.result == "up"


async def test_a_success_in_between_starts_the_count_again(runtime: Runtime) -> None:
    circuits = Circuits(runtime)
    for _ in range(THRESHOLD - 1):
        await circuits.note_failure("local:t")

    await circuits.note_success("local:t")

    assert not await circuits.note_failure("local:t")


async def test_a_probe_that_succeeds_closes_the_circuit(runtime: Runtime, clock: FakeClock) -> None:
    circuits = Circuits(runtime)
    for _ in range(THRESHOLD):
        await circuits.note_failure("local:t")
    await clock.advance("60s")
    probe = await circuits.admits("local:t")

    await circuits.note_success("local:t")

    assert probe
    assert await circuits.admits("local:t")


async def test_what_is_not_json_is_kept_as_text(runtime: Runtime) -> None:
    await on_channel("x", lambda event: {1, 2} and object())

    handle = await trigger_fire("t")

    assert handle.result["result_omitted"] is True


@pytest.mark.parametrize("raised", [SystemExit(3), NotImplementedError("never"), RuntimeError("x")])
async def test_whatever_a_handler_raises_ends_its_dispatch_only(
    runtime: Runtime, raised: BaseException
) -> None:
    async def handler(event: TriggerEvent) -> None:
        raise raised

    await on_channel("x", handler, retry={"max": 1})

    assert (await trigger_fire("t")).status == "dlq"


async def test_T4_a_pool_task_is_the_receipt(runtime: Runtime) -> None:
    done: Seen = []
    await pool_create(name="work", queue=fair_round_robin("source"))
    await on_channel(
        "x",
        SpawnToPool(
            pool="work",
            key_from="provider_payload.payload.source",
            priority_from="provider_payload.payload.urgency",
            task_factory=lambda event: lambda: done.append(event.id),
        ),
    )

    receipt = await channel_emit("x", {"source": "github", "urgency": "7"})
    [handle] = receipt.dispatched
    outcome = await pool_wait(handle.result)

    assert (outcome.status, outcome.key, outcome.priority) == ("completed", "github", 7)
    assert done == [receipt.event_id]
    audit = dict(await records(topics.CHANNEL_AUDIT))
    match = audit["channel_match_receipt"]
    assert match["handler_result"]["id"] == handle.result["id"]
    assert (match["handler_kind"], match["target_uri"]) == ("spawn_to_pool", "pool://work")


@pytest.mark.parametrize("urgency", ["high", None, [1], {}, True])
async def test_T4_an_odd_priority_is_no_error(runtime: Runtime, urgency: Any) -> None:
    await pool_create(name="work")
    handler = SpawnToPool(
        "work", lambda event: lambda: 1, "provider_payload.payload.u", "provider_payload.payload.u"
    )
    await on_channel("x", handler)

    [handle] = (await channel_emit("x", {"u": urgency})).dispatched

    assert handle.status == "dispatched"
    assert handle.result["priority"] == (1 if urgency is True else 0)


async def test_T4_a_missing_pool_is_a_dead_letter_at_once(runtime: Runtime) -> None:
    await on_channel("x", SpawnToPool("no-such", lambda event: lambda: 1))

    [handle] = (await channel_emit("x", None)).dispatched

    assert handle.status == "dlq"
    assert "'no-such' does not exist" in str(handle.error)


async def test_a_factory_that_returns_no_function_fails(runtime: Runtime) -> None:
    await pool_create(name="work")
    await on_channel("x", SpawnToPool("work", lambda event: 5), retry={"max": 1})  # type: ignore[arg-type,return-value]

    assert "must return a function" in str((await trigger_fire("t")).error)


async def test_a_full_pool_fails_the_attempt_and_a_drop_is_a_result(runtime: Runtime) -> None:
    gate = asyncio.Event()
    busy = await pool_create(name="busy", backpressure=fail_fast())
    drops = await pool_create(name="drops", backpressure=backpressure_queue(1, "drop_newest"))
    for pool in (busy, drops, drops):
        await pool.submit(gate.wait)
    await on_channel(
        "a",
        SpawnToPool("busy", lambda event: lambda: 1),
        "busy",
        retry={"max": 2, "backoff": "immediate"},
    )
    await on_channel("b", SpawnToPool("drops", lambda event: lambda: 1), "drops")

    [refused] = (await channel_emit("a", None)).dispatched
    [dropped] = (await channel_emit("b", None)).dispatched
    gate.set()

    assert (refused.status, "HARN-POL-002" in str(refused.error)) == ("dlq", True)
    assert (dropped.status, dropped.result["status"]) == ("dispatched", "rejected")
    assert dropped.result["rejection_reason"]


async def test_T5_a_full_pool_under_one_trigger_does_not_stop_the_others(runtime: Runtime) -> None:
    gate = asyncio.Event()
    seen: Seen = []
    pool = await pool_create(name="full", backpressure=backpressure_queue(1, "block_submitter"))
    for _ in range(2):
        await pool.submit(gate.wait)
    await on_channel("x", SpawnToPool("full", lambda event: lambda: 1), "a-blocked")
    await on_channel("x", into(seen), "b-free")

    receipts = [await channel_emit("x", n) for n in range(2)]

    assert seen == [0, 1]
    assert [[h.status for h in r.dispatched] for r in receipts] == [["waiting", "dispatched"]] * 2
    gate.set()
    for receipt in receipts:
        assert (await receipt.dispatched[0].wait()).status == "dispatched"


async def test_an_overflowing_ring_is_visible_in_the_pools_audit(runtime: Runtime) -> None:
    gate = asyncio.Event()
    await pool_create(name="ring", backpressure=ring_buffer(2))
    await on_channel("x", SpawnToPool("ring", lambda event: gate.wait))

    for n in range(5):
        await channel_emit("x", n)
    gate.set()

    assert [kind for kind, _ in await records(topics.POOL_AUDIT)].count("pool_drop") == 2


async def test_a_new_definition_is_a_new_version_and_the_old_one_finishes(runtime: Runtime) -> None:
    began, gate = asyncio.Event(), asyncio.Event()
    ended: Seen = []

    async def old(event: TriggerEvent) -> None:
        began.set()
        await gate.wait()
        ended.append("old")

    await on_channel("x", old)
    firing = asyncio.ensure_future(trigger_fire("t"))
    await began.wait()
    await on_channel("x", lambda event: ended.append("new"))

    assert [(b.key, b.state) for b in trigger_list()] == [("t@v1", "draining"), ("t@v2", "active")]
    await trigger_fire("t")
    gate.set()
    handle = await firing

    assert ended == ["new", "old"]
    assert handle.binding_version == 1
    assert [b.key for b in trigger_list()] == ["t@v2"]


async def test_the_same_definition_again_changes_nothing(runtime: Runtime) -> None:
    def handler(event: TriggerEvent) -> None: ...

    await on_channel("x", handler)
    await on_channel("x", handler)

    assert [binding.version for binding in trigger_list()] == [1]


async def test_an_unregistered_trigger_hears_nothing(runtime: Runtime) -> None:
    seen: Seen = []
    await on_channel("x", into(seen))

    assert trigger_unregister("t") is True
    assert trigger_unregister("t") is False
    await channel_emit("x", 1)

    assert (seen, trigger_list()) == ([], [])
    with pytest.raises(TriggerError, match="no trigger 't'"):
        await trigger_fire("t")


async def test_an_unknown_trigger_is_suggested(runtime: Runtime) -> None:
    await on_channel("x", print, "reporter")

    with pytest.raises(TriggerError, match="did you mean 'reporter'"):
        await trigger_fire("reportr")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"id": ""}, "id"),
        ({"id": "../x"}, "id"),
        ({"id": "a\x00b"}, "id"),
        ({"id": "x" * 200}, "id"),
        ({"id": 5}, "id"),
        ({"kind": "chanel.emit"}, "did you mean 'channel.emit'"),
        ({"provider": "github"}, "provider"),
        ({"handler": 5}, "handler"),
        ({"handler": "wrker://q"}, "did you mean 'worker'"),
        ({"handler": "worker://"}, "queue"),
        ({"handler": "a2a://user:pw@host/"}, "handler"),
        ({"throtle": {}}, "did you mean 'throttle'"),
        ({"schedule": "* * * * *"}, "only for kind 'cron'"),
        ({"priority": "urgent"}, "priority"),
        ({"dedupe_key": ""}, "dedupe_key"),
    ],
)
async def test_a_bad_trigger_is_refused_by_name(
    runtime: Runtime, changes: dict[str, Any], named: str
) -> None:
    options = {
        "id": "t",
        "kind": "channel.emit",
        "provider": "channel",
        "match": {},
        "handler": print,
    }

    with pytest.raises(InvalidOption, match=named):
        await trigger_register(**{**options, **changes})

    assert trigger_list() == []


async def test_a_stream_trigger_follows_a_topic_from_now_on(
    runtime: Runtime, clock: FakeClock
) -> None:
    seen: Seen = []
    await event_log_emit("orders", "created", 0)
    await trigger_register(
        id="s",
        kind="stream",
        provider="stream",
        match={"topic": "orders", "events": ["created"]},
        handler=into(seen),
    )
    await clock.settle()

    for kind, n in (("created", 1), ("deleted", 2), ("created", 3)):
        await event_log_emit("orders", kind, n)
    await clock.advance("1s")

    assert seen == [1, 3]


async def test_what_happens_is_told_in_the_log(runtime: Runtime) -> None:
    await on_channel("x", lambda event: "ok")
    await channel_emit("x", {"n": 1})

    assert [k for k, _ in await records(topics.TRIGGER_LIFECYCLE)] == ["trigger_registered"]
    [(kind, outcome)] = await records(topics.TRIGGER_OUTBOX)
    assert (kind, outcome["status"], outcome["result"]) == ("dispatch_succeeded", "succeeded", "ok")
    assert [k for k, _ in await records(topics.TRIGGER_ATTEMPTS)] == ["attempt_recorded"]
    assert await records("channels.x") == [("channel.emit", {"n": 1})]
    assert "harn_trigger_dispatches_total" in exposition()


def exposition() -> str:
    from harn.telemetry.metrics import Metrics

    return current_runtime().service(Metrics).exposition()


async def test_leaving_the_runtime_cancels_what_is_under_way() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(event: TriggerEvent) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with Runtime():
        await on_channel("x", handler)
        firing = asyncio.ensure_future(trigger_fire("t"))
        await started.wait()

    assert cancelled.is_set()
    assert (await firing).status == "cancelled"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant_id", 5),
        ("tenant_id", ""),
        ("tenant_id", "a\nb"),
        ("tenant_id", "x" * 257),
        ("headers", {"a": 1}),
        ("occurred_at", "yesterday"),
        ("occurred_at", 5),
        ("kind", None),
        ("dedupe_key", 5),
        ("batch", 5),
        ("tenent_id", "acme"),
    ],
)
async def test_an_event_that_cannot_be_is_refused_before_it_is_written(
    runtime: Runtime, field: str, value: Any
) -> None:
    await on_channel("c", "worker://q")

    with pytest.raises(InvalidOption, match=field):
        await trigger_fire("t", 1, **{field: value})

    assert await records(topics.TRIGGER_ENVELOPES) == []


async def test_every_failed_attempt_is_logged_and_kept_with_its_traceback(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(event: TriggerEvent) -> None:
        raise LookupError("nothing there, hush-hush")

    runtime.service(Secrets).register("hush-hush")
    await on_channel("c", handler, retry={"max": 2, "backoff": "immediate"})

    handle = await trigger_fire("t")

    lines = [record for record in caplog.records if record.name == "harn.triggers"]
    assert [line.levelname for line in lines] == ["WARNING", "WARNING", "ERROR"]
    assert all("in handler" in line.getMessage() for line in lines[:2])
    assert handle.dlq_entry_id and handle.dlq_entry_id in lines[2].getMessage()
    attempts = [payload for _, payload in await records(topics.TRIGGER_ATTEMPTS)]
    letters = [payload for kind, payload in await records(topics.TRIGGER_DLQ) if "id" in payload]
    for told in (*attempts, *letters):
        assert told["error_type"] == "LookupError"
        assert told["error_message"] == "nothing there, ***"
        assert "in handler" in told["traceback"]
    assert "hush-hush" not in caplog.text + str(attempts) + str(letters)


async def test_a_destination_without_failures_is_looked_up_once_a_second(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harn.triggers import stored_circuits

    looked_up: Seen = []
    look_up = vars(stored_circuits)["has_no_failures"]

    def counted(name: str) -> Any:
        looked_up.append(name)
        return look_up(name)

    monkeypatch.setattr(stored_circuits, "has_no_failures", counted)
    await on_channel("a", into([]))

    for _ in range(3):
        await channel_emit("a", None)
    first = len(looked_up)
    await clock.advance(seconds=2)
    await channel_emit("a", None)

    assert (first, len(looked_up)) == (1, 2)


async def test_a_success_counts_a_failure_of_the_same_process_away(runtime: Runtime) -> None:
    outcomes = iter([None, RuntimeError("down"), None])

    async def handler(event: TriggerEvent) -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    await on_channel("a", handler, retry={"max": 1})
    for _ in range(3):
        await channel_emit("a", None)

    binding = current_runtime().service(Triggers).get("t")
    store = current_runtime().service(Store)
    assert await store.run(lambda: has_no_failures(binding.destination), write=False)


async def test_a_task_factory_runs_on_the_event_loop(runtime: Runtime) -> None:
    threads: Seen = []

    def factory(event: TriggerEvent) -> Callable[[], None]:
        threads.append(threading.current_thread())
        return lambda: None

    await pool_create(name="work")
    await on_channel("a", SpawnToPool("work", factory))
    await channel_emit("a", None)

    assert threads == [threading.main_thread()]


async def test_a_channel_handler_emits_the_payload_with_the_events_id(runtime: Runtime) -> None:
    seen: Seen = []
    await on_channel("in", "channel://out", "forward")
    await on_channel("out", seen.append, "reader")

    [handle] = (await channel_emit("in", {"n": 1})).dispatched

    [event] = seen
    assert event.get("provider_payload.payload") == {"n": 1}
    assert event.dedupe_key == handle.event_id
    assert handle.result == {
        "event_id": event.id,
        "name": "out",
        "duplicate": False,
        "reached": ["reader"],
    }


async def test_a_batch_for_a_channel_is_emitted_as_a_list(runtime: Runtime) -> None:
    seen: Seen = []
    await on_channel("in", "channel://out", "forward", batch={"size": 2, "timeout": "1h"})
    await on_channel("out", into(seen), "reader")

    for n in range(2):
        receipt = await channel_emit("in", n)
    for handle in receipt.dispatched:
        await handle.wait()

    assert seen == [[0, 1]]


@pytest.mark.parametrize(("handler", "said"), [("channel://", "name"), ("channel://in", "another")])
async def test_a_channel_handler_needs_another_channels_name(
    runtime: Runtime, handler: str, said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        await on_channel("in", handler)


async def test_an_emit_that_does_not_wait_for_its_handlers_logs_nothing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harn.triggers.registry.EMIT_WAIT", 0.01)
    complaints: list[Any] = []
    end = asyncio.Event()

    async def wait(event: TriggerEvent) -> None:
        await end.wait()

    await on_channel("x", wait)
    asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))
    receipt = await channel_emit("x", 1)
    await asyncio.sleep(0)
    gc.collect()
    end.set()
    await receipt.dispatched[0].wait()

    assert complaints == []

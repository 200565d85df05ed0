"""What is known of one tenant's trigger is never taken for another's, whatever the names hold."""

from __future__ import annotations

from typing import Any

from harn import Runtime, channel_emit, event_log_read, topics, trigger_fire, trigger_register
from harn.orchestrator import Hook, Intake, Key
from harn.storage.triggers import DedupeClaim
from harn.triggers import sign
from harn.triggers.binding import check_binding
from harn.triggers.dispatch_state import Dispatch
from harn.triggers.retry import Retry
from tests.triggers.trigger_events import an_event


async def scopes(runtime: Runtime) -> list[str]:
    records = await event_log_read(topics.TRIGGER_CLAIMS)
    return [each.payload["scope"] for each in records if each.kind == "dedupe_claim"]


async def test_an_emit_is_known_to_its_own_tenant_and_channel_only(storage_url: str) -> None:
    async with Runtime(storage=storage_url, tenant_id="a:b"):
        first = await channel_emit("c", 1, id="same")
    async with Runtime(storage=storage_url, tenant_id="a"):
        other = await channel_emit("b:c", 1, id="same")
        again = await channel_emit("b:c", 1, id="same")

    assert (first.duplicate, other.duplicate, again.duplicate) == (False, False, True)


async def test_a_triggers_own_dedupe_key_is_known_to_its_tenant_only(lasting_url: str) -> None:
    seen: list[str | None] = []

    async def register(id: str) -> None:
        await trigger_register(
            id=id,
            kind="webhook",
            provider="github",
            match={},
            handler=lambda event: seen.append(event.tenant_id),
            dedupe_key="provider_payload.payload.id",
        )

    for tenant, id in (("a:b", "c"), ("a", "b:c"), ("a", "b:c")):
        async with Runtime(storage=lasting_url, tenant_id=tenant):
            await register(id)
            await trigger_fire(id, {"id": 7})

    assert seen == ["a:b", "a"]


async def test_a_delivery_is_known_to_its_tenants_hook_only(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        secret = b"a key of sixteen bytes"
        hooks = [
            Hook("c", "/one", "standard", "standard", (Key(secret, "a:b"),)),
            Hook("b:c", "/two", "standard", "standard", (Key(secret, "a"),)),
        ]
        for hook in hooks:
            await trigger_register(
                id=hook.trigger_id, kind="webhook", provider="standard", match={}, handler=_nothing
            )
        intake = Intake(runtime, hooks)
        signed = sign("standard", secret, b"{}", runtime.clock.now_ms() // 1000, "msg_1")
        headers = {name: [value] for name, value in signed.items()}

        answers = [await intake.receive(path, headers, b"{}") for path in ("/one", "/two", "/one")]

        assert [each.status for each in answers] == [202, 202, 200]
        assert await scopes(runtime) == ["hook:a%3Ab:c", "hook:a:b:c"]


async def test_a_claim_that_an_earlier_version_wrote_still_counts(storage_url: str) -> None:
    async with Runtime(storage=storage_url, tenant_id="acme") as runtime:
        old = DedupeClaim("channel:acme:pr:opened", "same", "", 60_000)
        await _claim(runtime, old)

        assert (await channel_emit("pr:opened", 1, id="same")).duplicate


def test_long_keys_do_not_meet_short_ones() -> None:
    from harn.triggers.dedupe_claims import _at_most_500

    long = "x" * 501
    cut = _at_most_500(long)

    assert len(cut) > 500 and _at_most_500("x" * 500) == "x" * 500
    assert _at_most_500(long + "y") != cut


def test_a_dispatch_has_a_name_of_its_own_whatever_the_ids_hold() -> None:
    def delivery(trigger: str, event: str, replay_of: str | None = None) -> str:
        binding = check_binding(
            id=trigger,
            kind="webhook",
            provider="github",
            match={},
            handler=_nothing,
            options={},
            default_retry=Retry(),
        )
        return Dispatch(binding, an_event(id=event), 7, replay_of=replay_of).delivery

    names = [
        delivery("a:b", "c"),
        delivery("a", "b:c"),
        delivery("a", "c:7"),
        delivery("a", "c", replay_of="e0"),
    ]
    assert len(set(names)) == 4
    assert delivery("review", "trigger_evt_1") == "review:trigger_evt_1"


def _nothing(event: Any) -> None: ...


async def _claim(runtime: Runtime, claim: DedupeClaim) -> None:
    from harn.storage import Store
    from harn.storage.triggers import NewEvent, take_in

    event = NewEvent(id="e1", record={"id": "e1"}, owner="o", deliveries=(), claim=claim)
    await runtime.service(Store).run(lambda: take_in(event))

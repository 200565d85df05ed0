"""Names are never changed; several names give one key, and different ones another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from harn import (
    InvalidOption,
    Runtime,
    SpawnToPool,
    channel_emit,
    event_log_emit,
    mailbox_lookup,
    mailbox_open,
    pool_create,
    shared_cell,
    supervisor_start,
    trigger_register,
    worker_queue,
)
from harn.naming import joined
from harn.ratelimit.provider_limits import prefix_of

EDGES = [" a", "a ", "\ta", "a\n", "\u2028a", "a\u2028", "a\u3000", "\u00a0a", "a\x1f", " ", ""]
CONTROLS = ["a\x00b", "a\x1bb", "a\x7fb", "a\x9bb", "a\u2028b", "a\u202eb", "a\ud800b"]


@given(st.lists(st.text(alphabet="a:%3A2", max_size=4), min_size=1), st.data())
@example(["a:b", "c"], None)
def test_different_parts_never_give_the_same_key(parts: list[str], data: Any) -> None:
    others = ["a", "b:c"] if data is None else data.draw(st.lists(st.text("a:%3A2"), min_size=1))

    assert (joined(*parts) == joined(*others)) == (parts == others)


def test_a_providers_model_has_limits_of_its_own_whatever_the_names_hold() -> None:
    assert prefix_of("a:b", "c") != prefix_of("a", "b:c")
    assert prefix_of("acme", "big:2") == "llm:model:acme:big:2"  # as stored before


@pytest.mark.parametrize("name", EDGES + CONTROLS)
async def test_a_name_with_blanks_at_its_ends_or_controls_is_refused(
    runtime: Runtime, name: str
) -> None:
    def handler(event: Any) -> None: ...

    async def child() -> None: ...

    with pytest.raises(InvalidOption):
        worker_queue(name)
    with pytest.raises(InvalidOption):
        await pool_create(name=name)
    with pytest.raises(InvalidOption):
        mailbox_open(name)
    with pytest.raises(InvalidOption):
        mailbox_lookup(name)
    with pytest.raises(InvalidOption):
        await channel_emit(name, 1)
    with pytest.raises(InvalidOption):
        await event_log_emit(name, "kind", 1)
    with pytest.raises(InvalidOption):
        SpawnToPool(name, lambda event: print)
    with pytest.raises(InvalidOption):
        await trigger_register(
            id=name, kind="channel.emit", provider="channel", match={}, handler=handler
        )
    with pytest.raises(InvalidOption):
        await trigger_register(
            id="t", kind="channel.emit", provider="channel", match={}, handler=f"worker://{name}"
        )
    with pytest.raises(InvalidOption):
        await supervisor_start(name=name, children=[{"name": "child", "task": child}])


async def test_blanks_inside_a_name_stay(runtime: Runtime) -> None:
    assert worker_queue("night shift").name == "night shift"
    assert (await pool_create(name="night  shift")).name == "night  shift"
    assert mailbox_open("night shift").name == "night shift"


async def test_tenants_and_keys_are_kept_as_they_are() -> None:
    async with Runtime(tenant_id=" acme ") as runtime:
        assert runtime.root.ambient.tenant_id == " acme "
        assert shared_cell(" k", scope="tenant") is not shared_cell("k", scope="tenant")
        assert shared_cell(" k", scope="tenant").scope == "tenant: acme "


@pytest.mark.parametrize("tenant", CONTROLS)
async def test_a_tenant_that_no_store_could_keep_is_refused_where_it_would_be_stored(
    tenant: str,
) -> None:
    async with Runtime(tenant_id=tenant):
        with pytest.raises(InvalidOption):
            await channel_emit("news", 1)
        with pytest.raises(InvalidOption):
            await worker_queue("review").enqueue({"pr": 1}, tenant_id=tenant)

"""Cells, maps and atomics: versions, compare-and-swap, counters, scopes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import harn.sync.shared_values as shared_module
import harn.sync.sharing_scopes as scopes_module
from harn import (
    InvalidOption,
    Runtime,
    SharedSnapshot,
    atomic,
    parallel,
    runtime_context,
    shared_cell,
    shared_map,
    spawn,
)


async def test_H8_tasks_that_swap_count_exactly(runtime: Runtime) -> None:
    budget = shared_cell("tokens", initial=0)

    async def bump(_: int) -> None:
        for _ in range(10):
            while not budget.cas(seen := budget.snapshot(), seen.value + 1):
                pass
            await asyncio.sleep(0)

    await parallel(10, bump)

    assert budget.get() == 100


async def test_H8_a_snapshot_notices_what_came_and_went(runtime: Runtime) -> None:
    cell = shared_cell("c", initial="a")
    before = cell.snapshot()

    assert cell.set("b") == "a"
    assert cell.set("a") == "b"

    assert cell.cas(before, "x") is False
    assert cell.cas("a", "x") is True
    assert cell.get() == "x"


async def test_versions_start_at_zero_and_go_up_by_one(runtime: Runtime) -> None:
    cell = shared_cell("c", initial=5)

    versions = [cell.snapshot().version]
    cell.set(6)
    versions.append(cell.snapshot().version)
    cell.cas(6, 7)
    versions.append(cell.snapshot().version)
    cell.cas(99, 8)
    versions.append(cell.snapshot().version)

    assert versions == [0, 1, 2, 2]
    assert cell.snapshot() == SharedSnapshot(7, 2)
    assert cell.snapshot().as_dict() == {"_type": "shared_snapshot", "value": 7, "version": 2}


async def test_a_snapshot_needs_an_equal_value_too(runtime: Runtime) -> None:
    cell = shared_cell("c", initial=1)

    assert cell.cas(SharedSnapshot(2, 0), 3) is False
    assert cell.metrics().stale_read_count == 0


async def test_cell_metrics_count_as_they_say(runtime: Runtime) -> None:
    cell = shared_cell("c", initial=0)
    stale = cell.snapshot()
    cell.get()
    cell.set(1)
    cell.cas(stale, 2)
    cell.cas(5, 2)
    cell.cas(1, 2)

    assert cell.metrics().as_dict() == {
        "version": 2,
        "read_count": 2,
        "write_count": 2,
        "cas_success_count": 1,
        "cas_failure_count": 2,
        "stale_read_count": 1,
    }


async def test_opening_an_existing_key_ignores_initial(runtime: Runtime) -> None:
    shared_cell("c", initial=1)
    shared_map("m", initial={"a": 1})

    assert shared_cell("c", initial=2).get() == 1
    assert shared_map("m", initial={"b": 2}).entries() == {"a": 1}
    assert shared_cell("c") is shared_cell("c")


async def test_a_map_answers_with_what_was_there(runtime: Runtime) -> None:
    table = shared_map("m")

    assert table.get("k") is None
    assert table.get("k", "default") == "default"
    assert table.set("k", 1) is None
    assert table.set("k", 2) == 1
    assert table.delete("k") == 2
    assert table.delete("k") is None
    table.set("none", None)
    assert table.get("none", "default") is None
    assert table.entries() == {"none": None}
    assert table.metrics().as_dict() == {
        "version": 4,
        "read_count": 4,
        "write_count": 4,
        "cas_success_count": 0,
        "cas_failure_count": 0,
        "stale_read_count": 0,
    }


async def test_map_snapshots_are_per_key(runtime: Runtime) -> None:
    table = shared_map("m", initial={"a": 1})
    seen = table.snapshot("a")

    table.set("b", 2)

    assert table.cas("a", seen, 10) is True
    assert table.cas("a", seen, 11) is False
    assert table.metrics().stale_read_count == 1


async def test_H8_a_deleted_key_does_not_come_back_with_an_old_version(runtime: Runtime) -> None:
    table = shared_map("m")
    absent = table.snapshot("k")
    table.set("k", 1)
    first = table.snapshot("k")
    table.delete("k")
    gone = table.snapshot("k")
    table.set("k", 1)

    assert (absent.version, first.version, gone.version) == (0, 1, 2)
    assert table.snapshot("k").version == 3
    assert not table.cas("k", first, 2)
    table.delete("k")
    assert not table.cas("k", absent, 2)
    assert not table.cas("k", gone, 2)
    assert table.cas("k", table.snapshot("k"), 2)


async def test_H8_forgotten_deletions_make_snapshots_stale_never_fresh(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "MOST_DELETED", 10)
    table = shared_map("m")
    absent = table.snapshot("k")
    table.set("k", 1)
    present = table.snapshot("k")
    table.delete("k")

    for n in range(100):
        table.set(n, n)
        table.delete(n)
    table.set("k", 1)

    assert not table.cas("k", present, 2)
    table.delete("k")
    assert not table.cas("k", absent, 2)
    assert len(table._deleted) <= 11


async def test_swapping_none_in_deletes_and_expecting_none_matches_absence(
    runtime: Runtime,
) -> None:
    table = shared_map("m")

    assert table.cas("k", None, "first") is True
    assert table.cas("k", None, "second") is False
    assert table.cas("k", "first", None) is True
    assert table.entries() == {}


async def test_unhashable_keys_and_bad_initials_are_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="hashable"):
        shared_map("m").set([], 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="initial"):
        shared_map("m2", initial=[1])  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="key"):
        shared_cell("")


async def test_scopes_resolve_as_the_table_says() -> None:
    async with Runtime(run_id="run-1", agent_session_id="s-1", tenant_id="acme"):
        found = {
            scope: shared_cell("c", scope=scope).scope
            for scope in ("task", "task_group", "workflow_run", "agent_session", "tenant")
        }
        process = [shared_cell("c", scope=cast(Any, each)) for each in ("process", "global")]

    assert found == {
        "task": "task:task_root",
        "task_group": "task_group:run-1",
        "workflow_run": "workflow_run:run-1",
        "agent_session": "agent_session:s-1",
        "tenant": "tenant:acme",
    }
    assert process[0] is process[1]


async def test_without_a_run_or_session_the_root_task_stands_in(runtime: Runtime) -> None:
    for scope in ("task_group", "workflow-run", "agent_session"):
        assert shared_cell("c", scope=cast(Any, scope)).scope.endswith(":task_root")


async def test_inside_a_group_a_name_belongs_to_the_group(runtime: Runtime) -> None:
    outside = shared_cell("c", initial="outside")

    async def member(n: int) -> tuple[str, Any]:
        mine = shared_cell("c", initial=f"made by {n}")
        return mine.scope, mine.get()

    found = await parallel(3, member)
    spawned = await spawn(lambda: runtime_context().task_id)

    assert len(set(found)) == 1
    assert found[0][0] != outside.scope
    assert outside.get() == "outside"
    assert spawned


async def test_a_spawned_task_shares_by_name_with_the_root(runtime: Runtime) -> None:
    shared_cell("c", initial="root's")

    async def child() -> Any:
        return shared_cell("c").get(), shared_cell("c", scope="task").get()

    assert await spawn(child) == ("root's", None)


@pytest.mark.parametrize("scope", ["durable", "external"])
async def test_state_that_outlives_the_process_is_pointed_to_the_store(
    runtime: Runtime, scope: str
) -> None:
    with pytest.raises(InvalidOption, match="store_get, store_set and store_cas"):
        shared_cell("c", scope=cast(Any, scope))


@pytest.mark.parametrize("scope", ["tenants", "", None, 1, "galaxy"])
async def test_unknown_scopes_are_refused(runtime: Runtime, scope: Any) -> None:
    with pytest.raises(InvalidOption, match="scope"):
        shared_map("m", scope=scope)


async def test_a_misspelt_scope_gets_a_suggestion(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'workflow_run'"):
        shared_map("m", scope="workflow_runs")  # type: ignore[call-overload]


async def test_S12_a_tenant_cannot_name_another() -> None:
    async with Runtime(tenant_id="acme"):
        own = shared_map("tokens", scope="tenant")
        assert shared_map("tokens", scope="tenant", tenant_id="acme") is own
        with pytest.raises(InvalidOption, match="'acme', the tenant this task works for"):
            shared_map("tokens", scope="tenant", tenant_id="rival")


async def test_a_tenant_must_be_known_somehow(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="tenant_id"):
        shared_cell("c", scope="tenant")
    with pytest.raises(InvalidOption, match="together with"):
        shared_cell("c", scope="process", tenant_id="acme")
    with pytest.raises(InvalidOption, match="tenant_id"):
        shared_cell("c", scope="tenant", tenant_id=" ")

    assert shared_cell("c", scope="tenant", tenant_id="acme").scope == "tenant:acme"


async def test_state_of_ended_tasks_does_not_pile_up(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scopes_module, "MOST_PASSING", 20)
    kept = shared_cell("kept", initial=1)

    async def child(n: int) -> None:
        shared_cell("c", scope="task", initial=n)
        shared_cell("g", initial=n)

    for n in range(100):
        await parallel(1, child)

    spaces = runtime.service(scopes_module.Namespaces)
    assert len(spaces._passing) <= 21
    assert shared_cell("kept") is kept


async def test_state_of_a_run_is_kept_as_long_as_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes_module, "MOST_PASSING", 20)

    async def child(n: int) -> None:
        shared_cell("c", scope="task", initial=n)

    async with Runtime(run_id="nightly"):
        total = shared_cell("total", initial=1)
        for n in range(100):
            await parallel(1, child)

        assert shared_cell("total") is total


async def test_two_runtimes_share_nothing(runtime: Runtime) -> None:
    shared_cell("c", scope="process", initial=1)

    async with Runtime():
        assert shared_cell("c", scope="process", initial=2).get() == 2


def test_atomics_return_what_was_before() -> None:
    counter = atomic(0)

    assert (counter.get(), counter.add(5), counter.get()) == (0, 0, 5)
    assert (counter.set(100), counter.get()) == (5, 100)
    assert (counter.cas(99, 1), counter.cas(100, 1), counter.get()) == (False, True, 1)
    assert (counter.add(-3), counter.get()) == (1, -2)


@pytest.mark.parametrize("value", [1.5, True, "1", None])
def test_atomics_hold_integers_only(value: Any) -> None:
    with pytest.raises(InvalidOption):
        atomic(value)
    for operation in (atomic(0).add, atomic(0).set, lambda v: atomic(0).cas(0, v)):
        with pytest.raises(InvalidOption):
            operation(value)

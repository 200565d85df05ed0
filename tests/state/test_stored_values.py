"""Stored values: set, read, list and compared on every engine, in any process."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from harn import (
    InvalidOption,
    Runtime,
    SharedSnapshot,
    agent_state_cas,
    agent_state_delete,
    agent_state_get,
    agent_state_list,
    agent_state_set,
    agent_state_snapshot,
    parallel_each,
    shared_cell,
    store_cas,
    store_delete,
    store_get,
    store_list,
    store_set,
    store_snapshot,
)
from harn.storage import Store
from harn.storage.log import Importer, compare, export, rebuild, trim
from harn.storage.state.values import StoredValue, ValueChange, ValuePlace, decide, end_of
from harn.topics import AGENT_STATE, STORED_VALUES

INCREMENTER = str(Path(__file__).with_name("incrementer.py"))
ODD_KEYS = ["a b", "user/ada", "ключ", "\U0001f600", "\uffff", "%_'\"", "x" * 512]


@pytest.fixture
async def runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url) as runtime:
        yield runtime


async def test_a_value_is_kept_and_the_previous_one_returned(runtime: Runtime) -> None:
    assert await store_get("k") is None
    assert await store_get("k", "nothing") == "nothing"
    assert await store_set("k", {"n": (1, 2)}) is None
    assert await store_get("k") == {"n": [1, 2]}
    assert await store_set("k", 7) == {"n": [1, 2]}
    assert await store_delete("k") == 7
    assert await store_delete("k") is None
    assert await store_get("k", "nothing") == "nothing"


async def test_a_stored_none_is_a_value(runtime: Runtime) -> None:
    await store_set("k", None)

    assert await store_get("k", "nothing") is None
    assert await store_list() == ["k"]


async def test_each_write_has_the_next_version_and_a_delete_is_one(runtime: Runtime) -> None:
    never = await store_snapshot("k")
    await store_set("k", "a")
    first = await store_snapshot("k")
    await store_delete("k")
    deleted = await store_snapshot("k")
    await store_delete("k")
    await store_set("k", "a")

    assert (never, first) == (SharedSnapshot(None, 0), SharedSnapshot("a", 1))
    assert deleted == SharedSnapshot(None, 2)
    assert await store_snapshot("k") == SharedSnapshot("a", 3)


async def test_a_snapshot_is_replaced_only_if_nothing_was_written_since(runtime: Runtime) -> None:
    never = await store_snapshot("k")
    assert await store_cas("k", never, "a")
    assert not await store_cas("k", never, "b")
    seen = await store_snapshot("k")
    await store_set("k", "other")
    await store_set("k", "a")

    assert not await store_cas("k", seen, "c")
    assert await store_get("k") == "a"
    assert (await store_snapshot("k")).version == 3


async def test_a_plain_value_is_replaced_if_it_is_equal(runtime: Runtime) -> None:
    assert await store_cas("k", None, {"n": (1,)})  # None is expected of an absent key
    assert not await store_cas("k", None, 2)
    assert await store_cas("k", {"n": [1]}, None)
    assert await store_cas("k", None, "x")
    assert await store_get("k") == "x"


async def test_writes_that_meet_see_each_other(runtime: Runtime) -> None:
    async def write(number: int) -> object:
        return await store_set("k", number)

    before = await parallel_each(range(50), write)

    assert before == [None, *range(49)]
    assert (await store_snapshot("k")).version == 50


async def test_keys_are_listed_by_prefix_in_code_point_order(runtime: Runtime) -> None:
    for key in (*ODD_KEYS, "user/bob", "user", "user0", "users/ada"):
        await store_set(key, key)
    await store_delete("user/bob")

    assert await store_list("user/") == ["user/ada"]
    assert await store_list("user") == ["user", "user/ada", "user0", "users/ada"]
    assert await store_list() == sorted([*ODD_KEYS, "user", "user0", "users/ada"])
    assert await store_list("\U0001f600") == ["\U0001f600"]
    assert await store_list("nothing") == []
    assert [await store_get(key) for key in ODD_KEYS] == ODD_KEYS


async def test_long_lists_come_by_pages(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harn.storage.state.values.PAGE", 3)
    keys = sorted(["a", "aa", "aaa", "ab", "b", "ba", "c"])
    await parallel_each(keys, lambda key: store_set(key, 1))

    assert await store_list() == keys
    assert await store_list("a") == ["a", "aa", "aaa", "ab"]


@pytest.mark.parametrize(
    ("prefix", "after"),
    [("a", "b"), ("a/", "a0"), ("\ud7ff", "\ue000"), ("a\U0010ffff", "b"), ("é", "ê")],
)
def test_the_keys_of_a_prefix_end_before_the_next_one(prefix: str, after: str) -> None:
    longest = prefix + "\U0010ffff" * (512 - len(prefix))

    assert prefix < longest < end_of(prefix) == after


@pytest.mark.parametrize("prefix", ["", "\U0010ffff"])
def test_a_prefix_that_nothing_follows_ends_after_every_key(prefix: str) -> None:
    assert "\U0010ffff" * 512 < end_of(prefix)


async def test_namespaces_and_sessions_are_apart(runtime: Runtime) -> None:
    long = "n" * 512
    await store_set("k", 1)
    await store_set("k", 2, namespace="other")
    await store_set("k", 3, namespace=long)
    await store_set("k", 4, namespace=long[:-1])
    await agent_state_set("k", 5, session_id="default")
    await agent_state_set("k", 6, session_id=long)

    assert await store_get("k") == 1
    assert await store_get("k", namespace="other") == 2
    assert await store_get("k", namespace=long) == 3
    assert await store_get("k", namespace=long[:-1]) == 4
    assert await agent_state_get("k", session_id="default") == 5
    assert await agent_state_get("k", session_id=long) == 6
    assert await store_list(namespace="nowhere") == []


async def test_the_longest_names_fit_every_engine(runtime: Runtime) -> None:
    widest = "\U0001f600" * 512
    await store_set(widest, 1, namespace=widest)
    await agent_state_set(widest, 2, session_id=widest)

    assert await store_list(widest[:5], namespace=widest) == [widest]
    assert await agent_state_get(widest, session_id=widest) == 2


async def test_agent_state_is_that_of_the_running_session(storage_url: str) -> None:
    async with Runtime(storage=storage_url, agent_session_id="s1"):
        assert await agent_state_set("plan", "a") is None
        seen = await agent_state_snapshot("plan")
        assert await agent_state_cas("plan", seen, "b")
        assert not await agent_state_cas("plan", seen, "c")
        assert await agent_state_get("plan", session_id="s1") == "b"
        assert await agent_state_get("plan", "none", session_id="s2") == "none"
        assert await agent_state_list() == ["plan"]
        assert await agent_state_delete("plan") == "b"


async def test_agent_state_without_a_session_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match=r"session_id=None .* give session_id"):
        await agent_state_get("k")


@pytest.mark.parametrize("key", ["", " ", "x" * 513, "a\nb", "a\x00b", "\ud800", 7, None, b"k"])
async def test_a_bad_key_is_refused_and_nothing_written(runtime: Runtime, key: Any) -> None:
    for call in (store_get(key), store_set(key, 1), store_delete(key), store_cas(key, None, 1)):
        with pytest.raises(InvalidOption, match="key="):
            await call
    with pytest.raises(InvalidOption, match="namespace="):
        await store_set("k", 1, namespace=key)

    assert await store_list() == []


@pytest.mark.parametrize("prefix", ["x" * 513, "a\nb", 7, None])
async def test_a_bad_prefix_is_refused(runtime: Runtime, prefix: Any) -> None:
    with pytest.raises(InvalidOption, match="prefix="):
        await store_list(prefix)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "a set"),
        (b"x", "bytes"),
        ({1: 2}, "the keys of an object are text"),
        (float("inf"), "infinity"),
        ("x" * 20_000_000, "at most 10,000,000 bytes"),
    ],
)
async def test_a_bad_value_is_refused_and_nothing_written(
    runtime: Runtime, value: Any, why: str
) -> None:
    await store_set("k", 1)

    with pytest.raises(InvalidOption, match=f"value=.*{why}"):
        await store_set("k", value)
    with pytest.raises(InvalidOption, match=f"value=.*{why}"):
        await store_cas("k", 1, value)

    assert await store_snapshot("k") == SharedSnapshot(1, 1)


async def test_the_largest_value_is_kept_and_exported(runtime: Runtime) -> None:
    largest = "x" * 9_999_998
    await store_set("k", largest)

    lines = [line async for line in export(runtime.service(Store))]
    async with Runtime() as other:
        importer = Importer(other.service(Store))
        await importer.feed(lines)
        await importer.finish()
        await other.service(Store).run(rebuild)
        assert await store_get("k") == largest


async def test_values_outlive_the_runtime(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url):
        await store_set("k", 1)
        await store_set("gone", 1)
        await store_delete("gone")
    async with Runtime(storage=lasting_url):
        assert await store_get("k") == 1
        assert await store_list() == ["k"]
        assert (await store_snapshot("gone")).version == 2


async def write_some() -> None:
    await store_set("cold", 1)
    for number in range(20):
        await store_set("hot", number)
    await store_set("gone", 1)
    await store_delete("gone")
    await agent_state_set("k", 1, session_id="s")
    await agent_state_set("é", {"large": "ü" * 600, "n": 1e300}, session_id="s")


async def test_the_rows_are_a_fold_of_the_log(runtime: Runtime) -> None:
    await write_some()
    store = runtime.service(Store)

    assert await store.run(compare) == []
    counts = await store.run(rebuild)

    assert counts["state_keys"] == 5
    assert await store_snapshot("hot") == SharedSnapshot(19, 20)
    assert await store_list() == ["cold", "hot"]


async def test_an_import_brings_the_values(runtime: Runtime) -> None:
    await write_some()
    lines = [line async for line in export(runtime.service(Store))]

    async with Runtime() as other:
        store = other.service(Store)
        importer = Importer(store)
        await importer.feed(lines)
        await importer.finish()
        await store.run(rebuild)

        assert await store_snapshot("hot") == SharedSnapshot(19, 20)
        assert (await store_snapshot("gone")).version == 2
        assert await agent_state_get("k", session_id="s") == 1
        large = {"large": "ü" * 600, "n": 1e300}
        assert await agent_state_get("é", session_id="s") == large
        assert await store.run(compare) == []


@pytest.mark.parametrize("force", [False, True])
async def test_no_trim_removes_the_latest_record_of_a_key(runtime: Runtime, force: bool) -> None:
    for number in range(20):
        await store_set("hot", number)
    await write_some()
    store = runtime.service(Store)

    for topic in (STORED_VALUES, AGENT_STATE):
        while await store.run(lambda topic=topic: trim(topic, keep=0, force=force)):  # type: ignore[misc]
            pass

    left = await runtime.event_log.read(STORED_VALUES)
    assert [event.payload["key"] for event in left][:2] == ["cold", "hot"]
    assert await store_get("cold") == 1
    assert (await store_snapshot("hot")).version == 40
    assert await agent_state_get("k", session_id="s") == 1
    assert await store.run(compare) == []


async def test_a_durable_cell_points_to_the_stored_values(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match=r"store_get, store_set"):
        shared_cell("k", scope=cast(Any, "durable"))


async def test_a_runtime_that_harn_made_warns_that_nothing_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        await store_set("k", 1)
        await store_get("k")

    assert [line.getMessage().split()[0] for line in caplog.records] == ["store_set()"]


def test_what_a_change_leaves_is_a_decision() -> None:
    place = ValuePlace(STORED_VALUES, "default", "k")
    there, absent = StoredValue(b"1", 4), StoredValue(None, 2)

    assert decide(there, ValueChange(place, "set", b"2")) == StoredValue(b"2", 5)
    assert decide(there, ValueChange(place, "delete")) == StoredValue(None, 5)
    assert decide(absent, ValueChange(place, "delete")) is None
    damaged = StoredValue(None, 3, is_damaged=True)
    assert decide(damaged, ValueChange(place, "delete")) == StoredValue(None, 4)
    assert decide(there, ValueChange(place, "cas", b"2", expected=b"1.0")) == StoredValue(b"2", 5)
    assert decide(there, ValueChange(place, "cas", b"2", expected=b"2")) is None
    assert decide(there, ValueChange(place, "cas", b"2", version=4)) == StoredValue(b"2", 5)
    assert decide(there, ValueChange(place, "cas", b"2", version=3)) is None


async def test_no_increment_of_several_processes_is_lost(
    lasting_url: str, at_least: Callable[[int], int]
) -> None:
    processes, times = (8, 200) if at_least(10) > 10 else (2, 12)
    async with asyncio.timeout(at_least(120)):
        workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, INCREMENTER, lasting_url, str(times)
            )
            for _ in range(processes)
        ]
        codes = [await worker.wait() for worker in workers]

    assert codes == [0] * processes
    async with Runtime(storage=lasting_url):
        assert await store_snapshot("count") == SharedSnapshot(processes * times, processes * times)

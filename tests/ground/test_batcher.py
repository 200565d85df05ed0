"""Callers that meet share the next operation, each with its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from harn.batcher import Batcher, Entry, Landing


class Store:
    """Carries operations out when it is told to, and notes what each of them held."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.operations: list[Landing] = []

    def start(self, batch: list[Entry[Any]], landing: Landing) -> bool:
        if batch:
            self.batches.append([entry.item for entry in batch])
            self.operations.append(landing)
        return bool(batch)

    def land(self, number: int = 0) -> None:
        self.operations[number].set_result([item * 10 for item in self.batches[number]])


def batcher(store: Store, **options: Any) -> Batcher[int]:
    return Batcher(asyncio.get_running_loop(), store.start, as_it_is, **options)


def as_it_is(batch: list[Entry[Any]], value: Sequence[Any]) -> Sequence[Any]:
    return value


async def test_callers_of_one_turn_share_an_operation_and_get_their_own_results() -> None:
    store = Store()
    line = batcher(store)

    answers = [line.ask(n) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    store.land()

    assert store.batches == [[1, 2, 3]]
    assert await asyncio.gather(*answers) == [10, 20, 30]
    assert line.was_shared


async def test_what_comes_while_an_operation_is_under_way_becomes_the_next_one() -> None:
    store = Store()
    line = batcher(store)
    first = line.ask(1)
    await asyncio.sleep(0)

    later = [line.ask(2), line.ask(3)]
    await asyncio.sleep(0)
    assert store.batches == [[1]]
    store.land(0)
    assert await first == 10
    await asyncio.sleep(0)
    store.land(1)

    assert store.batches == [[1], [2, 3]]
    assert await asyncio.gather(*later) == [20, 30]


async def test_what_comes_in_the_turns_of_a_linger_shares_an_operation() -> None:
    store = Store()
    line = batcher(store)

    line.linger(3)
    early = line.ask(1)
    for _ in range(2):
        await asyncio.sleep(0)
    late = line.ask(2)
    assert store.batches == []
    await asyncio.sleep(0)
    store.land()

    assert store.batches == [[1, 2]]
    assert [await early, await late] == [10, 20]


async def test_a_linger_in_which_nothing_comes_leaves_the_next_request_as_it_was() -> None:
    store = Store()
    line = batcher(store)
    line.linger(2)
    for _ in range(3):
        await asyncio.sleep(0)

    line.add(1)
    await asyncio.sleep(0)

    assert store.batches == [[1]]


async def test_what_waits_already_does_not_linger() -> None:
    store = Store()
    line = batcher(store)
    line.add(1)

    line.linger(3)
    await asyncio.sleep(0)

    assert store.batches == [[1]]


async def test_a_caller_that_gave_up_before_the_operation_began_has_no_part_in_it() -> None:
    store = Store()
    line = batcher(store)

    line.ask(1).cancel()
    kept = line.ask(2)
    await asyncio.sleep(0)
    store.land()

    assert store.batches == [[2]]
    assert await kept == 20


async def test_one_that_gives_up_afterwards_does_not_disturb_the_others() -> None:
    store = Store()
    line = batcher(store)
    gone, kept = line.ask(1), line.ask(2)
    await asyncio.sleep(0)

    gone.cancel()
    store.land()

    assert await kept == 20


async def test_an_operation_is_bounded_by_number_and_by_size() -> None:
    store = Store()
    by_number, by_size = (
        batcher(store, most=2),
        batcher(store, most_bytes=5, weigh=lambda n: (1, n)),
    )

    for n in (1, 2, 3):
        by_number.add(n)
    await asyncio.sleep(0)
    for n in (4, 3, 2):
        by_size.add(n)
    await asyncio.sleep(0)

    assert store.batches == [[1, 2], [4, 3]]


async def test_a_failed_operation_fails_its_callers_and_returns_what_no_caller_waits_for() -> None:
    store, left = Store(), []
    line = batcher(store, failed=lambda entries, error: left.extend(entries))
    waited = line.ask(1)
    line.add(2)
    await asyncio.sleep(0)

    store.operations[0].set_exception(OSError("the disk is full"))
    with pytest.raises(OSError, match="full"):
        await waited

    assert [entry.item for entry in left] == [2]


async def test_an_operation_that_is_cancelled_cancels_the_answers_of_its_callers() -> None:
    store = Store()
    line = batcher(store)
    answer = line.ask(1)
    await asyncio.sleep(0)

    store.operations[0].cancel()

    assert answer.cancelled()


async def test_an_operation_that_cannot_begin_fails_its_callers_only() -> None:
    attempts: list[int] = []

    def refuse(batch: list[Entry[int]], landing: Landing) -> bool:
        attempts.append(len(batch))
        raise ValueError("closed")

    line: Batcher[int] = Batcher(asyncio.get_running_loop(), refuse, as_it_is)
    with pytest.raises(ValueError, match="closed"):
        await line.ask(1)
    with pytest.raises(ValueError, match="closed"):
        await line.ask(2)

    assert attempts == [1, 1]


async def test_entries_whose_keys_are_busy_wait_without_a_look_in_each_turn() -> None:
    key_of = Mock(side_effect=lambda n: n % 10)
    store = Store()
    line = batcher(store, at_once=2, key_of=key_of)
    answers = [line.ask(1)]
    await asyncio.sleep(0)
    answers += [line.ask(11), line.ask(21)]
    await asyncio.sleep(0)
    key_of.reset_mock()

    for _ in range(20):
        await asyncio.sleep(0)

    key_of.assert_not_called()
    store.land()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.land(1)
    assert await asyncio.gather(*answers) == [10, 110, 210]


async def test_those_that_ask_behind_an_operation_with_their_key_are_looked_at_once() -> None:
    key_of = Mock(side_effect=lambda n: n % 10)
    store = Store()
    line = batcher(store, at_once=2, key_of=key_of)
    answers = [line.ask_now(10 * n + 1) for n in range(100)]

    assert store.batches == [[1]]
    assert key_of.call_count == 100
    store.land()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.land(1)
    assert await asyncio.gather(*answers) == [10 * (10 * n + 1) for n in range(100)]


async def test_several_operations_at_once_never_hold_one_key_twice() -> None:
    store = Store()
    line = batcher(store, at_once=2, key_of=lambda n: n % 10)

    line.add(1)
    await asyncio.sleep(0)
    line.add(11)  # the same key as 1, which is under way
    line.add(2)
    await asyncio.sleep(0)
    assert store.batches == [[1], [2]]
    store.land(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert store.batches == [[1], [2], [11]]


async def test_nothing_begins_while_it_is_held() -> None:
    store = Store()
    line = batcher(store)
    line.is_held = True

    line.add(1)
    await asyncio.sleep(0)
    assert store.batches == []
    line.is_held = False
    line.wake()
    await asyncio.sleep(0)

    assert store.batches == [[1]]


async def test_an_operation_may_begin_with_entries_that_its_owner_adds() -> None:
    told: list[int] = []

    def start(batch: list[Entry[int]], landing: Landing) -> bool:
        batch.insert(0, Entry(7, None))
        landing.set_result([entry.item * 10 for entry in batch])
        return True

    def read(batch: list[Entry[int]], value: list[int]) -> list[int]:
        told.extend(value)
        return value

    line: Batcher[int] = Batcher(asyncio.get_running_loop(), start, read)
    line.begin()
    answer = line.ask(1)

    assert await answer == 10
    assert told == [70, 70, 10]
    assert line.was_shared


async def test_its_owner_is_told_of_a_failure_also_when_every_entry_has_a_caller() -> None:
    store, told = Store(), []
    line = batcher(store, failed=lambda entries, error: told.append((entries, str(error))))
    waited = line.ask(1)
    await asyncio.sleep(0)

    store.operations[0].set_exception(OSError("full"))
    with pytest.raises(OSError, match="full"):
        await waited

    assert told == [([], "full")]


async def test_it_is_idle_unless_an_operation_is_under_way_or_about_to_begin_or_held() -> None:
    store = Store()
    line = batcher(store)
    assert line.is_idle

    line.add(1)
    assert not line.is_idle
    await asyncio.sleep(0)
    assert not line.is_idle
    store.land()
    assert line.is_idle

    line.is_held = True
    assert not line.is_idle

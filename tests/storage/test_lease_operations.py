"""Leases on every engine: one holder at a time, and an epoch that only rises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from harn import Runtime
from harn.storage import Store
from harn.storage.leases import (
    LeaseHeld,
    lease_place,
    look_at_lease,
    release_lease,
    renew_lease,
    take_lease,
)
from harn.testing import FakeClock


@pytest.fixture
async def store(storage_url: str, clock: FakeClock) -> AsyncIterator[Store]:
    async with Runtime(storage=lease_place(storage_url), clock=clock) as runtime:
        yield runtime.service(Store)


async def test_U6_a_lease_has_one_holder(store: Store) -> None:
    taken = await store.run(lambda: take_lease("captain", "a", 5000))
    second = await store.run(lambda: take_lease("captain", "b", 5000))
    other = await store.run(lambda: take_lease("cook", "b", 5000))

    assert taken is not None
    assert taken.epoch == 1
    assert second is None
    assert other is not None


async def test_a_look_shows_the_holder_and_the_time_left(store: Store, clock: FakeClock) -> None:
    assert await store.run(lambda: look_at_lease("captain"), write=False) is None
    await store.run(lambda: take_lease("captain", "a", 5000))
    await clock.advance("2s")

    seen = await store.run(lambda: look_at_lease("captain"), write=False)

    assert seen == LeaseHeld("a", 3000)


async def test_an_expired_lease_is_taken_over_with_a_higher_epoch(
    store: Store, clock: FakeClock
) -> None:
    await store.run(lambda: take_lease("captain", "a", 5000))
    await clock.advance("4999ms")
    assert await store.run(lambda: take_lease("captain", "b", 5000)) is None
    await clock.advance("1ms")

    taken = await store.run(lambda: take_lease("captain", "b", 5000))

    assert taken is not None
    assert taken.epoch == 2
    assert await store.run(lambda: renew_lease("captain", 1, 5000)) is False
    assert await store.run(lambda: release_lease("captain", 1)) is False
    assert await store.run(lambda: renew_lease("captain", 2, 5000)) is True


async def test_renewing_moves_the_end(store: Store, clock: FakeClock) -> None:
    await store.run(lambda: take_lease("captain", "a", 5000))
    await clock.advance("4s")
    assert await store.run(lambda: renew_lease("captain", 1, 5000)) is True
    await clock.advance("4s")

    assert await store.run(lambda: take_lease("captain", "b", 5000)) is None


async def test_a_released_lease_is_free_at_once_and_remembers_its_epoch(store: Store) -> None:
    await store.run(lambda: take_lease("captain", "a", 5000))
    assert await store.run(lambda: release_lease("captain", 1)) is True
    assert await store.run(lambda: look_at_lease("captain"), write=False) is None
    assert await store.run(lambda: renew_lease("captain", 1, 5000)) is False

    taken = await store.run(lambda: take_lease("captain", "b", 5000))

    assert taken is not None
    assert taken.epoch == 2


async def test_U6_of_many_who_reach_for_it_one_wins(store: Store) -> None:
    taken = await asyncio.gather(
        *(store.run(partial(take_lease, "captain", str(n), 5000)) for n in range(20))
    )

    assert len([one for one in taken if one is not None]) == 1

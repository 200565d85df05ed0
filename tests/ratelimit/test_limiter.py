"""`durable_rate_limit_acquire`, by its front door."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Bucket,
    HarnError,
    InvalidOption,
    Runtime,
    durable_rate_limit_acquire as acquire,
)
from harn.ratelimit import Limiter
from harn.storage import Store, limits
from harn.telemetry.metrics import Metrics
from harn.testing import FakeClock, fresh_runtime, mock_time
from tests.fake_clock import fake_clock
from tests.sweep import Run, sweep


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


async def use_of(key: str, state_path: Any = None) -> tuple[int, int]:
    """What counts in a bucket now and who waits there, read from its store."""
    async with asyncio.timeout(5):
        from harn import current_runtime

        line = current_runtime().service(Limiter).at(state_path)
        assert line.read_now
        now = line.read_now()
        for each in await line.store.run(lambda: limits.list_buckets(now), write=False):
            if each.key == key:
                return each.used, each.waiting
    return 0, 0


async def test_the_example_of_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with Runtime():
        mock_time(1000)

        first = await acquire(key="test", limit=1, window_ms="1s")
        second = await acquire(key="test", limit=1, window_ms="1s", timeout_ms=0)

        assert first.ok
        assert second.timed_out
        assert (second.ok, second.retry_after_ms, second.waited_ms) == (False, 1000, 0)
    assert list(tmp_path.iterdir()) == []


async def test_a_grant_says_what_was_asked_and_what_was_charged(world: Runtime) -> None:
    grant = await acquire(
        buckets=[{"key": "rpm", "limit": 5}, Bucket("tpm", 100, units=250, window_ms="1s")]
    )

    document = grant.as_dict()
    assert document.pop("state_path") == grant.state_path
    assert document == {
        "ok": True,
        "timed_out": False,
        "waited_ms": 0,
        "retry_after_ms": 0,
        "buckets": [
            {"key": "rpm", "limit": 5, "units": 1, "charged_units": 1, "window_ms": 60_000},
            {"key": "tpm", "limit": 100, "units": 250, "charged_units": 100, "window_ms": 1000},
        ],
    }
    json.dumps(document)


@pytest.mark.parametrize("units", [-1, 1.5, True, float("nan"), 2**63, 2**53, "1", None])
async def test_R8_bad_units_are_refused(runtime: Runtime, units: Any) -> None:
    with pytest.raises(InvalidOption, match="units"):
        await acquire(key="k", limit=5, units=units)


@pytest.mark.parametrize("limit", [0, -1, 1.0, True, None, "5", 2**63])
async def test_bad_limits_are_refused(runtime: Runtime, limit: Any) -> None:
    with pytest.raises(InvalidOption, match="limit"):
        await acquire(key="k", limit=limit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "key"),
        ({"key": "  ", "limit": 1}, "key"),
        ({"key": "a\0b", "limit": 1}, "NUL"),
        ({"key": "\ud800", "limit": 1}, "surrogates"),
        ({"key": "x" * 513, "limit": 1}, "512"),
        ({"key": "k", "limit": 1, "window_ms": 0}, "window_ms"),
        ({"key": "k", "limit": 1, "window_ms": -5}, "window_ms"),
        ({"key": "k", "limit": 1, "window_ms": "5 parsecs"}, "window_ms"),
        ({"key": "k", "limit": 1, "timeout_ms": -1}, "timeout_ms"),
        ({"key": "k", "limit": 1, "state_path": 5}, "state_path"),
        ({"key": "k", "limit": 1, "state_path": [5]}, "state_path"),
        ({"key": "k", "limit": 1, "state_path": " "}, "state_path"),
        ({"key": "k", "limit": 1, "state_path": "a?b"}, "state_path"),
        ({"buckets": []}, "at least one"),
        ({"buckets": [Bucket("k", 1)], "key": "k"}, "not both"),
        ({"buckets": [Bucket("same", 1), Bucket("same", 2)]}, "'same' is there twice"),
        ({"buckets": [{"key": "k", "limit": 1, "window": 5}]}, "did you mean 'window_ms'"),
        ({"buckets": [{"limit": 1}]}, "key"),
        ({"buckets": {"key": "k", "limit": 1}}, "a list"),
        ({"buckets": ["k"]}, "mapping"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_name(
    runtime: Runtime, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        await acquire(**options)


async def test_no_units_pass_freely(world: Runtime) -> None:
    await acquire(key="k", limit=1)

    grant = await acquire(key="k", limit=1, units=0, timeout_ms=0)

    assert grant.ok
    assert grant.buckets[0].charged_units == 0


async def test_R2_all_buckets_or_none(world: Runtime) -> None:
    await acquire(key="full", limit=1)

    grant = await acquire(buckets=[Bucket("free", 5), Bucket("full", 1)], timeout_ms=0)

    assert grant.timed_out
    assert await use_of("free") == (0, 0)


async def test_waiting_ends_exactly_when_there_is_room(world: Runtime, clock: FakeClock) -> None:
    await acquire(key="k", limit=2, window_ms=1000)
    await clock.advance("300ms")
    await acquire(key="k", limit=2, window_ms=1000)

    waiting = spawn(acquire(key="k", limit=2, window_ms=1000))
    await clock.advance("699ms")
    assert not waiting.done()
    await clock.advance("1ms")

    assert (await waiting).waited_ms == 700


async def test_a_timeout_is_an_answer_and_leaves_nothing(world: Runtime, clock: FakeClock) -> None:
    await acquire(key="k", limit=1, window_ms=10_000)

    waiting = spawn(acquire(key="k", limit=1, window_ms=10_000, timeout_ms="2s"))
    await clock.advance("2s")

    grant = await waiting
    assert (grant.timed_out, grant.waited_ms, grant.retry_after_ms) == (True, 2000, 8000)
    assert await use_of("k") == (1, 0)


async def test_R7_a_large_request_is_not_starved_by_small_ones(
    world: Runtime, clock: FakeClock
) -> None:
    await acquire(key="k", limit=10, window_ms=1000, units=5)
    large = spawn(acquire(key="k", limit=10, window_ms=1000, units=50))
    await clock.settle()

    small = [spawn(acquire(key="k", limit=10, window_ms=1000)) for _ in range(5)]
    refused = await acquire(key="k", limit=10, window_ms=1000, timeout_ms=0)
    await clock.advance("1s")

    assert refused.timed_out
    assert (await large).buckets[0].charged_units == 10
    assert not any(task.done() for task in small)
    await clock.advance("1s")
    assert [(await task).waited_ms for task in small] == [2000] * 5


async def test_those_who_come_in_the_same_moment_keep_their_order_too(
    world: Runtime, clock: FakeClock
) -> None:
    await acquire(key="k", limit=2, window_ms=1000)

    wanted = [("other", 1), ("other", 1), ("k", 2), ("k", 1)]  # one operation, but for the first
    tasks = [spawn(acquire(key=k, limit=2, units=u, window_ms=1000)) for k, u in wanted]
    await clock.advance("1s")

    large, small = tasks[2:]
    assert (large.done(), small.done()) == (True, False)
    await clock.advance("1s")
    assert small.done()


async def test_those_who_share_no_bucket_do_not_wait_for_each_other(
    world: Runtime, clock: FakeClock
) -> None:
    await acquire(key="a", limit=1)
    spawn(acquire(buckets=[Bucket("a", 1), Bucket("b", 1)]))
    await clock.settle()

    behind = await acquire(key="b", limit=1, timeout_ms=0)
    beside = await acquire(key="c", limit=1, timeout_ms=0)

    assert (behind.ok, beside.ok) == (False, True)


async def test_many_who_wait_are_served_in_the_order_they_came(
    world: Runtime, clock: FakeClock
) -> None:
    served: list[int] = []

    async def one(number: int) -> None:
        await acquire(key="k", limit=7, window_ms=1000)
        served.append(number)

    tasks = [spawn(one(number)) for number in range(200)]
    await clock.advance("30s")

    assert served == list(range(200))
    await asyncio.gather(*tasks)


async def test_settling_down_frees_units_for_waiting_callers(
    world: Runtime, clock: FakeClock
) -> None:
    grant = await acquire(key="tpm", limit=100, units=80)
    waiting = spawn(acquire(key="tpm", limit=100, units=60))
    await clock.settle()

    assert await grant.settle({"tpm": 40})
    await clock.settle()

    assert waiting.done()
    assert await use_of("tpm") == (100, 0)


async def test_settling_up_only_delays_what_comes_next(world: Runtime, clock: FakeClock) -> None:
    grant = await acquire(key="tpm", limit=100, units=10)
    await grant.settle({"tpm": 95})

    assert (await acquire(key="tpm", limit=100, units=10, timeout_ms=0)).timed_out
    await clock.advance("60s")
    assert (await acquire(key="tpm", limit=100, units=10, timeout_ms=0)).ok


async def test_a_second_settle_replaces_the_first(world: Runtime) -> None:
    grant = await acquire(key="tpm", limit=100, units=50)

    await grant.settle({"tpm": 10})
    await grant.settle({"tpm": 30})
    await grant.settle({"tpm": 30})

    assert await use_of("tpm") == (30, 0)


async def test_settling_after_the_window_changes_nothing(world: Runtime, clock: FakeClock) -> None:
    grant = await acquire(key="tpm", limit=100, units=50)
    await clock.advance("60s")
    await acquire(key="tpm", limit=100, units=20)

    assert not await grant.settle({"tpm": 90})

    assert await use_of("tpm") == (20, 0)


async def test_what_was_free_can_be_settled_to_what_it_cost(
    world: Runtime, clock: FakeClock
) -> None:
    grant = await acquire(buckets=[Bucket("rpm", 5), Bucket("tpm", 100, units=0)])

    await grant.settle({"tpm": 70})
    await grant.settle({"tpm": 60})
    free = await acquire(key="other", limit=100, units=0)
    await free.settle({"other": 5})

    assert await use_of("tpm") == (60, 0)
    assert await use_of("other") == (5, 0)


@pytest.mark.parametrize("actual", [{"tmp": 5}, {"tpm": -1}, {"tpm": 1.5}, {"tpm": True}, [5]])
async def test_a_settle_that_makes_no_sense_is_refused(world: Runtime, actual: Any) -> None:
    grant = await acquire(key="tpm", limit=100)

    with pytest.raises(InvalidOption):
        await grant.settle(actual)


async def test_a_grant_that_timed_out_has_nothing_to_settle(world: Runtime) -> None:
    await acquire(key="k", limit=1)
    grant = await acquire(key="k", limit=1, timeout_ms=0)

    assert not await grant.settle({"k": 1})


async def test_R6_the_same_key_follows_the_stricter_rule(world: Runtime, clock: FakeClock) -> None:
    await acquire(key="k", limit=5, units=5, window_ms="1h")
    await clock.advance("2s")

    assert (await acquire(key="k", limit=5, window_ms="1s", timeout_ms=0)).timed_out
    assert (await acquire(key="k", limit=500, window_ms="1h", timeout_ms=0)).timed_out


async def test_R9_mock_time_writes_beside_the_real_store_and_never_into_it(tmp_path: Path) -> None:
    path = tmp_path / "limits.sqlite"
    async with fresh_runtime(clock=FakeClock("2100-01-01T00:00:00Z")):
        grant = await acquire(key="k", limit=1, state_path=path)
        assert grant.state_path == f"{path}.mock"
    assert not path.exists()

    async with Runtime():
        assert (await acquire(key="k", limit=1, state_path=path, timeout_ms=0)).ok


async def test_the_state_lives_under_the_state_directory_and_is_private(tmp_path: Path) -> None:
    async with Runtime(state_dir=tmp_path / "state"):
        grant = await acquire(key="k", limit=1)

    path = tmp_path / "state" / "rate-limits.sqlite"
    assert grant.state_path == str(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


async def test_two_runtimes_share_what_they_name_by_the_same_path(tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite"
    async with Runtime() as one:
        assert (await acquire(key="k", limit=1, state_path=path)).ok
    assert one.closing

    async with Runtime():
        assert (await acquire(key="k", limit=1, state_path=path, timeout_ms=0)).timed_out


async def test_a_reservation_survives_the_runtime_that_made_it_and_no_longer(
    tmp_path: Path,
) -> None:
    for start, ok in ((0, True), (59_999, False), (60_000, True)):
        async with fresh_runtime(clock=FakeClock(start)):
            path = tmp_path / "limits.sqlite"
            grant = await acquire(key="k", limit=1, state_path=path, timeout_ms=0)
            assert grant.ok is ok


async def test_S21_rows_of_a_clock_far_ahead_hold_for_one_window(tmp_path: Path) -> None:
    path = tmp_path / "limits.sqlite"
    async with fresh_runtime(clock=FakeClock("2100-01-01T00:00:00Z")):
        await acquire(key="k", limit=1, state_path=path)

    async with fresh_runtime(clock=FakeClock("2026-01-01T00:00:00Z")) as runtime:
        refused = await acquire(key="k", limit=1, state_path=path, timeout_ms=0)
        await fake_clock(runtime).advance("60s")
        again = await acquire(key="k", limit=1, state_path=path, timeout_ms=0)

    assert (refused.retry_after_ms, again.ok) == (60_000, True)


async def test_leaving_the_runtime_gives_places_in_line_back(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "limits.sqlite"
    async with fresh_runtime(clock=clock):
        await acquire(key="k", limit=1, state_path=path)
        waiting = spawn(acquire(key="k", limit=1, state_path=path))
        await clock.settle()
        assert await use_of("k", path) == (1, 1)
    with pytest.raises(HarnError, match="closed"):
        await waiting

    async with fresh_runtime(clock=clock):
        assert await use_of("k", path) == (1, 0)


async def test_a_cancelled_acquire_leaves_no_place_in_line(
    world: Runtime, clock: FakeClock
) -> None:
    await acquire(key="k", limit=1)
    waiting = spawn(acquire(key="k", limit=1))
    behind = spawn(acquire(key="k", limit=1))
    await clock.settle()

    waiting.cancel()
    await clock.advance("60s")

    assert waiting.cancelled()
    assert behind.done()
    assert await use_of("k") == (1, 0)


async def test_G7_wherever_it_is_cancelled_an_acquire_leaves_nothing(world: Runtime) -> None:
    fake_clock(world).autojump = True
    buckets = [Bucket("a", 2, units=2, window_ms=50), Bucket("b", 1, window_ms=50)]

    completed: list[int] = []

    async def case() -> None:
        for _ in range(3):
            await acquire(buckets=buckets)
            completed.append(fake_clock(world).now_ms())

    async def only_what_was_handed_out_counts(run: Run) -> None:
        live = bool(completed) and fake_clock(world).now_ms() < completed[-1] + 50
        assert await use_of("a") == (2 * live, 0), run
        assert await use_of("b") == (live, 0), run
        await fake_clock(world).advance("50ms")
        completed.clear()

    assert await sweep(case, only_what_was_handed_out_counts) > 5


async def test_one_bucket_in_ten_thousand_costs_no_more(world: Runtime, clock: FakeClock) -> None:
    for number in range(0, 9000, 300):
        await asyncio.gather(*(acquire(key="k", limit=9000) for _ in range(300)))
        assert await use_of("k") == (number + 300, 0)
    await clock.advance("60s")

    await acquire(key="k", limit=9000)

    assert await use_of("k") == (1, 0)


async def test_a_store_that_fails_says_so_and_works_again(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "limits.sqlite"
    (tmp_path / "limits.sqlite.mock").mkdir()
    async with fresh_runtime(clock=clock):
        with pytest.raises(HarnError, match="plain file"):
            await acquire(key="k", limit=1, state_path=path)
        (tmp_path / "limits.sqlite.mock").rmdir()

        assert (await acquire(key="k", limit=1, state_path=path)).ok


async def test_metrics_count_each_bucket_and_bound_the_labels(world: Runtime) -> None:
    for number in range(205):
        grant = await acquire(key=f"k{number}", limit=1)
    await acquire(key="k0", limit=1, timeout_ms=0)
    await grant.settle({"k204": 0})

    text = world.service(Metrics).exposition()

    assert 'harn_ratelimit_admitted_total{bucket="k0"} 1.0' in text
    assert 'harn_ratelimit_timed_out_total{bucket="k0"} 1.0' in text
    assert 'harn_ratelimit_admitted_total{bucket="other"} 5.0' in text
    assert 'harn_ratelimit_settled_total{bucket="other"} 1.0' in text
    assert 'harn_ratelimit_used_units{bucket="k1"} 1.0' in text
    assert text.count("harn_ratelimit_admitted_total{") == 201


async def test_buckets_unused_for_an_hour_are_forgotten(world: Runtime, clock: FakeClock) -> None:
    for number in range(20):
        await acquire(key=f"tenant-{number}", limit=1, window_ms=1000)
    await clock.advance("2h")
    await acquire(key="now", limit=1)
    await clock.settle()

    line = world.service(Limiter).at(None)
    found = await line.store.run(lambda: limits.list_buckets(0), write=False)

    assert [each.key for each in found] == ["now"]
    assert isinstance(line.store, Store)

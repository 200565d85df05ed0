"""Whatever is passed to a public callable, it answers with an error of ours, and nothing breaks."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Child,
    InvalidOption,
    Runtime,
    channel_emit,
    event_log_emit,
    supervisor_start,
    sync_metrics,
    worker_queue,
)
from harn.cli import invoke
from tests.fuzz.api_calls import (
    arguments,
    cyclic,
    deep,
    functions,
    methods,
    objects,
    odd_values,
    one_call,
    waits_a_turn,
)

CALLS, SECONDS, EACH = 20_000, 40.0, 250


@pytest.mark.timeout(180)
async def test_only_our_errors_come_out_whatever_is_passed(
    tmp_path: Path, at_least: Callable[[int], int]
) -> None:
    seed = random.randrange(2**32) if at_least(1) > 1 else 18
    rng, ended = random.Random(seed), Counter[str]()
    until = time.monotonic() + at_least(int(SECONDS))
    while sum(ended.values()) < at_least(CALLS) and time.monotonic() < until:
        await _some_calls(tmp_path, rng, ended, seed)

    assert ended["InvalidOption"] > 0 and ended["returned"] > 0
    verified = await asyncio.to_thread(invoke, ["log", "verify", "--state-dir", str(tmp_path)])
    assert verified == 0


async def _some_calls(state_dir: Path, rng: random.Random, ended: Counter[str], seed: int) -> None:
    async with Runtime(state_dir=state_dir):
        odd, calls = odd_values(), functions()
        calls += [each for value in await objects() for each in methods(value)]
        for _ in range(EACH):
            name, call = rng.choice(calls)
            positional, named = arguments(call, rng, odd)
            try:
                ended[await one_call(call, positional, named)] += 1
            except BaseException as error:
                shown = f"{positional!r:.300} {named!r:.300}" if not _is_deep(error) else "..."
                error.add_note(f"seed {seed}: {name} {shown}")
                raise


def _is_deep(error: BaseException) -> bool:
    return isinstance(error, RecursionError)


@pytest.mark.parametrize("n", [2**31, 0, -1, True, 1.0, "3", None])
async def test_a_claim_of_too_many_is_refused_at_the_call(runtime: Runtime, n: Any) -> None:
    queue = worker_queue("review")

    with pytest.raises(InvalidOption, match="n="):
        queue.claiming("worker", n, 1000)
    with pytest.raises(InvalidOption, match="n="):
        await queue.claim_many("worker", n)


@pytest.mark.parametrize("wrong", ["soon", True, float("nan"), float("inf"), 2**2000])
async def test_a_supervisor_is_not_stopped_by_what_is_no_time(runtime: Runtime, wrong: Any) -> None:
    supervisor = await supervisor_start(children=[Child("child", waits_a_turn)])

    with pytest.raises(InvalidOption, match="timeout="):
        await supervisor.stop(timeout=wrong)
    with pytest.raises(InvalidOption, match="shutdown_ms="):
        await supervisor_start(children=[Child("c", waits_a_turn)], shutdown_ms=wrong)

    assert supervisor.state().status != "draining"


@pytest.mark.parametrize("value", [cyclic(), {"a": deep()}], ids=["cyclic", "deep"])
async def test_a_value_without_end_is_refused_at_the_call(storage_url: str, value: Any) -> None:
    async with Runtime(storage=storage_url):
        queue = worker_queue("review")
        with pytest.raises(InvalidOption):
            await queue.enqueue(value)
        with pytest.raises(InvalidOption):
            await queue.enqueue(1, headers={"h": value})
        with pytest.raises(InvalidOption):
            await event_log_emit("news", "kind", value)
        with pytest.raises(InvalidOption):
            await channel_emit("news", value)
        with pytest.raises(InvalidOption):
            sync_metrics(value)

        assert (await queue.summary()).ready == 0


@pytest.mark.parametrize("value", [2**70, -1, "7", True])
async def test_a_trim_takes_counts_only(runtime: Runtime, value: Any) -> None:
    with pytest.raises(InvalidOption, match="keep="):
        await runtime.event_log.trim("news", keep=value)
    with pytest.raises(InvalidOption, match="before_ms="):
        await runtime.event_log.trim("news", before_ms=value)


async def test_a_purge_names_its_author_as_text(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="by="):
        await worker_queue("review").purge(by=cyclic())  # type: ignore[arg-type]

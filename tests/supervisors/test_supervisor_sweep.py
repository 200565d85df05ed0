"""Cancel the user of a supervisor at every await: nothing may be left running."""

from __future__ import annotations

import asyncio
from typing import Any

from harn import Child, ChildContext, Lease, Restart, sleep, supervisor_start
from harn.testing import fresh_runtime
from tests.sweep import Run, sweep


class Hall:
    """The children that are running; asserts that all have ended."""

    def __init__(self) -> None:
        self.inside: list[str] = []

    async def stay(self, ctx: Any) -> None:
        self.inside.append(ctx.child_name)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            self.inside.remove(ctx.child_name)

    async def fail(self, ctx: Any) -> None:
        self.inside.append(ctx.child_name)
        try:
            await asyncio.sleep(0)
        finally:  # the failure of a sibling may cancel it here
            self.inside.remove(ctx.child_name)
        raise RuntimeError

    def is_empty(self, run: Run) -> None:
        assert self.inside == [], f"{run} left {self.inside}"


async def test_a_cancelled_stop_goes_on_and_a_cancelled_runtime_ends_all() -> None:
    hall = Hall()

    async def case() -> None:
        async with fresh_runtime():
            sup = await supervisor_start(children=[Child(n, hall.stay) for n in "abc"])
            await asyncio.sleep(0)
            await sup.stop(timeout=0)

    assert await sweep(case, hall.is_empty) > 6


async def test_cancelling_a_wait_leaves_the_supervisor_to_its_runtime() -> None:
    hall = Hall()

    async def case() -> None:
        async with fresh_runtime(autojump=True):
            sup = await supervisor_start(
                children=[Child("f", hall.fail), Child("g", hall.fail)],
                restart=Restart(max_restarts=2, backoff_ms=10),
                strategy="one_for_all",
            )
            await sup.wait()

    assert await sweep(case, hall.is_empty) > 6


async def test_a_tree_with_leases_leaves_nothing_behind() -> None:
    hall = Hall()

    async def inner(ctx: ChildContext) -> None:
        sup = await supervisor_start(
            children=[Child("leased", hall.stay, active_lease=Lease("l")), Child("x", hall.stay)],
            shutdown_ms=0,
        )
        await sup.wait()

    async def case() -> None:
        async with fresh_runtime(autojump=True):
            sup = await supervisor_start(children=[Child("in", inner), Child("y", hall.stay)])
            await sleep("10ms")
            await sup.stop(timeout="20ms")

    assert await sweep(case, hall.is_empty) > 6


async def test_a_child_cancelled_anywhere_is_restarted_whole() -> None:
    """The child's own awaits, swept: each time it comes back and runs alone."""
    from tests.sweep import cancel_at

    lives = []
    inside = []

    async def body() -> None:
        inside.append(1)
        try:
            assert len(inside) == 1
            for _ in range(5):
                await asyncio.sleep(0)
        finally:
            inside.pop()

    async def child(ctx: ChildContext) -> None:
        lives.append(ctx.attempt)
        await cancel_at(body(), ctx.attempt, False, [])

    async with fresh_runtime():
        sup = await supervisor_start(children=[Child("c", child)])
        state = await sup.wait()

    assert state.status == "completed"
    assert len(lives) == 6

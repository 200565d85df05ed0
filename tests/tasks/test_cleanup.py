"""defer, owned, disown, drop: they run on every way out, all of them, last in, first out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import harn
from harn import Owned, Runtime, defer, disown, drop, owned, scope, spawn


class Boom(Exception):
    pass


async def turns(n: int = 3) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class Thing:
    """Something to close, in one of the ways there are."""

    def __init__(self, log: list[str], how: str) -> None:
        self._log = log
        setattr(self, how, getattr(self, f"_{how}"))

    async def _aclose(self) -> None:
        await turns()
        self._log.append("aclose")

    def _close(self) -> None:
        self._log.append("close")

    def _release(self) -> bool:
        self._log.append("release")
        return True


async def test_defers_run_last_in_first_out_on_every_way_out(runtime: Runtime) -> None:
    order: list[str] = []

    async def block(way: str) -> None:
        for _ in range(1):
            async with scope():
                defer(order.append, "first")
                defer(order.append, "second")
                if way == "return":
                    return
                if way == "break":
                    break
                if way == "continue":
                    continue
                if way == "raise":
                    raise Boom
                if way == "cancel":
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await forever()

    for way in ("end", "return", "break", "continue", "raise", "cancel"):
        order.clear()
        await asyncio.wait((asyncio.create_task(block(way)),))
        assert order == ["second", "first"], way


async def test_a_defer_in_a_loop_body_with_a_scope_runs_each_time(runtime: Runtime) -> None:
    order: list[Any] = []
    for n in range(3):
        async with scope():
            defer(order.append, ("closed", n))
            order.append(n)
    assert order == [0, ("closed", 0), 1, ("closed", 1), 2, ("closed", 2)]


async def test_without_a_scope_a_defer_belongs_to_the_task(runtime: Runtime) -> None:
    order: list[str] = []

    async def child() -> None:
        defer(order.append, "child's")
        order.append("child")

    async with scope():
        defer(order.append, "scope's")
        await spawn(child)
        order.append("body")

    assert order == ["child", "child's", "body", "scope's"]


async def test_at_the_top_a_defer_belongs_to_the_runtime() -> None:
    order: list[str] = []
    async with Runtime():
        defer(turns)
        defer(order.append, "top")
        order.append("body")
    assert order == ["body", "top"]

    def script() -> None:
        async def main() -> None:
            defer(order.append, "implicit")

        asyncio.run(main())

    await asyncio.to_thread(script)
    assert order[-1] == "implicit"


async def test_all_cleanups_run_even_if_some_fail_and_their_errors_come_out(
    runtime: Runtime,
) -> None:
    order: list[str] = []

    def fails(text: str) -> None:
        order.append(text)
        raise Boom(text)

    async def fails_later(text: str) -> None:
        await turns()
        fails(text)

    with pytest.raises(Boom, match="three") as caught:
        async with scope():
            defer(order.append, "one")
            defer(fails, "two")
            defer(fails_later, "three")
    assert order == ["three", "two", "one"]
    assert caught.value.__notes__ == ["also: Boom: two"]

    with pytest.raises(KeyError) as on_its_way:
        async with scope():
            defer(fails, "late")
            raise KeyError("body")
    assert on_its_way.value.__notes__ == ["also: Boom: late"]


async def test_a_cancel_during_a_cleanup_waits_until_all_have_run(runtime: Runtime) -> None:
    order: list[str] = []

    async def slow(text: str) -> None:
        order.append(f"{text} began")
        await turns(5)
        order.append(f"{text} ended")

    async def main() -> None:
        async with scope():
            defer(slow, "one")
            defer(slow, "two")

    task = asyncio.create_task(main())
    while not order:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))

    assert task.cancelled()
    assert order == ["two began", "two ended", "one began", "one ended"]


@pytest.mark.parametrize("how", ["aclose", "close", "release"])
async def test_what_is_owned_is_closed_with_its_block_in_its_place_among_the_defers(
    runtime: Runtime, how: str
) -> None:
    log: list[str] = []
    async with scope():
        thing: Owned[Thing] = owned(Thing(log, how))
        assert owned(thing) is thing  # once is enough
        defer(log.append, "user defer first (LIFO)")
    assert log == ["user defer first (LIFO)", how]


async def test_disown_hands_it_to_the_caller(runtime: Runtime) -> None:
    log: list[str] = []

    async def opens() -> Owned[Thing]:
        async with scope():
            thing = owned(Thing(log, "close"))
            async with scope():
                disown(thing)
        return thing

    async with scope():
        owned(await opens())
        assert log == []
    assert log == ["close"]
    assert disown(unowned := Thing(log, "close")) is unowned


async def test_drop_closes_now_and_not_again(runtime: Runtime) -> None:
    log: list[str] = []
    async with scope():
        thing = owned(Thing(log, "close"))
        await drop(thing)
        assert log == ["close"]
    assert log == ["close"]

    for value in (None, 3, "text", {"close": 1}, Thing):
        await drop(value)


async def test_dropping_a_task_cancels_and_awaits_it(runtime: Runtime) -> None:
    tidied = []

    async def child() -> None:
        try:
            await forever()
        finally:
            await turns()
            tidied.append(True)

    handle = spawn(child)
    await turns()
    await drop(handle)
    assert tidied == [True]

    async with scope():
        other = owned(spawn(turns, 3))
    assert other.status == "completed"


async def test_a_deferred_call_can_be_made_from_a_worker_thread(runtime: Runtime) -> None:
    order: list[str] = []

    def works() -> None:
        defer(order.append, "deferred")
        order.append("work")

    await spawn(works)
    assert order == ["work", "deferred"]


async def test_only_what_can_be_called_can_be_deferred(runtime: Runtime) -> None:
    with pytest.raises(harn.InvalidOption):
        defer("close")  # type: ignore[arg-type]


def test_owned_is_transparent_to_the_type_system() -> None:
    from typing import get_args, get_type_hints

    def opens() -> Owned[int]: ...  # type: ignore[empty-body]

    assert get_type_hints(opens)["return"] is int
    assert get_args(Owned[int])[0] is int

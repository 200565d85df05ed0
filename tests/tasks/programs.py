"""Random programs of spawns, failures, cancels and deadlines in nested scopes, each from a seed.

`Program(seed).run()` carries one out and asserts what must hold for all of them: a block has ended
means its tasks have ended; a cancel from outside comes out as a cancel; nothing is left running.
Time passes one millisecond a turn of the loop (`TurnClock`), so nothing here waits.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import harn
from harn import Runtime
from harn.clock import Activity


class Boom(Exception):
    """What programs raise on purpose."""


EXPECTED = (Boom, harn.DeadlineExceeded, harn.TaskCancelled, harn.RaceFailed, harn.DeadlockError)


class TurnClock:
    """A clock whose millisecond is a turn of the event loop."""

    is_fake = True

    def __init__(self) -> None:
        self.activity = Activity()

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Turns:
        return Turns(-1 if background else round(when * 1000), wake)


class Turns:
    """A timer that counts turns."""

    def __init__(self, left: int, wake: Callable[[], object]) -> None:
        self._wake: Callable[[], object] | None = wake
        self._left = left
        if left >= 0:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self._wake is None:
            return
        if self._left <= 0:
            self._wake()
        else:
            self._left -= 1
            asyncio.get_running_loop().call_soon(self._turn)

    def cancel(self) -> None:
        self._wake = None


class Block:
    """An open scope of the program, and how many of its tasks run."""

    def __init__(self) -> None:
        self.alive = 0
        self.lock = threading.Lock()


class Program:
    """One random program, with *threads* some of it on worker threads."""

    def __init__(self, seed: int, threads: bool = False) -> None:
        self.seed = seed
        self.ops = [*OPS, *THREADED] if threads else OPS
        self.random = random.Random(seed)
        self.cleanups = 0
        self.deferred = 0
        self.converted = False
        self.budget = 60
        self.steps = 0
        # Held until the end: a generator that is dropped half read is closed by a task of the
        # interpreter's own, whenever the collector finds it, and that task would pass for a leak.
        self.generators: list[AsyncGenerator[int, None]] = []

    async def run(self) -> str:
        """Carry it out, one in three cancelled from outside at some turn; say how it ended."""
        before = asyncio.all_tasks()
        main = asyncio.get_running_loop().create_task(self.main())
        cancelled = False
        if self.random.random() < 0.35:
            for _ in range(self.random.randrange(25)):
                await asyncio.sleep(0)
            cancelled = main.cancel()
        await asyncio.wait((main,))
        left = asyncio.all_tasks() - before
        assert not left, f"seed {self.seed}: left running: {left}"
        for generator in self.generators:
            await generator.aclose()  # an error, if anything still reads it
        assert self.cleanups == self.deferred, f"seed {self.seed}: cleanups were lost"
        if main.cancelled():
            return "cancelled"
        error = main.exception()
        assert not cancelled or self.converted, f"seed {self.seed}: the cancel became {error!r}"
        if error is not None and not isinstance(error, EXPECTED):
            raise AssertionError(f"seed {self.seed}: {error!r}") from error
        return type(error).__name__

    async def main(self) -> None:
        """Carry it out, in a runtime of its own."""
        async with Runtime(clock=TurnClock()):
            await self._body(0, None)

    async def _body(self, depth: int, block: Block | None) -> int:
        self._count(block, 1)
        try:
            return await self._ops(depth, block)
        finally:
            self._count(block, -1)

    async def _ops(self, depth: int, block: Block | None) -> int:
        handles: list[Any] = []
        for _ in range(self.random.randrange(1, 7)):
            self.budget -= 1
            if self.budget <= 0:
                return 0
            self.steps += 1
            if depth >= 4:
                await self._leaf(depth, block, handles)
            else:
                await self.random.choice(self.ops)(self, depth, block, handles)
        return depth

    # What a program is made of: steps take their depth, the open block, the handles at hand.

    async def _leaf(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        await self.random.choice((Program.turns, Program.turns, Program.fail))(
            self, depth, block, handles
        )

    async def turns(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def sleep(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        await harn.sleep(f"{self.random.randrange(1, 6)}ms")

    async def fail(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        if self.random.random() < 0.6:
            raise Boom(depth)

    async def stubborn(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        try:
            await self.turns(depth, block, handles)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # tidies up for a moment, or fails doing so
            if self.random.random() < 0.2:
                self.converted = True  # the program's own doing
                raise Boom("while tidying up") from None
            raise

    async def spawn(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        handles.append(harn.spawn(self._body, depth + 1, block))

    async def wait(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        if handles:
            handle = self.random.choice(handles)
            if self.random.random() < 0.5:
                try:
                    await handle
                except EXPECTED:
                    pass
            else:
                await harn.wait_agent(handle)

    async def cancel(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        if handles:
            self.random.choice(handles).cancel()

    async def cancel_graceful(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        if handles:
            handle = self.random.choice(handles)
            await harn.cancel_graceful(handle, f"{self.random.randrange(4)}ms")
            assert handle.done(), f"seed {self.seed}"

    async def drop(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        if handles:
            await harn.drop(harn.owned(self.random.choice(handles)))

    async def scope(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        inner = Block()
        try:
            for _ in range(2):
                async with harn.scope() as s:
                    if self.random.random() < 0.3:
                        handles.append(s.spawn(self._body, depth + 1, inner))
                    await self._ops(depth + 1, inner)
                    way = self.random.random()
                    if way < 0.1:
                        s.cancel()
                    elif way < 0.25:
                        break
                    elif way < 0.4:
                        return
                    elif way < 0.5:
                        s.spawn(self._end_later, s)
        except EXPECTED:
            if self.random.random() < 0.4:
                raise
        finally:
            assert inner.alive == 0, f"seed {self.seed}: {inner.alive} tasks outlived their scope"

    async def _end_later(self, s: Any) -> None:
        await asyncio.sleep(0)
        s.cancel()

    async def deadline(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        try:
            async with harn.deadline(f"{self.random.randrange(8)}ms"):
                await self._ops(depth + 1, block)
        except harn.DeadlineExceeded:
            if self.random.random() < 0.3:
                raise

    async def parallel(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        inner = Block()
        count, cap = self.random.randrange(5), self.random.randrange(-1, 4)
        form = self.random.randrange(4)
        try:
            if form == 0:
                await harn.parallel(
                    count, lambda i: self._body(depth + 2, inner), cap, isolation="task"
                )
            elif form == 1:
                items = self._agen(count) if self.random.random() < 0.3 else range(count)
                await harn.parallel_each(items, self._item(depth, inner), cap)
            elif form == 2:
                settled = await harn.parallel_settle(range(count), self._item(depth, inner), cap)
                assert settled.succeeded + settled.failed == count
            else:
                await harn.parallel_race(range(count + 1), self._item(depth, inner), cap)
        except EXPECTED:
            if self.random.random() < 0.5:
                raise
        finally:
            # What an item spawned outside any scope is detached, or the enclosing block's.
            assert block is not None or inner.alive >= 0

    def _item(self, depth: int, block: Block) -> Callable[[int], Any]:
        async def item(index: int) -> int:
            return await self._body(depth + 2, None)

        return item

    def _agen(self, count: int) -> AsyncGenerator[int, None]:
        async def indexes() -> AsyncGenerator[int, None]:
            for index in range(count):
                await asyncio.sleep(0)
                yield index

        generator = indexes()
        self.generators.append(generator)
        return generator

    async def stream(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        count, cap = self.random.randrange(6), self.random.randrange(-1, 4)
        items = self._agen(count) if self.random.random() < 0.3 else range(count)
        stream = harn.parallel_each_stream(items, self._item(depth, Block()), cap)
        wanted = self.random.randrange(7)
        way = self.random.randrange(3)
        try:
            if way == 0:
                async with stream:
                    await self._read(stream, wanted)
            else:
                await self._read(stream, wanted)
                if way == 1:
                    await stream.aclose()
        except EXPECTED:
            if self.random.random() < 0.5:
                raise

    async def _read(self, stream: Any, wanted: int) -> None:
        async for _ in stream:
            wanted -= 1
            if wanted <= 0:
                break

    async def retry(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        await harn.retry(
            2, lambda: self._body(depth + 2, None), backoff_ms=self.random.randrange(2)
        )

    async def thread(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        handles.append(harn.spawn(self._in_thread, self.random.randrange(4), block))

    def _in_thread(self, what: int, block: Block | None) -> None:
        self._count(block, 1)
        try:
            if what == 0:
                raise Boom("on a thread")
            if what == 1:
                harn.from_thread(harn.sleep, "5ms")
            while what == 2 and not harn.is_cancelled():
                harn.from_thread(asyncio.sleep, 0)
                what = self.random.choice((2, 2, 3))
        finally:
            self._count(block, -1)

    def _count(self, block: Block | None, change: int) -> None:
        if block is not None:
            with block.lock:
                block.alive += change

    async def threads(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        await harn.parallel_settle(range(3), lambda n: n, self.random.randrange(3))

    async def defer(self, depth: int, block: Block | None, handles: list[Any]) -> None:
        self.deferred += 1
        harn.defer(self._cleanup, self.random.random() < 0.15)

    async def _cleanup(self, fails: bool) -> None:
        await asyncio.sleep(0)
        self.cleanups += 1
        if fails:
            raise Boom("in a cleanup")


THREADED = [Program.thread] * 4 + [Program.threads]
OPS = (
    [Program.turns] * 3
    + [Program.sleep] * 2
    + [Program.fail]
    + [Program.stubborn]
    + [Program.spawn] * 4
    + [Program.wait] * 2
    + [Program.cancel, Program.cancel_graceful, Program.drop]
    + [Program.scope] * 4
    + [Program.deadline] * 2
    + [Program.parallel] * 2
    + [Program.stream] * 2
    + [Program.retry, Program.defer]
)

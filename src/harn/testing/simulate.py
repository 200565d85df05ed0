"""Run a scenario under many seeds: consumers are killed, paused and slowed in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import msgspec

from harn.duration import Duration, to_seconds, to_text
from harn.errors import DeadlineExceeded, InvalidOption
from harn.option_checks import is_whole
from harn.plurals import counted
from harn.storage import Store
from harn.storage.log import export
from harn.tasks import deadline, is_async_callable
from harn.testing.simulated_process import SharedStore, SimulatedProcess
from harn.testing.virtual_loop import VirtualTimeLoop
from harn.workers import Job, drain, worker_queue

Fault = Literal["kill", "pause", "slow"]
LONGEST_BREAK = 60.0
"""Seconds that a killed consumer is away, or a paused one stands still, at most."""
MOST_SHOWN = 30


class SimulatedRun(msgspec.Struct, frozen=True):
    """One run of a scenario: its *seed*, the store's log as JSON lines, and what disturbed it.

    >>> async def scenario(world: Simulation) -> None:
    ...     world.consume("q", lambda job: None)
    >>> [run] = simulate(scenario, seeds=[7])
    >>> run.seed
    7
    """

    seed: int
    log: bytes
    faults: tuple[str, ...]
    seconds: float
    """How long it took, in virtual time."""


class Simulation:
    """The world of a scenario: one store, and consumers that are disturbed by the seed.

    The scenario itself runs in a runtime of its own, which is not disturbed.

    >>> async def scenario(world: Simulation) -> None:
    ...     await worker_queue("q").enqueue_many(range(5))
    ...     world.consume("q", lambda job: seen.add(job.payload), consumers=2)
    ...     await world.settled("q")
    ...     assert seen == {0, 1, 2, 3, 4}
    >>> seen: set[int] = set()
    >>> len(simulate(scenario, seeds=3))
    3
    """

    def __init__(self, seed: int, faults: Sequence[Fault], every: float) -> None:
        loop: Any = asyncio.get_running_loop()
        self.seed = seed
        self.faults: list[str] = []
        """What has disturbed it so far, in words."""
        self._every = every
        self._kinds = sorted(faults)
        self._loop = loop
        self._shared = SharedStore(loop.harn_clock)
        self._own = SimulatedProcess("scenario", self._shared, f"{seed}")
        self._tasks: list[asyncio.Task[None]] = []
        self._count = 0
        self._error: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None

    def consume(
        self,
        queue: str,
        handler: Callable[[Job], Any] | None = None,
        *,
        consumers: int = 3,
        **options: Any,
    ) -> None:
        """Start *consumers* processes that drain *queue*, with the options of `drain`.

        A plain handler is called on the loop. A killed consumer comes back after a while, under
        another id; its handlers are cancelled, and nothing they do after that reaches the store.
        """
        for _ in range(consumers):
            self._count += 1
            name = f"consumer-{self._count}"
            serve = partial(drain, queue, _on_loop(handler), stop_when_empty=False, **options)
            life = self._live(name, serve)
            # In a context of its own: the scenario's runtime is not a consumer's.
            self._tasks.append(self._loop.create_task(life, context=contextvars.Context()))

    async def settled(self, *queues: str) -> None:
        """Wait until no job of *queues* is ready, scheduled or in flight.

        Cancelling leaves nothing behind.
        """
        for name in queues:
            while True:
                summary = await worker_queue(name).summary()
                if not (summary.ready or summary.scheduled or summary.in_flight):
                    break
                await asyncio.sleep(1)

    async def run(self, scenario: Callable[[Simulation], Awaitable[object]], limit: float) -> bytes:
        """Run *scenario*; return the log as it is when the scenario ends."""
        self._main = asyncio.current_task()
        try:
            async with self._own.runtime as runtime:
                try:
                    async with deadline(limit):
                        await scenario(self)
                    return b"".join([line async for line in export(runtime.service(Store))])
                finally:
                    await self._end()
        except asyncio.CancelledError:
            if self._error is None:
                raise
            raise self._error from None

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(BaseException):
                await task
        self._tasks.clear()

    # -- a consumer's lives ----------------------------------------------------------------------

    async def _live(self, name: str, serve: Callable[..., Awaitable[object]]) -> None:
        """Run a consumer, and start it again after each kill."""
        number = 0
        while True:
            number += 1
            seed = f"{self.seed}/{name}/{number}"
            process = SimulatedProcess(f"{name}-{number}", self._shared, seed)
            both = [
                asyncio.create_task(_serve(process, serve)),
                asyncio.create_task(self._disturb(process)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not process.is_dead:
                    self._fail(both[0])
                    return
            finally:
                process.resume()
                for task in both:
                    task.cancel()
                await asyncio.wait(both)
                process.shared.disconnect(process)
            await asyncio.sleep(process.random.uniform(0.1, LONGEST_BREAK))

    def _fail(self, working: asyncio.Task[None]) -> None:
        """Let the scenario fail with the error of a consumer that ended by itself."""
        self._error = working.exception()
        if self._error is not None and self._main is not None:
            self._main.cancel()

    async def _disturb(self, process: SimulatedProcess) -> None:
        """Disturb *process* now and then; return when it was killed."""
        rng = process.random
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._every))
            if not self._kinds:
                continue
            kind, lasting = rng.choice(self._kinds), rng.uniform(0.1, LONGEST_BREAK)
            self._note(process, kind, lasting)
            if kind == "kill":
                process.kill()
                return
            if kind == "pause":
                process.pause()
                await asyncio.sleep(lasting)
                process.resume()
            else:
                process.slowness = rng.uniform(2, 20)
                await asyncio.sleep(lasting)
                process.slowness = 1.0

    def _note(self, process: SimulatedProcess, kind: Fault, lasting: float) -> None:
        words = {"kill": "is killed", "pause": "is paused", "slow": "is slow"}
        long = "" if kind == "kill" else f" for {lasting:.1f}s"
        self.faults.append(f"{self._loop.time():.3f}s: {process.name} {words[kind]}{long}")


async def _serve(process: SimulatedProcess, serve: Callable[..., Awaitable[object]]) -> None:
    async with process.runtime:
        await serve(consumer_id=process.name)


def _on_loop(handler: Callable[[Job], Any] | None) -> Callable[[Job], Any] | None:
    """Return a handler that runs on the loop: a thread would take real time."""
    if handler is None or is_async_callable(handler):
        return handler
    plain = handler

    async def called(job: Job) -> Any:
        result = plain(job)
        return await result if asyncio.iscoroutine(result) else result

    return called


def simulate(
    scenario: Callable[[Simulation], Awaitable[object]],
    seeds: int | Iterable[int] = 50,
    *,
    faults: Sequence[Fault] = ("kill", "pause", "slow"),
    every: Duration = "20s",
    limit: Duration = "1d",
) -> list[SimulatedRun]:
    """Run *scenario* once for each seed, in virtual time; raise what the first failing run raises.

    A number of *seeds* is that many, from 0. Consumers that the scenario starts (`world.consume`)
    have runtimes of their own on one store in memory. Each is killed, paused or slowed about once
    in *every*, by the seed. The seed of the first failure and what happened in its run are printed
    on stderr. The same seed gives the same run, and the same log byte for byte. A run that takes
    longer than *limit* of virtual time fails.

    >>> async def scenario(world: Simulation) -> None:
    ...     receipt = await worker_queue("sums").enqueue([1, 2, 3])
    ...     world.consume("sums", lambda job: sum(job.payload))
    ...     assert await receipt.result() == 6
    >>> len(simulate(scenario, seeds=5))
    5
    """
    wanted = _seeds(seeds)
    for fault in faults:
        if fault not in get_args(Fault):
            raise InvalidOption("faults", faults, f"some of {', '.join(get_args(Fault))}")
    options = (tuple(faults), to_seconds(every, "every"), to_seconds(limit, "limit"))
    with _silence():
        return [_run(scenario, seed, *options) for seed in wanted]


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    wanted = [*range(seeds)] if is_whole(seeds) else seeds
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise InvalidOption("seeds", seeds, "a number of seeds, or the seeds themselves")
    found = list(wanted)
    if not found or not all(is_whole(seed) for seed in found):
        raise InvalidOption("seeds", seeds, "a number of at least 1, or whole numbers")
    return found


def _run(
    scenario: Callable[[Simulation], Awaitable[object]],
    seed: int,
    faults: Sequence[Fault],
    every: float,
    limit: float,
) -> SimulatedRun:
    worlds: list[Simulation] = []

    async def inside() -> SimulatedRun:
        world = Simulation(seed, faults, every)
        worlds.append(world)
        log = await world.run(scenario, limit)
        seconds = asyncio.get_running_loop().time()
        return SimulatedRun(seed, log, tuple(world.faults), seconds)

    try:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(inside())
    except Exception as error:
        told = _told(seed, worlds[0].faults if worlds else [])
        if isinstance(error, DeadlineExceeded):
            told = f"it has not ended after {to_text(limit)} of virtual time; {told}"
        error.add_note(told)
        print(told, file=sys.stderr)
        raise


def _told(seed: int, faults: Sequence[str]) -> str:
    lines = [f"simulate: seed {seed} fails; run it alone with seeds=[{seed}]"]
    lines += [f"  {each}" for each in faults[:MOST_SHOWN]]
    if len(faults) > MOST_SHOWN:
        lines.append(f"  and {counted(len(faults) - MOST_SHOWN, 'more fault')}")
    return "\n".join(lines)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Log nothing: kills and lost leases are what a simulation is about."""
    logger = logging.getLogger("harn")
    was, logger.disabled = logger.level, False
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(was)

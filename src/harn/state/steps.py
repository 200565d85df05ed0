"""`step`: a part of durable work that is carried out once, whatever happens to the process.

A step is known by the work (a job, or a durable pool task), its name, and how often the name was
used before in the attempt. Its result is recorded when it has ended; a later attempt that comes to
the same step gets the record and does not run it. A step that was running when its process died,
or that raised, has no record and runs again.

The names of steps inside a step begin with that step, so that they do not count for the code
after it: on a later attempt the outer one does not run, and neither do they.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, TypeVarTuple, overload

import msgspec

from harn.current import current_runtime
from harn.durable_work import DurableWork, StepRecord, durable_work, nested_name, shown_step
from harn.errors import HarnError, StepChanged
from harn.naming import check_data
from harn.runtime import Runtime
from harn.storage import MAX_VALUE, decode, encode
from harn.tasks import bind, check_callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_NAME = 512

_inside: contextvars.ContextVar[tuple[DurableWork, str, int] | None] = contextvars.ContextVar(
    "harn_step", default=None
)
"""The step that runs here: its work, its name and its number."""


@overload
async def step(name: str, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts) -> T: ...
@overload
async def step(name: str, fn: Callable[[*Ts], T], /, *args: *Ts) -> T: ...
async def step(name: str, fn: Callable[[*Ts], Any], /, *args: *Ts) -> Any:
    """Call *fn* with *args* once in this job or durable pool task, and return its JSON result.

    The result is recorded before it is returned. A later attempt, in any process, returns the
    record and does not call *fn*. An error is not recorded. If another consumer has claimed the job
    meanwhile, `ClaimLost` is raised and nothing is recorded. A name that was recorded with another
    function or other arguments is a `StepChanged`.

    Cancelling cancels *fn*; once it has ended, its result is recorded all the same.

    >>> import harn
    >>> async def handle(job: harn.Job) -> str:
    ...     page = await harn.step("fetch", lambda: "<html>")
    ...     return await harn.step("summarise", len, page)
    >>> async def main() -> list[str]:
    ...     queue = harn.worker_queue("pages")
    ...     receipt = await queue.enqueue({"url": "https://example.org"})
    ...     await harn.drain("pages", handle)
    ...     return [each.name for each in (await receipt.state()).steps]
    >>> harn.run(main)
    ['fetch', 'summarise']
    """
    check_data("name", name, MAX_NAME)
    check_callable(fn)
    work = durable_work()
    if work is None:
        raise HarnError(
            f"step({name!r}) is outside of durable work: call it in a handler of drain, in a "
            "@durable function that a queue runs, or in a @durable call of a pipeline, tenant or "
            "org pool"
        )
    return await _steps_of(work).run(name, fn, args)


def take_number(name: str) -> int:
    """Return how often *name* was taken before in this attempt, inside the same step.

    It tells apart what begins in the same order on every attempt. Outside of durable work it is 0.
    """
    work = durable_work()
    return 0 if work is None else _steps_of(work).place(name)[1]


def _steps_of(work: DurableWork) -> AttemptSteps:
    if work.steps is None:
        work.steps = AttemptSteps(work, current_runtime())
    return work.steps  # type: ignore[no-any-return]


class AttemptSteps:
    """The steps of one attempt: those of earlier attempts, and how often names were used."""

    def __init__(self, work: DurableWork, runtime: Runtime) -> None:
        self._work = work
        self._runtime = runtime
        self._used: Counter[str] = Counter()
        self._recorded: Mapping[tuple[str, int], StepRecord] | None = None

    async def run(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the recorded result of the step, or carry it out and record it."""
        full, number = self.place(name)
        call = described_call(fn, args)
        if self._recorded is None:
            found = await self._work.recorded_steps()
            self._recorded = {(each.name, each.number): each for each in found}
        known = self._recorded.get((full, number))
        if known is None:
            return await self._carry_out(full, number, call, fn, args)
        if known.call != call:
            raise self._changed(known, call)
        return decode(known.result)

    def place(self, name: str) -> tuple[str, int]:
        """Count a use of *name* here; return its full name, and how often it was used before."""
        inside = _inside.get()
        if inside is not None and inside[0] is self._work:
            name = nested_name(inside[1], inside[2], name)
        number = self._used[name]
        self._used[name] += 1
        return name, number

    async def _carry_out(
        self, name: str, number: int, call: str, fn: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        clock = self._runtime.clock
        started_at, began = clock.now_ms(), clock.monotonic()
        token = _inside.set((self._work, name, number))
        try:
            value = await bind(self._runtime, fn, "auto")(*args)
        finally:
            _inside.reset(token)
        took = round((clock.monotonic() - began) * 1000)
        result = encode("result", value, MAX_VALUE)
        await self._work.record_step(StepRecord(name, number, call, result, started_at, took))
        return decode(result)

    def _changed(self, known: StepRecord, call: str) -> StepChanged:
        was, now = (each.rpartition(" ")[0] for each in (known.call, call))
        how = f"{was}, and now calls {now}" if was != now else f"other arguments of {was}"
        return StepChanged(
            f"step {shown_step(known.name)!r} of {self._work.title} was recorded with {how}; "
            "its record is not used and it is not run again: give the new step another name"
        )


def described_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return the name of *fn* and a digest of its arguments, the same in every process.

    >>> described_call(len, ("abc",)) == described_call(len, ("abc",))
    True
    >>> described_call(len, ("abc",)).split()[0]
    'len'
    """
    keywords: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        args, keywords = (*fn.args, *args), {**fn.keywords, **keywords}
        fn = fn.func
    # Without the module: that is `__main__` in the process that was started with the file.
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    try:
        written = _encode([args, keywords])
    except (TypeError, ValueError, OverflowError, RecursionError):
        written = repr([type(each).__name__ for each in args]).encode()
    return f"{name} {hashlib.blake2b(written, digest_size=8).hexdigest()}"


def _by_type(value: Any) -> str:
    return f"<{type(value).__name__}>"


_encode = msgspec.json.Encoder(enc_hook=_by_type, order="deterministic").encode

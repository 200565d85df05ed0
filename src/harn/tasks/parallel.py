"""The same function over many items at once: all, each, settled, raced, or as a stream.

    parallel(n, fn)              fn(0) … fn(n-1); a list in order; the first failure ends it
    parallel_each(items, fn)     fn over items; likewise
    parallel_settle(items, fn)   never fails: an Ok or Err for each item, in order
    parallel_race(items, fn)     the first success; the others are cancelled and awaited
    parallel_each_stream(...)    values in order of completion, as they complete (stream.py)

`max_concurrent` limits how many run at once; 0 or less means no limit (for a plain function, the
number of worker threads). Items may be any iterable, also an async one.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from harn.error_text import message_of
from harn.errors import InvalidOption, RaceFailed
from harn.option_checks import whole_number
from harn.tasks.isolation import Isolation
from harn.tasks.parallel_engine import Items, ParallelRun
from harn.tasks.results import Err, Ok

A = TypeVar("A")
T = TypeVar("T")


@overload
async def parallel(
    n: int,
    fn: Callable[[int], Awaitable[T]],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> list[T]: ...
@overload
async def parallel(
    n: int, fn: Callable[[int], T], max_concurrent: int = 0, *, isolation: Isolation = "auto"
) -> list[T]: ...
async def parallel(
    n: int,
    fn: Callable[[int], Any],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> list[Any]:
    """Run *fn* with each of 0 … *n*-1 and return the values in that order.

    The first failure cancels the other tasks, waits for them, and is raised. Of several failures
    before that, the one with the lowest index is raised and the others are notes on it. A negative
    *n* means none.

    Cancelling cancels and awaits every task.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     return await harn.parallel(5, lambda i: i * 10)
    >>> harn.run(main)
    [0, 10, 20, 30, 40]
    """
    whole_number("n", n)
    return await _collected("parallel", range(n), fn, max_concurrent, isolation)


@overload
async def parallel_each(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Awaitable[T]],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> list[T]: ...
@overload
async def parallel_each(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], T],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> list[T]: ...
async def parallel_each(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Any],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> list[Any]:
    """Run *fn* with each of *items* and return the values in the items' order.

    Failures and cancelling are as in `parallel`.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     return await harn.parallel_each(["a", "b"], str.upper, max_concurrent=4)
    >>> harn.run(main)
    ['A', 'B']
    """
    return await _collected("parallel_each", items, fn, max_concurrent, isolation)


async def _collected(
    kind: str, items: Items, fn: Callable[..., Any], max_concurrent: int, isolation: Isolation
) -> list[Any]:
    run = Collecting(kind, items, fn, max_concurrent, isolation)
    await run.work()
    return run.in_order()


class Collecting(ParallelRun):
    """Keeps every value by its item's index."""

    succeeded: Callable[[int, Any], Any]  # type: ignore[assignment]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._values: dict[int, Any] = {}
        # The dict's own method: a method of this class would be one more call for each item.
        self.succeeded = self._values.__setitem__

    def in_order(self) -> list[Any]:
        """Return the values in the order of the items."""
        values = self._values
        return [values[index] for index in range(len(values))]


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """What `parallel_settle` returns: every outcome in order, and how many there are of each.

    >>> import harn
    >>> async def main() -> tuple[int, object]:
    ...     settled = await harn.parallel_settle([1, 0], lambda n: 10 // n)
    ...     return settled.succeeded, settled.results[0]
    >>> harn.run(main)
    (1, Ok(value=10))
    """

    results: list[Ok[T] | Err[BaseException]]
    succeeded: int
    failed: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields with errors as text; JSON-ready if the values are."""
        return {
            "results": [
                {"ok": result.value} if isinstance(result, Ok) else {"err": _text(result.error)}
                for result in self.results
            ],
            "succeeded": self.succeeded,
            "failed": self.failed,
        }


@overload
async def parallel_settle(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Awaitable[T]],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> Settled[T]: ...
@overload
async def parallel_settle(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], T],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> Settled[T]: ...
async def parallel_settle(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Any],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> Settled[Any]:
    """Run *fn* with each of *items*; return every outcome in order, `Ok(value)` or `Err(error)`.

    A failure does not affect the other tasks. Cancelling cancels and awaits every task, and is
    raised.

    >>> import harn
    >>> async def main() -> tuple[int, int]:
    ...     outcome = await harn.parallel_settle([1, 0, 2], lambda n: 10 // n)
    ...     return outcome.succeeded, outcome.failed
    >>> harn.run(main)
    (2, 1)
    """
    run = CollectingOutcomes("parallel_settle", items, fn, max_concurrent, isolation)
    await run.work()
    results = run.in_order()
    return Settled(results, len(results) - run.failed_count, run.failed_count)


class CollectingOutcomes(Collecting):
    """Keeps every outcome, `Ok` or `Err`, by its item's index."""

    failed_count: int = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.succeeded: Callable[[int, Any], Any] = self._keep

    def _keep(self, index: int, value: Any) -> None:
        self._values[index] = Ok(value)

    def failed(self, index: int, error: BaseException) -> None:
        """Keep *error* as an outcome."""
        self.failed_count += 1
        self._values[index] = Err(error)


@overload
async def parallel_race(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Awaitable[Ok[T] | Err[Any]]],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> T: ...
@overload
async def parallel_race(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Awaitable[T]],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> T: ...
@overload
async def parallel_race(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], T],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> T: ...
async def parallel_race(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Any],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> Any:
    """Run *fn* with each of *items* and return the first success; cancel and await the others.

    A plain value is a success, an `Ok` gives its payload, an exception or an `Err` is a failure. If
    all fail, `RaceFailed` is raised; its `errors` holds each exception or `Err` payload, by index.
    Without items, `InvalidOption` is raised. Cancelling cancels and awaits every task.

    >>> import harn
    >>> async def main() -> int:
    ...     return await harn.parallel_race([0, 5], lambda n: 10 // n)
    >>> harn.run(main)
    2
    """
    run = Racing("parallel_race", items, fn, max_concurrent, isolation)
    await run.work()
    return run.winner()


class Racing(ParallelRun):
    """Stops at the first success."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._errors: dict[int, Any] = {}
        self._won = False
        self._winner: Any = None

    def succeeded(self, index: int, value: Any) -> None:
        """Keep *value* if it is the first success; an `Err` is a failure."""
        if isinstance(value, Err):
            self._errors[index] = value.error
        elif not self._won:
            self._won = True
            self._winner = value.value if isinstance(value, Ok) else value
            self.stop()

    def failed(self, index: int, error: BaseException) -> None:
        """Remember *error*; the others may still win."""
        self._errors[index] = error

    def winner(self) -> Any:
        """Return the first success, or raise `RaceFailed`."""
        if self._won:
            return self._winner
        errors = [self._errors[index] for index in range(len(self._errors))]
        if not errors:
            raise InvalidOption("items", [], "expected at least one item")
        messages = "; ".join(_text(error) for error in errors)
        raise RaceFailed(f"parallel_race: all {len(errors)} task(s) failed: {messages}", errors)


def _text(error: object) -> str:
    return message_of(error) or type(error).__name__

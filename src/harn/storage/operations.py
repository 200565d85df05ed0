"""An operation on a store: a generator that yields named statements and is sent rows.

It is written once and every engine drives it, inside one transaction of its own. Each `yield` is
a round trip, so what an operation costs can be counted on the page:

    def renew(job_id: int, until: int) -> Operation[bool]:
        held = yield ask("renew_claim", id=job_id, until=until)
        return bool(held)

What is handed to a store is a *recipe*, a function without arguments that makes a fresh
operation, because an engine may have to start over (a deadlock, a connection lost). So an
operation has no effects besides its statements. The statements live in `sql/`, by name; `:now` in
one of them is the store's own time and is bound by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

Row = tuple[Any, ...]
Rows = list[Row]


class Ask(msgspec.Struct, frozen=True):
    """One named statement: with *params* once, or with each of *rows* under *columns*."""

    name: str
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: Sequence[Row] | None = None
    parts: Sequence[Ask] = ()
    """Several questions that do not need each other's answers, instead of one."""
    steps: Callable[[], Operation[Rows]] | None = None
    """How to get the same answer by smaller questions, for an engine without this statement."""
    fill: Callable[[], Mapping[str, Any]] | None = None
    """Makes further parameters, for an engine that has this statement."""
    is_last: bool = False
    """Whether the operation asks nothing more if this is answered."""


Operation = Generator[Ask, Rows, T]
Recipe = Callable[[], Operation[T]]
Execute = Callable[[Ask], Rows]


def ask(name: str, **params: Any) -> Ask:
    """Ask for the statement *name*, bound to *params*."""
    return Ask(name, params)


def ask_many(name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> Ask:
    """Ask for the statement *name* once for each of *rows*; nothing comes back."""
    return Ask(name, {}, columns, rows)


def ask_together(asked: Sequence[Ask]) -> Ask:
    """Ask several things in one round trip, in this order; a list of their rows comes back."""
    return Ask("", parts=asked)


def ask_ahead(name: str, **params: Any) -> Ask:
    """Ask something before it is known to be needed, where that saves a round trip.

    An engine without this statement does nothing, and None comes back.
    """
    return Ask(name, params, steps=_not_ahead)


def ask_last(name: str, fill: Callable[[], Mapping[str, Any]], **params: Any) -> Ask:
    """Ask for the whole operation in one statement, which an engine commits in one round trip.

    None comes back where the engine cannot do that now; then nothing has happened. After any other
    answer the operation must end: it is committed.
    """
    return Ask(name, params, fill=fill, steps=_not_ahead, is_last=True)


def _not_ahead() -> Operation[Any]:
    return None
    yield


def drive(
    operation: Operation[T],
    execute: Execute,
    together: Callable[[Sequence[Ask]], list[Rows] | None] | None = None,
    whole: Callable[[Ask], Rows | None] | None = None,
) -> T:
    """Carry *operation* out with *execute*, and return what it returns.

    *together* carries several statements out at once, and *whole* does what others do in steps,
    where an engine has a way to do that; None from either means that single steps are better.
    """
    try:
        wanted = next(operation)
        while True:
            if wanted.steps is None and not wanted.parts:  # nearly all of them, so without a call
                wanted = operation.send(execute(wanted))
            else:
                wanted = operation.send(_answer(wanted, execute, together, whole))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        operation.close()


def _answer(
    wanted: Ask,
    execute: Execute,
    together: Callable[[Sequence[Ask]], list[Rows] | None] | None,
    whole: Callable[[Ask], Rows | None] | None,
) -> Any:
    """Answer one question, or several that were asked together, at once or in steps."""
    found: Any
    if wanted.parts:
        found = None if together is None else together(wanted.parts)
        if found is None:
            found = [_answer(each, execute, together, whole) for each in wanted.parts]
        return found
    if wanted.steps is None:
        return execute(wanted)
    found = None if whole is None else whole(wanted)
    if found is None and wanted.steps is not _not_ahead:
        found = drive(wanted.steps(), execute, together, whole)
    return found


def changed_nothing(result: object) -> bool:
    """Tell whether *result* says that its operation changed nothing: then it is rolled back.

    A commit without changes still writes the store's clock, is synced, and wakes other readers.
    """
    return getattr(result, "changed_nothing", False) is True


def nothing() -> Operation[None]:
    """Do nothing, as an operation."""
    return
    yield


def then(first: Recipe[Any], second: Recipe[T]) -> Recipe[T]:
    """Make one operation of two, in one transaction; the second one's value comes back."""

    def both() -> Operation[T]:
        yield from first()
        return (yield from second())

    return both

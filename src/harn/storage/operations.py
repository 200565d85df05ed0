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
    is_optional: bool = False
    """Whether an engine may have no such statement. Then None comes back, and nothing happened."""
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
    return Ask(name, params, is_optional=True)


def ask_last(name: str, fill: Callable[[], Mapping[str, Any]], **params: Any) -> Ask:
    """Ask for the whole operation in one statement, which an engine commits in one round trip.

    None comes back where the engine cannot do that now; then nothing has happened. After any other
    answer the operation must end: it is committed.
    """
    return Ask(name, params, fill=fill, is_optional=True, is_last=True)


def drive(
    operation: Operation[T],
    execute: Execute,
    together: Callable[[Sequence[Ask]], list[Rows] | None] | None = None,
    whole: Callable[[Ask], Rows | None] | None = None,
) -> T:
    """Carry *operation* out with *execute*, and return what it returns.

    *together* carries several statements out at once, and *whole* the optional ones, where an
    engine has a way to do that; None from either means that single steps are better.
    """
    try:
        wanted = next(operation)
        while True:
            answer: Any
            if wanted.parts:
                answer = _answer_parts(wanted.parts, execute, together, whole)
            elif wanted.is_optional:
                answer = None if whole is None else whole(wanted)
            else:
                answer = execute(wanted)
            wanted = operation.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        operation.close()


def _answer_parts(
    parts: Sequence[Ask],
    execute: Execute,
    together: Callable[[Sequence[Ask]], list[Rows] | None] | None,
    whole: Callable[[Ask], Rows | None] | None,
) -> list[Rows | None]:
    """Answer questions that were asked together, at once or one after the other."""
    found: list[Rows | None] = []
    if together is not None and (at_once := together(parts)) is not None:
        found += at_once
        return found
    for each in parts:
        if each.is_optional:
            found.append(None if whole is None else whole(each))
        else:
            found.append(execute(each))
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

"""Calls that are submitted together: all of them or none, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from harn.errors import InvalidOption
from harn.pools.admission import Admission
from harn.pools.backpressure import Park
from harn.pools.slots import Slots
from harn.pools.task import PoolTask
from harn.tasks import closure_of

Call = Callable[..., Any] | tuple[Any, ...]
"""A function, or a tuple of a function and its arguments."""

WANTED = "a list of functions, or of tuples such as (fn, arg)"


def refuse_key(idempotency_key: object) -> None:
    """Refuse a key for several calls: it stands for one task."""
    if idempotency_key is not None:
        raise InvalidOption(
            "idempotency_key", idempotency_key, "none here: it names one task; use submit"
        )


def closures_of(calls: Iterable[Call]) -> list[Callable[[], Any]]:
    """Return what *calls* run; the error of the first wrong one names its place."""
    if callable(calls) or isinstance(calls, str) or not isinstance(calls, Iterable):
        raise InvalidOption("calls", calls, WANTED)
    return [_closure(index, call) for index, call in enumerate(calls)]


def _closure(index: int, call: Call) -> Callable[[], Any]:
    if call == ():
        raise InvalidOption(f"calls[{index}]", call, "a function and its arguments")
    fn, *args = call if isinstance(call, tuple) else (call,)
    try:
        return closure_of(fn, args)
    except InvalidOption as error:
        raise InvalidOption(f"calls[{index}]", fn, error.accepted) from None
    except TypeError as error:
        raise TypeError(f"calls[{index}]: {error}") from None


class SubmitMany:
    """The calls of one `submit_many`, with the options that they share."""

    def __init__(
        self,
        calls: Sequence[Callable[[], Any]],
        priority: int,
        key: str | None,
        labels: dict[str, Any],
    ) -> None:
        self._calls = calls
        self._options = priority, key, None, labels

    async def admit(self, admission: Admission) -> list[PoolTask]:
        """Admit every call, waiting as a whole for that many places; cancelling admits none."""
        slots, count = admission._slots, len(self._calls)
        admission.check(*self._options)
        policy = slots.options.backpressure
        if not count or policy.kind == "unbounded" or policy.drops:
            return self._admit_all(admission, has_place=not policy.drops)
        check_count(slots, count)
        if not isinstance(admission.decide(count), Park):
            return self._admit_all(admission, has_place=True)
        async with admission.places(count):
            return self._admit_all(admission, has_place=True)

    def _admit_all(self, admission: Admission, *, has_place: bool) -> list[PoolTask]:
        slots = admission._slots
        tasks: list[PoolTask] = []
        try:
            with nullcontext() if slots.journal is None else slots.journal.together():
                for call in self._calls:
                    task = admission.admit(call, *self._options, has_place=has_place)
                    assert task is not None
                    tasks.append(task)
        except BaseException:  # such as a RecursionError: none of them is left
            for task in reversed(tasks):
                slots.withdraw(task)
            raise
        return tasks


def check_count(slots: Slots, count: int) -> None:
    """Refuse a batch of *count* calls that would wait forever."""
    policy = slots.options.backpressure
    most = slots.max_concurrent + (policy.max_depth or 0)
    if policy.on_full == "block_submitter" and count > most:
        raise InvalidOption(
            "calls",
            count,
            f"at most {most} calls at once: pool {slots.names.name!r} has "
            f"{slots.max_concurrent} slots and a queue of {policy.max_depth}, and would never "
            "have room for all of them",
        )

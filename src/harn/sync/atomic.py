"""Atomic integers: counters that threads and tasks share."""

from __future__ import annotations

import threading

from harn.option_checks import whole_number


class Atomic:
    """An integer whose every operation is one step, made by `atomic()`; safe from any thread.

    >>> import harn
    >>> async def main() -> int:
    ...     count = harn.atomic(40)
    ...     count.add(2)
    ...     return count.get()
    >>> harn.run(main)
    42
    """

    __slots__ = ("_lock", "_value")

    def __init__(self, value: int) -> None:
        self._value = whole_number("value", value)
        self._lock = threading.Lock()

    def get(self) -> int:
        """Return the value."""
        return self._value

    def set(self, value: int) -> int:
        """Replace the value; returns the previous one."""
        new = whole_number("value", value)
        with self._lock:
            previous, self._value = self._value, new
            return previous

    def add(self, n: int = 1) -> int:
        """Add *n*, which may be negative; returns the previous value."""
        step = whole_number("n", n)
        with self._lock:
            previous = self._value
            self._value = previous + step
            return previous

    def cas(self, expected: int, value: int) -> bool:
        """Replace the value if it is *expected*; tells whether it did."""
        old, new = whole_number("expected", expected), whole_number("value", value)
        with self._lock:
            if self._value != old:
                return False
            self._value = new
            return True

    def __repr__(self) -> str:
        return f"<Atomic {self._value}>"


def atomic(value: int = 0) -> Atomic:
    """Make an atomic integer. It has no limit: it does not wrap at 64 bits.

    >>> counter = atomic(0)
    >>> counter.add(5), counter.set(100), counter.get()
    (0, 5, 100)
    """
    return Atomic(value)

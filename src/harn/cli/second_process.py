"""A computation that runs in a second process, while this one does something else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

LARGE = 50_000
"""The size from which on a second process is worth its start."""


class InSecondProcess(Generic[T]):
    """Calls *fn* in another process if *size* is large and there are two cores, else at `result`.

    Leaving the block ends the process. Arguments and result are pickled on the way.
    """

    def __init__(self, fn: Callable[..., T], *args: Any, size: int) -> None:
        self._fn = fn
        self._args = args
        self._answer: Connection | None = None
        self._process: Any = None
        if size >= LARGE and (os.cpu_count() or 1) > 1:
            context = get_context("spawn")  # a fork would copy threads' locks
            self._answer, theirs = context.Pipe(duplex=False)
            self._process = context.Process(target=_call, args=(theirs, fn, args), daemon=True)
            self._process.start()
            theirs.close()

    def result(self) -> T:
        """Return what the function returned; it is called here if its process has ended early."""
        if self._answer is not None:
            try:
                return self._answer.recv()  # type: ignore[no-any-return]
            except (EOFError, OSError):
                pass
        return self._fn(*self._args)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join()


def _call(answer: Connection, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it and ends this one
    answer.send(fn(*args))

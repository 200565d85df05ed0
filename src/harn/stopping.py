"""Stopping a program at a signal: the first one asks, the second one hurries, time is limited.

`harn.run` and every command run inside a `Stopping`. The first SIGTERM or SIGINT asks: the main
task is cancelled, or the command stops in its own way. From then on the time has two limits:

- shortly before the timeout it *gives up* on what cannot be stopped, such as a function on a
  thread. The owner of that work releases its claim, and everything is closed in order;
- the timeout is the *last moment*. Code that ignores its cancellation or blocks the event loop is
  not waited for either: the calls in `last_calls` release what other processes need, and the
  process exits.

A thread watches both limits, so that a blocked event loop does not keep the process alive. A second
signal gives up at once and leaves two seconds for closing; more signals change nothing.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from harn.clock import SystemClock

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("harn.runtime")

FOR_CLOSING = 1.0
"""Seconds between giving up and the last moment, if the timeout is long enough."""
LEAST_FOR_CLOSING = 0.5
AFTER_HURRY = 2.0
"""Seconds that a second signal leaves for closing."""
FOR_LAST_CALLS = 2.0
"""Seconds that the last calls may take together."""
LONGEST_WAIT = 100_000.0

last_calls: dict[object, Callable[[float], None]] = {}
"""What the last moment calls, on a thread, each with the seconds that it may take at most."""

_now = SystemClock.monotonic
_current: Stopping | None = None


def stop_under_way() -> Stopping | None:
    """Return the stop that a signal began in this process, if there is one."""
    return _current if _current is not None and _current.signal is not None else None


def limits(timeout: float, now: float) -> tuple[float, float]:
    """Return when a stop that begins *now* gives up, and when its last moment is.

    >>> limits(30.0, 0.0), limits(2.0, 0.0), limits(0.0, 0.0)
    ((29.0, 30.0), (1.5, 2.0), (0.0, 0.5))
    """
    gives_up = now + timeout - min(FOR_CLOSING, timeout / 4)
    return gives_up, max(now + timeout, gives_up + LEAST_FOR_CLOSING)


class Stopping:
    """One run of a program, and how signals end it within *timeout* seconds.

    *ask* is called on the event loop at the first signal; without it the main task is cancelled.
    Handlers that the program installed itself are left alone, and off the main thread there are
    no signals at all. With *ends_process* signals that come after the run are ignored, so that
    they do not change the exit code. Without *signals_hurry* a second signal changes nothing, and
    only `hurry` gives up early: a process that its parent stops may get the same signal twice.
    """

    def __init__(
        self,
        timeout: float,
        ask: Callable[[], None] | None = None,
        *,
        ends_process: bool = False,
        signals_hurry: bool = True,
    ) -> None:
        self.signal: int | None = None
        """The first signal that came."""
        self.given_up: bool = False
        self._timeout = timeout
        self._ends_process = ends_process
        self._signals_hurry = signals_hurry
        self._ask = ask or self.cancel
        self._heard = False
        """Whether the main task was running when it was asked."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._hurries: SimpleQueue[bool] = SimpleQueue()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = []

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run *main* in a new event loop and return its result.

        A main that a signal cancelled ends in `KeyboardInterrupt` or, for SIGTERM, `SystemExit`
        with 143. If it returns a result despite the cancel, that is returned.
        """
        try:
            with self._listening(), asyncio.Runner() as runner:
                result = runner.run(self._inside(main))
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            raise self.as_exit() from None
        if self.signal is not None and not self._heard:
            raise self.as_exit()  # main had ended when the signal came
        return result

    def as_exit(self) -> BaseException:
        """Return the exception that ends a program that the signal stopped."""
        if self.signal == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(128 + (self.signal or 0))

    def cancel(self) -> None:
        """Cancel the main task. To be called on the event loop."""
        if self._main is not None:
            self._main.cancel()

    def hurry(self) -> None:
        """Give up at once when the stop has begun; callable from any thread."""
        self._hurries.put(True)

    def at_give_up(self, call: Callable[[], object]) -> None:
        """Call *call* on the running loop when the stop gives up; at once if it has."""
        self._waiting.append((asyncio.get_running_loop(), call))
        if self.given_up:
            self._call_waiting()

    async def _inside(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._main = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self.signal is not None:
            self._hear()  # the signal came before there was a loop
        with _signals_wake(self._loop):
            return await main()

    def _hear(self) -> None:
        if not self._heard and self._main is not None and not self._main.done():
            self._heard = True
            self._ask()

    # -- signals -------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        global _current
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        taken: dict[int, Any] = {}
        before, _current = _current, self
        try:
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) == default:
                    with suppress(ValueError):  # the main thread of a subinterpreter
                        taken[number] = signal.signal(number, self._signalled)
            yield
        finally:
            for number, handler in taken.items():
                is_over = self._ends_process and self.signal is not None
                signal.signal(number, signal.SIG_IGN if is_over else handler)
            _current = before
            self._hurries.put(False)  # ends the watching thread

    def _signalled(self, number: int, frame: object) -> None:
        # Runs in the main thread, between any two instructions, so it must not take a lock.
        if self.signal is not None:
            if self._signals_hurry:
                self.hurry()
            return
        self.signal = number
        _thread.start_new_thread(self._watch, (_now(),))
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: all is done
                self._loop.call_soon_threadsafe(self._hear)

    # -- on the watching thread ----------------------------------------------------------------

    def _watch(self, began: float) -> None:
        gives_up, last = limits(self._timeout, began)
        while True:
            until = last if self.given_up else gives_up
            left = min(max(0.0, until - _now()), LONGEST_WAIT)
            try:
                hurried = self._hurries.get(timeout=left)
            except Empty:
                if self.given_up and _now() >= last:
                    self._leave()
                elif _now() >= gives_up:
                    self._give_up()
                continue
            if not hurried:
                return
            if not self.given_up:
                self._give_up()
                last = min(last, _now() + AFTER_HURRY)

    def _give_up(self) -> None:
        self.given_up = True
        self._call_waiting()

    def _call_waiting(self) -> None:
        # Popping is atomic: two threads may be here, and each call is made once.
        with suppress(IndexError):
            while True:
                loop, call = self._waiting.pop()
                with suppress(RuntimeError):  # that loop has been closed
                    loop.call_soon_threadsafe(call)

    def _leave(self) -> None:
        """Exit without waiting for the code that did not end."""
        name = signal.Signals(self.signal or 0).name
        logger.error("%s: not everything has ended in time; the process exits now", name)
        until = _now() + FOR_LAST_CALLS
        for call in list(last_calls.values()):
            try:
                call(max(0.1, until - _now()))
            except Exception:
                logger.exception("something was not released before the exit")
        # Another thread may hold a stream's lock forever: do not wait for it either.
        flushing = threading.Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(timeout=0.5)
        os._exit(128 + (self.signal or 0))


@contextmanager
def _signals_wake(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a signal wake *loop*, which runs here.

    Python runs a handler between two instructions. A signal that comes after the last one before
    the loop waits would be seen only when something else wakes the loop, perhaps never. So the
    interpreter also writes to the socket that wakes the loop for `call_soon_threadsafe`; other
    kinds of loops (uvloop) see to this themselves.
    """
    wakeup = getattr(loop, "_csock", None)
    if wakeup is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    if before >= 0:
        signal.set_wakeup_fd(before)  # the program has its own
    try:
        yield
    finally:
        left = signal.set_wakeup_fd(-1)
        if left not in (-1, wakeup.fileno()):
            signal.set_wakeup_fd(left)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


_DEFAULTS: dict[int, object] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}

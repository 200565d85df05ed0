"""A runtime on its own thread, for programs that have no event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from multiprocessing.util import Finalize
from typing import Unpack

from harn.context import current_frame_var, restore_frame
from harn.quiescence import OWN_THREADS
from harn.runtime import Runtime, RuntimeOptions
from harn.teardown import note


@contextlib.contextmanager
def run_in_thread(**runtime_options: Unpack[RuntimeOptions]) -> Iterator[Runtime]:
    """Open a `Runtime` on a background thread, for a synchronous program; yield it.

    Inside the block `from_thread(fn, *args)` works from every thread of the process.
    *runtime_options* are those of `Runtime`. Leaving the block, also by Ctrl-C, cancels and awaits
    all that the runtime owns; so does the end of the program, if the block is never left.

    >>> import harn
    >>> with harn.run_in_thread():
    ...     queue = harn.worker_queue("reviews")
    ...     receipt = harn.from_thread(queue.enqueue, {"pr": 1984})
    ...     summary = harn.from_thread(queue.summary)
    >>> receipt.job_id, summary.ready
    (1, 1)
    """
    background = _Background(Runtime(**runtime_options))
    background.open()
    token = current_frame_var.set(background.runtime.frame)
    try:
        yield background.runtime
    except BaseException as error:
        background.close(error)
        raise
    else:
        background.close(None)
    finally:
        restore_frame(token)


class _Background:
    """A thread whose event loop keeps one runtime open until `close`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._opened: concurrent.futures.Future[asyncio.Event] = concurrent.futures.Future()
        self._closed: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon, so that a block that is never left cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}runtime", daemon=True)

    def open(self) -> None:
        """Return when the runtime is open, or raise the error that prevents it."""
        self._thread.start()
        self._opened.result()
        # For a block that is never left: soon after, its thread is frozen and cannot be joined.
        # Not atexit: a process of `multiprocessing` ends without it.
        self._at_exit = Finalize(None, self.close, (None,), exitpriority=0)

    def close(self, raised: BaseException | None) -> None:
        """End all that the runtime owns; an error while closing becomes a note on *raised*."""
        if self.runtime._is_inherited:
            return  # this process was forked inside the block: the thread is the parent's
        self._at_exit.cancel()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended
            self.runtime.loop.call_soon_threadsafe(self._opened.result().set)
        self._thread.join()
        error = self._closed.exception()
        if error is not None and raised is None:
            raise error
        if error is not None and raised is not None:
            note(raised, (error,))

    def _run(self) -> None:
        try:
            asyncio.run(self._stay_open())
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            self._closed.set_exception(error)
        else:
            self._closed.set_result(None)

    async def _stay_open(self) -> None:
        stop = asyncio.Event()
        async with self.runtime:
            self._opened.set_result(stop)
            await stop.wait()

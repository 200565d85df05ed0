"""Which event loop runs here: asyncio's, another library's, or none; how a thread waits for one.

harn waits with asyncio's futures. A coroutine of harn under trio would give trio a future that it
cannot wait for, or change a runtime from a thread that is not its own. So calls under trio raise,
and the error says how a trio program uses harn.
"""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop, Task, _get_running_loop, current_task
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from harn.errors import HarnError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

task_running_on: Callable[[AbstractEventLoop], Task[Any] | None]
if sys.version_info < (3, 12):
    # In 3.11 current_task() is written in Python and makes a system call each time.
    from asyncio.tasks import _current_tasks  # type: ignore[attr-defined,unused-ignore]

    task_running_on = _current_tasks.get
else:
    task_running_on = current_task


def running_loop() -> AbstractEventLoop:
    """Return asyncio's loop that runs here; raise `HarnError` if there is none."""
    loop = _get_running_loop()
    if loop is None:
        refuse_trio()
        raise HarnError("no event loop runs here: await this inside harn.run(...)")
    return loop


def answer_of(loop: AbstractEventLoop, answer: Future[T]) -> T:
    """Wait on a thread for *answer*, which a callback of *loop* sets; return or raise it.

    Raises `HarnError` if the loop is closed: it drops its callbacks, and no answer would come.
    """
    while not loop.is_closed() or answer.done():
        try:
            return answer.result(timeout=1.0)
        except TimeoutError:
            if answer.done():
                return answer.result()  # which may be a TimeoutError, or have come just now
    raise HarnError("the event loop of this runtime has been closed")


def refuse_trio() -> None:
    """Raise `HarnError` if the caller runs under trio."""
    # trio, and anyio on trio, say so in sniffio. A program without trio need not have sniffio.
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None and sniffio.thread_local.name == "trio":
        raise HarnError(
            "harn runs on asyncio, and this is called under trio; open the runtime with "
            "`with harn.run_in_thread(...)` and call it with "
            "`await trio.to_thread.run_sync(harn.from_thread, fn, *args)`"
        )


def refuse_running_loop() -> None:
    """Raise `HarnError` if an event loop runs here, so that no other one can be started."""
    refuse_trio()
    if _get_running_loop() is not None:
        raise HarnError(
            "harn.run starts an event loop, and one runs here already; in async code and in a "
            "notebook, write `async with harn.Runtime(...): await main()`"
        )

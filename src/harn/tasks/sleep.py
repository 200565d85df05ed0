"""`sleep` waits by the runtime's clock."""

from __future__ import annotations

import asyncio
from functools import partial

from harn.clock import resolve
from harn.current import current_frame
from harn.duration import Duration, to_seconds
from harn.graceful_stop import asked, park, raise_if_asked


async def sleep(duration: Duration) -> None:
    """Wait for *duration* by the runtime's clock (a bare number is seconds).

    Cancelling cancels the timer; a graceful stop ends the wait with `TaskCancelled`.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.sleep("1ms")
    ...     return "awake"
    >>> harn.run(main)
    'awake'
    """
    seconds = to_seconds(duration)
    if asked:
        raise_if_asked()
    task = current_frame().task
    clock = task.runtime.clock
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, partial(resolve, woken))
    places = park(task, woken)
    try:
        await woken
    finally:
        del places[woken]
        timer.cancel()

"""`channel_select`: take one value from the first of several channels that has one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from harn.current import current_runtime
from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption
from harn.event_loop import running_loop
from harn.graceful_stop import asked, raise_if_asked
from harn.sync.channel import Channel
from harn.sync.deadlock import began_waiting, ended_waiting
from harn.sync.wait_queue import GRANTED, Waiter, guard, park

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selected(Generic[T]):
    """What `channel_select` took: the *value*, its *channel*, and that channel's *index*.

    >>> import harn
    >>> async def main() -> tuple[int, str, str]:
    ...     news, mail = harn.channel("news"), harn.channel("mail")
    ...     mail.try_send("hello")
    ...     taken = await harn.channel_select([news, mail])
    ...     return taken.index, taken.value, taken.channel.name
    >>> harn.run(main)
    (1, 'hello', 'mail')
    """

    index: int
    value: T
    channel: Channel[T]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, with the channel's name in place of the channel."""
        return {"index": self.index, "value": self.value, "channel": self.channel.name}


@overload
async def channel_select(
    channels: Iterable[Channel[T]], timeout: Duration | None = None
) -> Selected[T] | None: ...
@overload
async def channel_select(
    channels: Iterable[Channel[Any]], timeout: Duration | None = None
) -> Selected[Any] | None: ...
async def channel_select(
    channels: Iterable[Channel[Any]], timeout: Duration | None = None
) -> Selected[Any] | None:
    """Take one value from the first of *channels* that has one; the others keep theirs.

    If several have one, the channel that a select took from longest ago is chosen, then the first
    in the order given, so that none is starved. Returns None after *timeout* (0: do not wait), or
    when all are closed and drained. Cancelling and a graceful stop take nothing.

    >>> import asyncio
    >>> from harn import channel
    >>> async def main() -> Selected[str] | None:
    ...     news, mail = channel("news"), channel("mail")
    ...     mail.try_send("hello")
    ...     return await channel_select([news, mail], timeout="1s")
    >>> asyncio.run(main()).index
    1
    """
    offered = _checked(channels)
    seconds = None if timeout is None else to_seconds(timeout, "timeout")
    if asked:
        raise_if_asked()
    with guard:
        ready = [each for each in offered if len(each._buffer) > each._promised]
        if ready:
            return _selected(offered, offered.index(min(ready, key=lambda each: each._served)))
        open_ones = [each for each in offered if each._buffer or not each._closed]
        if not open_ones or seconds == 0:
            return None
        waiter = Waiter().wait_as("select", offered, running_loop())
        waiter.open = len(open_ones)
        for each in open_ones:
            each._receivers.append(waiter)
    return await _select_later(offered, waiter, seconds)


async def _select_later(
    offered: list[Channel[T]], waiter: Waiter, seconds: float | None
) -> Selected[T] | None:
    task = began_waiting(waiter, is_watched=seconds is None)
    try:
        await park(waiter, seconds, current_runtime().clock)
    except BaseException:
        with guard:
            if waiter.withdraw():
                chosen = offered[waiter.want]
                chosen._promised -= 1
                chosen._promise_values()
            _leave_the_others(offered)
        raise
    finally:
        ended_waiting(task, waiter)
    with guard:
        _leave_the_others(offered)
        if waiter.state != GRANTED:
            return None
        offered[waiter.want]._promised -= 1
        return _selected(offered, waiter.want)


def _checked(channels: Iterable[Channel[T]]) -> list[Channel[T]]:
    try:
        offered = list(channels)
    except TypeError:
        raise InvalidOption("channels", channels, "a list of channels") from None
    if not offered:
        raise InvalidOption("channels", offered, "at least one channel")
    for each in offered:
        if not isinstance(each, Channel):
            raise InvalidOption("channels", each, "channels only")
    return offered


_turns = 0


def _selected(offered: list[Channel[T]], index: int) -> Selected[T]:
    global _turns
    _turns += 1
    chosen = offered[index]
    chosen._served = _turns
    return Selected(index, chosen._take(), chosen)


def _leave_the_others(offered: list[Channel[T]]) -> None:
    for each in offered:
        each._receivers.note_left()

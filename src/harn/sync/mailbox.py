"""Mailboxes: named inboxes, one per name and scope, for tasks that act on messages.

A mailbox is a channel that is found by name, and whose `send` returns false, instead of raising an
error, when it is closed. A task may wait for mail forever: the deadlock detector ignores that wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from harn.current import current_frame
from harn.errors import ChannelClosed, InvalidOption, MailboxClosed
from harn.records import Record
from harn.sync.channel import DEFAULT_CAPACITY, Channel
from harn.sync.sharing_scopes import Namespaces, Scope, resolve_scope
from harn.sync.wait_queue import guard

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class MailboxMetrics(Record):
    """A mailbox's counters; *depth* is always *sent_count* minus *received_count*.

    >>> import harn
    >>> async def main() -> int:
    ...     inbox: harn.Mailbox[str] = harn.mailbox_open("reviewer")
    ...     await inbox.send("work")
    ...     return inbox.metrics().depth
    >>> harn.run(main)
    1
    """

    capacity: int
    depth: int
    sent_count: int
    received_count: int
    failed_send_count: int
    closed: bool


class _Inbox(Channel[T]):
    """A channel that the deadlock detector does not watch."""

    __slots__ = ()
    _is_watched = False


class Mailbox(Generic[T]):
    """A named inbox, made by `mailbox_open()`.

    >>> import harn
    >>> async def main() -> tuple[list[str], bool]:
    ...     inbox: harn.Mailbox[str] = harn.mailbox_open("reviewer")
    ...     await inbox.send("work")
    ...     inbox.close()
    ...     return [message async for message in inbox], await inbox.send("late")
    >>> harn.run(main)
    (['work'], False)
    """

    __slots__ = ("_failed", "_inbox", "name", "scope")

    def __init__(self, where: tuple[str, str], name: str, capacity: int) -> None:
        self.name: str = name
        self.scope: str = ":".join(where)
        self._inbox: _Inbox[T] = _Inbox(name, capacity)
        self._failed = 0

    async def send(self, value: T) -> bool:
        """Deliver *value*, waiting for room; false if the mailbox is closed before that.

        Cancelling means that the value was not delivered.
        """
        try:
            await self._inbox.send(value)
        except ChannelClosed:
            with guard:
                self._failed += 1
            return False
        return True

    async def receive(self) -> T:
        """Take the oldest message, waiting for one; `MailboxClosed` once closed and drained.

        Cancelling loses nothing.
        """
        try:
            return await self._inbox.receive()
        except ChannelClosed:
            raise MailboxClosed(f"mailbox {self.name!r} is closed") from None

    @overload
    def try_receive(self) -> T | None: ...
    @overload
    def try_receive(self, default: D) -> T | D: ...
    def try_receive(self, default: Any = None) -> Any:
        """Take the oldest message if there is one now, else return *default*."""
        return self._inbox.try_receive(default)

    @property
    def closed(self) -> bool:
        """Whether `close` was called. Messages inside may still be received."""
        return self._inbox.closed

    def close(self) -> bool:
        """Accept no more messages; true the first time. Those inside may still be received."""
        with guard:
            was_open = not self._inbox.closed
            self._inbox.close()
            return was_open

    def metrics(self) -> MailboxMetrics:
        """Return the counters."""
        with guard:
            inbox = self._inbox
            return MailboxMetrics(
                capacity=inbox.capacity,
                depth=len(inbox),
                sent_count=inbox._taken + len(inbox),
                received_count=inbox._taken,
                failed_send_count=self._failed,
                closed=inbox.closed,
            )

    def __len__(self) -> int:
        return len(self._inbox)

    def __aiter__(self) -> Mailbox[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self._inbox.receive()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Mailbox {self.name!r} {len(self)}/{self._inbox.capacity}{state}>"


def mailbox_open(
    name: str,
    scope: Scope = "task_group",
    capacity: int = DEFAULT_CAPACITY,
    tenant_id: str | None = None,
) -> Mailbox[Any]:
    """Open the mailbox *name* of *scope*; *capacity* applies only if it is new.

    >>> import asyncio
    >>> async def main() -> str:
    ...     inbox = mailbox_open("reviewer", capacity=32)
    ...     await mailbox_send("reviewer", {"kind": "work"})
    ...     return (await inbox.receive())["kind"]
    >>> asyncio.run(main())
    'work'
    """
    task = current_frame().task
    where = resolve_scope(task, scope, tenant_id)
    spaces = task.runtime.service(Namespaces)
    return spaces.open("mailbox", where, name, lambda: Mailbox(where, name, capacity))


def mailbox_lookup(
    name: str, scope: Scope = "task_group", tenant_id: str | None = None
) -> Mailbox[Any] | None:
    """Return the mailbox *name* of *scope* if it is open.

    >>> import harn
    >>> async def main() -> object:
    ...     harn.mailbox_open("reviewer")
    ...     return harn.mailbox_lookup("reviewer"), harn.mailbox_lookup("author")
    >>> harn.run(main)
    (<Mailbox 'reviewer' 0/256>, None)
    """
    task = current_frame().task
    where = resolve_scope(task, scope, tenant_id)
    found: Mailbox[Any] | None = task.runtime.service(Namespaces).find("mailbox", where, name)
    return found


@overload
async def mailbox_send(target: Mailbox[T], value: T) -> bool: ...
@overload
async def mailbox_send(target: str, value: Any, scope: Scope = "task_group") -> bool: ...
async def mailbox_send(target: str | Mailbox[Any], value: Any, scope: Scope = "task_group") -> bool:
    """Deliver *value* to a mailbox, given itself or by name, waiting for room.

    False if there is none of that name, or if it is closed before there is room. Cancelling means
    that the value was not delivered.

    >>> import harn
    >>> async def main() -> tuple[bool, bool]:
    ...     harn.mailbox_open("reviewer")
    ...     sent = await harn.mailbox_send("reviewer", "work")
    ...     return sent, await harn.mailbox_send("author", "work")
    >>> harn.run(main)
    (True, False)
    """
    if isinstance(target, str):
        found = mailbox_lookup(target, scope)
        return found is not None and await found.send(value)
    if not isinstance(target, Mailbox):
        raise InvalidOption("target", target, "a mailbox, or the name of one")
    return await target.send(value)

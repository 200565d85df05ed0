"""Run the tests of permits, mutexes and channels with the measured shortcuts, and without them.

The shortcuts (docs/design/permits.md) must not differ from what they shorten. Each test of
`test_permits.py`, `test_mutex.py` and `test_channel.py`, and each test of an invariant `Y...`,
runs twice.
"""

from __future__ import annotations

import importlib
import inspect
import re
from threading import get_ident
from typing import Any

import pytest

from harn import Permit
from harn.current import current_frame
from harn.event_loop import task_running_on
from harn.graceful_stop import asked, raise_if_asked
from harn.sync import Channel, permits
from harn.sync.permit_queue import PermitQueue, PermitWaiter
from harn.sync.wait_queue import GONE, GRANTED, guard

MODULES = {"test_permits", "test_mutex", "test_channel"}
mutex_module: Any = importlib.import_module("harn.sync.mutex")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_of_permits = metafunc.module.__name__.rpartition(".")[2] in MODULES
    is_of_permits |= re.search(r"_Y\d", metafunc.function.__name__) is not None
    if is_of_permits and inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("permit_path", ["shortcut", "plain"], indirect=True)


# Autouse: pytest drops a fixture that only `pytest_generate_tests` names, without a word.
@pytest.fixture(autouse=True)
def permit_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "shortcut") == "plain":
        monkeypatch.setattr(PermitQueue, "pass_on", pass_on)
        monkeypatch.setattr(Permit, "release", release)
        monkeypatch.setattr(mutex_module.Mutex, "__aenter__", enter)
        monkeypatch.setattr(mutex_module.Mutex, "__aexit__", leave)
        monkeypatch.setattr(Channel, "receive", receive)
        if hasattr(request.module, "sync_mutex_acquire"):
            monkeypatch.setattr(request.module, "sync_mutex_acquire", acquire)


async def acquire(key: str, timeout: Any = None, *, required: bool = False) -> Permit | None:
    """Acquire a mutex as a semaphore of one is acquired."""
    permit = permits._request("mutex", key, 1, 1, timeout, required)
    if permit.state == GRANTED or await permit.wait_in_queue(permit._frame.task, permit._timeout):
        return permit._owned()
    permit._raise_if(required)
    return None


def release(self: Permit) -> bool:
    """Release a mutex as a semaphore of one is released."""
    since = self.since
    try:
        del self.since
    except AttributeError:
        return False
    self.state = GONE
    if self._frame.cleanups is not None:
        self._frame.cleanups.pop(self, None)
    queue, now = self.on, self.on.monotonic()
    if get_ident() != queue.thread:
        queue.release_from_thread(self, now - since)
        return True
    queue.held_seconds += now - since
    queue.release(self, now)
    return True


def pass_on(self: PermitQueue, now: float) -> None:
    """Release the only permit as any other permit is released."""
    self.free = 1
    self.out = 0
    self.holder = None
    self.serve(now)


async def enter(self: Any) -> None:
    """Enter a section through `PermitQueue.enter`."""
    task = current_frame().task
    mutexes = task.runtime.service(mutex_module.Mutexes)
    section = mutexes.sections.get(self._key) or mutexes.open(self._key)
    if self._section is None:
        self._section = section
    elif section is not self._section:
        self._move_to(section)
    section.key = self._shown
    waiter = PermitWaiter()
    waiter.on = section
    waiter.holder = task_running_on(mutexes.loop)
    if section.enter(waiter):
        return
    if self._timeout is not None:
        await self._wait_at_most(self._timeout, waiter, task)
    else:
        await waiter.wait_in_queue(task)


def leave(self: Any, *_: object) -> Any:
    """Leave a section through `PermitQueue.pass_on`."""
    self._section.pass_on(0.0)
    return self._section.done


_receive = Channel.receive


async def receive(self: Channel[Any]) -> Any:
    """Receive what is there as `try_receive` does."""
    if asked:
        raise_if_asked()
    with guard:
        if len(self._buffer) > self._promised:
            return self._take()
    return await _receive(self)

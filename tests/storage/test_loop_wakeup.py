"""Waking a loop from a thread, up to the moment in which the store is closed."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from harn.storage.engines.loop_wakeup import LoopWakeup


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="only Linux has it")
async def test_no_descriptor_is_closed_while_a_thread_writes_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, began, closed = os.eventfd_write, threading.Event(), threading.Event()
    problems: list[OSError] = []

    def late_write(fd: int, value: int) -> None:
        began.set()
        closed.wait(0.2)  # is over at once if nothing keeps the descriptor open
        try:
            write(fd, value)
        except OSError as error:
            problems.append(error)

    monkeypatch.setattr(os, "eventfd_write", late_write)
    wakeup = LoopWakeup(asyncio.get_running_loop(), lambda: None)
    waking = threading.Thread(target=wakeup.wake)
    waking.start()
    began.wait()

    wakeup.close()

    closed.set()
    waking.join()
    assert problems == []


async def test_a_thread_that_wakes_after_the_end_does_no_harm() -> None:
    calls = list[int]()
    wakeup = LoopWakeup(asyncio.get_running_loop(), lambda: calls.append(1))
    wakeup.close()

    await asyncio.to_thread(wakeup.wake)

    assert wakeup.fd is None
    await asyncio.sleep(0)
    assert calls == [1]

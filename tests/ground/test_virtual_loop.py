from __future__ import annotations

import asyncio
import sys
import threading
import time

from harn import current_runtime, sleep
from harn.testing import VirtualTimeLoop, run_virtual


def test_a_day_of_timers_runs_at_once_third_party_sleeps_included() -> None:
    async def ticker(every: float) -> int:
        ticks = 0
        while asyncio.get_running_loop().time() < 86_400:
            await asyncio.sleep(every)
            ticks += 1
        return ticks

    async def a_day() -> None:
        await sleep("1d")

    async def main() -> list[int | None]:
        return await asyncio.gather(*(ticker(60) for _ in range(10)), a_day())

    began = time.monotonic()

    assert run_virtual(main)[:10] == [1440] * 10
    assert time.monotonic() - began < 60


def test_a_runtime_on_the_loop_takes_its_clock() -> None:
    async def main() -> tuple[int, int]:
        clock = current_runtime().clock
        before = clock.now_ms()
        await asyncio.sleep(90)
        return before, clock.now_ms() - before

    assert run_virtual(main) == (1_767_225_600_000, 90_000)


def test_it_never_jumps_while_a_thread_is_at_work() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        release = threading.Event()

        async def work() -> None:
            await asyncio.get_running_loop().run_in_executor(None, release.wait, 10)
            order.append("thread")

        async def timer() -> None:
            await asyncio.sleep(3600)
            order.append("timer")

        threading.Timer(0.05, release.set).start()
        await asyncio.gather(work(), timer())
        return order

    assert run_virtual(main) == ["thread", "timer"]


def test_it_never_jumps_while_a_raw_thread_may_still_call_back() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        called = asyncio.Event()

        def back() -> None:
            order.append("thread")
            called.set()

        def work() -> None:
            time.sleep(0.05)
            loop.call_soon_threadsafe(back)

        threading.Thread(target=work).start()
        sleeper = asyncio.ensure_future(asyncio.sleep(3600))
        await called.wait()
        order.append("jumped" if sleeper.done() else "waited")
        await sleeper
        return order

    assert run_virtual(main) == ["thread", "waited"]


def test_it_never_jumps_while_a_subprocess_is_at_work() -> None:
    async def main() -> bool:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(0.1)"
        )
        sleeper = asyncio.ensure_future(asyncio.sleep(3600))
        await process.wait()
        jumped = sleeper.done()
        await sleeper
        return jumped

    assert run_virtual(main) is False


def test_it_never_jumps_while_a_socket_is_open_but_an_idle_server_does_not_hold_it() -> None:
    async def main() -> bool:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            release.set()
            writer.write(b"done\n")
            await writer.drain()
            writer.close()

        release = asyncio.Event()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            await asyncio.sleep(3600)  # the server only listens: time may jump
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            sleeper = asyncio.ensure_future(asyncio.sleep(3600))
            await asyncio.sleep(0)
            writer.write(b"hello\n")
            await reader.readline()
            jumped = sleeper.done()
            writer.close()
            await writer.wait_closed()
            await sleeper
        return jumped

    assert run_virtual(main) is False


def test_the_loop_can_be_used_bare() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(asyncio.sleep(1_000_000))
        assert runner.get_loop().time() == 10**6

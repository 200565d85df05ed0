from __future__ import annotations

import asyncio
import functools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    HarnError,
    InvalidOption,
    Runtime,
    current_runtime,
    runtime_context,
    runtime_context_clear,
    runtime_context_get,
    runtime_context_set,
    runtime_context_values,
)
from harn.runtime import SEAMS
from harn.testing import FakeClock, fresh_runtime
from tests.fake_clock import fake_clock


def test_run_gives_mains_result_and_passes_its_arguments() -> None:
    async def main(a: int, b: int) -> int:
        return a + b

    assert harn.run(main, 1, 2) == 3
    assert harn.run(functools.partial(main, 1), 2) == 3


def test_run_puts_a_plain_function_on_a_thread_with_the_runtime() -> None:
    def main() -> tuple[bool, str]:
        return threading.current_thread() is threading.main_thread(), runtime_context().task_id

    assert harn.run(main) == (False, "task_root")


def test_run_awaits_what_a_plain_function_returns() -> None:
    async def main(a: int) -> int:
        await harn.sleep(0)
        return 2 * a

    assert harn.run(lambda: main(21)) == 42


def test_run_wants_a_function_not_its_result() -> None:
    with pytest.raises(InvalidOption, match="not its result"):
        harn.run(None)  # type: ignore[call-overload]


async def test_leaving_cancels_and_awaits_everything_it_owns() -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(9):
                await asyncio.sleep(0)
            ended.append("cleaned up")

    before = asyncio.all_tasks()
    async with Runtime() as runtime:
        runtime.own(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)

    assert ended == ["cleaned up"]
    assert asyncio.all_tasks() == before


async def test_services_are_made_once_and_closed_last_made_first() -> None:
    closed: list[str] = []

    class First:
        def __init__(self, runtime: Runtime) -> None: ...

        async def aclose(self) -> None:
            closed.append(type(self).__name__)

    class Second(First): ...

    async with Runtime() as runtime:
        assert runtime.service(First) is runtime.service(First)
        runtime.service(Second)

    assert closed == ["Second", "First"]
    with pytest.raises(HarnError, match="has been closed"):
        runtime.service(Second)


async def test_one_service_that_fails_to_close_does_not_keep_the_others_open() -> None:
    closed: list[str] = []

    class Good:
        def __init__(self, runtime: Runtime) -> None: ...

        async def aclose(self) -> None:
            closed.append("good")

    class Bad(Good):
        async def aclose(self) -> None:
            raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        async with Runtime() as runtime:
            runtime.service(Good)
            runtime.service(Bad)

    assert closed == ["good"]


async def test_a_cancel_on_the_way_out_still_closes_everything_then_comes_out() -> None:
    closing, release = asyncio.Event(), asyncio.Event()
    closed: list[str] = []

    class Slow:
        def __init__(self, runtime: Runtime) -> None: ...

        async def aclose(self) -> None:
            closing.set()
            await release.wait()
            closed.append("slow")

    async def body() -> None:
        async with Runtime() as runtime:
            runtime.service(Slow)

    task = asyncio.create_task(body())
    await closing.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()

    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert closed == ["slow"]


async def test_a_task_that_ignores_its_cancel_is_reported_and_awaited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def body() -> None:
        async with fresh_runtime() as runtime:
            clocks.append(fake_clock(runtime))
            runtime.own(asyncio.create_task(deaf(), name="deaf one"))
            await asyncio.sleep(0)

    clocks: list[FakeClock] = []
    with caplog.at_level(logging.WARNING, "harn.tasks"):
        task = asyncio.create_task(body())
        while not clocks:
            await asyncio.sleep(0)
        await clocks[0].advance("4s")
        assert "deaf one" not in caplog.text
        await clocks[0].advance("2s")
        assert caplog.text.count("deaf one") == 1
        assert not task.done()
        release.set()
        await task


async def test_two_runtimes_share_nothing_and_nest() -> None:
    class Registry:
        def __init__(self, runtime: Runtime) -> None: ...

    async with Runtime(tenant_id="a") as outer:
        async with Runtime(tenant_id="b") as inner:
            assert current_runtime() is inner
            assert outer.service(Registry) is not inner.service(Registry)
        assert current_runtime() is outer


async def test_a_runtime_is_entered_once() -> None:
    runtime = Runtime()
    async with runtime:
        pass
    with pytest.raises(HarnError, match="once"):
        await runtime.__aenter__()


def test_without_one_each_event_loop_has_its_own_and_ends_it() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    class Service:
        def __init__(self, runtime: Runtime) -> None: ...

        async def aclose(self) -> None:
            ended.append("closed")

    async def main() -> Runtime:
        runtime = current_runtime()
        assert runtime is current_runtime()
        runtime.own(asyncio.get_running_loop().create_task(background()))
        runtime.service(Service)
        await asyncio.sleep(0)
        return runtime

    first = asyncio.run(main())
    assert ended == ["ended", "closed"]
    assert asyncio.run(main()) is not first


def test_outside_an_event_loop_the_error_says_what_to_do() -> None:
    with pytest.raises(HarnError, match=r"harn.run"):
        current_runtime()


async def test_the_context_of_the_root_task() -> None:
    async with Runtime(workflow_id="w", tenant_id="acme", run_id="r7"):
        context = runtime_context()

    assert context.task_id == context.root_task_id == "task_root"
    assert context.task_name == "root"
    assert (context.parent_task_id, context.task_group_id) == (None, None)
    assert (context.workflow_id, context.tenant_id, context.run_id) == ("w", "acme", "r7")
    assert context.cancelled is False
    assert context.debug.supervisors == []
    assert context.as_dict()["tenant_id"] == "acme"


async def test_context_values_are_inherited_as_a_snapshot() -> None:
    async with Runtime():
        assert runtime_context_set("step", 1) is None
        assert runtime_context_set("step", 2) == 1
        before = runtime_context().context_values

        runtime_context_set("later", True)

        assert before == {"step": 2}
        assert runtime_context_values() == {"step": 2, "later": True}
        assert runtime_context_clear("step") == 2
        assert runtime_context_clear("step") is None
        assert runtime_context_get("step", "none") == "none"


@pytest.mark.parametrize("key", ["", None, 1])
async def test_a_context_key_is_a_name(key: Any) -> None:
    with pytest.raises(InvalidOption, match="key"):
        runtime_context_set(key, 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"storage": "redis://x"}, "redis"),
        ({"storage": "sqlte:///x"}, "did you mean 'sqlite'"),
        ({"storage": "events.sqlite"}, "a URL"),
        ({"storage": 5}, "storage"),
        ({"tenant_id": ""}, "tenant_id"),
        ({"worker_id": 7}, "worker_id"),
        ({"seed": True}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"clock": "system"}, "clock"),
        ({"state_dir": 5}, "state_dir"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        Runtime(**options)


def test_a_misspelt_option_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="tennant_id"):
        Runtime(tennant_id="a")  # type: ignore[call-arg]


def test_a_state_dir_without_storage_means_sqlite_inside_it(tmp_path: Path) -> None:
    assert Runtime(state_dir=tmp_path).storage_url == f"sqlite:///{tmp_path}/events.sqlite"
    assert Runtime().storage_url == "memory://"


def test_ctrl_c_ends_everything_the_runtime_owns() -> None:
    import signal
    import subprocess
    import sys

    code = """
import asyncio, harn, signal
async def background():
    try: await asyncio.Event().wait()
    finally: print("ended", flush=True)
async def main():
    harn.current_runtime().own(asyncio.create_task(background()))
    await asyncio.sleep(0)
    print("ready", flush=True)
    await asyncio.Event().wait()
try: harn.run(main)
except KeyboardInterrupt: print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)

    assert process.communicate(timeout=20)[0] == "ended\ninterrupted\n"


async def test_a_runtime_shows_its_public_names_only(runtime: Runtime) -> None:
    shown = {name for name in dir(runtime) if not name.startswith("_")}

    assert shown == {"aclose", "backup", "clock", "event_log", "settings", "state_dir"}


async def test_every_other_name_of_a_runtime_is_a_documented_seam(runtime: Runtime) -> None:
    there = {name for name in object.__dir__(runtime) if not name.startswith("_")}

    assert there - set(dir(runtime)) == set(SEAMS)

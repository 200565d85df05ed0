"""Where a call without a context finds its runtime: ruling 52, as users meet it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.request
import weakref
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    EnqueueReceipt,
    HarnError,
    Runtime,
    current_runtime,
    from_thread,
    run_in_thread,
    worker_queue,
)
from harn.testing import fresh_runtime


def on_a_thread(work: Callable[[], Any]) -> Any:
    """Run *work* on a new thread with an empty context; return its value or raise its error."""
    box: list[Any] = []

    def call() -> None:
        try:
            box.append((work(), None))
        except BaseException as error:
            box.append((None, error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    assert box, "it hangs"
    value, error = box[0]
    if error is not None:
        raise error
    return value


def outside(work: Callable[[], Any]) -> Any:
    """Run *work* in an empty context on this thread."""
    return contextvars.Context().run(work)


async def outside_task(coroutine: Any) -> Any:
    """Run *coroutine* as a task of this loop whose context knows no runtime."""
    loop = asyncio.get_running_loop()
    return await loop.create_task(coroutine, context=contextvars.Context())


# -- the only open one ---------------------------------------------------------------------------


async def test_a_task_without_a_context_finds_the_only_open_runtime(tmp_path: Path) -> None:
    async with Runtime(state_dir=tmp_path):

        async def handler() -> str:
            return (await worker_queue("jobs").enqueue(1)).durability

        assert await outside_task(handler()) != "memory"


async def test_a_thread_without_a_context_finds_the_only_open_runtime() -> None:
    async with Runtime() as runtime:
        assert await asyncio.to_thread(on_a_thread, current_runtime) is runtime
        assert await asyncio.to_thread(on_a_thread, lambda: from_thread(current_runtime)) is runtime


async def test_the_context_comes_before_the_only_open_one() -> None:
    async with Runtime() as outer:
        async with fresh_runtime() as inner:
            assert current_runtime() is inner
        assert current_runtime() is outer
        assert outside(current_runtime) is outer


async def test_several_open_runtimes_are_named_and_none_is_guessed(
    tmp_path: Path, unused_url: str
) -> None:
    async with Runtime(state_dir=tmp_path / "one"), Runtime(storage=unused_url):
        with pytest.raises(HarnError) as caught:
            outside(current_runtime)

    text = str(caught.value)
    assert str(tmp_path / "one") in text
    assert "me:***@db" in text and "hidden" not in text


@pytest.fixture
def unused_url() -> str:
    return "postgresql://me:hidden@db/app"


async def test_a_runtime_that_is_being_left_is_found_until_it_is_closed() -> None:
    seen: list[str] = []
    async with Runtime() as runtime:

        async def last_words() -> None:
            try:
                outside(lambda: current_runtime().service(type("New", (), {})))
            except HarnError as error:
                seen.append(str(error))

        runtime.at_exit.append(last_words)

    assert "has been closed" in seen[0]


async def test_a_runtime_whose_loop_was_closed_under_it_is_not_open() -> None:
    def forgets_to_leave() -> Runtime:
        loop = asyncio.new_event_loop()
        runtime = Runtime()
        loop.run_until_complete(runtime.__aenter__())
        loop.close()
        return runtime

    forgotten = await asyncio.to_thread(on_a_thread, forgets_to_leave)
    async with Runtime() as runtime:
        assert outside(current_runtime) is runtime is not forgotten


async def test_what_runs_apart_on_a_thread_is_not_a_second_open_runtime() -> None:
    async def apart() -> Runtime:
        found: Runtime = outside(current_runtime)
        return found

    async with Runtime() as runtime:
        assert await harn.spawn(apart, isolation="thread") is runtime


# -- none open -----------------------------------------------------------------------------------


async def test_without_an_open_runtime_the_first_durable_call_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def calls() -> None:
        harn.atomic(0)
        assert not caplog.records
        receipt = await worker_queue("jobs").enqueue(1)
        await worker_queue("jobs").enqueue(2)
        await harn.event_log_emit("news", "greeting", "hello")
        await harn.channel_emit("news", "hello")
        assert receipt.durability == "memory"

    with caplog.at_level(logging.WARNING, "harn.runtime"):
        await asyncio.to_thread(on_a_thread, lambda: asyncio.run(calls()))

    [record] = caplog.records
    assert "nothing in it is kept" in record.getMessage()


@pytest.mark.parametrize(
    "call",
    [
        lambda: worker_queue("jobs").enqueue(1),
        lambda: harn.event_log_emit("news", "greeting", "hello"),
        lambda: harn.channel_emit("news", "hello"),
        lambda: harn.trigger_register(
            id="t", kind="channel.emit", provider="channel", match={}, handler=print
        ),
    ],
)
def test_each_durable_call_on_an_implicit_runtime_warns(
    caplog: pytest.LogCaptureFixture, call: Callable[..., Any]
) -> None:
    async def main() -> None:
        await call()

    with caplog.at_level(logging.WARNING, "harn.runtime"):
        asyncio.run(main())

    assert len(caplog.records) == 1


def closed_by_hand(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main)
    loop.close()


@pytest.mark.parametrize("run", [asyncio.run, closed_by_hand])
def test_an_implicit_runtime_is_freed_with_its_loop(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    found: list[weakref.ref[Runtime]] = []

    async def main() -> None:
        await worker_queue("jobs").enqueue(1)
        harn.mailbox_open("inbox")
        found.append(weakref.ref(harn.current_runtime()))
        gc.collect()
        assert found[0]() is not None

    run(main())
    gc.collect()

    assert found[0]() is None


async def test_a_runtime_in_memory_that_was_opened_does_not_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Runtime():
        await worker_queue("jobs").enqueue(1)

    assert not [each for each in caplog.records if each.name == "harn.runtime"]


# -- another event loop --------------------------------------------------------------------------

CALLS: dict[str, Callable[[], Any]] = {
    "enqueue": lambda: worker_queue("jobs").enqueue(1),
    "emit": lambda: harn.event_log_emit("news", "greeting", 1),
    "read": lambda: harn.event_log_read("news"),
    "trigger": lambda: harn.channel_emit("news", 1),
    "pool": lambda: harn.pool_create(name="p"),
    "mutex": lambda: harn.sync_mutex_acquire("key"),
    "semaphore": lambda: harn.sync_semaphore_acquire("key", 1),
    "waitpoint": lambda: harn.waitpoint_wait("w", timeout=0),
    "parallel": lambda: harn.parallel(2, lambda n: n),
    "sleep": lambda: harn.sleep(0),
    "limit": lambda: harn.durable_rate_limit_acquire(key="k", limit=1),
    "supervisor": lambda: harn.supervisor_start(children=[harn.Child("c", lambda ctx: None)]),
    "drain": lambda: harn.drain("jobs", lambda job: None),
}


@pytest.mark.parametrize("carries_context", [False, True], ids=["bare", "copied context"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_from_another_loop_points_to_from_thread(
    tmp_path: Path, name: str, carries_context: bool
) -> None:
    async def call() -> None:
        await asyncio.wait_for(CALLS[name](), 20)

    def elsewhere() -> None:
        context = here if carries_context else contextvars.Context()
        context.run(asyncio.run, call())

    async with Runtime(state_dir=tmp_path):
        here = contextvars.copy_context()
        await CALLS["mutex"]()  # so that the section is there and held
        with pytest.raises(HarnError, match="from_thread"):
            await asyncio.to_thread(on_a_thread, elsewhere)


async def test_things_of_one_loop_used_on_another_point_to_from_thread(tmp_path: Path) -> None:
    async with Runtime(state_dir=tmp_path):
        queue = worker_queue("jobs")
        supervisor = await harn.supervisor_start(children=[harn.Child("c", _forever)])
        log = current_runtime().event_log
        for use in (
            lambda: queue.enqueue(1),
            lambda: queue.summary(),
            lambda: log.emit("t", "k", 1),
            lambda: log.read("t"),
            supervisor.wait,
            supervisor.stop,
        ):

            def call(use: Callable[[], Any] = use) -> None:
                asyncio.run(asyncio.wait_for(use(), 20))

            with pytest.raises(HarnError, match="from_thread"):
                await asyncio.to_thread(on_a_thread, call)


async def test_from_thread_is_the_way_from_another_loop(tmp_path: Path) -> None:
    async def other() -> int:
        queue = await asyncio.to_thread(from_thread, worker_queue, "jobs")
        done: EnqueueReceipt[object] = await asyncio.to_thread(from_thread, queue.enqueue, 1)
        return done.job_id

    async with Runtime(state_dir=tmp_path):
        assert await asyncio.to_thread(on_a_thread, lambda: asyncio.run(other())) == 1


async def _forever(ctx: Any) -> None:
    await asyncio.Event().wait()


# -- synchronous programs ------------------------------------------------------------------------


def test_run_in_thread_serves_every_thread_of_a_synchronous_program(tmp_path: Path) -> None:
    with run_in_thread(state_dir=tmp_path) as runtime:
        queue = worker_queue("jobs")

        def enqueue(n: int) -> int:
            return int(from_thread(worker_queue("jobs").enqueue, n).job_id)

        ids = [on_a_thread(partial(enqueue, n)) for n in range(4)]
        assert current_runtime() is runtime is on_a_thread(current_runtime)
        assert from_thread(queue.summary).ready == 4

    assert ids == [1, 2, 3, 4]
    with pytest.raises(HarnError, match="no runtime is open"):
        current_runtime()


def test_threads_that_make_the_same_service_at_once_get_the_same_one(tmp_path: Path) -> None:
    with run_in_thread(state_dir=tmp_path):
        barrier, seen = threading.Barrier(8), []

        def ask() -> None:
            barrier.wait(10)
            seen.append(worker_queue("jobs").store)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    assert len(seen) == 8 and len(set(map(id, seen))) == 1


def test_run_in_thread_refuses_a_bad_option_by_name() -> None:
    with pytest.raises(harn.InvalidOption, match="tenant_id"), run_in_thread(tenant_id=""):
        raise AssertionError("it must not open")


def test_leaving_run_in_thread_ends_what_the_runtime_owns() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def start() -> None:
        harn.spawn(work)
        await asyncio.sleep(0)

    with pytest.raises(ZeroDivisionError), run_in_thread():
        from_thread(start)
        raise ZeroDivisionError

    assert ended == ["work"]
    assert not [each for each in threading.enumerate() if each.name == "harn-runtime"]


def test_an_error_of_closing_comes_out_of_the_block() -> None:
    async def fails() -> None:
        raise ZeroDivisionError("closing")

    with pytest.raises(ZeroDivisionError, match="closing"), run_in_thread() as runtime:
        runtime.at_exit.append(fails)

    with pytest.raises(KeyError) as caught, run_in_thread() as runtime:
        runtime.at_exit.append(fails)
        raise KeyError("body")
    assert "closing" in caught.value.__notes__[0]


def test_two_run_in_threads_are_told_apart_by_their_contexts(tmp_path: Path) -> None:
    with run_in_thread(state_dir=tmp_path / "a") as a:
        with run_in_thread(state_dir=tmp_path / "b") as b:
            assert current_runtime() is b
            assert from_thread(current_runtime) is b
            with pytest.raises(HarnError, match="2 runtimes are open"):
                on_a_thread(current_runtime)
        assert current_runtime() is a


# -- forks ---------------------------------------------------------------------------------------


def in_a_fork(program: str, tmp_path: Path) -> str:
    """Run *program* as a script of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
    import asyncio, contextvars, os, sys
    import harn

    def child():
        def tell(fn):
            try:
                print("worked", fn(), flush=True)
            except harn.HarnError as error:
                print("refused:", error, flush=True)
        tell(harn.current_runtime)
        tell(lambda: harn.from_thread(queue.enqueue, 1))
        tell(lambda: asyncio.run(queue.enqueue(1)))
        async def implicit():
            return await harn.worker_queue("jobs").enqueue(1)
        tell(lambda: asyncio.run(implicit()))
        tell(lambda: contextvars.Context().run(asyncio.run, implicit()))
        with harn.run_in_thread(state_dir=sys.argv[1] + "/own"):
            tell(lambda: harn.from_thread(harn.worker_queue("jobs").enqueue, 1).job_id)

    with harn.run_in_thread(state_dir=sys.argv[1] + "/parents"):
        queue = harn.worker_queue("jobs")
        harn.from_thread(queue.enqueue, 1)
        pid = os.fork()
        if pid == 0:
            child()
        else:
            os.waitpid(pid, 0)
            print("parent", harn.from_thread(queue.enqueue, 2).job_id, flush=True)
"""


def test_a_forked_child_is_refused_its_parents_runtime_and_opens_its_own(tmp_path: Path) -> None:
    told = in_a_fork(FORK, tmp_path).splitlines()

    assert [line.split(":")[0] for line in told[:5]] == ["refused"] * 5
    assert all("forked" in line for line in told[:5])
    assert told[5:] == ["worked 1", "parent 2"]


FORK_ON_LOOP = """
    import asyncio, os, sys
    import harn

    async def main():
        queue = harn.worker_queue("jobs")
        await queue.enqueue(1)
        pid = os.fork()
        if pid == 0:
            try:
                harn.current_runtime()
                harn.worker_queue("jobs")
            except harn.HarnError as error:
                print("refused:", error, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent", (await queue.enqueue(2)).job_id)

    harn.run(main, state_dir=sys.argv[1])
"""


def test_a_fork_on_the_loop_is_refused_too(tmp_path: Path) -> None:
    told = in_a_fork(FORK_ON_LOOP, tmp_path).splitlines()

    assert told[0].startswith("refused:") and "forked" in told[0]
    assert told[1] == "parent 2"


# -- a web application ---------------------------------------------------------------------------

APPLICATION = """
    import contextlib, os
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    import harn

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with harn.Runtime(state_dir=os.environ["STATE"]):
            yield

    async def review(request):
        receipt = await harn.worker_queue("reviews").enqueue(await request.json())
        return JSONResponse({"durability": receipt.durability, "job": receipt.job_id})

    def plain(request):  # starlette runs it on a thread
        receipt = harn.from_thread(harn.worker_queue("reviews").enqueue, "plain")
        return JSONResponse({"durability": receipt.durability, "job": receipt.job_id})

    app = Starlette(
        routes=[Route("/review", review, methods=["POST"]), Route("/plain", plain)],
        lifespan=lifespan,
    )
"""


def test_a_request_handler_uses_the_lifespans_runtime_and_its_job_survives_a_kill(
    tmp_path: Path,
) -> None:
    (tmp_path / "webapp.py").write_text(textwrap.dedent(APPLICATION))
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        fd = listening.fileno()
        port = listening.getsockname()[1]
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "webapp:app", "--fd", str(fd)],
            cwd=tmp_path,
            env={**os.environ, "STATE": str(tmp_path / "state")},
            pass_fds=[fd],
            stderr=subprocess.PIPE,
        )
        try:
            answers = [_asked(port, "/review", {"pr": 1984}), _asked(port, "/plain", None)]
        finally:
            server.send_signal(signal.SIGKILL)
            server.communicate(timeout=30)

    async def look() -> list[Any]:
        queue = worker_queue("reviews")
        return [claim.job.payload for claim in await queue.claim_many("me", 5)]

    assert [answer["job"] for answer in answers] == [1, 2]
    assert all(answer["durability"] != "memory" for answer in answers)
    assert harn.run(look, state_dir=tmp_path / "state") == [{"pr": 1984}, "plain"]


def _asked(port: int, path: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


# -- a block that is never left ------------------------------------------------------------------

NEVER_LEFT = """
    import multiprocessing, sys
    import harn

    async def handle(job):
        done.try_send(job.payload)

    async def begin():
        global done
        done = harn.channel("done")
        harn.spawn(lambda: harn.drain("jobs", handle, stop_when_empty=False))
        await harn.worker_queue("jobs").enqueue(1)
        return await done.receive()

    def work():
        global block
        block = harn.run_in_thread(storage=sys.argv[1])
        block.__enter__()
        print("handled", harn.from_thread(begin), flush=True)

    if sys.argv[2] == "child":
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
    else:
        work()
"""


async def consumers_after(url: str, where: str) -> list[harn.ConsumerState]:
    """Run the program that never leaves its block; return the consumers that it left alive."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(NEVER_LEFT), url, where],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "handled 1\n", "")
    async with Runtime(storage=url):
        return [each for each in await harn.consumers("jobs") if each.alive]


async def test_the_end_of_the_program_closes_a_runtime_whose_block_is_never_left(
    lasting_url: str,
) -> None:
    assert await consumers_after(lasting_url, "main") == []


async def test_so_does_the_end_of_a_process_of_multiprocessing(tmp_path: Path) -> None:
    assert await consumers_after(f"sqlite:///{tmp_path / 'jobs.sqlite'}", "child") == []

"""`harn orchestrator serve`: run a manifest until a signal stops it.

SIGTERM and SIGINT stop it: no more events are accepted, running work may finish within
--shutdown-timeout, other work is released, and the exit code is 0. A second signal ends the wait.
SIGHUP reads the manifest again. Signals work from the first moment, also during the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import click

from harn.cli.command_log import log_as_service
from harn.cli.orchestrator_commands import DEFAULT_CONFIG
from harn.cli.output import DURATION, has_traceback, say_json
from harn.cli.signals import run_stoppable
from harn.cli.store_choice import runtime_for
from harn.cli.target import CommandTarget, common
from harn.error_text import error_text
from harn.errors import HarnError
from harn.escaping import one_line
from harn.stopping import Stopping

logger: logging.Logger = logging.getLogger("harn.orchestrator")


@click.command()
@common
@click.option("--bind", "--listen", "bind", help="Where to listen, as host:port.")
@click.option("--no-http", is_flag=True, help="Take no requests: schedules and queues only.")
@click.option(
    "--shutdown-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long work under way may take to finish after a signal.",
)
def serve(target: CommandTarget, bind: str | None, no_http: bool, shutdown_timeout: float) -> int:
    """Run a manifest: its triggers, its worker queues, its webhooks."""
    log_as_service()
    run = _Serving(target.config or DEFAULT_CONFIG, bind, no_http, shutdown_timeout)
    return run.main(lambda: runtime_for(target.storage, target.state_dir))


class _Serving:
    def __init__(self, config: Path, bind: str | None, no_http: bool, within: float) -> None:
        self._config = config
        self._bind = bind
        self._no_http = no_http
        self._within = within
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._again = asyncio.Event()

    def main(self, open_runtime: Callable[[], Any]) -> int:
        """Serve until a signal, then stop in order."""
        stopping = Stopping(self._within, self._stop.set, ends_process=True)

        async def inside() -> int:
            stopping.at_give_up(self._force.set)
            with self._reloading():
                async with open_runtime() as runtime:
                    return await self._serve(runtime)

        return run_stoppable(inside, stopping)

    async def _serve(self, runtime: Any) -> int:
        from harn.orchestrator import Service, check_exposure

        service = Service(runtime, self._config)
        plan = service.prepare()
        place = check_exposure(self._bind or plan.manifest.serve.bind, plan.admin_keys)
        async with contextlib.AsyncExitStack() as stack:
            listening = None
            if not self._no_http:
                listening = await self._listen(stack, service, place)
            admin = None
            if await self._unless_stopped(service.start()):
                admin = await self._admit_operators(stack, service)
                _tell(
                    {
                        "status": "ready",
                        "bind": listening and listening.address,
                        "triggers": len(plan.bindings),
                    }
                )
            await self._until_stopped(service)
            if listening is not None:
                service.intake.draining = True
            finished = await self._drain(service)
            if admin is not None:
                await admin.stop(force=not finished)
            if listening is not None:
                await listening.stop(force=not finished)
        _tell({"status": "stopped", "finished": finished})
        return 0

    async def _listen(self, stack: Any, service: Any, place: tuple[str, int]) -> Any:
        from harn.portal import Listening, bind, build_app

        service.host = place[0]
        listening = Listening(build_app(service), bind(*place), drain_within=self._within)
        return await stack.enter_async_context(listening)

    async def _admit_operators(self, stack: Any, service: Any) -> Any:
        try:
            from harn.portal import AdminListening
        except ImportError:  # only with --no-http: there is no server for the admin socket
            logger.info("without the extra 'server' this service accepts no operators' requests")
            return None
        return await stack.enter_async_context(AdminListening(service, self._within))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await *work*, a start or a reload; false if a signal came first, which cancels it."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            working.cancel()
        await asyncio.wait((working,))
        if not working.cancelled():
            working.result()
        return not working.cancelled()

    async def _until_stopped(self, service: Any) -> None:
        while not self._stop.is_set():
            waits = [asyncio.ensure_future(each.wait()) for each in (self._stop, self._again)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if self._again.is_set():
                self._again.clear()
                await self._unless_stopped(self._reload(service))

    async def _reload(self, service: Any) -> None:
        try:
            _tell({"status": "reloaded", **await service.reload()})
        except HarnError as error:
            self._tell_failure(str(error), trace=has_traceback(error))
        except Exception as error:  # the service goes on with the old manifest
            self._tell_failure(error_text(error), trace=True)

    def _tell_failure(self, reason: str, *, trace: bool) -> None:
        logger.error("the manifest was not reloaded: %s", reason, exc_info=trace)
        _tell({"status": "reload failed", "error": one_line(reason)})

    async def _drain(self, service: Any) -> bool:
        draining = asyncio.ensure_future(service.drain(self._within))
        forcing = asyncio.ensure_future(self._force.wait())
        await asyncio.wait((draining, forcing), return_when=asyncio.FIRST_COMPLETED)
        forcing.cancel()
        if draining.done():
            return bool(draining.result())
        draining.cancel()
        return False

    @contextlib.contextmanager
    def _reloading(self) -> Iterator[None]:
        if not hasattr(signal, "SIGHUP"):
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._again.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            if self._stop.is_set():
                # The process is about to exit: another signal must not change the exit code.
                signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _tell(record: dict[str, Any]) -> None:
    """Print what happens to the service on stderr, one JSON document per line."""
    say_json(record, err=True)

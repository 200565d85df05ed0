"""`harn worker`: serves queues forever with the `@durable` functions of some modules.

SIGTERM and SIGINT stop it: it claims no more, running functions may finish within the timeout, the
other jobs are released, and the exit code is 0. A second signal does not wait. With several
processes this command only keeps them running (`worker_processes.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harn.cli.command_log import log_as_service
from harn.cli.garbage_collector import begin_work
from harn.cli.name_completion import queues as queues_here
from harn.cli.output import DURATION, say_json
from harn.cli.progress import live_line
from harn.cli.signals import StoppedBySignal, run_stoppable, stoppable_call
from harn.cli.store_choice import runtime_for, store_options
from harn.cli.worker_parent import Parent
from harn.cli.worker_processes import WorkerProcesses, in_words
from harn.clock import iso
from harn.durable_calls import durable_names
from harn.error_text import error_text
from harn.errors import HarnError
from harn.runtime import Runtime
from harn.stopping import Stopping
from harn.storage import Store
from harn.storage.log import list_topics
from harn.tasks import scope, sleep
from harn.topics import check_queue_name
from harn.workers import QueueWorker

logger: logging.Logger = logging.getLogger("harn.workers")

SHOW_EVERY = 1.0
"""Seconds between two looks at the counts: for the line on a terminal, and for the parent."""
LINE_EVERY = 10
"""Looks between two status lines of --json."""


@click.command()
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option(
    *("--queue", "queues"),
    metavar="NAME",
    multiple=True,
    required=True,
    help="To serve.",
    shell_complete=queues_here,
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Jobs at once in each process, of all queues together.",
)
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--claim-ttl", type=DURATION, default="5m", show_default=True, help="Claims' life.")
@click.option(
    "--shutdown-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long jobs under way may take to finish after a signal.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print status lines, each a JSON document.")
@click.option("--child", is_flag=True, hidden=True)
def worker(
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int,
    processes: int,
    claim_ttl: float,
    shutdown_timeout: float,
    state_dir: Path | None,
    storage: str | None,
    as_json: bool,
    child: bool,
) -> int:
    """Import modules and run their @durable functions for the jobs of some queues, forever.

    SIGTERM claims no more, lets jobs finish within --shutdown-timeout, releases the rest and exits
    with 0; a second signal releases them at once.
    """
    log_as_service()
    for name in queues:
        check_queue_name(name)
    options = WorkerOptions(
        modules, queues, concurrency, claim_ttl, shutdown_timeout, state_dir, storage, as_json
    )
    if processes > 1:
        kept = WorkerProcesses(options.argv(), options.environ(), processes, shutdown_timeout)
        return kept.main(_tell if as_json else None)
    return _Working(options, Parent.found() if child else None).main()


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of the command."""

    modules: Sequence[str]
    queues: Sequence[str]
    concurrency: int
    claim_ttl: float
    shutdown_timeout: float
    state_dir: Path | None
    storage: str | None
    as_json: bool

    def argv(self) -> list[str]:
        """Return the arguments of one process that does the same."""
        return [
            "worker",
            *(word for name in self.queues for word in ("--queue", name)),
            *("--concurrency", str(self.concurrency)),
            *("--claim-ttl", f"{round(self.claim_ttl * 1000)}ms"),
            *("--shutdown-timeout", f"{round(self.shutdown_timeout * 1000)}ms"),
            *(["--json"] if self.as_json else []),
            "--child",
            "--",
            *self.modules,
        ]

    def environ(self) -> dict[str, str]:
        """Return its variables for the store: a password must not be an argument."""
        told = {"HARN_STORAGE": self.storage, "HARN_STATE_DIR": self.state_dir}
        return {name: str(value) for name, value in told.items() if value is not None}


class _Working:
    """One process at work: its store, its worker, its status."""

    def __init__(self, options: WorkerOptions, parent: Parent | None) -> None:
        self._options = options
        self._parent = parent
        self._stopping = Stopping(
            options.shutdown_timeout, self._ask, ends_process=True, signals_hurry=parent is None
        )
        self._worker: QueueWorker | None = None

    def main(self) -> int:
        """Import the modules, then work until a signal comes."""
        if self._parent is not None:
            self._parent.follow(self._stopping, self._options.shutdown_timeout)
        with stoppable_call():
            import_modules(self._options.modules)
        if not durable_names():
            logger.warning(
                "no @durable function is registered by %s: jobs are left to other workers",
                ", ".join(self._options.modules),
            )
        begin_work()
        return run_stoppable(self._inside, self._stopping)

    async def _inside(self) -> int:
        self._stopping.at_give_up(self._give_up)
        try:
            async with runtime_for(self._options.storage, self._options.state_dir) as runtime:
                await self._work(runtime)
        except asyncio.CancelledError:
            if self._stopping.signal is None:
                raise
        return 0

    async def _work(self, runtime: Runtime) -> None:
        # A store that cannot be reached fails here, so that the command ends with one line.
        await runtime.service(Store).run(list_topics, write=False)
        options = self._options
        self._worker = worker = QueueWorker(
            runtime, options.queues, concurrency=options.concurrency, claim_ttl=options.claim_ttl
        )
        async with scope() as nursery:
            status = nursery.spawn(self._show, worker)
            self._say(worker, "started")
            try:
                await worker.run()
            finally:
                status.cancel()
        self._say(worker, "stopped")

    def _ask(self) -> None:
        """Claim no more, at the first signal; a worker that has not started yet is cancelled."""
        if self._worker is None:
            self._stopping.cancel()
            return
        self._say(self._worker, "stopping")
        self._worker.stop()

    def _give_up(self) -> None:
        if self._worker is not None:
            self._worker.give_up()

    # -- status --------------------------------------------------------------------------------

    async def _show(self, worker: QueueWorker) -> None:
        looks = 0
        try:
            while True:
                await sleep(SHOW_EVERY)
                looks += 1
                record = self._record(worker, "working")
                if self._parent is not None:
                    self._parent.tell(record)
                elif not self._options.as_json:
                    live_line.show(in_words(record["queues"].values()))
                if self._options.as_json and looks % LINE_EVERY == 0:
                    _tell(record)
        finally:
            live_line.end()

    def _say(self, worker: QueueWorker, status: str) -> None:
        record = self._record(worker, status)
        if self._options.as_json:
            _tell(record)
        if self._parent is not None:
            self._parent.tell(record)
        names = ", ".join(record["queues"])
        logger.info("%s %s: %s", worker.consumer_id, status, names)

    def _record(self, worker: QueueWorker, status: str) -> dict[str, Any]:
        if status == "working" and self._stopping.signal is not None:
            status = "stopping"
        return {
            "status": status,
            "at": iso(worker.runtime.clock.now_ms()),
            "consumer_id": worker.consumer_id,
            "pid": os.getpid(),
            "concurrency": self._options.concurrency,
            "queues": worker.counts(),
        }


def import_modules(names: Sequence[str]) -> None:
    """Import each module; raise `HarnError` with one clear line if that fails.

    The current directory comes first, as it does for `python -m`.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if name.endswith(".py") or "/" in name:
            raise HarnError(f"{name!r} is a file: name the module, such as app.jobs")
        try:
            importlib.import_module(name)
        except StoppedBySignal:
            raise
        except BaseException as error:  # `pytest.skip` and `sys.exit` raise no `Exception`
            raise HarnError(f"module {name!r} cannot be imported: {_why(name, error)}") from error


def _why(name: str, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (name == missing or name.startswith(f"{missing}.")):
        return f"there is no module {missing!r} here ({os.getcwd()}) or among the installed ones"
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and file != importlib.__file__ and file != __file__:
            place = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{error_text(error)}{place}"


def _tell(record: dict[str, Any]) -> None:
    say_json(record)

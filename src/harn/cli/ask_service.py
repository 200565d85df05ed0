"""Run a verb of the orchestrator in the service that owns the state directory, or else here.

A running service has the manifest's pools in its memory: work in the command's own process would
not share them. So the command asks the service, says so, and shows its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from harn.cli.orchestrator_commands import DEFAULT_CONFIG
from harn.cli.output import Decorator, DurationFlag, say
from harn.cli.progress import live_line
from harn.cli.signals import STOPPED, stoppable_call
from harn.cli.store_choice import usable_store
from harn.cli.target import CommandTarget
from harn.duration import to_text
from harn.errors import HarnError, StorageError
from harn.escaping import one_line
from harn.masking import mask
from harn.orchestrator import LONGEST_WAIT, SOCKET, Options, Verb, connect, verb
from harn.runtime import Runtime
from harn.stopping import Stopping

if TYPE_CHECKING:
    from harn.orchestrator import Manifest, Service


class WorkTime(DurationFlag):
    """How long pool tasks may take, as a verb accepts it."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Read *value*; a wrong one is a usage error."""
        seconds = super().convert(value, param, ctx)
        if not 0 < seconds <= LONGEST_WAIT:
            self.fail(f"a duration above 0, at most {to_text(LONGEST_WAIT)}", param, ctx)
        return seconds


WORK_TIME = WorkTime()

work_option: Decorator = click.option(
    "--shutdown-timeout",
    type=WORK_TIME,
    default="30s",
    show_default=True,
    help="How long the pool tasks that this causes may take.",
)


def operate(
    target: CommandTarget,
    name: str,
    options: Options,
    *,
    wanted: Sequence[str] | None = None,
    may_make: bool = True,
    check: Callable[[Manifest], None] = lambda manifest: None,
    stop: CommandStop | None = None,
    here: bool = False,
    needs_manifest: bool = True,
) -> dict[str, Any]:
    """Run the verb *name* with *options*, and return its document.

    Without a service, or with *here*, it runs in this process: *wanted* are the triggers that it
    needs, *may_make* says whether a store may be created, *check* is called with the manifest
    first, and *stop* says what a signal does (by default it cancels). A verb that uses only the
    store is called without *needs_manifest*.
    """
    asked = verb(name)
    document = None if here else ask_service(target, asked, options)
    if document is not None:
        return document
    path = target.config or DEFAULT_CONFIG
    if needs_manifest:
        manifest = target.manifest()
        check(manifest)
        path = manifest.path
    else:
        target.check_config()

    async def work(runtime: Runtime) -> dict[str, Any]:
        from harn.orchestrator import Service
        from harn.storage import Store
        from harn.storage.log import list_topics

        # Read first: a store that cannot be reached is one line, not an error of each trigger.
        await runtime.service(Store).run(list_topics, write=False)
        service = Service(runtime, path)
        if needs_manifest:
            await service.start_by_hand(wanted)
        if stop is not None:
            stop.watch(service)
        try:
            return await asked.run(service, options, live_line.show)
        finally:
            live_line.end()

    return target.run(work, may_make=may_make, stopping=stop.stopping if stop else None)


class CommandStop:
    """What a signal does to a command that stops in order *within* seconds."""

    def __init__(self, within: float) -> None:
        self.stopping: Stopping = Stopping(within, self.ask, ends_process=True)
        self.service: Service | None = None

    def watch(self, service: Service) -> None:
        """Let signals stop *service* from now on. Call it on the event loop."""
        self.service = service
        self.stopping.at_give_up(self.give_up)

    def ask(self) -> None:
        """Begin the stop, at the first signal."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Stop waiting, at the second signal or at the timeout."""
        raise NotImplementedError


def ask_service(target: CommandTarget, asked: Verb, options: Options) -> dict[str, Any] | None:
    """Ask the service that owns the state directory; None if there is none."""
    directory, storage = usable_store(target.storage, target.state_dir)
    connection = connect(directory)
    if connection is None:
        return None
    from harn.cli.service_connection import ServiceConnection

    path = directory / SOCKET
    with stoppable_call(), closing(ServiceConnection(connection, directory)) as service:
        about = service.answer(verb("service"), Options())
        _check_same(target, storage, about)
        say(one_line(f"asking the service of this directory: {path}"), err=True)
        try:
            return {**service.answer(asked, options), "via": str(path)}
        except SystemExit as stopped:
            raise StoppedAsking(stopped.code) from None


class StoppedAsking(click.ClickException):
    """A signal ended the command, but not the work that it had asked a service for."""

    def __init__(self, code: Any) -> None:
        super().__init__(f"{STOPPED[code]}; the service continues what it was asked for")
        self.exit_code: Any = code  # type: ignore[misc] # click reads it from the instance


def _check_same(target: CommandTarget, storage: str | None, about: dict[str, Any]) -> None:
    """Raise if the service runs another manifest, or uses another store, than was named."""
    if target.config is not None:
        named = target.config / "harn.toml" if target.config.is_dir() else target.config
        if str(named.resolve()) != about["manifest"]:
            raise HarnError(
                f"the service on this state directory runs {about['manifest']}, not {named}; "
                "leave --config out, or name another --state-dir"
            )
    if storage is not None and mask(storage) != about["storage"]:
        raise StorageError(
            f"the service on this state directory uses {about['storage']}, not {mask(storage)}; "
            "name another --state-dir"
        )


def work_text(work: dict[str, Any]) -> str:
    """Return one sentence about the pool tasks that a command caused."""
    from harn.pools import CausedOutcome

    return str(work.get("reason") or CausedOutcome(work["completed"]))

"""Which manifest and which store a command uses, and how it runs on them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from harn.cli.garbage_collector import spare_modules
from harn.cli.orchestrator_commands import DEFAULT_CONFIG
from harn.cli.output import json_flag
from harn.cli.signals import run_stoppable
from harn.cli.store_choice import runtime_for, store_options, usable_store
from harn.errors import StorageError
from harn.runtime import Runtime
from harn.stopping import Stopping
from harn.storage import check_there

if TYPE_CHECKING:
    from harn.orchestrator import Manifest

T = TypeVar("T")


class CommandTarget(msgspec.Struct, frozen=True):
    """The common options of a command and of its group."""

    config: Path | None = None
    state_dir: Path | None = None
    storage: str | None = None
    as_json: bool = False

    def __repr__(self) -> str:  # without the store: its URL may hold a password
        return f"CommandTarget({self.config!r}, {self.state_dir!r}, as_json={self.as_json})"

    def over(self, outer: CommandTarget | None) -> CommandTarget:
        """Return this, with missing options taken from *outer*."""
        if outer is None:
            return self
        return CommandTarget(
            self.config or outer.config,
            self.state_dir or outer.state_dir,
            self.storage or outer.storage,
            self.as_json or outer.as_json,
        )

    def manifest(self) -> Manifest:
        """Read the manifest: `harn.toml` here, unless `--config` names another."""
        from harn.orchestrator import read_manifest

        return read_manifest(self.config or DEFAULT_CONFIG)

    def check_config(self) -> None:
        """Raise if `--config` names a manifest that cannot be used, though it is not needed."""
        if self.config is not None:
            self.manifest()

    def check_state_dir(self) -> None:
        """Raise if the state directory cannot be one, in a command that needs no store."""
        usable_store(self.storage, self.state_dir)

    def run(
        self,
        work: Callable[[Runtime], Awaitable[T]],
        *,
        may_make: bool = True,
        stopping: Stopping | None = None,
    ) -> T:
        """Run *work* in a runtime on the store, which must exist unless *may_make*.

        A signal cancels it, unless *stopping* says otherwise.
        """

        async def inside() -> T:
            async with self._runtime() as runtime:
                if not may_make:
                    check_there(runtime.storage_url)
                return await work(runtime)

        return run_stoppable(inside, stopping)

    def look(self, work: Callable[[Runtime], Awaitable[T]]) -> tuple[T, str | None]:
        """Run *work*, which only reads; without a store, on an empty one in memory.

        No store is created. Returns the result, and a sentence if there is no store.
        """

        async def inside() -> tuple[T, str | None]:
            async with self._runtime() as runtime:
                try:
                    check_there(runtime.storage_url)
                except StorageError as error:
                    missing = str(error)
                else:
                    return await work(runtime), None
            async with Runtime(storage="memory://") as empty:
                return await work(empty), missing

        return run_stoppable(inside)

    def _runtime(self) -> Runtime:
        spare_modules()
        return runtime_for(self.storage, self.state_dir)


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config`, `--state-dir`, `--storage` and `--json`, as one argument *target*."""

    @click.option(
        "--config", "--manifest", type=click.Path(path_type=Path), help="The manifest, harn.toml."
    )
    @store_options
    @json_flag
    @click.pass_context
    @functools.wraps(command)
    def wrapped(
        ctx: click.Context,
        /,
        config: Path | None,
        state_dir: Path | None,
        storage: str | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        target = CommandTarget(config, state_dir, storage, as_json).over(
            ctx.find_object(CommandTarget)
        )
        ctx.obj = target
        return ctx.invoke(command, target, **options)

    return wrapped

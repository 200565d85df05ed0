"""Which store a command uses: `--storage`, else `HARN_STORAGE`, else SQLite in the state directory.

Journals and limiter files are always in the state directory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harn.errors import StorageError
from harn.runtime import Runtime
from harn.settings import Settings, allow_insecure_state


def insecure_flag(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--allow-insecure-state`; it applies as soon as the command line is read."""

    def allow(_: click.Context, __: click.Parameter, wanted: bool) -> None:
        if wanted:
            allow_insecure_state()

    return click.option(
        "--allow-insecure-state",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=allow,
        help="Use files and directories that others can write to.",
    )(command)


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the store: `--state-dir`, `--storage`, and the flag above."""
    command = insecure_flag(command)
    command = click.option("--storage", help="The store, such as postgresql://... or file:///dir.")(
        command
    )
    return click.option(
        "--state-dir", type=click.Path(path_type=Path), help="Directory of the store."
    )(command)


def chosen_store(storage: str | None, state_dir: Path | None) -> tuple[Path, str | None]:
    """Return the state directory and the storage URL; None means SQLite in the directory."""
    settings = Settings.load()
    directory = settings.state_dir if state_dir is None else state_dir
    return directory, settings.storage if storage is None else storage


def usable_store(storage: str | None, state_dir: Path | None) -> tuple[Path, str | None]:
    """Return what `chosen_store` does; raise if the state directory cannot be a directory.

    Without this check, a file in its place would look like an empty store.
    """
    directory, url = chosen_store(storage, state_dir)
    for place in (directory, *directory.parents):
        if place.is_dir():
            break
        if place.exists() or place.is_symlink():
            raise StorageError(
                f"the state directory {directory} cannot be used: {place} is not a directory; "
                "name another one with --state-dir or HARN_STATE_DIR"
            )
    return directory, url


def runtime_for(storage: str | None, state_dir: Path | None) -> Runtime:
    """Return the runtime of a command."""
    directory, url = usable_store(storage, state_dir)
    return Runtime(state_dir=directory, storage=url)

"""Which store a command uses: `--storage`, else `HARN_STORAGE`, else SQLite in the state directory.

Journals and limiter files live in the state directory in every case.
"""

from __future__ import annotations

from pathlib import Path

from harn.errors import StorageError
from harn.runtime import Runtime
from harn.settings import Settings


def chosen_store(storage: str | None, state_dir: Path | None) -> tuple[Path, str | None]:
    """Return the state directory and the storage URL; None stands for the directory's SQLite."""
    settings = Settings.load()
    directory = settings.state_dir if state_dir is None else state_dir
    return directory, settings.storage if storage is None else storage


def usable_store(storage: str | None, state_dir: Path | None) -> tuple[Path, str | None]:
    """Return what `chosen_store` does; a state directory that cannot be one is an error.

    A file in its place would look like a directory that does not exist yet, and an empty store.
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
    """Make the runtime that a command works in."""
    directory, url = usable_store(storage, state_dir)
    return Runtime(state_dir=directory, storage=url)

"""The files that configure models: `providers.toml`, or tables of `harn.toml`.

Limits, prices and budgets are read from them here, and the providers themselves in `harn.llm`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harn.errors import ManifestError

CATALOGUES = ("providers.toml", "harn.toml")


def catalogues(given: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield *given*, or else each catalogue of the working directory, with what it holds."""
    if given is not None:
        yield given, read_toml(given)
        return
    for name in CATALOGUES:
        if Path(name).is_file():
            yield Path(name), read_toml(Path(name))


def read_toml(path: Path) -> dict[str, Any]:
    """Read the TOML file at *path*; raise `ManifestError` if it cannot be read."""
    try:
        # As the manifest, which may be the same file: an editor may put a byte order mark in front.
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ManifestError(f"{path}: {error}") from None


def tables(path: Path, where: str, value: object) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables in *value*, the table *where* of *path*, by name."""
    if not isinstance(value, dict):
        raise ManifestError(f"{path}: [{where}] is a table of tables")
    for name, entry in value.items():
        if not isinstance(entry, dict):
            raise ManifestError(f"{path}: [{where}] {name} is a table, not {entry!r}")
    return list(value.items())

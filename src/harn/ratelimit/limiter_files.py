"""Where rate limits are kept, if no other store is named: two files in the state directory."""

from __future__ import annotations

import os
from pathlib import Path

FILE = "rate-limits.sqlite"
LLM_FILE = "llm-rate-limits.sqlite"


def is_postgres(url: str) -> bool:
    """Tell whether *url* names a PostgreSQL store, which then holds the limits too."""
    return url.startswith(("postgresql://", "postgres://"))


def stores_of_limits(
    storage: str | None, state_dir: Path, llm_path: Path | None = None
) -> list[str]:
    """Return the URLs of the stores that hold limits: *storage* on PostgreSQL, else files.

    *llm_path* is the file that the settings name for limits of model providers.
    """
    if storage is not None and is_postgres(storage):
        return [storage]
    paths = [state_dir / FILE, state_dir / LLM_FILE, *([] if llm_path is None else [llm_path])]
    return [f"sqlite:///{os.path.abspath(path)}" for path in paths if path.is_file()]

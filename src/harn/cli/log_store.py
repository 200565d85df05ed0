"""The store of a `harn log` command, and work done on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from harn.cli.signals import run_stoppable
from harn.cli.store_choice import runtime_for
from harn.runtime import Runtime
from harn.storage import check_there, read_only

T = TypeVar("T")


def run_on_store(
    storage: str | None,
    state_dir: Path | None,
    work: Callable[[Runtime], Awaitable[T]],
    *,
    may_make: bool = False,
    only_read: bool = False,
) -> T:
    """Run *work* on the store, which must exist unless the command *may_make* one.

    With *only_read* nothing is written, not even to repair what a crash left.
    """

    async def main() -> T:
        async with runtime_for(storage, state_dir) as runtime:
            if not may_make:
                check_there(runtime.storage_url)
            if only_read:
                runtime.storage_url = read_only(runtime.storage_url)
            return await work(runtime)

    return run_stoppable(main)

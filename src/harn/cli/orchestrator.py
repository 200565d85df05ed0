"""`harn orchestrator`: the commands around a manifest, each imported when it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from harn.cli.tree import LazyGroup
from harn.runtime import Runtime
from harn.settings import Settings

T = TypeVar("T")

DEFAULT_CONFIG = Path("harn.toml")


def runtime_for(storage: str | None, state_dir: Path | None) -> Runtime:
    """Make the runtime that a command works in: by flag, by variable, else SQLite."""
    settings = Settings.load()
    directory = state_dir if state_dir is not None else settings.state_dir
    url = storage or (settings.storage if state_dir is None else None)
    return Runtime(state_dir=directory, storage=url)


def run_in(
    storage: str | None, state_dir: Path | None, work: Callable[[Runtime], Awaitable[T]]
) -> T:
    """Run *work* to its end in a runtime of the place that was asked for."""

    async def inside() -> T:
        async with runtime_for(storage, state_dir) as runtime:
            return await work(runtime)

    return asyncio.run(inside())


@click.group(
    cls=LazyGroup,
    lazy={
        "serve": ("harn.cli.serve:serve", "Run a manifest: triggers, queues, webhooks."),
        "check": ("harn.cli.check:check", "Check a manifest; tell every mistake."),
        "fire": ("harn.cli.fire:fire", "Fire one trigger by hand."),
        "queue": ("harn.cli.queue:queue", "List, drain and purge worker queues."),
        "inspect": ("harn.cli.dlq:inspect", "Show triggers, what is under way, and what failed."),
        "dlq": ("harn.cli.dlq:dlq", "List, replay or discard dead letters."),
        "replay": ("harn.cli.dlq:replay", "Dispatch an event once more."),
        "metrics": ("harn.cli.metrics:metrics", "Print the Prometheus text."),
    },
)
def orchestrator() -> None:
    """Run manifests: triggers, worker queues, webhooks, dead letters."""

"""`harn orchestrator`: the commands around a manifest, each imported when it is called.

Every command takes the same four options, and so does a group of them: `queue --config X drain`
and `queue drain --config X` mean the same; the inner one wins.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harn.cli.output import json_flag
from harn.cli.tree import LazyGroup
from harn.runtime import Runtime
from harn.settings import Settings

if TYPE_CHECKING:
    from harn.orchestrator import Manifest

T = TypeVar("T")

DEFAULT_CONFIG = Path("harn.toml")
_GIVEN = "harn.where"


@dataclass(frozen=True, slots=True)
class Where:
    """What a command is about: a manifest, a store, and how to print."""

    config: Path | None = None
    state_dir: Path | None = None
    storage: str | None = None
    as_json: bool = False

    def manifest(self) -> Manifest:
        """Read the manifest; a mistake is a `ManifestError`."""
        from harn.orchestrator import read_manifest

        return read_manifest(self.config or DEFAULT_CONFIG)

    def check_config(self) -> None:
        """Refuse a manifest that was named and is wrong; none is needed."""
        if self.config is not None:
            self.manifest()

    def runtime(self) -> Runtime:
        """Make the runtime to work in: by flag, by variable, else SQLite in the state directory."""
        settings = Settings.load()
        directory = self.state_dir if self.state_dir is not None else settings.state_dir
        url = self.storage or (settings.storage if self.state_dir is None else None)
        return Runtime(state_dir=directory, storage=url)

    def run(self, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Run *work* to its end in that runtime."""

        async def inside() -> T:
            async with self.runtime() as runtime:
                return await work(runtime)

        return asyncio.run(inside())


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config`, `--state-dir`, `--storage` and `--json`; they arrive as one `where`."""

    @functools.wraps(command)
    def with_where(
        *args: Any,
        config: Path | None,
        state_dir: Path | None,
        storage: str | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        context = click.get_current_context()
        outer: Where = context.meta.get(_GIVEN, Where())
        where = Where(
            config or outer.config,
            state_dir or outer.state_dir,
            storage or outer.storage,
            as_json or outer.as_json,
        )
        context.meta[_GIVEN] = where
        return command(*args, where=where, **options)

    path = click.Path(path_type=Path)
    for option in (
        json_flag,
        click.option("--storage", help="The store, such as postgresql://... or file:///dir."),
        click.option("--state-dir", type=path, help="Directory that holds the store."),
        click.option("--config", "--manifest", "config", type=path, help="The manifest."),
    ):
        with_where = option(with_where)
    return with_where


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

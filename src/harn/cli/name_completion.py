"""Names that the shell completes: the queues, topics and pools of a store, a manifest's triggers.

A completion reads, creates nothing, and is silent: without a store, or if it cannot be read, there
is no name to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from harn.runtime import Runtime

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(names: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Return a completer that offers those of *names* that continue what was typed."""

    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
        try:
            return sorted({name for name in names(ctx) if name.startswith(typed)})
        except Exception:  # a shell shows whatever is printed here in the middle of the prompt
            return []

    return complete


def option_of(ctx: click.Context | None, name: str) -> Any:
    """Return the option *name* of the command, or else of a group that it is in."""
    while ctx is not None:
        if (value := ctx.params.get(name)) is not None:
            return value
        ctx = ctx.parent
    return None


def _directory(ctx: click.Context) -> Path:
    from harn.cli.store_choice import usable_store

    return usable_store(option_of(ctx, "storage"), option_of(ctx, "state_dir"))[0]


def _stored(ctx: click.Context, read: Callable[[], Any]) -> list[str]:
    """Return the names that *read* finds in the store."""
    import asyncio

    from harn.cli.store_choice import runtime_for
    from harn.storage import Store, check_there, read_only

    async def look() -> list[str]:
        runtime: Runtime
        async with runtime_for(option_of(ctx, "storage"), option_of(ctx, "state_dir")) as runtime:
            check_there(runtime.storage_url)
            runtime.storage_url = read_only(runtime.storage_url)
            return list(await runtime.service(Store).run(read, write=False))

    return asyncio.run(look())


def _queues(ctx: click.Context) -> list[str]:
    from harn.storage.queue import queue_names

    return _stored(ctx, queue_names)


def _topics(ctx: click.Context) -> list[str]:
    from harn.storage.log import list_topics

    return _stored(ctx, list_topics)


def _pools(ctx: click.Context) -> list[str]:
    from harn.pools import look_at_journals

    return [view.pool for view in look_at_journals(_directory(ctx) / "pools")]


def _triggers(ctx: click.Context) -> list[str]:
    from harn.cli.orchestrator_commands import DEFAULT_CONFIG
    from harn.orchestrator import read_manifest

    return [each.id for each in read_manifest(option_of(ctx, "config") or DEFAULT_CONFIG).triggers]


def _queues_and_pools(ctx: click.Context) -> list[str]:
    try:
        return [*_queues(ctx), *_pools(ctx)]
    except Exception:  # journals need no store
        return _pools(ctx)


queues: Completer = completer(_queues)
topics: Completer = completer(_topics)
triggers: Completer = completer(_triggers)
queues_and_pools: Completer = completer(_queues_and_pools)

"""`harn top`: show pools, queues, consumers, shares, limits, leases and failures, live.

It reads stores, journals and limiter files, and creates no store. As with every read of a queue,
claims that have expired are recorded as expired.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from harn.cli.name_completion import queues_and_pools
from harn.cli.output import DURATION, emit
from harn.cli.progress import live_line
from harn.cli.signals import run_stoppable
from harn.cli.store_choice import store_options, usable_store
from harn.cli.tables import width_of
from harn.cli.top_tables import body, header
from harn.errors import StorageError
from harn.escaping import one_line
from harn.masking import mask
from harn.orchestrator import overview
from harn.ratelimit import stores_of_limits
from harn.runtime import Runtime
from harn.storage import check_there, read_url


@click.command()
@store_options
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; needs --once.")
@click.option("--every", type=DURATION, default="1s", show_default=True, help="Time to refresh.")
@click.option(
    *("--filter", "wanted"),
    metavar="TEXT",
    default="",
    help="Only rows with this text.",
    shell_complete=queues_and_pools,
)
def top(
    state_dir: Path | None,
    storage: str | None,
    once: bool,
    as_json: bool,
    every: float,
    wanted: str,
) -> int:
    """Watch pools, queues and shares, limits, leases, supervisors and recent failures.

    Keys: q quits, s sorts, p pauses, / filters, arrows scroll.
    """
    if as_json and not once:
        raise click.UsageError("--json prints one document: give --once too")
    if not once and not sys.stdout.isatty():
        raise click.UsageError("stdout is not a terminal: give --once, or --once --json")
    directory, url = usable_store(storage, state_dir)
    if (why := nothing_at(directory, url)) is not None:
        emit(as_json, {"store": None, "state_dir": str(directory), "note": why}, lambda: why)
        return 0
    if url is None and not (directory / "events.sqlite").is_file():
        url = "memory://"  # only journals and limits are there: reading must not create a store
    if not once:
        from harn.cli.top_live import View, live

        live_line.stop_ticking()
        return live(directory, url, max(0.1, every), View(wanted=wanted))

    async def look() -> dict[str, Any]:
        async with Runtime(state_dir=directory, storage=url) as runtime:
            return await overview(runtime, directory)

    found = run_stoppable(look)
    emit(as_json, found, lambda: as_text(found, wanted))
    return 0


def nothing_at(directory: Path, url: str | None) -> str | None:
    """Return what to do if there is no store to read; None if there is one."""
    if url is None:
        path, what = directory / "events.sqlite", f"--state-dir {directory}"
        if path.is_file():
            return None
        if (directory / "pools").is_dir() or stores_of_limits(None, directory):
            return None  # journals and limits need no event store
    else:
        place = read_url(url)
        if place.engine == "memory":
            return "a memory:// store cannot be read from another process"
        if place.engine == "postgresql":
            return _no_schema(url)
        if place.path.exists():
            return None
        path, what = place.path, mask(url)
    return one_line(
        f"nothing here yet: {path} does not exist. Run something with a store, such as "
        f'harn.run(main, state_dir="{directory}") or `harn orchestrator serve`, or name '
        f"another place than {what} with --state-dir or --storage."
    )


def _no_schema(url: str) -> str | None:
    try:
        check_there(url)
    except StorageError as error:
        return one_line(f"nothing here yet: {error}")
    return None


def as_text(found: dict[str, Any], wanted: str) -> str:
    """Return the header and all tables."""
    return "\n".join([header(found), *body(found, width_of(), wanted=wanted)])

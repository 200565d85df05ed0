"""`harn top`: show pools, queues, consumers, shares, limits, leases and failures, live.

It reads stores, journals and limiter files, and creates no store. As with every read of a queue,
claims that have expired are recorded as expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harn.cli.output import DURATION, emit
from harn.cli.stoppable import STOP_WITHIN, run_stoppable
from harn.cli.store_choice import insecure_flag, usable_store
from harn.duration import roughly
from harn.errors import HarnError, StorageError
from harn.escaping import one_line
from harn.masking import mask
from harn.orchestrator import overview, shares_of
from harn.runtime import Runtime
from harn.stopping import Stopping
from harn.storage import check_there, read_url
from harn.tasks import sleep

if TYPE_CHECKING:
    from rich.console import Group

MOST_ROWS = 12


@click.command()
@insecure_flag
@click.option("--state-dir", type=click.Path(path_type=Path), help="Directory of the store.")
@click.option("--storage", help="The store, such as postgresql://... or file:///dir.")
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; needs --once.")
@click.option("--every", type=DURATION, default="1s", show_default=True, help="Time to refresh.")
def top(
    state_dir: Path | None, storage: str | None, once: bool, as_json: bool, every: float
) -> int:
    """Watch pools, queues and shares, limits, leases, supervisors and recent failures."""
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
        return _live(directory, url, max(0.1, every))

    async def look() -> dict[str, Any]:
        async with Runtime(state_dir=directory, storage=url) as runtime:
            return await overview(runtime, directory)

    found = run_stoppable(look)
    emit(as_json, found, lambda: as_text(found))
    return 0


def nothing_at(directory: Path, url: str | None) -> str | None:
    """Return what to do if there is no store to read; None if there is one."""
    if url is None:
        path, what = directory / "events.sqlite", f"--state-dir {directory}"
        if path.is_file():
            return None
        if (directory / "pools").is_dir() or list(directory.glob("*rate-limits.sqlite")):
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


def _live(directory: Path, url: str | None, every: float) -> int:
    """Show the tables until a signal ends the command."""
    stop = asyncio.Event()
    stopping = Stopping(STOP_WITHIN, stop.set, ends_process=True)
    return run_stoppable(lambda: _show(directory, url, every, stop), stopping)


async def _show(directory: Path, url: str | None, every: float, stop: asyncio.Event) -> int:
    from rich.console import Console
    from rich.live import Live

    earlier = Earlier()
    async with Runtime(state_dir=directory, storage=url) as runtime:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                try:
                    found = earlier.compare(await overview(runtime, directory))
                    live.update(as_tables(found), refresh=True)
                except HarnError as error:  # a store that cannot be reached may come back
                    live.update(f"waiting: {one_line(str(error))}", refresh=True)
                await _either(stop, sleep(every))
    return 0


async def _either(stop: asyncio.Event, pause: Any) -> None:
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(pause)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*waits, return_exceptions=True)


class Earlier:
    """The totals at the first read, so that shares are those since then."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, int]] = {}

    def compare(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return *found* with each queue's shares counted from its first read."""
        queues = []
        for queue in found["queues"]:
            totals = {each["key"]: each["selected_total"] for each in queue["shares"]}
            first = self._first.setdefault(queue["queue"], totals)
            for key in totals:
                first.setdefault(key, 0)
            keys = [
                {**each, "fairness_key": each["key"], "ready_jobs": each["ready"]}
                for each in queue["shares"]
            ]
            block = {"strategy": queue["strategy"], "keys": keys}
            queues.append({**queue, "shares": shares_of(block, first)})
        return {**found, "queues": queues}


# -- what is shown -------------------------------------------------------------------------------


def as_text(found: dict[str, Any]) -> str:
    """Render the tables without a terminal's escapes."""
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=110, no_color=True, legacy_windows=False).print(as_tables(found))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def as_tables(found: dict[str, Any]) -> Group:
    """Lay out what was found; names are shown as plain text, whatever they contain."""
    from rich.console import Group
    from rich.text import Text

    head = f"harn top  {found['at']}  {found['store']}  {found['dead_letters']} dead letters"
    parts: list[Any] = [Text(one_line(head), style="bold")]
    parts += [Text(one_line(f"warning: {each}"), style="yellow") for each in found["warnings"]]
    sections = (
        _pools(found),
        _receipts(found),
        _queues(found),
        _consumers(found),
        _shares(found),
        _limits(found),
        _leases(found),
        _supervisors(found),
        _failures(found),
    )
    tables = [_table(*section) for section in sections if section[2]]
    if not tables:
        parts.append(Text("the store is empty: no pool, queue, limit or supervisor has used it"))
    return Group(*parts, *tables)


Section = tuple[str, tuple[str, ...], list[tuple[Any, ...]]]


def _table(title: str, headings: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    hidden = len(rows) - MOST_ROWS
    more = f" (and {hidden} more)" if hidden > 0 else ""
    table = Table(title=f"{title}{more}", title_justify="left", box=None, pad_edge=False)
    numeric = [
        all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(headings))
    ]
    for heading, right in zip(headings, numeric, strict=True):
        table.add_column(heading, justify="right" if right else "left", overflow="ellipsis")
    for row in rows[:MOST_ROWS]:
        cells = ("-" if value is None else one_line(str(value))[:200] for value in row)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _pools(found: dict[str, Any]) -> Section:
    headings = ("pool", "pipeline", "slots", "running", "queued", "completed", "failed", "note")
    rows = [
        (
            each["pool"],
            each["pipeline_id"],
            each["max_concurrent"],
            *(each["counts"].get(name, 0) for name in ("running", "queued", "completed", "failed")),
            each["note"] or "",
        )
        for each in found["pools"]
    ]
    return "pools with a journal", headings, rows


def _receipts(found: dict[str, Any]) -> Section:
    headings = ("pool", "submits", "starts", "drops", "mean wait ms", "last")
    rows = [tuple(each.values()) for each in found["pool_receipts"]]
    return "pools, by their latest receipts", headings, rows


def _queues(found: dict[str, Any]) -> Section:
    names = ("queue", "ready", "scheduled", "in_flight", "acked", "cancelled", "dead")
    headings = (*(name.replace("_", " ") for name in names), "oldest", "paused")
    rows = [
        (*(each[name] for name in names), _duration(each["oldest_unclaimed_age_ms"]), _paused(each))
        for each in found["queues"]
    ]
    return "queues", headings, rows


def _paused(queue: dict[str, Any]) -> str:
    return ", ".join(["all"] * queue["paused"] + list(queue["paused_keys"][:MOST_ROWS]))


def _consumers(found: dict[str, Any]) -> Section:
    rows = [
        (
            each["consumer_id"],
            each["host"],
            each["pid"],
            each["in_flight"],
            ", ".join(each["queues"]),
        )
        for each in found["consumers"]
        if each["alive"]
    ]
    headings = ("consumer", "host", "pid", "in flight", "queues")
    return "consumers that are alive", headings, rows


def _shares(found: dict[str, Any]) -> Section:
    headings = ("queue", "key", "weight", "ready", "in flight", "served %", "entitled %")
    names = ("key", "weight", "ready", "in_flight", "share", "entitled")
    rows = [
        (queue["queue"], *(each[name] for name in names))
        for queue in found["queues"]
        for each in queue["shares"]
    ]
    return "shares of keys with work", headings, rows


def _limits(found: dict[str, Any]) -> Section:
    headings = ("bucket", "used", "limit", "window", "waiting", "frees in", "paused until")
    rows = [
        (
            each["key"],
            each["used"],
            each.get("limit"),
            _duration(each.get("window_ms")),
            each["waiting"],
            _duration(each.get("frees_in_ms")),
            each.get("paused_until") or "",
        )
        for each in found["limits"]
    ]
    return "rate limits", headings, rows


def _leases(found: dict[str, Any]) -> Section:
    rows = [
        (each["lease"], each["holder"], each["epoch"], _duration(each["left_ms"]))
        for each in found["leases"]
    ]
    return "leases", ("lease", "holder", "epoch", "left"), rows


def _supervisors(found: dict[str, Any]) -> Section:
    rows = [
        (each["supervisor"], child["child"], child["last"], child["restarts"], child["at"])
        for each in found["supervisors"]
        for child in each["children"]
    ]
    headings = ("supervisor", "child", "last event", "restarts", "at")
    return "supervisors, by their latest events", headings, rows


def _failures(found: dict[str, Any]) -> Section:
    rows = [(each["at"], each["kind"], each["what"], each["error"]) for each in found["failures"]]
    return "recent failures", ("at", "kind", "what", "error"), rows


def _duration(ms: int | None) -> str:
    if ms is None:
        return "-"
    return roughly(ms)

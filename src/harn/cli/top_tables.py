"""The tables of `harn top`: one section for each kind of thing, sorted and filtered alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from harn.cli.colours import BOLD, RED, YELLOW, colour
from harn.cli.tables import shown_duration, table
from harn.escaping import one_line
from harn.plurals import counted

MOST_ROWS = 12
SORTS = ("name", "ready", "in flight", "jobs/s", "dead")
"""What tables can be sorted by; by all but the name, the largest comes first."""


class Section(NamedTuple):
    """A table and its title."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def header(found: dict[str, Any]) -> str:
    """Return the first line: how many dead letters, when, which store."""
    number = found["dead_letters"]
    letters = colour(RED if number else "", counted(number, "dead letter"))
    place = one_line(f"{found['at']}  {found['store']}")
    return f"{colour(BOLD, 'harn top')}  {letters}  {place}"


def body(
    found: dict[str, Any], width: int | None = None, sort: str = "name", wanted: str = ""
) -> list[str]:
    """Return the lines of all tables, with the rows that contain the text *wanted*."""
    lines = [f"{colour(YELLOW, 'warning')}: {one_line(warning)}" for warning in found["warnings"]]
    chosen = (_chosen(each, sort, wanted) for each in _sections(found))
    shown = [each for each in chosen if each.rows]
    for each in shown:
        hidden = len(each.rows) - MOST_ROWS
        more = f" (and {hidden} more)" if hidden > 0 else ""
        rows = [[_short(value) for value in row] for row in each.rows[:MOST_ROWS]]
        lines += ["", colour(BOLD, f"{each.title}{more}")]
        lines += table(each.headings, rows, width).splitlines()
    if not shown and wanted:
        lines += ["", f"nothing here matches {one_line(wanted)!r}"]
    elif not shown:
        lines += ["", "the store is empty: no pool, queue, limit or supervisor has used it"]
    return lines


def _chosen(section: Section, sort: str, wanted: str) -> Section:
    """Return *section* with the rows that match, in the order that was asked for."""
    rows = [
        row
        for row in section.rows
        if any(wanted.casefold() in str(value).casefold() for value in row)
    ]
    if sort in section.headings:
        place = section.headings.index(sort)
        rows.sort(key=lambda row: row[place] or 0, reverse=True)
    return section._replace(rows=rows)


def _short(value: Any) -> Any:
    return value[:200] if isinstance(value, str) else value


def _sections(found: dict[str, Any]) -> Iterator[Section]:
    for make in (
        *(_queues, _consumers, _shares, _pools, _shared_pools, _processes, _receipts),
        *(_limits, _leases, _supervisors, _failures),
    ):
        yield make(found)


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
    return Section("pools with a journal", headings, rows)


def _shared_pools(found: dict[str, Any]) -> Section:
    headings = (
        *("pool", "scope", "of", "slots", "running", "queued"),
        *("blocked", "completed", "failed"),
    )
    names = (
        *("pool", "scope", "scope_id", "max_concurrent", "running", "queued"),
        *("blocked", "completed", "failed"),
    )
    rows = [tuple(each[name] for name in names) for each in found["shared_pools"]]
    return Section("pools shared through the store", headings, rows)


def _processes(found: dict[str, Any]) -> Section:
    headings = ("pool", "of", "process", "host", "pid", "running", "note")
    rows = [
        (
            *(pool["pool"], pool["scope_id"]),
            *(each[name] for name in ("process", "host", "pid", "running")),
            "" if each["alive"] else "not alive",
        )
        for pool in found["shared_pools"]
        for each in pool["processes"]
    ]
    return Section("processes of shared pools", headings, rows)


def _receipts(found: dict[str, Any]) -> Section:
    headings = ("pool", "submits", "starts", "drops", "mean wait ms", "last")
    rows = [tuple(each.values()) for each in found["pool_receipts"]]
    return Section("pools, by their latest receipts", headings, rows)


def _queues(found: dict[str, Any]) -> Section:
    names = ("queue", "ready", "scheduled", "in_flight", "acked", "cancelled", "dead")
    headings = (
        *(name.replace("_", " ") for name in names),
        *("jobs/s", "consumers", "oldest", "paused"),
    )
    rows = [
        (
            *(each[name] for name in names),
            each.get("jobs_per_second"),
            each["consumers"],
            shown_duration(each["oldest_unclaimed_age_ms"]),
            _paused(each),
        )
        for each in found["queues"]
    ]
    return Section("queues", headings, rows)


def _paused(queue: dict[str, Any]) -> str:
    return ", ".join(["all"] * queue["paused"] + list(queue["paused_keys"][:MOST_ROWS]))


def _consumers(found: dict[str, Any]) -> Section:
    pools = {each["pool_id"] for each in found["shared_pools"]}  # whose processes have a table
    rows = [
        (
            each["consumer_id"],
            each["host"],
            each["pid"],
            each["in_flight"],
            ", ".join(each["queues"]),
        )
        for each in found["consumers"]
        if each["alive"] and not pools.issuperset(each["queues"])
    ]
    headings = ("consumer", "host", "pid", "in flight", "queues")
    return Section("consumers that are alive", headings, rows)


def _shares(found: dict[str, Any]) -> Section:
    headings = ("key", "queue", "weight", "ready", "in flight", "cap", "served %", "entitled %")
    names = ("weight", "ready", "in_flight", "cap", "share", "entitled")
    rows = [
        (each["key"], queue["queue"], *(each[name] for name in names))
        for queue in found["queues"]
        for each in queue["shares"]
    ]
    return Section("shares of keys with work", headings, rows)


def _limits(found: dict[str, Any]) -> Section:
    headings = ("bucket", "used", "limit", "window", "waiting", "frees in", "paused until")
    rows = [
        (
            each["key"],
            each["used"],
            each.get("limit"),
            shown_duration(each.get("window_ms")),
            each["waiting"],
            shown_duration(each.get("frees_in_ms")),
            each.get("paused_until") or "",
        )
        for each in found["limits"]
    ]
    return Section("rate limits", headings, rows)


def _leases(found: dict[str, Any]) -> Section:
    rows = [
        (each["lease"], each["holder"], each["epoch"], shown_duration(each["left_ms"]))
        for each in found["leases"]
    ]
    return Section("leases", ("lease", "holder", "epoch", "left"), rows)


def _supervisors(found: dict[str, Any]) -> Section:
    rows = [
        (each["supervisor"], child["child"], child["last"], child["restarts"], child["at"])
        for each in found["supervisors"]
        for child in each["children"]
    ]
    headings = ("supervisor", "child", "last event", "restarts", "at")
    return Section("supervisors, by their latest events", headings, rows)


def _failures(found: dict[str, Any]) -> Section:
    rows = [(each["at"], each["kind"], each["what"], each["error"]) for each in found["failures"]]
    return Section("recent failures", ("at", "kind", "what", "error"), rows)

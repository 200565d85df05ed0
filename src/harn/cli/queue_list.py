"""`harn orchestrator queue ls`: the queues with their counts, and how the scheduler shares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from harn.cli.colours import by_word
from harn.cli.output import emit, warn
from harn.cli.tables import shown_duration, table
from harn.cli.target import CommandTarget, common
from harn.escaping import one_line
from harn.orchestrator import queues_view
from harn.plurals import counted

MOST_NAMED = 10
"""The most paused tenants that are listed by name."""


@click.command()
@common
def ls(target: CommandTarget) -> int:
    """List the queues with their counts, and how the scheduler shares them."""
    return list_queues(target)


def list_queues(target: CommandTarget) -> int:
    """Print the queues of the store, which is not created."""
    target.check_config()
    document, note = target.look(queues_view)
    for warning in document.get("warnings", ()):
        warn(warning)
    emit(target.as_json, document, lambda: _shown(document), note)
    return 0


def _shown(document: dict[str, Any]) -> str:
    queues = document["worker_queues"]
    if not queues:
        return "no worker queues"
    names = ("ready", "scheduled", "in_flight", "acked", "purged", "cancelled", "dead")
    headings = ["queue", *(name.replace("_", " ") for name in names), "oldest"]
    rows = [
        [
            each["queue"],
            *(each[name] for name in names),
            shown_duration(each["oldest_unclaimed_age_ms"]),
        ]
        for each in queues
    ]
    parts = [table(headings, rows)]
    if pauses := [line for each in queues for line in paused_lines(each)]:
        parts.append("\n".join(pauses))
    headings = ["key", "weight", "deficit", "in flight", "selected", "deferred", "ready", "oldest"]
    for block in document["scheduler"]["per_queue"]:
        if block["keys"]:
            rows = [
                [
                    *(each[name] for name in ("fairness_key", "weight", "deficit", "in_flight")),
                    *(each[name] for name in ("selected_total", "deferred_total", "ready_jobs")),
                    shown_duration(each["oldest_ready_age_ms"] or None),
                ]
                for each in block["keys"]
            ]
            title = (
                f"{one_line(block['queue'])}: {block['strategy']} by {block['fairness_key']}, "
                f"{'charged by cost, ' if block.get('charge') == 'cost' else ''}{_cap(block)}"
                f"{counted(block['rounds_completed'], 'round')}, "
                f"{counted(block['starvation_promotions_total'], 'promotion')}"
            )
            parts.append(f"{title}\n{table(headings, rows)}")
        if block.get("tree"):
            columns = ["path", "weight", "deficit", "in flight", "ready", "own"]
            parts.append(table(columns, list(_tree_rows(block["tree"], 0))))
    return "\n\n".join(parts)


def _tree_rows(nodes: list[dict[str, Any]], depth: int) -> Iterator[list[Any]]:
    """Return a row for each node, indented below its parent."""
    names = ("weight", "deficit", "in_flight", "ready_jobs", "own_jobs")
    for node in nodes:
        yield [f"{'  ' * depth}{node['name']}", *(node[name] for name in names)]
        yield from _tree_rows(node["children"], depth + 1)


def _cap(block: dict[str, Any]) -> str:
    cap = block["max_concurrent_per_key"]
    return f"at most {cap} in flight, " if cap else ""


def paused_lines(summary: dict[str, Any]) -> list[str]:
    """Say what of a queue is paused, by its summary."""
    name = one_line(summary["queue"])
    lines = [f"{name} is {by_word('paused')}"] if summary["paused"] else []
    if tenants := summary["paused_keys"]:
        more = f" and {len(tenants) - MOST_NAMED} more" if len(tenants) > MOST_NAMED else ""
        named = ", ".join(map(one_line, tenants[:MOST_NAMED]))
        lines.append(f"{name}: {by_word('paused')} for {named}{more}")
    return lines

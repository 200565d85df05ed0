"""`harn usage`: what model calls have used, added up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harn.cli.output import DURATION, emit, json_flag
from harn.cli.store_choice import store_options
from harn.cli.tables import table
from harn.cli.target import CommandTarget
from harn.clock import iso
from harn.errors import InvalidOption
from harn.llm import UsageTotal, llm_usage
from harn.runtime import Runtime

SUMS = ("calls", "failed", "input", "output", "cost")


@click.command()
@click.option("--since", type=DURATION, default="24h", show_default=True, help="How far back.")
@click.option(
    "--by",
    default="tenant",
    show_default=True,
    help="Comma-separated: tenant, provider, model, queue, pool, session, day.",
)
@store_options
@json_flag
def usage(since: float, by: str, state_dir: Path | None, storage: str | None, as_json: bool) -> int:
    """Add up what model calls have used: calls, tokens and cost, by tenant or otherwise."""
    names: Any = [name.strip() for name in by.split(",") if name.strip()]

    async def work(runtime: Runtime) -> tuple[int, list[UsageTotal], list[UsageTotal]]:
        first_ms = runtime.clock.now_ms() - round(since * 1000)
        return first_ms, await llm_usage(since=since, by=names), await llm_usage(since=since, by=())

    try:
        found, note = CommandTarget(None, state_dir, storage, as_json).look(work)
    except InvalidOption as error:
        raise click.UsageError(str(error)) from None
    first_ms, groups, all_calls = found
    document = {
        "since": iso(first_ms),
        "by": names,
        "usage": [each.as_dict() for each in groups],
        "total": all_calls[0].as_dict() if all_calls else None,
    }
    emit(as_json, document, lambda: usage_text(groups, all_calls), note)
    return 0


def usage_text(
    groups: list[UsageTotal], all_calls: list[UsageTotal], width: int | None = None
) -> str:
    """Return the table, within *width* columns (the terminal's unless given)."""
    if not groups:
        return "no model was called in this time"
    names = groups[0].by
    rows: list[list[object]] = [
        [*(each.group[name] or "-" for name in names), *_sums(each)] for each in groups
    ]
    if len(groups) > 1 and names:
        rows.append(["total", *[""] * (len(names) - 1), *_sums(all_calls[0])])
    shown = table([*names, *SUMS], rows, width)
    if missing := all_calls[0].unpriced:
        shown += f"\ncalls without a known price, not in the cost: {missing:,}"
    return shown


def _sums(total: UsageTotal) -> list[object]:
    return [
        total.calls,
        total.failed,
        _short(total.input_tokens),
        _short(total.output_tokens),
        _dollars(total.cost_usd),
    ]


def _short(number: int) -> str:
    """Return *number* in at most five characters.

    >>> _short(950), _short(12_340), _short(5_600_000)
    ('950', '12.3k', '5.6M')
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            value = number / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"
    return str(number)


def _dollars(cost: Any) -> str:
    """Return *cost* in dollars, with more digits if it is small."""
    if cost is None:
        return "?"
    return f"${cost:,.2f}" if cost >= 1 or not cost else f"${cost:.4f}"

"""What the templates use to show values: names, numbers, times, charts.

All that comes from outside is text: its control characters and marks of writing direction are
spelled out, and jinja escapes it. Only what is built here from numbers is markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from harn.clock import iso
from harn.duration import roughly
from harn.escaping import on_lines, one_line, to_json
from harn.option_checks import is_number

LONGEST_TEXT = 300
LONGEST_JSON = 64 * 1024
SPARK_WIDTH, SPARK_HEIGHT = 120, 24


def shown(value: Any, longest: int = LONGEST_TEXT) -> str:
    r"""Return a text from outside on one line, cut where it is very long.

    >>> shown("a\u202eb"), shown("x" * 400, 5)
    ('a\\u202eb', 'xxxxx…')
    """
    text = one_line(str(value))
    return text if len(text) <= longest else f"{text[:longest]}…"


def lines(value: Any) -> str:
    """Return a text from outside with its line ends."""
    return on_lines(str(value))[:LONGEST_JSON]


def pretty(value: Any) -> str:
    """Return JSON that people can read, cut where it is very long."""
    text = to_json(value, indent=2)
    if len(text) <= LONGEST_JSON:
        return text
    return (
        f"{text[:LONGEST_JSON]}\n… {len(text) - LONGEST_JSON:,} characters more; the API has them"
    )


def number(value: float | None) -> str:
    """Write a number with its thousands apart.

    >>> number(12345), number(2.5), number(None)
    ('12,345', '2.5', '-')
    """
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def usd(value: float | None) -> str:
    """Write a cost in dollars, with more digits if it is less than a cent.

    >>> usd(12.5), usd(0.0042), usd(None)
    ('$12.50', '$0.0042', '?')
    """
    if not isinstance(value, int | float):
        return "?"
    return f"${value:,.2f}" if value >= 0.01 or not value else f"${value:.4f}"


def span(ms: float | None) -> str:
    """Write a length of time, as `explain` does."""
    return roughly(ms) if isinstance(ms, int | float) else "-"


def when(value: Any, now_ms: int) -> Markup:
    """Return a time relative to now, with the exact one on hover.

    >>> str(when("1970-01-01T00:00:10.000Z", 70_000)).partition(">")[2]
    '1m ago</time>'
    """
    ms = _ms(value)
    if ms is None:
        return Markup("-")
    exact = iso(ms)
    ago = now_ms - ms
    text = "now" if abs(ago) < 1000 else f"{_coarse(ago)} ago" if ago > 0 else f"in {_coarse(-ago)}"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, text)


def _coarse(ms: int) -> str:
    """Return only the largest unit beyond a minute, so that the text changes rarely."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if ms >= size:
            return f"{ms // size}{unit}"
    return f"{ms // 1000}s"


def _ms(value: Any) -> int | None:
    if is_number(value):
        return int(value)
    if not isinstance(value, str) or not value:
        return None
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError:
        return None


def part(name: Any) -> str:
    """Return *name* as one part of a path."""
    return quote(str(name), safe="")


def spark(values: Sequence[float], label: str) -> Markup:
    """Draw *values* as a small line; *label* says the same in words."""
    most = max([*values, 1.0])
    step = SPARK_WIDTH / max(1, len(values) - 1)
    places = " ".join(
        f"{place * step:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * value / most:.1f}"
        for place, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<polyline points="{}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, label, places)


def bar(value: float | None, most: float, label: str, kind: str = "") -> Markup:
    """Draw *value* of *most* as a bar; *label* says the same in words."""
    width = 0.0 if not value or most <= 0 else min(100.0, 100 * value / most)
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="track" width="100" height="8" rx="2"/>'
        '<rect class="fill" width="{:.1f}" height="8" rx="2"/></svg>'
    ).format(kind, label, width)


def columns(rows: Sequence[dict[str, Any]]) -> Markup:
    """Draw the cost of each day as a column with its day and amount as text."""
    rows = rows[-31:]
    most = max([float(each["cost_usd"] or 0) for each in rows] + [1e-9])
    wide = max(44, 640 // max(1, len(rows)))
    drawn = [_column(each, place * wide, wide, most) for place, each in enumerate(rows)]
    return Markup(
        '<svg class="columns" viewBox="0 0 {} 170" role="img" aria-label="{}">{}</svg>'
    ).format(wide * len(rows), "cost of each day", Markup("").join(drawn))


def _column(row: dict[str, Any], left: int, wide: int, most: float) -> Markup:
    height = 120 * float(row["cost_usd"] or 0) / most
    middle = left + wide / 2
    return Markup(
        '<g><rect class="fill" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>'
        '<text x="{:.1f}" y="{:.1f}">{}</text><text class="day" x="{:.1f}" y="162">{}</text></g>'
    ).format(
        *(left + wide * 0.15, 144 - height, wide * 0.7, max(1.0, height)),
        *(middle, 138 - height, usd(row["cost_usd"])),
        *(middle, escape(str(row["name"])[5:])),
    )

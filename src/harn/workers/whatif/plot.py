"""A plot of waits as an SVG: for each key, both sides' percentiles as bars with their values."""

from __future__ import annotations

from html import escape

from harn.workers.whatif.report import Side
from harn.workers.whatif.shown_waits import shown_wait

WIDTH, LABELS, RIGHT = 760, 150, 90
ROW, GAP, TOP, BOTTOM = 14, 18, 64, 40
SHOWN = {"p50": "p50", "p95": "p95", "p99": "p99", "max": "worst"}
MOST_KEYS = 30
LONGEST_KEY = 14
COLOURS = {"recorded": "#8a8f98", "proposed": "#2563eb"}
STYLE = "font-family: system-ui, sans-serif; font-size: 11px"


def plot(queue: str, recorded: Side, proposed: Side) -> str:
    """Return the SVG: the keys that wait longest, at most thirty."""
    keys = _longest(recorded, proposed)
    longest = max(_wait(side, key, "max") for key in keys for side in (recorded, proposed))
    block = ROW * 2 * len(SHOWN) + GAP
    height = TOP + block * len(keys) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" style="{STYLE}" role="img">',
        f"<title>Waits in {escape(queue)}: recorded and proposed</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 22, f"Waits in {queue}", "bold 14px system-ui, sans-serif"),
        *_legend(),
    ]
    for place, key in enumerate(keys):
        top = TOP + place * block
        parts.append(_text(12, top + ROW, _short(key), "bold 12px system-ui, sans-serif"))
        for row, (measure, name) in enumerate((m, n) for m in SHOWN for n in COLOURS):
            side = recorded if name == "recorded" else proposed
            parts += _bar(top + row * ROW, measure, name, _wait(side, key, measure), longest)
    parts.append("</svg>")
    return "\n".join(part for part in parts if part) + "\n"


def _longest(recorded: Side, proposed: Side) -> list[str]:
    keys = sorted({*recorded.keys, *proposed.keys})
    keys.sort(key=lambda key: -max(_wait(side, key, "max") for side in (recorded, proposed)))
    return sorted(keys[:MOST_KEYS])


def _wait(side: Side, key: str, measure: str) -> int:
    report = side.keys.get(key)
    return 0 if report is None else report.wait_ms[measure] or 0


def _legend() -> list[str]:
    parts = []
    for place, (name, colour) in enumerate(COLOURS.items()):
        left = 12 + place * 110
        parts.append(f'<rect x="{left}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(left + 18, 44, name))
    parts.append(_text(12 + 2 * 110, 44, "shorter is better"))
    return parts


def _bar(top: int, measure: str, name: str, ms: int, longest: int) -> list[str]:
    room = WIDTH - LABELS - RIGHT
    width = max(1, round(room * ms / max(1, longest)))
    label = SHOWN[measure] if name == "recorded" else ""
    return [
        _text(LABELS - 36, top + 11, label),
        f'<rect x="{LABELS}" y="{top + 2}" width="{width}" height="{ROW - 3}" '
        f'fill="{COLOURS[name]}"/>',
        _text(LABELS + width + 6, top + 11, shown_wait(ms)),
    ]


def _short(key: str) -> str:
    return key if len(key) <= LONGEST_KEY else f"{key[: LONGEST_KEY - 1]}…"


def _text(left: int, base: int, text: str, font: str = "") -> str:
    style = f' style="font: {font}"' if font else ""
    return (
        f'<text x="{left}" y="{base}" fill="#1f2328"{style}>{escape(text)}</text>' if text else ""
    )

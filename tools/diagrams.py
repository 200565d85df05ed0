"""Write the drawings of the documentation as SVG: the architecture, and the life of a job.

    python -m tools.diagrams

They are files of the site itself, so that they are seen without a script from elsewhere, and in an
editor's preview of the page.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent.parent / "docs"
INK, PAPER, LINE = "#1f2933", "#ffffff", "#52606d"
BLUE, GREEN, AMBER, RED, GREY = "#d9ecff", "#d8f5e0", "#fff0cc", "#ffdcd9", "#eef1f4"


@dataclass(frozen=True, slots=True)
class Box:
    """A rounded box with its text in the middle, a line each."""

    x: int
    y: int
    w: int
    h: int
    text: str
    fill: str = BLUE

    def svg(self) -> str:
        """Return the box and its text."""
        shape = (
            f'<rect x="{self.x}" y="{self.y}" width="{self.w}" height="{self.h}" rx="8" '
            f'fill="{self.fill}" stroke="{LINE}"/>'
        )
        lines = self.text.split("\n")
        top = self.y + self.h / 2 - (len(lines) - 1) * 8 + 5
        middle = self.x + self.w / 2
        return shape + "".join(_text(middle, top + 16 * n, line) for n, line in enumerate(lines))


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line through points, with a head at its end and words near *at*."""

    points: tuple[tuple[int, int], ...]
    text: str = ""
    at: tuple[int, int] = (0, 0)

    def svg(self) -> str:
        """Return the line, its head and its words."""
        path = " ".join(f"{x},{y}" for x, y in self.points)
        line = f'<polyline points="{path}" fill="none" stroke="{LINE}" marker-end="url(#head)"/>'
        return line + (_text(*self.at, self.text, size=12) if self.text else "")


def _text(x: float, y: float, words: str, size: int = 13) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" '
        f'fill="{INK}">{escape(words)}</text>'
    )


ROOMS = (
    ("edges", ("cli", "portal"), GREY),
    ("service", ("orchestrator",), AMBER),
    ("routing", ("triggers", "llm"), AMBER),
    ("features", ("pools", "supervisors", "workers", "ratelimit", "state"), BLUE),
)
PRIMITIVES = (("sync", "tasks"), ("eventlog", "storage"))


def architecture() -> str:
    """Draw the rooms, the higher on the lower."""
    parts: list[Box | Arrow] = []
    y, left, width = 20, 120, 640
    labels: list[tuple[int, str]] = []
    for label, rooms, fill in ROOMS:
        labels.append((y, label))
        parts += _row(rooms, left, y, width, fill)
        y += 64
    labels.append((y, "primitives"))
    half = (width - 20) // 2
    parts += _row(PRIMITIVES[0], left, y, half, GREEN)
    parts += _row(PRIMITIVES[1], left + half + 20, y, half, GREEN)
    y += 64
    labels.append((y, "ground"))
    words = "clock · runtime · context · errors · settings · topics · ids · telemetry"
    parts.append(Box(left, y, width, 44, words, GREY))
    stores = "memory · SQLite · files · PostgreSQL"
    parts.append(Box(left + half + 20, y + 84, half, 44, stores, PAPER))
    parts.append(Arrow(((left + width - 80, y - 20), (left + width - 80, y + 84))))
    notes = [_text(60, at + 27, label) for at, label in labels]
    notes.append(_text(left + half / 2, y + 110, "left: in this process; right: survives it", 12))
    parts.sort(key=lambda part: isinstance(part, Box))  # lines run behind the boxes
    return _svg(780, y + 150, parts, notes, "The rooms of harn: each imports only rooms below it")


def _row(rooms: tuple[str, ...], left: int, y: int, width: int, fill: str) -> list[Box]:
    each = (width - 12 * (len(rooms) - 1)) // len(rooms)
    return [Box(left + n * (each + 12), y, each, 44, name, fill) for n, name in enumerate(rooms)]


def job_life() -> str:
    """Draw the statuses of a job and what leads from one to the next."""
    boxes = [
        Box(20, 130, 110, 46, "scheduled", GREY),
        Box(220, 130, 110, 46, "ready", BLUE),
        Box(440, 130, 110, 46, "in flight", AMBER),
        Box(660, 130, 110, 46, "acked", GREEN),
        Box(660, 250, 110, 46, "dead", RED),
        Box(220, 320, 110, 46, "cancelled", GREY),
        Box(20, 320, 110, 46, "purged", GREY),
    ]
    arrows = [
        Arrow(((275, 70), (275, 130)), "enqueue, submit", (275, 60)),
        Arrow(((75, 70), (75, 130)), "with not_before", (75, 60)),
        Arrow(((130, 153), (220, 153)), "due", (175, 145)),
        Arrow(((330, 145), (440, 145)), "claim", (385, 137)),
        Arrow(((440, 165), (330, 165)), "released, expired", (385, 184)),
        Arrow(((550, 153), (660, 153)), "ack", (605, 145)),
        Arrow(((520, 176), (520, 273), (660, 273)), "attempts used up", (590, 265)),
        Arrow(
            ((470, 176), (470, 225), (75, 225), (75, 176)),
            "failed: again after its delay",
            (275, 218),
        ),
        Arrow(
            ((770, 273), (785, 273), (785, 100), (300, 100), (300, 130)),
            *("retry", (600, 92)),
        ),
        Arrow(((250, 176), (250, 320)), "cancel, in any status", (180, 290)),
        Arrow(((235, 176), (235, 250), (100, 250), (100, 320)), "purge", (150, 268)),
    ]
    return _svg(800, 385, [*arrows, *boxes], [], "The life of a job")


def _svg(width: int, height: int, parts: list[Box | Arrow], notes: list[str], title: str) -> str:
    head = (
        '<defs><marker id="head" markerWidth="9" markerHeight="9" refX="8" refY="4.5" '
        f'orient="auto"><path d="M0,0 L9,4.5 L0,9 z" fill="{LINE}"/></marker></defs>'
    )
    body = "\n".join([*(part.svg() for part in parts), *notes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>\n{head}\n'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


DRAWINGS = {
    DOCS / "design" / "architecture.svg": architecture,
    DOCS / "concepts" / "job-life.svg": job_life,
}


def main() -> int:
    """Write every drawing."""
    for path, draw in DRAWINGS.items():
        path.write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())

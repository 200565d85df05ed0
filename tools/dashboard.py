"""Write deploy/grafana/harn.json, a Grafana dashboard with a panel for every metric family.

    python -m tools.dashboard          # write it
    python -m tools.dashboard --check  # exit with 1 if it is not up to date

The first row has the numbers to look at first (`tools.dashboard_panels.STATS`). Below, it is made
from `harn.telemetry.metrics.FAMILIES`, a row for each concern: a new family gets its panel in the
row of its room, and its title in `TITLES`. Counters are shown as rates, histograms as quantiles,
gauges as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harn.telemetry.metrics import FAMILIES, Family
from tools.dashboard_panels import STATS, TITLES, Stat

FILE = Path(__file__).parent.parent / "deploy" / "grafana" / "harn.json"

ROWS = {
    "harn_worker_": "Worker queues",
    "harn_scheduler_": "Fair share",
    "harn_pool_": "Pools",
    "harn_trigger_": "Triggers",
    "harn_ratelimit_": "Rate limits",
    "harn_llm_": "Models",
    "harn_supervisor": "Supervisors",
    "": "Runtime and event log",
}
FROM_STORE = ("harn_worker_", "harn_scheduler_")
UNITS = {"_seconds": "s", "_seconds_total": "s", "_usd_total": "currencyUSD"}
WIDTH, HEIGHT, COLUMNS = 8, 7, 24
STAT_WIDTH, STAT_HEIGHT = 4, 4


def expressions(family: Family) -> list[tuple[str, str]]:
    """Return what to ask Prometheus about *family*, each with its legend."""
    # What is read from the store is the same in every process that reports it: take the largest.
    # What a process counts by itself adds up.
    over = "max" if family.name.startswith(FROM_STORE) else "sum"
    by = f" by ({', '.join(family.labels)})" if family.labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in family.labels) or family.name
    chosen = f"{family.name}{{{_selector()}}}"
    if family.kind == "counter":
        return [(f"{over}{by} (rate({chosen}[$__rate_interval]))", legend)]
    if family.kind == "histogram":
        buckets = f"rate({family.name}_bucket{{{_selector()}}}[$__rate_interval])"
        grouped = ", ".join(("le", *family.labels))
        return [
            (f"histogram_quantile({q}, {over} by ({grouped}) ({buckets}))", f"p{q[2:]} {legend}")
            for q in ("0.50", "0.99")
        ]
    return [(f"{over}{by} ({chosen})", legend)]


def _selector() -> str:
    return 'job=~"$job"'


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "harn",
        "uid": "harn",
        "tags": ["harn"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_source(), _job()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(harn_runtime_tasks, job)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    y, number = 0, 0
    rows = [("Now", [_stat(each) for each in STATS], STAT_WIDTH, STAT_HEIGHT)]
    rows += [(title, [_panel(f) for f in found], WIDTH, HEIGHT) for title, found in _by_row()]
    for title, panels, width, height in rows:
        number += 1
        yield {"type": "row", "id": number, "title": title, "gridPos": _at(0, y, COLUMNS, 1)}
        y += 1
        for place, panel in enumerate(panels):
            number += 1
            x = place * width % COLUMNS
            if place and x == 0:
                y += height
            yield {**panel, "id": number, "gridPos": _at(x, y, width, height)}
        y += height


def _stat(stat: Stat) -> dict[str, Any]:
    levels = [("green", None), ("orange", stat.warn), ("red", stat.bad)]
    steps = [{"color": c, "value": v} for c, v in levels if c == "green" or v is not None]
    return {
        "type": "stat",
        "title": stat.title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "fieldConfig": {
            "defaults": {
                "unit": stat.unit,
                "noValue": "0",
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        "targets": [{"refId": "A", "expr": stat.expr, "legendFormat": stat.title}],
    }


def _by_row() -> Iterator[tuple[str, list[Family]]]:
    left = dict(FAMILIES)
    for prefix, title in ROWS.items():
        found = [left.pop(name) for name in list(left) if name.startswith(prefix)]
        if found:
            yield title, found


def _panel(family: Family) -> dict[str, Any]:
    unit = next((unit for end, unit in UNITS.items() if family.name.endswith(end)), "short")
    if family.kind == "counter" and unit == "short":
        unit = "cps"
    return {
        "type": "timeseries",
        "title": TITLES[family.name],
        "description": f"{family.name}: {family.meaning}",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + place), "expr": expr, "legendFormat": legend}
            for place, (expr, legend) in enumerate(expressions(family))
        ],
    }


def _at(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> int:
    """Write the dashboard, or with `--check` compare it."""
    if "--check" in sys.argv[1:]:
        same = FILE.exists() and FILE.read_text() == text()
        print("up to date" if same else f"{FILE.name} is old: python -m tools.dashboard")
        return 0 if same else 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Draw a results file: `plot.py '{"results": PATH, "into": DIRECTORY, "curves": …, "ratios": …}'`.

*curves* has the file of each contest's curve; *ratios* has for each file its title and its rows,
each a label and our cost as a multiple of the peer's.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker

WHAT = json.loads(sys.argv[1])
OURS, QUICKER, SLOWER = "harn", "#1f77b4", "#d95f02"
ALONG = {
    "backlog": "ready jobs in the queue",
    "keys": "tenants with ready jobs",
    "live": "live reservations in the window",
}


def save(figure, name):
    figure.tight_layout()
    figure.savefig(f"{WHAT['into']}/{name}", metadata={"Software": None})
    pyplot.close(figure)


def draw_curves(outcomes):
    curves = {}
    for each in outcomes:
        if each.get("series") and each.get("size"):
            curve = curves.setdefault(each["contest"], {}).setdefault(each["series"], [])
            curve.append((each["size"], each["median"], min(each["samples"]), max(each["samples"])))
    for contest, series in curves.items():
        figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
        for name, points in series.items():
            sizes, medians, least, most = zip(*sorted(points), strict=True)
            color = QUICKER if name.startswith(OURS) else SLOWER
            axes.plot(sizes, medians, marker="o", label=name, color=color)
            axes.fill_between(sizes, least, most, alpha=0.15, color=color)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda size, _: f"{size:,.0f}"))
        axes.set_ylim(bottom=0)
        axes.set_title(contest)
        along = contest.rpartition(", by ")[2]
        axes.set_xlabel(ALONG.get(along, along))
        axes.set_ylabel("µs of processor time")
        axes.grid(alpha=0.3)
        axes.legend()
        save(figure, WHAT["curves"][contest])


def draw_ratios(name, title, rows):
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.21 * len(rows)), dpi=110)
    places = range(len(rows), 0, -1)
    for place, (_, ratio) in zip(places, rows, strict=True):
        color = QUICKER if ratio <= 1 else SLOWER
        axes.plot((1, ratio), (place, place), color=color, alpha=0.4, linewidth=3)
        axes.plot(ratio, place, marker="o", color=color)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.set_yticks(list(places), [label for label, _ in rows], fontsize=9)
    axes.set_ylim(0.4, len(rows) + 0.6)
    axes.set_title(title)
    axes.set_xlabel("our cost as a multiple of theirs; left of the line we are quicker")
    axes.grid(alpha=0.3, axis="x")
    save(figure, name)


with open(WHAT["results"], encoding="utf-8") as file:
    draw_curves(json.load(file)["outcomes"])
for name, (title, rows) in WHAT["ratios"].items():
    draw_ratios(name, title, rows)
print(json.dumps({"us": 0}))

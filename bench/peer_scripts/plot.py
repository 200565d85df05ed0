"""Draw the curves of a results file: `plot.py '{"results": PATH, "into": DIRECTORY}'`."""

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

WHAT = json.loads(sys.argv[1])
with open(WHAT["results"], encoding="utf-8") as file:
    RESULTS = json.load(file)

curves = {}
for each in RESULTS["outcomes"]:
    if each.get("series") and each.get("size"):
        curve = curves.setdefault(each["contest"], {}).setdefault(each["series"], [])
        curve.append((each["size"], each["median"], min(each["samples"]), max(each["samples"])))

names = WHAT["names"]
for contest, series in curves.items():
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
    for name, points in series.items():
        sizes, medians, least, most = zip(*sorted(points), strict=True)
        (line,) = axes.plot(sizes, medians, marker="o", label=name)
        axes.fill_between(sizes, least, most, alpha=0.15, color=line.get_color())
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_title(contest)
    axes.set_ylabel("µs of processor time")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(f"{WHAT['into']}/{names[contest]}", metadata={"Software": None})
    pyplot.close(figure)
print(json.dumps({"us": 0}))

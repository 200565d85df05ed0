"""The dashboard is made from the registry of families: nothing in it is made up or missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tools.dashboard import FILE, ROWS, expressions, text
from tools.dashboard_panels import STATS, TITLES

from harn.telemetry.metrics import FAMILIES

NAME = re.compile(r"\bharn_\w+")
WORDS = {"sum", "by", "max", "rate", "histogram_quantile", "le", "job"}


def panels() -> list[dict[str, Any]]:
    return [each for each in json.loads(FILE.read_text())["panels"] if each["type"] != "row"]


def series() -> set[str]:
    """Every name that a scrape can return."""
    found = set()
    for family in FAMILIES.values():
        if family.kind == "histogram":
            found |= {f"{family.name}{end}" for end in ("_bucket", "_sum", "_count")}
        else:
            found.add(family.name)
    return found


def test_the_dashboard_is_up_to_date() -> None:
    assert FILE.read_text() == text(), "python -m tools.dashboard"


def test_every_expression_names_a_real_family() -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]

    assert asked
    for expression in asked:
        names = NAME.findall(expression)
        assert names, expression
        assert set(names) <= series(), expression


def test_every_family_has_its_panel() -> None:
    graphs = [panel for panel in panels() if panel["type"] == "timeseries"]
    shown = {panel["description"].partition(":")[0] for panel in graphs}

    assert shown == set(FAMILIES) == set(TITLES)


def test_titles_are_words_and_no_two_are_the_same() -> None:
    titles = [panel["title"] for panel in panels()]

    assert len(set(titles)) == len(titles)
    for title in titles:
        assert re.fullmatch(r"[A-Z][\w ,()']*", title), title
        assert "_" not in title


def test_the_first_row_has_the_numbers_of_now_and_each_concern_a_row_below() -> None:
    first, *others = json.loads(FILE.read_text())["panels"]
    rows = [each["title"] for each in (first, *others) if each["type"] == "row"]
    stats = [each["title"] for each in others[: len(STATS)]]

    assert rows == ["Now", *ROWS.values()]
    assert stats == [stat.title for stat in STATS]
    assert {each["type"] for each in others[: len(STATS)]} == {"stat"}


@pytest.mark.parametrize("stat", STATS, ids=lambda stat: stat.title)
def test_a_number_selects_by_labels_that_its_family_has(stat: Any) -> None:
    [*names] = NAME.findall(stat.expr)
    labels = {label for name in names for label in FAMILIES[name].labels}
    asked = re.sub(r'"[^"]*"|\$\w+|harn_\w+|\[\w+\]', "", stat.expr)

    assert set(re.findall(r"[a-z_]+", asked)) - WORDS - {"increase"} <= labels
    assert stat.expr.count("(") == stat.expr.count(")")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda each: each.name)
def test_expressions_group_by_labels_that_the_family_has(family: Any) -> None:
    shown = expressions(family)

    assert shown
    for expression, legend in shown:
        words = set(re.findall(r"[a-z_]+", re.sub(r'"[^"]*"|\$\w+|harn_\w+', "", expression)))
        assert words - WORDS <= set(family.labels), expression
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= set(family.labels)
        assert expression.count("(") == expression.count(")")


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()

    assert panels()
    for panel in json.loads(FILE.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_what_is_scraped_is_what_the_dashboard_asks_for(tmp_path: Path) -> None:
    import harn
    from harn.telemetry.metrics import Metrics

    async def scrape() -> str:
        return harn.current_runtime().service(Metrics).exposition()

    declared = set(re.findall(r"^# TYPE (\w+)", harn.run(scrape), re.MULTILINE))

    assert declared == {family.name for family in FAMILIES.values()}

"""The site as a whole: every page can be found, and what pages name exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from tools.diagrams import DRAWINGS

import harn
from harn.telemetry.metrics import FAMILIES
from harn.workers.job_state import Status

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def in_navigation(items: list[Any]) -> list[str]:
    found: list[str] = []
    for item in items:
        for value in item.values() if isinstance(item, dict) else [item]:
            found += in_navigation(value) if isinstance(value, list) else [value]
    return found


def test_the_navigation_lists_every_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]

    assert sorted(in_navigation(nav)) == PAGES


@pytest.mark.parametrize("page", [page for page in PAGES if page != "index.md"])
def test_the_first_page_and_the_readme_lead_to_every_page(page: str) -> None:
    assert f"({page})" in (DOCS / "index.md").read_text()
    assert f"(docs/{page})" in (ROOT / "README.md").read_text()


def test_the_api_page_lists_every_public_name_and_no_other() -> None:
    page = (DOCS / "reference" / "api.md").read_text()

    listed = re.findall(r"^### `(\w+)`$", page, re.MULTILINE)

    assert sorted(listed) == list(harn.__all__), "python -m tools.api"


@pytest.mark.parametrize("page", ["guarantees.md", "design/threat-model.md"])
def test_every_test_that_a_promise_names_exists(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text()))
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in written] == []


def test_no_page_promises_exactly_once() -> None:
    denied = re.compile(r"(not|never|nobody|no)\b[^.]*exactly once", re.IGNORECASE)
    mentions = [
        f"{page.name}: {' '.join(sentence.split())}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for sentence in re.split(r"(?<=[.:;])\s", page.read_text())
        if "exactly once" in " ".join(sentence.lower().split())
    ]

    assert mentions
    assert [each for each in mentions if not denied.search(each)] == []


def test_every_concept_with_a_life_draws_it() -> None:
    for name in ("tasks", "pools", "channels", "worker-queues", "triggers", "supervisors"):
        page = (DOCS / "concepts" / f"{name}.md").read_text()
        assert re.search(r"─+▶|\.svg\)", page), f"{name}.md draws no states"


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_up_to_date_and_on_a_page_with_its_words(path: Path) -> None:
    shown = re.findall(rf"!\[([^\]]+)\]\({path.name}\)", _pages_beside(path))

    assert path.read_text() == DRAWINGS[path](), "python -m tools.diagrams"
    assert shown


def _pages_beside(path: Path) -> str:
    return "".join(page.read_text() for page in path.parent.glob("*.md"))


def test_the_drawing_of_the_architecture_has_every_room_of_the_picture() -> None:
    page = (DOCS / "design" / "architecture.md").read_text()
    picture = page.partition("## The picture")[2].split("```")[1].partition(" ground")[0]
    rooms = set(re.findall(r"[a-z]+", picture)) - {"in", "this", "process", "survives"}
    drawn = set(re.findall(r">(\w+)</text>", (DOCS / "design" / "architecture.svg").read_text()))

    assert rooms <= drawn


def test_the_drawing_of_a_jobs_life_has_every_status() -> None:
    drawn = (DOCS / "concepts" / "job-life.svg").read_text()

    words = set(re.findall(r">([^<]+)</text>", drawn))
    assert {status.replace("_", " ") for status in get_args(Status)} <= words


def test_no_page_needs_a_script_from_elsewhere_to_be_seen() -> None:
    pages = {page: page.read_text() for page in DOCS.rglob("*.md")}

    assert pages
    assert [page for page, text in pages.items() if "```mermaid" in text] == []


def test_every_label_has_its_bound_on_the_metrics_page() -> None:
    bounds = (DOCS / "reference" / "metrics.md").read_text().partition("## Bounds")[2]
    listed = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]*) \|", bounds, re.M))))

    assert listed == {label for family in FAMILIES.values() for label in family.labels}


def glossary() -> list[str]:
    page = (DOCS / "reference" / "glossary.md").read_text()
    return re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)[1:]


def test_the_glossary_is_in_order_and_each_term_is_there_once() -> None:
    terms = glossary()

    assert len(terms) > 90
    assert terms == sorted(set(terms), key=str.casefold)


def test_the_glossary_and_the_map_of_files_have_the_same_terms() -> None:
    """What begins with "a" in the map is no term: it says what a file decides."""
    page = (DOCS / "design" / "architecture.md").read_text()
    rows = page.partition("## Which file holds a term")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([^|`]+) \| `", rows, re.MULTILINE)
    mapped = [term for cell in cells for term in cell.split(", ") if not term.startswith("a ")]

    assert sorted(mapped) == sorted(glossary())


def test_every_file_that_the_map_of_terms_names_exists() -> None:
    page = (DOCS / "design" / "architecture.md").read_text()
    rows = page.partition("## Which file holds a term")[2].partition("\n## ")[0]

    named = set(re.findall(r"`([a-z_/0-9]+\.py)`", rows)) - {"__init__.py"}

    assert named
    assert [name for name in sorted(named) if not (ROOT / "src" / "harn" / name).is_file()] == []

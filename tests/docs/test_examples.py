"""Examples that a person would run: each says what to look at, and the notebooks are executed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[str]:
    document = json.loads(notebook.read_text())
    return ["".join(c["source"]) for c in document["cells"] if c["cell_type"] == kind]


async def run_cell(code: str, where: str, names: dict[str, Any]) -> Any:
    """Run a cell as a kernel does: `await` at its top, the last expression is its value."""
    tree = ast.parse(code, where)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    for part, mode in ((tree, "exec"), (last, "eval")):
        if part is not None:
            compiled = compile(part, where, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            value = eval(compiled, names)
            value = await value if inspect.iscoroutine(value) else value
    return value if last is not None else None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(notebook: Path) -> None:
    async def everything() -> list[Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        return [
            await run_cell(code, f"{notebook.name}:{number}", names)
            for number, code in enumerate(cells(notebook, "code"))
        ]

    values = asyncio.run(everything())

    shown = [value for value in values if value is not None]
    assert shown
    for value in shown:
        if hasattr(value, "_repr_html_"):
            assert value._repr_html_().startswith("<table>")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_says_what_to_look_at(notebook: Path) -> None:
    document = json.loads(notebook.read_text())

    assert document["nbformat"] == 4
    assert "Look at" in cells(notebook, "markdown")[0]
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it_and_what_happens(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]

    assert f"python examples/{path.name}" in text
    assert len(paragraphs) >= 3, "a sentence, how to run it, what to look at"


def test_the_cookbook_lists_every_example() -> None:
    page = (EXAMPLES.parent / "docs" / "how-to" / "cookbook.md").read_text()

    for path in [*EXAMPLES.glob("*.py"), *NOTEBOOKS, *EXAMPLES.glob("*/harn.toml")]:
        assert str(path.relative_to(EXAMPLES.parent)) in page, path

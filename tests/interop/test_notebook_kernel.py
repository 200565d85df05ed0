"""A real kernel, as a notebook uses it: each cell is a task of its own, on one event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs the group `interop`")
nbformat = pytest.importorskip("nbformat", reason="needs the group `interop`")
pytest.importorskip("ipykernel", reason="needs the group `interop`")

NOTEBOOKS = Path(__file__).parent.parent.parent / "examples" / "notebooks"


def run_cells(*cells: str, where: Path) -> list[Any]:
    """Run *cells* in a new kernel in *where*; return what each shows last, or its error."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells]
    )
    place = {"metadata": {"path": str(where)}}
    nbclient.NotebookClient(notebook, timeout=60, allow_errors=True, resources=place).execute()
    return [shown(cell.outputs[-1]) if cell.outputs else None for cell in notebook.cells]


def shown(output: Any) -> str:
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    return str(output.get("text") or output.data["text/plain"])


def test_a_runtime_that_one_cell_opens_is_found_in_the_next(tmp_path: Path) -> None:
    seen = run_cells(
        "import asyncio, harn",
        "runtime = await harn.Runtime(state_dir='state').__aenter__()",
        "harn.current_runtime() is runtime",
        "(await harn.worker_queue('jobs').enqueue(1)).durability",
        "await harn.spawn(lambda: harn.from_thread(harn.worker_queue('jobs').summary))",
        "await runtime.aclose()",
        "async with harn.Runtime(state_dir='state'):\n"
        "    print((await harn.worker_queue('jobs').job(1)).payload)",
        where=tmp_path,
    )

    assert seen[:4] == [None, None, "True", "'full'"]
    assert "ready=1" in seen[4]
    assert seen[5:] == [None, "1\n"]


def test_run_in_a_cell_says_what_to_write_instead(tmp_path: Path) -> None:
    [_, told, instead] = run_cells(
        "import harn\nasync def main(): return 41",
        "harn.run(main)",
        "async with harn.Runtime():\n    found = await main()\nfound",
        where=tmp_path,
    )

    assert told.startswith("HarnError: harn.run starts an event loop, and one runs here already")
    assert "`async with harn.Runtime(...): await main()`" in told
    assert instead == "41"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_an_example_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)

    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, resources=place).execute()

    told = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert told
    assert [shown(each) for each in told if each.output_type == "error"] == []

"""The table of `make mutants` fits the code; whether each is caught, `make mutants` says."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tools.mutants import TABLE, Mutant, TableError
from tools.mutants.runner import run


def mutant(**changes: object) -> Mutant:
    given = {
        "name": "yes-is-no",
        "file": "answer.py",
        "old": "return True",
        "new": "return False",
        "tests": ("test_answer.py::test_it_says_yes",),
        "why": "the answer is wrong",
    }
    return Mutant(**(given | changes))  # type: ignore[arg-type]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with one answer, one test that checks it and one that does not."""
    (tmp_path / "src" / "harn").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src"]\n')
    (tmp_path / "src" / "harn" / "answer.py").write_text("def answer():\n    return True\n")
    (tmp_path / "tests" / "test_answer.py").write_text(
        "from pathlib import Path\n\n"
        "TEXT = Path('src/harn/answer.py').read_text()\n\n"
        "def test_it_says_yes():\n    assert 'True' in TEXT\n\n"
        "def test_it_says_something():\n    assert TEXT\n\n"
        "def test_it_is_broken():\n    assert not TEXT\n"
    )
    return tmp_path


@pytest.mark.parametrize("each", TABLE, ids=lambda each: each.name)
def test_a_mutant_fits_the_code_once_and_names_real_tests(each: Mutant, root: Path) -> None:
    changed = each.applied(root)

    each.check_tests(root)
    assert changed != each.path(root).read_text()


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(each.name for each in TABLE).items() if count > 1]


def test_a_change_is_caught_by_a_test_that_fails_and_survives_one_that_passes(tree: Path) -> None:
    caught = mutant()
    survivor = mutant(name="unseen", tests=("test_answer.py::test_it_says_something",))

    verdicts = {
        each.mutant.name: each for each in run([caught, survivor], tree, workers=1, limit=60)
    }

    assert verdicts["yes-is-no"].outcome == "caught"
    assert "test_it_says_yes" in verdicts["yes-is-no"].detail
    assert verdicts["unseen"].outcome == "survived"
    assert ast.parse((tree / "src" / "harn" / "answer.py").read_text())


def test_a_test_that_fails_anyway_catches_nothing(tree: Path) -> None:
    broken = mutant(tests=("test_answer.py::test_it_is_broken",))

    [verdict] = run([broken], tree, workers=1, limit=60)

    assert verdict.outcome == "error"
    assert "without the change" in verdict.detail


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"old": "return Maybe"}, "occurs 0 times"),
        ({"old": "r"}, "occurs 4 times"),
        ({"file": "question.py"}, "there is no src/harn/question.py"),
        ({"new": "return )"}, "no Python"),
        ({"tests": ()}, "no test is named"),
        ({"tests": ("test_answer.py::test_it_says_no",)}, "has no test_it_says_no"),
        ({"tests": ("test_question.py",)}, "there is no tests/test_question.py"),
    ],
)
def test_a_table_that_does_not_fit_is_an_error(
    tree: Path, changes: dict[str, Any], said: str
) -> None:
    wrong = mutant(**changes)

    with pytest.raises(TableError, match=said):
        wrong.applied(tree)
        wrong.check_tests(tree)

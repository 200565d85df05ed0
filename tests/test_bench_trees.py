"""Two trees' benches beside each other: a row is worse only beyond its own spread and the drift."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tools.bench_trees import Row, drift, main, matched, worse

STEADY = (100.0, 101.0, 99.0)


def row(now: tuple[float, ...], contestant: str = "harn pool", contest: str = "a no-op") -> Row:
    return Row(("pools", contest, contestant), STEADY, now)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((100.5, 100.0, 101.0), False),  # as before
        ((110.0, 111.0, 109.0), True),  # 10 % slower, rounds differ by 1 %
        ((110.0, 140.0, 109.0), False),  # its rounds differ by more
        ((90.0, 91.0, 89.0), False),  # faster
    ],
)
def test_a_row_is_worse_only_beyond_its_own_spread(now: tuple[float, ...], expected: bool) -> None:
    assert bool(worse([row(now)])) is expected


def test_what_the_bare_contestant_lost_too_is_the_machine() -> None:
    slower = row((110.0, 111.0, 109.0))
    bare = row((112.0, 112.0, 112.0), "bare create_task loop")

    assert drift([slower, bare], "pools", "a no-op") == pytest.approx(1.12)
    assert worse([slower, bare]) == []


def test_a_contest_without_a_bare_contestant_uses_those_of_its_subject() -> None:
    bare = row((112.0, 112.0, 112.0), "bare create_task loop", contest="another")

    assert drift([row(STEADY), bare], "pools", "a no-op") == pytest.approx(1.12)
    assert drift([row(STEADY)], "pools", "a no-op") == 1.0


def test_a_faster_machine_does_not_make_a_steady_row_worse() -> None:
    assert worse([row(STEADY), row((80.0, 80.0, 80.0), "asyncio Lock")]) == []


def test_a_peer_in_the_same_contest_is_never_worse() -> None:
    assert worse([row((140.0, 141.0, 139.0), "pyrate-limiter, 10 live")]) == []


def test_only_rows_of_both_trees_are_compared() -> None:
    one, two = ("pools", "a", "harn"), ("pools", "b", "harn")

    assert [each.key for each in matched({one: [1.0]}, {one: [2.0], two: [1.0]})] == [one]


def tree(path: Path, samples: list[float]) -> Path:
    """Return a checkout whose bench writes *samples* and counts its runs."""
    (path / ".venv" / "bin").mkdir(parents=True)
    (path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (path / "bench" / "results").mkdir(parents=True)
    row = {"subject": "pools", "contest": "a no-op", "contestant": "harn", "samples": samples}
    (path / "bench" / "__main__.py").write_text(
        "import pathlib\n"
        "here = pathlib.Path(__file__).parent / 'results'\n"
        f"(here / 'latest.json').write_text({json.dumps({'outcomes': [row]})!r})\n"
        "with (here / 'runs').open('a') as runs: runs.write('x')\n"
    )
    return path


def test_the_command_runs_both_trees_in_turns_and_names_the_worse_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, now = tree(tmp_path / "before", [10.0]), tree(tmp_path / "now", [12.0])
    monkeypatch.setattr("tools.bench_trees.HERE", now)

    code = main([str(before), "pools", "--turns", "3"])

    said = capsys.readouterr()
    assert code == 1
    assert "| pools | a no-op | harn | 10 | 12 | 1.20 | 0% | 1.00 | worse |" in said.out
    assert "1 of 1 rows are worse" in said.err
    assert [(each / "bench/results/runs").read_text() for each in (before, now)] == ["xxx", "xxx"]


def test_the_results_that_the_bench_page_is_made_from_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = [tree(tmp_path / "before", [10.0]), tree(tmp_path / "now", [10.0])]
    recorded = [each / "bench" / "results" / "latest.json" for each in trees]
    for each in recorded:
        each.write_text("recorded")
    monkeypatch.setattr("tools.bench_trees.HERE", trees[1])

    assert main([str(trees[0]), "pools", "--turns", "1"]) == 0

    assert [each.read_text() for each in recorded] == ["recorded", "recorded"]


def test_a_subject_that_fails_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, now = tree(tmp_path / "before", [10.0]), tree(tmp_path / "now", [12.0])
    (before / "bench" / "__main__.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr("tools.bench_trees.HERE", now)

    assert main([str(before), "pools", "--turns", "1"]) == 2  # no row says that all is well

    said = capsys.readouterr().err
    assert "exit 3, left out" in said
    assert "only now: pools, a no-op, harn" in said

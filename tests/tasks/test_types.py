"""What a type checker makes of the tasks room: result types flow."""

from __future__ import annotations

from pathlib import Path

import pytest

RIGHT = """
import functools
from typing import assert_type

import harn


async def length(text: str, extra: int = 0) -> int:
    return len(text) + extra


def half(n: int) -> float:
    return n / 2


async def result(n: int) -> harn.Ok[str] | harn.Err[int]:
    return harn.Ok(str(n))


async def main() -> None:
    assert_type(harn.spawn(length, "a"), harn.TaskHandle[int])
    assert_type(harn.spawn(length, "a", 1, name="n"), harn.TaskHandle[int])
    assert_type(harn.spawn(half, 3, isolation="process"), harn.TaskHandle[float])
    assert_type(harn.spawn(functools.partial(length, "a")), harn.TaskHandle[int])
    assert_type(harn.spawn(lambda: 3), harn.TaskHandle[int])
    assert_type(await harn.spawn(half, 3), float)
    async with harn.scope() as s:
        assert_type(s.spawn(length, "a"), harn.TaskHandle[int])
    assert_type(await harn.parallel(3, half), list[float])
    assert_type(await harn.parallel_each(["a"], length), list[int])
    assert_type(await harn.parallel_settle([1], half), harn.Settled[float])
    assert_type(await harn.parallel_race([1], half), float)
    assert_type(await harn.parallel_race([1], result), str)
    assert_type(harn.parallel_each_stream([1], half), harn.ParallelStream[float])
    assert_type(await harn.retry(3, lambda: 1), int | None)
    outcome = await harn.cancel_graceful(harn.spawn(half, 3))
    if harn.is_ok(outcome):
        assert_type(harn.unwrap(outcome), float)
    owned: harn.Owned[str] = harn.owned("text")
    assert_type(harn.disown(owned), str)
"""

WRONG = """
import harn


async def length(text: str) -> int:
    return len(text)


async def main() -> None:
    harn.spawn(length, 3)
    harn.spawn(length)
    harn.spawn(length, "a", isolation="loop")
    await harn.parallel_each([1], length)
"""


def test_result_types_flow_and_wrong_arguments_are_seen(tmp_path: Path, root: Path) -> None:
    api = pytest.importorskip("mypy.api")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    wrong.write_text(WRONG)
    # A cache of its own: another mypy may be at work on the project's.
    options = ["--strict", "--no-error-summary", "--cache-dir", str(root / ".mypy_cache" / "tests")]
    config = ["--config-file", str(root / "pyproject.toml")]

    out, _, _ = api.run([*options, *config, str(right), str(wrong)])

    errors = [line.split(":")[:2] for line in out.splitlines() if ": error:" in line]
    assert [line for path, line in errors if Path(path).name == "right.py"] == []
    assert {int(line) for _, line in errors} == {10, 11, 12, 13}

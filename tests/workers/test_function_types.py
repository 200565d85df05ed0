"""What a type checker makes of `submit`: the function's arguments and result flow."""

from __future__ import annotations

from pathlib import Path

import pytest

RIGHT = """
import functools
from typing import assert_type

import harn


@harn.durable
async def length(text: str, extra: int = 0) -> int:
    return len(text) + extra


@harn.durable(name="half", retry=harn.RetryPolicy(give_up_on=(KeyError,)), timeout="5s")
def half(n: int) -> float:
    return n / 2


async def main(queue: harn.WorkerQueue) -> None:
    assert_type(await queue.submit(length, "a"), harn.EnqueueReceipt[int])
    assert_type(await queue.submit(length, "a", 1, priority="high"), harn.EnqueueReceipt[int])
    receipt = await queue.submit(half, 3, tenant_id="acme", not_before="5m", max_attempts=3)
    assert_type(await receipt.result(timeout="5s"), float)
    keywords = await queue.submit(functools.partial(length, "a", extra=1), cost=2)
    assert_type(await keywords.result(), int)
    await harn.drain("q")
    await harn.drain("q", retry=harn.RetryPolicy(backoff="5s"))
"""

WRONG = """
import harn


@harn.durable
async def length(text: str) -> int:
    return len(text)


async def main(queue: harn.WorkerQueue) -> None:
    await queue.submit(length, 3)
    await queue.submit(length)
    await queue.submit(length, "a", prioritty="high")
    await queue.submit(length, "a", max_attempts="3")
"""


def test_a_submitted_functions_types_flow(tmp_path: Path, root: Path) -> None:
    api = pytest.importorskip("mypy.api")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    wrong.write_text(WRONG)
    # A cache of its own: another mypy may be at work on the project's.
    options = ["--strict", "--no-error-summary", "--cache-dir", str(root / ".mypy_cache" / "tests")]
    config = ["--config-file", str(root / "pyproject.toml")]

    out, _, _ = api.run([*options, *config, str(right), str(wrong)])

    errors = [line.split(":")[:2] for line in out.splitlines() if ": error:" in line]
    assert [line for path, line in errors if Path(path).name == "right.py"] == [], out
    assert {int(line) for _, line in errors} == {11, 12, 13, 14}

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

USER_TESTS = """
import asyncio
from harn import current_runtime, sleep

async def test_a_clock_and_a_runtime(harn_runtime, harn_clock):
    assert current_runtime() is harn_runtime
    reminder = asyncio.ensure_future(sleep("5m"))
    await harn_clock.advance("5m")
    assert reminder.done()

def test_virtual_time(harn_run):
    async def a_day():
        await asyncio.sleep(86_400)
        return "done"
    assert harn_run(a_day) == "done"

def test_nothing_is_imposed(request):
    assert not [name for name in request.fixturenames if name.startswith("harn")]
"""


def test_the_fixtures_work_in_another_project(pytester: pytest.Pytester) -> None:
    Path("test_users.py").write_text(USER_TESTS)

    done = pytester.runpytest_subprocess("-p", "asyncio", "--asyncio-mode=auto", "-n", "0")

    done.assert_outcomes(passed=3)


def test_they_are_there_without_pytest_asyncio(pytester: pytest.Pytester) -> None:
    Path("test_users.py").write_text(USER_TESTS)

    done = pytester.runpytest_subprocess("-p", "no:asyncio", "-k", "virtual or imposed")

    done.assert_outcomes(passed=2, deselected=1)

"""What notebooks show of things: plain tables in which no name is markup."""

from __future__ import annotations

import re

import pytest

import harn
from harn import pool_create
from harn.telemetry.html import LONGEST, html_table, shown

NASTY = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [NASTY, [NASTY], {NASTY: 1}, Rude(), None, 7])
def test_no_value_becomes_markup(value: object) -> None:
    text = shown(value)

    assert not re.search(r"[<>\"'\x1b\u202e]", text)


def test_long_values_and_many_rows_are_cut() -> None:
    text = html_table("many", ["n"], [["x" * 10_000]] * 1000)

    assert len(text) < 60 * (LONGEST + 50)
    assert "50 of 1000 rows" in text


async def test_a_pool_and_its_snapshots_show_themselves_escaped() -> None:
    pool = await pool_create(name=NASTY[:20])
    task = await pool.submit(lambda: NASTY, customer=NASTY[:10], key="<b>")
    await task.wait()

    for thing in (pool, pool.snapshot(), task.snapshot()):
        page = thing._repr_html_()
        assert page.startswith("<table>")
        assert "<img" not in page
        assert "<b>" not in page
        assert page.count("<table>") == page.count("</table>")


async def test_a_closed_pool_still_shows_itself() -> None:
    pool = await pool_create(name="done")
    await pool.close()

    assert "done" in pool._repr_html_()


def test_a_pool_of_another_runtime_shows_at_least_its_name() -> None:
    async def make() -> harn.Pool:
        return await pool_create(name="elsewhere")

    pool = harn.run(make)

    assert "elsewhere" in pool._repr_html_()

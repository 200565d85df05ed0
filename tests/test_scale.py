"""The tool that measures how cost grows works on stores that hold what it says they hold."""

from __future__ import annotations

import asyncio

from tools import scale

import harn


def test_settled_jobs_that_were_put_in_by_sql_are_read_like_others() -> None:
    with scale.store("sqlite") as url:
        asyncio.run(scale.prepare_settled(url))
        scale.settle("sqlite", url, 2_000)

        async def read() -> tuple[int, list[str]]:
            async with harn.Runtime(storage=url):
                queue = harn.worker_queue("q")
                jobs = [await queue.job(id) for id in (1, 1_000, 2_000)]
                return (await queue.summary()).ready, [job.status for job in jobs if job]

        assert asyncio.run(read()) == (0, ["acked", "dead", "dead"])

        found = asyncio.run(scale.among_settled(url, 2_000))

    assert all(cost > 0 for cost in found.values())
    assert found.keys() == {"open", "enter", "drain", "job", "page"}


def test_a_table_has_a_head_and_a_line_for_each_point() -> None:
    rows = iter([{"keys": "10", "drain": "64"}, {"keys": "100", "drain": "128"}])

    assert list(scale.table(rows)) == [
        "| keys | drain |",
        "|---:|---:|",
        "| 10 | 64 |",
        "| 100 | 128 |",
    ]

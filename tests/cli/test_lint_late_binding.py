"""HARN-SUB-001: a closure submitted in a loop must not see what the loop changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harn.cli import invoke
from harn.cli.lint_rules import check_source

HEAD = "import harn\nfrom harn import spawn, scope, defer, pool_create\n"


def found(body: str, head: str = HEAD) -> list[str]:
    """The code of every finding in an async function with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    source = f"{head}async def main(pool, customers, s):\n{lines}"
    return [each.code for each in check_source(source)]


LATE = {
    "a lambda": "for c in customers:\n    await pool.submit(lambda: report(c))",
    "without waiting": "for c in customers:\n    pool.submit_nowait(lambda: report(c))",
    "kept in a list": "for c in customers:\n    tasks.append(await pool.submit(lambda: report(c)))",
    "an async for": "async for c in customers:\n    await pool.submit(lambda: report(c))",
    "unpacked": "for n, (a, c) in customers:\n    await pool.submit(lambda: report(c))",
    "made in the loop": "for r in rows:\n    c = r.name\n    await pool.submit(lambda: report(c))",
    "a while loop": "while c := find():\n    await pool.submit(lambda: report(c))",
    "an attribute of it": "for c in customers:\n    await pool.submit(lambda: report(c.name))",
    "an outer loop": "for c in x:\n  for n in y:\n    await pool.submit(lambda: report(c))",
    "in a condition": "for c in x:\n    if c:\n        await pool.submit(lambda: report(c))",
    "a function": (
        "for c in customers:\n    async def work():\n        return await report(c)\n"
        "    await pool.submit(work)"
    ),
    "a comprehension": "tasks = [await pool.submit(lambda: report(c)) for c in customers]",
    "gathered": "await gather(*[pool.submit(lambda: report(c)) for c in customers])",
    "many": "await pool.submit_many([lambda: report(c) for c in customers])",
    "many, generated": "await pool.submit_many((lambda: report(c)) for c in customers)",
    "many in a loop": "for c in customers:\n    await pool.submit_many([lambda: report(c)])",
    "spawned": "for c in customers:\n    spawn(lambda: report(c))",
    "spawned by the module": "for c in customers:\n    harn.spawn(lambda: report(c))",
    "spawned in a scope": "for c in customers:\n    s.spawn(lambda: report(c))",
    "deferred": "for f in files:\n    defer(lambda: f.close())",
    "another default": "for c in customers:\n    await pool.submit(lambda n=1: report(c))",
    "the scope is outside": (
        "async with scope() as s:\n    for c in customers:\n        s.spawn(lambda: report(c))"
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_a_closure_that_sees_the_end_of_the_loop_is_found(case: str) -> None:
    assert found(LATE[case]) == ["HARN-SUB-001"], case


FINE = {
    "arguments": "for c in customers:\n    await pool.submit(report, c)",
    "a default": "for c in customers:\n    await pool.submit(lambda c=c: report(c))",
    "a partial": "for c in customers:\n    await pool.submit(partial(report, c))",
    "a tuple": "await pool.submit_many((report, c) for c in customers)",
    "another name": "for c in customers:\n    await pool.submit(lambda: report(pool))",
    "no loop": "c = find()\nawait pool.submit(lambda: report(c))",
    "after the loop": "for c in customers:\n    pass\nawait pool.submit(lambda: report(c))",
    "its own comprehension": (
        "for c in customers:\n    await pool.submit(lambda: [c for c in names])"
    ),
    "awaited at once": "for c in customers:\n    await (await pool.submit(lambda: report(c)))",
    "waited for at once": (
        "for c in customers:\n    await (await pool.submit(lambda: report(c))).wait()"
    ),
    "awaited in the turn": (
        "for c in names:\n    task = await pool.submit(lambda: report(c))\n    print(await task)"
    ),
    "spawned and awaited": "for c in customers:\n    await spawn(lambda: report(c))",
    "the last turn": (
        "for c in names:\n    if c:\n        await pool.submit(lambda: report(c))\n        break"
    ),
    "returned": "for c in customers:\n    return await pool.submit(lambda: report(c))",
    "the pool ends with the turn": (
        "for c in customers:\n    async with await pool_create() as pool:\n"
        "        await pool.submit(lambda: report(c))"
    ),
    "the scope ends with the turn": (
        "for c in customers:\n    async with scope():\n        spawn(lambda: report(c))"
    ),
    "a function of its own": (
        "for c in customers:\n    def later(c=c):\n        pool.submit_nowait(lambda: report(c))"
    ),
    "a function with a parameter": (
        "for c in customers:\n    def work(c=c):\n        return report(c)\n"
        "    await pool.submit(work)"
    ),
    "silenced": (
        "for c in customers:\n    await pool.submit(lambda: report(c))  # noqa: HARN-SUB-001"
    ),
    "another verb": "for c in customers:\n    pool.map(lambda: report(c))",
}


@pytest.mark.parametrize("case", FINE)
def test_a_closure_that_is_bound_in_time_is_left_alone(case: str) -> None:
    assert found(FINE[case]) == []


def test_a_module_without_harn_is_not_ours() -> None:
    assert found(LATE["a lambda"], "from concurrent.futures import Executor\n") == []


@pytest.mark.parametrize(
    ("case", "fix"),
    [
        ("a lambda", "give the arguments too: submit(report, c)"),
        ("many", "bind the name when the closure is made: lambda c=c: ..."),
        ("a function", "make c a parameter of work: submit(work, c)"),
    ],
)
def test_the_fix_is_the_line_to_write(case: str, fix: str) -> None:
    lines = "".join(f"    {line}\n" for line in LATE[case].splitlines())

    (finding,) = check_source(f"{HEAD}async def main():\n{lines}")

    assert finding.fix == fix
    assert "sees the last 'c' of the loop" in finding.reason


def test_the_command_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "app.py"
    source.write_text(
        "import harn\nasync def main(pool, customers):\n    for c in customers:\n"
        "        await pool.submit(lambda: report(c))\n"
    )

    assert invoke(["lint", str(source)]) == 1

    assert f"{source}:4:27: HARN-SUB-001 this closure runs later" in capsys.readouterr().out

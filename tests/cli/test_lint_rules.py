"""HARN-OWN-003: an owned handle must not leave its function unannounced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harn.cli import invoke
from harn.cli.lint_rules import check_source

HEAD = "import harn\nfrom harn import Owned, channel, disown, drop, owned\n"


def found(body: str, head: str = HEAD) -> list[tuple[int, int]]:
    """Line (of the body) and column of every finding."""
    skipped = head.count("\n")
    return [(each.line - skipped, each.column) for each in check_source(head + body)]


ESCAPES = {
    "an annotated binding": "def f() -> int:\n    ch: Owned[int] = 1\n    return ch\n",
    "no annotation at all": "def f():\n    ch: Owned[Channel] = channel()\n    return ch\n",
    "an async function": "async def f() -> 'int':\n    ch: Owned[int] = 1\n    return ch\n",
    "made by owned()": "def f():\n    ch = owned(channel())\n    return ch\n",
    "through the module": "def f():\n    ch = harn.owned(channel())\n    return ch\n",
    "annotated through the module": "def f():\n    ch: harn.Owned[int] = 1\n    return ch\n",
    "a quoted annotation": "def f():\n    ch: 'Owned[int]' = 1\n    return ch\n",
    "an optional one": "def f():\n    ch: Owned[int] | None = 1\n    return ch\n",
    "a parameter": "def f(ch: Owned[int]):\n    pass\n    return ch\n",
    "a copy": "def f():\n    a = owned(1); ch = a\n    return ch\n",
    "in a tuple": "def f():\n    ch = owned(1)\n    return 1, ch\n",
    "in a choice": "def f():\n    ch = owned(1)\n    return ch if x else None\n",
    "in a dict": "def f():\n    ch = owned(1)\n    return {'ch': ch}\n",
    "inside a block": "def f():\n    with x: ch = owned(1)\n    return ch\n",
    "a method": "class A:\n  def f(self): ch = owned(1); x = 1; \\\n    return ch\n".replace(
        "\\\n    ", ""
    ),
    "by walrus": "def f():\n    if ch := owned(1): pass\n    return ch\n",
}


@pytest.mark.parametrize("case", ESCAPES)
def test_an_owned_binding_that_is_returned_unannounced_is_found(case: str) -> None:
    assert len(found(ESCAPES[case])) == 1, case


QUIET = {
    "an annotated transfer": "def f() -> Owned[int]:\n    ch: Owned[int] = 1\n    return ch\n",
    "annotated via the module": "def f() -> harn.Owned[int]:\n    ch = owned(1)\n    return ch\n",
    "a quoted transfer": "def f() -> 'Owned[int]':\n    ch = owned(1)\n    return ch\n",
    "an optional transfer": "def f() -> Owned[int] | None:\n    ch = owned(1)\n    return ch\n",
    "a transfer in a tuple": "def f() -> list[Owned[int]]:\n    ch = owned(1)\n    return [ch]\n",
    "an alias of the module": "Log = Owned[int]\ndef f() -> Log:\n    ch: Log = 1\n    return ch\n",
    "disowned": "def f():\n    ch = owned(1)\n    return disown(ch)\n",
    "disowned before": "def f():\n    ch = owned(1)\n    disown(ch)\n    return ch\n",
    "dropped before": "async def f():\n    ch = owned(1)\n    await drop(ch)\n    return ch\n",
    "bound to something else": "def f():\n    ch = owned(1)\n    ch = 2\n    return ch\n",
    "what it gives, not itself": "def f():\n    ch = owned(1)\n    return ch.value\n",
    "handed to a call": "def f():\n    ch = owned(1)\n    return len(ch)\n",
    "another function's": "def f():\n  ch = owned(1)\n  def g():\n    ch = 1\n    return ch\n",
    "nothing returned": "def f():\n    ch = owned(1)\n    return\n",
    "silenced": "def f():\n    ch = owned(1)\n    return ch  # noqa: HARN-OWN-003\n",
}


@pytest.mark.parametrize("case", QUIET)
def test_a_transfer_that_is_announced_is_left_alone(case: str) -> None:
    assert found(QUIET[case]) == []


def test_another_librarys_owned_is_not_ours() -> None:
    head = "from ownership import Owned, owned\n"
    assert found(ESCAPES["an annotated binding"], head) == []
    assert found(ESCAPES["made by owned()"], head) == []


def test_other_names_for_ours_are_known() -> None:
    head = "from harn import Owned as Mine, owned as keep\nimport harn as h\n"
    assert found("def f():\n    ch: Mine[int] = 1\n    return ch\n", head) == [(3, 12)]
    assert found("def f():\n    ch = h.owned(1)\n    return ch\n", head) == [(3, 12)]
    assert found("def f() -> h.Owned[int]:\n    ch = keep(1)\n    return ch\n", head) == []


def test_the_command_tells_file_line_column_reason_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "pkg" / "log.py"
    source.parent.mkdir()
    source.write_text(HEAD + ESCAPES["an annotated binding"])
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.py").write_text(HEAD + ESCAPES["a copy"])

    assert invoke(["lint", str(tmp_path)]) == 1

    out = capsys.readouterr().out
    assert f"{source}:5:12: HARN-OWN-003 'ch' is owned by f(), which returns it" in out
    assert "as '-> int'" in out
    assert "fix: annotate f() with '-> Owned[...]' and return disown(ch)" in out


def test_the_command_prints_one_json_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(HEAD + ESCAPES["a copy"])
    (tmp_path / "odd.py").write_text("def f(:\n")

    assert invoke(["lint", "--json", str(tmp_path)]) == 1

    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["files"]) == (False, 2)
    assert document["findings"][0]["code"] == "HARN-OWN-003"
    assert set(document["findings"][0]) == {"path", "line", "column", "code", "reason", "fix"}
    assert "not Python" in document["unreadable"][0]["reason"]


def test_nothing_found_is_exit_code_0_and_a_missing_path_is_wrong_usage(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["lint", str(root / "src"), str(root / "tests" / "tasks")]) == 0
    assert "nothing to report" in capsys.readouterr().out
    assert invoke(["lint", str(tmp_path / "missing")]) == 2
    assert invoke(["lint"]) == 2

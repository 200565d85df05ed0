"""What is not documented is a failing test, and every example runs."""

from __future__ import annotations

import ast
import asyncio
import doctest
import functools
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import harn
from harn import errors, settings, topics
from harn.cli.commands import harn as tree
from harn.telemetry.metrics import FAMILIES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def reference(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text()


def commands(group: click.Command, path: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(group, click.Group):
        return [" ".join(path)]
    context = click.Context(group)
    found = [" ".join(path)] if path else []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("command", commands(tree))
def test_every_command_is_documented(command: str) -> None:
    assert f"`harn {command}" in reference("cli"), f"docs/reference/cli.md misses `harn {command}`"


@pytest.mark.parametrize("variable", settings.variables(), ids=lambda each: each.name)
def test_every_variable_is_documented(variable: settings.Variable) -> None:
    page = reference("environment")

    assert f"`{variable.name}`" in page
    assert variable.meaning in page, f"{variable.name}: the page gives another meaning"


def error_classes() -> list[type[errors.HarnError]]:
    return [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.HarnError)
    ]


@pytest.mark.parametrize("error", error_classes(), ids=lambda each: each.__name__)
def test_every_error_and_code_is_documented(error: type[errors.HarnError]) -> None:
    page = reference("errors")

    assert f"`{error.__name__}`" in page
    assert error.code is None or f"`{error.code}`" in page
    assert error.__name__ in (errors.__doc__ or ""), "not in the tree at the top of errors.py"


@pytest.mark.parametrize("topic", topics.TOPICS, ids=lambda each: each.name)
def test_every_topic_and_record_kind_is_documented(topic: topics.Topic) -> None:
    page = reference("topics")

    assert f"`{topic.name}`" in page
    for kind in topic.kinds:
        assert f"`{kind}`" in page, f"{topic.name}: {kind}"


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda each: each.name)
def test_every_metric_is_documented(family: Any) -> None:
    page = reference("metrics")

    assert f"`{family.name}`" in page
    for label in family.labels:
        assert f"`{label}`" in page


def fences() -> list[tuple[Path, re.Match[str]]]:
    """Every block of code of the pages."""
    return [(page, match) for page in PAGES for match in FENCE.finditer(page.read_text())]


def scripts(page: Path) -> list[tuple[str, str]]:
    """The Python examples of *page*: one script each, with those that continue it appended."""
    found: list[tuple[str, str]] = []
    for match in FENCE.finditer(page.read_text()):
        language, flags, code = match[1], match[2], match[3]
        line = page.read_text()[: match.start()].count("\n") + 1
        if language != "python" or "no-run" in flags:
            continue
        if "continue" in flags and found:
            found[-1] = (found[-1][0], found[-1][1] + "\n" + code)
        else:
            found.append((f"{page.relative_to(ROOT)}:{line}", code))
    return found


@pytest.mark.parametrize(
    ("where", "code"),
    [script for page in PAGES for script in scripts(page)],
    ids=lambda value: value if ".md:" in value and "\n" not in value else "",
)
def test_every_example_in_the_docs_runs(where: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    environ = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONDEVMODE": ""}

    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"
    expected = re.findall(r"^\s*#> (.*)$", code, re.MULTILINE)
    assert [line for line in expected if line not in done.stdout.splitlines()] == [], done.stdout


def test_every_python_example_is_python_also_where_it_cannot_run() -> None:
    found = [(page, match) for page, match in fences() if match[1] == "python"]

    assert found
    for page, match in found:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        assert compile(match[3], f"{page.name}: {match[3][:40]!r}", "exec", flags=flags)


def test_no_example_is_left_out_without_a_reason() -> None:
    left_out = [(page, match[0]) for page, match in fences() if "no-run" in match[2]]

    assert [each for each in left_out if "because" not in each[1].partition("\n")[0]] == []


def module_names() -> list[str]:
    return [
        module.name
        for module in pkgutil.walk_packages(harn.__path__, "harn.")
        if module.name != "harn.__main__"
    ]


@pytest.mark.parametrize("name", module_names())
def test_every_docstring_example_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # limits are kept in the working directory
    module = importlib.import_module(name)

    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert result.failed == 0


def api_examples() -> list[tuple[str, str]]:
    """The examples of the reference, each with the name that it shows."""
    _, *parts = re.split(r"^### `(\w+)`$", reference("api"), flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return [
        (name, match[3])
        for name, text in sections
        for match in FENCE.finditer(text)
        if match[1] == "pycon"
    ]


@pytest.mark.parametrize(("name", "code"), api_examples(), ids=[name for name, _ in api_examples()])
def test_an_example_of_the_reference_needs_no_other_import_than_the_page_says(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = {"asyncio": asyncio, **{each: getattr(harn, each) for each in harn.__all__}}
    known["__name__"] = known[name].__module__  # a name of @durable belongs to one module
    example = doctest.DocTestParser().get_doctest(code, known, name, None, None)

    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


@functools.cache
def names_with_a_docstring_example(module: str) -> frozenset[str]:
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return frozenset(each.name for each in found if each.examples)


@functools.cache
def names_used_by_scripts() -> frozenset[str]:
    """The public names that the examples of the pages use; an import alone is no use."""
    trees = [ast.parse(code) for page in PAGES for _, code in scripts(page)]
    return frozenset(name for tree in trees for name in _used(list(ast.walk(tree))))


def _used(nodes: list[ast.AST]) -> set[str]:
    imported = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "harn"
        for alias in node.names
    }
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    dotted = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "harn"
    }
    return plain & imported | dotted


def has_docstring_example(thing: Any) -> bool:
    """Say whether an example of *thing*, or of a method of it, is one of those that are run."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return False
    name = f"{thing.__module__}.{thing.__qualname__}"
    known = names_with_a_docstring_example(thing.__module__)
    return any(each == name or each.startswith(f"{name}.") for each in known)


@pytest.mark.parametrize("name", harn.__all__)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    assert has_docstring_example(getattr(harn, name)) or name in names_used_by_scripts(), (
        f"harn.{name} has no example: add one to its docstring, or use it in a script of docs/"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    here = [each for each in targets if "://" not in each and not each.startswith("mailto:")]

    assert [each for each in here if not (page.parent / each).exists()] == []


def test_no_page_names_this_workplace() -> None:
    private = re.compile(r"(?<![a-z.])/(work|root|farm)/|files\.pythonhosted|pypi\.org")
    for page in PAGES:
        assert not private.search(page.read_text()), page

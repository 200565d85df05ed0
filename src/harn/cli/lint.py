"""`harn lint`: report handles that escape their owner, and closures that see a loop's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from harn.cli.colours import RED, colour
from harn.cli.lint_findings import Finding
from harn.cli.lint_rules import check_source
from harn.cli.output import emit, json_flag
from harn.escaping import one_line
from harn.plurals import counted
from harn.records import Record

SKIPPED = {"__pycache__", "node_modules", "build", "dist", "venv"}


@dataclass(frozen=True, slots=True)
class Unreadable(Record):
    """A file that could not be checked, and why."""

    path: str
    reason: str


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@json_flag
def lint(paths: tuple[Path, ...], as_json: bool) -> int:
    """Report owned handles that are returned without `-> Owned[...]` (HARN-OWN-003).

    Also closures that are submitted in a loop and see its last variable (HARN-SUB-001).

    PATHS are Python files, or directories whose Python files are all checked. Exits with 1 if
    there is a finding or a file that cannot be read.
    """
    findings: list[Finding] = []
    unreadable: list[Unreadable] = []
    files = list(dict.fromkeys(file for path in paths for file in python_files(path)))
    for file in files:
        try:
            findings += check_source(file.read_bytes(), str(file))
        except (SyntaxError, ValueError, OSError, RecursionError) as error:
            unreadable.append(Unreadable(str(file), one_line(_told(error))))
    fine = not findings and not unreadable
    document = {
        "ok": fine,
        "files": len(files),
        "findings": [finding.as_dict() for finding in findings],
        "unreadable": [each.as_dict() for each in unreadable],
    }
    emit(as_json, document, lambda: _render(findings, unreadable, len(files)))
    return 0 if fine else 1


def python_files(path: Path) -> Iterator[Path]:
    """Yield *path*, or the Python files under it, without hidden and built directories."""
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.iterdir()):
        if each.name.startswith(".") or each.name in SKIPPED or each.is_symlink():
            continue
        if each.is_dir() or each.suffix in (".py", ".pyi"):
            yield from python_files(each)


def _told(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"not Python: {error.msg} (line {error.lineno})"
    return str(error) or type(error).__name__


def _render(findings: list[Finding], unreadable: list[Unreadable], files: int) -> str:
    lines = []
    for found in findings:
        where = f"{one_line(found.path)}:{found.line}:{found.column}"
        lines += [f"{where}: {colour(RED, found.code)} {found.reason}", f"    fix: {found.fix}"]
    lines += [f"{one_line(each.path)}: cannot be read: {each.reason}" for each in unreadable]
    total = len(findings) + len(unreadable)
    lines.append(f"{counted(files, 'file')} checked, {total or 'nothing'} to report")
    return "\n".join(lines)

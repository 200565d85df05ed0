"""`harn doctor`: check what this machine has, and report problems with their fixes."""

from __future__ import annotations

import os
import platform
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import click

from harn import __version__
from harn.cli.colours import by_word
from harn.cli.output import emit, json_flag
from harn.cli.store_choice import chosen_store
from harn.clock import SystemClock, iso
from harn.errors import HarnError, InvalidOption
from harn.escaping import one_line
from harn.masking import without_secrets_of
from harn.private_files import weakness
from harn.records import Record

Status = Literal["ok", "note", "warn", "fail"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "postgres": ("psycopg", "psycopg_pool"),
    "server": ("starlette", "uvicorn", "jinja2"),
    "llm": ("httpx2", "jsonschema"),
    "otel": ("opentelemetry.sdk",),
    "uvloop": ("uvloop",),
}
EPOCH_MS = 1_735_689_600_000  # 2025-01-01: before this harn did not exist


@dataclass(frozen=True, slots=True)
class Check(Record):
    """One check and its result; *fix* says what to do about a problem."""

    name: str
    status: Status
    detail: str
    fix: str | None = None


@click.command()
@click.option("--state-dir", type=click.Path(path_type=Path), help="The directory to look at.")
@click.option("--storage", help="The store to reach, such as postgresql://...")
@json_flag
def doctor(state_dir: Path | None, storage: str | None, as_json: bool) -> int:
    """Check Python, the SQLite engine, PostgreSQL, the state directory, the clock, the extras."""
    checks = list(examine(*chosen_store(storage, state_dir)))
    healthy = all(check.status != "fail" for check in checks)
    document = {
        "version": __version__,
        "ok": healthy,
        "checks": [each.as_dict() for each in checks],
    }
    emit(as_json, document, lambda: _render(checks))
    return 0 if healthy else 1


def examine(state_dir: Path, storage: str | None) -> Iterator[Check]:
    """Yield the results of all checks; a check that fails is a result, not an error."""
    checks: list[Callable[[], Iterator[Check]]] = [
        _python,
        _sqlite,
        lambda: _postgres(storage),
        lambda: _state_dir(state_dir),
        lambda: _files(state_dir, storage),
        _clock,
        _extras,
    ]
    for check in checks:
        yield from check()


def _python() -> Iterator[Check]:
    # harn cannot be installed on an older Python, so there is nothing to check.
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.platform}"
    yield Check("python", "ok", text)


def _sqlite() -> Iterator[Check]:
    import apsw

    from harn.storage.engines import sqlite_version, wal_is_safe

    engine = apsw.sqlite_lib_version()
    if wal_is_safe(sqlite_version()):
        yield Check("sqlite", "ok", f"{engine} (apsw {apsw.apsw_version()})")
    else:
        yield Check(
            "sqlite",
            "fail",
            f"{engine} is inside the range of the WAL-reset bug",
            "install a current apsw: pip install -U apsw",
        )


def _postgres(storage: str | None) -> Iterator[Check]:
    from harn.storage import read_url

    try:
        place = None if storage is None else read_url(storage)
    except InvalidOption as error:
        yield Check("storage", "fail", str(error), "correct the URL")
        return
    if place is None or place.engine != "postgresql":
        yield Check("postgresql", "note", "not asked for (--storage or HARN_STORAGE)")
        return
    if find_spec("psycopg") is None:
        yield Check(
            "postgresql", "fail", "psycopg is missing", "pip install 'harn-runtime[postgres]'"
        )
        return
    import psycopg

    try:
        with psycopg.connect(place.rest, connect_timeout=5) as connection:
            server = connection.info.server_version
            yield Check("postgresql", "ok", f"{server // 10_000}.{server % 10_000} reached")
    except psycopg.Error as error:
        yield Check(
            "postgresql",
            "fail",
            f"cannot be reached: {without_secrets_of(place.rest, str(error))}",
            "check that the server runs and that host, port, database and password are right",
        )


def _state_dir(path: Path) -> Iterator[Check]:
    if not path.exists():
        parent = next(each for each in path.absolute().parents if each.exists())
        writable = os.access(parent, os.W_OK)
        yield Check(
            "state directory",
            "note" if writable else "fail",
            f"{path} does not exist yet",
            None if writable else f"{parent} cannot be written to; use --state-dir",
        )
        return
    if not path.is_dir():
        yield Check("state directory", "fail", f"{path} is not a directory", "use --state-dir")
        return
    try:
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        yield Check(
            "state directory",
            "fail",
            f"{path} cannot be written to: {error.strerror}",
            "give this user the directory, or use --state-dir",
        )
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if (reason := weakness(path, owned=True)) is not None:
        yield _refused("state directory", path, reason)
    elif mode & 0o077:
        yield Check(
            "state directory", "warn", f"{path} is open to others ({mode:04o})", f"chmod 700 {path}"
        )
    else:
        yield Check("state directory", "ok", f"{path} ({mode:04o})")


def _files(state_dir: Path, storage: str | None) -> Iterator[Check]:
    """Check the store, the journals and the manifest here: others must not write to them."""
    found = [Path("harn.toml")]
    if storage is not None and storage.startswith(("sqlite:", "file:")):
        from harn.storage import read_url

        with suppress(HarnError):  # the command that uses a bad URL reports it
            found.append(read_url(storage).path)
    if state_dir.is_dir():
        found += [each for each in sorted(state_dir.iterdir()) if not each.is_symlink()]
    for path in found:
        if (reason := weakness(path, owned=path.name != "harn.toml")) is not None:
            yield _refused("file", path, reason)


def _refused(name: str, path: Path, reason: str) -> Check:
    what, _, fix = reason.partition(": ")
    return Check(name, "warn", f"{path} {what}, so commands refuse it", fix)


def _clock() -> Iterator[Check]:
    clock = SystemClock()
    now = clock.now_ms()
    if now < EPOCH_MS:
        yield Check("clock", "fail", f"reads {iso(now)}", "set the clock (NTP): it is in the past")
    else:
        yield Check("clock", "ok", iso(now))


def _extras() -> Iterator[Check]:
    for extra, modules in EXTRAS.items():
        if all(_present(module) for module in modules):
            found = ", ".join(f"{each} {_version(each)}" for each in modules)
            yield Check(f"extra {extra}", "ok", found)
        else:
            yield Check(
                f"extra {extra}", "note", "not installed", f"pip install 'harn-runtime[{extra}]'"
            )


def _present(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(module: str) -> str:
    try:
        return version(module.replace("_", "-").replace(".", "-"))
    except PackageNotFoundError:
        return "?"


def _render(checks: list[Check]) -> str:
    lines = [f"harn {__version__}"]
    for check in checks:
        pad = " " * (5 - len(check.status))
        lines.append(f"{by_word(check.status)}{pad} {check.name:<16} {one_line(check.detail)}")
        if check.fix:
            lines.append(f"{'':<23}{one_line(check.fix)}")
    return "\n".join(lines)

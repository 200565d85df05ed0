"""`harn log`: verify, rebuild, export, import, tail, trim."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harn import HarnError, Runtime, StorageError
from harn.cli import invoke
from harn.cli.log_commands import log as command
from harn.storage import Store, draft
from harn.storage.log.events import list_topics, move_cursor


def harn_log(*argv: str) -> int:
    result = command.main(args=list(argv), standalone_mode=False)
    return result if isinstance(result, int) else 0


def fill(url: str) -> list[dict[str, object]]:
    async def main() -> list[dict[str, object]]:
        async with Runtime(storage=url) as runtime:
            log = runtime.event_log
            await log.append([draft("a", "k", n) for n in range(5)])
            await log.append([draft("b", "k", "\x00é"), draft("a", "k", {"x": [1.5]}, {"h": "1"})])
            await log.trim("a", keep=4)
            await log.append([draft("gone", "k", 1)])
            await log.trim("gone", keep=0)
            await runtime.service(Store).run(lambda: move_cursor("a", "reader", 4))
            return await everything(runtime)

    return asyncio.run(main())


async def everything(runtime: Runtime) -> list[dict[str, object]]:
    heads = await runtime.service(Store).run(list_topics, write=False)
    found = [e.as_dict() for topic in heads for e in await runtime.event_log.read(topic)]
    return [*found, {"heads": heads}]


def contents(url: str) -> list[dict[str, object]]:
    async def main() -> list[dict[str, object]]:
        async with Runtime(storage=url) as runtime:
            return await everything(runtime)

    return asyncio.run(main())


@pytest.mark.parametrize("target_kind", ["sqlite", "file"])
def test_a_log_moves_between_engines_in_one_command(
    lasting_url: str, target_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fill(lasting_url)
    target = f"{target_kind}:///{tmp_path}/other/x"

    assert harn_log("import", lasting_url, "--storage", target, "--json") == 0

    assert json.loads(capsys.readouterr().out) == {"imported": 5, "skipped": 0}
    assert contents(target) == before
    assert harn_log("verify", "--storage", target) == 0


def test_a_sqlite_log_moves_to_postgresql_and_goes_on_there(
    tmp_path: Path, postgres_url: str
) -> None:
    source = f"sqlite:///{tmp_path}/x.sqlite"
    before = fill(source)

    assert harn_log("import", source, "--storage", postgres_url) == 0

    assert contents(postgres_url) == before

    async def go_on() -> int:
        async with Runtime(storage=postgres_url) as runtime:
            return (await runtime.event_log.emit("gone", "k", 2)).id

    assert asyncio.run(go_on()) == 2


def test_an_export_is_a_private_file_that_imports_again(lasting_url: str, tmp_path: Path) -> None:
    before = fill(lasting_url)
    out = tmp_path / "log.jsonl"

    assert harn_log("export", str(out), "--storage", lasting_url) == 0
    target = f"sqlite:///{tmp_path}/again.sqlite"
    assert harn_log("import", str(out), "--storage", target) == 0

    assert contents(target) == before
    assert out.stat().st_mode & 0o777 == 0o600


def test_an_export_says_how_many_lines_it_wrote(
    lasting_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(lasting_url)
    out = tmp_path / "log.jsonl"

    assert harn_log("export", str(out), "--storage", lasting_url) == 0

    written = len(out.read_bytes().splitlines())
    assert capsys.readouterr().out == f"{written} lines written to {out}\n"


def test_importing_over_records_is_refused_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = f"sqlite:///{tmp_path}/a.sqlite", f"sqlite:///{tmp_path}/b.sqlite"
    before = fill(source)
    harn_log("import", source, "--storage", target)
    capsys.readouterr()

    with pytest.raises(HarnError, match="'a' has records here already"):
        harn_log("import", source, "--storage", target)
    assert harn_log("import", source, "--storage", target, "--resume", "--json") == 0

    assert json.loads(capsys.readouterr().out) == {"imported": 0, "skipped": 5}
    assert contents(target) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("hello\n", "cannot be read"),
        ("[]\n", "cannot be read"),
        ("{}\n", "no 'harn_export'"),
        ('{"harn_export":999}\n', "a newer harn"),
    ],
)
def test_what_is_no_export_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x").write_text(text)

    with pytest.raises(HarnError, match=said):
        harn_log("import", str(tmp_path / "x"), "--storage", f"sqlite:///{tmp_path}/b.sqlite")


def test_tail_prints_what_is_there_one_record_a_line(
    lasting_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(lasting_url)

    assert harn_log("tail", "a", "--no-follow", "--json", "--storage", lasting_url) == 0

    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["id"] for each in printed] == [3, 4, 5, 6]


def test_tail_follows_from_an_offset_up_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/x.sqlite"
    fill(url)

    assert harn_log("tail", "a", "--after", "4", "--limit", "2", "--storage", url) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["5", "6"]


def test_trim_by_command(lasting_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(lasting_url)

    assert harn_log("trim", "a", "--keep", "1", "--storage", lasting_url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "a", "removed": 2}
    with pytest.raises(click.UsageError):
        harn_log("trim", "a", "--storage", lasting_url)


@pytest.mark.parametrize("url", ["sqlite:///{}/none.sqlite", "file:///{}/none"])
@pytest.mark.parametrize(
    "argv", [["tail", "x"], ["verify"], ["rebuild"], ["export", "-"], ["trim", "x", "--keep=1"]]
)
def test_a_mistyped_path_is_told_and_makes_nothing(
    argv: list[str], url: str, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="there is no store at"):
        harn_log(*argv, "--storage", url.format(tmp_path))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [("log", "verify"), ("orchestrator", "queue", "ls"), ("top", "--once", "--json")]
)
def test_a_mistyped_schema_is_told_and_makes_nothing(
    postgres_url: str, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    url = f"{postgres_url}_mistyped"
    for _ in range(2):
        invoke([*command, "--storage", url])

    told = capfd.readouterr()
    assert f"{told.out}{told.err}".count("there is no store in the schema") == 2


def test_a_mistyped_source_makes_no_target(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/none.sqlite", f"sqlite:///{tmp_path}/new.sqlite"

    with pytest.raises(StorageError, match="there is no store at"):
        harn_log("import", source, "--storage", target)

    assert list(tmp_path.iterdir()) == []


def test_a_server_out_of_reach_is_one_line(tmp_path: Path) -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/none?busy_timeout=1200ms"

    done = subprocess.run(
        [sys.executable, "-m", "harn", "log", "verify", "--storage", url],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "out of reach" in line and "refused" in line and "s3cret" not in line


def test_verify_names_a_record_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file:///{tmp_path}/log"
    fill(url)
    path = tmp_path / "log" / "topics" / "a.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"payload":4', b'"payload":7'))

    assert harn_log("verify", "--storage", url, "--json") == 1

    found = json.loads(capsys.readouterr().out)
    assert [(each["topic"], each["id"]) for each in found["damaged"]] == [("a", 5)]
    assert found["records"] == 4
    (tmp_path / "empty").mkdir()
    assert harn_log("verify", "--storage", f"file:///{tmp_path}/empty") == 0

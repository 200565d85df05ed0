"""Nothing that a store holds reaches a terminal as an escape, in any command's text or JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import harn
from harn import (
    NewJob,
    channel_emit,
    durable_rate_limit_acquire,
    event_log_emit,
    pool_create,
    trigger_register,
    worker_queue,
)
from harn.cli import invoke
from harn.cli.commands import harn as tree
from harn.escaping import in_json, on_lines, one_line, to_json
from harn.triggers import Triggers

EVIL = "a\x00\x1b[2J\x07\x7f\x9b31m\x85\u2028\u2029\u202e\u2066\u200f\ufeff\r\nb"
MANIFEST = """
[exports]
handlers = "lib.py"

[[triggers]]
id = "on-task"
kind = "a2a-push"
provider = "a2a-push"
match = { events = ["a2a.task.received"] }
handler = "handlers::on_task"
retry = { max = 1 }
"""
LIB = f"""
def on_task(event):
    raise ValueError({EVIL!r})
"""
SKIPPED = {"demo", "orchestrator serve", "portal", "worker", "completion"}
"""Shows no stored text; runs until it is stopped, tried with real requests elsewhere."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    (path / "harn.toml").write_text(MANIFEST)
    (path / "lib.py").write_text(LIB)
    (path / "odd\x9b\u202e.py").write_text("async def f(:\n")
    harn.run(fill, state_dir=path / "state")
    return path


async def fill() -> None:
    queue = worker_queue("review")
    await queue.enqueue_many([NewJob({EVIL: EVIL}, max_attempts=1)] * 3)
    for claim in await queue.claim_many("worker", 1):
        await claim.fail(EVIL)
    await event_log_emit("news", "greeting", {EVIL: [EVIL]}, headers={"from": EVIL})
    await durable_rate_limit_acquire(key=f"api {EVIL[2:]}", limit=10, units=4)
    pool = await pool_create(name="reports", scope="pipeline", pipeline_id="nightly")
    await (await pool.submit(_fail, key=EVIL)).wait()

    await trigger_register(
        id="on-news",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:news"]},
        handler=lambda event: _fail(),
        retry={"max": 1},
    )
    await channel_emit("news", {EVIL: EVIL}, id="one")
    await harn.current_runtime().service(Triggers).dispatcher.idle()


def _fail() -> None:
    raise ValueError(EVIL)


def commands() -> Iterator[str]:
    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield " ".join(path)
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, (*path, name))

    return walk(tree, ())


ARGUMENTS: dict[str, list[str]] = {
    "orchestrator fire": ["on-task", "--payload", json.dumps({"x": EVIL}), "--tenant", "acme"],
    "orchestrator queue drain": ["review"],
    "orchestrator queue explain": ["review", "1"],
    "orchestrator queue jobs": ["review"],
    "orchestrator queue job": ["review", "1"],
    "orchestrator queue cancel": ["review", "2", "--reason", EVIL[2:]],
    "orchestrator queue retry": ["review", "1"],
    "orchestrator queue pause": ["review", "--tenant", EVIL[2:], "--reason", EVIL[2:]],
    "orchestrator queue resume": ["review", "--tenant", EVIL[2:]],
    "orchestrator queue what-if": ["review"],
    "orchestrator queue purge": ["review", "--confirm", "--reason", EVIL[2:]],
    "orchestrator replay": [EVIL[2:]],
    "orchestrator dlq": ["--list"],
    "top": ["--once"],
    "ratelimit ls": ["--all"],
    "log backup": ["copy.sqlite"],
    "log export": ["-"],
    "log import": ["-"],
    "log tail": ["news", "--after", "0", "--no-follow"],
    "log trim": ["news", "--keep", "100"],
}
LAST = ("orchestrator queue drain", "orchestrator queue purge", "log import")
"""Commands that take away what others show."""


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", sorted({*commands()} - SKIPPED, key=lambda c: (c in LAST, c)))
def test_no_command_prints_a_control_character(
    place: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch, command: str, as_json: bool
) -> None:
    monkeypatch.chdir(place)
    argv = [*command.split(), *ARGUMENTS.get(command, [])]
    if command == "lint":
        argv += [str(each) for each in place.glob("*.py")]
    else:
        argv += ["--state-dir", "state"]

    code = invoke([*argv, "--json"] if as_json else argv)

    shown = capfd.readouterr()
    assert code in (0, 1), shown.err
    for line in (shown.out + shown.err).split("\n"):
        assert line.isprintable(), line
    assert shown.out or shown.err


@pytest.mark.parametrize(
    "argv", [["log", "tail", EVIL[2:]], [EVIL[2:]], ["log", "verify", "--storage", EVIL[2:]]]
)
def test_what_is_typed_comes_back_spelled_out(argv: list[str], capfd: Any) -> None:
    assert invoke(argv) in (1, 2)

    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.endswith("\n")
    assert shown.err.removesuffix("\n").isprintable()


def test_an_export_is_the_same_log_with_everything_spelled_out(place: Path, capfd: Any) -> None:
    assert invoke(["log", "export", "-", "--state-dir", str(place / "state")]) == 0

    lines = capfd.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    [event] = [each for each in map(json.loads, lines) if each.get("topic") == "news"]
    assert event["payload"] == {EVIL: [EVIL]}
    assert event["headers"]["from"] == EVIL


def test_every_character_is_shown_or_spelled_out() -> None:
    everything = "".join(map(chr, range(0x11_0000)))

    assert one_line(everything).isprintable()
    assert on_lines(everything).replace("\n", "").isprintable()
    written = to_json(list(everything))
    assert written.isprintable()
    assert json.loads(written) == list(everything)
    assert in_json('{\n  "a": "é"\n}') == '{\n  "a": "é"\n}'


def test_commands_print_through_one_door() -> None:
    """`say` spells out; what prints otherwise says nothing that was stored."""
    around = {
        "output.py": 1,
        "progress.py": 3,
        "completion.py": 1,
        "__init__.py": 3,
        "top_live.py": 3,  # the screen and its end; its lines are painted
    }
    found: dict[str, int] = {}
    for path in (Path(harn.__file__).parent / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "click.echo",
                "click.secho",
                "sys.stdout.write",
                "sys.stderr.write",
            ):
                found[path.name] = found.get(path.name, 0) + 1

    assert found == around

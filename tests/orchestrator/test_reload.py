"""A reload puts in force what the manifest says now, and names everything that is different."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harn import ManifestError, Runtime, trigger_list
from harn.orchestrator import Service
from harn.orchestrator.manifest_exports import load
from harn.testing import FakeClock
from tests.orchestrator.processes import post, serving, until

MANIFEST = """
[exports]
handlers = "handlers.py"

[serve]
keys = ["file:admin"]
queues = ["one"]

[a2a]
allow = ["a2a+http://127.0.0.1"]

[[triggers]]
id = "out"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:out"], filter = { urgent = true } }
handler = "a2a+http://127.0.0.1:PORT/agent"
retry = { max = 2, backoff = "linear", delay = "1m" }
secrets = { a2a = "file:token" }

[[triggers]]
id = "hook"
kind = "webhook"
provider = "github"
path = "/hooks/github"
handler = "handlers::note"
secrets = { signing = "file:signing" }

[[triggers]]
id = "nightly"
kind = "cron"
provider = "cron"
schedule = "0 2 * * *"
handler = "handlers::note"
"""


class Agent:
    """A remote agent on loopback that remembers the tokens it was shown."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        self.answers = [200]

    @contextlib.contextmanager
    def listening(self) -> Iterator[int]:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                agent.tokens.append(self.headers["authorization"])
                body = json.dumps({"jsonrpc": "2.0", "result": {}}).encode()
                self.send_response(
                    agent.answers.pop(0) if len(agent.answers) > 1 else agent.answers[0]
                )
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def place(tmp_path: Path, agent: Agent) -> Iterator[Path]:
    with agent.listening() as port:
        (tmp_path / "harn.toml").write_text(MANIFEST.replace("PORT", str(port)))
        (tmp_path / "handlers.py").write_text("async def note(event):\n    pass\n")
        (tmp_path / "token").write_text("the first token")
        (tmp_path / "signing").write_text("the first signing key")
        (tmp_path / "admin").write_text("the first operator's key")
        yield tmp_path


def edit(place: Path, old: str, new: str) -> None:
    text = (place / "harn.toml").read_text()
    assert old in text
    (place / "harn.toml").write_text(text.replace(old, new))


async def test_a_reload_without_a_change_says_so(place: Path) -> None:
    async with Runtime() as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        report = await service.reload()

    assert report == {"changed": [], "manifest": [], "at_next_start": [], "triggers": 3}


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('allow = ["a2a+http://127.0.0.1"]', "allow = []", ["a2a.allow"]),
        ('queues = ["one"]', 'queues = ["two"]', ["serve.queues"]),
        ("[serve]", '[serve]\nbind = "127.0.0.1:1"', ["serve.bind"]),
        ("[exports]", '[exports]\nmore = "handlers.py"', ["exports.more"]),
        ("urgent = true", "urgent = 1", ["triggers.out.match"]),
        ('delay = "1m"', 'delay = "2m"', ["triggers.out.retry"]),
        ('"0 2 * * *"', '"0 3 * * *"', ["triggers.nightly.schedule"]),
        ('path = "/hooks/github"', 'path = "/hooks/gh"', ["triggers.hook.path"]),
        ('"file:signing"', '"file:admin"', ["triggers.hook.secrets.signing"]),
        ('id = "nightly"', 'id = "daily"', ["triggers.daily", "triggers.nightly"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
async def test_a_reload_names_each_change(
    place: Path, old: str, new: str, named: list[str]
) -> None:
    async with Runtime() as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        edit(place, old, new)
        report = await service.reload()

    tops = [name for name in report["manifest"] if name.count(".") < 2 or name in named]
    assert tops == named
    assert report["at_next_start"] == [name for name in named if name == "serve.bind"]


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("token", "triggers.out.secrets.a2a"),
        ("signing", "triggers.hook.secrets.signing"),
        ("admin", "serve.keys"),
    ],
)
async def test_a_reload_names_a_key_whose_value_changed(place: Path, file: str, named: str) -> None:
    async with Runtime() as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        (place / file).write_text("the second one of them")
        report = await service.reload()

    assert report["manifest"] == [named]
    assert "second" not in str(report)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('"0 2 * * *"', '"0 3 * * *"', ["nightly@v2"]),
        ("urgent = true", "urgent = 1", ["out@v2"]),
        (
            'schedule = "0 2 * * *"',
            'schedule = "0 2 * * *"\ntimezone = "Asia/Tokyo"',
            ["nightly@v2"],
        ),
    ],
    ids=["schedule", "true is not 1", "timezone"],
)
async def test_what_a_trigger_says_is_compared_by_value(
    place: Path, old: str, new: str, changed: list[str]
) -> None:
    async with Runtime() as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        edit(place, old, new)
        report = await service.reload()

    assert report["changed"] == changed


async def test_a_retry_after_a_reload_shows_the_new_token_only(place: Path, agent: Agent) -> None:
    agent.answers = [500, 200]
    clock = FakeClock()
    async with Runtime(clock=clock) as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        firing = asyncio.ensure_future(service.triggers.fire("out", {}))
        await first_attempt_failed(service)
        (place / "token").write_text("the second token")
        await service.reload()
        await clock.advance("1m")
        handle = await firing

    assert handle.status == "dispatched"
    assert agent.tokens == ["Bearer the first token", "Bearer the second token"]


async def test_a_retry_to_another_address_is_never_shown_the_new_ones_token(
    place: Path, agent: Agent
) -> None:
    agent.answers = [500, 200]
    clock = FakeClock()
    async with Runtime(clock=clock) as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        firing = asyncio.ensure_future(service.triggers.fire("out", {}))
        await first_attempt_failed(service)
        (place / "token").write_text("the second token")
        edit(place, "/agent", "/another")
        await service.reload()
        await clock.advance("1m")
        await firing

    assert agent.tokens == ["Bearer the first token", None]


async def test_reloads_that_meet_call_a_new_setup_once(place: Path) -> None:
    async with Runtime() as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        edit(place, "[serve]", '[orchestrator]\nsetup = "handlers::setup"\n\n[serve]')
        (place / "handlers.py").write_text(
            "import asyncio\n\n"
            "calls = []\n\n"
            "async def note(event):\n    pass\n\n"
            "async def setup():\n    calls.append(1)\n    await asyncio.sleep(0.01)\n"
        )
        reports = await asyncio.gather(service.reload(), service.reload())

    assert load(place, "handlers.py").calls == [1]
    assert [each["manifest"] for each in reports] == [["orchestrator.setup"], []]


async def test_a_reload_does_not_open_a_public_address_without_keys(place: Path) -> None:
    async with Runtime() as runtime:
        service = Service(runtime, place)
        await service.start(consume=False)
        service.host = "0.0.0.0"
        edit(place, 'keys = ["file:admin"]\n', "")
        with pytest.raises(ManifestError, match="can be reached from outside"):
            await service.reload()

        assert service.admin_keys == (b"the first operator's key",)
        assert [shown.version for shown in trigger_list()] == [1, 1, 1]


def test_a_sighup_takes_outbound_rights_away(place: Path, agent: Agent) -> None:
    edit(place, 'kind = "channel.emit"', 'kind = "webhook"\npath = "/out"')
    edit(place, 'provider = "channel"', 'provider = "github"')
    edit(place, 'match = { events = ["channel:out"], filter = { urgent = true } }', "")
    edit(place, 'a2a = "file:token"', 'a2a = "file:token", signing = "file:signing"')
    with serving(place) as process:
        url = process.url
        assert send(url, place, {"n": 1}) == 202
        until(lambda: agent.tokens)
        (place / "token").write_text("the second token")
        process.signal(signal.SIGHUP)
        renewed = process.reports("reloaded")
        assert send(url, place, {"n": 2}) == 202
        until(lambda: len(agent.tokens) == 2)
        edit(place, '"a2a+http://127.0.0.1"]', '"127.0.0.1"]')
        edit(place, 'max = 2, backoff = "linear", delay = "1m"', "max = 1")
        process.signal(signal.SIGHUP)
        narrowed = process.reports("reloaded")
        assert send(url, place, {"n": 3}) == 202
        until(lambda: dead(place))

    assert agent.tokens == ["Bearer the first token", "Bearer the second token"]
    assert renewed["manifest"] == ["triggers.out.secrets.a2a"]
    assert narrowed["manifest"] == ["a2a.allow", "triggers.out.retry"]


def test_a_fire_by_hand_has_the_manifests_rights(place: Path, agent: Agent) -> None:
    first = orchestrator(place, "fire", "out", "--payload", "{}", "--json")
    edit(place, 'allow = ["a2a+http://127.0.0.1"]', "allow = []")
    edit(place, 'max = 2, backoff = "linear", delay = "1m"', "max = 1")
    second = orchestrator(place, "fire", "out", "--payload", "{}", "--json")

    assert (first.returncode, second.returncode) == (0, 1), first.stderr
    assert agent.tokens == ["Bearer the first token"]
    assert "is not called without TLS" in second.stdout
    assert "the first token" not in first.stdout + first.stderr


async def first_attempt_failed(service: Service) -> None:
    running = service.triggers.dispatcher.running
    while not any(each.is_parked for each in running.values()):
        await asyncio.sleep(0.01)


def orchestrator(place: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harn", "orchestrator", *args, "--state-dir", "state"]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)


def dead(place: Path) -> bool:
    listed = orchestrator(place, "dlq", "--json")
    return "is not called without TLS" in listed.stdout


def send(url: str, place: Path, payload: Any) -> int:
    return post(url, payload, "/out", (place / "signing").read_text()).status_code


def test_a_file_changed_within_a_second_and_of_the_same_length_is_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "handlers.py"
    second = 1_800_000_000 * 10**9

    def version(text: str, ns: int) -> Any:
        file.write_text(f"VERSION = {text!r}\n")
        os.utime(file, ns=(ns, ns))
        return vars(load(tmp_path, "handlers.py"))["VERSION"]

    assert [version("v1", second), version("v2", second + 1)] == ["v1", "v2"]

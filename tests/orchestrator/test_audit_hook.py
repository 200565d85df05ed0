"""A served manifest under Python's audit hook: what a body says opens, starts and loads nothing."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import httpx2
import pytest

from harn.clock import SystemClock
from harn.triggers import sign
from tests.odd_bytes import mutated
from tests.orchestrator.processes import SECRET, Process, serving, until

MANIFEST = """
[exports]
handlers = "lib.py"

[[triggers]]
id = "push"
kind = "webhook"
provider = "github"
match = { path = "/hooks/push" }
handler = "handlers::on_push"
secrets = { signing = ["GITHUB_SECRET"] }
"""
LIB = """
def on_push(event):
    if event.get("provider_payload.payload.control") == "open":
        open(__file__).close()
    return {"seen": event.id}
"""
HOOK = """
import os, signal, sys

_file = os.open(os.environ["AUDIT_FILE"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
_armed = False

def _arm(number, frame):
    global _armed
    _armed = number == signal.SIGUSR1
    os.write(_file, b"armed\\n" if _armed else b"disarmed\\n")

def _heard(event, args):
    if _armed and not event.startswith("object.__getattr__"):
        os.write(_file, f"{event} {args!r:.300}\\n".encode("utf-8", "replace"))

signal.signal(signal.SIGUSR1, _arm)
signal.signal(signal.SIGUSR2, _arm)
sys.addaudithook(_heard)
"""
EXPECTED = ("socket.__new__", "sys._getframe", "gc.", "time.sleep", "_thread.start_new_thread")
"""Connections that come in, and Python's own housekeeping."""
HOSTILE = [
    *(b'{"__class__":"os.system","args":["touch /tmp/x"]}', b"!!python/object/apply:os.system"),
    *(b'{"ref":"file:///etc/passwd","url":"http://127.0.0.1:1/"}', b"${jndi:ldap://127.0.0.1/a}"),
    *(b'{"path":"../../../../etc/passwd\\u0000"}', b"\x80\x04\x95cposix\nsystem\n", b"{{7*7}}"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "harn.toml").write_text(MANIFEST)
    (tmp_path / "lib.py").write_text(LIB)
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    return tmp_path


def test_hostile_bodies_open_nothing_that_an_ordinary_run_does_not(place: Path) -> None:
    heard = place / "heard"
    env = {"PYTHONPATH": str(place / "hook"), "AUDIT_FILE": str(heard)}
    rng, good = random.Random(18), json.dumps({"ref": "x", "commits": [1]}).encode()
    with serving(place, env=env) as served:
        with httpx2.Client(base_url=served.url, trust_env=False, timeout=30) as client:
            for body in (good, b"{}", b"no json"):  # what is loaded on first use is loaded now
                post(client, body)
                client.post("/hooks/push", content=body)
            signalled(served, signal.SIGUSR1, heard, "armed")

            for number in range(150):
                body = rng.choice([*HOSTILE, good])
                post(client, mutated(body, rng) if number > len(HOSTILE) else HOSTILE[number - 1])
                client.post("/hooks/push", content=body, headers={"x-github-event": "push"})
            post(client, b'{"control":"open"}')  # the hook does hear
            until(lambda: "lib.py" in heard.read_text())
            signalled(served, signal.SIGUSR2, heard, "disarmed")
        served.signal(signal.SIGTERM)
        assert served.ends() == 0

    between = heard.read_text().split("armed\n")[1].removesuffix("dis").splitlines()
    expected = (*EXPECTED, f"open ('{place}/state/events.sqlite")  # the store syncs its own file
    unexpected = [line for line in between if not line.startswith(expected)]
    assert len(unexpected) == 1, unexpected
    assert unexpected[0].startswith("open ") and "lib.py" in unexpected[0]


def post(client: httpx2.Client, body: bytes) -> None:
    signed = sign("github", SECRET.encode(), body, SystemClock().now_ms() // 1000, "d1")
    answer = client.post("/hooks/push", content=body, headers={**signed, "x-github-event": "push"})
    assert answer.status_code in (200, 202, 400, 409), answer.text


def signalled(served: Process, number: int, heard: Path, word: str) -> None:
    served.signal(number)
    until(lambda: f"{word}\n" in heard.read_text())

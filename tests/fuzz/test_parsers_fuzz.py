"""Every parser of bytes from outside reads them or refuses them; nothing else comes out.

`make fuzz SECONDS=60` runs each for a minute with another seed, CI with one seed; a seed that found
something is given back with `HARN_FUZZ_SEED`. The ordinary suite runs each for three seconds.
Tests of one parser share its minute: the schemes of webhooks, and what reads topics.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from harn import (
    HarnError,
    ManifestError,
    Runtime,
    event_log_emit,
    event_log_read,
    pool_create,
    trigger_register,
    worker_queue,
)
from harn.orchestrator import Hook, Intake, Key, connect, read_manifest
from harn.pools.journal_records import fold
from harn.storage import Store
from harn.storage.engines.file.topic_file import read_line
from harn.storage.log import Importer, export
from harn.triggers import sign
from tests.odd_bytes import mutated
from tests.orchestrator.processes import serving

SECONDS = float(os.environ.get("HARN_FUZZ_SECONDS", "0"))
"""For how long each parser is pressed; 0 is what the ordinary suite does."""
OF_TOPICS = 3
"""How many tests read topics: lines, the files of a store, exports."""
SEED = int(os.environ.get("HARN_FUZZ_SEED", time.time_ns() if SECONDS else 18))
BODIES: dict[str, list[Any]] = {
    "github": [{"action": "opened", "pull_request": {"n": 1}}],
    "stripe": [{"id": "evt_1", "type": "invoice.paid", "data": {}}],
    "slack": [{"type": "event_callback", "event_id": "E1", "event": {"type": "message"}}],
    "standard": [{"type": "a.b", "data": {"n": [1, None, "é"]}}],
    "bearer": [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "message/send",
            "params": {"message": {"messageId": "m", "parts": [{"kind": "text", "text": "hi"}]}},
        },
        {
            "jsonrpc": "2.0",
            "id": "one",
            "method": "SendMessage",
            "params": {"message": {"messageId": "n", "contextId": "c", "parts": [{"data": [1]}]}},
        },
        {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}},
    ],
}
MANIFEST = b"""
[exports]
handlers = "lib.py"

[serve]
bind = "127.0.0.1:8080"
queues = ["review"]

[a2a]
allow = ["10.0.0.0/8", "agents.example"]

[[triggers]]
id = "on-push"
kind = "webhook"
provider = "github"
path = "/hooks/github"
match = { events = ["push"] }
handler = "handlers::on_push"
secrets = ["env:SECRET"]
retry = { max = 3, backoff = "exponential" }
batch = { size = 3, timeout = "5s" }
"""


class Rounds(Protocol):
    def __call__(self, *, tests: int = 1) -> Iterator[random.Random]: ...


@pytest.fixture
def rounds(at_least: Callable[[int], int]) -> Rounds:
    """Yield a source of chance again and again, for a few seconds or 2,000 rounds.

    As many *tests* as are named have the time of one parser together.
    """
    print(f"HARN_FUZZ_SEED={SEED}")

    def rounds(*, tests: int = 1) -> Iterator[random.Random]:
        rng, done = random.Random(SEED), 0
        until = time.monotonic() + (SECONDS / tests or at_least(3))
        while time.monotonic() < until and (SECONDS or done < at_least(2000)):
            yield rng
            done += 1
        print(f"{done} rounds")

    return rounds


@pytest.mark.parametrize("scheme", BODIES)
async def test_webhook_bodies_are_read_or_refused(scheme: Any, rounds: Rounds) -> None:
    """They are signed: this is what a sender with a key can do."""
    secret = b"a key of sixteen bytes"
    provider: Any = "a2a-push" if scheme == "bearer" else scheme
    good = [json.dumps(each).encode() for each in BODIES[scheme]]
    types = ["application/json", "application/x-www-form-urlencoded", "", "text/\xff; x"]

    async with Runtime() as runtime:
        kind: Any = "a2a-push" if scheme == "bearer" else "webhook"
        await trigger_register(id="t", kind=kind, provider=provider, match={}, handler=_nothing)
        intake = Intake(runtime, [Hook("t", "/t", provider, scheme, (Key(secret, "acme"),))])
        for number, rng in enumerate(rounds(tests=len(BODIES))):
            body = mutated(rng.choice(good), rng)
            now = runtime.clock.now_ms() // 1000
            headers = {"content-type": [rng.choice(types)]}
            if scheme == "bearer":
                headers["authorization"] = [f"Bearer {secret.decode()}"]
            else:
                signed = sign(scheme, secret, body, now, f"msg_{number}")
                headers |= {name: [value] for name, value in signed.items()}

            reply = await intake.receive("/t", headers, body)

            assert reply.status in (200, 202, 400, 409), (body, reply)


def test_manifests_are_read_or_refused(tmp_path: Path, rounds: Rounds) -> None:
    path = tmp_path / "harn.toml"
    (tmp_path / "lib.py").write_text("")
    for rng in rounds():
        path.write_bytes(mutated(MANIFEST, rng))
        try:
            read_manifest(path)
            outcome = "read"
        except ManifestError as error:
            outcome = str(error)
        assert outcome, "refused without a word"


async def test_journals_of_pools_are_read_and_their_damage_named(
    tmp_path: Path, rounds: Rounds
) -> None:
    async with Runtime(state_dir=tmp_path, storage="memory://"):
        pool = await pool_create(name="web", scope="pipeline", pipeline_id="nightly")
        for _ in range(5):
            await (await pool.submit(_one)).wait()
    [path] = (tmp_path / "pools").glob("*.jsonl")
    good = path.read_bytes()
    assert len(fold(good.splitlines(keepends=True))[0].tasks) == 5

    for rng in rounds():
        try:
            ledger, end = fold(mutated(good, rng).splitlines(keepends=True))
        except HarnError:
            continue
        assert end >= 0 and all(each.reason for each in ledger.damage)


async def test_files_of_a_store_are_read_or_refused(tmp_path: Path, rounds: Rounds) -> None:
    """Topics, the commit journal, the cursors and every other file that a file store keeps."""
    good = tmp_path / "good"
    async with Runtime(storage=f"file:///{good}"):
        for n in range(5):
            await event_log_emit("news", "kind", {"n": n})
            await worker_queue("review").enqueue({"n": n})
    files = [each.relative_to(good) for each in good.rglob("*") if each.is_file()]

    for number, rng in enumerate(rounds(tests=OF_TOPICS)):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(good, copy)
        name = rng.choice([each for each in files if (good / each).stat().st_size < 100_000])
        (copy / name).write_bytes(mutated((good / name).read_bytes(), rng))
        try:
            async with Runtime(storage=f"file:///{copy}"):
                await event_log_read("news")
                await worker_queue("review").summary()
                await event_log_emit("news", "kind", 1)
            outcome = "read"
        except HarnError as error:
            outcome = str(error)
        except BaseException as error:
            error.add_note(f"{name}: {(copy / name).read_bytes()!r:.2000}")
            raise
        assert outcome, "refused without a word"
        shutil.rmtree(copy)


def test_lines_of_a_topic_are_read_or_called_broken(rounds: Rounds) -> None:
    from harn.storage.engines.file.topic_file import BrokenLine, RecordLine, write_line
    from harn.storage.jsonl import seal

    good = write_line(1, 1, "kind", b'{"n":1}', b"{}", 1)
    for rng in rounds(tests=OF_TOPICS):
        line = mutated(good, rng)
        resealed = seal(line.rstrip(b"\n")[:-1])  # a checksum is no key: it may be right
        for each in (line, resealed):
            assert isinstance(read_line(each, 1, 0), RecordLine | BrokenLine)


async def test_exports_are_taken_in_or_refused(rounds: Rounds) -> None:
    async with Runtime() as runtime:
        for n in range(3):
            await event_log_emit("news", "kind", {"n": n})
            await worker_queue("review").enqueue({"n": n})
        lines = [line async for line in export(runtime.service(Store))]
    for rng in rounds(tests=OF_TOPICS):
        async with Runtime() as runtime:
            importer = Importer(runtime.service(Store))
            changed = list(lines)
            at = rng.randrange(len(lines))
            changed[at] = mutated(lines[at], rng)
            try:
                await importer.feed(changed)
                await importer.finish()
                outcome = "taken in"
            except HarnError as error:
                outcome = str(error)
            except BaseException as error:
                error.add_note(f"{changed[at]!r:.2000}")
                raise
            assert outcome, "refused without a word"


REQUESTS = [
    (b"/api/v1/triggers/note/fire", b'{"payload": {"n": 1}, "tenant": "acme"}'),
    (b"/api/v1/events/trigger_evt_1/replay", b'{"trigger": "note", "work_within": 1}'),
    (b"/api/v1/dead-letters/dlq_1/discard", b'{"reason": "no"}'),
    (b"/api/v1/queues/review/drain", b'{"claim_ttl": "5m", "concurrency": 1, "work_within": 1}'),
    (b"/api/v1/queues/review/pause", b'{"tenant": "acme", "reason": "no"}'),
    (b"/api/v1/queues/review/jobs/1/cancel", b'{"reason": "no"}'),
]


def test_requests_to_the_admin_socket_are_answered_or_refused(
    tmp_path: Path, rounds: Rounds
) -> None:
    """Paths, bodies and whole requests; the service stays as it was and says nothing unexpected."""
    (tmp_path / "lib.py").write_text("def note(event): ...")
    (tmp_path / "harn.toml").write_text(
        '[exports]\nlib = "lib.py"\n[[triggers]]\nid = "note"\nkind = "channel.emit"\n'
        'provider = "channel"\nmatch = { events = ["channel:note"] }\nhandler = "lib::note"\n'
    )
    with serving(tmp_path, "--json", "--no-http") as service:
        service.reports("ready")
        for rng in rounds():
            path, body = rng.choice(REQUESTS)
            what = rng.randrange(3)
            sent = _request(
                mutated(path, rng) if what == 0 else path,
                mutated(body, rng) if what == 1 else body,
            )
            data = mutated(sent, rng) if what == 2 else sent
            answer = _exchange(tmp_path / "state", data, end=what != 1)
            status = answer.partition(b" ")[2][:3]
            assert not status.startswith(b"5") or status == b"503", (sent, answer)
            if what == 1:
                assert status in (b"200", b"400", b"404", b"409", b"413", b"422"), (sent, answer)
        good = _exchange(tmp_path / "state", _request(*REQUESTS[0]))
        assert good.startswith(b"HTTP/1.1 200"), good
        said = "".join(service.lines)

    assert "Traceback" not in said
    assert "unexpected" not in said


def _request(path: bytes, body: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % path
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _exchange(directory: Path, data: bytes, *, end: bool = False) -> bytes:
    """Return the answer to *data*; with *end* no more follows, which a caller that leaves says."""
    opened = connect(directory)
    assert opened is not None
    found = b""
    with opened:
        opened.settimeout(30)
        with suppress(OSError):
            opened.sendall(data)
            if end:
                opened.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while part := opened.recv(65536):
                found += part
    return found


def _one() -> int:
    return 1


def _nothing(event: Any) -> None: ...

"""A running service is operated through itself: the commands, its socket, and bad input to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

import harn
from harn.cli import invoke
from harn.errors import StorageError
from harn.orchestrator import SOCKET, connect, own
from tests.orchestrator.processes import Process, ledger, serving, until

HANDLERS = """
import asyncio, os, pathlib
import harn

HERE = pathlib.Path(__file__).parent

async def setup():
    await harn.pool_create(name="work", max_concurrent=2)

def write(line):
    with open(HERE / "ledger", "a") as file:
        file.write(f"{os.getpid()} {line}" + chr(10))

def work(event):
    async def run():
        what = event.get("provider_payload.payload")
        write(f"begun {what}")
        while what == "wait" and not (HERE / "go").exists():
            await asyncio.sleep(0.02)
        if what == "fail" and not (HERE / "mended").exists():
            raise RuntimeError("boom")
        write(f"done {what}")
    return run

def boom(event):
    if not (HERE / "mended").exists():
        raise RuntimeError("boom")
    write("mended")

def note(event):
    write(event.get("provider_payload.payload"))
"""
TRIGGER = """
[[triggers]]
id = "{id}"
kind = "channel.emit"
provider = "channel"
match = {{ events = ["channel:{id}"] }}
handler = {handler}
retry = {{ max = 1, backoff = "immediate" }}
"""
HEAD = """
[exports]
handlers = "handlers.py"
[orchestrator]
setup = "handlers::setup"
[serve]
queues = []
"""
KEY = "an operator's key, long enough"

Run = Callable[..., tuple[int, Any, str]]


def manifest(head: str = HEAD, **more: str) -> str:
    wanted = {
        "pooled": '{ pool = "work", task_factory = "handlers::work" }',
        "boom": '"handlers::boom"',
        "note:x": '"handlers::note"',
        **more,
    }
    return head + "".join(TRIGGER.format(id=id, handler=to) for id, to in wanted.items())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "harn.toml").write_text(manifest())
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


@pytest.fixture
def service(place: Path) -> Iterator[Process]:
    with serving(place) as process:
        process.reports("ready")
        yield process


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """Run a command of the orchestrator in *place*, and read its one document."""
    monkeypatch.chdir(place)

    def run(*argv: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = invoke(["orchestrator", *argv, "--state-dir", "state", "--json"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out else None, shown.err

    return run


def test_fire_is_done_by_the_service_and_says_so(service: Process, run: Run, place: Path) -> None:
    code, document, err = run("fire", "pooled", "--payload", '"x"', "--tenant", "acme")

    pid = service.process.pid
    assert code == 0
    assert err == "asking the service of this directory: state/admin.sock\n"
    assert document["via"] == "state/admin.sock"
    assert document["work"] == {"completed": 1, "failed": 0, "unfinished": 0}
    assert ledger(place) == [f"{pid} begun x", f"{pid} done x"]
    [line] = [each for each in service.lines if "POST /api/v1/triggers/pooled/fire: 200" in each]
    assert "from admin.sock" in line


def test_a_name_with_a_slash_reaches_its_queue(service: Process, run: Run) -> None:
    code, report, _ = run("queue", "drain", "a/b %2F")

    assert (code, report["queue"]) == (0, "a/b %2F")


def test_exit_codes_are_those_of_a_command_without_a_service(service: Process, run: Run) -> None:
    code, document, err = run("fire", "boom")
    assert (code, document["status"]) == (1, "dlq")
    assert err.splitlines()[1].startswith("error: boom: dead letter ")

    code, document, err = run("fire", "pooled", "--payload", '"fail"')
    assert code == 1 and "RuntimeError: boom" in err

    code, document, err = run("fire", "poled")
    assert (code, document) == (1, None)
    assert "no trigger 'poled'; did you mean 'pooled'?" in err

    code, document, err = run(
        "fire", "pooled", "--payload", '"wait"', "--shutdown-timeout", "100ms"
    )
    assert code == 1 and "had not ended in time" in err


def test_dead_letters_and_events_are_replayed_by_the_service(
    service: Process, run: Run, place: Path
) -> None:
    letter = run("fire", "boom")[1]["dlq_entry_id"]
    code, document, _ = run("dlq", "--replay", letter)
    assert (code, document["handles"][0]["status"]) == (1, "dlq")

    (place / "mended").write_text("")
    code, document, _ = run("dlq", "--replay", letter)
    assert (code, document["via"]) == (0, "state/admin.sock")
    assert run("dlq", "--replay", letter)[0] == 1

    event = run("fire", "pooled", "--payload", '"x"')[1]["event_id"]
    code, document, _ = run("replay", event)
    assert (code, document["work"][0]["completed"]) == (0, 1)
    assert run("replay", event, "--trigger", "boom")[0] == 1
    assert run("replay", "no such")[0] == 1
    assert {line.split()[0] for line in ledger(place)} == {str(service.process.pid)}


def test_a_queue_is_drained_by_the_service(place: Path, run: Run) -> None:
    (place / "harn.toml").write_text(manifest(queued='"worker://triage"'))
    for n in range(3):
        assert run("fire", "queued", "--payload", str(n))[0] == 0
    (place / "harn.toml").write_text(manifest(queued='"handlers::note"'))

    with serving(place) as service:
        service.reports("ready")
        code, report, err = run("queue", "drain", "triage", "--consumer-id", "me")

        assert (code, report["acked"], report["consumer_id"]) == (0, 3, "me")
        assert report["via"] == "state/admin.sock" and err.count("\n") == 1
        assert run("queue", "drain", "triag")[1]["note"].startswith("no job was ever put")
    pid = service.process.pid
    assert sorted(ledger(place)) == [f"{pid} {n}" for n in range(3)]


def test_a_job_in_a_session_pool_survives_the_service(place: Path, run: Run) -> None:
    (place / "harn.toml").write_text(manifest(pooled='"worker://triage"'))
    assert run("fire", "pooled", "--payload", '"wait"')[0] == 0
    (place / "harn.toml").write_text(manifest(HEAD.replace("[]", '["triage"]')))
    env = {"HARN_LEASE_MS": "1000", "HARN_LEASE_RENEW_MS": "200"}
    begun = []

    for number in (signal.SIGKILL, signal.SIGTERM):
        with serving(place, env=env) as service:
            begun.append(f"{service.process.pid} begun wait")
            until(lambda: ledger(place) == begun)
            service.signal(number)
            service.ends()
    (place / "go").touch()
    with serving(place, env=env) as service:
        until(lambda: len(ledger(place)) == 4)
        until(lambda: run("queue", "ls")[1]["worker_queues"][0]["acked"])

    assert ledger(place) == [
        *begun,
        f"{service.process.pid} begun wait",
        f"{service.process.pid} done wait",
    ]


def test_reload_asks_the_service_and_needs_one(place: Path, run: Run) -> None:
    assert run("reload")[0] == 1
    with serving(place) as service:
        service.reports("ready")
        (place / "harn.toml").write_text(manifest(more='"handlers::note"'))
        code, document, _ = run("reload")
        assert (code, document["triggers"]) == (0, 4)
        assert "triggers.more" in document["manifest"]

        (place / "harn.toml").write_text("[nonsense]")
        code, document, err = run("reload")
        assert (code, document) == (1, None) and "nonsense" in err
        assert run("fire", "more", "--payload", '"still there"')[0] == 0


def test_a_client_that_goes_away_leaves_the_work_running(service: Process, place: Path) -> None:
    command = [sys.executable, "-m", "harn", "orchestrator", "fire", "pooled"]
    client = subprocess.Popen([*command, "--payload", '"wait"', "--state-dir", "state"], cwd=place)
    pid = service.process.pid
    until(lambda: f"{pid} begun wait" in ledger(place))
    client.kill()
    client.wait(timeout=20)
    (place / "go").write_text("")

    until(lambda: f"{pid} done wait" in ledger(place))


def test_the_service_ends_under_a_waiting_client(service: Process, place: Path) -> None:
    command = [sys.executable, "-m", "harn", "orchestrator", "fire", "pooled"]
    client = subprocess.Popen(
        [*command, "--payload", '"wait"', "--state-dir", "state"],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: f"{service.process.pid} begun wait" in ledger(place))
    service.signal(signal.SIGKILL)

    _, err = client.communicate(timeout=60)
    assert client.returncode == 1
    assert "ended before it answered" in err.splitlines()[-1]


def test_another_manifest_or_store_than_the_services_is_refused(
    service: Process, run: Run, place: Path
) -> None:
    (place / "other.toml").write_text(manifest())
    code, _, err = run("fire", "pooled", "--config", "other.toml")
    assert code == 1 and "harn.toml, not other.toml" in err

    code, _, err = run("fire", "pooled", "--storage", "memory://")
    assert code == 1 and "not memory://" in err
    assert run("fire", "pooled", "--config", "harn.toml")[0] == 0


def test_the_socket_is_private_and_goes_with_the_service(place: Path, run: Run) -> None:
    with serving(place) as service:
        service.reports("ready")
        path = place / "state" / SOCKET
        about = path.stat()
        assert (stat.S_IMODE(about.st_mode), stat.S_ISSOCK(about.st_mode)) == (0o600, True)
        service.signal(signal.SIGTERM)
        assert service.ends() == 0
    assert not path.exists()
    assert "via" not in run("fire", "pooled")[1]


def test_a_leftover_of_a_killed_service_is_no_service_and_is_replaced(
    place: Path, run: Run
) -> None:
    with serving(place) as service:
        service.reports("ready")
        service.signal(signal.SIGKILL)
        service.ends()
    assert (place / "state" / SOCKET).exists()
    code, document, err = run("fire", "pooled")
    assert (code, err) == (0, "") and "via" not in document

    with serving(place) as service:
        service.reports("ready")
        assert run("fire", "pooled")[1]["via"] == "state/admin.sock"


def test_a_service_whose_socket_is_gone_is_a_clear_error(service: Process, run: Run) -> None:
    (service.directory / "state" / SOCKET).unlink()

    code, _, err = run("fire", "pooled")
    assert code == 1
    assert f"a service (process {service.process.pid}) runs on state" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("what", ["link", "file", "directory"])
def test_anything_else_in_the_sockets_place_is_not_touched(
    place: Path, run: Run, what: str
) -> None:
    target = place / "target"
    target.write_text("mine")
    (place / "state").mkdir(mode=0o700)
    path = place / "state" / SOCKET
    if what == "link":
        path.symlink_to(target)
    elif what == "file":
        path.write_text("mine")
    else:
        path.mkdir()

    with serving(place) as service:
        assert service.ends() == 1
    assert "is not a socket; move it away" in service.lines[-1]
    code, _, err = run("fire", "pooled")
    assert code == 1 and "is not a socket" in err
    assert target.read_text() == "mine" and path.exists()


def test_a_link_to_the_socket_of_another_service_is_not_followed(
    service: Process, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = place / "elsewhere"
    (elsewhere / "state").mkdir(parents=True, mode=0o700)
    (elsewhere / "state" / SOCKET).symlink_to(place / "state" / SOCKET)
    monkeypatch.chdir(elsewhere)

    code, _, err = run("fire", "pooled")
    assert code == 1 and "is not a socket" in err


def test_another_service_takes_the_socket_over_when_the_owner_ends(place: Path, run: Run) -> None:
    with serving(place) as first, serving(place) as second:
        first.reports("ready")
        second.reports("ready")
        assert run("fire", "pooled", "--payload", '"a"')[0] == 0
        owner = int(ledger(place)[0].split()[0])
        other = second if owner == first.process.pid else first
        (second if other is first else first).signal(signal.SIGTERM)

        until(lambda: run("fire", "pooled", "--payload", '"b"')[0] == 0)
        until(lambda: f"{other.process.pid} done b" in ledger(place) or run_again(run))


def run_again(run: Run) -> bool:
    run("fire", "pooled", "--payload", '"b"')
    return False


def test_a_directory_longer_than_a_sockets_address_works(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = place / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    for name in ("harn.toml", "handlers.py"):
        (place / name).rename(deep / name)
    monkeypatch.chdir(deep)
    state = str(deep / "state")

    with serving(deep) as service:
        service.reports("ready")
        code = invoke(["orchestrator", "fire", "pooled", "--payload", '"x"', "--state-dir", state])

    assert code == 0
    assert f"{service.process.pid} done x" in ledger(deep)
    assert len(state) > 108


def test_only_one_service_owns_a_directory(tmp_path: Path) -> None:
    first = own(tmp_path)
    assert first is not None
    assert own(tmp_path) is None
    first.close()

    again = own(tmp_path)
    assert again is not None
    again.close()
    assert connect(tmp_path) is None


# -- bad input -----------------------------------------------------------------------------------


@contextlib.contextmanager
def dialled(place: Path) -> Iterator[socket.socket]:
    opened = connect(place / "state")
    assert opened is not None
    with opened:
        opened.settimeout(30)
        yield opened


def exchange(place: Path, data: bytes, *, end: bool = True) -> bytes:
    """Send *data*, say that no more follows, and return everything that comes back."""
    with dialled(place) as opened:
        with contextlib.suppress(OSError):
            opened.sendall(data)
            if end:
                opened.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(OSError):
            while part := opened.recv(65536):
                found += part
        return found


def request(path: str, body: bytes = b"", method: str = "POST", more: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


FIRE = "/api/v1/triggers/pooled/fire"
BAD: list[tuple[bytes, bytes]] = [
    (b"\x00\xff garbage \r\n\r\n", b"400"),
    (os.urandom(4096), b""),
    (b"GET", b""),
    (b"POST /api/v1/reload HTTP/1.1\r\nHost: x\r\n", b""),
    (request(FIRE, b"x" * 10)[:-5], b""),
    (request(FIRE, b"x" * 10_000_000), b"413"),
    (b"POST /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", b"4"),
    (request(FIRE, b"[]"), b"400"),
    (request(FIRE, b"{"), b"400"),
    (request(FIRE, b"[" * 100_000), b"400"),
    (request(FIRE, b"\xff\xfe"), b"400"),
    (request(FIRE, b'{"work_within": 1e999}'), b"400"),
    (request(FIRE, b'{"work_within": "soon"}'), b"400"),
    (request(FIRE, b'{"nonsense": 1}'), b"400"),
    (request(FIRE, b'{"tenant": "a\\u0000b"}'), b"400"),
    (request("/api/v1/triggers/%00/fire"), b"404"),
    (request("/api/v1/queues/..%2F..%2Fx%00/drain"), b"400"),
    (request("/api/v1/nonsense"), b"404"),
    (request("/metrics", method="GET"), b"404"),
    (request(FIRE, method="GET"), b"405"),
    (request(FIRE, more="Origin: http://evil.test\r\n"), b"403"),
    (request("/api/v1/dead-letters/x/replay"), b"404"),
]


def test_bad_input_leaves_the_service_unharmed(service: Process, run: Run, place: Path) -> None:
    for data, status in BAD:
        answer = exchange(place, data, end=not status)  # a half request is only given up at its end
        first = answer.split(b"\r\n")[0]
        assert status in first, (data[:60], answer[:200])
        assert b" 500 " not in first
        if b"{" in answer:
            assert {"error", "code"} <= json.loads(answer[answer.index(b"{") :]).keys()

    code, _, _ = run("fire", "pooled", "--payload", '"x"')
    assert code == 0
    assert service.process.poll() is None
    assert not any("Traceback" in line for line in service.lines)
    assert [line.split(" ", 1)[1] for line in ledger(place)] == ["begun x", "done x"]


def test_a_hundred_connections_do_not_keep_a_command_out(
    service: Process, run: Run, place: Path
) -> None:
    with contextlib.ExitStack() as stack:
        for n in range(100):
            opened = stack.enter_context(dialled(place))
            opened.sendall((b"", b"POST ", b"POST /api/v1/reload HTTP/1.1\r\nHost: x\r\n")[n % 3])
        code, _, _ = run("fire", "pooled", "--payload", '"x"')

    assert code == 0
    assert service.process.poll() is None


def test_a_caller_that_does_not_read_holds_up_nothing(
    service: Process, run: Run, place: Path
) -> None:
    with dialled(place) as opened:
        ask = request(FIRE, b'{"payload": "wait"}', more="Accept: application/x-ndjson\r\n")
        opened.sendall(ask)
        until(lambda: any("begun wait" in line for line in ledger(place)))

        assert run("fire", "note:x", "--payload", '"y"')[0] == 0
        (place / "go").write_text("")
        until(lambda: any("done wait" in line for line in ledger(place)))


def test_many_commands_at_once_are_all_answered(service: Process, place: Path) -> None:
    def ask(n: int) -> bytes:
        asked = request("/api/v1/triggers/note%3Ax/fire", b'{"payload": "%d"}' % n)
        return exchange(place, asked, end=False)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(ask, range(60)))

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert len(ledger(place)) == 60
    assert threading.active_count() < 60


# -- the same verbs over HTTP --------------------------------------------------------------------


def test_the_same_verbs_are_there_over_http_for_operators_only(place: Path, run: Run) -> None:
    head = HEAD.replace("queues = []", 'queues = []\nkeys = ["OPERATOR"]')
    (place / "harn.toml").write_text(manifest(head))
    with serving(place, env={"OPERATOR": KEY}) as service:
        url = service.url

        def post(path: str, body: Any = None, **headers: str) -> httpx2.Response:
            given = {"Authorization": f"Bearer {KEY}", **headers}
            target = f"{url}/api/v1/{path}"
            return httpx2.post(target, json=body, headers=given, trust_env=False, timeout=60)

        fired = post("triggers/pooled/fire", {"payload": "x"})
        assert (fired.status_code, fired.json()["status"]) == (200, "dispatched")
        replayed = post(f"events/{fired.json()['event_id']}/replay")
        assert replayed.json()["work"][0]["completed"] == 1
        letter = post("triggers/boom/fire").json()["dlq_entry_id"]
        assert post(f"dead-letters/{letter}/discard").json()["discarded"]["state"] == "discarded"
        assert post(f"dead-letters/{letter}/replay").status_code == 409
        assert post("reload").json()["manifest"] == []

        for path in ("triggers/pooled/fire", "reload", "nonsense"):
            assert post(path, Authorization="Bearer not the key").status_code == 401
            assert post(path, Origin="http://evil.test").status_code == 403
            assert post(path, Origin=url).status_code in (200, 404)
        missing = post("triggers/poled/fire")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_without_keys_nothing_can_be_done_over_http(service: Process, place: Path) -> None:
    answer = httpx2.post(f"{service_url(service)}{FIRE}", trust_env=False)

    assert answer.status_code == 401
    assert ledger(place) == []


def service_url(service: Process) -> str:
    listening = next(json.loads(line) for line in service.lines if '"ready"' in line)
    return f"http://{listening['bind']}"


# -- jobs and queues -----------------------------------------------------------------------------


def enqueue(place: Path, count: int) -> None:
    async def main() -> None:
        await harn.worker_queue("triage").enqueue_many(range(count))

    harn.run(main, state_dir=place / "state")


def test_jobs_are_cancelled_and_queues_paused_by_the_service(
    service: Process, run: Run, place: Path
) -> None:
    enqueue(place, 2)

    code, cancelled, err = run("queue", "cancel", "triage", "1", "--reason", "a mistake")
    paused = run("queue", "pause", "triage", "--reason", "a deploy")

    assert (code, cancelled["via"]) == (0, "state/admin.sock")
    assert err == "asking the service of this directory: state/admin.sock\n"
    assert (cancelled["job"]["status"], cancelled["job"]["error"]) == ("cancelled", "a mistake")
    assert (paused[0], paused[1]["via"]) == (0, "state/admin.sock")
    assert paused[1]["summary"]["paused"] is True
    code, document, err = run("queue", "retry", "triage", "2")
    assert (code, document) == (1, None)
    assert err.splitlines()[1].endswith("is ready: only a dead job can be retried")
    assert run("queue", "resume", "triage")[1]["summary"]["paused"] is False


def test_jobs_and_queues_over_http_answer_404_and_409(place: Path) -> None:
    head = HEAD.replace("queues = []", 'queues = []\nkeys = ["OPERATOR"]')
    (place / "harn.toml").write_text(manifest(head))
    enqueue(place, 2)
    with serving(place, env={"OPERATOR": KEY}) as service:
        url = service.url

        def post(path: str, body: Any = None) -> tuple[int, Any]:
            given = {"Authorization": f"Bearer {KEY}"}
            target = f"{url}/api/v1/queues/{path}"
            answer = httpx2.post(target, json=body, headers=given, trust_env=False, timeout=60)
            return answer.status_code, answer.json()

        status, document = post("triage/jobs/1/cancel", {"reason": "a mistake"})
        assert (status, document["job"]["status"]) == (200, "cancelled")
        assert post("triage/jobs/1/cancel")[0] == 409
        assert post("triage/jobs/2/retry")[0] == 409
        assert post("triage/jobs/99/cancel")[0] == post("triage/jobs/x/retry")[0] == 404
        assert post("triag/jobs/1/cancel")[0] == post("triag/pause")[0] == 404
        assert post("triage/pause", {"tenant": 7})[0] == post("triage/pause", {"x": 1})[0] == 400
        assert post("triage/pause", {"tenant": "acme"})[1]["summary"]["paused_keys"] == ["acme"]
        assert post("triage/pause", {"tenant": "acme"})[0] == 409
        assert post("triage/resume", {"tenant": "acme"})[0] == 200
        assert post("triage/resume")[0] == 409


def test_the_socket_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(SOCKET)
        listening.listen()
        listening.setblocking(False)
        ours = connect(tmp_path)
        assert ours is not None
        listening.accept()[0].close()
        ours.close()
        if os.geteuid() == 0:
            os.chown(SOCKET, 65534, -1)
        else:  # only root can give a file away
            fields = list(os.lstat(SOCKET))
            fields[stat.ST_UID] += 1
            told = os.stat_result(fields)
            monkeypatch.setattr("harn.orchestrator.admin_socket._lstat", lambda folder: told)

        with pytest.raises(StorageError, match="belongs to another user, so it is not used"):
            connect(tmp_path)

        with pytest.raises(BlockingIOError):  # it was not even asked
            listening.accept()

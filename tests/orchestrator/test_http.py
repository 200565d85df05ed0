"""A real client against the served application."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from harn import event_log_read, topics, worker_queue
from harn.orchestrator import intake as intake_module
from harn.portal import http_messages, http_server
from harn.triggers import SCHEMES, Scheme
from tests.orchestrator.served import NEW, OLD, Site, site


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_signed_request_is_accepted_and_dispatched(scheme: Scheme) -> None:
    async with site() as served:
        answer = await served.send(scheme, {"type": "thing", "n": 1})
        await served.settled()

    assert answer.status_code == 202
    [event] = served.seen
    assert answer.json() == {"status": "accepted", "event_id": event.id}
    assert event.provider_payload["payload"] == {"type": "thing", "n": 1}
    assert event.signature == "verified"


async def test_T1_a_2xx_means_that_the_event_is_durable(tmp_path: Path) -> None:
    async with site(f"sqlite:///{tmp_path}/x.sqlite") as served:
        answer = await served.send("github", {"zen": "x"})
        envelopes = await event_log_read(topics.TRIGGER_ENVELOPES)

    assert answer.status_code == 202
    assert [e.payload["event"]["id"] for e in envelopes] == [answer.json()["event_id"]]


async def test_G15_valid_requests_under_two_rotated_keys_are_all_accepted() -> None:
    async with site() as served:
        answers = [
            await served.send(scheme, {"n": n}, (OLD, NEW)[n % 2], id=f"m{n}")
            for n in range(250)
            for scheme in SCHEMES
        ]
        await served.settled()

    assert {answer.status_code for answer in answers} == {202}
    assert len(served.seen) == 1000


async def test_S4_an_unknown_path_looks_like_a_bad_signature() -> None:
    async with site() as served:
        unknown = await served.client.post("/hooks/nothing", content=b"{}")
        wrong = await served.client.post("/hooks/github", content=b"{}")

    assert (unknown.status_code, unknown.content) == (wrong.status_code, wrong.content)
    assert dict(unknown.headers) == dict(wrong.headers)


async def test_verification_comes_before_parsing() -> None:
    async with site() as served:
        unsigned = await served.client.post("/hooks/github", content=b"\xff not json")
        signed = await served.send("github", b"\xff not json")

    assert (unsigned.status_code, signed.status_code) == (401, 400)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_T2_a_repetition_is_answered_but_not_dispatched(
    scheme: Scheme, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/x.sqlite"
    async with site(url) as served:
        first = await served.send(scheme, {"id": "e1", "n": 1})
        again = [await served.send(scheme, {"id": "e1", "n": 1}) for _ in range(3)]
        await served.settled()
    async with site(url) as later:
        after_restart = await later.send(scheme, {"id": "e1", "n": 1})
        await later.settled()

    assert [len(served.seen), len(later.seen)] == [1, 0]
    for answer in (*again, after_restart):
        assert answer.status_code == 200
        assert answer.json() == {"status": "duplicate", "event_id": first.json()["event_id"]}


async def test_S5_the_same_id_with_another_body_is_a_conflict() -> None:
    async with site() as served:
        first = await served.send("standard", {"n": 1}, id="msg_7")
        second = await served.send("standard", {"n": 2}, id="msg_7")
        await served.settled()
        audit = [
            e for e in await event_log_read(topics.TRIGGER_INTAKE) if e.kind == "delivery_conflict"
        ]

    assert (first.status_code, second.status_code) == (202, 409)
    assert len(served.seen) == 1
    assert audit[0].payload["event_id"] == first.json()["event_id"]


async def test_S24_a_captured_body_dispatches_once_whatever_its_headers_say() -> None:
    async with site() as served:
        for n in range(100):
            await served.send(
                "github",
                {"action": "opened", "pull_request": {"id": 5}},
                headers={
                    "x-github-delivery": str(n),
                    "x-github-event": f"kind{n}",
                    "x-webhook-source": f"s{n}",
                },
            )
        await served.settled()

    [event] = served.seen
    assert event.kind == "pull_request.opened"


async def test_S12_the_tenant_belongs_to_the_key_and_not_to_the_payload() -> None:
    async with site() as served:
        for key, tenant in ((b"key of acme 12345", "acme"), (b"key of other 6789", "other")):
            answer = await served.client.post(
                "/a2a",
                json={"tenant_id": "forged", "n": 1},
                headers={"authorization": f"Bearer {key.decode()}", "x-tenant-id": "forged"},
            )
            assert answer.status_code == 202
        await served.settled()

    assert [event.tenant_id for event in served.seen] == ["acme", "other"]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Basic key of acme 12345",
        "key of acme 12345",
        "Bearer é",
    ],
)
async def test_an_agent_without_its_key_is_refused(authorization: str | None) -> None:
    async with site() as served:
        headers = {} if authorization is None else {b"authorization": authorization.encode()}
        answer = await served.client.post("/a2a", json={}, headers=headers)

    assert answer.status_code == 401


async def test_an_agents_call_is_answered_in_its_own_terms() -> None:
    call = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "SendMessage",
        "params": {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
    }
    headers = {"authorization": "Bearer key of acme 12345"}
    async with site() as served:
        answers = [
            (await served.client.post("/a2a", json=call, headers=headers)).json() for _ in range(2)
        ]
        odd = [
            await served.client.post("/a2a", json={**call, "method": method}, headers=headers)
            for method in ("GetTask", "Evil")
        ]
        await served.settled()

    assert answers[0]["result"]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert answers[0] == answers[1]
    assert [each.json()["error"]["code"] for each in odd] == [-32004, -32601]
    assert served.seen[0].kind == "a2a.task.received"


async def test_slacks_challenge_is_answered_once_it_is_signed() -> None:
    async with site() as served:
        answer = await served.send("slack", {"type": "url_verification", "challenge": "abc"})
        unsigned = await served.client.post(
            "/hooks/slack", json={"type": "url_verification", "challenge": "abc"}
        )

    assert answer.json() == {"challenge": "abc"}
    assert unsigned.status_code == 401


async def test_S15_large_bodies_are_refused_before_they_are_read() -> None:
    async with site() as served:
        declared = await raw(
            served, b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n"
        )
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        chunked = await raw(
            served,
            b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk * 17,
        )
        alive = await served.client.get("/healthz")

    assert b" 413 " in declared.split(b"\r\n")[0]
    assert b" 413 " in chunked.split(b"\r\n")[0]
    assert alive.status_code == 200


async def test_S15_a_slow_body_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_messages, "READ_WITHIN", 0.2)
    async with site() as served:
        answer = await raw(
            served, b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab"
        )

    assert b" 408 " in answer.split(b"\r\n")[0]


async def test_S15_slow_heads_are_cut_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "HEAD_WITHIN", 0.3)
    async with site() as served:
        connections = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(200)]
        for _, writer in connections:
            writer.write(b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        meanwhile = await served.send("github", {"n": 1})
        ends = await asyncio.gather(*(rest(reader) for reader, _ in connections))
        for _, writer in connections:
            writer.close()

    assert meanwhile.status_code == 202
    assert set(ends) == {b""}


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 150 + b"]" * 150,
        b"[" * 300 + b"]" * 300,
        b"1" * 5000,
        b'{"a":' + b"9" * 4400 + b"}",
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"",
        b"null",
        b"NaN",
        b'{"a": 1e999}',
        b'{"type": "\\u0000"}',
        b"\x1f\x8b gzip",
    ],
    ids=range(13),
)
async def test_S15_odd_json_is_never_a_5xx(body: bytes) -> None:
    async with site() as served:
        answer = await served.send("github", body)
        await served.settled()

    assert answer.status_code in (202, 400)


async def test_a_compressed_body_is_refused() -> None:
    async with site() as served:
        answer = await served.send("github", b"\x1f\x8b", headers={"content-encoding": "gzip"})

    assert answer.status_code == 415


async def test_overload_is_a_503_with_a_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "BURST_PER_SENDER", 5)
    monkeypatch.setattr(intake_module, "REFILL_PER_S", 0.0)
    async with site() as served:
        answers = [await served.send("github", {"n": n}) for n in range(8)]

    assert [a.status_code for a in answers] == [202] * 5 + [503] * 3
    assert answers[-1].headers["retry-after"] == "1"


async def test_S25_a_flood_of_bad_requests_hardly_grows_the_log() -> None:
    async with site() as served:
        await asyncio.gather(
            *(served.client.post("/hooks/github", content=b"{}") for _ in range(300))
        )
        await served.runtime.event_log.flush()
        audit = await event_log_read(topics.TRIGGER_INTAKE)
        refused = served.intake.answers["401"]

    assert refused == 300
    assert len(audit) == 1


async def test_health_readiness_version_and_metrics() -> None:
    async with site() as served:
        await served.send("github", {"n": 1})
        pages = {
            path: await served.client.get(path)
            for path in ("/health", "/healthz", "/readyz", "/version", "/metrics")
        }
        served.intake.draining = True
        draining = await served.client.get("/readyz")
        busy = await served.send("github", {"n": 2})

    assert {page.status_code for page in pages.values()} == {200}
    assert 'harn_trigger_requests_total{answer="202"} 1.0' in pages["/metrics"].text
    assert pages["/version"].json()["version"]
    assert (draining.status_code, busy.status_code) == (503, 503)


async def test_the_metrics_carry_the_queues_of_the_store() -> None:
    async with site() as served:
        await worker_queue("triage").enqueue({"pr": 1984}, tenant_id="acme")
        text = (await served.client.get("/metrics")).text

    assert 'harn_worker_queue_depth{queue="triage"} 1.0' in text
    assert "harn_scheduler_oldest_eligible_age_seconds{" in text


@pytest.mark.parametrize("path", ["/metrics", "/version"])
async def test_S3_operators_pages_need_a_key_once_there_are_keys(path: str) -> None:
    async with site(admin_keys=[b"an operator's key"]) as served:
        answers = [
            (await served.client.get(path, headers=headers)).status_code
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Basic an operator's key"},
                {"authorization": "Bearer an operator's key"},
            )
        ]

    assert answers == [401, 401, 401, 200]


async def test_S7_without_keys_only_this_machines_names_may_look() -> None:
    async with site() as served:
        rebound = await served.client.get("/metrics", headers={"host": "evil.test"})
        reload = await served.client.post("/admin/reload")
        get = await served.client.get("/hooks/github")

    assert (rebound.status_code, reload.status_code, get.status_code) == (401, 401, 405)


async def test_S13_no_secret_reaches_the_log_an_event_or_an_answer() -> None:
    canary = "canary-0123456789"
    async with site() as served:
        for headers in (
            {"authorization": f"Bearer {canary}"},
            {"x-api-key": canary},
            {"cookie": canary},
        ):
            answer = await served.send("github", {"n": str(headers)[:5]}, headers=headers)
            assert canary not in answer.text
        await served.settled()
        stored = json.dumps(
            [
                e.as_dict()
                for t in topics.TOPICS
                if "<" not in t.name
                for e in await event_log_read(t.name)
            ]
        )
        metrics = (await served.client.get("/metrics")).text

    assert canary not in stored
    assert canary not in metrics
    assert NEW.decode() not in stored
    assert all(canary not in str(event) for event in served.seen)


async def test_malformed_requests_are_counted_and_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site() as served:
        for _ in range(50):
            assert b"400" in await raw(served, b"\x16\x03\x01\x9b \x1b[2J\r\n\r\n")
        early = [record.getMessage() for record in caplog.records]

    assert early == ["malformed requests: 1 refused"]
    assert [record.getMessage() for record in caplog.records][1:] == [
        "malformed requests: 49 refused"
    ]
    assert {record.name for record in caplog.records} == {"harn.portal"}


async def test_an_answer_repeats_nothing_that_a_terminal_obeys() -> None:
    async with site() as served:
        body = b'{"type":"url_verification","challenge":"a\\u009b\\u202e"}'
        answer = await served.send("slack", body)

    assert answer.status_code == 200
    assert b"a\\u009b\\u202e" in answer.content


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Read to the end, which a slow machine may see as a reset."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def raw(served: Site, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read(4096)
    finally:
        writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "BREW"])
async def test_an_unknown_path_is_404_in_json_and_a_wrong_method_405(method: str) -> None:
    async with site() as served:
        unknown = await served.client.request(method, "/nowhere/at/all")
        hook = await served.client.request(method, "/hooks/github")
        post = await served.client.post("/healthz")

    assert unknown.status_code == 404
    assert (hook.status_code, hook.headers["allow"]) == (405, "POST")
    assert (post.status_code, post.headers["allow"]) == (405, "GET, HEAD")
    for answer in (unknown, hook, post):
        assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert unknown.json() == {"error": "not found"}
        assert hook.json() == {"error": f"{method} is not allowed"}


async def test_a_post_to_an_unknown_path_still_says_nothing_of_what_is_there() -> None:
    async with site() as served:
        unknown = await served.client.post("/nowhere", content=b"{}")
        unsigned = await served.client.post("/hooks/github", content=b"{}")

    assert (unknown.status_code, unknown.json()) == (unsigned.status_code, unsigned.json())
    assert unknown.status_code == 401

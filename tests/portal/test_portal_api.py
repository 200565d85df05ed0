"""The JSON API under /api/v1/: what it shows, what it does, whom it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Job, Runtime, drain, topics, worker_queue
from harn.orchestrator import ActedBy, Options, Service
from harn.portal import shared_reads, store_snapshot
from harn.storage import Store
from harn.testing import FakeClock
from tests.portal.portal_site import KEY, events, portal

KEYS = (KEY.encode(),)
AT_ONCE = harn.RetryPolicy(backoff=0, jitter=0)


def broken(job: Job) -> None:
    raise ValueError("no luck")


async def fill() -> None:
    queue = worker_queue("triage")
    await queue.enqueue({"pr": 1}, tenant_id="acme", max_attempts=1)
    await drain("triage", broken, consumer_id="worker-a")
    await queue.enqueue({"pr": 2}, tenant_id="acme")
    await queue.enqueue({"pr": 3}, tenant_id="other", not_before="1h")


async def test_the_queues_and_their_jobs_are_shown(storage_url: str) -> None:
    async with portal(storage_url) as site:
        await fill()

        [queue] = (await site.document("queues"))["queues"]
        assert (queue["queue"], queue["ready"], queue["scheduled"], queue["dead"]) == (
            *("triage", 1, 1),
            1,
        )
        one = await site.document("queues/triage")
        assert one["ready"] == 1 and one["scheduler"]["keys"]
        jobs = (await site.document("queues/triage/jobs"))["jobs"]
        assert [each["status"] for each in jobs] == ["dead", "ready", "scheduled"]
        assert [each["id"] for each in jobs] == [1, 2, 3]
        assert jobs[0]["waiting"] is None
        assert jobs[1]["waiting"]["why"].startswith("it is the next of the queue")
        assert jobs[1]["waiting"]["start"]["text"] == "unknown: no consumer of this queue is alive"

        assert [each["payload"] for each in jobs] == [{"pr": 1}, {"pr": 2}, {"pr": 3}]
        for each in jobs:
            alone = await site.document(f"queues/triage/jobs/{each['id']}")
            assert {**each, "waiting": None}.items() <= {**alone, "waiting": None}.items()


async def test_a_page_of_jobs_is_filtered_and_continued(storage_url: str) -> None:
    async with portal(storage_url) as site:
        queue = worker_queue("triage")
        await queue.enqueue_many([harn.NewJob(n, tenant_id="ab"[n % 2]) for n in range(7)])

        first = await site.document("queues/triage/jobs?limit=3")
        second = await site.document(f"queues/triage/jobs?limit=10&after={first['next']}")
        of_b = await site.document("queues/triage/jobs?status=ready&tenant_id=b&after=&limit=")

    assert [each["id"] for each in first["jobs"] + second["jobs"]] == list(range(1, 8))
    assert (first["next"], second["next"]) == (3, None)
    assert [each["payload"] for each in of_b["jobs"]] == [1, 3, 5]


async def test_every_waiting_job_of_a_page_says_its_place(storage_url: str) -> None:
    async with portal(storage_url) as site:
        queue = worker_queue("triage", harn.SchedulerPolicy(strategy="drr"))
        await queue.enqueue_many([harn.NewJob(n, tenant_id="ab"[n % 2]) for n in range(9)])
        for _ in range(3):
            claim = await queue.claim_next("by-hand")
            assert claim is not None
            await claim.ack()
        await queue.pause(tenant_id="b", reason="a bill")

        shown = (await site.document("queues/triage/jobs?after=2"))["jobs"]
        whys = {each["id"]: each["waiting"] for each in shown if each["waiting"]}
        explained = {
            id: (await site.document(f"queues/triage/jobs/{id}"))["explain"] for id in whys
        }

    ready = [id for id, each in whys.items() if "go first" in each["why"]]
    assert ready, whys
    for id in ready:
        ahead = explained[id]["scheduling"]["ahead_in_key"]
        assert whys[id]["why"].startswith(f"{ahead} job"), (id, whys[id], ahead)
    paused = [each for each in whys.values() if "'b' is paused since" in each["why"]]
    assert len(paused) >= 3
    assert {each["start"]["text"] for each in paused} == {"unknown while paused"}


async def test_a_job_has_its_attempts_with_consumers_and_durations(storage_url: str) -> None:
    async with portal(storage_url) as site:
        queue = worker_queue("triage")
        await queue.enqueue({"pr": 1}, max_attempts=3)

        def handle(job: Job) -> str:
            if job.attempts < 3:
                raise ValueError(f"no luck in attempt {job.attempts}")
            return "done"

        for _ in range(3):
            await drain("triage", handle, consumer_id="worker-a", retry=AT_ONCE)
        job = await site.document("queues/triage/jobs/1")

    assert (job["status"], job["outcome"], job["attempts"]) == ("acked", "done", 3)
    assert [each["status"] for each in job["timeline"]] == ["failed", "failed", "acked"]
    assert [each["attempt"] for each in job["timeline"]] == [1, 2, 3]
    assert {each["consumer_id"] for each in job["timeline"]} == {"worker-a"}
    assert all(each["duration_ms"] >= 0 and each["started_at"] for each in job["timeline"])
    assert job["timeline"][0]["error"] == "ValueError: no luck in attempt 1"


async def test_every_other_list_is_there_and_empty_at_first() -> None:
    lists = ("pools", "limits", "triggers", "usage", "consumers", "supervisors")
    async with portal() as site:
        for name in lists:
            assert (await site.document(name))[name] == [], name
        assert (await site.document("dead-letters"))["dead_letters"] == []
        assert (await site.document("queues")) == {"queues": []}


async def test_a_shared_pool_is_listed_once_with_its_processes(tmp_path: Path) -> None:
    async with portal(f"sqlite:///{tmp_path / 'pools.sqlite'}") as site:
        pool = await harn.pool_create(name="gpu", scope="tenant", scope_id="acme")
        gate = asyncio.Event()
        task = await pool.submit(gate.wait)
        [seen] = (await site.document("pools"))["pools"]
        [consumer] = (found := await site.document("consumers"))["consumers"]
        pages = [(await site.client.get(f"/portal/{page}")).text for page in PLACES]
        gate.set()
        await task

    assert (seen["kind"], seen["pool"], seen["running"]) == ("shared", "gpu", 1)
    [process] = seen["processes"]
    assert (process["process"], process["running"]) == (consumer["consumer_id"], 1)
    assert found["pools"] == {pool.id: "gpu"}
    for page in pages:
        assert consumer["consumer_id"] in page
        assert pool.id not in page


PLACES = ("", "pools", "consumers")
"""The pages that tell of a shared pool's processes."""


async def test_usage_is_added_up_by_the_names_that_are_asked_for() -> None:
    async with portal() as site:
        async with harn.llm_slot("acme", "big-2", input_tokens=900) as slot:
            await slot.settle(input_tokens=870, output_tokens=120)
        found = await site.document("usage?since=1h&by=model,tenant")
        wrong = [await site.get("usage?by=colour"), await site.get("usage?since=soon")]

    assert found["usage"][0]["model"] == "big-2"
    assert found["total"]["output_tokens"] == 120
    assert [each.status_code for each in wrong] == [400, 400]


async def test_the_log_is_read_from_its_end_or_after_an_offset() -> None:
    async with portal() as site:
        for n in range(5):
            await harn.event_log_emit("news", "said", {"n": n})
        newest = await site.document("log/news?limit=2")
        rest = await site.document(f"log/news?after={newest['next']}")
        topics = (await site.document("log"))["topics"]
        missing = await site.get("log/nws")

    assert [each["payload"]["n"] for each in newest["records"]] == [3, 4]
    assert rest["records"] == []
    assert {"topic": "news", "newest": 5} in topics
    assert missing.status_code == 404 and "did you mean 'news'" in missing.json()["error"]


async def test_what_does_not_exist_is_404_and_a_bad_filter_400() -> None:
    async with portal(keys=KEYS) as site:
        await worker_queue("triage").enqueue(1)
        as_key = {"headers": {"Authorization": f"Bearer {KEY}"}}
        wanted = {
            "queues/triag": 404,
            "queues/triag/jobs": 404,
            "queues/triage/jobs/99": 404,
            "queues/triage/jobs/x": 404,
            "nonsense": 404,
            "queues/triage/jobs?status=red": 400,
            "queues/triage/jobs?limit=0": 400,
            "queues/triage/jobs?limit=1001": 400,
            "queues/triage/jobs?limit=many": 400,
            "queues/triage/jobs?after=-1": 400,
            "queues/triage/jobs?colour=red": 400,
            "queues/triage/jobs?limit=1&limit=2": 400,
            "dead-letters?limit=0": 400,
            "log/news?limit=0": 400,
            "dead-letters/export?id=none": 404,
            "queues/triage/pause": 405,
        }
        found = {path: await site.get(path, **as_key) for path in wanted}

    assert {path: each.status_code for path, each in found.items()} == wanted
    for answer in found.values():
        assert answer.json().keys() == {"error", "code"}


async def test_what_an_operator_does_takes_effect_and_is_audited(storage_url: str) -> None:
    async with portal(storage_url, KEYS) as site:
        await fill()
        queue = worker_queue("triage")

        cancelled = await site.post("queues/triage/jobs/2/cancel", {"reason": "a mistake"})
        again = await site.post("queues/triage/jobs/2/cancel")
        retried = await site.post("queues/triage/jobs/1/retry")
        paused = await site.post("queues/triage/pause", {"tenant": "acme"})
        resumed = await site.post("queues/triage/resume", {"tenant": "acme"})

        assert cancelled.json()["job"]["status"] == "cancelled"
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert retried.json()["job"]["status"] == "ready"
        assert paused.json()["summary"]["paused_keys"] == ["acme"]
        assert resumed.json()["summary"]["paused_keys"] == []
        state = await queue.job(1)
        assert state is not None and state.status == "ready"
        audit = await site.audit()

    acts = [(each["verb"], each["ok"]) for each in audit]
    assert acts == [
        ("cancel job", True),
        ("cancel job", False),
        ("retry job", True),
        ("pause queue", True),
        ("resume queue", True),
    ]
    assert {each["who"][:4] for each in audit} == {"key:"}
    assert audit[0]["address"] == "127.0.0.1" and audit[0]["via"] == "key"
    assert audit[0]["options"] == {"queue": "triage", "job": "2", "reason": "a mistake"}
    assert KEY not in json.dumps(audit)


async def test_an_act_that_ends_with_the_service_is_audited_as_failed(tmp_path: Path) -> None:
    class Endless:
        name, needs_manifest = "endless", False

        async def run(self, service: Service, options: Options, tell: Any) -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

    endless: Any = Endless()
    url = f"sqlite:///{tmp_path}/events.sqlite"
    async with Runtime(storage=url) as runtime:
        Service(runtime, None).operate(endless, Options(), ActedBy("key:1", "key", "127.0.0.1"))
        await asyncio.sleep(0)
    async with Runtime(storage=url):
        audit = [each.payload for each in await harn.event_log_read(topics.OPERATORS_AUDIT)]

    assert [(each["verb"], each["ok"], each["error"]) for each in audit] == [
        ("endless", False, "the service stopped before this ended")
    ]


async def test_dead_letters_are_replayed_discarded_and_exported(storage_url: str) -> None:
    async with portal(storage_url, KEYS) as site:
        queue = worker_queue("triage")
        await queue.enqueue_many([harn.NewJob({"n": n}, max_attempts=1) for n in range(3)])
        await drain("triage", broken)
        as_key = {"headers": {"Authorization": f"Bearer {KEY}"}}
        found = await site.document("dead-letters", **as_key)
        first, second, third = (each["id"] for each in found["dead_letters"])

        everything = await site.get("dead-letters/export", **as_key)
        some = await site.post("dead-letters/export", {"ids": [third, first]})
        replayed = await site.post(f"dead-letters/{first}/replay")
        discarded = await site.post(f"dead-letters/{second}/discard", {"reason": "old"})
        again = await site.post(f"dead-letters/{second}/discard")
        left = await site.document("dead-letters", **as_key)
        job = await queue.job(1)

    lines = [json.loads(line) for line in everything.text.splitlines()]
    assert [each["id"] for each in lines] == [first, second, third]
    assert lines[0]["event"] == {"n": 0}
    assert [json.loads(line)["id"] for line in some.text.splitlines()] == [third, first]
    assert "attachment" in some.headers["content-disposition"]
    assert (replayed.status_code, discarded.status_code, again.status_code) == (200, 200, 409)
    assert job is not None and job.status == "ready"
    assert [each["id"] for each in left["dead_letters"]] == [third]


async def test_without_a_manifest_its_verbs_do_not_apply() -> None:
    async with portal(keys=KEYS) as site:
        answers = [
            await site.post("reload"),
            await site.post("triggers/x/fire"),
            await site.post("queues/x/drain"),
        ]

    assert [each.status_code for each in answers] == [409, 409, 409]
    assert "ask the service that runs the manifest" in answers[0].json()["error"]


# -- who may do what -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80", "0.0.0.0", "", "127.0.0.1@x"],
)
async def test_without_keys_only_this_machines_names_are_answered(host: str) -> None:
    async with portal() as site:
        here = await site.get("queues")
        there = await site.client.get("/api/v1/queues", headers={"Host": host})
        stream = await site.client.get("/api/v1/events", headers={"Host": host})

    assert here.status_code == 200
    assert there.status_code == stream.status_code == 401


async def test_without_keys_nothing_can_be_done() -> None:
    async with portal() as site:
        await worker_queue("triage").enqueue(1)
        answer = await site.post("queues/triage/pause")
        summary = await worker_queue("triage").summary()

    assert (answer.status_code, summary.paused) == (401, False)


async def test_a_read_only_portal_refuses_every_post() -> None:
    async with portal(keys=KEYS, read_only=True) as site:
        await worker_queue("triage").enqueue(1)
        posts = ("queues/triage/pause", "queues/triage/jobs/1/cancel", "nonsense")
        answers = [await site.post(path) for path in posts]
        answers.append(await site.post("dead-letters/export"))
        seen = await site.get("queues", headers={"Authorization": f"Bearer {KEY}"})

    assert [(each.status_code, each.json()["code"]) for each in answers] == [(403, "forbidden")] * 4
    assert seen.status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, "Bearer é"])
async def test_with_keys_each_request_needs_one(given: str) -> None:
    headers = {b"authorization": given.encode()} if given else {}
    async with portal(keys=KEYS) as site:
        answers = [
            await site.client.get("/api/v1/queues", headers=headers),
            await site.client.get("/api/v1/events", headers=headers),
            await site.client.get("/metrics", headers=headers),
            await site.client.post("/api/v1/queues/triage/pause", headers=headers),
        ]

    assert [each.status_code for each in answers] == [401] * 4


async def test_a_foreign_page_may_neither_look_nor_act() -> None:
    async with portal(keys=KEYS) as site:
        await worker_queue("triage").enqueue(1)
        origins = {"http://evil.test": 403, "null": 403, site.url: 200}
        acts = {
            origin: (await site.post("queues/triage/jobs/1/cancel", Origin=origin)).status_code
            for origin in origins
        }
        looks = await site.get(
            "queues", headers={"Authorization": f"Bearer {KEY}", "Origin": "http://evil.test"}
        )

    assert acts == origins
    assert looks.status_code == 403


async def test_secrets_in_payloads_headers_and_records_are_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARN_MASKED_NAMES", "badge")
    payload = {
        "user": "me",
        "password": "canary-1",
        "nested": [{"apiToken": "canary-2", "max_tokens": 7}],
        "badge_number": "canary-3",
        "url": "postgresql://me:canary-4@db/app",
    }

    def fails(job: Job) -> None:
        raise ValueError("cannot reach postgresql://me:canary-5@db/app")

    async with portal() as site:
        queue = worker_queue("triage")
        headers = {"authorization": "canary-6", "x-trace": "kept"}
        await queue.enqueue(payload, headers=headers, max_attempts=1)
        await drain("triage", fails)
        paths = (
            "queues/triage/jobs",
            "queues/triage/jobs/1",
            "dead-letters",
            "dead-letters/export",
            "log/worker.triage",
            "log/worker.triage.responses",
            "log/trigger.dlq",
            "queues",
        )
        found = {path: (await site.get(path)).text for path in paths}
        job = (await site.document("queues/triage/jobs/1"))["payload"]

    assert {path: text for path, text in found.items() if "canary" in text} == {}
    assert job["user"] == "me" and job["nested"][0]["max_tokens"] == 7
    assert '"x-trace": "kept"' in found["queues/triage/jobs/1"]


# -- one read for all viewers --------------------------------------------------------------------


async def test_fifty_viewers_cost_one_read_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = queries = 0
    run, take = Store.run, store_snapshot.Snapshots._take

    async def counted(self: Store, recipe: Any, **options: Any) -> Any:
        nonlocal queries
        queries += 1
        return await run(self, recipe, **options)

    async def counted_take(self: store_snapshot.Snapshots) -> Any:
        nonlocal taken
        taken += 1
        return await take(self)

    monkeypatch.setattr(Store, "run", counted)
    monkeypatch.setattr(store_snapshot.Snapshots, "_take", counted_take)
    async with portal() as site:
        await worker_queue("triage").enqueue(1)
        queries = 0
        await events(site, 1)
        of_one, queries, taken = queries, 0, 0
        began = site.runtime.clock.monotonic()
        found = await asyncio.gather(*(events(site, 3) for _ in range(50)))
        seconds = site.runtime.clock.monotonic() - began

    assert [len(each) for each in found] == [3] * 50
    assert found[0][0]["queues"][0]["ready"] == 1
    assert taken <= seconds / shared_reads.FRESH_FOR + 1
    assert queries <= of_one * taken


async def test_a_viewer_that_comes_during_the_stop_is_told_so() -> None:
    async with portal() as site:
        site.service.intake.draining = True
        answer = await site.get("events")

    assert answer.status_code == 503
    assert answer.json()["error"] == "the service is stopping"


async def test_viewers_that_come_together_share_one_read() -> None:
    async with portal() as site:
        await worker_queue("triage").enqueue(1)
        clock = site.runtime.clock
        reads = shared_reads.SharedReads(clock)
        begun = 0
        go = asyncio.Event()

        async def read() -> int:
            nonlocal begun
            begun += 1
            await go.wait()
            return begun

        waiting = [asyncio.ensure_future(reads.get("x", read)) for _ in range(20)]
        await asyncio.sleep(0)
        go.set()

        assert await asyncio.gather(*waiting) == [1] * 20
        assert await reads.get("x", read) == 1
        reads.forget()
        assert await reads.get("x", read) == 2


async def test_viewers_share_a_read_that_takes_longer_than_its_answer_is_fresh(
    clock: FakeClock,
) -> None:
    reads = shared_reads.SharedReads(clock)
    begun, go = 0, asyncio.Event()

    async def read() -> int:
        nonlocal begun
        begun += 1
        await go.wait()
        return begun

    first = asyncio.ensure_future(reads.get("x", read))
    await clock.advance("5s")
    second = asyncio.ensure_future(reads.get("x", read))
    await clock.settle()
    go.set()

    assert [await first, await second] == [1, 1]


async def test_an_action_is_seen_by_the_next_read() -> None:
    async with portal(keys=KEYS) as site:
        await worker_queue("triage").enqueue(1)
        as_key = {"headers": {"Authorization": f"Bearer {KEY}"}}
        before = await site.document("queues/triage", **as_key)
        await site.post("queues/triage/pause")
        after = await site.document("queues/triage", **as_key)

    assert (before["paused"], after["paused"]) == (False, True)


async def test_a_stream_ends_when_the_service_drains() -> None:
    async with portal() as site:
        async with site.client.stream("GET", "/api/v1/events") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            site.service.intake.draining = True
            rest = [line async for line in lines]

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert rest[-1] == ""

"""Take the screenshots of docs/how-to/portal.md: every page, light and dark, of a busy store.

Run `python -m tools.portal_shots`; it needs Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import asyncio
import base64
import random
import tempfile
from pathlib import Path
from typing import Any

import harn
from harn import topics
from tests.portal.browser import chromium, set_dark, set_size
from tests.portal.portal_site import KEY, portal

HERE = Path(__file__).parent.parent / "docs" / "how-to" / "portal"
WIDTH, HEIGHT = 1040, 700
PAGES = {
    "overview": "",
    "queue": "queues/reviews?status=ready",
    "job-waiting": "queues/reviews/jobs/{ready}",
    "job-dead": "queues/reviews/jobs/{dead}",
    "dead-letters": "dead-letters",
    "pools": "pools",
    "limits": "limits",
    "triggers": "triggers",
    "costs": "costs",
    "consumers": "consumers",
    "supervisors": "supervisors",
    "log": "log/llm.usage",
}
TENANTS = {"acme": 3, "globex": 1, "initech": 1}


async def main() -> None:
    """Fill a store, let consumers work on it, and take the screenshots meanwhile."""
    HERE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        url = f"sqlite:///{place}/demo.sqlite"
        async with portal(url, (KEY.encode(),)) as site:
            shown = await _fill(site.runtime)
            working = asyncio.ensure_future(_work())
            try:
                await asyncio.sleep(15)
                await asyncio.to_thread(_shoot, site.url, shown, Path(place) / "profile")
            finally:
                working.cancel()
                await asyncio.wait((working,))


async def _fill(runtime: harn.Runtime) -> dict[str, int]:
    chance = random.Random(7)  # noqa: S311 - the same pictures every time
    policy = harn.SchedulerPolicy(strategy="drr", weights=TENANTS, max_concurrent_per_key=4)
    reviews = harn.worker_queue("reviews", policy)

    def crash(job: harn.Job) -> None:
        raise ConnectionError("the forge answered 502 Bad Gateway")

    for n in range(3):
        job = {"repository": "web", "pr": 1980 + n, "api_token": "hidden"}
        await reviews.enqueue(job, tenant_id="globex", max_attempts=1 + n % 2)
    for _ in range(2):
        at_once = harn.RetryPolicy(backoff=0, jitter=0)
        await harn.drain("reviews", crash, consumer_id="worker-7", retry=at_once, policy=policy)
    names = [*TENANTS, "acme", "acme"]
    await reviews.enqueue_many(
        [
            harn.NewJob(
                {"repository": chance.choice(["web", "api", "docs"]), "pr": 2000 + n},
                tenant_id=chance.choice(names),
                priority=chance.choice(["normal", "normal", "high"]),
            )
            for n in range(900)
        ]
    )
    last = await reviews.enqueue({"repository": "web", "pr": 2999}, tenant_id="initech")
    emails = harn.worker_queue("emails")
    await emails.enqueue_many([harn.NewJob({"to": n}, tenant_id="acme") for n in range(40)])
    await emails.pause(reason="the provider is down")
    await harn.worker_queue("reports").enqueue({"week": 46}, not_before="8h")
    await _triggers()
    await _usage(runtime, chance)
    await _pools()
    await _supervised()
    await harn.durable_rate_limit_acquire(key="forge:calls", units=82, limit=100, window_ms="10m")
    await harn.durable_rate_limit_acquire(key="mail:acme", units=12, limit=200, window_ms="10m")
    return {"ready": last.job_id, "dead": 2}


async def _triggers() -> None:
    await harn.trigger_register(
        id="on-pull-request",
        kind="webhook",
        provider="github",
        match={"events": ["pull_request.opened"]},
        handler="worker://reviews",
        concurrency={"max": 4, "key": "tenant_id"},
        debounce={"period": "5s"},
    )
    await harn.trigger_register(
        id="nightly-report",
        kind="cron",
        provider="cron",
        match={},
        handler="worker://reports",
        schedule="0 3 * * *",
    )
    await harn.trigger_fire("on-pull-request", {"pr": 3001}, tenant_id="acme")


async def _usage(runtime: harn.Runtime, chance: random.Random) -> None:
    now = runtime.clock.now_ms()
    for day in range(14, -1, -1):
        for _ in range(30):
            tokens = chance.randint(400, 9000)
            model = chance.choice(["large-4", "large-4", "small-4"])
            call = {
                "tenant_id": chance.choice([*TENANTS, "acme"]),
                "provider": "acme-ai",
                "model": model,
                "queue": "reviews",
                "input_tokens": tokens,
                "output_tokens": tokens // 6,
                "cost_usd": tokens * (9e-6 if model == "large-4" else 1e-6),
            }
            runtime.event_log.record(
                topics.LLM_USAGE, "llm_called", call, at_ms=now - day * 86_400_000
            )
    await runtime.event_log.flush()


async def _pools() -> None:
    pool = await harn.pool_create(
        name="sandboxes", scope="tenant", scope_id="acme", max_concurrent=4
    )
    local = await harn.pool_create(name="summaries", max_concurrent=8)
    for _ in range(9):
        await pool.submit(asyncio.sleep, 3600)
    for _ in range(5):
        await local.submit(asyncio.sleep, 3600)


async def _supervised() -> None:
    tries = 0

    async def flaky(ctx: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("the feed closed")
        await harn.sleep(3600)

    async def calm(ctx: Any) -> None:
        await harn.sleep(3600)

    await harn.supervisor_start(
        name="feeds",
        children=[harn.Child("news", flaky), harn.Child("prices", calm)],
        restart=harn.Restart(backoff_ms=1),
    )


async def _work() -> None:
    policy = harn.SchedulerPolicy(strategy="drr", weights=TENANTS, max_concurrent_per_key=4)

    async def review(job: harn.Job) -> dict[str, Any]:
        await asyncio.sleep(0.2 + 0.5 * (job.id % 3))
        if job.id % 41 == 0:
            raise TimeoutError("the model did not answer within 30 s")
        return {"verdict": "fine"}

    await harn.drain(
        "reviews",
        review,
        consumer_id="worker-1",
        concurrency=6,
        stop_when_empty=False,
        policy=policy,
    )


def _shoot(url: str, shown: dict[str, int], profile: Path) -> None:
    with chromium(profile) as browser:
        set_size(browser, WIDTH, HEIGHT)
        browser.get(f"{url}/portal/login")
        browser.find_element("id", "key").send_keys(KEY)
        browser.find_element("css selector", "button.main").click()
        for dark in (False, True):
            set_dark(browser, dark)
            for name, path in PAGES.items():
                browser.get(f"{url}/portal/{path.format(**shown)}")
                _until_live(browser)
                where = HERE / f"{name}-{'dark' if dark else 'light'}.webp"
                where.write_bytes(_picture(browser))


def _until_live(browser: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda _: browser.find_element("id", "live").text == "live")


def _picture(browser: Any) -> bytes:
    wanted = {"format": "webp", "quality": 80}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", wanted)
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    asyncio.run(main())

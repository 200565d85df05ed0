"""The pages of the portal over HTTP: who sees them, and that no text becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest

import harn
from harn import Job, drain, worker_queue
from tests.portal.portal_site import KEY, Portal, portal

KEYS = (KEY.encode(),)
HOSTILE = (
    "<script>window.__xss=1</script>",
    "\"><img src=x onerror='window.__xss=1'>",
    "' autofocus onfocus=window.__xss=1 x='",
    "{{ 7 * 7 }}{% for x in () %}",
    "javascript:window.__xss=1",
    "</pre></main><svg onload=window.__xss=1>",
    "&lt;script&gt;&amp;",
    "</title><script>window.__xss=1</script>",
)
BIDI = "a\u202eb\u2066c\u200f"
TAGS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "p", "form"),
    *("button", "main", "h1", "h2", "h3", "section", "div", "dl", "dt", "dd", "table", "thead"),
    *("tbody", "tr", "th", "td", "ul", "ol", "li", "span", "bdi", "time", "svg", "polyline"),
    *("rect", "g", "text", "pre", "code", "details", "summary", "footer", "noscript", "dialog"),
    *("label", "input", "select", "option", "strong", "caption"),
}


class Seen(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts: list[str | None] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.attributes |= found.keys()
        if tag == "script":
            self.scripts.append(found.get("src"))
        self.links += [str(found[name]) for name in ("href", "src", "action") if name in found]


async def hostile_store() -> None:
    """Put hostile text everywhere that a user's text is kept."""
    for place, text in enumerate(HOSTILE):
        queue = worker_queue(text[:120])
        payload = {text: [text], "long": "x" * 30_000, "bidi": BIDI}
        await queue.enqueue(
            payload, tenant_id=text, headers={"x-note": text}, dedupe_key=text, max_attempts=1
        )

        def fails(job: Job, text: str = text) -> None:
            raise ValueError(f"{text} {BIDI}")

        await drain(text[:120], fails, consumer_id=f"worker {text}")
        await queue.enqueue(payload, tenant_id=text)
        await queue.pause(tenant_id=text, reason=text)
        await harn.event_log_emit(f"news.{place}", text, {"said": text, "bidi": BIDI}, {"by": text})
        await harn.durable_rate_limit_acquire(key=text, limit=5)
        async with harn.llm_slot(text, f"model {text}", input_tokens=5) as slot:
            await slot.settle(input_tokens=5, output_tokens=5)
        await harn.pool_create(name=text)


async def all_pages(site: Portal) -> dict[str, str]:
    """Return every page of every kind that the store has, by its path."""
    paths = ["", "dead-letters", "pools", "limits", "triggers", "costs", "consumers"]
    paths += ["supervisors", "log"]
    for text in HOSTILE:
        name = quote(text[:120], safe="")
        paths += [f"queues/{name}", f"queues/{name}?tenant_id={quote(text, safe='')}"]
        paths += [f"queues/{name}/jobs/1", f"queues/{name}/jobs/2", f"queues/{name}/jobs/{name}"]
        paths += [f"log/{name}", f"queues/none/{name}"]
    topics = [each["topic"] for each in (await site.document("log"))["topics"]]
    paths += [f"log/{quote(each, safe='')}" for each in topics]
    return {path: (await site.client.get(f"/portal/{path}")).text for path in paths}


async def test_S6_no_hostile_text_becomes_markup() -> None:
    async with portal() as site:
        await hostile_store()
        pages = await all_pages(site)

    assert len(pages) > 60
    for path, page in pages.items():
        seen = Seen(page)
        assert seen.tags <= TAGS, (path, seen.tags - TAGS)
        assert seen.scripts == ["/portal/static/portal.js"], path
        assert not {each for each in seen.attributes if each.startswith("on")}, path
        assert "style" not in seen.attributes, path
        assert all(each.startswith(("/", "#")) for each in seen.links), (path, seen.links)
        assert not set(BIDI) & set(page) - set("abc"), path


async def test_every_answer_forbids_inline_script_and_frames() -> None:
    async with portal(keys=KEYS) as site:
        await site.log_in()
        answers = [
            await site.client.get(path)
            for path in ("/portal/", "/portal/login", "/portal/none", "/portal/costs?days=x")
        ]

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("days", ["x", "0", "367", "0001000", "-1"])
async def test_a_wrong_number_of_days_is_a_bad_request_that_says_what_is_accepted(
    days: str,
) -> None:
    async with portal() as site:
        answer = await site.client.get(f"/portal/costs?days={days}")

    assert answer.status_code == 400
    assert "from 1 to 366" in answer.text


async def test_the_front_door_leads_to_the_portal() -> None:
    async with portal() as site:
        answers = [await site.client.get(path) for path in ("/", "/portal")]

    assert [each.headers["location"] for each in answers] == ["/portal/", "/portal/"]


async def test_a_queue_whose_keys_are_paths_shows_its_tree() -> None:
    policy = harn.SchedulerPolicy(strategy="drr", hierarchy="/", weights={"acme": 3})
    async with portal() as site:
        queue = worker_queue("q", policy)
        for tenant in ("acme/eu", "acme/us", "globex"):
            await queue.enqueue(1, tenant_id=tenant)
        await queue.claim_next("me")
        page = (await site.client.get("/portal/queues/q")).text
        tree = (await site.document("queues/q"))["scheduler"]["tree"]

    assert [each["path"] for each in tree] == ["acme", "globex"]
    assert [each["path"] for each in tree[0]["children"]] == ["acme/eu", "acme/us"]
    rows = [
        ("level-1", "acme"), ("level-2", "acme/eu"), ("level-2", "acme/us"), ("level-1", "globex")
    ]  # fmt: skip
    places = [page.index(f'class="{level}" title="{path}"') for level, path in rows]
    assert places == sorted(places)


# -- sessions ------------------------------------------------------------------------------------


async def test_with_keys_a_page_leads_to_the_login_and_back() -> None:
    async with portal(keys=KEYS) as site:
        await worker_queue("a/b").enqueue(1)
        refused = await site.client.get("/portal/queues/a%2Fb")
        form = await site.client.get(refused.headers["location"])
        answer = await site.client.post(
            refused.headers["location"], data={"key": f" {KEY}\n"}, headers={"Origin": site.url}
        )
        cookie = answer.headers["set-cookie"]
        page = await site.client.get(answer.headers["location"])

    assert refused.status_code == 303
    assert 'type="password"' in form.text
    assert answer.headers["location"] == "/portal/queues/a%2Fb"
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert KEY not in cookie
    assert page.status_code == 200 and "a/b" in page.text


@pytest.mark.parametrize(
    "after", ["https://evil.test/", "//evil.test/portal/", "/portal/\\evil.test", "/api/v1/x", ""]
)
async def test_a_login_leads_nowhere_else(after: str) -> None:
    async with portal(keys=KEYS) as site:
        answer = await site.client.post(
            "/portal/login",
            params={"next": after},
            data={"key": KEY},
            headers={"Origin": site.url},
        )

    assert answer.headers["location"] == "/portal/"


@pytest.mark.parametrize(
    ("key", "origin", "status"),
    [
        ("wrong", "here", 401),
        ("", "here", 401),
        (KEY, "http://evil.test", 403),
        (KEY, None, 403),
        ("x" * 100_000, "here", 401),
        ("é\ud800", "here", 401),
    ],
)
async def test_a_login_needs_the_key_and_the_portals_own_page(
    key: str, origin: str | None, status: int
) -> None:
    async with portal(keys=KEYS) as site:
        headers = {} if origin is None else {"Origin": site.url if origin == "here" else origin}
        body = f"key={key}".encode("utf-8", "surrogatepass")
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = await site.client.post("/portal/login", content=body, headers={**headers, **kind})

    assert answer.status_code == status
    assert "set-cookie" not in answer.headers


async def test_S7_a_post_of_a_session_needs_its_token_and_its_origin() -> None:
    async with portal(keys=KEYS) as site:
        await worker_queue("triage").enqueue(1)
        earlier = await site.log_in()
        good = await site.log_in()
        path = "/api/v1/queues/triage/pause"
        bad: list[dict[str, str]] = [
            earlier,
            {},
            {"Origin": site.url},
            {"X-CSRF-Token": good["X-CSRF-Token"]},
            {**good, "X-CSRF-Token": "wrong"},
            {**good, "X-CSRF-Token": ""},
            {**good, "Origin": "http://evil.test"},
            {**good, "Origin": "null"},
        ]
        refused = [(await site.client.post(path, headers=each)).status_code for each in bad]
        before = (await worker_queue("triage").summary()).paused
        allowed = await site.client.post(path, headers=good)
        audit = await site.audit()

    assert refused == [403] * len(bad)
    assert (before, allowed.status_code) == (False, 200)
    assert [(each["via"], each["verb"]) for each in audit] == [("session", "pause queue")]


async def test_a_session_ends_with_its_key_with_its_time_and_with_a_forged_cookie(
    clock: Any, runtime: harn.Runtime
) -> None:
    async with portal(keys=KEYS, runtime=runtime) as site:
        await site.log_in()

        async def status() -> int:
            return (await site.client.get("/portal/costs")).status_code

        assert await status() == 200
        site.service._keys = (b"another key of operators",)
        assert await status() == 303
        site.service._keys = KEYS
        assert await status() == 200
        cookie = str(site.client.cookies["harn_portal"])
        ends, nonce, proof = cookie.split(".")
        for forged in (
            f"{int(ends) + 1}.{nonce}.{proof}",
            f"{ends}.{nonce}.",
            f"{ends}..{proof}",
            "9" * 500,
            f"x.{nonce}.{proof}",
        ):
            headers = {"Cookie": f"harn_portal={forged}"}
            answer = await site.client.get("/portal/costs", headers=headers)
            assert answer.status_code == 303, forged
        await clock.advance(hours=12)
        assert await status() == 303


async def test_a_log_out_needs_the_portals_own_page_and_forgets_the_cookie() -> None:
    async with portal(keys=KEYS) as site:
        good = await site.log_in()
        foreign = await site.client.post("/portal/logout", headers={"Origin": "http://evil.test"})
        answer = await site.client.post("/portal/logout", headers={"Origin": good["Origin"]})
        after = await site.client.get("/portal/")

    assert (foreign.status_code, answer.status_code, after.status_code) == (403, 303, 303)


async def test_buttons_are_there_only_for_those_who_may_act() -> None:
    pages = []
    for options in ({}, {"keys": KEYS, "read_only": True}, {"keys": KEYS}):
        async with portal(**options) as site:
            await worker_queue("triage").enqueue(1)
            if options:
                await site.client.post(
                    "/portal/login", data={"key": KEY}, headers={"Origin": site.url}
                )
            pages.append((await site.client.get("/portal/queues/triage/jobs/1")).text)

    assert ["data-post" in page for page in pages] == [False, False, True]
    assert "read-only" in pages[0] and "read-only" in pages[1]


async def test_a_fragment_is_the_main_part_alone_and_is_shared() -> None:
    async with portal() as site:
        await worker_queue("triage").enqueue(1)
        page = await site.client.get("/portal/")
        part = await site.client.get("/portal/", headers={"X-Portal-Fragment": "1"})

    assert part.text in page.text
    assert "<main" not in part.text and "<script" not in part.text


async def test_a_static_file_is_one_of_the_packages_own() -> None:
    async with portal(keys=KEYS) as site:
        names = ("portal.css", "portal.js", "icon.svg", "..%2Fpages.py", "../pages.py", "", "x")
        found = [(await site.client.get(f"/portal/static/{name}")).status_code for name in names]
        css = await site.client.get("/portal/static/portal.css")

    assert found[:4] == [200, 200, 200, 404]
    assert 200 not in found[4:]
    assert css.headers["content-type"].startswith("text/css")
    assert "@import" not in css.text and "url(" not in css.text

"""The portal in a real browser: every page, every button, live numbers, hostile text, 400 px."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import harn
from tests.orchestrator.processes import ledger, serving
from tests.portal import browser as chrome
from tests.portal.test_portal_pages import HOSTILE, hostile_store

pytestmark = pytest.mark.skipif(chrome.WHY_NOT is not None, reason=str(chrome.WHY_NOT))

KEY = "an operator's key, long enough"
MANIFEST = """
[exports]
handlers = "handlers.py"
[serve]
queues = []
keys = ["OPERATOR"]
[[triggers]]
id = "greet"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:greet"] }
handler = "handlers::note"
concurrency = { max = 1 }
"""
HANDLERS = """
import pathlib

def note(event):
    with open(pathlib.Path(__file__).parent / "ledger", "a") as file:
        file.write(f"{event.tenant_id} {event.get('provider_payload.payload.n')}" + chr(10))
"""
PAGES = {
    "": "Overview",
    "queues/triage": "triage",
    "queues/triage?status=dead": "triage",
    "queues/triage/jobs/1": "Job 1",
    "queues/triage/jobs/4": "Job 4",
    "dead-letters": "Dead letters",
    "pools": "Pools",
    "limits": "Limits",
    "triggers": "Triggers",
    "costs": "Costs",
    "consumers": "Consumers",
    "supervisors": "Supervisors",
    "log": "Log",
    "log/worker.triage": "worker.triage",
}


def fails(job: harn.Job) -> None:
    raise ValueError("no luck")


async def fill() -> None:
    queue = harn.worker_queue("triage", harn.SchedulerPolicy(strategy="drr"))
    await queue.enqueue_many([harn.NewJob({"n": n}, max_attempts=1) for n in range(3)])
    await harn.drain("triage", fails, consumer_id="worker-a", policy=queue.policy)
    await queue.enqueue_many([harn.NewJob({"n": n}, tenant_id="acme") for n in range(4)])
    async with harn.llm_slot("acme", "big-2", input_tokens=5) as slot:
        await slot.settle(input_tokens=5, output_tokens=5)


class Visitor:
    """An operator with a browser, before a service that runs."""

    def __init__(self, driver: Any, url: str, place: Path) -> None:
        self.driver = driver
        self.url = url
        self.place = place

    def in_store(self, work: Callable[[], Any]) -> Any:
        """Run *work* in this process, on the store of the service."""
        return harn.run(work, state_dir=self.place / "state")

    def open(self, path: str) -> None:
        self.driver.get(f"{self.url}/portal/{path}")
        self.until(lambda: self.text("#live") == "live")

    def log_in(self) -> None:
        self.driver.get(f"{self.url}/portal/")
        if self.driver.current_url.endswith("/portal/"):
            return
        self.driver.find_element("id", "key").send_keys(KEY)
        self.driver.find_element("css selector", "form button.main").click()
        self.until(lambda: self.text("h1") == "Overview")

    def text(self, selector: str) -> str:
        """Return the text of the first element, or nothing; a page may change meanwhile."""
        script = "return document.querySelector(arguments[0])?.textContent.trim() ?? ''"
        return str(self.driver.execute_script(script, selector))

    def number(self, label: str) -> str:
        """Return the number under a label, such as Ready."""
        script = """
        for (const each of document.querySelectorAll('.numbers div'))
          if (each.querySelector('dt').textContent.trim() === arguments[0])
            return each.querySelector('dd').textContent.trim();
        return '';"""
        return str(self.driver.execute_script(script, label))

    def has_button(self, label: str) -> bool:
        return self._button(label, "#main") is not None

    def _button(self, label: str, inside: str) -> Any:
        script = """
        for (const each of document.querySelectorAll(arguments[1] + ' button'))
          if (each.textContent.trim() === arguments[0]) return each;
        return null;"""
        return self.driver.execute_script(script, label, inside)

    def press(self, label: str, **fields: str) -> None:
        """Press a button of the page, fill the dialog's *fields*, and confirm."""
        self.until(lambda: self.has_button(label))
        self._button(label, "#main").click()
        self.until(lambda: self.driver.execute_script("return document.querySelector('#ask').open"))
        for name, value in fields.items():
            self.driver.find_element("css selector", f"#ask [name={name}]").send_keys(value)
        self.driver.find_element("id", "ask-yes").click()
        self.until(lambda: self.text("#said") not in ("", "working"))

    def until(self, condition: Callable[[], Any]) -> None:
        WebDriverWait(self.driver, 30, poll_frequency=0.1).until(lambda _: condition())

    def problems(self) -> list[str]:
        """Return what the browser complained of since the last call."""
        return [
            each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"
        ]


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    place = tmp_path_factory.mktemp("portal")
    (place / "harn.toml").write_text(MANIFEST)
    (place / "handlers.py").write_text(HANDLERS)
    harn.run(fill, state_dir=place / "state")
    with serving(place, env={"OPERATOR": KEY}) as service, chrome.chromium(place / "profile") as it:
        found = Visitor(it, service.url, place)
        found.log_in()
        yield found


def test_every_page_is_live_and_asks_no_other_host(visitor: Visitor) -> None:
    visitor.log_in()
    chrome.requested(visitor.driver)
    visitor.problems()
    for path, heading in PAGES.items():
        visitor.open(path)
        assert visitor.text("h1").startswith(heading), path
        assert visitor.driver.execute_script("return document.querySelectorAll('main').length") == 1

    asked = chrome.requested(visitor.driver)
    assert len(asked) > 3 * len(PAGES)
    assert [each for each in asked if not each.startswith(visitor.url)] == []
    assert visitor.problems() == []


def test_no_page_is_wider_than_400_pixels_and_dark_is_dark(visitor: Visitor) -> None:
    visitor.log_in()
    chrome.set_size(visitor.driver, 400, 800)
    chrome.set_dark(visitor.driver, True)
    try:
        for path in PAGES:
            visitor.open(path)
            script = "return [document.documentElement.scrollWidth, innerWidth]"
            wide, room = visitor.driver.execute_script(script)
            assert wide <= room == 400, path
        colour = "return getComputedStyle(document.body).backgroundColor"
        assert visitor.driver.execute_script(colour) == "rgb(16, 19, 26)"
    finally:
        visitor.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chrome.set_dark(visitor.driver, False)


def test_numbers_change_without_a_reload_by_events_and_by_polling(visitor: Visitor) -> None:
    async def one_more() -> None:
        await harn.worker_queue("numbers").enqueue(1)

    visitor.log_in()
    visitor.in_store(one_more)
    visitor.open("queues/numbers")
    visitor.driver.execute_script("window.__mark = 1")
    visitor.in_store(one_more)
    visitor.until(lambda: visitor.number("Ready") == "2")
    assert visitor.driver.execute_script("return window.__mark") == 1

    events = [f"{visitor.url}/api/v1/events*"]
    visitor.driver.execute_cdp_cmd("Network.enable", {})
    visitor.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": events})
    try:
        visitor.driver.get(f"{visitor.url}/portal/queues/numbers")
        visitor.until(lambda: visitor.text("#live") == "polling")
        visitor.driver.execute_script("window.__mark = 2")
        visitor.in_store(one_more)
        visitor.until(lambda: visitor.number("Ready") == "3")
        assert visitor.driver.execute_script("return window.__mark") == 2
    finally:
        visitor.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    visitor.until(lambda: visitor.text("#live") == "live")


def test_every_button_does_what_it_says(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.open("queues/triage")
    visitor.press("Pause", reason="a <b>deploy</b>")
    visitor.until(lambda: "a <b>deploy</b>" in visitor.text(".warning"))
    visitor.press("Resume")
    visitor.until(lambda: visitor.has_button("Pause"))
    visitor.press("Pause a tenant", tenant="acme")
    visitor.press("Resume the tenant")
    visitor.until(lambda: not visitor.has_button("Resume the tenant"))

    visitor.open("queues/triage/jobs/4")
    assert "Predicted start:" in visitor.text(".verdict")
    visitor.press("Cancel", reason="a mistake")
    visitor.until(lambda: visitor.text("h1") == "Job 4 cancelled")
    visitor.open("queues/triage/jobs/1")
    visitor.press("Retry")
    visitor.until(lambda: visitor.text("h1") == "Job 1 ready")

    visitor.open("triggers")
    visitor.press("Fire", payload='{"n": 7}', tenant="acme")
    visitor.until(lambda: ledger(visitor.place) == ["acme 7"])
    visitor.press("Fire", payload="no json")
    visitor.until(lambda: "not JSON" in visitor.text("#said"))

    visitor.open("dead-letters")
    rows = "return document.querySelectorAll('input[name=letter]').length"
    letters = visitor.driver.execute_script(rows)
    assert letters >= 2
    visitor.driver.find_element("css selector", "input[name=letter]").click()
    visitor.press("Discard selected", reason="old")
    visitor.until(lambda: visitor.driver.execute_script(rows) == letters - 1)
    visitor.driver.find_element("id", "all").click()
    visitor.press("Replay selected")
    visitor.until(lambda: visitor.text("main .empty").startswith("No dead letters"))

    async def acts() -> list[str]:
        found = await harn.event_log_read(harn.topics.OPERATORS_AUDIT)
        return [each.payload["verb"] for each in found if each.payload["via"] == "session"]

    assert visitor.in_store(acts) == [
        *("pause queue", "resume queue", "pause queue", "resume queue", "cancel job"),
        *("retry job", "fire", "discard letter", *["replay letter"] * (letters - 1)),
    ]


def test_the_portal_works_by_keyboard(visitor: Visitor) -> None:
    def focused() -> str:
        script = "return (document.activeElement.textContent || document.activeElement.name).trim()"
        return str(visitor.driver.execute_script(script))

    def send(*keys: str) -> None:
        visitor.driver.switch_to.active_element.send_keys(*keys)

    visitor.log_in()
    visitor.open("queues/triage/jobs/5")
    send(Keys.TAB)
    assert focused() == "Skip to the content"
    send(Keys.ENTER)
    visitor.until(
        lambda: visitor.driver.execute_script("return document.activeElement.id") == "main"
    )
    for _ in range(20):
        send(Keys.TAB)
        if focused() == "Cancel":
            break
    send(Keys.ENTER)
    visitor.until(
        lambda: visitor.driver.execute_script("return document.querySelector('#ask').open")
    )
    send(Keys.ESCAPE)
    visitor.until(
        lambda: not visitor.driver.execute_script("return document.querySelector('#ask').open")
    )
    assert visitor.text("h1") == "Job 5 ready"


def test_S6_hostile_text_stays_text(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.in_store(hostile_store)
    visitor.problems()
    paths = ["", "dead-letters", "pools", "limits", "costs", "consumers", "log"]
    for place, text in enumerate(HOSTILE):
        name = quote(text[:120], safe="")
        paths += [f"queues/{name}/jobs/1", f"log/news.{place}"]
    for path in paths:
        visitor.open(path)
        visitor.driver.execute_script(
            "for (const e of document.querySelectorAll('details')) e.open = true"
        )
        assert visitor.driver.execute_script("return window.__xss === undefined"), path
        odd = "return document.querySelectorAll('main script, main img, main iframe').length"
        assert visitor.driver.execute_script(odd) == 0, path
    assert visitor.text("h1") and visitor.problems() == []
    visitor.open(f"queues/{quote(HOSTILE[0], safe='')}")
    assert visitor.text("h1") == HOSTILE[0]


def test_a_log_out_ends_the_session(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.open("costs")
    visitor.driver.find_element("css selector", "header form button").click()
    visitor.until(lambda: visitor.text("h1") == "Log in")
    visitor.driver.get(f"{visitor.url}/portal/costs")
    assert visitor.text("h1") == "Log in"
    visitor.driver.find_element("id", "key").send_keys("wrong")
    visitor.driver.find_element("css selector", "form button.main").click()
    visitor.until(lambda: visitor.text(".wrong") == "This is no operator's key.")
    visitor.log_in()
    assert visitor.text("h1") == "Overview"

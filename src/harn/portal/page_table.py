"""Every page of the portal: its path, its template, its title, and what it shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harn.errors import InvalidOption
from harn.option_checks import read_whole
from harn.orchestrator import names_in_path

if TYPE_CHECKING:
    from harn.portal.pages import Pages

JOBS_A_PAGE = 100
MOST_DAYS = 366

Query = Mapping[str, str]
Read = Callable[["Pages", Mapping[str, str], Query], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its path below `/portal/`, its template, its title, and what it shows."""

    path: str
    template: str
    title: str
    read: Read

    def names_in(self, parts: list[str]) -> dict[str, str] | None:
        """Return the names in a path's *parts*; None if it is not this page's path."""
        names = names_in_path(self.path, parts)
        return names if names is None or all(names.values()) else None


async def _overview(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    return {"found": await pages.snapshots.latest()}


async def _queue(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    wanted = {name: query[name] for name in ("status", "tenant_id", "after") if name in query}
    jobs = await pages.look("jobs", {**names, **wanted, "limit": JOBS_A_PAGE})
    return {"queue": await pages.look("queue", names), **jobs}


async def _job(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    return {"job": await pages.look("job", names)}


async def _letters(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    after = {"after": query["after"]} if "after" in query else {}
    return {"found": await pages.look("dead letters", after)}


async def _costs(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    days = read_whole(query.get("days", "30"))
    if days is None or not 1 <= days <= MOST_DAYS:
        raise InvalidOption("days", query["days"], f"a number of days from 1 to {MOST_DAYS}")
    return {"found": await pages.usage.latest(days), "days": days}


async def _topic(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    after = {"after": query["after"]} if "after" in query else {}
    return {"found": await pages.look("log", {**names, **after})}


def _listed(name: str) -> Read:
    async def read(pages: Pages, names: Mapping[str, str], query: Query) -> dict[str, Any]:
        return {"found": await pages.look(name, {})}

    return read


PAGES = (
    Page("", "overview.html", "Overview", _overview),
    Page("queues/{queue}", "queue.html", "Queue {queue}", _queue),
    Page("queues/{queue}/jobs/{job}", "job.html", "Job {job} of {queue}", _job),
    Page("dead-letters", "dead_letters.html", "Dead letters", _letters),
    Page("pools", "pools.html", "Pools", _listed("pools")),
    Page("limits", "limits.html", "Limits", _listed("limits")),
    Page("triggers", "triggers.html", "Triggers", _listed("triggers")),
    Page("costs", "costs.html", "Costs", _costs),
    Page("consumers", "consumers.html", "Consumers", _listed("consumers")),
    Page("supervisors", "supervisors.html", "Supervisors", _listed("supervisors")),
    Page("log", "topics.html", "Log", _listed("topics")),
    Page("log/{topic}", "log.html", "Log of {topic}", _topic),
)

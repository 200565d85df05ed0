"""`harn orchestrator queue what-if`: replay a queue's log by another policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from harn.cli.colours import by_word
from harn.cli.output import DURATION, DurationFlag, emit
from harn.cli.progress import bar, live_line, shown_count
from harn.cli.queue_commands import queue_argument
from harn.cli.second_process import InSecondProcess
from harn.cli.signals import stoppable_call
from harn.cli.tables import table
from harn.cli.target import CommandTarget, common
from harn.clock import iso
from harn.errors import HarnError, InvalidOption
from harn.escaping import one_line
from harn.orchestrator import known_queue
from harn.plurals import counted
from harn.runtime import Runtime
from harn.settings import read_weights
from harn.storage import Store
from harn.workers import SchedulerPolicy
from harn.workers.whatif import (
    QueueHistory,
    Recorded,
    SearchResult,
    Side,
    check_picks,
    examine,
    plot,
    read_goal,
    read_history,
    search,
    shown_wait,
    simulate_policy,
    tries_for,
)

MEASURES = {"p50": "p50", "p95": "p95", "p99": "p99", "max": "worst"}


class WeightsFlag(click.ParamType[dict[str, int]]):
    """Weights by key, as `HARN_SCHEDULER_WEIGHTS` has them."""

    name = "key:weight,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, int]:
        """Read *value*; a wrong one is a usage error."""
        if isinstance(value, dict):
            return value
        try:
            return dict(read_weights(str(value)))
        except ValueError as error:
            self.fail(f"{value!r} is not accepted: {error}", param, ctx)


class AgeFlag(DurationFlag):
    """A duration, or 0."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Read *value*; a wrong one is a usage error."""
        return 0.0 if value == "0" else super().convert(value, param, ctx)


@click.command("what-if")
@queue_argument
@click.option("--since", type=DURATION, help="Only this long back from now; else the whole log.")
@click.option("--strategy", type=click.Choice(["fifo", "drr"]), help="How the next job is chosen.")
@click.option("--weights", type=WeightsFlag(), help="Weights of keys, as in gold:4,acme/bob:2.")
@click.option("--quantum", type=click.IntRange(1), help="Jobs of a key in a round, per weight.")
@click.option("--cap", type=click.IntRange(0), help="Most claims of a key in flight; 0: no cap.")
@click.option("--charge", type=click.Choice(["jobs", "cost"]), help="What a pick costs its key.")
@click.option("--hierarchy", type=click.Choice(["/", "none"]), help="What separates names in keys.")
@click.option("--starvation-age", type=AgeFlag(), help="Wait after which a job is promoted.")
@click.option("--consumers", type=click.IntRange(1, 10_000), help="So many consumers.")
@click.option("--goal", help='Look for a change that reaches it: "p95(tenant=quiet) < 30s".')
@click.option("--plot", "file", type=click.Path(path_type=Path), help="Write an SVG to this file.")
@common
def what_if(
    target: CommandTarget,
    name: str,
    since: float | None,
    consumers: int | None,
    goal: str | None,
    file: Path | None,
    **flags: Any,
) -> int:
    """Replay the log of QUEUE by another policy, or with other consumers.

    Jobs arrive and take as long as the log says; the real scheduler serves them in virtual time.
    Shows for each key how long its jobs waited, and its share of the picks: as recorded, and as
    proposed. Without options the policy in force is replayed. Nothing is written to the store.
    """
    target.check_config()
    if file is not None and not file.parent.is_dir():
        raise InvalidOption("--plot", str(file), "a file in a directory that exists")
    history, start = _read(target, name, since)
    with stoppable_call():
        document, text = _answer(name, history, start, flags, consumers, goal, file)
    emit(target.as_json, document, lambda: text)
    reached = document.get("goal", {}).get("reached", True)
    return 0 if reached else 1


def _read(target: CommandTarget, name: str, since: float | None) -> tuple[QueueHistory, int]:
    async def work(runtime: Runtime) -> tuple[QueueHistory, int]:
        await known_queue(runtime, name)
        now = runtime.clock.now_ms()
        start = None if since is None else now - round(since * 1000)
        show = shown_count("records read", 10_000)
        history = await read_history(runtime.service(Store), name, start, show)
        return history, history.step_at[0] if start is None else start

    return target.run(work, may_make=False)


def _answer(
    name: str,
    history: QueueHistory,
    start: int,
    flags: dict[str, Any],
    consumers: int | None,
    goal: str | None,
    file: Path | None,
) -> tuple[dict[str, Any], str]:
    """Make the comparison; return it as a document and as text."""
    checking = InSecondProcess(check_picks, history, start, size=len(history.claim_round))
    with checking:
        recorded = examine(history, start, _share_of("adding up", history.steps))
        policy = proposed_policy(recorded.side.policy, flags)
        found: SearchResult | None = None
        if goal is not None:
            found = _searched(goal, history, start, recorded, policy, consumers)
            proposed = found.side
        else:
            proposed = _simulated(history, start, recorded, "simulating")(policy, consumers)
        live_line.show("checking the recorded picks")
        picks, agree = checking.result()
    if file is not None:
        file.write_text(plot(name, recorded.side, proposed), encoding="utf-8")
    document = {
        "queue": name,
        "from_ms": start,
        "until_ms": history.step_at[-1],
        "jobs": history.jobs,
        "picks": picks,
        "agree": agree,
        "recorded": {**recorded.side.as_dict(), "picks": picks, "agree": agree},
        "proposed": proposed.as_dict(),
    }
    if found is not None and goal is not None:
        document["goal"] = _goal_document(goal, found, policy, recorded)
    if file is not None:
        document["plot"] = str(file)
    return document, _shown(document, recorded.side, proposed)


def proposed_policy(base: SchedulerPolicy, flags: dict[str, Any]) -> SchedulerPolicy:
    """Return *base* with what the options of the command change."""
    fields = {"cap": "max_concurrent_per_key", "starvation_age": "starvation_age_ms"}
    changes = {fields.get(name, name): each for name, each in flags.items() if each is not None}
    if "starvation_age_ms" in changes:
        changes["starvation_age_ms"] = round(changes["starvation_age_ms"] * 1000)
    if "hierarchy" in changes:
        changes["hierarchy"] = None if flags["hierarchy"] == "none" else flags["hierarchy"]
    policy = msgspec.structs.replace(base, **changes)
    idle = [name for name in flags if name != "strategy" and flags[name] is not None]
    if policy.strategy == "fifo" and idle:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        have = "has" if len(idle) == 1 else "have"
        raise HarnError(f"{named} {have} no effect with the strategy fifo; add --strategy drr")
    return policy


def _simulated(
    history: QueueHistory, start: int, recorded: Recorded, what: str
) -> Callable[[SchedulerPolicy, int | None], Side]:
    def evaluate(policy: SchedulerPolicy, consumers: int | None) -> Side:
        show = _share_of(what, history.jobs)
        return simulate_policy(history, start, policy, recorded.consumers, consumers, show)

    return evaluate


def _searched(
    text: str,
    history: QueueHistory,
    start: int,
    recorded: Recorded,
    policy: SchedulerPolicy,
    consumers: int | None,
) -> SearchResult:
    goal = read_goal(text, policy, recorded.side)
    evaluate = _simulated(history, start, recorded, "searching")
    first = evaluate(policy, consumers)
    return search(
        *(goal, policy, first, consumers, evaluate, tries_for(history.jobs)),
        lambda tried, flags: live_line.show(f"try {tried}: {flags}"),
    )


def _goal_document(
    text: str, found: SearchResult, policy: SchedulerPolicy, recorded: Recorded
) -> dict[str, Any]:
    goal = read_goal(text, policy, recorded.side)
    return {
        "goal": text,
        "reached": found.is_reached,
        "limit_ms": goal.limit_ms,
        "recorded_ms": goal.value(recorded.side),
        "value_ms": goal.value(found.side),
        "change": {
            **found.change.settings,
            **({} if found.change.consumers is None else {"consumers": found.change.consumers}),
        },
        "options": found.change.flags(),
        "tried": found.tried,
    }


def _share_of(what: str, total: int) -> Callable[[int], None]:
    return lambda done: live_line.show(f"{what} {bar(min(done, total), total)}")


# -- text ----------------------------------------------------------------------------------------


def _shown(document: dict[str, Any], recorded: Side, proposed: Side) -> str:
    picks, agree = document["picks"], document["agree"]
    lines = [
        f"{one_line(document['queue'])}: {counted(document['jobs'], 'job')}, "
        f"{iso(document['from_ms'])} to {iso(document['until_ms'])}",
        f"the policy in force makes {agree:,} of the {picks:,} recorded picks again",
        f"  recorded: {_about(recorded)}",
        f"  proposed: {_about(proposed)}",
        *_goal_lines(document.get("goal")),
        "",
        _table(recorded, proposed),
    ]
    waiting = sum(each.waiting for each in recorded.keys.values())
    if waiting:
        lines.append(
            f"{counted(waiting, 'job')} still waited when the log ends; "
            "their waits so far are among the recorded ones"
        )
    if "plot" in document:
        lines.append(f"plot written to {one_line(document['plot'])}")
    return "\n".join(lines)


def _about(side: Side) -> str:
    policy, slots = side.policy, counted(side.slots, "slot")
    parts = [f"{policy.strategy} by {policy.fairness_key}"]
    if policy.strategy == "drr":
        weights = ",".join(f"{one_line(key)}:{each}" for key, each in policy.weights.items())
        parts += [f"weights {weights}"] if weights else []
        parts += [f"quantum {policy.quantum}"] if policy.quantum != 1 else []
        cap = policy.max_concurrent_per_key
        parts += [f"at most {cap} in flight"] if cap else []
        parts += ["charged by cost"] if policy.charges_cost else []
        parts += [f"as a tree of names between {policy.hierarchy}"] if policy.hierarchy else []
    return ", ".join([*parts, f"{counted(side.consumers, 'consumer')} with {slots}"])


def _goal_lines(goal: dict[str, Any] | None) -> list[str]:
    if goal is None:
        return []
    value, was = shown_wait(goal["value_ms"]), shown_wait(goal["recorded_ms"])
    change = goal["options"] or "no change"
    what = f"{one_line(goal['goal'])}: {value} (recorded {was}) with {change}"
    if goal["reached"]:
        return [f"  {by_word('ok')}: {what}"]
    tried = counted(goal["tried"], "change")
    return [f"  {by_word('failed')}: not reached by any of {tried}; the nearest: {what}"]


def _table(recorded: Side, proposed: Side) -> str:
    headings = ["key", "jobs"]
    for name in (*MEASURES.values(), "served", "entitled"):
        headings += [name, "new"]
    rows = []
    for key in sorted({*recorded.keys, *proposed.keys}):
        sides = [recorded.keys.get(key), proposed.keys.get(key)]
        row: list[object] = [key, max(each.jobs for each in sides if each is not None)]
        for measure in MEASURES:
            row += [shown_wait(None if each is None else each.wait_ms[measure]) for each in sides]
        row += [_percent(None if each is None else each.served) for each in sides]
        row += [_percent(None if each is None else each.entitled) for each in sides]
        rows.append(row)
    return table(headings, rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}%"

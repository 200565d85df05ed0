"""`queue what-if`: text, JSON, a plot, a goal; clear errors; nothing is written to the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import harn
from harn import NewJob, drain, sleep, worker_queue
from harn.cli import invoke, second_process
from harn.testing import FakeClock

WhatIf = Callable[..., tuple[int, str]]


async def _serve() -> None:
    await worker_queue("q").enqueue_many([NewJob(n, tenant_id="busy") for n in range(60)])
    await worker_queue("q").enqueue_many([NewJob(n, tenant_id="quiet") for n in range(3)])
    await drain("q", lambda job: sleep("1s"), consumer_id="w")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A store with the log of a queue that was served in the order of arrival."""
    harn.run(_serve, state_dir=tmp_path, clock=FakeClock(autojump=True))
    return tmp_path


@pytest.fixture
def what_if(state: Path, capsys: pytest.CaptureFixture[str]) -> WhatIf:
    def call(*args: str, queue: str = "q") -> tuple[int, str]:
        options = ("--state-dir", str(state))
        code = invoke(["orchestrator", "queue", "what-if", queue, *args, *options])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return call


def test_both_sides_are_shown_in_one_table(what_if: WhatIf) -> None:
    code, text = what_if("--strategy", "drr")

    rows = [line.split() for line in text.splitlines()]
    [quiet] = [row for row in rows if row[:1] == ["quiet"]]
    assert code == 0
    assert "makes 63 of the 63 recorded picks again" in text
    assert "recorded: fifo by tenant, 1 consumer with 1 slot" in text
    assert "proposed: drr by tenant, 1 consumer with 1 slot" in text
    assert quiet[:6] == ["quiet", "3", "1m1s", "3.0s", "1m2s", "5.0s"]


def test_json_has_the_picks_and_every_key_of_both_sides(what_if: WhatIf) -> None:
    code, text = what_if("--json", "--strategy", "drr", "--weights", "quiet:2", "--cap", "3")

    found: dict[str, Any] = json.loads(text)
    quiet = found["proposed"]["keys"]["quiet"]
    assert (code, found["picks"], found["agree"]) == (0, 63, 63)
    assert found["recorded"]["keys"]["quiet"]["wait_ms"]["max"] == 62_000
    assert quiet["wait_ms"].keys() == {"p50", "p95", "p99", "max"}
    assert quiet["served"] == 4.8
    assert quiet["entitled"] > 0
    assert found["proposed"]["policy"]["weights"] == {"quiet": 2}
    assert found["proposed"]["policy"]["max_concurrent_per_key"] == 3


def test_charging_by_cost_can_be_tried(what_if: WhatIf) -> None:
    code, text = what_if("--strategy", "drr", "--charge", "cost", "--quantum", "2")

    assert code == 0
    assert "quantum 2, charged by cost" in text


def test_tenants_as_a_tree_can_be_tried(what_if: WhatIf) -> None:
    code, text = what_if("--strategy", "drr", "--hierarchy", "/", "--weights", "quiet:2")
    flat, document = what_if("--strategy", "drr", "--hierarchy", "none", "--json")
    refused, why = what_if("--strategy", "drr", "--hierarchy", "/", "--weights", "a/b/c/d/e:2")

    assert code == 0
    assert "weights quiet:2, as a tree of names between /" in text
    assert (flat, "hierarchy" in json.loads(document)["proposed"]["policy"]) == (0, False)
    assert (refused, "at most 4 names between '/'" in why) == (1, True)


def test_without_options_the_policy_in_force_is_replayed(what_if: WhatIf) -> None:
    found = json.loads(what_if("--json")[1])

    recorded, proposed = found["recorded"], found["proposed"]
    assert proposed["keys"] == recorded["keys"]
    assert proposed["policy"] == recorded["policy"]
    assert proposed["agree"] == proposed["picks"] == 63


def test_a_goal_names_the_options_that_reach_it(what_if: WhatIf) -> None:
    code, text = what_if("--goal", "p95(tenant=quiet) < 30s")
    missed, nearest = what_if("--goal", "p95(tenant=busy) < 1ms", "--json")

    assert code == 0
    assert "with --strategy drr" in text
    assert missed == 1
    assert json.loads(nearest)["goal"]["reached"] is False


def test_a_plot_is_written(what_if: WhatIf, tmp_path: Path) -> None:
    code, text = what_if("--consumers", "2", "--plot", str(tmp_path / "waits.svg"))

    assert code == 0
    assert "2 consumers with 2 slots" in text
    assert ">quiet</text>" in (tmp_path / "waits.svg").read_text()


def test_a_long_log_is_checked_by_a_second_process(what_if: WhatIf) -> None:
    with mock.patch.object(second_process, "LARGE", 1):
        code, text = what_if()

    assert code == 0
    assert "makes 63 of the 63 recorded picks again" in text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--weights", "quiet"), "key:weight,..."),
        (("--weights", "quiet:0"), "weights of at least 1"),
        (("--since", "yesterday"), "a duration with its unit"),
        (("--since", "1s"), "no record after"),
        (("--cap", "2"), "--cap has no effect with the strategy fifo; add --strategy drr"),
        (("--cap", "0"), "--cap has no effect with the strategy fifo; add --strategy drr"),
        (
            ("--strategy", "fifo", "--cap", "2", "--quantum", "3"),
            "--cap, --quantum have no effect with the strategy fifo; add --strategy drr",
        ),
        (("--goal", "p95"), "a measure, a key and a limit"),
        (("--plot", "/nowhere/at/all.svg"), "a file in a directory that exists"),
        (("--consumers", "0"), "0 is not in the range"),
    ],
)
def test_a_wrong_option_is_explained(what_if: WhatIf, args: tuple[str, ...], says: str) -> None:
    code, text = what_if(*args)

    assert code != 0
    assert says in " ".join(text.split())


def test_an_unknown_queue_and_an_empty_log_are_explained(what_if: WhatIf, state: Path) -> None:
    harn.run(lambda: worker_queue("fresh").enqueue(1), state_dir=state)

    unknown, empty = what_if(queue="qq"), what_if(queue="fresh")

    assert unknown[0] == empty[0] == 1
    assert "there is no queue 'qq' in this store" in unknown[1]
    assert "no job of queue 'fresh' was ever claimed" in empty[1]


def test_nothing_is_written_and_a_running_service_is_not_disturbed(
    what_if: WhatIf, state: Path
) -> None:
    async def beside() -> tuple[list[Any], list[Any], tuple[int, str]]:
        log = partial(harn.event_log_read, "worker.q.claims")
        await worker_queue("q").enqueue(1)
        claim = await worker_queue("q").claim_next("w")
        before = await log()
        answer = await harn.spawn(lambda: what_if())  # a plain function runs on a thread
        assert claim is not None
        await claim.ack()
        return before, await log(), answer

    before, after, answer = harn.run(beside, state_dir=state)

    assert answer[0] == 0
    assert [each.kind for each in after[len(before) :]] == ["job_acked"]

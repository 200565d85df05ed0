"""The bench's own promises: it ends in time, continues without what fails, and its page is true."""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import harness, page, peers
from bench.harness import Contest, Contestant, Goal, LeftOut, judge, run_subject


@pytest.fixture(autouse=True)
def nothing_left_out() -> Iterator[None]:
    before = list(harness.left_out)
    yield
    harness.left_out[:] = before


def subject(monkeypatch: pytest.MonkeyPatch, *contests: Contest) -> str:
    module = types.ModuleType("bench.imagined")
    module.contests = lambda: contests  # type: ignore[attr-defined]
    module.GOALS = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bench.imagined", module)
    return "imagined"


def test_contestants_take_turns_and_the_first_round_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def player(name: str) -> Contestant:
        def run() -> float:
            calls.append(name)
            return float(len(calls))

        return Contestant(name, run)

    name = subject(monkeypatch, Contest("c", (player("a"), player("b"))))

    [a, b], _ = run_subject(name, 5, 60)

    assert calls == ["a", "b"] * 6
    assert (a.samples, b.samples) == ([3, 5, 7, 9, 11], [4, 6, 8, 10, 12])


def test_a_contestant_that_fails_is_left_out_and_the_others_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> float:
        raise LeftOut("no such thing")

    name = subject(
        monkeypatch, Contest("c", (Contestant("bad", fails), Contestant("good", lambda: 1.0)))
    )

    [good], _ = run_subject(name, 5, 60)

    assert good.contestant == "good"
    assert harness.left_out[-1]["why"] == "c: bad was left out: no such thing"


def test_the_dearest_contest_gets_fewer_rounds_rather_than_no_end() -> None:
    def entry(seconds: float, rounds: int = 5) -> harness.Entry:
        player = Contestant("a", lambda: 1.0, rounds=rounds)
        made = harness.Entry(Contest("c", (player,)), "s")
        made.seconds, made.rounds, made.wanted = {"a": seconds}, 1, 5
        return made

    entries = cheap, dear, slow = entry(1.0), entry(10.0), entry(10.0, rounds=2)

    harness._plan([*entries], 40)

    assert (cheap.planned, dear.planned, slow.planned) == (5, 3, 5)


def test_a_warm_up_that_fills_a_file_does_not_cost_the_rounds_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    costs = iter([50.0, 1.0, 1.0, 1.0, 1.0, 1.0])

    def run() -> float:
        cost = next(costs)
        now[0] += cost
        return cost

    [one], _ = run_subject(subject(monkeypatch, Contest("c", (Contestant("a", run),))), 5, 60)

    assert one.samples == [1.0] * 5


def test_a_first_round_that_was_slow_by_chance_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    costs = iter([1.0, 20.0, 1.0, 1.0, 1.0, 1.0])

    def run() -> float:
        now[0] += next(costs)
        return 1.0

    [one], _ = run_subject(subject(monkeypatch, Contest("c", (Contestant("a", run),))), 5, 60)

    assert len(one.samples) == 5


def test_a_contest_may_want_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Contest("c", (Contestant("a", lambda: 1.0),), rounds=2)

    [one], _ = run_subject(subject(monkeypatch, contest), 5, 60)

    assert one.samples == [1.0] * 2
    assert not harness.left_out


def test_a_slow_contestant_has_fewer_rounds_and_one_that_warms_up_by_itself_counts_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def player(name: str, rounds: int) -> Contestant:
        def run() -> float:
            calls.append(name)
            return float(len(calls))

        return Contestant(name, run, rounds=rounds)

    contest = Contest("c", (player("a", 5), player("slow", 2)), warm_up=False)

    [a, slow], _ = run_subject(subject(monkeypatch, contest), 5, 60)

    assert calls == ["a", "slow", "a", "slow", "a", "a", "a"]
    assert (len(a.samples), len(slow.samples)) == (5, 2)


def test_the_time_is_shared_by_what_subjects_usually_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "USUAL_SECONDS", {"long": 120, "short": 30})

    assert harness.share("long", ["long", "short"], 100) == 80
    assert harness.share("short", ["short"], 100) == 100
    assert harness.share("short", ["short"], 1000) == harness.SUBJECT_SECONDS


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "import time; time.sleep(600)"])
def test_a_subject_that_fails_or_hangs_leaves_no_older_results_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    name = subject(monkeypatch)
    monkeypatch.setattr(sys.modules["bench.imagined"], "GOALS", [Goal("g", "c", "a", "b", 1.0)])
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "bench" / "results")
    monkeypatch.setattr(harness, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(peers, "install_all", lambda seconds: None)
    monkeypatch.setattr(harness, "share", lambda *_: 0.5)
    old = [{"subject": name, "median": 1}, {"subject": "other", "median": 2}]
    harness.RESULTS.mkdir(parents=True)
    (tmp_path / "bench" / "__main__.py").write_text(code)
    (harness.RESULTS / "latest.json").write_text(json.dumps({"outcomes": old}))

    harness.run_apart([name], quick=False)

    saved = json.loads((harness.RESULTS / "latest.json").read_text())
    assert saved["outcomes"] == old[1:]
    assert [goal["met"] for goal in saved["goals"]] == [False]
    assert "nothing was measured" in saved["left_out"][0]["why"]


def test_out_of_time_the_warm_up_stands_and_what_was_not_begun_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow() -> float:
        now[0] += 100
        return 1.0

    contests = [Contest(name, (Contestant("a", slow),)) for name in ("one", "two")]

    [one], _ = run_subject(subject(monkeypatch, *contests), 5, 60)

    assert one.samples == [1.0]
    told = [each["why"] for each in harness.left_out]
    assert "two: not begun, out of time" in told
    assert "one: the warm-up round only instead of 5, to end in time" in told


def test_asked_for_help_it_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "run_subject", lambda *_: pytest.fail("it ran"))

    assert harness.main(["--help"]) == 0
    assert harness.main(["tasks", "--quik"]) == 2
    assert "python -m bench pools" in capsys.readouterr().out


def test_a_goal_that_was_not_measured_is_not_met() -> None:
    goal = Goal("ahead", "c", "harn", "peer", at_most=1.0)

    assert judge(goal, "s", []) == {
        "subject": "s", "name": "ahead", "goal": "<= 1x", "measured": None, "met": False,
    }  # fmt: skip


def test_a_peer_that_cannot_be_installed_is_left_out_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(*_: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(peers, "_install", offline)
    peer = peers.Peer("Nobody", ("nobody==0.0.0",))

    assert peers.contestant(peer, "queue_harn") == []
    assert peers.contestant(peer, "queue_harn") == []
    assert "peer Nobody could not be installed: no route to host, left out" in (
        capsys.readouterr().err
    )


def test_every_subject_has_a_share_of_the_time() -> None:
    assert set(harness.subjects()) == set(harness.USUAL_SECONDS)


def test_a_script_is_played_in_a_process_of_its_own() -> None:
    cost = peers.play(
        peers.HERE, "pool_contest", {"contest": "no-op", "who": "worker loop", "n": 10}
    )

    assert cost["us"] > 0


def test_the_page_is_in_step_with_the_results() -> None:
    results = json.loads((harness.RESULTS / "latest.json").read_text(encoding="utf-8"))

    written = page.PAGE.read_text(encoding="utf-8")

    assert written == page.render(results, page.known_pictures()), "run: python -m bench --page"


def test_the_pictures_against_peers_show_every_goal_that_names_one() -> None:
    goals = json.loads((harness.RESULTS / "latest.json").read_text(encoding="utf-8"))["goals"]
    subjects = {subject for _, many in page.AGAINST_PEERS.values() for subject in many}
    ours = {"picked up within", "under 2 % of a core"}

    shown = [row for _, many in page.AGAINST_PEERS.values() for row in page.ratios(goals, many)]

    assert "channel, 1:1: anyio" in dict(shown)
    assert len(shown) == sum(
        goal["subject"] in subjects and not any(each in goal["name"] for each in ours)
        for goal in goals
        if goal["measured"]
    )

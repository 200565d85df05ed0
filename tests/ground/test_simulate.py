"""`simulate`: many consumers, one store, faults by seed; equal seeds give equal logs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import DeadlineExceeded, InvalidOption, sleep, worker_queue
from harn.testing import Simulation, simulate

Scenario = Callable[[Simulation], Awaitable[None]]


def payments(*, is_idempotent: bool) -> Scenario:
    """Ten accounts are charged once each, or so the handler hopes."""

    async def scenario(world: Simulation) -> None:
        charged: list[int] = []
        seen: set[int] = set()

        async def charge(job: harn.Job) -> None:
            if not (is_idempotent and job.id in seen):
                seen.add(job.id)
                charged.append(job.payload)
            await sleep("2s")

        await worker_queue("payments").enqueue_many(range(10))
        world.consume("payments", charge, claim_ttl="1m")
        await world.settled("payments")
        assert sorted(charged) == [*range(10)], "an account was charged twice"

    return scenario


def test_a_handler_that_is_not_idempotent_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="charged twice") as failed:
        simulate(payments(is_idempotent=False), seeds=50)

    told = capsys.readouterr().err
    seed = int(told.split("seeds=[")[1].split("]")[0])
    assert told.strip() in failed.value.__notes__
    assert f"seed {seed} fails" in told
    assert "consumer-" in told
    with pytest.raises(AssertionError, match="charged twice"):
        simulate(payments(is_idempotent=False), seeds=[seed])
    assert simulate(payments(is_idempotent=True), seeds=[seed])[0].faults


def test_no_job_is_lost_whatever_happens_to_the_consumers() -> None:
    runs = simulate(payments(is_idempotent=True), seeds=12, every="8s")

    faults = " ".join(each for run in runs for each in run.faults)
    assert all(word in faults for word in ("killed", "paused", "slow"))
    assert [run.seed for run in runs] == [*range(12)]


def test_the_same_seed_gives_the_same_log_and_another_seed_another_one() -> None:
    first, again, other = (
        simulate(payments(is_idempotent=True), seeds=[seed])[0] for seed in (3, 3, 4)
    )

    assert first == again
    assert first.log.count(b'"job_acked"') == 10
    assert first.log != other.log


SCRIPT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from harn.testing import simulate
from tests.ground.test_simulate import payments
runs = simulate(payments(is_idempotent=True), seeds=4, every="8s")
print(hashlib.sha256(b"".join(run.log for run in runs)).hexdigest())
"""


def test_the_log_does_not_depend_on_the_process(root: Path) -> None:
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT, str(root)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())

    runs = simulate(payments(is_idempotent=True), seeds=4, every="8s")
    here = hashlib.sha256(b"".join(run.log for run in runs)).hexdigest()
    assert found == [here, here]


def test_without_faults_every_job_runs_once() -> None:
    [run] = simulate(payments(is_idempotent=False), seeds=1, faults=())

    assert run.faults == ()
    assert run.log.count(b'"job_claimed"') == 10


def test_a_scenario_that_never_ends_fails_at_its_limit() -> None:
    async def forever(world: Simulation) -> None:
        await worker_queue("q").enqueue(1)
        await world.settled("q")

    with pytest.raises(DeadlineExceeded) as failed:
        simulate(forever, seeds=1, limit="10m")

    assert "not ended after 10m of virtual time" in failed.value.__notes__[0]


def test_a_consumer_that_cannot_start_fails_the_scenario() -> None:
    async def scenario(world: Simulation) -> None:
        await worker_queue("q").enqueue(1)
        world.consume("q", lambda job: None, claim_ttl="no time")
        await world.settled("q")

    with pytest.raises(InvalidOption, match="ttl='no time'"):
        simulate(scenario, seeds=1)


@pytest.mark.parametrize(
    "options", [{"seeds": 0}, {"seeds": "abc"}, {"seeds": [1.5]}, {"faults": ["fire"]}]
)
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(InvalidOption):
        simulate(payments(is_idempotent=True), **options)

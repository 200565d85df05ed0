"""`harn orchestrator queue drain`: run a manifest's handlers for the jobs of a queue."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.ask_service import WORK_TIME, CommandStop, operate
from harn.cli.colours import by_word
from harn.cli.command_log import log_as_service
from harn.cli.output import DURATION, emit, fail_line, say
from harn.cli.progress import on_terminal
from harn.cli.queue_commands import queue_argument
from harn.cli.target import CommandTarget, common
from harn.duration import to_text
from harn.escaping import one_line
from harn.orchestrator import Drain


@click.command()
@queue_argument
@click.option("--consumer-id", help="Who claims; <host>-pid<pid>-<ms> by default.")
@click.option("--claim-ttl", type=DURATION, default="5m", show_default=True, help="Claims' life.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--wait", is_flag=True, help="Wait for more when the queue is empty.")
@click.option("--shutdown-timeout", type=WORK_TIME, default="30s", show_default=True)
@common
def drain(
    target: CommandTarget,
    name: str,
    consumer_id: str | None,
    claim_ttl: float,
    concurrency: int,
    wait: bool,
    shutdown_timeout: float,
) -> int:
    """Claim the jobs of QUEUE and run the manifest's handlers for them.

    A job is acked when the pool tasks that it causes have completed. It is not acked, and the exit
    code is 1, if one fails or has not ended --shutdown-timeout after its handler.

    After SIGTERM no more jobs are claimed, handlers may finish within --shutdown-timeout, the other
    jobs are released, and the exit code is 0. A second signal releases them at once.
    """
    if wait:
        log_as_service()
    options = Drain(
        queue=name,
        consumer_id=consumer_id,
        claim_ttl=claim_ttl,
        concurrency=concurrency,
        wait=wait,
        work_within=shutdown_timeout,
    )
    report = operate(
        target,
        "drain",
        options,
        wanted=(),
        stop=DrainStop(shutdown_timeout),
        # With --wait this process is a consumer beside those of the service.
        here=wait,
    )
    note = report.pop("note", None)
    emit(target.as_json, report, lambda: _reported(report), note)
    if "not_acked" not in report:
        return 0
    jobs = report["not_acked"]
    job, why = next(iter(jobs.items()))
    fail_line(f"job {job} of {name} is not acked: {why}", len(jobs) - 1)
    return 1


def _reported(report: dict[str, Any]) -> str:
    summary = report["summary"]
    lines = [
        f"{one_line(report['queue'])}: drained {report['drained']}, acked {report['acked']}, "
        f"deferred {report['deferred']} as {one_line(report['consumer_id'])} "
        f"(claims of {to_text(report['claim_ttl_ms'] / 1000)}); "
        f"{summary['ready']} ready, {summary['in_flight']} in flight"
    ]
    for each in report["responses"]:
        error = each.get("error")
        word, what = ("failed", error) if error else ("ok", each.get("outcome"))
        lines.append(f"  job {each['job_event_id']} {by_word(word)}: {one_line(str(what))[:200]}")
    return "\n".join(lines)


class DrainStop(CommandStop):
    """The first signal stops the claims; the second one, or the timeout, releases the jobs."""

    def ask(self) -> None:
        """Claim no more; a command that has claimed nothing is cancelled."""
        if self.service is None or not self.service.queues.stop():
            self.stopping.cancel()
        elif on_terminal():
            say("finishing the running jobs; press again to release them at once", err=True)

    def give_up(self) -> None:
        """Release the jobs."""
        if self.service is not None:
            self.service.queues.give_up()

"""`harn orchestrator queue`: the commands for worker queues, each imported when it is called."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.commands import LazyGroup
from harn.cli.name_completion import queues
from harn.cli.output import Decorator
from harn.cli.target import CommandTarget, common

queue_argument: Decorator = click.argument("name", metavar="QUEUE", shell_complete=queues)
job_argument: Decorator = click.argument("id", metavar="ID")


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    lazy={
        "ls": ("harn.cli.queue_list:ls", "List the queues with their counts."),
        "drain": ("harn.cli.queue_drain:drain", "Run the manifest's handlers for its jobs."),
        "jobs": ("harn.cli.queue_jobs:jobs", "List the jobs of QUEUE by id, oldest first."),
        "job": ("harn.cli.queue_jobs:job", "Show one job: its status, outcome and last error."),
        "explain": ("harn.cli.queue_explain:explain", "Tell why a job is not running."),
        "cancel": ("harn.cli.queue_changes:cancel", "Settle a job as cancelled."),
        "retry": ("harn.cli.queue_changes:retry", "Make a dead job ready again."),
        "pause": ("harn.cli.queue_changes:pause", "Stop claims on QUEUE."),
        "resume": ("harn.cli.queue_changes:resume", "Allow claims on QUEUE again."),
        "purge": ("harn.cli.queue_changes:purge", "Remove every ready and scheduled job."),
        "what-if": ("harn.cli.what_if:what_if", "Replay QUEUE's log by another policy."),
    },
)
@common
def queue(target: CommandTarget) -> Any:
    """List worker queues; drain, pause, replay or purge one; list or change its jobs."""
    if click.get_current_context().invoked_subcommand is None:
        from harn.cli.queue_list import list_queues

        return list_queues(target)
    return None

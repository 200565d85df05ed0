"""`harn orchestrator queue cancel|retry|pause|resume|purge`: change a queue or its jobs.

All but `purge` are carried out by the service that owns the state directory, if one runs, else by
the command. None of them needs a manifest.
"""

from __future__ import annotations

from typing import Any

import click

from harn.cli.ask_service import operate
from harn.cli.output import Decorator, emit
from harn.cli.queue_commands import job_argument, queue_argument
from harn.cli.target import CommandTarget, common
from harn.errors import HarnError
from harn.escaping import one_line
from harn.orchestrator import CancelJob, Options, PauseQueue, ResumeQueue, RetryJob
from harn.runtime import Runtime
from harn.topics import check_queue_name
from harn.workers import WorkerQueue, default_consumer_id


@click.command()
@queue_argument
@job_argument
@click.option("--reason", help="Kept as the job's error.")
@common
def cancel(target: CommandTarget, name: str, id: str, reason: str | None) -> int:
    """Settle job ID of QUEUE as cancelled, whatever its status; its handler is cancelled."""
    return _act(
        target, "cancel job", CancelJob(queue=name, job=id, reason=reason), f"cancelled job {id}"
    )


@click.command()
@queue_argument
@job_argument
@common
def retry(target: CommandTarget, name: str, id: str) -> int:
    """Make the dead job ID of QUEUE ready again, its attempts counted from zero."""
    return _act(target, "retry job", RetryJob(queue=name, job=id), f"job {id} is ready again")


tenant_option: Decorator = click.option("--tenant", help="Only this tenant of the queue.")


@click.command()
@queue_argument
@tenant_option
@click.option("--reason", help="Shown by `explain`.")
@common
def pause(target: CommandTarget, name: str, tenant: str | None, reason: str | None) -> int:
    """Stop claims on QUEUE; jobs in flight continue, and new ones are accepted."""
    options = PauseQueue(queue=name, tenant=tenant, reason=reason)
    return _act(target, "pause queue", options, f"paused{_of(tenant)}")


@click.command()
@queue_argument
@tenant_option
@common
def resume(target: CommandTarget, name: str, tenant: str | None) -> int:
    """Allow claims on QUEUE again."""
    options = ResumeQueue(queue=name, tenant=tenant)
    return _act(target, "resume queue", options, f"resumed{_of(tenant)}")


def _of(tenant: str | None) -> str:
    return "" if tenant is None else f" for tenant {tenant}"


def _act(target: CommandTarget, verb: str, options: Options, done: str) -> int:
    document = operate(target, verb, options, may_make=False, needs_manifest=False)
    emit(target.as_json, document, lambda: one_line(f"{document['queue']}: {done}"))
    return 0


@click.command()
@queue_argument
@click.option("--confirm", is_flag=True, help="Confirm that the jobs are to be removed.")
@click.option("--reason", default="manual purge", show_default=True)
@common
def purge(target: CommandTarget, name: str, confirm: bool, reason: str) -> int:
    """Remove every ready and scheduled job of QUEUE; jobs in flight stay."""
    target.check_config()
    check_queue_name(name)
    if not confirm:
        raise HarnError(f"purging queue {name!r} removes its jobs forever; add --confirm")

    async def work(runtime: Runtime) -> dict[str, Any]:
        found = WorkerQueue(runtime, name, None)
        purged = await found.purge(reason, by=default_consumer_id(runtime))
        return {"queue": name, "purged": purged, "summary": (await found.summary()).as_dict()}

    document, note = target.look(work)
    emit(target.as_json, document, lambda: f"{one_line(name)}: purged {document['purged']}", note)
    return 0

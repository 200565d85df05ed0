"""`harn orchestrator metrics`: print the metrics of the store as Prometheus text."""

from __future__ import annotations

import click

from harn.cli.output import emit
from harn.cli.target import CommandTarget, common
from harn.orchestrator import queue_samples
from harn.runtime import Runtime
from harn.telemetry.metrics import Metrics


@click.command()
@common
def metrics(target: CommandTarget) -> int:
    """Print every metric family: queues, scheduler, and this process's own."""

    async def work(runtime: Runtime) -> str:
        return runtime.service(Metrics).exposition(await queue_samples(runtime))

    text, missing = target.look(work)
    note = None if missing is None else f"# {missing}"
    emit(target.as_json, {"exposition": text}, lambda: text.rstrip("\n"), note)
    return 0

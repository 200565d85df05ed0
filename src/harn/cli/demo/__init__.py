"""`harn demo`: fair scheduling in a pool, then in a durable queue whose worker is killed.

pool_act.py   a pool of slots, two tenants
queue_act.py  a queue, two worker processes; run as a module it is one of them
"""

from __future__ import annotations

from typing import Any

import click

from harn.cli.output import emit, json_flag


@click.command()
@json_flag
def demo(as_json: bool) -> None:
    """Watch fair scheduling in a pool, then in a durable queue whose worker is killed."""
    from harn.cli.demo import pool_act, queue_act
    from harn.cli.signals import run_stoppable

    acts, queue = run_stoppable(_play)
    document = {"slots": pool_act.SLOTS, "acts": [act.as_dict() for act in acts], "queue": queue}
    emit(as_json, document, lambda: f"{pool_act.render(acts)}\n\n{queue_act.render(queue)}")


async def _play() -> tuple[Any, Any]:
    from harn import Runtime
    from harn.cli.demo import pool_act, queue_act

    async with Runtime():
        acts = await pool_act.play()
    return acts, await queue_act.play()

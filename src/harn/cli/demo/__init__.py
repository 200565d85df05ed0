"""`harn demo`: fair turns in a pool, then in a durable queue whose worker is killed.

pool_act.py   a pool of slots, two tenants
queue_act.py  a queue, two worker processes; run as a module it is one of them
"""

from __future__ import annotations

from dataclasses import asdict

import click

from harn.cli.output import emit, json_flag


@click.command()
@json_flag
def demo(as_json: bool) -> None:
    """See the main job done: fair turns in a pool, then in a queue whose worker is killed."""
    import harn
    from harn.cli.demo import pool_act, queue_act

    acts = harn.run(pool_act.play)
    queue = harn.run(queue_act.play)
    document = {"slots": pool_act.SLOTS, "acts": [asdict(act) for act in acts], "queue": queue}
    emit(as_json, document, lambda: f"{pool_act.render(acts)}\n\n{queue_act.render(queue)}")

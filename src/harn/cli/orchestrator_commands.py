"""`harn orchestrator`: the commands for a manifest, each imported when it is called."""

from __future__ import annotations

from pathlib import Path

import click

from harn.cli.commands import LazyGroup

DEFAULT_CONFIG = Path("harn.toml")


@click.group(
    cls=LazyGroup,
    lazy={
        "serve": ("harn.cli.serve:serve", "Run a manifest: triggers, queues, webhooks."),
        "check": ("harn.cli.check:check", "Check a manifest; report every mistake."),
        "fire": ("harn.cli.fire:fire", "Fire one trigger by hand."),
        "queue": ("harn.cli.queue_commands:queue", "List, drain and purge worker queues."),
        "reload": ("harn.cli.reload:reload", "Let the running service read its manifest again."),
        "inspect": ("harn.cli.dlq:inspect", "Show triggers, events under way, and failures."),
        "dlq": ("harn.cli.dlq:dlq", "List, replay or discard dead letters."),
        "replay": ("harn.cli.dlq:replay", "Dispatch an event again."),
        "metrics": ("harn.cli.metrics:metrics", "Print the Prometheus text."),
    },
)
def orchestrator() -> None:
    """Run manifests: triggers, worker queues, webhooks, dead letters."""

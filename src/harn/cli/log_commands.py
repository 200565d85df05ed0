"""`harn log`: the commands for the event log, each imported when it is called."""

from __future__ import annotations

import click

from harn.cli.commands import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "backup": (
            "harn.cli.log_transfer:backup",
            "Copy a SQLite store to the new file TARGET, while others use the store.",
        ),
        "export": (
            "harn.cli.log_transfer:export",
            "Write every record to the file TARGET (or `-`) as JSON lines.",
        ),
        "import": (
            "harn.cli.log_transfer:import_",
            "Import SOURCE: a file that `export` wrote, `-` for stdin, or another store's URL.",
        ),
        "rebuild": (
            "harn.cli.log_verify:rebuild",
            "Fold the log and replace the indexes with the result.",
        ),
        "tail": (
            "harn.cli.log_topic:tail",
            "Print the records of TOPIC as they arrive, one per line; with --json, each as JSON.",
        ),
        "trim": (
            "harn.cli.log_topic:trim",
            "Remove old records of TOPIC that are settled; offsets continue as before.",
        ),
        "verify": (
            "harn.cli.log_verify:verify",
            "Read every record, fold the log and compare the result with the indexes.",
        ),
    },
)
def log() -> None:
    """Verify, rebuild, back up, export, import, follow and trim the event log."""

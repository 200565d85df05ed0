"""The tree of commands, each named here and imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from harn import __version__
from harn.cli.command_log import command_log
from harn.cli.progress import live_line
from harn.errors import did_you_mean


class HarnGroup(click.Group):
    """A group that suggests the nearest command for one that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        name = args[0] if args else ""
        known = self.list_commands(ctx)
        if args and name not in known and not name.startswith("-"):
            near = did_you_mean(name, known) or self.elsewhere(name)
            ctx.fail(f"no such command {name!r}{near}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command, whatever the width."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(200)) for name, each in found if each is not None]
            )

    def elsewhere(self, name: str) -> str:
        """Return a suggestion for a command that another group has."""
        return ""


class LazyGroup(HarnGroup):
    """A group whose commands are named by `module:attribute` and imported on demand."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of the table."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command called *cmd_name*."""
        if cmd_name not in self.lazy:
            return None
        module, attribute = self.lazy[cmd_name][0].split(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in self.lazy.items()])


class _Root(LazyGroup):
    def elsewhere(self, name: str) -> str:
        from harn.cli.orchestrator_commands import orchestrator

        return f"; did you mean 'orchestrator {name}'?" if name in orchestrator.lazy else ""


@click.group(
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    lazy={
        "demo": ("harn.cli.demo:demo", "Watch fair scheduling at work, in under a minute."),
        "doctor": ("harn.cli.doctor:doctor", "Check what this machine has."),
        "orchestrator": (
            "harn.cli.orchestrator_commands:orchestrator",
            "Run manifests: triggers, worker queues, webhooks.",
        ),
        "worker": (
            "harn.cli.worker_command:worker",
            "Serve queues with the @durable functions of modules.",
        ),
        "portal": ("harn.cli.portal_command:portal", "See a store in a browser, and act on it."),
        "top": ("harn.cli.top:top", "Watch pools, queues, limits and failures, live."),
        "lint": ("harn.cli.lint:lint", "Find handles that escape and closures in loops."),
        "usage": ("harn.cli.usage_command:usage", "Add up what model calls have used."),
        "ratelimit": ("harn.cli.ratelimit:ratelimit", "Show rate limits."),
        "log": (
            "harn.cli.log_commands:log",
            "Verify, rebuild, move, follow and trim the event log.",
        ),
        "completion": ("harn.cli.completion:completion", "Print a shell's completion script."),
    },
)
@click.version_option(__version__, prog_name="harn", message="%(prog)s %(version)s")
@click.pass_context
def harn(ctx: click.Context) -> None:
    """Orchestrate agents and other work."""
    ctx.with_resource(command_log(ctx))
    ctx.with_resource(live_line.ticking(f"harn {ctx.invoked_subcommand}"))

"""`harn ratelimit`: show the buckets of the limiter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from harn.cli.commands import HarnGroup
from harn.cli.output import emit, json_flag
from harn.cli.signals import run_stoppable
from harn.cli.store_choice import insecure_flag, usable_store
from harn.cli.tables import table
from harn.duration import roughly, to_text
from harn.ratelimit import BucketStatus, RuleStatus, list_status, stores_of_limits
from harn.runtime import Runtime
from harn.settings import Settings


@click.group(cls=HarnGroup)
def ratelimit() -> None:
    """Show rate limits."""


@ratelimit.command("ls")
@click.option("--state-path", type=click.Path(path_type=Path), help="The limiter's own file.")
@insecure_flag
@click.option("--state-dir", type=click.Path(path_type=Path), help="Directory with its files.")
@click.option("--storage", help="The store, when it is postgresql://...")
@click.option("--all", "everything", is_flag=True, help="Show idle buckets too.")
@json_flag
def ls(
    state_path: Path | None,
    state_dir: Path | None,
    storage: str | None,
    everything: bool,
    as_json: bool,
) -> int:
    """List buckets: use, rules, waiting callers, and when the oldest reservation expires."""
    urls = _stores(state_path, state_dir, storage)
    found = run_stoppable(lambda: _look(urls))
    shown = [bucket for bucket in found if everything or not bucket.is_idle]
    document = {"buckets": [bucket.as_dict() for bucket in shown]}
    emit(as_json, document, lambda: _render(shown))
    return 0


def _stores(state_path: Path | None, state_dir: Path | None, storage: str | None) -> list[str]:
    """Return the stores to read: the given file, PostgreSQL, or those in the state directory."""
    folder, url = usable_store(storage, state_dir)
    if state_path is None:
        return stores_of_limits(url, folder, Settings.load().llm_rate_limit_state_path)
    if not state_path.is_file():
        raise click.UsageError(f"there is no file {state_path}")
    return [f"sqlite:///{os.path.abspath(state_path)}"]


async def _look(urls: list[str]) -> list[BucketStatus]:
    async with Runtime() as runtime:
        return [bucket for url in urls for bucket in await list_status(runtime, url)]


def _render(buckets: list[BucketStatus]) -> str:
    if not buckets:
        return "no bucket is in use"
    rows = [row for bucket in buckets for row in _rows(bucket)]
    return table(("bucket", "used", "limit", "window", "waiting", "frees", "paused until"), rows)


def _rows(bucket: BucketStatus) -> Iterator[tuple[object, ...]]:
    """Yield a row for the bucket with its first rule, and one for each further rule."""
    limit, window = ("", "") if not bucket.rules else _rule(bucket.rules[0])
    frees = "" if bucket.frees_in_ms is None else f"in {roughly(bucket.frees_in_ms)}"
    paused = bucket.paused_until or ""
    yield bucket.key, bucket.used, limit, window, bucket.waiting, frees, paused
    for rule in bucket.rules[1:]:
        yield bucket.key, "", *_rule(rule), "", "", ""


def _rule(rule: RuleStatus) -> tuple[str, str]:
    return str(rule.limit), to_text(rule.window_ms / 1000)

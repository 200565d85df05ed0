"""`harn portal`: see any store in a browser, and act on it; no manifest is needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from harn.cli.command_log import log_as_service
from harn.cli.garbage_collector import begin_work
from harn.cli.output import say_json
from harn.cli.signals import STOP_WITHIN, run_stoppable
from harn.cli.store_choice import store_options, usable_store
from harn.errors import StorageError
from harn.masking import mask
from harn.orchestrator import Service, check_loopback, read_keys
from harn.runtime import Runtime
from harn.stopping import Stopping
from harn.storage import check_there, read_url


@click.command()
@store_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8790, show_default=True)
@click.option(
    "--admin-key-file",
    type=click.Path(path_type=Path),
    help="A file with the operators' keys, one a line.",
)
@click.option("--read-only", is_flag=True, help="Let operators look, and never act.")
def portal(
    storage: str | None,
    state_dir: Path | None,
    host: str,
    port: int,
    admin_key_file: Path | None,
    read_only: bool,
) -> int:
    """Serve the portal of a store: queues, jobs, pools, limits, triggers, costs and the log.

    Without a key it can only be looked at, on this machine. With --admin-key-file, operators log in
    with a key and may act: cancel, retry, pause, resume, replay, discard.
    """
    log_as_service()
    keys = () if admin_key_file is None else read_keys(admin_key_file)
    check_loopback(host, keys, "give --admin-key-file, or listen on 127.0.0.1")
    directory, url = usable_store(storage, state_dir)
    stopped = asyncio.Event()

    async def inside() -> int:
        async with Runtime(state_dir=directory, storage=url) as runtime:
            _check_there(runtime.storage_url)
            await _serve(Service(runtime, None, keys), (host, port), read_only, stopped)
        return 0

    begin_work()
    return run_stoppable(inside, Stopping(STOP_WITHIN, stopped.set, ends_process=True))


def _check_there(url: str) -> None:
    if read_url(url).engine == "memory":
        raise StorageError("a memory:// store cannot be read from another process")
    check_there(url)


async def _serve(
    service: Service, place: tuple[str, int], read_only: bool, stopped: asyncio.Event
) -> None:
    from harn.portal import Listening, bind, build_app

    app = build_app(service, read_only=read_only)
    async with Listening(app, bind(*place), drain_within=STOP_WITHIN) as listening:
        address: dict[str, Any] = {
            "status": "ready",
            "bind": listening.address,
            "url": f"http://{listening.address}/portal/",
            "storage": mask(service.runtime.storage_url),
        }
        say_json(address, err=True)
        await stopped.wait()
        service.intake.draining = True  # ends the streams of viewers

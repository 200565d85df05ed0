"""The admin socket of a state directory, served while the service runs.

One service owns a state directory at a time. A second one on the same directory serves its own
requests and queues, and takes the socket over when the owner ends.
"""

from __future__ import annotations

import asyncio
import logging

from harn.errors import HarnError
from harn.orchestrator import AdminSocket, Service, own
from harn.portal.app import build_admin_app
from harn.portal.http_server import Listening
from harn.tasks import sleep

logger: logging.Logger = logging.getLogger("harn.portal")

TRY_EVERY = 1.0
"""Seconds between two attempts to own a directory that another service owns."""


class AdminListening:
    """Serves operators of this machine: `async with` opens the socket and closes it at the end."""

    def __init__(self, service: Service, drain_within: float) -> None:
        self._service = service
        self._drain_within = drain_within
        self._socket: AdminSocket | None = None
        self._listening: Listening | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AdminListening:
        if not await self._try_open():
            logger.info("another service owns %s", self._service.runtime.state_dir)
            self._waiting = asyncio.ensure_future(self._open_later())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, *, force: bool = False) -> None:
        """Accept no more requests, let running ones end, and remove the socket.

        Cancelling cancels those that still run; the socket is removed all the same.
        """
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait((self._waiting,))
        owned, self._socket = self._socket, None
        if owned is None:
            return
        try:
            if self._listening is not None:
                await self._listening.stop(force=force)
        finally:
            owned.close()

    async def _try_open(self) -> bool:
        owned = own(self._service.runtime.state_dir)
        if owned is None:
            return False
        self._socket = owned
        app = build_admin_app(self._service)
        self._listening = Listening(app, owned.bind(), drain_within=self._drain_within)
        await self._listening.__aenter__()
        return True

    async def _open_later(self) -> None:
        while True:
            await sleep(TRY_EVERY)
            try:
                if not await self._try_open():
                    continue
            except (HarnError, OSError) as error:
                logger.warning("this service cannot accept operators' requests: %s", error)
            else:
                logger.info("took over %s", self._service.runtime.state_dir)
            return

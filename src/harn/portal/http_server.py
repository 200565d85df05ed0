"""uvicorn in the service's event loop, with limits on time, size and connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from harn.portal.app import MOST_HEAD

logger: logging.Logger = logging.getLogger("harn.portal")

HEAD_WITHIN = 10.0
"""Seconds within which a request's head must arrive."""
MOST_CONNECTIONS = 1000
TELL_EVERY = 60.0
"""Seconds between two log lines about malformed requests."""


class ServerLog(logging.Logger):
    """The server's logger, which writes to harn's log.

    Its warnings are about malformed requests. A sender can send many of them, so they are counted
    and logged at most once a minute.
    """

    def __init__(self) -> None:
        super().__init__(logger.name, logging.WARNING)
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Count a malformed request."""
        self._count += 1
        if self._timer is None:
            self.tell()

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log an error of the server."""
        logger.error(msg, *args, **kwargs)

    def tell(self) -> None:
        """Log the count, if it is not zero, and wait a minute before the next line."""
        count, self._count, self._timer = self._count, 0, None
        if count:
            logger.warning("malformed requests: %d refused", count)
            self._timer = asyncio.get_running_loop().call_later(TELL_EVERY, self.tell)

    def end(self) -> None:
        """Log what was counted since the last line."""
        if self._timer is not None:
            self._timer.cancel()
            self.tell()
        if self._timer is not None:
            self._timer.cancel()


class TimedConnection(H11Protocol):
    """A connection that is closed when no complete request head arrives in time."""

    def __init__(self, *args: Any, log: ServerLog, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = log

    def connection_made(self, transport: Any) -> None:
        """Start the timer."""
        super().connection_made(transport)
        self._last_cycle: Any = None
        self._timer = self.loop.call_later(HEAD_WITHIN, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._last_cycle:
            self.transport.abort()
            return
        self._last_cycle = self.cycle
        self._timer = self.loop.call_later(HEAD_WITHIN, self._close_if_idle)


class HttpServer(uvicorn.Server):
    """A server that leaves signals to the process that runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up: asyncio.Event = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and set `up`."""
        await super().startup(sockets)
        self.up.set()


class Listening:
    """Serves an application: `async with` starts the server and stops it at the end."""

    def __init__(self, app: Any, bound: socket.socket, *, drain_within: float = 30.0) -> None:
        self._socket = bound
        self._log = ServerLog()
        config = uvicorn.Config(
            app,
            http=partial(TimedConnection, log=self._log),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            date_header=False,
            log_config=None,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=MOST_HEAD,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=max(1, int(drain_within)),
            backlog=1024,
        )
        self._server = HttpServer(config)
        self._running: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def __aenter__(self) -> Listening:
        self._running = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        up = asyncio.ensure_future(self._server.up.wait())
        await asyncio.wait((up, self._running), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._running.done():
            self._running.result()
            raise OSError("the server did not start")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, *, force: bool = False) -> None:
        """Accept no more connections and let running requests end. A second call does nothing.

        Cancelling cancels those that still run.
        """
        if self._running is None:
            return
        self._server.should_exit = True
        if force:
            self._server.force_exit = True
        running, self._running = self._running, None
        try:
            await running
        finally:
            self._log.end()


def bind(host: str, port: int) -> socket.socket:
    """Open a socket to listen on; an error names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is given: that saves 40 ms.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    opened.setblocking(False)
    return opened

"""HTTP over the socket in a service's state directory."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import msgspec

from harn.cli.progress import live_line
from harn.errors import HarnError
from harn.orchestrator import Options, Verb

SILENT_FOR = 30.0
"""Seconds without a line of progress after which the command stops waiting for the service."""
LINES = "application/x-ndjson"


class ServiceConnection(http.client.HTTPConnection):
    """A connection, *opened* already, to the service that owns the state directory *directory*."""

    def __init__(self, opened: socket.socket, directory: Path) -> None:
        super().__init__("localhost", timeout=SILENT_FOR)
        opened.settimeout(SILENT_FOR)
        self.sock = opened
        self._directory = directory

    def answer(self, asked: Verb, options: Options) -> dict[str, Any]:
        """Ask for a verb, show its lines of progress, and return its document."""
        path, fields = asked.address(options)
        try:
            self.request(
                asked.method,
                path,
                body=msgspec.json.encode(fields) if fields else None,
                headers={"Accept": LINES, "Content-Type": "application/json"},
            )
            return _result(self.getresponse())
        except TimeoutError:
            raise HarnError(
                f"the service on {self._directory} has not answered for {SILENT_FOR:.0f} s; "
                "it may still do what it was asked"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise HarnError(
                f"the service on {self._directory} ended before it answered "
                f"({type(error).__name__}); events that it has accepted are dispatched when it "
                "runs again"
            ) from None
        finally:
            live_line.end()


def _result(response: http.client.HTTPResponse) -> dict[str, Any]:
    """Read the lines of progress, then the last line with the result."""
    record: dict[str, Any] = {}
    for text in response:
        record = json.loads(text)
        if record.get("progress"):
            live_line.show(record["progress"])
    if "error" in record:
        raise HarnError(str(record["error"]))
    if "result" not in record:
        raise http.client.IncompleteRead(b"")
    result: dict[str, Any] = record["result"]
    return result

"""Which addresses a service may listen on: other than loopback only with operators' keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from harn.errors import ManifestError
from harn.orchestrator.manifest import check_bind
from harn.private_files import check_private

SHORTEST_KEY = 16


def check_exposure(bind: str, admin_keys: Sequence[bytes]) -> tuple[str, int]:
    """Return host and port of *bind*; raise unless it is loopback or there are operators' keys."""
    host, port = check_bind(bind)
    check_reach(host, admin_keys)
    return host, port


def check_reach(host: str, admin_keys: Sequence[bytes]) -> None:
    """Raise if *host* is not loopback and there are no operators' keys."""
    check_loopback(host, admin_keys, "set [serve] keys, or bind to 127.0.0.1")


def check_loopback(host: str, admin_keys: Sequence[bytes], way_out: str) -> None:
    """Raise with the *way_out* if *host* is not loopback and there are no operators' keys."""
    if not admin_keys and not is_loopback(host):
        raise ManifestError(f"{host} can be reached from outside; {way_out}")


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read operators' keys from a file, one a line; an empty file or a short key is refused."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ManifestError(f"the key file {path} cannot be read: {reason}") from None
    check_private(path, "key file", error=ManifestError)
    keys = tuple(line.strip().encode() for line in text.splitlines() if line.strip())
    if not keys:
        raise ManifestError(f"the key file {path} is empty; write a key of {SHORTEST_KEY} bytes")
    if min(map(len, keys)) < SHORTEST_KEY:
        raise ManifestError(f"a key in {path} is shorter than {SHORTEST_KEY} bytes")
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether *host* can be reached only from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

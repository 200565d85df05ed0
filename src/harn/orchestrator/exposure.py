"""Where a service may listen: beyond this machine only with operators' keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from harn.errors import ManifestError
from harn.orchestrator.manifest import check_bind


def check_exposure(bind: str, admin_keys: Sequence[bytes]) -> tuple[str, int]:
    """Return where to listen; beyond this machine only with operators' keys."""
    host, port = check_bind(bind)
    check_reach(host, admin_keys)
    return host, port


def check_reach(host: str, admin_keys: Sequence[bytes]) -> None:
    """Refuse to listen on *host* without operators' keys, unless it is this machine only."""
    if not admin_keys and not is_loopback(host):
        raise ManifestError(
            f"{host} can be reached from outside; set [serve] keys, or bind to 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Tell whether *host* is this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

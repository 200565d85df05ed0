"""Which addresses a service may listen on: other than loopback only with operators' keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from harn.errors import ManifestError
from harn.orchestrator.manifest import check_bind


def check_exposure(bind: str, admin_keys: Sequence[bytes]) -> tuple[str, int]:
    """Return host and port of *bind*; raise unless it is loopback or there are operators' keys."""
    host, port = check_bind(bind)
    check_reach(host, admin_keys)
    return host, port


def check_reach(host: str, admin_keys: Sequence[bytes]) -> None:
    """Raise if *host* is not loopback and there are no operators' keys."""
    if not admin_keys and not is_loopback(host):
        raise ManifestError(
            f"{host} can be reached from outside; set [serve] keys, or bind to 127.0.0.1"
        )


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

"""Where may we connect to? The rules for addresses that came from a manifest or a message.

A name is resolved once, every address it has must be public, and the connection goes to an
address that was checked: a name that changes its answer in between gains nothing. Hosts that the
operator lists by name or network are let through.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from harn.errors import InvalidOption, TriggerError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
    r"(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*\.?",
    re.ASCII,
)
_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]*))*", re.ASCII)
_NEVER = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "168.63.129.16/32",  # a cloud's metadata service on a public address
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "fec0::/10",
    )
)


@dataclass(frozen=True, slots=True)
class Url:
    """A web address in its parts; *target* is path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        """Scheme, host and port, as they may be shown."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator lets through although it is not public."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def has(self, host: str, address: Address) -> bool:
        """Tell whether *host* or *address* is on the list."""
        return host in self.hosts or any(
            address.version == network.version and address in network for network in self.networks
        )


def check_allowed(entries: Sequence[str], option: str = "allow") -> Allowed:
    """Read a list of host names and networks (`10.0.0.0/8`, `127.0.0.1`)."""
    hosts: set[str] = set()
    networks: list[Network] = []
    if isinstance(entries, str):
        raise InvalidOption(option, entries, "a list of host names and networks")
    for entry in entries:
        if not isinstance(entry, str):
            raise InvalidOption(option, entry, "host names and networks")
        try:
            networks.append(ipaddress.ip_network(entry.strip(), strict=False))
        except ValueError:
            if not _HOST.fullmatch(entry.lower()):
                raise InvalidOption(option, entry, "a host name or a network") from None
            hosts.add(entry.lower().rstrip("."))
    return Allowed(frozenset(hosts), tuple(networks))


def read_url(text: str, option: str = "url") -> Url:
    """Read a web address, refusing what is not plainly one.

    >>> read_url("https://agents.example/a2a?x=1").target
    '/a2a?x=1'
    """
    accepted = "http(s)://host[:port]/path, without user, password or fragment"
    if not isinstance(text, str) or len(text) > 2000 or not text.isascii():
        raise InvalidOption(option, "<url>", accepted)
    if any(char <= " " or char in "\\\x7f" for char in text):
        raise InvalidOption(option, "<url>", accepted)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidOption(option, "<url>", accepted) from None
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.fragment:
        raise InvalidOption(option, f"<{parts.scheme} url>", accepted)
    if not is_host(host) or port == 0:
        raise InvalidOption(option, f"<host {host[:80]}>", accepted)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(
        parts.scheme, host.rstrip("."), port or (443 if parts.scheme == "https" else 80), target
    )


def is_host(host: str) -> bool:
    """Tell whether *host* is a name, or an address in its one full spelling.

    `127.1`, `0x7f000001`, `2130706433` and `0177.0.0.1` are spellings that libraries read
    differently: they are refused, whatever they mean.
    """
    if ":" in host or _NUMERIC_HOST.fullmatch(host):
        try:
            return "%" not in host and ipaddress.ip_address(host).compressed is not None
        except ValueError:
            return False
    return _HOST.fullmatch(host) is not None


def is_public(address: Address) -> bool:
    """Tell whether *address* is out on the internet, and nothing else.

    >>> is_public(ipaddress.ip_address("93.184.216.34"))
    True
    >>> is_public(ipaddress.ip_address("::ffff:127.0.0.1"))
    False
    """
    if isinstance(address, ipaddress.IPv6Address) and (inner := address.ipv4_mapped):
        return is_public(inner)
    if any(address.version == network.version and address in network for network in _NEVER):
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not address.is_loopback
        and not address.is_link_local
        and not address.is_private
    )


def choose_address(url: Url, found: Sequence[str], allowed: Allowed) -> str:
    """Return the address to connect to; one address that is not public condemns them all.

    *found* is what the name resolved to, or the address itself.
    """
    if not found:
        raise TriggerError(f"{url.host} has no address")
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in found]
    for address in addresses:
        if not is_public(address) and not allowed.has(url.host, address):
            raise TriggerError(
                f"{url.host} leads to {address}, which is not public; list it under `allow` if it "
                "is meant to be reached"
            )
    return str(addresses[0])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

"""Which addresses may be called: the rules for addresses from a manifest or a message.

A name is resolved once, all of its addresses must be public, and the connection goes to an
address that was checked: a DNS server that gives another answer later changes nothing. Hosts that
the operator lists by name or network are allowed. Clear text is only allowed to hosts listed with
its scheme, `a2a+http://10.0.0.0/8`, public or not: a token must not travel in clear by accident.
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

CLEAR = "a2a+http://"
"""The prefix of an entry that allows clear text."""

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
        "100:0:0:1::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",  # documentation; Python before 3.13 calls it global
        "5f00::/16",
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
class Listed:
    """Hosts and networks of one list."""

    hosts: frozenset[str] = frozenset()
    networks: frozenset[Network] = frozenset()

    def has(self, host: str, address: Address) -> bool:
        """Tell whether *host* or *address* is on the list."""
        return host in self.hosts or any(
            address.version == network.version and address in network for network in self.networks
        )


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator allows: addresses that are not public, by TLS, and addresses in clear."""

    tls: Listed = Listed()
    clear: Listed = Listed()

    def check(self, url: Url, address: Address) -> None:
        """Raise `TriggerError` unless *address*, which *url*'s host resolved to, may be called."""
        listed_in_clear = self.clear.has(url.host, address)
        if url.scheme == "http" and not listed_in_clear:
            raise TriggerError(
                f"{url.host} ({address}) is not called without TLS; "
                f'list "{CLEAR}{_bracketed(url.host)}" under `allow` if it is meant to be'
            )
        is_listed = listed_in_clear or self.tls.has(url.host, address)
        if not is_listed and not is_public(address):
            raise TriggerError(
                f"{url.host} leads to {address}, which is not public; list it under `allow` if it "
                "is meant to be reached"
            )


def check_allowed(entries: Sequence[str]) -> Allowed:
    """Read a list of host names and networks (`10.0.0.0/8`, `127.0.0.1`, `a2a+http://peer`).

    >>> check_allowed(["peer.internal", "a2a+http://127.0.0.1"]).tls.hosts
    frozenset({'peer.internal'})
    """
    if isinstance(entries, str):
        raise InvalidOption("allow", entries, "a list of host names and networks")
    tls: list[str | Network] = []
    clear: list[str | Network] = []
    for entry in entries:
        if not isinstance(entry, str):
            raise InvalidOption("allow", entry, "host names and networks")
        if entry.startswith(CLEAR):
            clear.append(_entry(entry.removeprefix(CLEAR), entry))
        else:
            tls.append(_entry(entry.removeprefix("a2a://"), entry))
    return Allowed(_listed(tls), _listed(clear))


def _entry(text: str, entry: str) -> str | Network:
    text = text.strip().lower()
    try:
        return ipaddress.ip_network(text.removeprefix("[").removesuffix("]"), strict=False)
    except ValueError:
        if not _HOST.fullmatch(text) or _NUMERIC_HOST.fullmatch(text):
            accepted = f'a host name or a network, "{CLEAR}" before it for clear text; no port'
            raise InvalidOption("allow", entry, accepted) from None
        return text.rstrip(".")


def _listed(entries: Sequence[str | Network]) -> Listed:
    return Listed(
        frozenset(entry for entry in entries if isinstance(entry, str)),
        frozenset(entry for entry in entries if not isinstance(entry, str)),
    )


def read_url(text: str, option: str = "url") -> Url:
    """Read a web address; an ambiguous one is refused.

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

    Libraries read spellings such as `127.1`, `0x7f000001`, `2130706433` and `0177.0.0.1`
    differently, so all of them are refused.
    """
    if ":" in host or _NUMERIC_HOST.fullmatch(host):
        try:
            return "%" not in host and ipaddress.ip_address(host).compressed is not None
        except ValueError:
            return False
    return _HOST.fullmatch(host) is not None


def is_public(address: Address) -> bool:
    """Tell whether *address* belongs to the public internet and has no special use.

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
    """Return the address to connect to; raise if one of *found* is not allowed.

    *found* is what the name resolved to, or the address itself. All of them are checked, because
    an attacker who controls the name could hide a private address behind a public one.
    """
    if not found:
        raise TriggerError(f"{url.host} has no address")
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in found]
    for address in addresses:
        allowed.check(url, address)
    return str(addresses[0])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

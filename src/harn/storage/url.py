"""The URL of a store: its engine, its path or DSN, and its options."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from harn.duration import to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.masking import mask

OPTIONS: dict[str, tuple[str, ...]] = {
    "memory": (),
    "sqlite": ("durability", "busy_timeout"),
    "file": ("durability", "busy_timeout", "read_only"),
    "postgresql": ("schema", "busy_timeout", "pool_size"),
}
BUSY_MS = 5000
"""How long an operation waits for a lock of another process, unless the URL says it."""

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")


class StoreUrl(msgspec.Struct, frozen=True):
    """The parts of a storage URL; *rest* is a path, or for PostgreSQL a DSN."""

    engine: str
    rest: str
    options: dict[str, str]

    def __repr__(self) -> str:  # without the rest, which may hold a password
        return f"StoreUrl(engine={self.engine!r}, options={self.options!r})"

    @property
    def path(self) -> Path:
        """The file or directory, absolute."""
        return Path(os.path.abspath(self.rest))

    @property
    def durability(self) -> Literal["full", "normal"]:
        """What a write survives, on engines that let the URL say it."""
        return "normal" if self.options.get("durability") == "normal" else "full"

    @property
    def busy_ms(self) -> int:
        """Milliseconds to wait for a lock."""
        found = self.options.get("busy_timeout")
        return BUSY_MS if found is None else to_ms(found, "busy_timeout")

    @property
    def is_read_only(self) -> bool:
        """Whether the store is opened without writing."""
        return "read_only" in self.options


def read_url(url: str) -> StoreUrl:
    """Return the parts of *url*; options follow a question mark.

    >>> read_url("sqlite:///state/events.sqlite?durability=normal").options
    {'durability': 'normal'}
    """
    scheme, _, rest = url.partition("://")
    engine = "postgresql" if scheme == "postgres" else scheme
    if engine not in OPTIONS:
        raise InvalidOption("storage", mask(url), f"one of {', '.join(OPTIONS)}")
    if engine == "postgresql":
        return _postgres_url(url)
    path, _, query = rest.partition("?")
    try:
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise InvalidOption("storage", mask(url), "options as name=value after the '?'") from None
    for name in options:
        if name not in OPTIONS[engine]:
            known = OPTIONS[engine]
            raise InvalidOption(
                "storage", mask(url), f"no option {name!r} in its URL{did_you_mean(name, known)}"
            )
    if options.get("durability", "full") not in ("full", "normal"):
        raise InvalidOption("durability", options["durability"], "'full' or 'normal'")
    if options.get("read_only", "1") != "1":
        raise InvalidOption("read_only", options["read_only"], "'1', or leave it out")
    if engine == "memory":
        return StoreUrl(engine, "", options)
    if not path.startswith("/") or path.strip("/") == "":
        accepted = f"{engine}:///relative/path or {engine}:////absolute"
        raise InvalidOption("storage", mask(url), accepted)
    return StoreUrl(engine, path[1:], options)


def _postgres_url(url: str) -> StoreUrl:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if not all(_HOST.fullmatch(host) for host in hosts):
        # libpq checks this too, but its message shows the part of a password taken for a port.
        raise InvalidOption(
            "storage", mask(url), "host:port after the '@'; percent-encode : / ? # [ ] @ before it"
        )
    given = parse_qsl(parts.query)
    ours = {name: value for name, value in given if name in OPTIONS["postgresql"]}
    theirs = [(name, value) for name, value in given if name not in OPTIONS["postgresql"]]
    schema = ours.get("schema", "harn")
    if not schema.replace("_", "a").isalnum() or not schema.isascii() or len(schema) > 60:
        raise InvalidOption("schema", schema, "ASCII letters, digits and underscores")
    if not re.fullmatch("[1-9][0-9]{0,2}", ours.get("pool_size", "1")):
        raise InvalidOption("pool_size", ours["pool_size"], "a whole number, 1 to 999")
    dsn = parts._replace(scheme="postgresql", query=urlencode(theirs)).geturl()
    return StoreUrl("postgresql", dsn, ours)


def read_only(url: str) -> str:
    """Return *url* with the option to open it without writing, if its engine has one.

    >>> read_only("file:///state?durability=normal")
    'file:///state?durability=normal&read_only=1'
    """
    place = read_url(url)
    if "read_only" not in OPTIONS[place.engine] or place.is_read_only:
        return url
    return f"{url}{'&' if place.options else '?'}read_only=1"

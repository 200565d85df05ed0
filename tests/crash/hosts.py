"""Hosts on one PostgreSQL whose network can be cut: network namespaces, or a proxy for each."""

from __future__ import annotations

import ipaddress
import os
import random
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tests.forwarder import Forwarder


class Host(Protocol):
    """A place for processes that reach the server by a way of its own."""

    url: str
    prefix: list[str]
    """What a command starts with that runs on this host."""

    def cut(self) -> None:
        """Let nothing through any more, in either direction, and tell neither side."""

    def mend(self) -> None:
        """Let everything through again."""


class Proxied(Forwarder):
    """A host that is only a process; while its network is cut, the forwarder holds what comes."""

    prefix: list[str] = []

    def __init__(self, url: str) -> None:
        self._passes = threading.Event()
        self._passes.set()
        super().__init__(url)

    def cut(self) -> None:
        self._passes.clear()

    def mend(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self.mend()
        super().close()

    def send_on(
        self, data: bytes, source: socket.socket, target: socket.socket, *, to_server: bool
    ) -> bool:
        self._passes.wait()
        return super().send_on(data, source, target, to_server=to_server)


class Namespace:
    """A network namespace of its own, with one link to this one."""

    def __init__(self, url: str, network: int, name: str) -> None:
        self._link = f"{name}l"
        ours, theirs = _address(network, 1), _address(network, 2)
        _ip("netns", "add", name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "up0", "netns", name)
        _ip("addr", "add", f"{ours}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        _ip("-n", name, "addr", "add", f"{theirs}/30", "dev", "up0")
        _ip("-n", name, "link", "set", "up0", "up")
        self._forwarder = Forwarder(url, ours)
        self.url = self._forwarder.url
        self.prefix = ["ip", "netns", "exec", name]

    def cut(self) -> None:
        _ip("link", "set", self._link, "down")

    def mend(self) -> None:
        _ip("link", "set", self._link, "up")

    def close(self) -> None:
        self._forwarder.close()


@contextmanager
def proxied_hosts(url: str, count: int) -> Iterator[list[Host]]:
    """Make hosts that are only processes, each behind a forwarder of its own."""
    made = [Proxied(url) for _ in range(count)]
    try:
        yield list(made)
    finally:
        for each in made:
            each.close()


@contextmanager
def namespaces(url: str, count: int) -> Iterator[list[Host]]:
    """Make hosts that are network namespaces; they go with the block."""
    names = [f"hn{uuid.uuid4().hex[:6]}" for _ in range(count)]
    networks = random.sample(range(2**15), count)  # others may run this test at the same time
    made: list[Namespace] = []
    try:
        for network, name in zip(networks, names, strict=True):
            made.append(Namespace(url, network, name))
        yield list(made)
    finally:
        for each in made:
            each.close()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", f"{name}l"], capture_output=True)


def why_no_namespaces() -> str | None:
    """Return why this machine lets us make no network namespace; None if it does."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the program ip"
    name = f"hn{uuid.uuid4().hex[:5]}"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", f"{name}l", "type", "veth", "peer", "name", "up0", "netns", name)
        _ip("netns", "exec", name, "true")
    except RuntimeError as error:
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


def _address(network: int, host: int) -> str:
    """Return an address of one of the small networks in 198.18.0.0/15, which is for tests."""
    return str(ipaddress.IPv4Address("198.18.0.0") + network * 4 + host)


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stderr.strip()}")

"""A host that can vanish: a network namespace behind a cable of its own (veth).

Sockets of clients that are made there work as any others, from any thread, until `vanish` takes the
host's address away: from then on nothing answers, and no packet says so. Everything is removed when
the block ends, and needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from vespiary_testkit.waiting import WAIT_S

T = TypeVar("T")

_NAMES = itertools.count()
_SUBNETS = 1 << 15
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=WAIT_S)


class FarNetwork:
    """One far host.

    Attributes:
        near: Address by which the far host reaches this machine.
        far: Its own address.
    """

    def __init__(self) -> None:
        number = os.getpid() * 8 + next(_NAMES)
        self._name = f"vespiary-{number}"
        self._near_link, self._far_link = f"vn{number}", f"vf{number}"
        # 198.18.0.0/15 is for tests of network devices (RFC 2544): four addresses for each.
        first = (198 << 24) + (18 << 16) + (number % _SUBNETS) * 4
        self.near, self.far = (
            socket.inet_ntoa((first + offset).to_bytes(4, "big")) for offset in (1, 2)
        )

    def begin(self) -> None:
        """Make it."""
        name, near, far = self._name, self._near_link, self._far_link
        _ip("netns", "add", name)
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _ip("address", "add", f"{self.near}/30", "dev", near)
        _ip("-n", name, "address", "add", f"{self.far}/30", "dev", far)
        _ip("-n", name, "link", "set", far, "up")
        _ip("link", "set", near, "up")

    def end(self) -> None:
        """Remove it."""
        for arguments in (("link", "delete", self._near_link), ("netns", "delete", self._name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*arguments)

    def vanish(self) -> None:
        """Let the host be gone: it drops what comes, and what it sends does not arrive."""
        _ip("-n", self._name, "address", "flush", "dev", self._far_link)

    def inside(self, act: Callable[[], T]) -> T:
        """Return what something returns that runs there; sockets that it makes stay there."""
        found: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with Path("/run/netns", self._name).open("rb") as namespace:
                    if _libc.setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                found.append(act())
            except BaseException as error:  # raised by the caller
                errors.append(error)

        thread = threading.Thread(target=run)  # a thread alone has a namespace of its own
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return found[0]

    def connect(self, port: int) -> socket.socket:
        """Return a connection of the far host to a port of this machine."""
        return self.inside(lambda: socket.create_connection((self.near, port), WAIT_S))


@contextlib.contextmanager
def far_network() -> Iterator[FarNetwork]:
    """Have a far host; skips the test where namespaces cannot be made."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    network = FarNetwork()
    try:
        try:
            network.begin()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace: {error.stderr.decode(errors='replace').strip()}")
        yield network
    finally:
        network.end()

"""A port in front of a broker that can cut clients off and hold back what the broker says.

Owns its connections and the two threads of each. With it a test sees whether a client waits for a
confirm, and what it does when the network fails, while the broker runs on.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from vespiary_testkit.waiting import WAIT_S

_READ_BYTES = 65_536


class Relay:
    """Passes on what comes, both ways. Use as a context manager.

    Attributes:
        target: Port of the broker, on loopback; may be changed.
        port: The port to connect to.
        accepted: How many connections there were.

    Args:
        target: Port of the broker.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_open = threading.Event()
        self._is_open.set()
        self._has_kept = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(WAIT_S)
        self._listener.close()
        self.release()
        self.cut()
        for thread in self._threads:
            thread.join(WAIT_S)
        for each in self._sockets:
            each.close()

    def cut(self) -> None:
        """End all connections, as a network that fails."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):  # it has ended by itself
                each.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Keep back what the broker says from now on."""
        self._has_kept.clear()
        self._is_open.clear()

    def wait_until_held(self) -> None:
        """Wait until the broker has said something that is kept back."""
        assert self._has_kept.wait(WAIT_S), "the broker said nothing"

    @property
    def has_kept(self) -> bool:
        """Whether the broker has said something that is kept back."""
        return self._has_kept.is_set()

    def release(self) -> None:
        """Pass on what was kept back, and what comes."""
        self._is_open.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # it was shut down
            try:
                broker = socket.create_connection(("127.0.0.1", self.target), WAIT_S)
            except OSError:
                client.close()  # the broker is away
                continue
            broker.settimeout(None)
            self.accepted += 1
            self._sockets += [client, broker]
            for source, sink, is_held in ((client, broker, False), (broker, client, True)):
                thread = threading.Thread(target=self._pass, args=(source, sink, is_held))
                thread.start()
                self._threads.append(thread)

    def _pass(self, source: socket.socket, sink: socket.socket, is_held: bool) -> None:
        with contextlib.suppress(OSError):  # either side may go at any time
            while data := source.recv(_READ_BYTES):
                if is_held and not self._is_open.is_set():
                    self._has_kept.set()
                    self._is_open.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

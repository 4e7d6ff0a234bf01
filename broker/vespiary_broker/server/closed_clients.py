"""Clients that close while their connection is not read: seen without reading.

Owns the watching of their sockets. A connection that waits for room (in an address, or in the
journal) is not read, so its end of file stays behind bytes that nobody takes; but what it holds of
other queues belongs to other consumers. Linux tells the end of the peer's side apart (EPOLLRDHUP),
so an epoll descriptor of its own, which the loop reads, has the sockets of those that wait. Must
never read from a socket, nor watch one that is read. Called by `cycle`; owner: the event loop.

The end comes behind bytes that nobody reads as long as the kernel has room for these. A client that
died with more on its way than that, or closed and was gone in both directions before it could be
told, is found by keepalive (`dead_peers`): its host answers with a reset, or not at all.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

_EVENTS: Final = select.EPOLLRDHUP | select.EPOLLET  # it says EPOLLHUP and EPOLLERR unasked
_GONE: Final = select.EPOLLHUP | select.EPOLLERR

log = logging.getLogger(__name__)


class Watched(Protocol):
    """A connection that is not read.

    Attributes:
        peer: Where it comes from.
        descriptor: That of its socket; -1 without one.
        is_client_closed: Whether its client has closed its side while it was not read.
    """

    peer: str
    descriptor: int
    is_client_closed: bool

    def abort(self) -> None:
        """Cut it off."""

    def note_line(self, event: str, *details: str | int) -> None:
        """Log what became of it, as far as the log has room for such lines."""


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the descriptor of a transport's socket; -1 if it has none."""
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())


class ClosedClients:
    """Watches connections that wait.

    Args:
        loop: The event loop.
        on_gone: Called for each connection that is cut off.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_gone: Callable[[], None] = lambda: None
    ) -> None:
        self._loop = loop
        self._on_gone = on_gone
        self._epoll: select.epoll | None = None
        self._watched: dict[int, tuple[Watched, bool]] = {}

    def watch(self, connection: Watched, *, is_consuming: bool) -> None:
        """Cut a connection off as soon as its client has closed; until `forget`.

        Args:
            connection: One that is not read from now on; one that is watched already is watched
                for both reasons.
            is_consuming: It has consumers, which hold messages that others could have. One without
                is cut off only when it is gone in both directions: as long as its client may read,
                what came before the end is taken when there is room.
        """
        descriptor = connection.descriptor
        if descriptor < 0:
            return
        known, was_consuming = self._watched.get(descriptor, (None, False))
        is_known = known is connection
        if is_known and (was_consuming or not is_consuming):
            return
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._loop.add_reader(self._epoll.fileno(), self._look)
            if is_known:
                self._epoll.modify(descriptor, _EVENTS)  # what it told before counts now
            else:
                self._epoll.register(descriptor, _EVENTS)
        except OSError as error:
            # Descriptors may be short, or the socket just closed. The next write to it tells.
            log.debug("a waiting client is not watched peer=%s reason=%r", connection.peer, error)
            return
        self._watched[descriptor] = connection, is_consuming

    def forget(self, connection: Watched) -> None:
        """Watch a connection no more: it is read again, or gone."""
        descriptor = connection.descriptor
        # Its number may be another's by now: that one is left alone.
        if self._watched.get(descriptor, (None,))[0] is connection:
            del self._watched[descriptor]
            if self._epoll is not None:
                with suppress(OSError):  # a closed one has left by itself
                    self._epoll.unregister(descriptor)

    @contextmanager
    def watching(self, connection: Watched, *, is_consuming: bool) -> Iterator[None]:
        """Watch a connection inside a `with` block."""
        self.watch(connection, is_consuming=is_consuming)
        try:
            yield
        finally:
            self.forget(connection)

    def close(self) -> None:
        """Watch nobody any more."""
        self._watched.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        assert self._epoll is not None
        for descriptor, events in self._epoll.poll(0):
            connection, is_consuming = self._watched.get(descriptor, (None, False))
            if connection is None:
                continue
            is_first = not connection.is_client_closed
            connection.is_client_closed = True
            if events & _GONE or is_consuming:
                connection.note_line(
                    "client is gone, and its connection was not read peer=%s unread_bytes=%s; "
                    "what it sent and was not confirmed is dropped",
                    _unread_bytes(descriptor),
                )
                self._on_gone()
                connection.abort()
            elif is_first:
                connection.note_line(
                    "client closed its side while it waits peer=%s unread_bytes=%s; what it sent "
                    "is taken when there is room, if its host is still there then",
                    _unread_bytes(descriptor),
                )


def _unread_bytes(descriptor: int) -> int:
    """Return how many bytes of a socket were not read; -1 if it does not say."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4), sys.byteorder)
    except OSError:
        return -1

"""Clients that vanished: their host or the network between went away, and no packet says so.

Owns how sockets are set up to notice that, and the scan for connections whose data nobody
acknowledges. Must never end a connection whose peer answers, however slowly it reads. Called by
`listener` and `cycle`; owner: the event loop.

Keepalive probes find a peer that vanished while nothing was under way to it. It is set on listening
sockets; accepted sockets inherit it. While data is under way Linux sends no probes but repeats the
data for about 15 minutes. TCP_USER_TIMEOUT would shorten that, but it also ends the connection of a
client that answers every window probe and merely does not read (a slow consumer). So the scan asks
for TCP_INFO and counts repetitions and window probes that were not answered.

Linux doubles the time between two window probes, up to two minutes. So a client that stopped
reading long before it vanished would be noticed only after two unanswered probes: up to four
minutes. Linux 6.15 and later can bound that time for each socket (TCP_RTO_MAX_MS). It is bounded by
a quarter of the timeout, so the first unanswered probe is at most that late. Older systems go on
without.

The bound holds for repeated data, too: Linux gives up after 15 attempts, which then takes two to
four times the timeout instead of 15 minutes. The scan is earlier. And it holds after the broker has
closed a connection: a client that does not read has about 45 s (with the default timeout) to begin
before Linux drops what it had not read, and minutes otherwise.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

_PROBES: Final = 3
_UNANSWERED_MIN: Final = 2
"""Repetitions or probes in a row without an answer: one alone may just be lost."""
_STEP: Final = 50
"""Connections that are looked at in one turn of the loop: 5 to 30 microseconds each."""
_PERIOD_S: Final = 5.0
_INFO_BYTES: Final = 148
_INFO: Final = struct.Struct("=2xBB20xI28xI84xI")
"""tcpi_retransmits, tcpi_probes, tcpi_unacked, tcpi_last_ack_recv, tcpi_notsent_bytes."""
TCP_RTO_MAX_MS: Final = 44
"""Longest time between two attempts, in milliseconds; Python has no name for it (linux/tcp.h)."""
_VANISHED: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})


def set_keepalive(sock: socket.socket, timeout_s: int) -> None:
    """Have the system end a connection whose peer does not answer while nothing is under way.

    Also bounds the time between attempts to send what is under way, where the system can do that.

    Args:
        sock: A connected socket, or a listening one, for all that it accepts.
        timeout_s: Seconds without an answer, 5 to 3600; 0 never ends it.

    Raises:
        OSError: The system has no such options.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(timeout_s > 0))
    if timeout_s > 0:
        # Half of the time in silence, the other half for probes.
        interval_s = max(1, timeout_s // (2 * _PROBES))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, timeout_s - _PROBES * interval_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    _bound_attempts(sock, timeout_s)


def _bound_attempts(sock: socket.socket, timeout_s: int) -> None:
    """Bound the time between two attempts by a quarter of the timeout; 0: as the system has it."""
    try:
        # Not what this socket has: one of the HTTP port has inherited the bound of that.
        with socket.socket(sock.family, socket.SOCK_STREAM) as fresh:
            bound_ms = fresh.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        if timeout_s > 0:
            bound_ms = min(bound_ms, timeout_s * 1000 // 4)
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, bound_ms)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:  # Linux before 6.15
            raise


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Have a socket object for a descriptor that something else closes: loops hide theirs.

    Args:
        descriptor: That of a TCP socket.

    Raises:
        OSError: It is no socket.
    """
    # All is said, so that the system need not be asked for it. The family has no effect here.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
    try:
        yield sock
    finally:
        sock.detach()


def is_vanished(error: Exception | None) -> bool:
    """Return whether an error of a connection means that its peer did not answer."""
    return isinstance(error, OSError) and error.errno in _VANISHED


class Unanswered(NamedTuple):
    """What the system says of data that was sent and not acknowledged.

    Attributes:
        is_any: Whether there is such data, sent or held back since the peer does not read.
        attempts: How often it was repeated, or the peer asked for room, since its last answer.
        silent_s: Seconds since the peer's last answer of any kind.
    """

    is_any: bool
    attempts: int
    silent_s: float


def unanswered(descriptor: int) -> Unanswered:
    """Ask the system about a connection.

    Args:
        descriptor: That of its socket.

    Raises:
        OSError: It is no TCP socket, or the system does not say.
    """
    with borrowed(descriptor) as sock:
        data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(data) < _INFO_BYTES:
        raise OSError(errno.ENOPROTOOPT, "TCP_INFO does not say what is unsent")
    retransmits, probes, unacked, last_ack_ms, unsent = _INFO.unpack(data)
    return Unanswered(bool(unacked or unsent), max(retransmits, probes), last_ack_ms / 1000)


class Peer(Protocol):
    """A connection as the scan sees it.

    Attributes:
        descriptor: That of its socket; -1 without one.
        heard_at_s: When something was read from it last, by the loop's clock.
        written_at_s: When something was written to it last.
        settled_at_s: When the scan saw last that nothing was under way to it; 0 before.
        unanswered_since_s: Since when the scan sees attempts without an answer; 0: it does not.
    """

    descriptor: int
    heard_at_s: float
    written_at_s: float
    settled_at_s: float
    unanswered_since_s: float

    @property
    def dead_peer_timeout_s(self) -> int:
        """Seconds without an answer after which it is ended; 0: never."""

    def end_dead(self) -> None:
        """Cut it off: its peer vanished."""


class DeadPeers:
    """Finds connections whose data stays unanswered.

    Attributes:
        period_s: Seconds between two scans.

    Args:
        connections: Returns all connections.
        clock: Returns the loop's clock, in seconds.
        look: Asks about a socket, as `unanswered` does.
    """

    def __init__(
        self,
        connections: Callable[[], Iterable[Peer]],
        clock: Callable[[], float],
        look: Callable[[int], Unanswered] = unanswered,
    ) -> None:
        self.period_s = _PERIOD_S
        self._connections = connections
        self._clock = clock
        self._look = look

    def scan(self) -> Iterator[int]:
        """Look at every connection once; yield after each step how many were ended in it."""
        peers = list(self._connections())
        for first in range(0, len(peers), _STEP):
            yield sum(self._is_ended(peer) for peer in peers[first : first + _STEP])

    def _is_ended(self, peer: Peer) -> bool:
        """Look at one connection; True: it was ended."""
        timeout_s, now_s = peer.dead_peer_timeout_s, self._clock()
        is_silent = peer.descriptor >= 0 and now_s - peer.heard_at_s >= self.period_s
        if timeout_s <= 0 or not is_silent or peer.written_at_s < peer.settled_at_s:
            peer.unanswered_since_s = 0.0
            return False
        try:
            found = self._look(peer.descriptor)
        except OSError:
            return False  # it was closed just now, or is no TCP socket
        if not found.is_any:
            peer.settled_at_s = now_s
        if not found.is_any or not found.attempts:
            peer.unanswered_since_s = 0.0
            return False
        since_s = peer.unanswered_since_s
        if not since_s or found.silent_s < now_s - since_s:
            peer.unanswered_since_s = now_s  # it may have answered until now
            return False
        if found.attempts < _UNANSWERED_MIN or now_s - since_s < timeout_s:
            return False
        peer.unanswered_since_s = 0.0
        peer.end_dead()
        return True

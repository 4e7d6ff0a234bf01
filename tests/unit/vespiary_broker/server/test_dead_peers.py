"""Peers that do not answer: what sockets are told, what Linux says of them, and who is ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest

from vespiary_broker.server.dead_peers import (
    TCP_RTO_MAX_MS,
    DeadPeers,
    Unanswered,
    is_vanished,
    set_keepalive,
    unanswered,
)
from vespiary_broker.server.listener import Listener
from vespiary_spec.settings import Acceptor
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.waiting import wait_for

TIMEOUT_S = 60
PERIOD_S = 5.0
IDLE = Unanswered(is_any=False, attempts=0, silent_s=0.0)


@dataclass(eq=False)
class FakePeer:
    """A connection, and what the system says of it."""

    found: Unanswered = IDLE
    descriptor: int = 7
    heard_at_s: float = 0.0
    written_at_s: float = 1.0
    settled_at_s: float = 0.0
    unanswered_since_s: float = 0.0
    dead_peer_timeout_s: int = TIMEOUT_S
    ends: int = 0

    def end_dead(self) -> None:
        self.ends += 1


@dataclass
class Scans:
    """Scans of one connection, at times that the test chooses."""

    peer: FakePeer = field(default_factory=FakePeer)
    now_s: float = 1000.0
    looks: int = 0

    def __post_init__(self) -> None:
        self.dead_peers = DeadPeers(lambda: [self.peer], lambda: self.now_s, self._look)

    def _look(self, descriptor: int) -> Unanswered:
        assert descriptor == self.peer.descriptor
        self.looks += 1
        return self.peer.found

    def scan(self, silent_s: float, attempts: int, *, is_any: bool = True) -> int:
        """Scan once, and let a period pass."""
        self.peer.found = Unanswered(is_any=is_any, attempts=attempts, silent_s=silent_s)
        ended = sum(self.dead_peers.scan())
        self.now_s += PERIOD_S
        return ended

    def silence(self, seconds: float, attempts: int) -> int:
        """Scan as long as a peer answers nothing; return in how many of them it was ended."""
        begin_s, ended = self.now_s, 0
        while self.now_s - begin_s <= seconds:
            ended += self.scan(self.now_s - begin_s + 1, attempts)
        return ended


# --- who is ended ---------------------------------------------------------------------------------


def test_a_peer_that_answers_nothing_for_the_time_is_ended_once() -> None:
    scans = Scans()
    assert scans.silence(TIMEOUT_S - PERIOD_S, attempts=7) == 0
    assert scans.scan(TIMEOUT_S + 1, 7) == 1
    assert scans.peer.ends == 1


def test_a_peer_that_reads_nothing_and_answers_every_probe_stays() -> None:
    scans = Scans()
    for _ in range(100):
        assert scans.scan(silent_s=110.0, attempts=0) == 0, "the next probe is not due yet"
        assert scans.scan(silent_s=120.0, attempts=1) == 0, "it was sent just now"
        assert scans.scan(silent_s=0.1, attempts=0) == 0, "it was answered"


def test_one_probe_that_is_lost_ends_nobody() -> None:
    scans = Scans()
    assert scans.silence(3 * TIMEOUT_S, attempts=1) == 0
    assert scans.scan(silent_s=3 * TIMEOUT_S + 5, attempts=2) == 1, "nor is the second answered"


def test_silence_counts_from_when_an_answer_was_due() -> None:
    scans = Scans()
    assert scans.scan(silent_s=600.0, attempts=3) == 0, "it was idle, without anything to answer"
    assert scans.scan(silent_s=605.0, attempts=4) == 0


def test_an_answer_begins_the_time_again() -> None:
    scans = Scans()
    assert scans.silence(TIMEOUT_S - PERIOD_S, attempts=5) == 0
    assert scans.scan(silent_s=2.0, attempts=3) == 0
    assert scans.silence(TIMEOUT_S - 2 * PERIOD_S, attempts=5) == 0


def test_who_sends_is_not_looked_at() -> None:
    scans = Scans()
    for _ in range(20):
        scans.peer.heard_at_s = scans.now_s
        assert scans.scan(silent_s=0.0, attempts=0) == 0
    assert scans.looks == 0


def test_who_has_nothing_under_way_is_looked_at_once_for_each_time_it_is_sent_something() -> None:
    scans = Scans()
    for _ in range(20):
        scans.scan(silent_s=900.0, attempts=0, is_any=False)
    assert scans.looks == 1
    scans.peer.written_at_s = scans.now_s
    scans.now_s += PERIOD_S
    scans.scan(silent_s=1.0, attempts=0, is_any=False)
    scans.scan(silent_s=6.0, attempts=0, is_any=False)
    assert scans.looks == 2


@pytest.mark.parametrize(("timeout_s", "descriptor"), [(0, 7), (TIMEOUT_S, -1)])
def test_who_has_no_time_limit_or_no_socket_is_left_alone(timeout_s: int, descriptor: int) -> None:
    scans = Scans(FakePeer(dead_peer_timeout_s=timeout_s, descriptor=descriptor))
    assert scans.silence(10 * TIMEOUT_S, attempts=9) == 0
    assert scans.looks == 0


def test_a_socket_that_was_closed_meanwhile_is_passed_over() -> None:
    def look(_descriptor: int) -> Unanswered:
        raise OSError(errno.EBADF, "closed")

    peer = FakePeer()
    assert sum(DeadPeers(lambda: [peer], lambda: 1000.0, look).scan()) == 0
    assert peer.ends == 0


def test_a_scan_of_many_takes_many_turns() -> None:
    peers = [FakePeer(Unanswered(is_any=True, attempts=0, silent_s=1.0)) for _ in range(1001)]
    looked = 0

    def look(_descriptor: int) -> Unanswered:
        nonlocal looked
        looked += 1
        return IDLE

    steps = []
    for _ in DeadPeers(lambda: peers, lambda: 1000.0, look).scan():
        steps.append(looked - sum(steps))
    assert sum(steps) == len(peers)
    assert max(steps) <= 50


# --- what the system says -------------------------------------------------------------------------


def test_data_that_is_not_read_is_unanswered_without_attempts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), 10)
        own, _ = server.accept()
    with own, client:
        assert not unanswered(own.fileno()).is_any
        own.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                own.send(b"x" * 65536)
        wait_for(lambda: unanswered(own.fileno()).is_any, "there is unread data")
        assert unanswered(own.fileno()).silent_s < 600
        assert own.fileno() >= 0, "the socket is still the caller's"


def test_what_is_no_tcp_socket_is_told_by_an_error() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(OSError, match=r"."):
        unanswered(one.fileno())
    assert one.fileno() == -1


@pytest.mark.parametrize("timeout_s", [5, 6, 59, 60, 3600])
def test_keepalive_ends_a_silent_peer_after_the_time(timeout_s: int) -> None:
    with socket.socket() as sock:
        set_keepalive(sock, timeout_s)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, interval_s, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    assert idle_s + count * interval_s == timeout_s
    assert count >= 2, "a single probe may be lost"


def attempts_bound_ms(sock: socket.socket) -> int:
    """Return the longest time between two attempts; skips the test where there is none."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        pytest.skip("Linux bounds the time between attempts since 6.15")


@pytest.mark.parametrize(("timeout_s", "expected_ms"), [(5, 1250), (60, 15_000), (480, 120_000)])
def test_attempts_are_a_quarter_of_the_time_apart_at_most(timeout_s: int, expected_ms: int) -> None:
    with socket.socket() as fresh, socket.socket() as sock:
        system_ms = attempts_bound_ms(fresh)
        set_keepalive(sock, timeout_s)
        over_ms = attempts_bound_ms(sock) - min(system_ms, expected_ms)
        assert 0 <= over_ms <= 10, "the system rounds up to its clock's ticks"
        set_keepalive(sock, 3600)
        assert attempts_bound_ms(sock) == system_ms
        set_keepalive(sock, timeout_s)
        set_keepalive(sock, 0)
        assert attempts_bound_ms(sock) == system_ms


class OldSocket(socket.socket):
    """A socket of a system that says so of an option which it does not know."""

    refusal = errno.ENOPROTOOPT

    def setsockopt(self, *arguments: Any) -> None:
        if arguments[1] == TCP_RTO_MAX_MS:
            raise OSError(self.refusal, "no such option")
        super().setsockopt(*arguments)


def test_a_system_that_cannot_bound_attempts_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    with OldSocket() as sock:
        set_keepalive(sock, 60)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        attempts_bound_ms(sock)
        monkeypatch.setattr(OldSocket, "refusal", errno.EINVAL)
        with pytest.raises(OSError, match="no such option"):
            set_keepalive(sock, 60)


def test_keepalive_can_be_off() -> None:
    with socket.socket() as sock:
        set_keepalive(sock, 60)
        set_keepalive(sock, 0)
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize(("timeout_s", "expected"), [(60, True), (0, False)])
def test_sockets_that_a_listener_accepts_have_it(timeout_s: int, expected: bool) -> None:
    async def scenario() -> None:
        rig = ServerRig()
        listener = Listener(Acceptor(name="all", port=0, dead_peer_timeout=timeout_s), 1 << 20)
        await listener.start(rig.cycle)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        async with asyncio.timeout(30):
            while not listener.connections:  # noqa: ASYNC110 (the loop has no event for it)
                await asyncio.sleep(0.001)
        (connection,) = listener.connections
        found = socket.socket(fileno=connection.descriptor)
        try:
            is_kept_alive = bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            idle_s = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            bound_ms = 15_000
            with contextlib.suppress(OSError):  # Linux before 6.15 does not have it
                bound_ms = found.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        finally:
            found.detach()
        writer.close()
        listener.stop()
        await listener.wait_closed(0)
        rig.cycle.close()
        del reader
        # When all is closed: the loop would wait for what a failure leaves open.
        assert is_kept_alive is expected
        if expected:
            assert idle_s == 30
            assert bound_ms == 15_000

    product_loop.run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ETIMEDOUT, "timed out"), True),
        (OSError(errno.EHOSTUNREACH, "no route"), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
        (RuntimeError("else"), False),
        (None, False),
    ],
)
def test_which_errors_mean_that_the_peer_did_not_answer(
    error: Exception | None, expected: bool
) -> None:
    assert is_vanished(error) is expected

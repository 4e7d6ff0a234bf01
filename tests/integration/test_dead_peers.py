"""Clients whose host vanishes, with real sockets in a network namespace: nothing waits for them.

The time limit of the acceptor is the shortest that there is, five seconds.
"""

from __future__ import annotations

import errno
import re
import shutil
import socket
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.server.dead_peers import TCP_RTO_MAX_MS
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.far_network import FarNetwork, far_network
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

HALF_OPEN = 100
"""Consumers that vanish at once."""
DOUBLED = 8
"""The time between window probes is doubled this often: 50 seconds, unless it is bounded."""


@pytest.fixture
def network() -> Iterator[FarNetwork]:
    with far_network() as made:
        yield made


@pytest.fixture
def broker(network: FarNetwork, tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = (
        f"acceptors.all.host={network.near}",
        "acceptors.all.dead-peer-timeout=5s",
        "security.allow-anonymous=true",
        "address-settings.full.max-size-messages=3",
        "address-settings.full.address-full-policy=BLOCK",
        "address-settings.#.max-delivery-attempts=-1",
    )
    with BrokerProcess(tmp_path / "data", *settings) as running:
        yield running


def near(broker: BrokerProcess, network: FarNetwork) -> StompPeer:
    """Return a client of this machine."""
    peer = StompPeer(broker.port(), host=network.near)
    peer.connect()
    return peer


def far(broker: BrokerProcess, network: FarNetwork, **headers: str) -> StompPeer:
    """Return a client of the host that is going to vanish."""
    peer = StompPeer(broker.port(), sock=network.connect(broker.port()))
    peer.connect(**headers)
    return peer


def connect_small(port: int, network: FarNetwork) -> socket.socket:
    """Return a connection with a small window, which is closed soon if nothing is read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
    # Segments much smaller than the window, as in a real network: else each waits for a timer.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1460)
    sock.connect((network.near, port))
    return sock


def doublings(sock: socket.socket) -> int:
    """Return how often the broker's system has doubled its time between probes of a client."""
    port = sock.getsockname()[1]
    command = ["ss", "-tinH", "dport", "=", f":{port}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"\bbackoff:(\d+)", said)
    return int(found[1]) if found else 0


def needs_bounded_probes() -> None:
    """Skip the test where the time between probes cannot be bounded, or not be seen."""
    if shutil.which("ss") is None:
        pytest.skip("only the program ss shows the time between window probes")
    try:
        with socket.socket() as sock:
            sock.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        pytest.skip("Linux bounds the time between window probes since 6.15")


def subscribe(peer: StompPeer, queue: str, **headers: str) -> list[bytes]:
    """Subscribe; return the bodies of messages that came before the receipt."""
    given = {"id": "1", "destination": f"/queue/{queue}", "ack": "client", "receipt": "subscribed"}
    peer.send("SUBSCRIBE", given | {name.replace("_", "-"): v for name, v in headers.items()})
    return [frame.body for frame in peer.receive_receipt("subscribed")]


def receive(peer: StompPeer, count: int, before: list[bytes]) -> list[bytes]:
    """Return the bodies of so many messages, those among them that came before."""
    return before + [frame.body for frame in peer.receive_messages(count - len(before))]


def send(peer: StompPeer, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        peer.send("SEND", {"destination": f"/queue/{queue}", "receipt": "sent"}, body)
        while peer.receive().command != "RECEIPT":
            pass


def metric(broker: BrokerProcess, name: str) -> int:
    """Return the value of a series; 0 if there is none."""
    url = f"http://127.0.0.1:{broker.port('http')}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"{name} "))


def ends(broker: BrokerProcess, kind: str) -> int:
    """Return how many connections ended for a reason."""
    return metric(broker, f'vespiary_client_errors_total{{kind="{kind}"}}')


@pytest.mark.ci
def test_what_idle_consumers_held_goes_to_others_when_their_host_vanishes(
    broker: BrokerProcess, network: FarNetwork
) -> None:
    with near(broker, network) as sender:
        gone = []
        for number in range(HALF_OPEN):
            gone.append(far(broker, network))
            subscribe(gone[-1], f"q{number}", prefetch_count="10")
            send(sender, f"q{number}", b"%d one" % number, b"%d two" % number)
            receive(gone[-1], 2, [])
        network.vanish()  # all was delivered: nothing is under way, so only keepalive can tell
        with near(broker, network) as other:
            bodies = list[bytes]()
            for number in range(HALF_OPEN):
                bodies += subscribe(other, f"q{number}", id=str(number))
            bodies = receive(other, 2 * HALF_OPEN, bodies)
        for number in range(HALF_OPEN):
            own = [body for body in bodies if body.startswith(b"%d " % number)]
            assert own == [b"%d one" % number, b"%d two" % number]
        assert ends(broker, "dead-peer") == HALF_OPEN
        for peer in gone:
            peer.close()


@pytest.mark.ci
def test_a_client_that_reads_nothing_stays_while_one_that_vanished_goes(
    broker: BrokerProcess, network: FarNetwork
) -> None:
    body, count = b"x" * 60_000, 200
    sock = connect_small(broker.port(), network)
    with near(broker, network) as sender, StompPeer(broker.port(), sock=sock) as slow:
        slow.connect()
        subscribe(slow, "slow", prefetch_count="1000")
        vanished = far(broker, network)
        subscribe(vanished, "work", prefetch_count="10")
        for number in range(count):
            send(sender, "slow", b"%d " % number + body)
        network.vanish()
        send(sender, "work", b"one", b"two")  # is under way, and nobody acknowledges it
        with near(broker, network) as other:
            assert receive(other, 2, subscribe(other, "work")) == [b"one", b"two"]
        assert ends(broker, "dead-peer") == 1
        # The slow one has been looked at as often, and its window was closed all the time.
        numbers = [int(each.split()[0]) for each in receive(slow, count, [])]
        assert numbers == list(range(count))
        vanished.close()


@pytest.mark.ci
def test_a_client_that_had_long_stopped_reading_is_missed_soon(
    broker: BrokerProcess, network: FarNetwork
) -> None:
    needs_bounded_probes()
    body, count = b"x" * 60_000, 100
    sock = network.inside(lambda: connect_small(broker.port(), network))
    with near(broker, network) as sender, StompPeer(broker.port(), sock=sock) as vanished:
        vanished.connect()
        subscribe(vanished, "work", prefetch_count="1000")
        for number in range(count):
            send(sender, "work", b"%d " % number + body)
        wait_for(lambda: doublings(sock) >= DOUBLED, "many window probes were answered")
        assert ends(broker, "dead-peer") == 0
        network.vanish()
        with near(broker, network) as other:
            bodies = receive(other, count, subscribe(other, "work", prefetch_count="1000"))
        # The first ones last: those that did not fit the socket were never taken back.
        assert sorted(int(each.split()[0]) for each in bodies) == list(range(count))
        assert ends(broker, "dead-peer") == 1


@pytest.mark.ci
def test_blocked_producers_that_vanish_or_close_do_not_wait_for_ever(
    broker: BrokerProcess, network: FarNetwork
) -> None:
    with near(broker, network) as sender:
        send(sender, "full", b"1", b"2", b"3")
        vanishing, closing = far(broker, network), near(broker, network)
        for peer in (vanishing, closing):
            peer.send("SEND", {"destination": "/queue/full"}, b"waits")
        wait_for(lambda: metric(broker, "vespiary_blocked_producers") == 2)
        # So that its kernel forgets the connection soon, as it does after a minute otherwise.
        closing.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, struct.pack("i", 1))
        closing.close()
        network.vanish()
        wait_for(lambda: metric(broker, "vespiary_blocked_producers") == 0)
        assert ends(broker, "gone-while-waiting") == 2
        send(sender, "other", b"goes on")
        vanishing.close()


def test_what_a_blocked_producer_sent_before_it_closed_is_shown_and_taken(
    broker: BrokerProcess, network: FarNetwork
) -> None:
    with near(broker, network) as sender, near(broker, network) as closing:
        send(sender, "full", b"1", b"2", b"3")
        closing.send("SEND", {"destination": "/queue/full"}, b"4")
        wait_for(lambda: metric(broker, "vespiary_blocked_producers") == 1)
        assert metric(broker, "vespiary_blocked_producers_closed") == 0
        closing.socket.shutdown(socket.SHUT_WR)
        wait_for(lambda: metric(broker, "vespiary_blocked_producers_closed") == 1)
        bodies = subscribe(sender, "full", ack="auto")
        assert receive(sender, 4, bodies) == [b"1", b"2", b"3", b"4"]

"""Behind a load balancer: the PROXY protocol in front of STOMP, WebSocket and TLS."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import struct
import time
from collections.abc import Iterator

import pytest

from vespiary_broker.cli.api_client import ApiClient
from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_calls import metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for
from vespiary_testkit.websocket_peer import WebSocketPeer

pytestmark = pytest.mark.once

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\nlogin:alice\npasscode:secret\n\n\0"


def header(client: str, further: bytes = b"") -> bytes:
    """Return the header that a load balancer sends for a client."""
    address = ipaddress.ip_address(client)
    here = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    block = address.packed + here.packed + struct.pack("!HH", 50000, 61616) + further
    family = 0x11 if address.version == 4 else 0x21
    return SIGNATURE + struct.pack("!BBH", 0x21, family, len(block)) + block


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    authority = Authority()
    authority.sign("broker").write(folder / "tls")
    (folder / "ca.crt").write_bytes(authority.certificate)
    configuration = folder / "broker.yaml"
    configuration.write_text(
        "acceptors:\n"
        "  - {name: all, port: 0, proxy-protocol: true, handshake-timeout: 2,"
        " connections-allowed: 100}\n"
        "  - {name: secure, port: 0, proxy-protocol: true, handshake-timeout: 2, "
        f"tls: {{certificate: {folder}/tls/tls.crt, key: {folder}/tls/tls.key}}}}\n"
        "  - {name: plain, port: 0}\n"
    )
    data = folder / "data"
    data.mkdir(mode=0o700)
    users = [make_user("alice", "secret", iterations=4096)]
    users.append(make_user("root", "secret", roles=("admin",), iterations=4096))
    (data / "users").write_text(format_users(users))
    with BrokerProcess(data, configuration=configuration) as process:
        yield process


def api(broker: BrokerProcess) -> ApiClient:
    password = broker.data.parent / "password"
    password.write_text("secret")
    password.chmod(0o600)
    return ApiClient(f"http://root@127.0.0.1:{broker.port('http')}", password)


def connections(broker: BrokerProcess, listener: str, port: int = 50000) -> list[str]:
    """Return the peers of a listener's connections, as the API shows them, all from one port."""
    found = api(broker).items("/connections")
    mine = [each for each in found if each["listener"] == listener]
    assert {each["peerPort"] for each in mine} <= {port}
    return [each["peer"] for each in mine]


class Forwarded(StompPeer):
    """A client behind a load balancer."""

    def __init__(self, port: int, client: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port)
        self.socket.sendall(header(client))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")


@pytest.mark.parametrize("client", ["192.0.2.7", "2001:db8::7"])
@pytest.mark.parametrize("name", ["all", "secure"])
def test_the_client_is_seen_and_not_the_balancer(
    broker: BrokerProcess, name: str, client: str
) -> None:
    tls = ssl.create_default_context(cafile=str(broker.data.parent / "ca.crt"))
    with Forwarded(broker.port(name), client, tls if name == "secure" else None) as peer:
        peer.connect(login="alice", passcode="secret")
        peer.send("SEND", {"destination": "/queue/q", "persistent": "true", "receipt": "1"}, b"x")
        peer.receive_receipt("1")
        assert connections(broker, name) == [client]
    wait_for(lambda: connections(broker, name) == [])


def test_cut_at_every_byte(broker: BrokerProcess) -> None:
    stream = header("192.0.2.7", b"\x04\x00\x03abc") + CONNECT
    for cut in range(1, len(stream)):
        with socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.sendall(stream[:cut])
            raw.sendall(stream[cut:])
            assert raw.recv(4096).startswith(b"CONNECTED"), cut


def test_the_header_before_tls_cut_at_every_byte(broker: BrokerProcess) -> None:
    """The first bytes of the handshake come with the end of the header."""
    context = ssl.create_default_context(cafile=str(broker.data.parent / "ca.crt"))
    head = header("192.0.2.7")
    for cut in range(1, len(head) + 1):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", broker.port("secure")), WAIT_S) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            raw.sendall(head[:cut])
            raw.sendall(head[cut:] + outgoing.read())
            is_done = False
            while not is_done:
                incoming.write(raw.recv(65536))
                try:
                    tls.do_handshake()
                    is_done = True
                except ssl.SSLWantReadError:
                    pass
            # The end of the handshake and the first frame in one segment.
            tls.write(CONNECT)
            raw.sendall(outgoing.read())
            received = b""
            while not received:
                incoming.write(raw.recv(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    received = tls.read(4096)
            assert received.startswith(b"CONNECTED"), cut


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 50000 61616\r\n" + CONNECT, "version 1"),
        (CONNECT, "there was none"),
        (b"\x16\x03\x01\x02\x00", "there was none"),
        (SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 65535), "too long"),
        (SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 4) + b"abcd", "shorter"),
        (SIGNATURE + struct.pack("!BBH", 0x11, 0x11, 12) + bytes(12), "not understood"),
    ],
)
@pytest.mark.parametrize("name", ["all", "secure"])
def test_what_comes_without_is_refused_with_a_line_in_the_log(
    broker: BrokerProcess, name: str, data: bytes, words: str
) -> None:
    with socket.create_connection(("127.0.0.1", broker.port(name)), WAIT_S) as raw:
        raw.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(4096) == b""
    # Within a minute there is one line for each reason.
    begin = f"connection refused acceptor={name} balancer=127.0.0.1"
    wait_for(lambda: any(begin in line and words in line for line in _lines(broker)))


def _lines(broker: BrokerProcess) -> list[str]:
    return broker.log.read_text().splitlines()


def test_the_balancers_own_checks_are_let_in(broker: BrokerProcess) -> None:
    local = SIGNATURE + struct.pack("!BBH", 0x20, 0x00, 0)
    with socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) as raw:
        raw.sendall(local + CONNECT)
        assert raw.recv(4096).startswith(b"CONNECTED")
        assert connections(broker, "all", raw.getsockname()[1]) == ["127.0.0.1"]


def test_a_websocket_behind_a_balancer(broker: BrokerProcess) -> None:
    web = WebSocketPeer("v12.stomp")
    with socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) as raw:
        raw.sendall(header("192.0.2.9") + web.opening)
        while not web.is_open:
            web.feed(raw.recv(4096))
        assert connections(broker, "all") == ["192.0.2.9"]


def test_failed_logins_count_against_the_client(broker: BrokerProcess) -> None:
    """Five wrong passwords delay the next login of their sender, and of nobody else."""

    def try_login(client: str, password: str) -> str:
        with Forwarded(broker.port(), client) as peer:
            peer.send("CONNECT", {"login": "alice", "passcode": password, "host": "x"})
            return peer.receive().command

    def delayed() -> float:
        return metrics(broker)["vespiary_logins_delayed_total"]

    assert [try_login("198.51.100.1", "wrong") for _ in range(5)] == ["ERROR"] * 5
    before = delayed()
    assert try_login("198.51.100.2", "secret") == "CONNECTED"
    assert delayed() == before
    assert try_login("198.51.100.1", "secret") == "CONNECTED"
    assert delayed() == before + 1


@pytest.mark.ci
def test_a_slow_header_and_a_slow_handshake_end_in_time(broker: BrokerProcess) -> None:
    for name, data in (("all", SIGNATURE), ("secure", header("192.0.2.7") + b"\x16\x03\x01")):
        begun_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", broker.port(name)), WAIT_S) as raw:
            raw.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(4096) == b""
        assert time.monotonic() - begun_s > 1.5
    assert "no header of the PROXY protocol within 2 seconds" in broker.log.read_text()


def test_those_that_say_nothing_count_as_connections(broker: BrokerProcess) -> None:
    quiet = [socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) for _ in range(100)]
    try:
        with (
            socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) as raw,
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
        ):
            raw.sendall(header("192.0.2.7") + CONNECT)
            assert raw.recv(4096) == b""
    finally:
        for each in quiet:
            each.close()
    with StompPeer(broker.port("plain")) as other:
        other.connect(login="alice", passcode="secret")


def test_an_acceptor_without_the_switch_takes_no_header(broker: BrokerProcess) -> None:
    with StompPeer(broker.port("plain")) as peer:
        peer.send_raw(header("192.0.2.7") + CONNECT)
        assert peer.receive().command == "ERROR"

"""A broker that stands still for a while judges no client by what it has not read yet."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_broker.server.proxy_header import SIGNATURE
from vespiary_codec.wire.amqp import Begin, Frame, Layer, Open, SaslInit, encode_frame
from vespiary_codec.wire.amqp import protocol_header as layer
from vespiary_codec.wire.mqtt import Connect, Version, encode
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.waiting import WAIT_S

pytestmark = pytest.mark.once

LIMIT_S = 3.0
"""Longest time that the broker allows a client to be silent, and to log in."""
SPACING_S = 0.2
"""Time between two signs of life of a client."""
PROXY = SIGNATURE + struct.pack("!BBH4s4sHH", 0x21, 0x11, 12, b"\xc0\0\2\7", b"\x7f\0\0\1", 5, 6)
STOMP = b"CONNECT\naccept-version:1.2\nhost:a\nlogin:alice\npasscode:secret\nheart-beat:%d,0\n\n\0"
BEGIN = b"BEGIN\ntransaction:%d\nreceipt:%d\n\n\0"
TO_BEGIN = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)


@dataclass(frozen=True)
class Client:
    """What a client sends, and what is answered.

    Attributes:
        hello: Its login.
        beat: What it sends while the broker stands still.
        ask: Returns something that is answered, by a number.
        answer: What each answer has.
    """

    hello: bytes
    beat: bytes
    ask: Callable[[int], bytes]
    answer: bytes


CLIENTS = {
    # The broker gives up after three seconds, and on a frame that comes slower than 64 bytes/s.
    "STOMP": Client(STOMP % 1500, b"\n", lambda n: BEGIN % (n, n), b"RECEIPT"),
    "MQTT": Client(
        encode(
            Connect(Version.V3_1_1, "c", keep_alive_s=2, user_name="alice", password=b"secret"),
            Version.V3_1_1,
        ),
        b"\xc0\x00",
        lambda _: b"\xc0\x00",
        b"\xd0\x00",
    ),
    "AMQP": Client(
        layer(Layer.SASL)
        + encode_frame(Frame(body=SaslInit(mechanism="PLAIN", initial_response=b"\0alice\0secret")))
        + layer(Layer.AMQP)
        + encode_frame(Frame(body=Open(container_id="c"))),
        encode_frame(Frame()),
        lambda n: encode_frame(Frame(channel=n, body=TO_BEGIN)),
        b"\0\x53\x11",
    ),
    "an incomplete frame": Client(
        STOMP % 0,
        b"x" * 50,
        lambda n: b"\nreceipt:0\n\n\0" if n == 2 else BEGIN % (n, n),
        b"RECEIPT",
    ),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    authority = Authority()
    authority.sign("broker").write(folder / "tls")
    (folder / "ca.crt").write_bytes(authority.certificate)
    tls = f"tls: {{certificate: {folder}/tls/tls.crt, key: {folder}/tls/tls.key}}"
    limits = f"port: 0, handshake-timeout: {LIMIT_S:g}"
    configuration = folder / "broker.yaml"
    configuration.write_text(
        "acceptors:\n"
        f"  - {{name: all, {limits}, amqp: {{amqp-idle-timeout: {LIMIT_S:g}s}}}}\n"
        f"  - {{name: forwarded, {limits}, proxy-protocol: true}}\n"
        f"  - {{name: secure, {limits}, {tls}}}\n"
    )
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / "users").write_text(format_users([make_user("alice", "secret", iterations=4096)]))
    with BrokerProcess(data, configuration=configuration) as process:
        yield process


def connect(broker: BrokerProcess, name: str) -> socket.socket:
    """Return a connection to an acceptor."""
    client = socket.create_connection(("127.0.0.1", broker.port(name)))
    client.settimeout(WAIT_S)
    return client


def connect_clients(broker: BrokerProcess) -> dict[str, socket.socket]:
    """Return clients that are logged in, by the names in `CLIENTS`."""
    clients = {}
    for name, each in CLIENTS.items():
        clients[name] = connect(broker, "all")
        clients[name].sendall(each.hello)
        ask(name, clients[name], 1)
    return clients


def tls_of(broker: BrokerProcess) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Return a TLS client that has written its first message."""
    context = ssl.create_default_context(cafile=str(broker.data.parent / "ca.crt"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return tls, incoming, outgoing


def log_in(
    raw: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> bytes:
    """Go on with a TLS handshake, log in, and return the answer."""
    is_sent = False
    while True:
        try:
            if not is_sent:
                tls.do_handshake()
                tls.write(STOMP % 0)
                is_sent = True
            return tls.read(4096)
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            data = raw.recv(65536)
            assert data, "the connection ended"
            incoming.write(data)


def ask(name: str, connection: socket.socket, number: int) -> None:
    """Have a client ask for something, and wait for the answer."""
    client = CLIENTS[name]
    connection.sendall(client.ask(number))
    received = b""
    while client.answer not in received:
        data = connection.recv(4096)
        assert data, f"{name}: the connection ended: {received!r}"
        received += data


@pytest.mark.ci
@pytest.mark.parametrize("pause_s", [LIMIT_S + 0.1, 2 * LIMIT_S])
def test_clients_outlive_a_pause_of_the_broker(broker: BrokerProcess, pause_s: float) -> None:
    late = {name: connect(broker, name) for name in ("all", "forwarded", "secure")}
    # They were accepted before these, which are answered.
    accepted = [connect(broker, "forwarded"), connect(broker, "secure")]
    accepted[0].sendall(PROXY + STOMP % 0)
    assert accepted[0].recv(4096).startswith(b"CONNECTED")
    assert log_in(accepted[1], *tls_of(broker)).startswith(b"CONNECTED")
    clients = connect_clients(broker)
    with broker.stopped():
        hello = tls_of(broker)
        late["all"].sendall(STOMP % 0)
        late["forwarded"].sendall(PROXY + STOMP % 0)
        late["secure"].sendall(hello[2].read())
        clients["an incomplete frame"].sendall(b"BEGIN\ntransaction:0\nx:")
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s:
            for name, client in clients.items():
                client.sendall(CLIENTS[name].beat)
            time.sleep(SPACING_S)  # the broker stands still: there is nothing to wait for
    for name, client in clients.items():
        ask(name, client, 2)
        ask(name, client, 3)  # a judgement came before this answer
    for name in ("all", "forwarded"):
        assert late[name].recv(4096).startswith(b"CONNECTED"), name
    assert log_in(late["secure"], *hello).startswith(b"CONNECTED")
    for client in (*accepted, *late.values(), *clients.values()):
        client.close()


@pytest.mark.ci
def test_clients_that_are_silent_are_still_disconnected(broker: BrokerProcess) -> None:
    clients = connect_clients(broker)
    clients.pop("an incomplete frame").close()
    clients |= {name: connect(broker, name) for name in ("all", "forwarded", "secure")}
    with broker.stopped():
        time.sleep(LIMIT_S)  # the broker stands still: there is nothing to wait for
    for client in clients.values():
        with contextlib.suppress(ConnectionResetError):
            while client.recv(4096):
                pass
        client.close()

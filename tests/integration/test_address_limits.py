"""connections-per-address-allowed against a real broker: every protocol, TLS, balancers, ends."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import stomp
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_calls import call, metrics, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S, wait_for
from vespiary_testkit.websocket_peer import WebSocketPeer

pytestmark = pytest.mark.once

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/connections.md").read_text("utf-8")
ALLOWED = 2
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
STOMP_CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0"
MQTT_CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"
AMQP_OPEN = b"AMQP\0\1\0\0\0\0\0\x11\2\0\0\0\0\x53\x10\xc0\4\1\xa1\1c"
OPENINGS = {
    "STOMP": (STOMP_CONNECT, b"CONNECTED\n", b"\0"),
    "MQTT": (MQTT_CONNECT, b"\x20\2\0\0", b""),
    "AMQP": (AMQP_OPEN, b"AMQP\0\1\0\0", b"\0\x53\x10"),
}
"""What a client of a protocol sends first, how the answer begins, and what has to be in it."""
TOLD = f"too many connections from {HERE} (got {ALLOWED + 1}, allowed: at most {ALLOWED})".encode()
KIND = 'vespiary_client_errors_total{kind="connections-per-address"}'


class Refused(Exception):  # noqa: N818 (what the test looks for)
    """The broker did not let a client in; its argument is what it said."""


def acceptors(folder: Path) -> list[dict[str, Any]]:
    """One acceptor for each way, each with its own places."""
    common = {"port": 0, "connections-per-address-allowed": ALLOWED, "handshake-timeout": 4}
    tls = {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")}
    forwarded = {"proxy-protocol": True}
    return [
        {**common, "name": "all"},
        *({**common, "name": name.lower(), "protocols": [name]} for name in OPENINGS),
        {**common, "name": "secure", "tls": tls},
        {**common, "name": "proxied", **forwarded},
        {**common, "name": "proxied-secure", "tls": tls, **forwarded},
        {**common, "name": "few", "connections-allowed": 4},
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("limits")
    authority = Authority()
    authority.sign("broker").write(made)
    (made / "ca.crt").write_bytes(authority.certificate)
    return made


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    file = folder / "broker.yaml"
    file.write_text(yaml.safe_dump({"acceptors": acceptors(folder), "max-disk-usage": 100}))
    with BrokerProcess(folder / "data", configuration=file) as process:
        yield process


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture(autouse=True)
def quiet(broker: BrokerProcess) -> None:
    """Begin with all places free: connections of the test before are gone."""
    wait_for(lambda: call(broker, "GET", "/connections")["items"] == [])


def context_of(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "ca.crt"))


def header(client: str) -> bytes:
    """Return what a balancer says in front of a connection; an empty client: it is its own."""
    if not client:
        return SIGNATURE + struct.pack("!BBH", 0x20, 0x00, 0)
    address = ipaddress.ip_address(client)
    here = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    block = address.packed + here.packed + struct.pack("!HH", 50000, 61616)
    return (
        SIGNATURE
        + struct.pack("!BBH", 0x21, 0x11 if address.version == 4 else 0x21, len(block))
        + block
    )


def enter(
    port: int,
    *,
    source: str = HERE,
    protocol: str = "STOMP",
    forwarded: str | None = None,
    tls: ssl.SSLContext | None = None,
    web: bool = False,
) -> socket.socket:
    """Log a client in.

    Raises:
        Refused: The broker did not let it in.
    """
    opening, begin, contained = OPENINGS[protocol]
    here = "::1" if ":" in source else HERE
    raw = socket.create_connection((here, port), WAIT_S, source_address=(source, 0))
    answer = b""
    try:
        if forwarded is not None:
            raw.sendall(header(forwarded))
        if tls is not None:
            raw = tls.wrap_socket(raw, server_hostname="localhost")
        peer = WebSocketPeer()
        raw.sendall(peer.opening if web else opening)
        while web and not peer.is_open:
            answer = raw.recv(65536)
            if not answer.startswith(b"HTTP/1.1 101"):
                break
            peer.feed(answer)
            raw.sendall(masked(opening))
            answer = b""
        while not (answer.startswith(begin) and contained in answer):
            data = raw.recv(65536)
            if not data or answer.startswith(b"ERROR"):
                break
            if web and peer.is_open:
                peer.feed(data)
                data = peer.received()
            answer += data
        else:
            return raw
    except (ConnectionError, ssl.SSLError):
        pass  # closed before it was heard
    raw.close()
    raise Refused(answer)


def masked(data: bytes) -> bytes:
    """Return a binary message of a WebSocket, masked by zeros."""
    return struct.pack("!BB4x", 0x82, 0x80 | len(data)) + data


def is_let_in(stack: contextlib.ExitStack, port: int, **how: Any) -> bool:
    """Whether a client is let in; it stays then."""
    try:
        stack.enter_context(enter(port, **how))
    except Refused:
        return False
    return True


def check_limit(stack: contextlib.ExitStack, port: int, told: bytes = TOLD, **how: Any) -> None:
    """Check that exactly as many places are free as are allowed, and that others have theirs."""
    first = stack.enter_context(contextlib.ExitStack())
    assert wait_for(lambda: is_let_in(first, port, **how)), "what was there before is given back"
    for _ in range(ALLOWED - 1):
        assert wait_for(lambda: is_let_in(stack, port, **how))
    for _ in range(3):
        with pytest.raises(Refused) as refused:
            enter(port, **how)
        assert told in refused.value.args[0] if told else refused.value.args[0] == b""
    assert is_let_in(stack, port, **{**how, "source": ELSEWHERE})
    first.close()
    assert wait_for(lambda: is_let_in(stack, port, **how))
    with pytest.raises(Refused):
        enter(port, **how)


@pytest.mark.parametrize("protocol", OPENINGS)
@pytest.mark.parametrize("web", [False, True], ids=["", "WebSocket"])
def test_each_protocol(
    broker: BrokerProcess, stack: contextlib.ExitStack, protocol: str, web: bool
) -> None:
    """On the port for all of them there are STOMP's words; who speaks nothing else has none."""
    check_limit(stack, broker.port("all"), protocol=protocol, web=web)


@pytest.mark.parametrize(("protocol", "told"), [("STOMP", TOLD), ("MQTT", b""), ("AMQP", b"")])
@pytest.mark.parametrize("web", [False, True], ids=["", "WebSocket"])
def test_each_protocol_alone(
    broker: BrokerProcess, stack: contextlib.ExitStack, protocol: str, told: bytes, web: bool
) -> None:
    check_limit(stack, broker.port(protocol.lower()), told, protocol=protocol, web=web)


def test_the_http_port_has_the_bound_of_the_first_acceptor_in_clear(
    broker: BrokerProcess, stack: contextlib.ExitStack
) -> None:
    check_limit(stack, broker.port("http"), web=True)


@pytest.mark.parametrize("protocol", OPENINGS)
@pytest.mark.parametrize("web", [False, True], ids=["", "WebSocket"])
def test_tls(
    broker: BrokerProcess, folder: Path, stack: contextlib.ExitStack, protocol: str, web: bool
) -> None:
    """One too many is closed unheard: its handshake never begins."""
    tls = context_of(folder)
    check_limit(stack, broker.port("secure"), b"", tls=tls, protocol=protocol, web=web)


def test_those_that_have_not_begun_their_handshake_have_places(
    broker: BrokerProcess, folder: Path, stack: contextlib.ExitStack
) -> None:
    port, before = broker.port("secure"), metrics(broker).get(KIND, 0)
    for _ in range(ALLOWED + 1):
        stack.enter_context(socket.create_connection((HERE, port), WAIT_S))
    wait_for(lambda: metrics(broker).get(KIND, 0) == before + 1)
    assert is_let_in(stack, port, tls=context_of(folder), source=ELSEWHERE)


# --- balancers --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["proxied", "proxied-secure"])
def test_behind_a_balancer_clients_count_and_it_does_not(
    broker: BrokerProcess, folder: Path, stack: contextlib.ExitStack, name: str
) -> None:
    port, tls = broker.port(name), context_of(folder) if name == "proxied-secure" else None

    def come(client: str) -> bool:
        return is_let_in(stack, port, forwarded=client, tls=tls)

    for client in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "2001:db8::2:3"):
        assert come(client)
    for client in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "2001:db8::ffff"):
        with pytest.raises(Refused) as refused:
            enter(port, forwarded=client, tls=tls)
        network = b"2001:db8::/64" if client.startswith("2001") else b"192.0.2.7"
        if tls is not None:
            assert refused.value.args[0] == b"", "its handshake has not begun"
        else:
            told = b"too many connections from " + network + b" (got 3"
            assert told in refused.value.args[0]
    for client in ("192.0.2.8", "2001:db8:0:1::1", HERE, *[""] * (3 * ALLOWED), HERE):
        assert come(client), "the balancer itself has no bound, nor does it count for its host"
    with pytest.raises(Refused):
        enter(port, forwarded=HERE, tls=tls)


# --- ends -------------------------------------------------------------------------------------


def hello(folder: Path) -> bytes:
    """Return the first message of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    tls = context_of(folder).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def reset(raw: socket.socket) -> None:
    """Close by a reset in place of an end."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def nothing(raw: socket.socket) -> None:
    """Close as usual."""


def read_all(raw: socket.socket) -> None:
    """Wait until the broker closes it."""
    with contextlib.suppress(ConnectionError):
        while raw.recv(65536):
            pass


ENDS: dict[str, tuple[bytes, Callable[[socket.socket], None]]] = {
    "before the first byte": (b"", nothing),
    "before the first byte by a reset": (b"", reset),
    "in the first frame": (STOMP_CONNECT[:20], nothing),
    "logged in": (STOMP_CONNECT, nothing),
    "logged in by a reset": (STOMP_CONNECT, reset),
    "another protocol": (b"GET / HTTP/1.0\r\n\r\n", read_all),
    "login refused": (b"CONNECT\naccept-version:9\nhost:x\n\n\0", read_all),
    "a wrong frame": (STOMP_CONNECT + b"NONE\n\n\0", nothing),
    "cut off for silence": (b"", read_all),
}
SECURE_ENDS: dict[str, tuple[Callable[[bytes], bytes], Callable[[socket.socket], None]]] = {
    "before the hello": (lambda _: b"", nothing),
    "before the hello by a reset": (lambda _: b"", reset),
    "in the hello": (lambda whole: whole[:50], nothing),
    "in the handshake": (lambda whole: whole, nothing),
    "in the handshake by a reset": (lambda whole: whole, reset),
    "no hello": (lambda _: b"GET / HTTP/1.0\r\n\r\n", read_all),
    "a wrong hello": (lambda whole: whole[:60] + b"\xff" * (len(whole) - 60), read_all),
    "behind the hello": (lambda whole: whole + b"\x16\3\3\0\4abcd", read_all),
    "cut off in the handshake": (lambda whole: whole, read_all),
}


def end_often(
    port: int, data: bytes, end: Callable[[socket.socket], None], first: bytes = b""
) -> None:
    """Have connections end in one way, each of them with a place; some are refused meanwhile."""
    for _ in range(2):
        opened = [socket.create_connection((HERE, port), WAIT_S) for _ in range(ALLOWED + 1)]
        for raw in opened:
            with contextlib.suppress(ConnectionError):
                raw.sendall(first + data)
        if data.startswith(b"CONNECT") or data[:1] == b"\x16":
            time.sleep(0.05)  # most of them are answered
        for raw in opened:
            end(raw)
            raw.close()


@pytest.mark.ci
@pytest.mark.parametrize("how", ENDS)
def test_a_place_is_free_again(
    broker: BrokerProcess, stack: contextlib.ExitStack, how: str
) -> None:
    data, end = ENDS[how]
    end_often(broker.port("all"), data, end)
    check_limit(stack, broker.port("all"))


@pytest.mark.ci
@pytest.mark.parametrize("how", SECURE_ENDS)
def test_a_place_is_free_again_on_the_way_to_tls(
    broker: BrokerProcess, folder: Path, stack: contextlib.ExitStack, how: str
) -> None:
    make, end = SECURE_ENDS[how]
    end_often(broker.port("secure"), make(hello(folder)), end)
    check_limit(stack, broker.port("secure"), b"", tls=context_of(folder))


@pytest.mark.parametrize("how", ["in the handshake", "before the hello", "a wrong hello"])
def test_a_place_is_free_again_behind_a_balancer(
    broker: BrokerProcess, folder: Path, stack: contextlib.ExitStack, how: str
) -> None:
    make, end = SECURE_ENDS[how]
    port, client = broker.port("proxied-secure"), "198.51.100.1"
    end_often(port, make(hello(folder)), end, header(client))
    end_often(port, b"", nothing, header(client)[:20])
    how_to: dict[str, Any] = {"forwarded": client, "tls": context_of(folder)}
    for _ in range(ALLOWED):
        assert wait_for(lambda: is_let_in(stack, port, **how_to))
    with pytest.raises(Refused):
        enter(port, **how_to)


@pytest.mark.ci
def test_a_login_with_a_wrong_password_gives_its_place_back(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "users").write_text(format_users([make_user("alice", "secret", iterations=4096)]))
    bound = f"acceptors.all.connections-per-address-allowed={ALLOWED}"
    with BrokerProcess(data, bound) as broker:
        for _ in range(2 * ALLOWED):
            with pytest.raises(Refused) as refused:
                enter(broker.port(), protocol="STOMP")
            assert b"needs a login" in refused.value.args[0] or TOLD in refused.value.args[0]
        logged_in = STOMP_CONNECT.replace(b"host:", b"login:alice\npasscode:secret\nhost:")

        def come() -> bool:
            raw = stack.enter_context(socket.create_connection((HERE, broker.port()), WAIT_S))
            raw.sendall(logged_in)
            return raw.recv(65536).startswith(b"CONNECTED")

        for _ in range(ALLOWED):
            assert wait_for(come)
        assert not come()


# --- floods -----------------------------------------------------------------------------------


def test_a_host_that_goes_on_and_on_keeps_nobody_out(
    broker: BrokerProcess, stack: contextlib.ExitStack
) -> None:
    """`few` has four connections; 300 tries of one host leave two of them to others."""
    before = metrics(broker).get(KIND, 0)
    said = broker.log.read_text().count("connections refused")
    port = broker.port("few")
    for _ in range(ALLOWED):
        assert is_let_in(stack, port)
    for _ in range(300):
        stack.enter_context(socket.create_connection((HERE, port), WAIT_S))
    assert is_let_in(stack, port, source=ELSEWHERE)
    assert is_let_in(stack, port, source=ELSEWHERE)
    with pytest.raises(Refused) as refused:
        enter(port, source="127.0.0.3")
    assert b"too many connections (got 5, allowed: at most 4)" in refused.value.args[0]
    assert metrics(broker)[KIND] - before == 300
    lines = broker.log.read_text().split("connections refused")[said + 1 :]
    assert len(lines) == 1
    (line,) = re.findall(r"connections refused, their address.*", PAGE)
    expected = (
        line.replace("=all ", "=few ").replace("192.0.2.7", HERE).replace("500", f"{ALLOWED}")
    )
    assert expected in f"connections refused{lines[0]}"


# --- the page, and IPv6 -----------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        with contextlib.closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.ci
def test_the_page_and_real_addresses_of_ipv6(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """The page's example is taken, and its command shows the addresses that count."""
    file = tmp_path / "broker.yaml"
    (example,) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])["acceptors"]
    assert example["connections-per-address-allowed"] == 500
    bound = {**example, "port": 0, "connections-per-address-allowed": ALLOWED}
    found = [{**example, "port": 0}]
    if has_ipv6():
        found.append({**bound, "name": "six", "host": "::1"})
    file.write_text(yaml.safe_dump({"acceptors": found, "max-disk-usage": 100}))
    with BrokerProcess(tmp_path / "data", configuration=file) as broker:
        for _ in range(ALLOWED + 1):
            assert is_let_in(stack, broker.port("all"))
        (command,) = re.findall(r"vespiary (connection list --json) \| jq", PAGE)
        shown = json.loads(run_command(broker, *command.split()))
        assert [each["peer"] for each in shown] == [HERE] * (ALLOWED + 1)
        if len(found) == 1:
            return
        for _ in range(ALLOWED):
            assert is_let_in(stack, broker.port("six"), source="::1")
        with pytest.raises(Refused) as refused:
            enter(broker.port("six"), source="::1")
        assert b"too many connections from ::/64 (got 3" in refused.value.args[0]


# --- changes ----------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_change_waits_for_a_restart_as_those_of_acceptors_do(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"

    def write(allowed: int) -> None:
        acceptor = {"name": "all", "port": 0, "connections-per-address-allowed": allowed}
        file.write_text(yaml.safe_dump({"acceptors": [acceptor], "max-disk-usage": 100}))

    def places(broker: BrokerProcess) -> int:
        with contextlib.ExitStack() as held:
            return sum(is_let_in(held, broker.port()) for _ in range(6))

    write(1)
    with BrokerProcess(tmp_path / "data", configuration=file) as broker:
        assert places(broker) == 1
        write(4)
        found = call(broker, "POST", "/configuration/reload")
        assert found["waitsForRestart"] == ["acceptors.all.connections-per-address-allowed"]
        wait_for(lambda: call(broker, "GET", "/connections")["items"] == [])
        assert places(broker) == 1
        broker.stop()
        broker.start()
        assert places(broker) == 4
        write(0)
        broker.stop()
        broker.start()
        assert places(broker) == 6


@pytest.mark.ci
def test_a_renewed_certificate_leaves_the_places_as_they_are(
    broker: BrokerProcess, folder: Path, stack: contextlib.ExitStack
) -> None:
    """The listening socket is another one then; those that came by the old one still count."""
    port, old = broker.port("secure"), context_of(folder)
    for _ in range(ALLOWED):
        assert is_let_in(stack, port, tls=old)
    authority = Authority("Renewing")
    authority.sign("broker").write(folder)
    renewed = ssl.create_default_context(cadata=authority.certificate.decode())
    assert wait_for(lambda: is_let_in(stack, port, tls=renewed, source=ELSEWHERE))
    with pytest.raises(Refused):
        enter(port, tls=renewed)
    (folder / "ca.crt").write_bytes(authority.certificate)


# --- stock clients ----------------------------------------------------------------------------


def test_stomp_py(broker: BrokerProcess, stack: contextlib.ExitStack) -> None:
    def come() -> Client:
        client = Client(broker.port("stomp"), "1.2", reconnect_attempts_max=1)
        client.connect()
        return client

    for _ in range(ALLOWED):
        stack.callback(come().connection.disconnect)
    late = Client(broker.port("stomp"), "1.2", reconnect_attempts_max=1)
    # The words are there before CONNECT is sent, or right behind it.
    with pytest.raises((stomp.exception.StompException, OSError)):
        late.connect()
    message = late.recorder.errors.get(timeout=WAIT_S).headers["message"]
    assert TOLD.decode() in message


def test_paho(broker: BrokerProcess, stack: contextlib.ExitStack) -> None:
    """It is closed, and comes in by its own tries as soon as there is a place."""

    def come(name: str) -> paho.Client:
        client = paho.Client(CallbackAPIVersion.VERSION2, name)
        client.reconnect_delay_set(1, 1)
        client.connect(HERE, broker.port("mqtt"))
        client.loop_start()
        stack.callback(client.loop_stop)
        stack.callback(client.disconnect)
        return client

    clients = [come(f"paho{number}") for number in range(ALLOWED)]
    for client in clients:
        wait_for(client.is_connected)
    before = metrics(broker).get(KIND, 0)
    late = come("late")
    wait_for(lambda: metrics(broker).get(KIND, 0) > before)
    assert not late.is_connected()
    clients[0].disconnect()
    wait_for(late.is_connected)


def test_proton(broker: BrokerProcess, stack: contextlib.ExitStack) -> None:
    proton = pytest.importorskip("proton", reason="python-qpid-proton is not there")
    connect = pytest.importorskip("proton.utils").BlockingConnection
    url = f"amqp://{HERE}:{broker.port('amqp')}"
    for _ in range(ALLOWED):
        stack.callback(connect(url, timeout=WAIT_S).close)
    with pytest.raises(proton.ConnectionException):
        connect(url, timeout=WAIT_S)

"""Stock clients through WebSockets against a real broker: every port, TLS, large bodies."""

from __future__ import annotations

import hashlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from wsproto.events import BytesMessage, Ping

from vespiary_broker.cli.api_client import ApiClient
from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.node_clients import need_node, run_node
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for
from vespiary_testkit.websocket_peer import WebSocketClient, WebSocketPeer, frame

pytestmark = pytest.mark.once

MIB = 1024 * 1024
Connect = Callable[..., WebSocketClient]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[BrokerProcess]:
    """A broker with a port in clear and one with TLS."""
    folder = tmp_path_factory.mktemp("broker")
    authority.sign("broker").write(folder / "tls")
    (folder / "ca.crt").write_bytes(authority.certificate)
    configuration = folder / "broker.yaml"
    configuration.write_text(
        "acceptors:\n"
        "  - {name: all, port: 0}\n"
        "  - {name: secure, port: 0, "
        f"tls: {{certificate: {folder}/tls/tls.crt, key: {folder}/tls/tls.key}}}}\n"
    )
    with BrokerProcess(folder / "data", configuration=configuration) as process:
        yield process


def url(broker: BrokerProcess, name: str) -> str:
    scheme = "wss" if name == "secure" else "ws"
    return f"{scheme}://localhost:{broker.port(name)}/ws"


def api_of(broker: BrokerProcess) -> ApiClient:
    return ApiClient(f"http://127.0.0.1:{broker.port('http')}")


def authority_of(broker: BrokerProcess) -> str:
    return str(broker.data.parent / "ca.crt")


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["text", "binary"])
@pytest.mark.parametrize("size", [0, 1000, MIB, 5 * MIB])
@pytest.mark.parametrize(
    "name", ["all", *(pytest.param(name, marks=pytest.mark.verify) for name in ("secure", "http"))]
)
def test_stompjs_sends_receives_and_acknowledges(
    broker: BrokerProcess, name: str, size: int, kind: str
) -> None:
    need_node()
    queue = f"{name}.{kind}.{size}"
    found = run_node(
        "stomp_websocket.js",
        *(url(broker, name), queue, str(size), kind),
        NODE_EXTRA_CA_CERTS=authority_of(broker),
    )
    assert "error" not in found, found
    assert (found["protocol"], found["version"]) == ("v12.stomp", "1.2")
    hellos = [hashlib.sha256(f"hello {n}".encode()).hexdigest() for n in (1, 2, 3)]
    assert [m["digest"] for m in found["messages"]] == [*hellos, found["sent"]]
    assert [m["number"] for m in found["messages"]] == ["1", "2", "3", "large"]
    assert found["close"] == {"code": 1000, "clean": True}
    left = [q for q in api_of(broker).items("/queues") if q["name"] == queue]
    assert sum(q["messages"] for q in left) == 0  # all were acknowledged


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open WebSockets that are closed with the test."""
    with ExitStack() as stack:
        yield lambda *given, **named: stack.enter_context(WebSocketClient(*given, **named))


@pytest.mark.parametrize("name", ["all", "http"])
def test_a_connection_counts_and_is_seen_like_any(
    broker: BrokerProcess, name: str, connect: Connect
) -> None:
    web = connect(broker.port(name), "v12.stomp").log_in()
    api = api_of(broker)
    (mine,) = [c for c in api.items("/connections") if c["listener"] == name]
    assert mine["protocol"] == "STOMP 1.2 over WebSocket"
    assert mine["peer"] == "127.0.0.1"
    page = socket.create_connection(("127.0.0.1", broker.port("http")))
    page.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    text = b"".join(iter(lambda: page.recv(65536), b"")).decode()
    page.close()
    label = f'vespiary_connections{{listener="{name}",protocol="STOMP 1.2 over WebSocket"}} 1.0'
    assert label in text
    web.socket.close()
    wait_for(lambda: not [c for c in api.items("/connections") if c["listener"] == name])


def test_one_message_between_a_websocket_and_a_socket(
    broker: BrokerProcess, connect: Connect
) -> None:
    web = connect(broker.port("http"), "v12.stomp").log_in()
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/both", "receipt": "s"})
        peer.receive_receipt("s")
        web.message(b"SEND\ndestination:/queue/both\nreceipt:1\n\nthrough the web\0")
        assert peer.receive().body == b"through the web"
    assert b"receipt-id:1" in web.received(b"\0")


def test_odd_frames_over_a_socket_cost_the_others_nothing(
    broker: BrokerProcess, connect: Connect
) -> None:
    before = broker.rss_bytes()
    with StompPeer(broker.port()) as good:
        good.connect()
        for data, code in (
            (frame(2, b"x", is_masked=False), 1002),
            (frame(2, b"", length=b"\x7f" + b"\xff" * 8), 1002),
            (frame(1, b"\xff\xff"), 1007),
            (frame(9, b"x" * 126), 1002),
        ):
            web = connect(broker.port(), "v12.stomp")
            web.socket.sendall(data)
            web.until(lambda web=web: web.peer.close is not None)
            assert web.peer.close is not None
            assert web.peer.close.code == code
            web.socket.close()
        good.send("SEND", {"destination": "/queue/odd", "persistent": "true", "receipt": "r"}, b"x")
        good.receive_receipt("r")
    assert broker.rss_bytes() - before < 16 * MIB


@pytest.mark.ci
def test_a_flood_of_short_frames_does_not_hold_up_others(
    broker: BrokerProcess, connect: Connect
) -> None:
    """The broker has 10 000 pings before it, then a message of somebody else, which overtakes."""
    web = connect(broker.port(), "v12.stomp").log_in()
    flood = frame(9) * 1000 + frame(2, b"SEND\ndestination:/queue/f\n\nflood\0")
    with StompPeer(broker.port()) as good:
        good.connect()
        with broker.stopped():
            web.socket.sendall(flood * 10)
            good.send("SEND", {"destination": "/queue/f"}, b"good")
        good.send("SUBSCRIBE", {"id": "1", "destination": "/queue/f"})
        order = [message.body for message in good.receive_messages(11)]
    assert order.index(b"good") <= 1, order


@pytest.mark.ci
def test_a_message_of_many_mib_never_lies_in_memory(
    broker: BrokerProcess, connect: Connect
) -> None:
    web = connect(broker.port(), "v12.stomp").log_in()
    before = broker.rss_bytes()
    size = 64 * MIB
    head = f"SEND\ndestination:/queue/huge\npersistent:true\nreceipt:1\ncontent-length:{size}\n\n"
    web.socket.sendall(web.peer.send(BytesMessage(head.encode(), message_finished=False)))
    piece = web.peer.send(BytesMessage(bytes(MIB), message_finished=False))
    peak = 0
    for _ in range(size // MIB):
        web.socket.sendall(piece)
        peak = max(peak, broker.rss_bytes())
    web.socket.sendall(web.peer.send(BytesMessage(b"\0")))
    assert b"receipt-id:1" in web.received(b"\0")
    assert peak - before < 24 * MIB


def test_the_ports_other_words(broker: BrokerProcess) -> None:
    for name, path, status in (
        ("all", "/", b"400"),
        ("all", "/ws", b"426"),
        ("all", "/wsx", b"400"),
        ("http", "/ws", b"426"),
        ("http", "/wsx", b"404"),
        ("http", "/healthz", b"200"),
    ):
        with socket.create_connection(("127.0.0.1", broker.port(name)), WAIT_S) as raw:
            raw.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda raw=raw: raw.recv(65536), b""))
        assert answer.split(b" ")[1] == status, (name, path, answer)


@pytest.mark.ci
def test_a_broker_that_stops_says_goodbye(tmp_path: Path, connect: Connect) -> None:
    process = BrokerProcess(tmp_path / "data")
    process.start()
    web = {name: connect(process.port(name), "v12.stomp").log_in() for name in ("all", "http")}
    assert process.process is not None
    process.process.send_signal(signal.SIGTERM)
    for each in web.values():
        each.until(lambda each=each: each.peer.close is not None)
        assert each.peer.close is not None
        assert each.peer.close.code == 1001
        each.socket.sendall(each.peer.send(each.peer.close.response()))
    assert process.stop() == 0


@pytest.mark.ci
def test_a_login_is_asked_for_on_both_ports(tmp_path: Path) -> None:
    need_node()
    users = [make_user("alice", "secret", iterations=4096)]
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "users").write_text(format_users(users))
    with BrokerProcess(data) as process:
        for name in ("all", "http"):
            refused = run_node(
                "stomp_websocket.js", url(process, name), "q", "10", "text", "alice", "wrong"
            )
            assert refused["error"] == "user name or password are wrong."
            good = run_node(
                "stomp_websocket.js", url(process, name), "q", "10", "text", "alice", "secret"
            )
            assert len(good["messages"]) == 4


@pytest.mark.ci
def test_the_http_port_has_none_where_all_else_is_tls(tmp_path: Path, authority: Authority) -> None:
    authority.sign("broker").write(tmp_path)
    tls = f"tls: {{certificate: {tmp_path}/tls.crt, key: {tmp_path}/tls.key}}"
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(f"acceptors:\n  - {{name: secure, port: 0, {tls}}}\n")
    with (
        BrokerProcess(tmp_path / "data", configuration=configuration) as process,
        socket.create_connection(("127.0.0.1", process.port("http")), WAIT_S) as raw,
    ):
        raw.sendall(WebSocketPeer("v12.stomp").opening)
        assert raw.recv(4096).startswith(b"HTTP/1.1 404")


def test_a_ping_is_answered_through_tls(broker: BrokerProcess, connect: Connect) -> None:
    context = ssl.create_default_context(cafile=authority_of(broker))
    web = connect(broker.port("secure"), "v12.stomp", tls=context)
    web.socket.sendall(web.peer.send(Ping(b"there?")))
    web.until(lambda: web.peer.pongs)
    assert web.peer.pongs == [b"there?"]

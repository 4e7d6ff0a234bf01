"""What goes wrong on the wire: the culprit gets a clear error, the others notice nothing."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import WAIT_S

CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    settings = ("acceptors.all.handshake-timeout=4", "max-large-message-size=491520")
    with BrokerProcess(data, *settings) as process:
        yield process


@pytest.fixture
def bystander(broker: BrokerProcess) -> Iterator[StompPeer]:
    """A good client that works before and after the bad one, on one connection."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/bystander", "receipt": "s"})
        peer.receive_receipt("s")
        yield peer
        peer.send(
            "SEND",
            {"destination": "/queue/bystander", "persistent": "true", "receipt": "still"},
            b"alive",
        )
        frames = {peer.receive().command, peer.receive().command}
        assert frames == {"RECEIPT", "MESSAGE"}


def _send(**headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return b"SEND\ndestination:/queue/bad\n" + lines.encode() + b"\n"


MALFORMED = {
    "unknown command": (b"SHOUT\n\n\0", "unknown command"),
    "server command": (b"MESSAGE\n\n\0", "only servers send"),
    "second login": (CONNECT, "second time"),
    "no colon": (b"SEND\ndestination\n\nx\0", "no colon"),
    "empty name": (b"SEND\n:x\n\nx\0", "empty name"),
    "no destination": (b"SEND\n\nx\0", "no destination"),
    "undefined escape": (b"SEND\ndestination:/queue/a\\t\n\nx\0", "undefined escape"),
    "not UTF-8": (b"SEND\ndestination:/queue/\xff\n\nx\0", "not UTF-8"),
    "NUL in headers": (b"SEND\ndestination:/queue/a\0\n\nx\0", "NUL"),
    "negative content-length": (_send(content_length="-1") + b"x\0", "content-length"),
    "signed content-length": (_send(content_length="+1") + b"x\0", "content-length"),
    "huge content-length": (_send(content_length="99999999999999999999") + b"x\0", "digits"),
    "large content-length": (_send(content_length="1000000000") + b"x\0", "at most"),
    "no NUL after the body": (_send(content_length="1") + b"xyz", "does not end in a NUL"),
    "body on SUBSCRIBE": (b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\nbody\0", "has a body"),
    "unknown subscription": (b"UNSUBSCRIBE\nid:7\n\n\0", "no subscription"),
    "unknown message": (b"ACK\nid:1-99999\n\n\0", "does not hold"),
    "strange message id": (b"ACK\nid:nonsense\n\n\0", "not a message id"),
    "unknown transaction": (b"COMMIT\ntransaction:t\n\n\0", "no transaction"),
    "unknown ack mode": (b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:maybe\n\n\0", "ack"),
    "wrong prefetch": (
        b"SUBSCRIBE\nid:1\ndestination:/queue/a\nprefetch-count:many\n\n\0",
        "prefetch-count",
    ),
    "space before a name": (b"SEND\ndestination: /queue/a\n\nx\0", "begins or ends with a space"),
    "empty queue name": (b"SEND\ndestination:/queue/\n\nx\0", "length"),
    "wildcard": (b"SEND\ndestination:/topic/a.#\n\nx\0", "wildcard"),
    "contradiction": (b"SEND\ndestination:/queue/a\ndestination-type:MULTICAST\n\nx\0", "means"),
    "unknown type": (b"SEND\ndestination:a\ndestination-type:BOTH\n\nx\0", "ANYCAST or MULTICAST"),
    "wrong priority": (b"SEND\ndestination:/queue/a\npriority:11\n\nx\0", "priority"),
    "too many headers": (
        b"SEND\ndestination:/queue/a\n" + b"a:b\n" * 200 + b"\nx\0",
        "at most 100",
    ),
    "long header": (b"SEND\ndestination:/queue/a\na:" + b"b" * 9000 + b"\n\nx\0", "at most 8192"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_frame(broker: BrokerProcess, bystander: StompPeer, case: str) -> None:
    data, expected = MALFORMED[case]
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send_raw(data)
        error = peer.receive_error()
    assert expected in error.get("message", ""), error
    assert b"The connection is closed" in error.body


def test_the_receipt_of_the_bad_frame_comes_back(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("ACK", {"id": "1-99999", "receipt": "mine"})
        assert peer.receive_error().get("receipt-id") == "mine"


def test_receipts_before_the_bad_frame_come_first(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        good = b"".join(_send(persistent="true", receipt=str(n)) + b"x\0" for n in range(100))
        peer.send_raw(good + b"SHOUT\n\n\0")
        receipts = [peer.receive() for _ in range(100)]
        assert [frame.get("receipt-id") for frame in receipts] == [str(n) for n in range(100)]
        assert peer.receive_error().get("message") == "unknown command 'SHOUT'"


def test_endless_headers_after_login(broker: BrokerProcess, bystander: StompPeer) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        with contextlib.suppress(ConnectionError):
            peer.send_raw(b"SEND\ndestination:/queue/a\n")
            for number in range(100_000):
                peer.send_raw(b"h%d:%s\n" % (number, b"x" * 500))
        assert "at most" in peer.receive_error().get("message", "")


def test_endless_headers_before_login(broker: BrokerProcess, bystander: StompPeer) -> None:
    with StompPeer(broker.port()) as peer:
        with contextlib.suppress(ConnectionError):
            peer.send_raw(b"CONNECT\n")
            for number in range(100_000):
                peer.send_raw(b"h%d:%s\n" % (number, b"x" * 500))
        message = peer.receive_error().get("message", "")
        assert "at most" in message
        assert "before the login" in message


def test_endless_body_without_length(broker: BrokerProcess, bystander: StompPeer) -> None:
    before = broker.rss_bytes()
    with StompPeer(broker.port()) as peer:
        peer.connect()
        with contextlib.suppress(ConnectionError):
            peer.send_raw(b"SEND\ndestination:/queue/a\n\n")
            for _ in range(20_000):
                peer.send_raw(b"x" * 10_000)
        assert "at most 491520" in peer.receive_error().get("message", "")
    assert broker.rss_bytes() - before < 32 * 1024 * 1024


def test_announced_sizes_take_no_memory(broker: BrokerProcess, bystander: StompPeer) -> None:
    before = broker.rss_bytes()
    peers: list[StompPeer] = []
    try:
        for _ in range(200):  # each logs in at once: who says nothing for 3 seconds is turned out
            peer = StompPeer(broker.port())
            peers.append(peer)
            peer.connect()
            peer.send_raw(_send(content_length="400000") + b"x" * 1000)
        with StompPeer(broker.port()) as probe:
            probe.connect()
        assert broker.rss_bytes() - before < 32 * 1024 * 1024  # not 200 x 400 kB
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("size", [1, 60_000, 70_000, 200_000, 491_520])
@pytest.mark.parametrize("has_length", [True, False])
def test_large_bodies_in_pieces(broker: BrokerProcess, size: int, has_length: bool) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    name = f"/queue/pieces.{size}.{has_length}"
    headers = f"SEND\ndestination:{name}\nreceipt:r\npersistent:true\n"
    headers += f"content-length:{size}\n" if has_length else ""
    data = headers.encode() + b"\n" + body + b"\0"
    with StompPeer(broker.port()) as peer:
        peer.connect()
        step = max(1, len(data) // 37)
        for start in range(0, len(data), step):
            peer.send_raw(data[start : start + step])
        peer.receive_receipt("r")
        peer.send("SUBSCRIBE", {"id": "1", "destination": name})
        (message,) = peer.receive_messages(1)
        assert message.body == body


def test_body_beyond_the_limit(broker: BrokerProcess, bystander: StompPeer) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        with contextlib.suppress(ConnectionError):
            peer.send_raw(_send(content_length="491521", receipt="r") + b"x" * 491_521 + b"\0")
        error = peer.receive_error()
        assert "491521" in error.get("message", "")
        assert "at most 491520" in error.get("message", "")


@pytest.mark.ci
def test_one_byte_a_second(tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess) -> None:
    """A slow frame ends its connection; a client that works meanwhile does not wait for it."""
    with StompPeer(broker.port("stomp")) as slow, StompPeer(broker.port()) as good:
        slow.connect()
        good.connect()
        has_begun, is_over = threading.Event(), threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                for octet in b"SEND\ndestination:/queue/slow\n\n" * 2:
                    slow.send_raw(bytes([octet]))
                    has_begun.set()
                    if is_over.wait(1):
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert has_begun.wait(WAIT_S)
            served = -1  # until the slow one is told; at least one was served before that
            while not select.select([slow.socket], [], [], 0.005)[0]:
                served += 1
                good.send("SEND", {"destination": "/queue/fast", "receipt": str(served)}, b"x")
                good.receive_receipt(str(served))
            error = slow.receive_error(WAIT_S)
            assert "is not complete" in error.get("message", "")
            assert served > 0, "it waited for the slow one"
        finally:
            is_over.set()
            thread.join()


@pytest.mark.ci
def test_silence_before_login(broker: BrokerProcess, bystander: StompPeer) -> None:
    begin_s = time.monotonic()  # before the broker's clock begins
    with StompPeer(broker.port()) as peer:
        error = peer.receive_error()
        assert "nothing was sent within 3 seconds" in error.get("message", "")
        assert time.monotonic() - begin_s > 2.5


@pytest.mark.ci
def test_login_that_never_ends(broker: BrokerProcess, bystander: StompPeer) -> None:
    with StompPeer(broker.port()) as peer:
        peer.send_raw(b"CONNECT\naccept-version:1.2\n")
        assert "no login within 4 seconds" in peer.receive_error().get("message", "")


def test_no_common_version(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.send_raw(b"CONNECT\naccept-version:3.0\nhost:localhost\n\n\0")
        error = peer.receive_error()
        assert error.get("version") == "1.0,1.1,1.2"


FOREIGN = {
    "AMQP": (b"AMQP\x00\x01\x00\x00", b"AMQP"),
    "MQTT": (b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test", b"\x20\x02\x00\x01"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 "),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 32, b"\x15\x03"),
    "nonsense": (b"hello there\r\n\r\n", b"ERROR\n"),
}


@pytest.mark.parametrize("protocol", FOREIGN)
@pytest.mark.parametrize("listener", ["all", "stomp"])
def test_foreign_protocol(broker: BrokerProcess, protocol: str, listener: str) -> None:
    data, answer = FOREIGN[protocol]
    if listener == "all" and protocol in ("AMQP", "MQTT"):
        listener = {"AMQP": "mqtt", "MQTT": "amqp"}[protocol]  # it is spoken there
    with socket.create_connection(("127.0.0.1", broker.port(listener)), WAIT_S) as client:
        client.sendall(data)
        received = b""
        while piece := client.recv(4096):
            received += piece
    assert received.startswith(answer)


@pytest.mark.ci
def test_silent_heart_beat_partner_is_dropped(broker: BrokerProcess, bystander: StompPeer) -> None:
    with StompPeer(broker.port()) as peer:
        # It is given up after four seconds, in which it gets eight: a busy machine leaves one out.
        frame = peer.connect(heart_beat="2000,500")
        assert frame.get("heart-beat") == "500,500"
        error = peer.receive_error()
        assert "no heart-beat" in error.get("message", "")
        assert peer.heart_beats >= 1


@pytest.mark.ci
def test_client_that_never_reads(broker: BrokerProcess, bystander: StompPeer) -> None:
    """Its receipts pile up to a bound, then it is not read any more; the others go on."""
    before = broker.rss_bytes()
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.socket.settimeout(1)
        frame = _send(receipt="r" * 4000) + b"\0"
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 200 * 1024 * 1024:
                peer.socket.sendall(frame * 20)
                sent += 20 * len(frame)
        assert sent < 100 * 1024 * 1024
    assert broker.rss_bytes() - before < 64 * 1024 * 1024


def test_slow_consumer_gets_a_bounded_share(broker: BrokerProcess, bystander: StompPeer) -> None:
    with StompPeer(broker.port()) as slow, StompPeer(broker.port()) as sender:
        slow.connect()
        sender.connect()
        slow.send(
            "SUBSCRIBE",
            {"id": "1", "destination": "/queue/slow-consumer", "ack": "client-individual"},
        )
        sender.send("BEGIN", {"transaction": "wait", "receipt": "go"})
        sender.receive_receipt("go")
        before = broker.rss_bytes()
        for number in range(300):
            sender.send(
                "SEND",
                {
                    "destination": "/queue/slow-consumer",
                    "persistent": "true",
                    "receipt": str(number),
                },
                bytes(100_000),
            )
            sender.receive_receipt(str(number))
        # 30 MB stand in the journal's image; the connection holds no copy of them.
        assert broker.rss_bytes() - before < 80 * 1024 * 1024
        messages = slow.receive_messages(300)
        assert len({message.get("message-id") for message in messages}) == 300


def test_thousand_idle_connections(broker: BrokerProcess, bystander: StompPeer) -> None:
    before = broker.rss_bytes()
    sockets = []
    try:
        for _ in range(1000):
            client = socket.create_connection(("127.0.0.1", broker.port()), WAIT_S)
            client.sendall(CONNECT)
            sockets.append(client)
        for client in sockets:
            assert client.recv(4096).startswith(b"CONNECTED\n")
        grown = broker.rss_bytes() - before
        assert grown < 64 * 1024 * 1024, f"{grown / 1000:.0f} bytes a connection"
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number in range(100):
                peer.send("SEND", {"destination": "/queue/idle", "receipt": str(number)}, b"x")
                peer.receive_receipt(str(number))
    finally:
        for client in sockets:
            client.close()


def test_too_many_connections(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("few") / "data"
    with BrokerProcess(data, "acceptors.all.connections-allowed=2") as broker:
        with StompPeer(broker.port()) as first, StompPeer(broker.port()) as second:
            first.connect()
            second.connect()
            with StompPeer(broker.port()) as third:
                message = third.receive_error().get("message", "")
                assert "too many connections (got 3, allowed: at most 2)" in message
        with StompPeer(broker.port("stomp")) as other:
            other.connect()


def test_wrong_password(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("users") / "data"
    data.mkdir()
    users = data / "users"
    users.write_text(format_users([make_user("alice", "right"), make_user("bob", "builder")]))
    users.chmod(0o600)
    with BrokerProcess(data) as broker:
        with StompPeer(broker.port()) as good:
            good.connect(login="alice", passcode="right")
            for login, passcode in [("bob", "wrong"), ("nobody", "x")] * 6:
                with StompPeer(broker.port()) as peer, pytest.raises(AssertionError) as refused:
                    peer.connect(login=login, passcode=passcode)
                assert "user name or password are wrong" in str(refused.value)
            with StompPeer(broker.port()) as late:  # the right one is taken after a while
                late.connect(login="bob", passcode="builder")
            with StompPeer(broker.port()) as peer, pytest.raises(AssertionError, match="needs a"):
                peer.connect()
            with StompPeer(broker.port()) as again:  # the same machine, another user
                again.connect(login="alice", passcode="right")
            good.send("SEND", {"destination": "/queue/a", "receipt": "1"}, b"x")
            good.receive_receipt("1")
        users.write_text(format_users([make_user("carol", "new")]))
        with StompPeer(broker.port()) as peer:  # taken without a restart
            peer.connect(login="carol", passcode="new")
        text = broker.log_text()
        assert not any(secret in text for secret in ("right", "builder", "passcode"))
        assert text.count("login failed user='bob' protocol=STOMP listener=all") == 1


def test_half_a_frame_and_gone(broker: BrokerProcess, bystander: StompPeer) -> None:
    for cut in (1, 10, 30, 50):
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send_raw((_send(content_length="1000", persistent="true") + b"x" * 100)[:cut])
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/bad-none", "receipt": "r"})
        assert peer.receive_receipt("r") == []


def test_disconnect_without_receipt_closes(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("DISCONNECT")
        with pytest.raises((Ended, ConnectionResetError)):
            peer.receive()

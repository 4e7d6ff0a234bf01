"""The sans-I/O client: its states, its receipts, and a server's decoder at the other end."""

import pytest

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    ClientState,
    Connected,
    Frame,
    HeartBeat,
    HeartBeats,
    LocalProtocolError,
    Message,
    Receipt,
    RemoteProtocolError,
    ServerError,
    StompClient,
    StompDecoder,
    connected_frame,
    encode,
    error_frame,
    receipt_frame,
)


def connected(version="1.2", **options):
    """Return a client that is logged in, and a decoder for what it sends."""
    client = StompClient(host="h", versions=(version,), **options)
    server = StompDecoder()
    server.feed(client.connect())
    assert isinstance(server.next_event(), Frame)
    client.feed(encode(connected_frame(version, server="V/1", session="s"), version))
    assert isinstance(client.next_event(), Connected)
    server.set_version(version)
    return client, server


def sent(server, data):
    server.feed(data)
    frame = server.next_event()
    assert isinstance(frame, Frame)
    assert server.next_event() is NEED_DATA
    return frame


def deliver(client, version, *frames):
    client.feed(b"".join(encode(frame, version) for frame in frames))
    return [client.next_event() for _ in frames]


def message_frame(subscription="0", **more):
    headers = [("subscription", subscription), ("message-id", "7-1"), ("destination", "/q")]
    return Frame("MESSAGE", [*headers, *more.items()], b"hello")


def test_login():
    client = StompClient(
        host="broker", login="u:1", passcode="p\\c", heart_beats=HeartBeats(100, 200)
    )
    assert client.state is ClientState.NEW
    server = StompDecoder()
    frame = sent(server, client.connect())
    assert client.state is ClientState.CONNECTING
    assert frame.headers == [
        ("accept-version", "1.0,1.1,1.2"),
        ("host", "broker"),
        ("heart-beat", "100,200"),
        ("login", "u:1"),
        ("passcode", "p\\c"),
    ]
    answer = connected_frame("1.1", server="V/1", session="x", heart_beat=(50, 300))
    (event,) = deliver(client, "1.1", answer)
    assert event == Connected("1.1", "V/1", "x", send_ms=300, receive_ms=200)
    assert client.state is ClientState.CONNECTED
    assert client.version == "1.1"


def test_a_login_without_anything():
    frame = sent(StompDecoder(), StompClient(host="h").connect())
    assert [name for name, _ in frame.headers] == ["accept-version", "host"]


def test_a_login_that_cannot_be_said_changes_nothing():
    client = StompClient(host="h", passcode="a\nb")
    with pytest.raises(LocalProtocolError, match="line feed"):
        client.connect()
    assert client.state is ClientState.NEW


@pytest.mark.parametrize("version", VERSIONS)
def test_send_with_receipt(version):
    client, server = connected(version)
    receipt_id = client.new_receipt_id()
    data = client.send("/q", b"a\0b", [("persistent", "true")], receipt_id=receipt_id)
    frame = sent(server, data)
    assert frame.body == b"a\0b"
    assert frame.get("destination") == "/q"
    assert frame.get("persistent") == "true"
    assert frame.get("receipt") == receipt_id
    assert client.unconfirmed == (receipt_id,)
    assert deliver(client, version, receipt_frame(receipt_id)) == [Receipt(receipt_id)]
    assert client.unconfirmed == ()


def test_receipts_are_kept_in_the_order_of_sending():
    client, _ = connected()
    ids = [client.new_receipt_id() for _ in range(5)]
    for receipt_id in ids:
        client.send("/q", b"", receipt_id=receipt_id)
    deliver(client, "1.2", receipt_frame(ids[2]), receipt_frame(ids[0]))
    assert client.unconfirmed == (ids[1], ids[3], ids[4])
    client.receive_end()
    assert client.state is ClientState.CLOSED
    assert client.unconfirmed == (ids[1], ids[3], ids[4])


def test_a_receipt_that_nobody_asked_for():
    client, _ = connected()
    with pytest.raises(RemoteProtocolError, match="answers no frame"):
        deliver(client, "1.2", receipt_frame("5"))


def test_a_receipt_id_in_use():
    client, _ = connected()
    client.send("/q", b"", receipt_id="a")
    with pytest.raises(LocalProtocolError, match="awaited already"):
        client.send("/q", b"", receipt_id="a")


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.0", [("message-id", "7-1")]),
        ("1.1", [("message-id", "7-1"), ("subscription", "0")]),
        ("1.2", [("id", "A1")]),
    ],
)
def test_acknowledgements(version, headers):
    client, server = connected(version)
    frame = sent(server, client.subscribe("/q", "0", "client", [("selector", "a = 1")]))
    assert frame.headers == [
        ("id", "0"),
        ("destination", "/q"),
        ("ack", "client"),
        ("selector", "a = 1"),
    ]
    (message,) = deliver(client, version, message_frame(ack="A1"))
    assert isinstance(message, Message)
    assert (message.subscription, message.message_id) == ("0", "7-1")
    assert (message.destination, message.body) == ("/q", b"hello")
    assert message.ack_id == ("A1" if version == "1.2" else None)
    ack = sent(server, client.ack(message, transaction="t", receipt_id="9"))
    assert ack == Frame("ACK", [("receipt", "9"), *headers, ("transaction", "t")])
    if version == "1.0":
        with pytest.raises(LocalProtocolError, match="does not exist"):
            client.nack(message)
    else:
        assert sent(server, client.nack(message)) == Frame("NACK", headers)


def test_what_needs_no_acknowledgement():
    client, _ = connected()
    client.subscribe("/q", "0")
    client.subscribe("/r", "1", "client")
    first, second = deliver(client, "1.2", message_frame("0", ack="A"), message_frame("1"))
    with pytest.raises(LocalProtocolError, match="ack mode auto"):
        client.ack(first)
    with pytest.raises(LocalProtocolError, match="no ack header"):
        client.ack(second)


def test_subscriptions():
    client, server = connected()
    sent(server, client.subscribe("/q", "0"))
    with pytest.raises(LocalProtocolError, match="exists already"):
        client.subscribe("/r", "0")
    assert sent(server, client.unsubscribe("0")) == Frame("UNSUBSCRIBE", [("id", "0")])
    with pytest.raises(LocalProtocolError, match="no subscription"):
        client.unsubscribe("0")
    sent(server, client.subscribe("/r", "0"))


def test_transactions():
    client, server = connected()
    for action in ("begin", "commit", "abort"):
        frame = sent(server, getattr(client, action)("t1"))
        assert frame == Frame(action.upper(), [("transaction", "t1")])
    assert sent(server, client.send("/q", b"", transaction="t1")).get("transaction") == "t1"


def test_disconnect():
    client, server = connected()
    data = client.disconnect()
    receipt_id = sent(server, data).get("receipt", "")
    assert client.state is ClientState.DISCONNECTING
    events = deliver(client, "1.2", message_frame(), receipt_frame(receipt_id))
    assert isinstance(events[0], Message)
    assert client.state is ClientState.CLOSED
    with pytest.raises(LocalProtocolError, match="cannot send while the connection is closed"):
        client.send("/q", b"")


def test_an_error_closes_the_connection():
    client, _ = connected()
    (event,) = deliver(client, "1.2", error_frame("no such queue", "details", "7"))
    assert event == ServerError("no such queue", "details", "7")
    assert client.state is ClientState.CLOSED


def test_a_refused_login():
    client = StompClient(host="h")
    client.connect()
    (event,) = deliver(client, "1.0", error_frame("wrong password"))
    assert event == ServerError("wrong password", "", None)
    assert client.state is ClientState.CLOSED


ACTIONS = [
    lambda c: c.send("/q", b""),
    lambda c: c.subscribe("/q", "0"),
    lambda c: c.begin("t"),
    lambda c: c.disconnect(),
]


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_can_be_sent_before_the_login(action):
    client = StompClient(host="h")
    with pytest.raises(LocalProtocolError, match="connection is new"):
        action(client)
    client.connect()
    with pytest.raises(LocalProtocolError, match="connection is connecting"):
        action(client)
    with pytest.raises(LocalProtocolError, match="cannot connect"):
        client.connect()


def test_connected_before_connect():
    client = StompClient(host="h")
    with pytest.raises(RemoteProtocolError, match="before CONNECT"):
        deliver(client, "1.2", connected_frame("1.2", server="V", session="s"))


def test_a_failed_action_leaves_no_trace():
    client, _ = connected("1.0")
    with pytest.raises(LocalProtocolError):
        client.subscribe("a\nb", "0", receipt_id="1")
    assert client.unconfirmed == ()
    client.subscribe("a", "0", receipt_id="1")


def test_heart_beats_come_through():
    client, _ = connected()
    client.feed(b"\n\n")
    assert client.next_event() == HeartBeat(2)
    assert client.next_event() is NEED_DATA

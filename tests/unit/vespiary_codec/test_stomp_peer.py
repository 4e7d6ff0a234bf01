"""The codec against somebody else's: the parser and printer of stomp.py."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.stomp import (
    VERSIONS,
    Frame,
    HeartBeats,
    Login,
    StompDecoder,
    agree_heart_beats,
    encode,
    negotiate,
)

# Without it stomp.py asks the resolver for the names of this machine while it is imported.
os.environ.setdefault("STOMP_SKIP_HOSTNAME_SCAN", "1")
stomp = pytest.importorskip("stomp", reason="stomp.py is not installed")


class RecordingTransport:
    """Stands where stomp.py has its socket, and keeps the octets that it would send."""

    vhost = None
    current_host_and_port = ("broker.example", 61613)

    def __init__(self):
        self.sent = b""

    def set_listener(self, name, listener):
        pass

    def is_connected(self):
        return True

    def transmit(self, frame):
        self.sent += b"".join(stomp.utils.convert_frame(frame))


PROTOCOLS = {
    "1.0": stomp.protocol.Protocol10,
    "1.1": stomp.protocol.Protocol11,
    "1.2": stomp.protocol.Protocol12,
}


def peer(version):
    """Return stomp.py's side of a connection, without the part that waits for receipts."""
    transport = RecordingTransport()
    client = PROTOCOLS[version](transport)
    client.set_receipt = lambda receipt_id, command: None
    return client, transport


def read(transport, decoder):
    data, transport.sent = transport.sent, b""
    decoder.feed(data)
    event = decoder.next_event()
    assert isinstance(event, Frame)
    assert not decoder.is_mid_frame
    return event


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_session_of_stomp_py(version):
    client, transport = peer(version)
    decoder = StompDecoder()
    client.connect("user", "pass:word\\")
    connect = read(transport, decoder)
    login = negotiate(connect, HeartBeats())
    assert isinstance(login, Login)
    assert (login.version, login.login, login.passcode) == (version, "user", "pass:word\\")
    decoder.set_version(login.version)

    client.send("/queue/a", "héllo\0wörld", receipt="r1", custom="v")
    send = read(transport, decoder)
    assert send.body == "héllo\0wörld".encode()
    assert send.get("destination") == "/queue/a"
    assert send.get("custom") == "v"
    client.send("/queue/a", "")
    assert read(transport, decoder).body == b""
    client.subscribe("/queue/a", id="1", ack="client-individual")
    assert read(transport, decoder).get("ack") == "client-individual"
    if version == "1.0":
        client.ack("7-1")
        assert read(transport, decoder).get("message-id") == "7-1"
    elif version == "1.1":
        client.ack("7-1", "1")
        client.nack("7-2", "1")
        decoder.feed(transport.sent)
        assert [decoder.next_event().get("message-id") for _ in range(2)] == ["7-1", "7-2"]
        transport.sent = b""
    else:
        client.ack("7-1")
        client.nack("7-2")
        decoder.feed(transport.sent)
        assert [decoder.next_event().get("id") for _ in range(2)] == ["7-1", "7-2"]
        transport.sent = b""
    for action in ("begin", "commit", "begin", "abort"):
        getattr(client, action)("tx")
        assert read(transport, decoder).get("transaction") == "tx"
    client.unsubscribe(id="1")
    assert read(transport, decoder).get("id") == "1"
    client.disconnect(receipt="bye")
    assert read(transport, decoder).command == "DISCONNECT"


VALUE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NAME = st.text("abcdefghijklmnopqrstuvwxyzäöß-_.", min_size=1, max_size=10).filter(
    lambda name: name not in ("receipt", "destination", "content-length", "content-type")
)


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(["1.1", "1.2"]),
    st.dictionaries(NAME, VALUE, max_size=4),
    st.binary(min_size=1, max_size=50),
)
def test_we_read_what_stomp_py_prints(version, headers, body):
    if version == "1.1":  # it has no escape for a carriage return there and prints it plain
        headers = {name: value.replace("\r", "") for name, value in headers.items()}
    client, transport = peer(version)
    client.send("/queue/a", body, headers=dict(headers))
    decoder = StompDecoder()
    decoder.set_version(version)
    frame = read(transport, decoder)
    assert frame.body == body
    assert {name: frame.get(name) for name in headers} == headers
    assert frame.get("content-length") == str(len(body))


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(NAME, VALUE, max_size=4), st.binary(max_size=50))
def test_stomp_py_reads_what_we_print(headers, body):
    frame = Frame("MESSAGE", [("destination", "/q"), *headers.items()], body)
    theirs = stomp.utils.parse_frame(encode(frame, "1.2")[:-1])
    assert theirs.cmd == "MESSAGE"
    assert theirs.body == body
    expected = {"destination": "/q", "content-length": str(len(body)), **headers}
    assert theirs.headers == expected


@given(*[st.integers(0, 100_000)] * 4)
def test_the_same_heart_beats_as_stomp_py(cx, cy, sx, sy):
    theirs = stomp.utils.calculate_heartbeats((str(sx), str(sy)), (cx, cy))
    assert agree_heart_beats(HeartBeats(cx, cy), HeartBeats(sx, sy)) == theirs

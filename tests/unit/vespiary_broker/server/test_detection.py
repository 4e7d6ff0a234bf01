import pytest

from vespiary_broker.server.detection import Verdict
from vespiary_broker.server.detection import detect as detect_for
from vespiary_spec.settings import Protocol
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig

FIRST_BYTES = {
    b"CONNECT\nhost": None,
    b"STOMP\n": None,
    b"\r\n\nCONNECT\n": None,
    b"AMQP\x00\x01\x00\x00": "AMQP",
    b"\x16\x03\x01\x02\x00": "TLS",
    b"GET / HTTP/1.1\r\n": "HTTP",
    b"GET /wsx HTTP/1.1\r\n": "HTTP",
    b"OPTIONS * HTTP/1.1": "HTTP",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "HTTP",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 61613\r\nCONNECT\n": "the PROXY protocol",
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c": "the PROXY protocol",
    b"ARTEMIS": "Artemis Core",
    b"\x00\x00\x01\x3e\x01ActiveMQ": "OpenWire",
    b"AMQP\x00\x00\x09\x01": "AMQP 0-9-1",
    b"AMQP\x01\x01\x08\x00": "AMQP before 1.0",
    b"AMQP\x01\x01\x00\x09": "AMQP before 1.0",
    b"AMQP\x01\x01\x00\x0a": "AMQP before 1.0",
    b"\x00\x00\x00\x2b\x00\x12\x00\x03\x00\x00\x00\x01": "Kafka",
    b"\x00\x00\x00\x2b\x00\x03\x00\x01\x00\x00\x00\x01": "Kafka",
    b"\x00\x00\x00\x2b\x7f\x7f": "what this client speaks",
    b"hello": None,
}


def detect(data: bytes) -> Verdict:
    """Detect for an acceptor that speaks STOMP."""
    return detect_for(data, (Protocol.STOMP,))


def test_amqp_where_it_is_spoken() -> None:
    for header in (b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"):
        verdict = detect_for(header, (Protocol.STOMP, Protocol.AMQP))
        assert verdict == Verdict(is_decided=True, protocol=Protocol.AMQP)
    assert not detect_for(b"AM", (Protocol.AMQP,)).is_decided


def test_an_older_amqp_is_named_where_amqp_is_spoken() -> None:
    verdict = detect_for(b"AMQP\x00\x00\x09\x01", tuple(Protocol))
    assert verdict.foreign is not None
    assert verdict.foreign.reply == b"AMQP\x00\x01\x00\x00"
    error = str(verdict.foreign.error(tuple(Protocol)))
    assert "AMQP 0-9-1" in error
    assert "AMQP 1.0" in error


@pytest.mark.parametrize("data", FIRST_BYTES)
def test_verdict(data: bytes) -> None:
    verdict = detect(data)
    assert verdict.is_decided
    name = FIRST_BYTES[data]
    assert (verdict.foreign.protocol if verdict.foreign else None) == name
    assert (verdict.protocol is Protocol.STOMP) is (name is None)


def test_mqtt_is_told_by_its_first_byte() -> None:
    connect = b"\x10\x0c\x00\x04MQTT"
    assert detect_for(connect[:1], tuple(Protocol)).protocol is Protocol.MQTT
    elsewhere = detect_for(connect, (Protocol.STOMP,))
    assert elsewhere.protocol is None
    assert elsewhere.foreign is not None
    assert elsewhere.foreign.reply.startswith(b"\x20\x02")  # a CONNACK that refuses


FIRST_PACKETS = (
    b"\x11\x0c\x00\x04MQTT", b"\x1f\x00", b"\x30\x03\x00\x01a", b"\x3d\x05\x00\x01a\x00\x01",
    b"\x40\x02\x00\x01", b"\x50\x02\x00\x01", b"\x62\x02\x00\x01", b"\x82\x06\x00\x01\x00\x01a\x00",
    b"\xa2\x05\x00\x01\x00\x01a", b"\xc0\x00", b"\xe0\x00", b"\xf0\x00", b"\x80\x00",
    b"\x70\x02\x00\x01", b"\x30\x41\x00\x01a" + b"x" * 62, b"\x32\xc8\x01\x00\x01a" + b"x" * 197,
)  # fmt: skip


@pytest.mark.parametrize("data", FIRST_PACKETS)
def test_a_client_of_mqtt_is_known_by_any_packet(data: bytes) -> None:
    assert detect_for(data, tuple(Protocol)).protocol is Protocol.MQTT
    assert detect_for(data, (Protocol.STOMP,)).protocol is Protocol.STOMP


@pytest.mark.parametrize("data", FIRST_PACKETS)
def test_a_client_of_mqtt_never_hears_stomp(data: bytes) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        client = rig.client()
        client.send_bytes(data)
        await rig.settle()
        assert client.transport.is_closed or client.transport.is_eof
        assert b"ERROR" not in client.transport.data

    scenario()


@pytest.mark.parametrize("data", FIRST_PACKETS)
def test_the_cut_of_a_packet_does_not_matter(data: bytes) -> None:
    for end in range(len(data)):
        early = detect_for(data[:end], tuple(Protocol))
        assert not early.is_decided or early.protocol is Protocol.MQTT


@pytest.mark.parametrize(
    "data",
    [
        b"PROPFIND / HTTP/1.1\r\n", b"PING\n", b"begin\n", b"b\n", b"pass\r\n", b"P\r\n", b"@\n",
        b"1\r\n", b"42\n", b"<?xml version='1.0'?>", b"\xef\xbb\xbfCONNECT\n",
        b"\xff\xfeC\x00", b"\xc3\xa9\n",
    ],
)  # fmt: skip
def test_text_is_no_mqtt(data: bytes) -> None:
    for end in range(len(data) + 1):
        early = detect_for(data[:end], tuple(Protocol))
        assert not early.is_decided or early.protocol is Protocol.STOMP
    assert early.is_decided


def test_a_header_of_the_proxy_protocol_is_named_where_mqtt_is_spoken() -> None:
    verdict = detect_for(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 61613\r\n", tuple(Protocol))
    assert verdict.foreign is not None
    error = str(verdict.foreign.error(tuple(Protocol)))
    assert "does not speak the PROXY protocol" in error
    assert "proxy-protocol" in error, "what to turn on"


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE", "BEGIN", "ACK", "NACK", "DISCONNECT"])
def test_frames_of_stomp_are_stomp(command: str) -> None:
    assert detect_for(f"{command}\n".encode(), tuple(Protocol)).protocol is Protocol.STOMP


@pytest.mark.parametrize("data", FIRST_BYTES)
def test_the_cut_does_not_matter(data: bytes) -> None:
    """What is decided early is what all bytes say."""
    full = detect(data)
    for end in range(len(data)):
        early = detect(data[:end])
        if early.is_decided:
            assert early == full


@pytest.mark.parametrize("rest", [b" HTTP/1.1\r\n", b"?token=1 HTTP/1.1\r\n"])
def test_a_websocket_is_seen_however_cut(rest: bytes) -> None:
    data = b"\r\nGET /ws" + rest
    for end in range(len(data)):
        verdict = detect(data[:end])
        assert verdict.is_websocket is verdict.is_decided is (end > len(b"\r\nGET /ws"))


@pytest.mark.parametrize(
    "data", [b"GET /ws", b"GET ", b"", b"C", b"CONNEC", b"STOM", b"GE", b"\x16", b"\n"]
)
def test_undecided(data: bytes) -> None:
    assert not detect(data).is_decided

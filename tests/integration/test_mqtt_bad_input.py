"""Hostile MQTT clients against a real broker: each hurts itself alone.

The classes are those of known advisories against brokers: lengths that overflow, memory before the
login, packet ids of QoS 2 used again, leaks in bad properties, text in topics, floods. In each test
a client that does nothing wrong works on before, meanwhile and after, and the broker's memory does
not grow by more than 64 MiB. The image of the journal is not counted: it has room for what the disk
has not taken yet, and keeps up to 128 MiB of that for later. What its messages take is bounded by
the limit of their address.
"""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import pytest

from vespiary_codec.wire.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Version,
    Will,
    encode,
)
from vespiary_native.abc import SLAB_BYTES
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import PROTOCOLS
from vespiary_testkit.mqtt_wire import Ended, MqttWire
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.once

MIB = 1024 * 1024
SENT_BYTES = 200 * MIB
"""What a reader does not read: if all of it stayed in memory, it would be far above each limit."""
MESSAGES_BYTES_MAX = 32 * MIB
"""Of messages in memory, with a limit of 4 MiB for each of a few addresses."""
V5 = Version.V5
_NUMBERS = count(1)
PAIR = ("name", "value")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = (
        PROTOCOLS,
        "address-settings.#.max-size-bytes=4MiB",
        "acceptors.all.handshake-timeout=3",
    )
    with BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", *settings) as process:
        yield process


class Bystander:
    """A client that does nothing wrong."""

    def __init__(self, wire: MqttWire) -> None:
        self._wire = wire
        self._number = 0
        wire.connect("bystander")
        wire.send(Subscribe(1, (Subscription("bystander", 1),)))
        wire.receive(Suback)

    def works(self) -> None:
        self._number = self._number % 60_000 + 1
        self._wire.send(Publish("bystander", b"%d" % self._number, 1, packet_id=self._number))
        got: set[type[Packet]] = set()
        while got != {Puback, Publish}:
            packet = self._wire.receive_any()
            got.add(type(packet))
            if isinstance(packet, Publish):
                assert packet.payload == b"%d" % self._number
                self._wire.send(Puback(packet.packet_id))


def metric(broker: BrokerProcess, name: str) -> int:
    """Return the sum of a metric's series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    series = [line.split() for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    assert series, name
    return sum(int(float(each[-1])) for each in series)


def memory_bytes(broker: BrokerProcess) -> int:
    """Return the memory that the broker has outside of the journal's image."""
    slabs = metric(broker, "vespiary_journal_image_slabs")
    return broker.rss_bytes() - slabs * SLAB_BYTES


@pytest.fixture
def bystander(broker: BrokerProcess) -> Iterator[Bystander]:
    with MqttWire(broker.port()) as wire:
        client = Bystander(wire)
        client.works()
        before = memory_bytes(broker)
        yield client
        client.works()
        grown = memory_bytes(broker) - before
        assert grown < 64 * MIB, f"the broker grew by {grown / MIB:.1f} MiB"


def logged_in(broker: BrokerProcess, version: Version = V5, **said: Any) -> MqttWire:
    wire = MqttWire(broker.port(), version)
    answer = wire.connect(f"bad-{next(_NUMBERS)}", **said)
    assert answer.reason_code is ReasonCode.SUCCESS
    return wire


def refused(wire: MqttWire) -> ReasonCode:
    """Return the reason code of the last packet, behind which nothing comes."""
    while not isinstance(packet := wire.receive_any(), Disconnect | Connack):
        pass
    assert packet.properties.get(Property.REASON_STRING)
    assert wire.is_ended()
    return packet.reason_code


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0x10, 0x30, 0x32, 0x34, 0x82, 0xA2, 0xE0, 0x62, 0xF0])
@pytest.mark.parametrize(
    "length",
    [b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x00", b"\xff\xff\xff\x7f", b"\xff" * 30],
    ids=bytes.hex,
)
def test_remaining_lengths_that_overflow(
    broker: BrokerProcess, bystander: Bystander, first: int, length: bytes
) -> None:
    if first == 0x10:
        with MqttWire(broker.port()) as client:
            client.send_bytes(bytes([first]) + length)
            assert client.is_ended()
    with logged_in(broker) as client:
        client.send_bytes(bytes([first]) + length)
        assert refused(client).is_failure
    bystander.works()


def test_announced_lengths_cost_no_memory(broker: BrokerProcess, bystander: Bystander) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(MqttWire(broker.port()))
            client.send_bytes(b"\x10\xff\xff\x03\x00\x04MQTT\x05")  # 64 KiB - 1 of CONNECT
            client = stack.enter_context(logged_in(broker))
            client.send_bytes(b"\x30\xf0\xff\x7f\x00\x01a\x00")  # 2 MiB of PUBLISH
        bystander.works()


@pytest.mark.parametrize("version", Version)
def test_lengths_inside_a_packet_that_lie(
    broker: BrokerProcess, bystander: Bystander, version: Version
) -> None:
    of_5 = b"\x00" if version is V5 else b""
    bodies = {
        0x30: [b"\xff\xffa", b"\x00", b"", b"\x00\x05a"],
        0x32: [b"\x00\x01a", b"\x00\x01a\x00", b"\x00\x01a\x00\x00" + of_5],
        0x82: [
            b"",
            b"\x00",
            b"\x00\x01",
            b"\x00\x01" + of_5,
            b"\x00\x01" + of_5 + b"\xff\xffa\x01",
        ],
        0xA2: [b"\x00\x01" + of_5, b"\x00\x01" + of_5 + b"\x00\x09a"],
        0x40: [b"", b"\x00"],
        0x62: [b"", b"\x00"],
    }
    for first, wrong in bodies.items():
        for body in wrong:
            with logged_in(broker, version) as client:
                client.send_bytes(bytes([first, len(body)]) + body)
                assert client.is_ended(), (hex(first), body)
    bystander.works()


# --- cut packets ----------------------------------------------------------------------------------

SAMPLES: list[Packet] = [
    Publish("a/b", b"payload", 2, packet_id=7, properties={Property.USER_PROPERTY: [PAIR]}),
    Subscribe(8, (Subscription("x/+", 1), Subscription("$share/a/b", 2))),
    Unsubscribe(9, ("x/+", "y")),
    Pubrel(7),
    Pingreq(),
    Disconnect(ReasonCode.DISCONNECT_WITH_WILL, {Property.REASON_STRING: "why"}),
]
CONNECT = Connect(
    V5, "cut", keep_alive_s=9, user_name="u", password=b"p",
    will=Will("will", b"w", 1, properties={Property.CONTENT_TYPE: "t"}),
    properties={Property.SESSION_EXPIRY_INTERVAL: 5, Property.USER_PROPERTY: [PAIR]},
)  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda each: type(each).__name__)
def test_packets_cut_at_every_byte(
    broker: BrokerProcess, bystander: Bystander, sample: Packet
) -> None:
    data = encode(sample, V5)
    for cut in range(1, len(data)):
        with logged_in(broker) as client:  # it is gone in the middle
            client.send_bytes(data[:cut])
    bystander.works()
    for cut in range(1, len(data)):
        with logged_in(broker) as client:  # and another one goes on behind the cut
            client.send_bytes(data[:cut])
            client.send_bytes(data[cut:] + encode(Pingreq(), V5))
            if isinstance(sample, Disconnect):
                assert client.is_ended()
                continue
            while not isinstance(client.receive_any(), Pingresp):
                pass


def test_connect_cut_at_every_byte(broker: BrokerProcess, bystander: Bystander) -> None:
    data = encode(CONNECT, V5)
    for cut in range(1, len(data)):
        with MqttWire(broker.port()) as client:
            client.send_bytes(data[:cut])
        with MqttWire(broker.port()) as client:
            client.send_bytes(data[:cut])
            client.send_bytes(data[cut:])
            client.receive(Connack)
    bystander.works()


def test_many_packets_byte_by_byte(broker: BrokerProcess, bystander: Bystander) -> None:
    with MqttWire(broker.port()) as client:
        packets = [Connect(V5, "slow"), *SAMPLES[:-1]]
        for octet in b"".join(encode(each, V5) for each in packets):
            client.send_bytes(bytes([octet]))
        kinds = {type(client.receive_any()) for _ in range(6)}
        assert kinds == {Connack, Pubrec, Suback, Unsuback, Pubcomp, Pingresp}
    bystander.works()


# --- text -----------------------------------------------------------------------------------------

BAD_TEXTS = [
    b"a\x00b",
    b"\x00",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"a\xc3",
]


@pytest.mark.parametrize("version", Version)
@pytest.mark.parametrize("text", BAD_TEXTS, ids=bytes.hex)
def test_nul_and_invalid_utf8(
    broker: BrokerProcess, bystander: Bystander, version: Version, text: bytes
) -> None:
    of_5 = b"\x00" if version is V5 else b""
    said = struct.pack(">H", len(text)) + text
    bodies = [
        (0x30, said + of_5 + b"x"),
        (0x82, b"\x00\x01" + of_5 + said + b"\x01"),
        (0xA2, b"\x00\x01" + of_5 + said),
    ]
    if version is V5:
        pair = b"\x26\x00\x01a" + said
        bodies += [
            (0x30, b"\x00\x01a" + bytes([len(pair)]) + pair),
            (0x30, b"\x00\x01a" + bytes([len(said) + 1]) + b"\x03" + said),
            (0x30, b"\x00\x01a" + bytes([len(said) + 1]) + b"\x08" + said),
        ]
    for first, body in bodies:
        with logged_in(broker, version) as client:
            client.send_bytes(bytes([first, len(body)]) + body)
            assert client.is_ended(), (hex(first), body)
    name = b"MQIsdp\x03" if version is Version.V3_1 else b"MQTT" + bytes([version])
    name = struct.pack(">H", len(name) - 1) + name
    with MqttWire(broker.port(), version) as client:  # as its id
        body = name + b"\x02\x00\x00" + of_5 + said
        client.send_bytes(bytes([0x10, len(body)]) + body)
        assert client.is_ended()
    bystander.works()


@pytest.mark.parametrize("topic", ["a/+", "#", "a#", "+", "a/#/b"])
def test_topic_names_with_wildcards(
    broker: BrokerProcess, bystander: Bystander, topic: str
) -> None:
    said = struct.pack(">H", len(topic)) + topic.encode()
    with logged_in(broker) as client:
        client.send_bytes(bytes([0x30, len(said) + 1]) + said + b"\x00")
        assert refused(client) in (ReasonCode.TOPIC_NAME_INVALID, ReasonCode.MALFORMED_PACKET)
    bystander.works()


def test_topics_that_are_too_long_or_too_deep(broker: BrokerProcess, bystander: Bystander) -> None:
    for topic in ("x" * 1025, "x" * 65_535, "/" * 32, "/" * 1000):
        for packet in (Publish(topic, b"x"), Subscribe(1, (Subscription(topic, 1),))):
            with logged_in(broker) as client:
                client.send(packet)
                assert refused(client).is_failure
    with logged_in(broker) as client:
        client.send(Publish("/" * 31, b"x", 1, packet_id=1))
        assert not client.receive(Puback).reason_code.is_failure
    bystander.works()


# --- QoS 2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_packet_id_of_qos_2_that_is_used_again_and_again(
    broker: BrokerProcess, bystander: Bystander, expiry_s: int
) -> None:
    topic = f"again/{expiry_s}"
    with logged_in(broker) as watcher, MqttWire(broker.port()) as client:
        watcher.send(Subscribe(1, (Subscription(topic, 0),)))
        watcher.receive(Suback)
        client.connect("again", properties={Property.SESSION_EXPIRY_INTERVAL: expiry_s})
        for number in range(20):
            body = b"%d" % number * 10_000
            client.send(*(Publish(topic, body, 2, packet_id=5) for _ in range(100)))
            for _ in range(100):
                assert client.receive(Pubrec).packet_id == 5
        client.send(Pubrel(5), Publish(topic, b"next", 2, packet_id=5))
        client.receive(Pubcomp)
        client.receive(Pubrec)
        assert [watcher.receive(Publish).payload for _ in range(2)] == [b"0" * 10_000, b"next"]
    bystander.works()


@pytest.mark.verify
def test_all_packet_ids_of_qos_2_are_held_open(broker: BrokerProcess, bystander: Bystander) -> None:
    with MqttWire(broker.port(), Version.V3_1_1) as client:  # which has no receive maximum
        client.connect("all", clean_start=False)
        for start in range(1, 65_536, 4096):
            ids = range(start, min(start + 4096, 65_536))
            client.send(*(Publish("all", b"x", 2, packet_id=number) for number in ids))
            assert [client.receive(Pubrec).packet_id for _ in ids] == list(ids)
    with MqttWire(broker.port(), Version.V3_1_1) as client:
        client.connect("all", clean_start=True)
    bystander.works()


def test_answers_to_what_was_never_sent(broker: BrokerProcess, bystander: Bystander) -> None:
    for version in Version:
        with logged_in(broker, version) as client:
            for number in (1, 2, 65_535):
                client.send(Puback(number), Pubrec(number), Pubcomp(number), Pubrel(number))
                answers = {type(client.receive_any()) for _ in range(2)}
                assert answers == {Pubrel, Pubcomp}
    bystander.works()


# --- floods ---------------------------------------------------------------------------------------


def test_a_flood_of_subscribe_with_long_filters(
    broker: BrokerProcess, bystander: Bystander
) -> None:
    with logged_in(broker) as client:
        refusals = 0
        for number in range(5):
            filters = [f"{number}/{each:04}/" + "x" * 900 for each in range(1000)]
            client.send(Subscribe(1, tuple(Subscription(each, 1) for each in filters)))
            codes = client.receive(Suback).reason_codes
            refusals += sum(code is ReasonCode.QUOTA_EXCEEDED for code in codes)
            bystander.works()
        assert refusals == 4000
    with logged_in(broker) as client:
        client.send(Subscribe(1, tuple(Subscription(f"f/{each}", 1) for each in range(1001))))
        assert refused(client).is_failure
    bystander.works()


def test_a_flood_of_subscribe_and_unsubscribe(broker: BrokerProcess, bystander: Bystander) -> None:
    with logged_in(broker) as client:
        for _ in range(5):
            pair = (Subscribe(1, (Subscription("flood/+/#", 2),)), Unsubscribe(2, ("flood/+/#",)))
            client.send(*(pair * 100))
            for _ in range(100):
                client.receive(Suback)
                client.receive(Unsuback)
            bystander.works()


def test_a_flood_of_pings_that_reads_no_answer(broker: BrokerProcess, bystander: Bystander) -> None:
    with logged_in(broker) as client:
        client.socket.settimeout(0)
        for _ in range(20):
            with suppress(BlockingIOError):  # it is not read any more
                client.socket.send(b"\xc0\x00" * 500_000)
            bystander.works()


def test_what_others_send_overtakes_a_flood_of_pings(broker: BrokerProcess) -> None:
    """The broker has 30 000 pings before it, then a message of somebody else.

    A connection has some milliseconds of the processor in its turn: time for 2000 pings, far from
    enough for half of them on any machine.
    """
    with logged_in(broker) as flooding, logged_in(broker) as good, logged_in(broker) as watching:
        watching.send(Subscribe(1, (Subscription("overtaken", 0),)))
        watching.receive(Suback)
        mark = encode(Publish("overtaken", b"flood", 0), V5)
        with broker.stopped():
            flooding.send_bytes((b"\xc0\x00" * 2000 + mark) * 15)
            good.send(Publish("overtaken", b"good", 0))
        order = [watching.receive(Publish).payload for _ in range(16)]
    assert order.index(b"good") < 8, order


def test_a_flood_of_clients_with_one_id(broker: BrokerProcess, bystander: Bystander) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(MqttWire(broker.port())) for _ in range(100)]
        for client in clients:
            client.send(Connect(V5, "one", properties={Property.SESSION_EXPIRY_INTERVAL: 1}))
        for client in clients:
            client.receive(Connack)
        ended = 0
        for client in clients[:-1]:
            try:
                ended += client.receive(Disconnect).reason_code is ReasonCode.SESSION_TAKEN_OVER
            except Ended:
                ended += 1
        assert ended == 99
        clients[-1].send(Pingreq())
        clients[-1].receive(Pingresp)
    bystander.works()


@pytest.mark.ci
def test_a_flood_of_sessions_that_are_left_alone(
    broker: BrokerProcess, bystander: Bystander
) -> None:
    for number in range(500):
        with MqttWire(broker.port()) as client:
            client.connect(f"left-{number}", properties={Property.SESSION_EXPIRY_INTERVAL: 1})
    bystander.works()


# --- properties -----------------------------------------------------------------------------------


def test_huge_property_blocks(broker: BrokerProcess, bystander: Bystander) -> None:
    pairs = [("n" * 1000, "v" * 10_000)] * 90
    for _ in range(20):
        with logged_in(broker) as client:
            good = Publish("p", b"x", 1, packet_id=1, properties={Property.USER_PROPERTY: pairs})
            client.send(good)
            client.receive_any()
            many = [PAIR] * 101
            client.send(Publish("p", b"x", properties={Property.USER_PROPERTY: many}))
            assert refused(client).is_failure
    bystander.works()
    data = encode(Connect(V5, "p", properties={Property.USER_PROPERTY: pairs[:7]}), V5)
    assert len(data) > 64 * 1024
    with MqttWire(broker.port()) as client:
        client.send_bytes(data)
        assert client.is_ended()


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\x7f",  # longer than the packet
        b"\xff\xff\xff\xff\x01",
        b"\x02\x00\x00",  # there is no property 0
        b"\x02\x7f\x00",
        b"\x04\x01\x00\x01\x00",  # twice
        b"\x02\x01\x02",  # neither 0 nor 1
        b"\x03\x23\x00\x00",  # topic alias 0
        b"\x05\x02\x00\x00\x00",  # cut
        b"\x05\x11\x00\x00\x00\x01",  # of CONNECT
        b"\x02\x0b\x01",  # a client sends no subscription identifier
        b"\x04\x08\x00\x01#",  # a response topic with a wildcard
    ],
    ids=bytes.hex,
)
def test_wrong_properties(broker: BrokerProcess, bystander: Bystander, block: bytes) -> None:
    for _ in range(30):
        with logged_in(broker) as client:
            body = b"\x00\x01a" + block
            client.send_bytes(bytes([0x30, len(body)]) + body)
            assert refused(client).is_failure
    bystander.works()


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", Version)
def test_clients_without_connect(
    broker: BrokerProcess, bystander: Bystander, version: Version
) -> None:
    for packet in [each for each in SAMPLES if version is V5 or not isinstance(each, Disconnect)]:
        with MqttWire(broker.port()) as client:
            client.send_bytes(encode(packet, V5))
            assert client.is_ended()
    bystander.works()


@pytest.mark.parametrize("version", Version)
def test_a_second_connect(broker: BrokerProcess, bystander: Bystander, version: Version) -> None:
    with logged_in(broker, version) as client:
        client.send(Connect(version, "second"))
        if version is V5:
            assert refused(client) is ReasonCode.PROTOCOL_ERROR
        else:
            assert client.is_ended()
    bystander.works()


def test_packets_behind_disconnect_do_nothing(broker: BrokerProcess, bystander: Bystander) -> None:
    with logged_in(broker) as watcher:
        watcher.send(Subscribe(1, (Subscription("behind", 0),)))
        watcher.receive(Suback)
        with logged_in(broker) as client:
            client.send(Disconnect(), Publish("behind", b"ghost", 1, packet_id=1))
            assert client.is_ended()
        with logged_in(broker) as client:
            client.send(Publish("behind", b"real", 1, packet_id=1))
            client.receive(Puback)
        assert watcher.receive(Publish).payload == b"real"
    bystander.works()


@pytest.mark.parametrize(
    "data",
    [
        b"\x33\x00", b"\x36\x05\x00\x01a\x00\x01", b"\x38\x04\x00\x01a\x00", b"\x80\x00",
        b"\x83\x00", b"\xc1\x00", b"\xe1\x00", b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00",
        b"\xd0\x00", b"\x00\x00", b"\xc0\x01x", b"\x60\x02\x00\x01",
        b"\x32\x06\x00\x01a\x00\x00\x00",
        b"\x82\x07\x00\x00\x00\x00\x01a\x01", b"\x82\x07\x00\x01\x00\x00\x01a\x03",
        b"\x82\x07\x00\x01\x00\x00\x01a\x40", b"\x82\x06\x00\x01\x00\x00\x00\x01",
    ],
    ids=bytes.hex,
)  # fmt: skip
def test_wrong_flags_ids_and_types(
    broker: BrokerProcess, bystander: Bystander, data: bytes
) -> None:
    with logged_in(broker) as client:
        client.send_bytes(data)
        assert refused(client).is_failure
    bystander.works()


# --- slow ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_reader_that_does_not_read(broker: BrokerProcess, bystander: Bystander, qos: int) -> None:
    topic, body, before = f"slow/{qos}", b"x" * 20_000, memory_bytes(broker)
    with logged_in(broker) as slow, logged_in(broker) as sender:
        slow.send(Subscribe(1, (Subscription(topic, qos),)))
        slow.receive(Suback)
        for start in range(0, SENT_BYTES // len(body), 50):
            numbers = range(start + 1, start + 51)
            sender.send(*(Publish(topic, body, 1, packet_id=number) for number in numbers))
            for _ in numbers:
                sender.receive(Puback)
            if not start % 500:
                bystander.works()
        wait_for(
            lambda: metric(broker, "vespiary_memory_bytes") < MESSAGES_BYTES_MAX,
            "the messages left memory",
        )
        bystander.works()
        # Here, since what is kept for the reader may be free again when the connection is closed.
        grown = memory_bytes(broker) - before
        assert grown < 64 * MIB, f"the broker grew by {grown / MIB:.1f} MiB"


def test_readers_that_never_acknowledge(broker: BrokerProcess, bystander: Bystander) -> None:
    with ExitStack() as stack:
        for number in range(50):
            client = stack.enter_context(logged_in(broker))
            client.send(Subscribe(1, (Subscription("never", 1 + number % 2),)))
            client.receive(Suback)
        sender = stack.enter_context(logged_in(broker))
        for number in range(1, 201):
            sender.send(Publish("never", b"x" * 1000, 1, packet_id=number))
            sender.receive(Puback)
        bystander.works()


@pytest.mark.ci
def test_slow_writers(broker: BrokerProcess, bystander: Bystander) -> None:
    with ExitStack() as stack:
        clients = []
        for _ in range(50):
            clients.append(stack.enter_context(logged_in(broker)))
            clients[-1].send_bytes(b"\x30\x80\x08\x00")  # and no more
        silent = [stack.enter_context(MqttWire(broker.port())) for _ in range(50)]
        for client in silent[:25]:
            client.send_bytes(b"\x10\x20\x00\x04")
        assert all(client.is_ended() for client in silent)
        bystander.works()
        for client in clients:
            assert refused(client).is_failure

"""Messages to MQTT clients that the core encodes: what is plain, packet ids, windows, PUBACKs."""

from __future__ import annotations

from contextlib import suppress

import pytest

from vespiary_codec.journal.record import AckRecord
from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    MqttDecoder,
    Publish,
    Version,
)
from vespiary_codec.wire.mqtt import encode as encode_packet
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom, ScanStatus
from vespiary_native.abc_mqtt import PACKET_ID_FIRST, MqttEncoding, MqttLimits, SentMessage
from vespiary_testkit.core_rig import CoreRig

LINE = b"destination:a.b/c\n"
PERSISTENT = LINE + b"persistent:true\n"
FIRST = PACKET_ID_FIRST


class Reader:
    """A connection of MQTT with a consumer of queue 1."""

    def __init__(
        self,
        rig: CoreRig,
        version: int = 4,
        encoding: MqttEncoding = MqttEncoding(1, 10_000),  # noqa: B008
        *,
        window: int = 100,
    ) -> None:
        self.rig, self.version, core = rig, version, rig.core
        self.handle = core.open_connection()
        core.set_ready_mqtt(self.handle, version, MqttLimits(6000, 5000, 100))
        core.set_window(self.handle, window)
        self.consumer = self.open(encoding)

    def open(self, encoding: MqttEncoding, queue: int = 1) -> int:
        core = self.rig.core
        consumer = core.open_consumer(
            self.handle, queue, AckMode.INDIVIDUAL, 1000, b"", STORED_VERSION
        )
        core.encode_mqtt(consumer, encoding)
        return consumer

    def deliver(self, number: int = 1000) -> tuple[DeliverStatus, list[Publish]]:
        status, count, data = self.rig.core.deliver(self.consumer, number, 10**6)
        decoder = MqttDecoder(role="client", version=Version(self.version))
        decoder.feed(data)
        found = []
        while (packet := decoder.next_packet()) is not NEED_DATA:
            assert isinstance(packet, Publish)
            found.append(packet)
        assert len(found) == count
        version = Version(self.version)
        assert b"".join(encode_packet(each, version) for each in found) == data
        return status, found

    def stored(self) -> tuple[DeliverStatus, list[bytes]]:
        status, count, data = self.rig.core.deliver_stored(self.consumer, 1000, 10**6)
        found = [message.body for message in read_stored(data)]
        assert len(found) == count
        return status, found

    def answer(self, *packet_ids: int) -> tuple[int, int, int]:
        data = b"".join(b"\x40\x02" + each.to_bytes(2, "big") for each in packet_ids)
        self.rig.memory[: len(data)] = data
        return self.rig.core.scan_mqtt(self.handle, self.rig.buffer, 0, len(data))


def publish(rig: CoreRig, *bodies: bytes, properties: bytes = PERSISTENT, **named: int) -> None:
    is_persistent = b"persistent" in properties
    for body in bodies:
        rig.core.publish(
            rig.route, properties, body, persistent=is_persistent, **{"protocol": 2} | named
        )
    rig.flush()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(("qos", "out"), [(0, 0), (1, 1), (2, 1)])
def test_the_packet_is_the_codecs(rig: CoreRig, version: int, qos: int, out: int) -> None:
    bodies = [b"", b"x", bytes(200), bytes(3000), bytes(20_000)]
    publish(rig, *bodies)
    reader = Reader(rig, version, MqttEncoding(qos, 10**6))
    status, found = reader.deliver()
    assert status == DeliverStatus.DRAINED
    assert [each.payload for each in found] == bodies
    assert {(each.topic, each.qos, each.dup, each.retain) for each in found} == {
        ("a/b.c", out, False, False)
    }
    assert [each.packet_id for each in found] == [FIRST + n if out else 0 for n in range(5)]
    assert rig.core.queue_statistics(1).delivering == (5 if out else 0)


def test_qos_0_is_acknowledged_when_it_is_given(rig: CoreRig) -> None:
    publish(rig, b"a", b"b")
    publish(rig, b"c", properties=LINE)
    reader = Reader(rig, encoding=MqttEncoding(0, 10_000))
    assert [each.payload for each in reader.deliver()[1]] == [b"a", b"b", b"c"]
    rig.flush()
    acks = [record for record in rig.records() if isinstance(record, AckRecord)]
    assert [(each.queue_id, each.ranges) for each in acks] == [(1, ((1, 2),))]
    assert rig.core.queue_statistics(1).acknowledged == 3
    assert reader.rig.core.sent_count(reader.handle) == 0


def test_qos_0_without_room_for_the_acknowledgement_is_not_given(rig: CoreRig) -> None:
    reader = Reader(rig, encoding=MqttEncoding(0, 10_000))
    fill(rig)
    assert reader.deliver() == (DeliverStatus.LIMIT, [])
    left = rig.core.queue_statistics(1)
    assert (left.ready, left.delivering) == (1, 0)
    rig.add_file()
    assert len(reader.deliver()[1]) == 1


def fill(rig: CoreRig) -> None:
    """Leave no room in the journal, and one message in the queue."""
    with suppress(NoRoom):
        while True:
            publish(rig, bytes(3000))
            last = rig.core.queue_statistics(1).tail - 1
            rig.core.finish(1, [*range(max(1, last - 1), last)])
    with suppress(NoRoom):
        while True:
            rig.core.append_record(40, b"")
            rig.flush()


NOT_PLAIN = {
    "retained of another protocol": {
        "protocol": 1,
        "properties": PERSISTENT + b"mqtt-retain:true\n",
    },
    "with a priority": {"priority": 5},
    "with escapes": {"escaped": True},
    "with other lines": {"properties": PERSISTENT + b"a:b\n"},
    "with lines before": {"properties": b"a:b\n" + PERSISTENT},
    "of no persistence known": {"properties": LINE + b"persistent:yes!\n"},
    "without lines": {"properties": b""},
    "with a code": {"properties": b"destination:a%20b\n"},
    "with a plus": {"properties": b"destination:a+b\n"},
    "with a hash": {"properties": b"destination:a#b\n"},
    "of a queue": {"properties": b"destination:a::b\n"},
    "of the broker": {"properties": b"destination:$SYS.a\n"},
    "without an address": {"properties": b"destination:\n"},
    "too large": {"body": bytes(10_000)},
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_plain_is_given_as_it_is_stored(rig: CoreRig, what: str) -> None:
    named = dict(NOT_PLAIN[what])
    body = named.pop("body", b"odd")
    assert isinstance(body, bytes)
    publish(rig, b"1")
    publish(rig, body, **named)  # type: ignore[arg-type]
    publish(rig, body, **named)  # type: ignore[arg-type]
    publish(rig, b"4")
    reader = Reader(rig)
    status, found = reader.deliver()
    assert (status, [each.payload for each in found]) == (DeliverStatus.STORED, [b"1"])
    assert reader.deliver() == (DeliverStatus.STORED, [])
    assert reader.stored() == (DeliverStatus.LIMIT, [body, body])
    assert reader.stored() == (DeliverStatus.LIMIT, [])
    assert [each.payload for each in reader.deliver()[1]] == [b"4"]
    assert rig.core.sent_count(reader.handle) == 2


def test_a_topic_of_the_consumer_stands_for_any_address(rig: CoreRig) -> None:
    publish(rig, b"x", properties=b"destination:a+b::c%20$\n")
    reader = Reader(rig, encoding=MqttEncoding(1, 10_000, "ü/t".encode()))
    assert [each.topic for each in reader.deliver()[1]] == ["ü/t"]


@pytest.mark.parametrize("version", [4, 5])
def test_the_largest_packet_is_sent_and_no_larger_one(rig: CoreRig, version: int) -> None:
    publish(rig, bytes(200))
    size = 1 + 2 + 2 + 5 + 2 + (version == 5) + 200
    reader = Reader(rig, version, MqttEncoding(1, size - 1))
    assert reader.deliver() == (DeliverStatus.STORED, [])
    rig.core.encode_mqtt(reader.consumer, MqttEncoding(1, size))
    assert len(reader.deliver()[1]) == 1


def test_what_was_sent_before_is_left_to_who_knows_its_id(rig: CoreRig) -> None:
    publish(rig, b"1", b"2", b"3")
    reader = Reader(rig, encoding=MqttEncoding(1, 10_000, stored_below=3))
    assert reader.deliver() == (DeliverStatus.STORED, [])
    assert reader.stored() == (DeliverStatus.LIMIT, [b"1", b"2"])
    assert [each.payload for each in reader.deliver()[1]] == [b"3"]


def test_dup_is_set_for_what_was_given_out_before(rig: CoreRig) -> None:
    publish(rig, b"1")
    reader = Reader(rig)
    reader.deliver()
    rig.core.close_consumer(reader.consumer)
    assert [each.dup for each in Reader(rig).deliver()[1]] == [True]


def test_the_window_holds_for_all_consumers_of_a_connection(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    publish(rig, b"1", b"2", b"3")
    rig.core.publish(rig.core.open_route([2]), PERSISTENT, b"other", persistent=True, protocol=2)
    rig.flush()
    reader = Reader(rig, window=0)
    assert reader.deliver() == (DeliverStatus.LIMIT, [])
    rig.core.set_window(reader.handle, 2)
    status, found = reader.deliver()
    assert (status, len(found)) == (DeliverStatus.LIMIT, 2)
    other = reader.open(MqttEncoding(2, 10_000), queue=2)
    assert rig.core.deliver(other, 9, 999) == (DeliverStatus.LIMIT, 0, b"")
    assert reader.answer(FIRST)[0] == ScanStatus.NEED_DATA
    assert rig.core.deliver(other, 9, 999)[1] == 1
    assert rig.core.sent_count(reader.handle) == 2
    assert rig.core.sent(reader.handle) == [
        SentMessage(FIRST + 1, 1, 2), SentMessage(FIRST + 2, 2, 1),
    ]  # fmt: skip


def test_ids_come_round_and_their_room_doubles_while_half_of_it_is_used(rig: CoreRig) -> None:
    reader = Reader(rig, window=1000)
    for number in range(60):
        publish(rig, b"x")
        ((packet,),) = (reader.deliver()[1],)
        assert packet.packet_id == FIRST + number
        assert reader.answer(packet.packet_id)[0] == ScanStatus.NEED_DATA
    publish(rig, *[b"y"] * 40)
    ids = [each.packet_id - FIRST for each in reader.deliver()[1]]
    assert ids == [60, 61, 62, *range(33), 33, 34, 35, 36]
    publish(rig, *[b"z"] * 30)
    ids = [each.packet_id - FIRST for each in reader.deliver()[1]]
    assert ids == [*range(37, 60), *range(63, 70)]


def test_reserved_ids_are_passed_over(rig: CoreRig) -> None:
    reader = Reader(rig)
    for packet_id in (FIRST, FIRST + 2, 65_535):
        rig.core.reserve_packet_id(reader.handle, packet_id, reserved=True)
    publish(rig, b"1", b"2")
    assert [each.packet_id - FIRST for each in reader.deliver()[1]] == [1, 3]
    assert reader.answer(FIRST) == (ScanStatus.FRAME, 0, 4)
    rig.core.reserve_packet_id(reader.handle, FIRST, reserved=False)
    for packet_id, is_reserved in (
        (FIRST, False), (FIRST + 1, True), (FIRST + 1, False), (FIRST + 2, True), (0, True),
        (65_536, True), (FIRST - 1, False),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            rig.core.reserve_packet_id(reader.handle, packet_id, reserved=is_reserved)
    assert rig.core.sent_count(reader.handle) == 2


def test_ids_that_the_caller_takes_are_passed_over(rig: CoreRig) -> None:
    reader = Reader(rig, window=3)
    publish(rig, b"1", b"2", b"3", b"4")
    assert rig.core.take_packet_id(reader.handle) == FIRST
    assert [each.packet_id for each in reader.deliver(1)[1]] == [FIRST + 1]
    assert rig.core.take_packet_id(reader.handle) == FIRST + 2
    assert [each.packet_id for each in reader.deliver()[1]] == [FIRST + 3, FIRST + 4]
    assert rig.core.sent_count(reader.handle) == 3
    taken = [rig.core.take_packet_id(reader.handle) for _ in range(65_530)]
    assert taken == [*range(FIRST + 5, 65_536)]
    assert rig.core.take_packet_id(reader.handle) == 0
    rig.core.reserve_packet_id(reader.handle, FIRST, reserved=False)
    assert rig.core.take_packet_id(reader.handle) == FIRST


def test_a_puback_is_journalled_and_others_are_left(rig: CoreRig) -> None:
    publish(rig, b"1", b"2", b"3")
    reader = Reader(rig)
    reader.deliver()
    assert reader.answer(FIRST + 1, FIRST + 2)[0] == ScanStatus.NEED_DATA
    assert reader.answer(FIRST + 1) == (ScanStatus.FRAME, 0, 4)
    assert reader.answer(100) == (ScanStatus.FRAME, 0, 4)
    rig.flush()
    acks = [record for record in rig.records() if isinstance(record, AckRecord)]
    assert [(each.queue_id, each.ranges) for each in acks] == [(1, ((2, 2),))]
    assert rig.core.take_puback(reader.handle, FIRST)
    assert not rig.core.take_puback(reader.handle, FIRST)
    assert rig.core.queue_statistics(1).acknowledged == 3


@pytest.mark.parametrize(
    ("rest", "taken"),
    [(b"", True), (b"\0", True), (b"\x10", True), (b"\x10\0", True), (b"\x80", False),
     (b"\x87\0", False), (b"\0\2\x1f\0", False), (b"\0\1", False)],
)  # fmt: skip
def test_reasons_of_mqtt_5(rig: CoreRig, rest: bytes, taken: bool) -> None:
    publish(rig, b"1")
    reader = Reader(rig, 5)
    reader.deliver()
    data = bytes([0x40, 2 + len(rest)]) + FIRST.to_bytes(2, "big") + rest
    rig.memory[: len(data)] = data
    answer = rig.core.scan_mqtt(reader.handle, rig.buffer, 0, len(data))
    expected = (ScanStatus.NEED_DATA, len(data), 0) if taken else (ScanStatus.FRAME, 0, len(data))
    assert answer == expected
    assert rig.core.sent_count(reader.handle) == (not taken)


def test_what_a_closed_consumer_was_sent_goes_back_and_its_ids_wait(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    reader = Reader(rig)
    reader.deliver()
    rig.core.close_consumer(reader.consumer, counted=False)
    assert rig.core.sent(reader.handle) == []
    assert rig.core.sent_count(reader.handle) == 2
    reader.consumer = reader.open(MqttEncoding(1, 10_000))
    assert [each.packet_id - FIRST for each in reader.deliver()[1]] == [2, 3]
    assert reader.answer(FIRST, FIRST + 1)[0] == ScanStatus.NEED_DATA
    assert rig.core.queue_statistics(1).acknowledged == 0
    assert rig.core.sent_count(reader.handle) == 2


def test_encoding_can_be_changed_and_ended(rig: CoreRig) -> None:
    publish(rig, b"1", b"2", b"3")
    reader = Reader(rig)
    assert len(reader.deliver(1)[1]) == 1
    rig.core.encode_mqtt(reader.consumer, MqttEncoding(0, 10_000))
    assert [each.qos for each in reader.deliver(1)[1]] == [0]
    rig.core.encode_mqtt(reader.consumer, None)
    _, _, data = rig.core.deliver(reader.consumer, 9, 999)
    assert [message.body for message in read_stored(data)] == [b"3"]


def test_what_makes_no_sense_is_refused(rig: CoreRig) -> None:
    core, reader = rig.core, Reader(rig)
    stomp = core.open_consumer(rig.connection, 1, AckMode.INDIVIDUAL, 1, b"", STORED_VERSION)
    auto = core.open_consumer(reader.handle, 1, AckMode.AUTO, 1, b"", STORED_VERSION)
    framed = core.open_consumer(reader.handle, 1, AckMode.INDIVIDUAL, 1, b"", 12)
    for consumer in (stomp, auto, framed, 99):
        with pytest.raises(ValueError):
            core.encode_mqtt(consumer, MqttEncoding(1, 100))
    with pytest.raises(ValueError):
        core.encode_mqtt(reader.consumer, MqttEncoding(3, 100))
    for act in (
        lambda: core.set_window(rig.connection, 1),
        lambda: core.sent_count(rig.connection),
        lambda: core.sent(rig.connection),
        lambda: core.take_puback(rig.connection, FIRST),
        lambda: core.reserve_packet_id(rig.connection, FIRST, reserved=True),
        lambda: core.take_packet_id(rig.connection),
    ):
        with pytest.raises(ValueError):
            act()


def test_a_puback_without_room_can_come_again(rig: CoreRig) -> None:
    reader = Reader(rig)
    fill(rig)
    ((packet,),) = (reader.deliver()[1],)
    assert reader.answer(packet.packet_id) == (ScanStatus.BLOCKED, 0, 4)
    with pytest.raises(NoRoom):
        rig.core.take_puback(reader.handle, packet.packet_id)
    assert rig.core.sent_count(reader.handle) == 1
    rig.add_file()
    assert reader.answer(packet.packet_id)[0] == ScanStatus.NEED_DATA
    assert rig.core.queue_statistics(1).delivering == 0

"""Messages to AMQP clients that the core encodes: what is plain, credit, windows, delivery ids."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from vespiary_broker.server.amqp.restoring import payload_of
from vespiary_broker.server.amqp.transfers import HEAD_BYTES_MAX, transfer_frames
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.record import AckRecord
from vespiary_codec.stored_message import STORED_VERSION, StoredMessage, read_stored
from vespiary_codec.wire.amqp import (
    NEED_DATA,
    RECEIVER,
    SENDER,
    Accepted,
    AmqpLimits,
    Disposition,
    Frame,
    FrameDecoder,
    Layer,
    MessageProperties,
    Open,
    Received,
    Rejected,
    Released,
    Section,
    Transfer,
    encode_frame,
    encode_section,
    protocol_header,
)
from vespiary_codec.wire.amqp.native_part import NATIVE
from vespiary_codec.wire.amqp.values import UInt
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom, ScanStatus
from vespiary_native.abc_amqp import AmqpLimits as ScanLimits
from vespiary_native.abc_amqp_sending import AmqpDelivery, AmqpEncoding
from vespiary_testkit.core_rig import CoreRig

LINES = b"destination:q\npersistent:true\n"
NOW_MS = 1000
CHANNEL = 3


def native(
    before: bytes = b"",
    footer: bytes = b"",
    section: int = 0x75,
    code: int = 0xB0,
    version: int = 1,
    flags: int = 0,
) -> bytes:
    return b"\0" + NATIVE.pack(version, section, code, flags, len(before)) + before + footer


class Reader:
    """A connection of AMQP with a link that reads queue 1."""

    def __init__(
        self,
        rig: CoreRig,
        *,
        credit: int = 100,
        room: int = 100,
        handle: int = 0,
        frame_bytes: int = 30_000,
        **named: bool,
    ) -> None:
        self.rig, core = rig, rig.core
        self.connection = core.open_connection()
        core.set_ready_amqp(self.connection, ScanLimits(60_000, 50_000))
        core.set_amqp_room(self.connection, CHANNEL, room)
        self.encoding = AmqpEncoding(CHANNEL, handle, frame_bytes, **named)
        self.consumer = self.open(self.encoding, credit=credit)

    def open(self, encoding: AmqpEncoding, *, queue: int = 1, credit: int = 100) -> int:
        core = self.rig.core
        consumer = core.open_consumer(
            self.connection, queue, AckMode.INDIVIDUAL, 1000, b"", STORED_VERSION
        )
        core.encode_amqp(consumer, encoding)
        core.set_amqp_link_credit(consumer, credit)
        return consumer

    def deliver(self, number: int = 1000) -> tuple[DeliverStatus, list[Transfer]]:
        status, count, data = self.rig.core.deliver(self.consumer, number, 10**6)
        found = transfers_in(data)
        assert len(found) == count
        return status, found

    def stored(self, number: int = 1000) -> tuple[DeliverStatus, list[StoredMessage]]:
        status, count, data = self.rig.core.deliver_stored(self.consumer, number, 10**6)
        found = list(read_stored(data))
        assert len(found) == count
        return status, found

    def sent(self, first: int = 0, last: int = 2**31 - 1) -> list[AmqpDelivery]:
        return self.rig.core.take_amqp_sent(self.connection, CHANNEL, first, last)

    def say(self, data: bytes) -> tuple[int, int, int]:
        self.rig.memory[: len(data)] = data
        return self.rig.core.scan_amqp(self.connection, self.rig.buffer, 0, len(data))

    def settle(self, first: int, last: int | None = None, **named: Any) -> tuple[int, int, int]:
        return self.say(disposition(first, last, **named))


def disposition(first: int, last: int | None = None, **named: Any) -> bytes:
    named = {"role": RECEIVER, "settled": True, "state": Accepted()} | named
    end = None if last is None else UInt(last)
    return encode_frame(Frame(CHANNEL, Disposition(first=UInt(first), last=end, **named)))


def transfers_in(data: bytes) -> list[Transfer]:
    decoder = FrameDecoder(AmqpLimits(frame_bytes=100_000))
    opening = encode_frame(Frame(body=Open(container_id="c")))
    decoder.feed(protocol_header(Layer.AMQP) + opening + data)
    found = []
    while (event := decoder.next_event()) is not NEED_DATA:
        if isinstance(event, Frame) and isinstance(event.body, Transfer):
            assert event.channel == CHANNEL
            found.append(event.body)
    assert not decoder.is_mid_frame
    return found


def publish(
    rig: CoreRig, *bodies: bytes, properties: bytes = LINES + native(), **named: Any
) -> None:
    is_persistent = b"persistent:true" in properties
    for body in bodies:
        rig.core.publish(
            rig.route, properties, body, persistent=is_persistent, **{"protocol": 3} | named
        )
    rig.flush()


def expected(rig: CoreRig, encoding: AmqpEncoding, first_id: int) -> bytes:
    """Return what Python makes of what stands in queue 2, which has what queue 1 has."""
    handle = rig.consume(version=STORED_VERSION, queue=2)
    _, _, data = rig.core.deliver(handle, 1000, 10**7)
    frames: list[bytes] = []
    for number, message in enumerate(read_stored(data)):
        frames += transfer_frames(
            encoding.channel,
            encoding.handle,
            first_id + number,
            message.sequence.to_bytes(8, "big"),
            payload_of(message, 1, NOW_MS),
            encoding.frame_bytes,
            is_settled=encoding.is_settled,
        )
    return b"".join(frames)


def two_queues(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    rig.route = rig.core.open_route([1, 2])


PROPERTIES = encode_section(Section.PROPERTIES, MessageProperties(message_id="a", to="q"))
FOOTER = encode_section(Section.FOOTER, {})
FORMS = {
    "data": (native(), b"body"),
    "long data": (native(PROPERTIES), bytes(3000)),
    "short data": (native(code=0xA0), bytes(255)),
    "a string": (native(PROPERTIES, section=0x77, code=0xA1), b"text"),
    "a long string": (native(section=0x77, code=0xB1), b"text" * 100),
    "null": (native(PROPERTIES, section=0x77, code=0x40), b""),
    "sections": (native(PROPERTIES, section=0, code=0), b"\0\x53\x75\xa0\1a" * 2),
    "a footer": (native(PROPERTIES, FOOTER), b"body"),
    "nothing": (native(code=0), b""),
}


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize(("handle", "skipped"), [(0, 0), (7, 1), (300, 255), (2**32 - 1, 256)])
def test_the_transfer_is_what_python_makes(
    rig: CoreRig, handle: int, skipped: int, is_settled: bool
) -> None:
    two_queues(rig)
    for part, body in FORMS.values():
        publish(rig, body, properties=LINES + part)
        publish(rig, body, properties=b"destination:q\n" + part)
    reader = Reader(rig, handle=handle, is_settled=is_settled)
    for number in range(skipped):
        assert rig.core.next_amqp_delivery(reader.connection, CHANNEL) == number
    status, count, data = rig.core.deliver(reader.consumer, 100, 10**6)
    assert (status, count) == (DeliverStatus.DRAINED, 2 * len(FORMS))
    assert data == expected(rig, reader.encoding, skipped)
    assert {each.settled for each in transfers_in(data)} == {is_settled}


@pytest.mark.parametrize("deliveries", [1, 255, 256])
def test_what_came_back_says_how_often(rig: CoreRig, deliveries: int) -> None:
    publish(rig, b"body")
    reader = Reader(rig, credit=1000, room=1000)
    raw = rig.consume(version=STORED_VERSION, credit=1)
    for _ in range(deliveries):
        rig.core.deliver(raw, 1, 1000)
        rig.core.give_back(raw, 1)
    rig.core.deliver(raw, 1, 1000)
    rig.core.give_back(raw, 1, counted=False)
    _, _, data = rig.core.deliver(reader.consumer, 1, 1000)
    stored = StoredMessage(1, NOW_MS, deliveries, 4, 3, False, LINES + native(), b"body")
    assert data.endswith(payload_of(stored, 1, NOW_MS))
    assert len(data) == int.from_bytes(data[:4], "big")


NOT_PLAIN = {
    "of STOMP": {"protocol": 1},
    "of MQTT": {"protocol": 2},
    "with a priority": {"priority": 5},
    "without a native part": {"properties": LINES},
    "with a short native part": {"properties": LINES + b"\0\1\x75\xb0\0\0\0\0"},
    "with another version": {"properties": LINES + native(version=2)},
    "that was cut": {"properties": LINES + b"\0" + NATIVE.pack(1, 0x75, 0xB0, 0, 5) + b"1234"},
    "of a short form with a long body": {
        "properties": LINES + native(code=0xA0), "body": bytes(256)
    },
    "that expires": {"properties": LINES + b"expires:9999999\n" + native()},
    "that was moved": {"properties": b"_AMQ_ORIG_QUEUE:x\n" + LINES + native()},
    "that was rejected": {"properties": LINES + b"_AMQ_REJECT_CONDITION:x\n" + native()},
    "that has expired": {"properties": LINES + b"_AMQ_ACTUAL_EXPIRY:1\n" + native()},
    "with a time of arrival": {"properties": LINES + b"ingress-timestamp:1\n" + native()},
    "that was scheduled": {"properties": LINES + b"AMQ_SCHEDULED_TIME:1\n" + native()},
    "too large": {"body": bytes(30_000)},
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_plain_is_given_as_it_is_stored(rig: CoreRig, what: str) -> None:
    named: dict[str, Any] = dict(NOT_PLAIN[what])
    body = named.pop("body", b"odd")
    publish(rig, b"1")
    publish(rig, body, body, **named)
    publish(rig, b"4")
    reader = Reader(rig, room=10)
    status, found = reader.deliver()
    assert (status, [each.delivery_id for each in found]) == (DeliverStatus.STORED, [0])
    assert reader.deliver() == (DeliverStatus.STORED, [])
    status, stored = reader.stored()
    assert (status, [each.body for each in stored]) == (DeliverStatus.LIMIT, [body, body])
    assert reader.stored() == (DeliverStatus.LIMIT, [])
    assert rig.core.next_amqp_delivery(reader.connection, CHANNEL) == 1
    assert [each.delivery_id for each in reader.deliver()[1]] == [2]
    assert [each.sequence for each in reader.sent()] == [1, 4]


def test_lines_that_only_look_like_those_of_the_broker_are_plain(rig: CoreRig) -> None:
    lines = b"a:expires:5\nx_AMQ_ORIG_:1\nb:ingress-timestamp:\nnot-expires:1\n"
    two_queues(rig)
    publish(rig, b"1", properties=lines + LINES + native(PROPERTIES))
    publish(rig, b"2", properties=lines + b"xpersistent:true\n" + native(PROPERTIES))
    reader = Reader(rig)
    _, count, data = rig.core.deliver(reader.consumer, 10, 10_000)
    assert count == 2
    assert data == expected(rig, reader.encoding, 0)


def test_the_largest_message_that_fits_a_frame_is_sent_in_one(rig: CoreRig) -> None:
    publish(rig, bytes(500))
    payload = (
        len(payload_of(StoredMessage(1, 0, 0, 4, 3, False, LINES + native(), b""), 1, 0)) + 500
    )
    reader = Reader(rig, frame_bytes=payload + HEAD_BYTES_MAX - 1)
    assert reader.deliver() == (DeliverStatus.STORED, [])
    rig.core.encode_amqp(
        reader.consumer, reader.encoding._replace(frame_bytes=payload + HEAD_BYTES_MAX)
    )
    assert len(reader.deliver()[1]) == 1


def test_a_link_whose_messages_are_all_stored_gives_them_at_once(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    reader = Reader(rig, is_stored=True, credit=1)
    _, _, data = rig.core.deliver(reader.consumer, 10, 1000)
    assert [each.body for each in read_stored(data)] == [b"1"]
    rig.core.set_amqp_link_credit(reader.consumer, 1)
    assert [each.body for each in reader.stored()[1]] == [b"2"]
    assert reader.sent() == []


# --- credit and room ----------------------------------------------------------------------------


def test_credit_is_counted_down_by_all_that_is_given(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    publish(rig, b"3", priority=5)
    publish(rig, b"4", b"5", b"6")
    reader = Reader(rig, credit=5)
    assert [len(reader.deliver(1)[1]), len(reader.deliver(9)[1]), len(reader.stored()[1])] == [
        1, 1, 1,
    ]  # fmt: skip
    assert rig.core.give(reader.consumer, [5], 1000)[1] == 1
    status, found = reader.deliver()
    assert (status, len(found)) == (DeliverStatus.LIMIT, 1)
    assert reader.deliver() == (DeliverStatus.LIMIT, [])
    assert rig.core.give(reader.consumer, [6], 1000)[:2] == (DeliverStatus.LIMIT, 0)
    rig.core.take_ready_queues()
    rig.core.set_amqp_link_credit(reader.consumer, 7)
    assert rig.core.take_ready_queues() == [1]
    rig.core.set_amqp_link_credit(reader.consumer, 7)
    assert rig.core.take_ready_queues() == []
    assert len(reader.deliver()[1]) == 1


def test_room_holds_for_all_links_of_a_session(rig: CoreRig) -> None:
    two_queues(rig)
    publish(rig, b"1", b"2", b"3")
    reader = Reader(rig, room=2)
    other = reader.open(reader.encoding._replace(handle=1), queue=2)
    assert len(reader.deliver(1)[1]) == 1
    assert rig.core.deliver(other, 9, 10_000)[:2] == (DeliverStatus.LIMIT, 1)
    assert reader.deliver() == (DeliverStatus.LIMIT, [])
    rig.core.set_amqp_room(reader.connection, CHANNEL, 1)
    assert [each.delivery_id for each in reader.deliver()[1]] == [2]


def test_what_is_held_is_bounded_as_well(rig: CoreRig) -> None:
    publish(rig, b"1", b"2", b"3")
    reader = Reader(rig)
    rig.core.set_credit(reader.consumer, 2)
    status, found = reader.deliver()
    assert (status, len(found)) == (DeliverStatus.LIMIT, 2)
    rig.core.acknowledge(reader.consumer, 1)
    assert len(reader.deliver()[1]) == 1


def test_a_large_message_takes_credit(rig: CoreRig) -> None:
    reference = encode_large_reference(LargeReference(7, 10_000, 5))
    publish(rig, reference, reference, large=True)
    reader = Reader(rig, credit=1)
    assert reader.deliver() == (DeliverStatus.LARGE, [])
    assert rig.core.take_large(reader.consumer) is not None
    assert rig.core.take_large(reader.consumer) is None
    assert rig.core.give_large(reader.consumer, 2) is None
    rig.core.set_amqp_link_credit(reader.consumer, 1)
    assert rig.core.give_large(reader.consumer, 2) is not None


def test_nothing_is_given_before_the_session_begins_or_after_its_end(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    core = rig.core
    connection = core.open_connection()
    core.set_ready_amqp(connection, ScanLimits(60_000, 50_000))
    consumer = core.open_consumer(connection, 1, AckMode.INDIVIDUAL, 9, b"", STORED_VERSION)
    core.encode_amqp(consumer, AmqpEncoding(CHANNEL, 0, 10_000))
    core.set_amqp_link_credit(consumer, 5)
    assert core.deliver(consumer, 1, 1000) == (DeliverStatus.LIMIT, 0, b"")
    core.set_amqp_room(connection, CHANNEL, 5)
    assert core.deliver(consumer, 1, 1000)[1] == 1
    core.forget_amqp_session(connection, CHANNEL)
    assert core.deliver(consumer, 1, 1000) == (DeliverStatus.LIMIT, 0, b"")
    assert core.take_amqp_sent(connection, CHANNEL, 0, 9) == []
    core.set_amqp_room(connection, CHANNEL, 5)
    assert core.next_amqp_delivery(connection, CHANNEL) == 0


# --- what was sent ------------------------------------------------------------------------------


def test_what_is_settled_as_it_leaves_is_acknowledged(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    reader = Reader(rig, is_settled=True)
    assert len(reader.deliver()[1]) == 2
    rig.flush()
    acks = [record for record in rig.records() if isinstance(record, AckRecord)]
    assert [(each.queue_id, each.ranges) for each in acks] == [(1, ((1, 2),))]
    assert reader.sent() == []
    assert rig.core.next_amqp_delivery(reader.connection, CHANNEL) == 2


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


def test_without_room_for_the_acknowledgement_nothing_is_given_settled(rig: CoreRig) -> None:
    reader = Reader(rig, is_settled=True, credit=1, room=1)
    fill(rig)
    assert reader.deliver() == (DeliverStatus.LIMIT, [])
    left = rig.core.queue_statistics(1)
    assert (left.ready, left.delivering) == (1, 0)
    rig.add_file()
    assert [each.delivery_id for each in reader.deliver()[1]] == [0]


def test_what_was_sent_can_be_taken_over(rig: CoreRig) -> None:
    publish(rig, *map(bytes, range(10)))
    reader = Reader(rig)
    reader.deliver()
    taken = reader.sent(2, 4)
    assert taken == [AmqpDelivery(n, reader.consumer, n + 1) for n in (2, 3, 4)]
    assert reader.sent(3, 3) == []
    assert [each.delivery_id for each in reader.sent(1, 5)] == [1, 5]
    assert reader.sent(7, 6) == []
    assert [each.delivery_id for each in reader.sent(2**32 - 5, 2**31 - 6)] == [0, 6, 7, 8, 9]
    assert rig.core.held_count(reader.consumer) == 10


def test_ids_come_round_and_those_in_use_are_passed_over(rig: CoreRig) -> None:
    publish(rig, b"1")
    reader = Reader(rig)
    reader.deliver()
    for number in range(1, 300):
        assert rig.core.next_amqp_delivery(reader.connection, CHANNEL) == number
    publish(rig, *[b"x"] * 99)
    ids = [each.delivery_id for each in reader.deliver()[1]]
    assert ids == [*range(300, 399)]
    assert [each.delivery_id for each in reader.sent()] == [0, *ids]


def test_what_a_closed_consumer_was_sent_is_forgotten(rig: CoreRig) -> None:
    two_queues(rig)
    publish(rig, *[b"x"] * 40)
    reader = Reader(rig)
    other = reader.open(reader.encoding._replace(handle=1), queue=2)
    for _ in range(20):
        reader.deliver(2)
        rig.core.deliver(other, 2, 10_000)
    rig.core.close_consumer(reader.consumer)
    left = reader.sent()
    assert [each.sequence for each in left] == [*range(1, 41)]
    assert {each.consumer for each in left} == {other}
    assert [each.delivery_id for each in left] == [n for n in range(80) if n % 4 > 1]


def test_what_makes_no_sense_is_refused(rig: CoreRig) -> None:
    core, reader = rig.core, Reader(rig)
    auto = core.open_consumer(reader.connection, 1, AckMode.AUTO, 1, b"", STORED_VERSION)
    framed = core.open_consumer(reader.connection, 1, AckMode.INDIVIDUAL, 1, b"", 12)
    for consumer in (auto, framed, 99):
        with pytest.raises(ValueError):
            core.encode_amqp(consumer, reader.encoding)
    with pytest.raises(ValueError):
        core.encode_amqp(reader.consumer, reader.encoding._replace(channel=CHANNEL + 1))
    for act in (
        lambda: core.set_amqp_link_credit(auto, 1),
        lambda: core.set_amqp_link_credit(99, 1),
        lambda: core.set_amqp_room(99, 1, 1),
        lambda: core.set_amqp_room(reader.connection, 65_536, 1),
        lambda: core.set_amqp_room(rig.connection, 1, 1),
        lambda: core.next_amqp_delivery(rig.connection, 1),
        lambda: core.take_amqp_sent(rig.connection, 1, 0, 1),
        lambda: core.next_amqp_delivery(reader.connection, 99),
        lambda: core.take_amqp_sent(99, 1, 0, 1),
    ):
        with pytest.raises(ValueError):
            act()


# --- what clients say ---------------------------------------------------------------------------


def acknowledged(rig: CoreRig) -> list[tuple[int, int]]:
    rig.flush()
    acks = [record for record in rig.records() if isinstance(record, AckRecord)]
    return [one for each in acks for one in each.ranges]


def test_what_is_accepted_is_acknowledged(rig: CoreRig) -> None:
    publish(rig, *map(bytes, range(10)))
    reader = Reader(rig)
    reader.deliver()
    done = (ScanStatus.NEED_DATA, len(disposition(1)), 0)
    assert reader.settle(1) == done
    assert reader.settle(3, 5)[0] == ScanStatus.NEED_DATA
    assert reader.settle(5, 5)[0] == ScanStatus.FRAME
    assert acknowledged(rig) == [(2, 1), (4, 3)]
    assert [each.delivery_id for each in reader.sent()] == [0, 2, 6, 7, 8, 9]
    assert rig.core.queue_statistics(1).delivering == 6


def test_a_range_with_others_is_done_in_part_and_left(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    reader = Reader(rig)
    reader.deliver(1)
    assert rig.core.next_amqp_delivery(reader.connection, CHANNEL) == 1
    reader.deliver(1)
    frame = disposition(0, 2)
    assert reader.settle(0, 2) == (ScanStatus.FRAME, 0, len(frame))
    assert acknowledged(rig) == [(1, 2)]
    assert reader.sent() == []


@pytest.mark.parametrize("skipped", [0, 1, 7])
def test_a_long_range_is_gone_through_in_the_order_of_its_ids(rig: CoreRig, skipped: int) -> None:
    publish(rig, *[b"x"] * 90)
    reader = Reader(rig)
    for _ in range(skipped):
        rig.core.next_amqp_delivery(reader.connection, CHANNEL)
    reader.deliver()
    reader.sent(skipped + 5, skipped + 5)
    assert reader.settle(2**32 - 9, 2**31 - 10)[0] == ScanStatus.FRAME
    assert acknowledged(rig) == [(1, 5), (7, 84)]


def test_a_range_that_ends_before_it_begins_is_left(rig: CoreRig) -> None:
    publish(rig, b"1", b"2")
    reader = Reader(rig)
    reader.deliver()
    assert reader.settle(1, 0)[0] == ScanStatus.FRAME
    assert reader.settle(0, 2**31)[0] == ScanStatus.FRAME
    assert len(reader.sent()) == 2


OTHERS = {
    "from a sender": {"role": SENDER},
    "not settled": {"settled": False},
    "without an outcome": {"state": None},
    "rejected": {"state": Rejected()},
    "released": {"state": Released()},
    "received": {"state": Received(section_number=UInt(0), section_offset=0)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_dispositions_are_left(rig: CoreRig, what: str) -> None:
    publish(rig, b"1")
    reader = Reader(rig)
    reader.deliver()
    frame = disposition(0, **OTHERS[what])
    assert reader.settle(0, **OTHERS[what]) == (ScanStatus.FRAME, 0, len(frame))
    assert len(reader.sent()) == 1


FIELDS = {
    "as the codec writes it": (b"\x41\x43\x40\x41\0\x53\x24\x45", 5, True),
    "long numbers": (b"\x56\1\x70\0\0\0\0\x70\0\0\0\0\x56\1\0\x53\x24\x45", 5, True),
    "an empty short list": (b"\x41\x43\x43\x41\0\x53\x24\xc0\1\0", 5, True),
    "an empty long list": (b"\x41\x43\x43\x41\0\x53\x24\xd0\0\0\0\4\0\0\0\0", 5, True),
    "batchable": (b"\x41\x43\x43\x41\0\x53\x24\x45\x41", 6, True),
    "a list that is not empty": (b"\x41\x43\x43\x41\0\x53\x24\xc0\2\1\x40", 5, False),
    "a symbol": (b"\x41\x43\x43\x41\0\xa3\x12amqp:accepted:list\x45", 5, False),
    "more fields": (b"\x41\x43\x43\x41\0\x53\x24\x45\x40\x40", 7, False),
    "cut off": (b"\x41\x43\x43\x41\0\x53\x24", 5, False),
    "no first": (b"\x41\x40\x43\x41\0\x53\x24\x45", 5, False),
    "a ubyte": (b"\x41\x50\0\x43\x41\0\x53\x24\x45", 5, False),
    "few fields": (b"\x41\x43\x43\x41", 4, False),
}


@pytest.mark.parametrize("form", [0xC0, 0xD0])
@pytest.mark.parametrize("what", FIELDS)
def test_forms_of_a_disposition(rig: CoreRig, what: str, form: int) -> None:
    publish(rig, b"1")
    reader = Reader(rig)
    reader.deliver()
    fields, count, is_taken = FIELDS[what]
    width = 1 if form == 0xC0 else 4
    sizes = (len(fields) + width).to_bytes(width, "big") + count.to_bytes(width, "big")
    body = b"\0\x53\x15" + bytes([form]) + sizes + fields
    frame = (len(body) + 8).to_bytes(4, "big") + bytes([2, 0, 0, CHANNEL]) + body
    status = reader.say(frame)[0]
    assert status == (ScanStatus.NEED_DATA if is_taken else ScanStatus.FRAME)
    assert len(reader.sent()) == (not is_taken)


def test_on_another_channel_nothing_is_done(rig: CoreRig) -> None:
    publish(rig, b"1")
    reader = Reader(rig)
    reader.deliver()
    frame = bytearray(disposition(0))
    frame[7] += 1
    assert reader.say(bytes(frame))[0] == ScanStatus.FRAME
    assert len(reader.sent()) == 1


def test_what_is_accepted_without_room_can_come_again(rig: CoreRig) -> None:
    reader = Reader(rig)
    fill(rig)
    reader.deliver()
    assert reader.settle(0) == (ScanStatus.BLOCKED, 0, len(disposition(0)))
    rig.add_file()
    assert reader.settle(0)[0] == ScanStatus.NEED_DATA
    assert rig.core.queue_statistics(1).delivering == 0

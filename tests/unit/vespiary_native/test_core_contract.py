"""The contract of the core (`vespiary_native.abc.Core`): blocks, waiting, delivery, queues."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CountRecord,
    SealRecord,
    SequenceRange,
)
from vespiary_codec.stored_message import (
    STORED_VERSION,
    StoredMessage,
    read_stored,
    stored_head,
    with_line,
)
from vespiary_native.abc import AckMode, Core, DeliverStatus, NoRoom, ScanStatus
from vespiary_testkit.core_rig import DESTINATION, KIB, SLAB, CoreRig, ids, send

# --- blocks and files ---------------------------------------------------------------------------


def test_a_message_is_a_record_in_a_chained_block(rig: CoreRig) -> None:
    assert rig.publish(b"one", priority=7, escaped=True) == 1
    rig.flush()
    rig.core.set_time(2000)
    rig.publish(b"two")
    rig.flush()
    (first, records), (second, _) = rig.blocks()
    assert records == [AddRecord(((1, 1),), DESTINATION, b"one", 1000, 1, 7, True)]  # type: ignore[arg-type]
    assert (first.offset, first.length, first.sequence, first.watermark) == (4096, 4096, 1, 0)
    assert (second.offset, second.sequence, second.watermark) == (8192, 2, 1)
    assert (second.previous_crc, second.time_ms) == (first.crc, 2000)


def test_records_fill_a_block_up_to_its_limit(rig: CoreRig) -> None:
    body = bytes(4096 - 64 - 40 - len(DESTINATION))
    for _ in range(5):
        rig.publish(body)
    rig.flush()
    # 4096 bytes less the block's header each, so the fifth still fits and a sixth would not.
    assert [facts.records for facts, _ in rig.blocks()] == [4, 1]
    assert [facts.length for facts, _ in rig.blocks()] == [16 * KIB, 4096]


def test_a_large_record_has_a_block_to_itself(rig: CoreRig) -> None:
    rig.publish(b"small")
    rig.publish(bytes(30 * KIB))
    rig.publish(b"small")
    assert rig.flush() == 1, "neighbours go out in one write"
    assert [facts.records for facts, _ in rig.blocks()] == [1, 1, 1]
    with pytest.raises(ValueError, match="40960"):
        rig.publish(bytes(40 * KIB))


def test_gaps_close_slabs_and_seals_close_files(rig: CoreRig) -> None:
    rig.add_file()
    for _ in range(12):
        rig.publish(bytes(30 * KIB))
        rig.flush()
    for facts, _ in rig.blocks():
        assert facts.offset // SLAB == (facts.offset + facts.length - 1) // SLAB
    gaps = [facts for facts, records in rig.blocks() if not records]
    assert gaps
    assert all((facts.offset + facts.length) % SLAB == 0 for facts in gaps)
    facts, records = rig.blocks()[-1]
    assert facts.is_seal
    assert records == [SealRecord()]
    assert facts.offset + facts.length <= rig.file_bytes
    assert rig.core.current_file() == 2
    assert rig.blocks(2)[0][0].previous_crc == facts.crc
    assert rig.blocks(2)[0][0].offset == 4096


def test_writes_gather_neighbours_up_to_the_limit(make: Callable[..., CoreRig]) -> None:
    rig = make(
        slab_bytes=4096 * KIB, block_bytes=256 * KIB, file_bytes=8192 * KIB,
        record_bytes_max=512 * KIB,
    ).begin()  # fmt: skip
    for _ in range(2600):
        rig.publish(bytes(1000))
    rig.write()
    rig.write()
    assert [write.length <= 1024 * KIB for write in rig.writes] == [True, True]
    assert rig.writes[0].length > 512 * KIB
    assert rig.writes[1].offset == rig.writes[0].offset + rig.writes[0].length
    assert rig.writes[0].address % 4096 == 0


def test_add_leaves_room_to_acknowledgements_in_the_last_file(make: Callable[..., CoreRig]) -> None:
    rig = make(files=1, slabs_max=64).begin()
    consumer = rig.consume()
    # A page for each: from 4096 up to the 32 KiB in front of the last 4096 bytes are 54 of them.
    for _ in range(54):
        rig.publish(bytes(2000))
        rig.flush()
    with pytest.raises(NoRoom):
        rig.publish(bytes(2000))
    assert rig.scan(send(body=b"x" * 2000))[0] == ScanStatus.BLOCKED
    assert not rig.core.has_unwritten()
    rig.deliver(consumer)
    for sequence in range(1, 6):
        assert rig.core.acknowledge(consumer, sequence) == 1
        rig.flush()
    end = rig.writes[-1].offset + rig.writes[-1].length
    assert 256 * KIB - 4096 - 32 * KIB < end <= 256 * KIB - 4096
    rig.add_file()
    rig.publish(bytes(2000))


def test_an_empty_block_carries_the_watermark(rig: CoreRig) -> None:
    rig.publish()
    rig.flush()
    assert not rig.core.has_unwritten()
    rig.core.stage_empty_block()
    assert rig.core.has_unwritten()
    assert not rig.core.is_urgent()
    assert rig.flush() == 1
    facts, records = rig.blocks()[-1]
    assert (facts.watermark, records, facts.length) == (1, [], 4096)


def test_an_empty_block_without_room_is_none(make: Callable[..., CoreRig]) -> None:
    rig = make(files=0).begin()
    rig.core.stage_empty_block()
    assert rig.write() is None
    assert not rig.core.has_unwritten()


def test_general_records_and_their_urgency(rig: CoreRig) -> None:
    assert rig.core.append_record(5, b"x" * 16, urgent=False) == 1
    assert not rig.core.is_urgent()
    assert rig.core.append_record(32, b"y" * 16, flags=3) == 1
    assert rig.core.is_urgent()
    rig.write()
    assert not rig.core.is_urgent(), "it is on its way"
    data = bytes(rig.files[1][4096 + 64 : 4096 + 64 + 48])
    assert data == (
        struct.pack("<IBBH", 24, 5, 0, 0)
        + b"x" * 16
        + struct.pack("<IBBH", 24, 32, 3, 0)
        + b"y" * 16
    )


def test_write_done_takes_only_what_was_handed_out(rig: CoreRig) -> None:
    rig.publish()
    with pytest.raises(ValueError):
        rig.core.write_done(1)
    rig.flush()
    with pytest.raises(ValueError):
        rig.core.write_done(2)


# --- what waits for what ------------------------------------------------------------------------


def test_nothing_is_delivered_or_confirmed_before_it_is_durable(rig: CoreRig) -> None:
    consumer = rig.consume()
    rig.scan(send(b"persistent:true\nreceipt:r1\n"))
    request = rig.write()
    assert rig.deliver(consumer) == []
    assert rig.core.take_receipts() == []
    assert rig.core.take_ready_queues() == []
    assert request is not None
    rig.core.write_done(request.sequence)
    assert rig.core.take_receipts() == [(rig.connection, b"RECEIPT\nreceipt-id:r1\n\n\0")]
    assert rig.core.take_ready_queues() == [1]
    assert ids(rig.deliver(consumer)) == [1]


def test_a_volatile_message_never_overtakes(rig: CoreRig) -> None:
    consumer = rig.consume()
    rig.publish(b"v1", persistent=False)
    assert ids(rig.deliver(consumer)) == [1], "at once, with nothing staged before it"
    assert not rig.core.has_unwritten()
    rig.publish(b"p2")
    rig.publish(b"v3", persistent=False)
    assert rig.deliver(consumer) == []
    rig.flush()
    assert ids(rig.deliver(consumer)) == [2, 3]
    assert [record.body for record in rig.records()] == [b"p2"]  # type: ignore[union-attr]


def test_receipts_of_a_connection_keep_their_order(rig: CoreRig) -> None:
    rig.scan(send(b"receipt:volatile-first\n"))
    assert rig.core.take_receipts()[0][1].count(b"RECEIPT") == 1, "nothing to wait for"
    rig.scan(send(b"persistent:true\nreceipt:a\n"))
    rig.scan(send(b"receipt:b\n"))
    other = rig.connect()
    rig.scan(send(b"receipt:other\n"), other)
    assert [connection for connection, _ in rig.core.take_receipts()] == [other]
    rig.core.receipt(other, b"slow")
    assert rig.core.take_receipts() == []
    rig.flush()
    sent = dict(rig.core.take_receipts())
    assert sent[rig.connection].index(b":a") < sent[rig.connection].index(b":b")
    assert sent[other] == b"slow"
    rig.core.receipt(other, b"idle")
    assert rig.core.take_receipts() == [(other, b"idle")]


def test_a_closed_connection_gets_nothing(rig: CoreRig) -> None:
    rig.scan(send(b"persistent:true\nreceipt:a\n"))
    rig.core.close_connection(rig.connection)
    rig.flush()
    assert rig.core.take_receipts() == []


def test_urgency(rig: CoreRig) -> None:
    consumer = rig.consume()
    assert not rig.core.is_urgent()
    rig.publish()
    assert rig.core.is_urgent()
    rig.flush()
    rig.deliver(consumer)
    rig.scan(b"ACK\nid:1-1\n\n\0")
    assert rig.core.has_unwritten()
    assert not rig.core.is_urgent(), "acknowledgements alone do not hurry"
    rig.publish(b"x", persistent=False)
    rig.flush()
    rig.deliver(consumer)
    rig.publish()
    rig.flush()
    rig.deliver(consumer)
    rig.scan(b"ACK\nid:1-3\nreceipt:r\n\n\0")
    assert rig.core.is_urgent()
    assert rig.core.take_receipts() == []
    rig.flush()
    assert rig.core.take_receipts() == [(rig.connection, b"RECEIPT\nreceipt-id:r\n\n\0")]


# --- delivery and acknowledgement ---------------------------------------------------------------


def test_message_frames(rig: CoreRig) -> None:
    rig.publish(b"a\0b")
    rig.flush()
    consumer = rig.consume()
    _, _, frame = rig.core.deliver(consumer, 1, 1)
    assert frame == (
        b"MESSAGE\nsubscription:s\nmessage-id:1-1\nack:1-1\ncontent-length:3\n"
        + DESTINATION
        + b"\na\0b\0"
    )
    rig.core.give_back(consumer, 1)
    old = rig.consume(subscription=b"o", version=11)
    _, _, frame = rig.core.deliver(old, 1, 1)
    assert frame == (
        b"MESSAGE\nsubscription:o\nmessage-id:1-1\nredelivered:true\ndelivery-count:1\n"
        b"content-length:3\n" + DESTINATION + b"\na\0b\0"
    )


@pytest.mark.parametrize(
    ("version", "properties"),
    [
        (12, b"a\\cb:c\\cd\\n\\r\\\\\n"),
        (11, b"a\\cb:c\\cd\\n\r\\\\\n"),
        (10, b"a\\cb:c:d  \\\n"),
    ],
)
def test_escapes_are_those_of_the_consumer(rig: CoreRig, version: int, properties: bytes) -> None:
    rig.core.publish(rig.route, b"a\\cb:c\\cd\\n\\r\\\\\n", b"", persistent=True, escaped=True)
    rig.flush()
    (frame,) = rig.deliver(rig.consume(version=version))
    assert frame.endswith(b"content-length:0\n" + properties + b"\n")


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_backslash_at_the_end_of_a_line_joins_no_lines(rig: CoreRig, version: int) -> None:
    rig.core.publish(rig.route, b"a:b\\\nc:d\n", b"", persistent=True, escaped=True)
    rig.flush()
    (frame,) = rig.deliver(rig.consume(version=version))
    assert frame.endswith(b"content-length:0\na:b\\\nc:d\n\n")


def test_delivery_stops_where_it_is_told(rig: CoreRig) -> None:
    for _ in range(10):
        rig.publish(bytes(1000))
    rig.flush()
    consumer = rig.consume(credit=6)
    assert rig.core.deliver(consumer, 2, 10**6)[:2] == (DeliverStatus.LIMIT, 2)
    assert rig.core.deliver(consumer, 10, 2500)[:2] == (DeliverStatus.LIMIT, 2)
    assert rig.core.deliver(consumer, 10, 1)[:2] == (DeliverStatus.LIMIT, 1), "one at least"
    assert rig.core.deliver(consumer, 10, 10**6)[:2] == (DeliverStatus.LIMIT, 1), "credit"
    assert rig.core.deliver(consumer, 10, 10**6)[:2] == (DeliverStatus.LIMIT, 0)
    rig.core.take_ready_queues()
    rig.core.set_credit(consumer, 100)
    assert rig.core.take_ready_queues() == [1]
    assert rig.core.deliver(consumer, 10, 10**6)[:2] == (DeliverStatus.DRAINED, 4)
    statistics = rig.core.queue_statistics(1)
    assert (statistics.delivering, statistics.ready, statistics.head) == (10, 0, 1)
    assert statistics.live_bytes == 10 * (1000 + len(DESTINATION))


def test_returned_messages_come_first_lowest_first(rig: CoreRig) -> None:
    for _ in range(6):
        rig.publish()
    rig.flush()
    first, second = rig.consume(), rig.consume()
    assert ids(rig.deliver(first, 4)) == [1, 2, 3, 4]
    assert rig.core.give_back(first, 3) == 1
    assert rig.core.give_back(first, 3) == 0, "it does not hold it any more"
    assert rig.core.close_consumer(first) == 3
    frames = rig.deliver(second)
    assert ids(frames) == [1, 2, 3, 4, 5, 6]
    assert [b"delivery-count:1\n" in frame for frame in frames] == [True] * 4 + [False] * 2
    rig.flush()
    counts = [record for record in rig.records() if isinstance(record, CountRecord)]
    assert counts == [CountRecord(1, 1, n) for n in (3, 1, 2, 4)]
    assert rig.core.queue_statistics(1).redelivered == 4


def test_acknowledgements_merge_into_ranges(rig: CoreRig) -> None:
    for _ in range(8):
        rig.publish()
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer)
    for sequence in (1, 2, 3, 5, 6, 8):
        assert rig.core.acknowledge(consumer, sequence) == 1
    assert rig.core.acknowledge(consumer, 1) == 0
    rig.flush()
    for sequence in (4, 7):
        rig.core.acknowledge(consumer, sequence)
    rig.flush()
    acks = [record for record in rig.records() if isinstance(record, AckRecord)]
    assert acks == [
        AckRecord(1, (SequenceRange(1, 3), SequenceRange(5, 2), SequenceRange(8, 1))),
        AckRecord(1, (SequenceRange(4, 1), SequenceRange(7, 1))),
    ]
    statistics = rig.core.queue_statistics(1)
    assert (statistics.head, statistics.tail, statistics.acknowledged) == (9, 9, 8)
    assert rig.core.live_places(1) == 0


def test_an_ack_record_is_extended_though_another_stands_behind_it(rig: CoreRig) -> None:
    for _ in range(4):
        rig.publish()
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer)
    rig.core.acknowledge(consumer, 1)
    rig.publish(b"between")
    rig.core.acknowledge(consumer, 2)
    rig.core.acknowledge(consumer, 4)
    rig.flush()
    assert [record for record in rig.records() if isinstance(record, AckRecord)] == [
        AckRecord(1, (SequenceRange(1, 2),)),
        AckRecord(1, (SequenceRange(4, 1),)),
    ]


def test_client_mode_is_cumulative(rig: CoreRig) -> None:
    for _ in range(6):
        rig.publish()
    rig.flush()
    consumer, other = rig.consume(AckMode.CLIENT), rig.consume()
    assert ids(rig.deliver(consumer, 2)) == [1, 2]
    assert ids(rig.deliver(other, 1)) == [3]
    assert ids(rig.deliver(consumer, 2)) == [4, 5]
    assert rig.core.holder(rig.connection, 1, 3) == other
    assert rig.core.holder(rig.connection, 1, 6) == -1
    assert rig.core.acknowledge(consumer, 4) == 3
    assert rig.core.acknowledge(consumer, 2) == 0
    assert rig.core.give_back(consumer, 5) == 1
    rig.flush()
    acks = [record for record in rig.records() if isinstance(record, AckRecord)]
    assert acks == [AckRecord(1, (SequenceRange(1, 2), SequenceRange(4, 1)))]


def given_out_of_order(rig: CoreRig) -> int:
    """Return a cumulative consumer that was given 5, 6, then 3 and 4, which came back, and 7."""
    for _ in range(7):
        rig.publish()
    rig.flush()
    other = rig.consume()
    assert ids(rig.deliver(other, 4)) == [1, 2, 3, 4]
    consumer = rig.consume(AckMode.CLIENT)
    assert ids(rig.deliver(consumer, 2)) == [5, 6]
    rig.core.acknowledge(other, 1)
    rig.core.acknowledge(other, 2)
    rig.core.close_consumer(other)
    assert ids(rig.deliver(consumer)) == [3, 4, 7]
    return consumer


def acknowledged(rig: CoreRig) -> list[tuple[SequenceRange, ...]]:
    rig.flush()
    return [record.ranges for record in rig.records() if isinstance(record, AckRecord)]


def test_cumulative_means_the_order_of_delivery(rig: CoreRig) -> None:
    consumer = given_out_of_order(rig)
    rig.flush()
    assert rig.core.acknowledge(consumer, 6) == 2, "3 and 4 were given behind it"
    assert [rig.core.holder(rig.connection, 1, n) for n in range(3, 8)] == [
        consumer, consumer, -1, -1, consumer,
    ]  # fmt: skip
    assert rig.core.acknowledge(consumer, 3) == 1
    assert rig.core.acknowledge(consumer, 7) == 2
    assert acknowledged(rig)[-1] == (SequenceRange(5, 2), SequenceRange(3, 2), SequenceRange(7, 1))
    assert rig.core.queue_statistics(1).head == 8
    rig.publish()
    rig.publish()
    rig.flush()
    assert ids(rig.deliver(consumer)) == [8, 9]
    assert rig.core.acknowledge(consumer, 9) == 2, "in order again"


def test_cumulative_acks_on_the_fast_path_keep_the_order_of_delivery(rig: CoreRig) -> None:
    consumer = given_out_of_order(rig)
    frame = b"ACK\nid:1-4\n\n\0"
    assert rig.scan(frame) == (ScanStatus.NEED_DATA, len(frame), 0)
    assert rig.core.queue_statistics(1).delivering == 1
    assert rig.core.holder(rig.connection, 1, 7) == consumer


def test_what_is_given_back_goes_by_the_order_of_delivery_too(rig: CoreRig) -> None:
    consumer = given_out_of_order(rig)
    assert rig.core.give_back(consumer, 3) == 3
    frames = rig.deliver(consumer)
    assert ids(frames) == [3, 5, 6]
    assert [b"delivery-count:%d\n" % n in f for f, n in zip(frames, (2, 1, 1), strict=True)] == [
        True
    ] * 3
    assert rig.core.acknowledge(consumer, 5) == 4, "4 and 7 were given before 3 and 5"
    assert rig.core.close_consumer(consumer) == 1
    assert ids(rig.deliver(rig.consume())) == [6]


def test_a_cumulative_ack_without_room_goes_on_where_it_stopped(
    make: Callable[..., CoreRig],
) -> None:
    def filled(records: int) -> tuple[CoreRig, int, int]:
        rig = make(file_bytes=16 * KIB, files=1, block_bytes=4 * KIB).begin()
        consumer = given_out_of_order(rig)
        for number in range(records):
            try:
                rig.core.append_record(40, b"")
            except NoRoom:
                return rig, consumer, number
        return rig, consumer, records

    _, _, most = filled(10_000)
    rig, consumer, _ = filled(most - 4)  # 32 bytes are left: one record with one range
    with pytest.raises(NoRoom):
        rig.core.acknowledge(consumer, 7)
    assert [rig.core.holder(rig.connection, 1, n) for n in range(3, 8)] == [
        consumer, consumer, -1, -1, consumer,
    ]  # fmt: skip
    rig.add_file()
    assert rig.core.acknowledge(consumer, 3) == 1
    assert rig.core.acknowledge(consumer, 7) == 2


def test_auto_mode_acknowledges_at_once(rig: CoreRig) -> None:
    for _ in range(3):
        rig.publish()
    rig.flush()
    consumer = rig.consume(AckMode.AUTO, credit=1)
    frames = rig.deliver(consumer)
    assert ids(frames) == [1, 2, 3], "credit does not bind it"
    assert b"ack:" not in frames[0]
    assert rig.core.live_places(1) == 0
    assert rig.core.queue_statistics(1).delivering == 0
    rig.flush()
    assert rig.records()[-1] == AckRecord(1, (SequenceRange(1, 3),))


def test_head_is_the_oldest_unacknowledged(rig: CoreRig) -> None:
    for _ in range(4):
        rig.publish()
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer, 3)
    rig.core.acknowledge(consumer, 2)
    assert rig.core.queue_statistics(1).head == 1
    rig.core.acknowledge(consumer, 1)
    assert rig.core.queue_statistics(1).head == 3
    assert rig.core.queue_states() == struct.pack("<IIQQ", 1, 0, 3, 5)


def test_purge_spares_what_is_given_out(rig: CoreRig) -> None:
    for _ in range(5):
        rig.publish()
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer, 2)
    rig.core.give_back(consumer, 1)
    rig.publish(b"staged")
    assert rig.core.purge_queue(1) == 4
    statistics = rig.core.queue_statistics(1)
    assert (statistics.ready, statistics.delivering) == (0, 1)
    rig.flush()
    assert ids(rig.deliver(consumer)) == [6]


# --- queues and routes --------------------------------------------------------------------------


def test_one_record_for_several_queues(rig: CoreRig) -> None:
    rig.core.open_queue(2, 50)
    rig.core.open_queue(3, durable=False)
    rig.core.set_route(rig.route, [1, 2, 3])
    assert rig.publish() == 3
    rig.flush()
    (record,) = rig.records()
    assert isinstance(record, AddRecord)
    assert record.places == ((1, 1), (2, 50), (3, 1))
    assert rig.core.live_places(1) == 3
    rig.core.drop_queue(2)
    assert rig.core.live_places(1) == 2
    assert rig.publish() == 2, "a dropped queue leaves its routes"
    consumer = rig.core.open_consumer(rig.connection, 3, AckMode.AUTO, 1, b"", 12)
    rig.flush()
    rig.core.deliver(consumer, 10, 10**6)
    assert not rig.core.has_unwritten(), "a queue that is not durable journals nothing"


def test_an_empty_route_discards(rig: CoreRig) -> None:
    rig.core.set_route(rig.route, [])
    assert rig.publish() == 0
    assert rig.scan(send(b"persistent:true\nreceipt:r\n"))[0] == ScanStatus.NEED_DATA
    assert rig.core.take_receipts()
    assert not rig.core.has_unwritten()


def test_a_closed_route_is_asked_for_again(rig: CoreRig) -> None:
    assert rig.scan(send())[0] == ScanStatus.NEED_DATA
    rig.core.close_route(rig.route)
    again = rig.core.open_route([1])
    assert rig.scan(send())[0] == ScanStatus.FRAME, "though the handle is used again"
    rig.core.teach(rig.connection, b"/queue/a", again)
    assert rig.scan(send())[0] == ScanStatus.NEED_DATA


@pytest.mark.parametrize(
    "call",
    [
        lambda core: core.open_queue(1),
        lambda core: core.open_queue(2**31),
        lambda core: core.open_queue(9, 0),
        lambda core: core.drop_queue(9),
        lambda core: core.queue_statistics(9),
        lambda core: core.open_route([9]),
        lambda core: core.add_file(1, 0, 256 * KIB),
        lambda core: core.add_file(9, 0, 5000),
        lambda core: core.live_places(77),
        lambda core: core.forget_file(1),
        lambda core: core.commit(3),
        lambda core: core.begin(0, 1, 1),
        lambda core: core.deliver(5, 1, 1),
        lambda core: core.acknowledge(5, 1),
        lambda core: core.open_consumer(0, 1, AckMode.AUTO, 0, b"", 12),
        lambda core: core.scan_stomp(0, 7, 0, 1),
        lambda core: core.publish(9, b"", b"", persistent=True),
        lambda core: core.publish(0, b"", b"", persistent=True, transaction=4),
        lambda core: core.teach(0, b"", 0),
    ],
)
def test_wrong_arguments_are_refused(rig: CoreRig, call: Callable[[Core], object]) -> None:
    with pytest.raises(ValueError):
        call(rig.core)


# --- messages for those who encode elsewhere -----------------------------------------------------


def test_a_consumer_may_be_given_messages_as_they_are_stored(rig: CoreRig) -> None:
    consumer = rig.core.open_consumer(
        rig.connection, 1, AckMode.INDIVIDUAL, 10, b"", STORED_VERSION
    )
    rig.core.publish(rig.route, b"a:b\\n\n", b"one", persistent=True, protocol=2, priority=7,
                     escaped=True)  # fmt: skip
    rig.core.publish(rig.route, b"", b"", persistent=True, protocol=3)
    rig.flush()
    status, count, data = rig.core.deliver(consumer, 10, 10**6)
    assert (status, count) == (DeliverStatus.DRAINED, 2)
    first, second = read_stored(data)
    assert first == StoredMessage(1, 1000, 0, 7, 2, True, b"a:b\\n\n", b"one")
    assert second == StoredMessage(2, 1000, 0, 4, 3, False, b"", b"")
    assert data.startswith(stored_head(first) + b"one")
    rig.core.give_back(consumer, 1)
    (again,) = read_stored(rig.core.deliver(consumer, 10, 10**6)[2])
    assert (again.sequence, again.deliveries) == (1, 1)
    assert [each.properties for each in read_stored(with_line(data, b"x:y\n"))] == [
        b"x:y\na:b\\n\n", b"",
    ]  # fmt: skip

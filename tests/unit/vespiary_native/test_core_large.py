"""Large messages in the core: given one by one, and given up when their end is durable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.large_reference import (
    LargeReference,
    decode_large_reference,
    encode_large_reference,
)
from vespiary_codec.journal.record import AddRecord, Place, encode_record
from vespiary_native.abc import AckMode, DeliverStatus, LargeBody, NoRoom, ScanStatus
from vespiary_testkit.core_rig import CoreRig, ids, send

GIB = 1 << 30


def reference(large_id: int = 7) -> bytes:
    return encode_large_reference(LargeReference(large_id, GIB, 99))


def test_a_reference_is_24_bytes() -> None:
    data = reference(2**64 - 1)
    assert data == b"\xff" * 8 + GIB.to_bytes(8, "little") + (99).to_bytes(4, "little") + bytes(4)
    assert decode_large_reference(data) == LargeReference(2**64 - 1, GIB, 99)
    with pytest.raises(JournalFormatError, match=r"wrong length at offset 30: found 25"):
        decode_large_reference(data + b"x", offset=30)
    with pytest.raises(ValueError, match="out of range"):
        encode_large_reference(LargeReference(-1, 0, 0))


def test_its_record_has_flag_4_and_the_reference_as_body(rig: CoreRig) -> None:
    assert rig.publish(reference(), large=True) == 1
    with pytest.raises(ValueError, match=r".+"):
        rig.publish(b"not a reference", large=True)
    rig.flush()
    (add,) = rig.records()
    assert isinstance(add, AddRecord)
    assert add.is_large
    assert add.body == reference()


@pytest.mark.parametrize("mode", AckMode)
def test_deliver_stops_before_it_and_take_large_gives_it(rig: CoreRig, mode: AckMode) -> None:
    rig.publish(b"first")
    rig.publish(reference(), large=True)
    rig.publish(b"third")
    rig.flush()
    consumer = rig.consume(mode)
    assert rig.core.next_large(consumer) is None
    assert rig.core.take_large(consumer) is None, "the next one is not large"
    status, count, _ = rig.core.deliver(consumer, 100, 10**6)
    assert (status, count) == (DeliverStatus.LARGE, 1)
    assert rig.core.deliver(consumer, 100, 10**6) == (DeliverStatus.LARGE, 0, b"")
    body = LargeBody(7, GIB, 99)
    assert rig.core.next_large(consumer) == body
    given = rig.core.take_large(consumer)
    assert given is not None
    assert given.body == body
    assert given.sequence == 2
    ack = b"\nack:1-2" if mode is not AckMode.AUTO else b""
    assert given.head == (
        b"MESSAGE\nsubscription:s\nmessage-id:1-2%b\ncontent-length:%d\ndestination:/queue/a\n\n"
        % (ack, GIB)
    )
    assert rig.core.queue_statistics(1).delivering == (1 if mode is AckMode.AUTO else 2)
    assert ids(rig.deliver(consumer)) == [3]
    assert rig.core.acknowledge(consumer, 2) == (2 if mode is AckMode.CLIENT else 1)


def test_credit_holds_it_back_and_it_comes_again_counted(rig: CoreRig) -> None:
    rig.publish(b"first")
    rig.publish(reference(), large=True)
    rig.flush()
    consumer = rig.consume(credit=1)
    rig.deliver(consumer)
    assert rig.core.deliver(consumer, 100, 10**6)[0] == DeliverStatus.LIMIT
    assert rig.core.take_large(consumer) is None
    rig.core.set_credit(consumer, 2)
    assert rig.core.take_large(consumer) is not None
    assert rig.core.give_back(consumer, 2) == 1
    again = rig.core.take_large(consumer)
    assert again is not None
    assert b"\nredelivered:true\ndelivery-count:1\n" in again.head


def test_it_is_given_up_when_the_last_acknowledgement_is_durable(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    rig.core.set_route(rig.route, [1, 2])
    rig.publish(reference(), large=True)
    rig.flush()
    first = rig.consume()
    second = rig.core.open_consumer(rig.connection, 2, AckMode.INDIVIDUAL, 9, b"s", 12)
    for consumer in (first, second):
        assert rig.core.take_large(consumer) is not None
    rig.core.acknowledge(first, 1)
    rig.flush()
    assert rig.core.take_done_large() == [], "the other queue needs it"
    assert rig.core.live_large() == [LargeBody(7, GIB, 99)]
    rig.core.acknowledge(second, 1)
    assert rig.core.live_large() == []
    assert rig.core.take_done_large() == [], "nothing says so on the disk yet"
    request = rig.write()
    assert request is not None
    assert rig.core.take_done_large() == []
    rig.core.write_done(request.sequence)
    assert rig.core.take_done_large() == [7]
    assert rig.core.take_done_large() == []


def test_in_a_transaction_it_waits_for_the_commit(rig: CoreRig) -> None:
    rig.publish(reference(), large=True)
    rig.flush()
    consumer = rig.consume()
    assert rig.core.take_large(consumer) is not None
    rig.core.begin(5, 50_000, 5)
    rig.core.acknowledge(consumer, 1, transaction=5)
    assert rig.core.take_done_large() == []
    for _ in range(3):
        rig.publish(bytes(15_000), transaction=5)
    rig.core.commit(5)
    assert rig.core.take_done_large() == []
    request = rig.write()
    assert request is not None
    rig.core.write_done(request.sequence - 1)
    assert rig.core.take_done_large() == [], "the acknowledgement is durable, its COMMIT is not"
    rig.core.write_done(request.sequence)
    assert rig.core.take_done_large() == [7]


@pytest.mark.parametrize("act", ["purge", "drop"])
def test_purge_and_drop_give_it_up(rig: CoreRig, act: str) -> None:
    rig.publish(reference(), large=True)
    rig.publish(reference(8), large=True, persistent=False)
    rig.flush()
    if act == "purge":
        assert rig.core.purge_queue(1) == 2
    else:
        rig.core.drop_queue(1)
    rig.flush()
    assert sorted(rig.core.take_done_large()) == [7, 8]


def test_one_that_need_not_survive_waits_for_nothing(rig: CoreRig) -> None:
    rig.publish(reference(), large=True, persistent=False)
    consumer = rig.consume(AckMode.AUTO)
    assert rig.core.take_large(consumer) is not None
    assert rig.core.take_done_large() == []
    rig.core.acknowledge(consumer, 1)
    assert rig.core.take_done_large() == [7]
    assert rig.flush() == 0


def test_what_is_live_is_known_after_a_restart(rig: CoreRig) -> None:
    for number in range(1, 5):
        rig.publish(reference(number), large=True)
    rig.core.begin(3, 500, 3)
    rig.publish(reference(5), large=True, transaction=3)
    rig.core.commit(3)
    rig.flush()
    consumer = rig.consume()
    assert rig.core.take_large(consumer) is not None
    rig.core.acknowledge(consumer, 1)
    rig.publish(reference(6), large=True)
    rig.flush()
    again = rig.restored()
    live = again.core.live_large()
    assert sorted(body.large_id for body in live) == [2, 3, 4, 5, 6]
    assert again.core.take_done_large() == [], "the sweep of the folder finds those"
    again.go_on()
    consumer = again.consume()
    again.load(consumer)
    given = again.core.take_large(consumer)
    assert given is not None
    assert given.body == LargeBody(2, GIB, 99)
    again.core.acknowledge(consumer, 2)
    again.flush()
    assert again.core.take_done_large() == [2]


def test_without_a_commit_it_is_not_live(rig: CoreRig) -> None:
    member = AddRecord((Place(1, 1),), b"", reference(), 0, transaction=3, is_large=True)
    rig.core.append_record(1, encode_record(member)[8:], flags=4 | 1)
    rig.flush()
    assert rig.restored().core.live_large() == []


def test_a_reference_of_another_length_is_malformed(rig: CoreRig) -> None:
    bad = AddRecord((Place(1, 1),), b"", reference() + b"x", 0, is_large=True)
    rig.core.append_record(1, encode_record(bad)[8:], flags=4)
    rig.flush()
    with pytest.raises(ValueError, match=r".+"):
        rig.restored()


def test_after_an_odd_frame_another_one_is_read_from_its_start(rig: CoreRig) -> None:
    head = b"SEND\ndestination:/queue/a\n\n"
    assert rig.scan(head + b"x" * 4000)[0] == ScanStatus.NEED_DATA
    assert rig.scan(head + b"x" * 6000)[0] == ScanStatus.ODD
    assert rig.scan(send(body=b"next"))[0] == ScanStatus.NEED_DATA
    rig.flush()
    assert len(rig.deliver(rig.consume())) == 1


def test_no_room_changes_nothing(make: Callable[..., CoreRig]) -> None:
    rig = make(files=0).begin()
    with pytest.raises(NoRoom):
        rig.publish(reference(), large=True)
    assert rig.core.live_large() == []

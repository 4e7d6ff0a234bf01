"""What the core's scanner takes, what it leaves to Python, and what it calls odd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.record import (
    AddRecord,
)
from vespiary_native.abc import DeliverStatus, ScanStatus
from vespiary_testkit.core_rig import DESTINATION, CoreRig, send

# --- the scanner --------------------------------------------------------------------------------


def test_plain_sends_are_stored_without_the_headers_of_the_transfer(rig: CoreRig) -> None:
    frame = (
        b"SEND\nx:1\ncontent-length:5\n"
        + DESTINATION
        + b"receipt:r\npersistent:true\ny:2\n\nhe\0lo\0"
    )
    data = b"\n\r\n" + frame + b"\n" + frame
    assert rig.scan(data) == (ScanStatus.NEED_DATA, len(data), 0)
    rig.flush()
    first, second = rig.records()
    assert isinstance(first, AddRecord)
    assert first.properties == b"x:1\n" + DESTINATION + b"persistent:true\ny:2\n"
    assert (first.body, first.priority, first.has_escapes) == (b"he\0lo", 4, False)
    assert isinstance(second, AddRecord)
    assert second.places == ((1, 2),)


@pytest.mark.parametrize(
    ("headers", "is_persistent"),
    [
        (b"persistent:true\n", True),
        (b"persistent:false\n", False),
        (b"persistent:TRUE\n", False),
        (b"", False),
        (b"persistent:true\npersistent:false\n", True),
        (b"persistent:false\npersistent:true\n", False),
    ],
)
def test_persistence(rig: CoreRig, headers: bytes, is_persistent: bool) -> None:
    assert rig.scan(send(headers))[0] == ScanStatus.NEED_DATA
    assert rig.core.has_unwritten() is is_persistent


LEFT_TO_PYTHON = {
    "another command": b"SUBSCRIBE\nid:1\n\n\0",
    "an unknown destination": b"SEND\ndestination:/queue/b\n\n\0",
    "no destination": b"SEND\nx:1\n\n\0",
    "an upper case destination": b"SEND\nDestination:/queue/a\n\n\0",
    "an untaught type": send(b"destination-type:ANYCAST\n"),
    "a transaction": send(b"transaction:t\n"),
    "a priority of two digits": send(b"priority:10\n"),
    "a priority below zero": send(b"priority:-1\n"),
    "a priority with a blank": send(b"priority: 4\n"),
    "a priority that is no digit": send(b"priority:a\n"),
    "an empty priority": send(b"priority:\n"),
    "a wrong priority in front of a right one": send(b"priority:x\npriority:1\n"),
    "a group with a colon": send(b"JMSXGroupID:a:b\n"),
    "a priority in a transaction": send(b"priority:1\ntransaction:t\n"),
    "a duplicate id": send(b"_AMQ_DUPL_ID:1\n"),
    "a message id": send(b"message-id:1-1\n"),
    **{
        f"a header that decides order or fate: {name}": send(name.encode() + b":1\n")
        for name in (
            "expires",
            "JMSExpiration",
            "AMQ_SCHEDULED_TIME",
            "AMQ_SCHEDULED_DELAY",
            "AMQ_SCHEDULED_CRON",
            "AMQ_SCHEDULED_PERIOD",
            "AMQ_SCHEDULED_REPEAT",
            "_AMQ_SCHED_DELIVERY",
        )
    },
    "an escape": send(b"x:a\\cb\n"),
    "an escape in the receipt": send(b"receipt:a\\cb\n"),
    "a second colon": send(b"reply-to:queue://b\n"),
    "no ASCII": send("x:ä\n".encode()),
    "no ASCII in the receipt": send("receipt:ä\n".encode()),
    "ends of line of another kind": b"SEND\r\ndestination:/queue/a\r\n\r\nbody\0",
    "a carriage return in a header": send(b"x:1\r\n"),
    "two destinations": send(DESTINATION),
    "two receipts": send(b"receipt:1\nreceipt:2\n"),
    "two lengths": send(b"content-length:5\ncontent-length:5\n"),
    "too large a record": send(b"persistent:true\n" + b"x:%b\n" % (b"y" * 150) * 5, b"z" * 4000),
    "an unknown message": b"ACK\nid:1-9\n\n\0",
    "an id of another kind": b"ACK\nid:abc\n\n\0",
    "no id": b"ACK\nreceipt:r\n\n\0",
    "an acknowledgement in a transaction": b"ACK\nid:1-1\ntransaction:t\n\n\0",
}


@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_what_is_not_plain_is_left_to_python(make: Callable[..., CoreRig], name: str) -> None:
    rig = make(record_bytes_max=4000).begin()
    rig.publish()
    rig.flush()
    rig.deliver(rig.consume())
    frame = LEFT_TO_PYTHON[name]
    assert rig.scan(b"\n\n" + frame + send()) == (ScanStatus.FRAME, 2, len(frame))
    assert not rig.core.has_unwritten()
    assert rig.core.queue_statistics(1).added == 1


@pytest.mark.parametrize(
    "headers",
    [
        b"persistent: true\n",
        b"persistent:true \n",
        b"x :1\n",
        b"receipt: r\n",
        b"content-length: 5\n",
        b"content-length:5 \n",
    ],
)
def test_blanks_that_stomp_1_0_drops_are_left_to_python(
    make: Callable[..., CoreRig], headers: bytes
) -> None:
    rig = make().begin(version=10)
    frame = send(headers)
    assert rig.scan(frame) == (ScanStatus.FRAME, 0, len(frame))


ODD = {
    "a header without a colon": b"SEND\nnonsense\n\n\0",
    "a header without a name": b"SEND\n:x\n\n\0",
    "a length that is no number": send(b"content-length:5x\n"),
    "a negative length": send(b"content-length:-1\n"),
    "a length beyond the limit": b"SEND\ncontent-length:5001\n\n",
    "no NUL behind the body": send(b"content-length:4\n"),
    "a body beyond the limit": send(body=b"x" * 5001),
    "a body beyond the limit, half": send(body=b"x" * 5001)[:-1],
    "too many headers": b"SEND\n" + b"a:b\n" * 11 + b"\n\0",
    "a long header": send(b"x:%b\n" % (b"y" * 201)),
    "a long header, half": send(b"x:%b\n" % (b"y" * 230))[:240],
    "headers beyond the limit": b"SEND\n" + b"x:%b\n" % (b"y" * 190) * 6 + b"\n\0",
    "a frame without an empty line": b"SEND\0",
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_frame_is_odd(rig: CoreRig, name: str) -> None:
    frame = send()
    assert rig.scan(frame + ODD[name]) == (ScanStatus.ODD, len(frame), 0)


def test_a_frame_may_come_byte_by_byte(rig: CoreRig) -> None:
    frames = send(b"persistent:true\ncontent-length:5\n") + send() + b"BEGIN\ntransaction:t\n\n\0"
    rig.memory[: len(frames)] = frames
    at = 0
    answers = []
    for end in range(1, len(frames) + 1):
        status, at, detail = rig.core.scan_stomp(rig.connection, rig.buffer, at, end)
        answers.append((ScanStatus(status), detail))
    assert rig.core.queue_statistics(1).added == 2
    assert answers[-1] == (ScanStatus.FRAME, 22)
    assert {status for status, _ in answers[:-1]} == {ScanStatus.NEED_DATA}
    first = len(send(b"persistent:true\ncontent-length:5\n"))
    needs = [detail for _, detail in answers[: first - 1]]
    assert set(needs) == {0, first}, "once the headers are known, so is the need"
    assert needs == sorted(needs)


def test_a_frame_without_room_may_be_tried_again_or_passed_over(
    rig: CoreRig,
) -> None:
    first, second = send(b"persistent:true\n"), send(b"persistent:true\nx:y\n")
    frames = b"\n" + first + b"\n" + second
    rig.core.hold_adds(held=True)
    for cut in (len(frames) - 3, len(frames)):  # again, also when more has come
        rig.memory[:cut] = frames[:cut]
        answer = rig.core.scan_stomp(rig.connection, rig.buffer, 0, cut)
        assert answer == (ScanStatus.BLOCKED, 1, len(first))
    behind = 1 + len(first)
    answer = rig.core.scan_stomp(rig.connection, rig.buffer, behind, len(frames))
    assert answer == (ScanStatus.BLOCKED, behind + 1, len(second))
    assert rig.core.queue_statistics(1).added == 0
    rig.core.hold_adds(held=False)
    answer = rig.core.scan_stomp(rig.connection, rig.buffer, behind + 1, len(frames))
    assert answer == (ScanStatus.NEED_DATA, len(frames), 0)
    assert rig.core.queue_statistics(1).added == 1


def test_everything_is_left_to_python_before_the_login(rig: CoreRig) -> None:
    stranger = rig.core.open_connection()
    assert rig.scan(send(), stranger) == (ScanStatus.FRAME, 0, len(send()))
    fits = b"CONNECT\nx:" + b"y" * (8192 - 13) + b"\n\n\0"
    assert len(fits) == 8192
    assert rig.scan(fits, stranger) == (ScanStatus.FRAME, 0, 8192)
    for data in (
        b"CONNECT\nx:" + b"y" * (8192 - 12) + b"\n\n\0",
        b"CONNECT\nx:" + b"y" * 8200,
        b"CONNECT\ncontent-length:8200\n\n",
        b"CONNECT\n\n" + b"x" * 8200,
    ):
        other = rig.core.open_connection()
        assert rig.scan(data, other)[0] == ScanStatus.ODD


PLAIN_ACKS = [
    (10, b"ACK\nmessage-id:1-1\n\n\0"),
    (10, b"ACK\nmessage-id:1-1\nsubscription:another\n\n\0"),
    (11, b"ACK\nmessage-id:1-1\nsubscription:s\n\n\0"),
    (12, b"ACK\nid:1-1\n\n\0"),
    (12, b"ACK\nid:1-1\nsubscription:another\n\n\0"),
    (12, b"ACK\nid:1-1\ncontent-length:0\n\n\0"),
    (12, b"ACK\nreceipt:r\nid:1-1\n\n\0"),
]


@pytest.mark.parametrize(("version", "frame"), PLAIN_ACKS)
def test_plain_acks_are_taken(make: Callable[..., CoreRig], version: int, frame: bytes) -> None:
    rig = make().begin(version)
    rig.publish()
    rig.flush()
    rig.deliver(rig.consume(version=version))
    other = rig.connect(version)
    assert rig.scan(frame, other)[0] == ScanStatus.FRAME, "it is not this connection's"
    assert rig.scan(frame) == (ScanStatus.NEED_DATA, len(frame), 0)
    assert rig.core.live_places(1) == 0


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (10, b"ACK\nid:1-1\n\n\0"),
        (11, b"ACK\nmessage-id:1-1\n\n\0"),
        (11, b"ACK\nmessage-id:1-1\nsubscription:another\n\n\0"),
        (11, b"ACK\nid:1-1\nsubscription:s\n\n\0"),
        (12, b"ACK\nmessage-id:1-1\n\n\0"),
        (12, b"ACK\nid:01-1\n\n\0"),
        (12, b"ACK\nid:1-01\n\n\0"),
        (12, b"ACK\nid:1-1\n\nbody\0"),
        (12, b"ACK\nid:1-1\nreceipt:a:b\n\n\0"),
        (12, b"ACK\nid:1-1\nsubscription:%b\n\n\0" % (b"s" * 188)),
    ],
)
def test_other_acks_are_left_to_python(
    make: Callable[..., CoreRig], version: int, frame: bytes
) -> None:
    rig = make().begin(version)
    rig.publish()
    rig.flush()
    consumer = rig.consume(version=version)
    rig.deliver(consumer)
    assert rig.scan(frame) == (ScanStatus.FRAME, 0, len(frame))
    assert rig.core.holder(rig.connection, 1, 1) == consumer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"x:%b\n" % (b"y" * 198), ScanStatus.NEED_DATA),
        (b"x:%b\n" % (b"y" * 199), ScanStatus.FRAME),
        (b"receipt:%b\n" % (b"y" * 192), ScanStatus.NEED_DATA),
        (b"receipt:%b\n" % (b"y" * 193), ScanStatus.FRAME),
        # 5 for the command, 21 for the destination, 1 for the empty line: 1000 and 1001.
        (b"x:%b\n" % (b"y" * 197) * 4 + b"z:%b\n" % (b"y" * 170), ScanStatus.NEED_DATA),
        (b"x:%b\n" % (b"y" * 197) * 4 + b"z:%b\n" % (b"y" * 171), ScanStatus.FRAME),
        (b"receipt:a:b\n", ScanStatus.FRAME),
    ],
)
def test_limits_are_those_of_the_codec(rig: CoreRig, headers: bytes, status: ScanStatus) -> None:
    assert rig.scan(send(headers))[0] == status


@pytest.mark.parametrize(
    ("headers", "priority", "is_special"),
    [
        (b"priority:4\n", 4, False),
        (b"priority:0\n", 0, True),
        (b"priority:9\n", 9, True),
        (b"priority:7\npriority:4\n", 7, True),
        (b"priority:4\npriority:7\n", 4, False),
        (b"priority:4\npriority:nonsense\n", 4, False),
        (b"Priority:9\n", 4, False),
        (b"JMSXGroupID:g\n", 4, True),
        (b"JMSXGroupID:\n", 4, True),
        (b"JMSXGroupID:g\nJMSXGroupSeq:-1\nJMSXGroupID:h\n", 4, True),
        (b"JMSXGroupSeq:-1\n", 4, False),
        (b"JMSXGroupID:g\npriority:2\n", 2, True),
        (b"_AMQ_LVQ_NAME:v\n", 4, False),
    ],
)
def test_order_and_groups_are_kept_as_sent(
    rig: CoreRig, headers: bytes, priority: int, is_special: bool
) -> None:
    frame = send(b"persistent:true\n" + headers + b"receipt:r\n")
    for _ in range(3):  # the twin knows the next ones by their shape
        assert rig.scan(frame)[0] == ScanStatus.NEED_DATA
    rig.flush()
    for view in rig.core.look(1, 0, 10).messages:
        assert (view.priority, view.is_special) == (priority, is_special)
        assert view.properties == DESTINATION + b"persistent:true\n" + headers
    receipts = dict(rig.core.take_receipts())
    assert receipts[rig.connection] == b"RECEIPT\nreceipt-id:r\n\n\0" * 3
    status, _, _ = rig.core.deliver(rig.consume(), 10, 10**6)
    assert (status == DeliverStatus.SPECIAL) is is_special


@pytest.mark.parametrize("name", [b"Priority", b"expire", b"expiresAt", b"JMSXGroupIDs", b"_AMQ_X"])
def test_names_that_are_like_theirs_are_plain(rig: CoreRig, name: bytes) -> None:
    assert rig.scan(send(name + b":1\n"))[0] == ScanStatus.NEED_DATA
    assert rig.core.queue_statistics(1).added == 1

"""AMQP's fast path in, on both implementations (`abc_amqp`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_codec.wire.amqp import (
    RECEIVER,
    Accepted,
    Disposition,
    Frame,
    FrameDecoder,
    Header,
    MessageProperties,
    Section,
    Transfer,
    encode_frame,
    encode_section,
)
from vespiary_codec.wire.amqp.values import UByte, UInt
from vespiary_native.abc import AckMode, Core, ScanStatus
from vespiary_native.abc_accounts import AccountLimits
from vespiary_native.abc_amqp import LINKS_MAX, AmqpLesson, AmqpLimits, AmqpRange
from vespiary_testkit.core_rig import IMPLEMENTATIONS

NEED, FRAME, ODD = ScanStatus.NEED_DATA, ScanStatus.FRAME, ScanStatus.ODD
FRAME_BYTES = 4096


class Client:
    """A connection of AMQP, and what it sends."""

    def __init__(self, make: Callable[..., Core]) -> None:
        core = self.core = make(
            slab_bytes=1 << 20, block_bytes=1 << 16, slabs_max=8, record_bytes_max=60_000
        )
        core.add_file(1, 7, 1 << 22)
        core.start(1, 0, 0)
        self.memory = bytearray(1 << 16)
        self.buffer = core.attach_buffer(self.memory)
        self.handle = core.open_connection()
        core.set_ready_amqp(self.handle, AmqpLimits(FRAME_BYTES, 2000))

    def scan(self, data: bytes) -> tuple[int, int, int]:
        self.memory[: len(data)] = data
        return self.core.scan_amqp(self.handle, self.buffer, 0, len(data))


@pytest.fixture(params=IMPLEMENTATIONS)
def client(request: pytest.FixtureRequest) -> Client:
    return Client(IMPLEMENTATIONS[request.param][0])


def test_a_frame_that_is_not_plain_is_left(client: Client) -> None:
    data = encode_frame(Frame(3, Transfer(handle=UInt(0)), b"xyz"))
    assert client.scan(data + data) == (FRAME, 0, len(data))
    assert client.scan(b"\0\0\0\x08\2\0\0\0") == (FRAME, 0, 8)


@pytest.mark.parametrize(
    ("there", "needed"), [(0, 0), (1, 4), (3, 4), (4, 8), (7, 8), (8, 100), (99, 100)]
)
def test_an_incomplete_frame_says_what_it_needs(client: Client, there: int, needed: int) -> None:
    data = b"\0\0\0\x64\2\0\0\0" + bytes(92)
    assert client.scan(data[:there]) == (NEED, 0, needed)


@pytest.mark.parametrize(
    ("data", "is_odd"),
    [
        (b"\0\0\0\x07", True),
        ((FRAME_BYTES + 1).to_bytes(4, "big"), True),
        (FRAME_BYTES.to_bytes(4, "big"), False),
        (b"\0\0\0\x0c\1\0\0\0", True),
        (b"\0\0\0\x0c\4\0\0\0", True),
        (b"\0\0\0\x0c\3\0\0\0", False),
        (b"\0\0\0\x0c\2\1\0\0", True),
        (b"AMQP\0\1\0\0", True),
    ],
)
def test_what_is_no_frame_of_amqp_is_odd(client: Client, data: bytes, is_odd: bool) -> None:
    assert client.scan(data)[0] is (ODD if is_odd else NEED)


def test_arguments_are_checked(client: Client) -> None:
    core, handle = client.core, client.handle
    other = core.open_connection()
    for bad in (
        lambda: core.set_ready_amqp(99, AmqpLimits(FRAME_BYTES, 2000)),
        lambda: core.set_ready_amqp(handle, AmqpLimits(7, 2000)),
        lambda: core.scan_amqp(other, client.buffer, 0, 0),
        lambda: core.scan_amqp(handle, 7, 0, 0),
        lambda: core.scan_amqp(handle, client.buffer, 1, 0),
        lambda: core.scan_amqp(handle, client.buffer, 0, len(client.memory) + 1),
        lambda: core.set_amqp_window(other, 0, 1),
        lambda: core.set_amqp_window(handle, 65_536, 1),
        lambda: core.set_amqp_window(handle, 0, 2**31),
        lambda: core.forget_amqp_session(other, 0),
    ):
        with pytest.raises(ValueError):
            bad()


def test_sessions_are_forgotten_with_their_connection(client: Client) -> None:
    core, handle = client.core, client.handle
    for channel in (0, 7, 65_535, 7):
        core.set_amqp_window(handle, channel, 5)
    core.forget_amqp_session(handle, 7)
    core.forget_amqp_session(handle, 8)
    core.close_connection(handle)
    assert core.open_connection() == handle
    core.set_ready_amqp(handle, AmqpLimits(FRAME_BYTES, 2000))
    core.forget_amqp_session(handle, 0)


# --- transfers ------------------------------------------------------------------------------------

HEADER = encode_section(Section.HEADER, Header(durable=True))
KEY = HEADER + b"\0\x53\x75\xa0"
STORED = b"destination:a\npersistent:true\n\0\1\x75\xa0\0\0\0\0\0"
TEXT_KEY = b"\0\x53\x77\xb1"


class Sender(Client):
    """A client that has taught something."""

    def __init__(self, make: Callable[..., Core]) -> None:
        super().__init__(make)
        core = self.core
        core.open_queue(1)
        core.open_queue(2, durable=False)
        self.route = core.open_route([1])
        self.next_id = 0
        assert self.teach(KEY, STORED)
        self.allow()

    def teach(
        self, key: bytes, stored: bytes, channel: int = 0, handle: int = 0, **fields: Any
    ) -> bool:
        lesson = AmqpLesson(key, stored, fields.pop("route", self.route), True, **fields)
        return self.core.teach_amqp(self.handle, channel, handle, lesson)

    def allow(self, messages: int = 100, window: int = 100, *, settled: bool = False) -> None:
        self.core.set_amqp_window(self.handle, 0, window)
        self.core.set_amqp_credit(self.handle, 0, 0, messages, settled=settled)

    def transfer(self, payload: bytes, channel: int = 0, **fields: Any) -> bytes:
        fields = {
            "handle": UInt(0),
            "delivery_id": UInt(self.next_id),
            "delivery_tag": b"t",
            "message_format": UInt(0),
        } | fields
        self.next_id += 1
        return encode_frame(Frame(channel, Transfer(**fields), payload))

    def is_taken(self, frame: bytes) -> bool:
        status, at, detail = self.scan(frame)
        assert (status, at, detail) in ((NEED, len(frame), 0), (FRAME, 0, len(frame)))
        return status is NEED

    def flush(self) -> list[Disposition]:
        """Make all durable; return what is confirmed then."""
        while (request := self.core.seal_write()) is not None:
            self.core.write_done(request.sequence)
        return self.confirmed()

    def confirmed(self) -> list[Disposition]:
        decoder = FrameDecoder()
        decoder.feed(b"AMQP\0\1\0\0")
        decoder.next_event()
        for _, data in self.core.take_receipts():
            decoder.feed(data)
        found = []
        while isinstance(event := decoder.next_event(), Frame):
            found.append(event.body)
        return found

    def stored(self, queue: int = 1) -> list[tuple[bytes, bytes]]:
        """Return properties and bodies of what is in a queue."""
        consumer = self.core.open_consumer(self.handle, queue, AckMode.AUTO, 1, b"", STORED_VERSION)
        _, _, data = self.core.deliver(consumer, 1000, 1 << 30)
        self.core.close_consumer(consumer)
        return [(one.properties, one.body) for one in read_stored(data)]


@pytest.fixture(params=IMPLEMENTATIONS)
def sender(request: pytest.FixtureRequest) -> Sender:
    return Sender(IMPLEMENTATIONS[request.param][0])


def body(data: bytes = b"body") -> bytes:
    return KEY + bytes([len(data)]) + data


def test_plain_transfers_are_stored_as_they_were_taught(sender: Sender) -> None:
    frames = [sender.transfer(body(b"%d" % each)) for each in range(3)]
    assert sender.is_taken(b"".join(frames))
    sender.flush()
    assert sender.stored() == [(STORED, b"%d" % each) for each in range(3)]


def test_dispositions_leave_behind_the_flush_by_run(sender: Sender) -> None:
    runs = [0, 1, 2, 7, 300, 301, 2**32 - 1, 0]
    data = b"".join(sender.transfer(body(), delivery_id=UInt(each)) for each in runs)
    assert sender.is_taken(data)
    assert sender.confirmed() == []
    expected = [(0, 2), (7, None), (300, 301), (2**32 - 1, 0)]
    assert sender.flush() == [
        Disposition(
            role=RECEIVER,
            first=UInt(first),
            last=None if last is None else UInt(last),
            settled=True,
            state=Accepted(),
        )
        for first, last in expected
    ]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, None), (1, None), (255, None), (256, None), (2**32 - 1, None),
        (0, 1), (255, 256), (254, 255), (2**32 - 1, 0),
    ],
)  # fmt: skip
def test_dispositions_have_the_bytes_of_the_codec(
    sender: Sender, first: int, last: int | None
) -> None:
    ids = [first] if last is None else [first, last]
    frames = [sender.transfer(body(), delivery_id=UInt(each)) for each in ids]
    assert sender.is_taken(b"".join(frames))
    while (request := sender.core.seal_write()) is not None:
        sender.core.write_done(request.sequence)
    told = Disposition(
        role=RECEIVER,
        first=UInt(first),
        last=None if last is None else UInt(last),
        settled=True,
        state=Accepted(),
    )
    assert sender.core.take_receipts() == [(sender.handle, encode_frame(Frame(0, told)))]


def test_a_run_is_of_one_session(sender: Sender) -> None:
    sender.teach(KEY, STORED, channel=9)
    sender.core.set_amqp_window(sender.handle, 9, 5)
    sender.core.set_amqp_credit(sender.handle, 9, 0, 5, settled=False)
    data = sender.transfer(body()) + sender.transfer(body(), channel=9) + sender.transfer(body())
    assert sender.is_taken(data)
    assert [(each.first, each.last) for each in sender.flush()] == [(0, None), (1, None), (2, None)]
    assert sender.core.taken_amqp(sender.handle) == [(0, 0, 2), (9, 0, 1)]


@pytest.mark.parametrize("where", ["transfer", "link"])
def test_what_is_settled_is_not_confirmed(sender: Sender, where: str) -> None:
    sender.allow(settled=where == "link")
    assert sender.is_taken(sender.transfer(body(), settled=True if where == "transfer" else None))
    assert sender.flush() == []
    assert len(sender.stored()) == 1


@pytest.mark.parametrize(
    ("fields", "is_plain"),
    [
        ({"settled": False}, True),
        ({"message_format": None}, True),
        ({"batchable": True}, True),
        ({"more": False, "aborted": False, "resume": False}, True),
        ({"rcv_settle_mode": UByte(0)}, True),
        ({"delivery_tag": bytes(32)}, True),
        ({"delivery_tag": b""}, True),
        ({"message_format": UInt(1)}, False),
        ({"more": True}, False),
        ({"aborted": True}, False),
        ({"resume": True}, False),
        ({"rcv_settle_mode": UByte(1)}, False),
        ({"state": Accepted()}, False),
        ({"delivery_id": None}, False),
        ({"delivery_tag": None}, False),
        ({"delivery_tag": bytes(33)}, False),
        ({"handle": UInt(1)}, False),
    ],
)
def test_what_a_plain_transfer_says(sender: Sender, fields: dict[str, Any], is_plain: bool) -> None:
    assert sender.is_taken(sender.transfer(body(), **fields)) is is_plain


@pytest.mark.parametrize(
    ("payload", "is_plain"),
    [
        (body(b""), True),
        (body(bytes(255)), True),
        (body() + b"\0", False),
        (body()[:-1], False),
        (KEY, False),
        (KEY[:-1] + b"\xb0\0\0\0\1x", False),
        (encode_section(Section.HEADER, Header()) + body()[len(HEADER) :], False),
        (TEXT_KEY + b"\0\0\0\5gr\xc3\xbcn", True),
        (TEXT_KEY + b"\0\0\0\2\xc3\x28", False),
        (TEXT_KEY + b"\0\0\0\3\xed\xa0\x80", False),
        (TEXT_KEY + b"\0\0\0", False),
        (TEXT_KEY + (2000).to_bytes(4, "big") + bytes(2000), True),
        (TEXT_KEY + (2001).to_bytes(4, "big") + bytes(2001), False),
        (b"", False),
    ],
)
def test_what_a_plain_message_says(sender: Sender, payload: bytes, is_plain: bool) -> None:
    assert sender.teach(TEXT_KEY, STORED)
    assert sender.is_taken(sender.transfer(payload)) is is_plain
    sender.flush()
    assert len(sender.stored()) == is_plain


def test_an_extended_head_is_passed_over(sender: Sender) -> None:
    frame = sender.transfer(body())
    size = len(frame) + 4
    assert sender.is_taken(size.to_bytes(4, "big") + b"\3" + frame[5:8] + b"abcd" + frame[8:])


def test_allowances_are_counted_down(sender: Sender) -> None:
    sender.allow(messages=2, window=3)
    frame = sender.transfer(body())
    assert sender.scan(frame * 3) == (FRAME, 2 * len(frame), len(frame))
    assert sender.core.taken_amqp(sender.handle) == [(0, 0, 2)]
    assert sender.core.taken_amqp(sender.handle) == []
    sender.core.set_amqp_credit(sender.handle, 0, 0, 5, settled=False)
    assert sender.scan(frame * 3) == (FRAME, len(frame), len(frame))
    sender.core.set_amqp_window(sender.handle, 0, 1)
    assert sender.is_taken(frame)
    assert sender.core.taken_amqp(sender.handle) == [(0, 0, 2)]
    sender.flush()
    assert len(sender.stored()) == 4


def test_what_is_forgotten_is_left(sender: Sender) -> None:
    frame = sender.transfer(body())
    assert sender.is_taken(frame)
    sender.core.forget_amqp_link(sender.handle, 0, 0)
    assert sender.core.taken_amqp(sender.handle) == []
    assert not sender.is_taken(frame)
    assert sender.teach(KEY, STORED)
    assert not sender.is_taken(frame)  # no credit
    sender.allow()
    assert sender.is_taken(frame)
    sender.core.forget_amqp_session(sender.handle, 0)
    assert sender.core.taken_amqp(sender.handle) == []
    assert not sender.is_taken(frame)


def test_a_closed_route_is_not_used_nor_what_has_its_handle_then(sender: Sender) -> None:
    frame = sender.transfer(body())
    sender.core.close_route(sender.route)
    assert not sender.is_taken(frame)
    assert sender.core.open_route([2]) == sender.route
    assert not sender.is_taken(frame)
    assert sender.teach(KEY, STORED)  # in place of the other
    assert sender.is_taken(frame)
    sender.flush()
    assert sender.stored(2) == [(STORED, b"body")]


def test_a_held_route_is_left(sender: Sender) -> None:
    core = sender.core
    account = core.open_account()
    core.limit_account(account, AccountLimits(max_messages=1, low_messages=0, is_holding=True))
    core.join_account(1, account)
    frame = sender.transfer(body())
    assert sender.scan(frame * 2) == (FRAME, len(frame), len(frame))


def test_without_room_it_is_blocked_and_what_was_taken_is_confirmed(sender: Sender) -> None:
    frame = sender.transfer(body())
    assert sender.is_taken(frame)
    sender.core.hold_adds(held=True)
    status, at, detail = sender.scan(frame)
    assert (status, at, detail) == (ScanStatus.BLOCKED, 0, len(frame))
    sender.core.hold_adds(held=False)
    assert sender.is_taken(frame)
    assert len(sender.flush()) == 2
    assert sender.core.taken_amqp(sender.handle) == [(0, 0, 2)]


def test_what_need_not_survive_is_confirmed_at_once(sender: Sender) -> None:
    lesson = AmqpLesson(KEY, STORED, sender.route, False)
    assert sender.core.teach_amqp(sender.handle, 0, 0, lesson)
    assert sender.is_taken(sender.transfer(body()))
    assert len(sender.confirmed()) == 1
    assert len(sender.stored()) == 1


# --- lessons --------------------------------------------------------------------------------------


def key_of(number: int, size_bytes: int = 0) -> bytes:
    properties = MessageProperties(to=f"{number}", subject="x" * size_bytes)
    return encode_section(Section.PROPERTIES, properties) + b"\0\x53\x75\xa0"


def test_a_link_has_sixteen_lessons_and_forgets_the_oldest(sender: Sender) -> None:
    for number in range(15):
        assert sender.teach(key_of(number), b"%d" % number)
    assert all(sender.is_taken(sender.transfer(key_of(each) + b"\0")) for each in range(15))
    assert sender.teach(key_of(3), b"3 again")  # it is known: nothing goes
    assert sender.is_taken(sender.transfer(body()))
    assert sender.teach(key_of(15), b"15")
    assert not sender.is_taken(sender.transfer(body()))
    assert sender.teach(key_of(16), b"16")
    left = [
        each for each in range(17) if not sender.is_taken(sender.transfer(key_of(each) + b"\0"))
    ]
    assert left == [0]


def test_the_lessons_of_a_connection_are_bounded(sender: Sender) -> None:
    large = 60_000
    for number in range(4):
        assert sender.teach(key_of(number, large), b"", handle=1)
    assert sender.teach(key_of(0), b"", handle=0)
    assert not sender.teach(key_of(1, large), b"", handle=0)  # which forgets the others before
    assert not sender.is_taken(sender.transfer(body()))
    assert sender.teach(key_of(4, large), b"", handle=1)  # instead of the four
    sender.core.set_amqp_credit(sender.handle, 0, 1, 5, settled=False)
    left = [not sender.is_taken(large_transfer(sender, each)) for each in range(5)]
    assert left == [True, True, True, True, False]


def large_transfer(sender: Sender, number: int) -> bytes:
    sender.core.set_ready_amqp(sender.handle, AmqpLimits(65_536, 2000))
    return sender.transfer(key_of(number, 60_000) + b"\0", handle=UInt(1))


def test_the_links_of_a_connection_are_bounded(sender: Sender) -> None:
    for handle in range(1, LINKS_MAX):
        assert sender.teach(KEY, STORED, handle=handle)
    assert not sender.teach(KEY, STORED, handle=LINKS_MAX)
    sender.core.forget_amqp_link(sender.handle, 0, 1)
    assert sender.teach(KEY, STORED, handle=LINKS_MAX)


@pytest.mark.parametrize(
    "lesson",
    [
        AmqpLesson(b"", b"", 0, True),
        AmqpLesson(b"\0\x53\x75\xa1", b"", 0, True),
        AmqpLesson(b"\0\x53\x76\xa0", b"", 0, True),
        AmqpLesson(b"\0\x53\x77\xc0", b"", 0, True),
        AmqpLesson(b"\1\x53\x77\xa0", b"", 0, True),
        AmqpLesson(KEY, b"", 7, True),
        AmqpLesson(bytes(65_536) + KEY, b"", 0, True),
        AmqpLesson(KEY, bytes(65_536), 0, True),
    ],
)
def test_a_lesson_that_cannot_be_one_is_refused(sender: Sender, lesson: AmqpLesson) -> None:
    with pytest.raises(ValueError):
        sender.core.teach_amqp(sender.handle, 0, 0, lesson)


def test_a_switch_is_not_taught(sender: Sender) -> None:
    with pytest.raises(ValueError):
        sender.teach(KEY, STORED, route=sender.core.open_switch())


@pytest.mark.parametrize(
    "ranges",
    [
        (AmqpRange(0, 0, 0, 0, 0),),
        (AmqpRange(0, 4, 0, 3, 0),),
        (AmqpRange(0, 4, 0, 4, 41),),
        (AmqpRange(0, 4, 41, 4, 0),),
        (AmqpRange(17, 4, 0, 4, 0),),
        (AmqpRange(0, 4, 0, 4, 0), AmqpRange(3, 4, 0, 4, 0)),
        (AmqpRange(0, 7, 0, 13, 0, True),),
        (AmqpRange(0, 8, 0, 0, 0, True),),
        (AmqpRange(0, 8, 0, 20, 0, True),),
        tuple(AmqpRange(each, 1, 0, 1, 0) for each in range(5)),
    ],
)
def test_ranges_that_cannot_be_are_refused(sender: Sender, ranges: tuple[AmqpRange, ...]) -> None:
    with pytest.raises(ValueError):
        sender.teach(bytes(20) + b"\0\x53\x75\xa0", bytes(44), ranges=ranges)
    assert sender.teach(
        bytes(20) + b"\0\x53\x75\xa0", bytes(44), ranges=(AmqpRange(0, 4, 0, 4, 40),)
    )


def varied(text: bytes, time_ms: int) -> bytes:
    return b"<" + text + b">" + time_ms.to_bytes(8, "big", signed=True) + b"\0\x53\x75\xa0"


@pytest.mark.parametrize(
    ("text", "time_ms", "is_plain"),
    [
        (b"abc-7", 1000, True),
        (b"Z_0-9", 9999, True),
        (b"azAZ9", 1234, True),
        (b"abc:7", 1234, False),
        (b"ab\\c7", 1234, False),
        (b"ab c7", 1234, False),
        (b"ab@[`", 1234, False),
        (b"ab\n{7", 1234, False),
        (b"ab\xc37", 1234, False),
        (b"AMQP_", 1234, False),
        (b"AMQP-", 1234, True),
        (b"abc-7", 999, False),
        (b"abc-7", 10_000, False),
        (b"abc-7", -1234, False),
    ],
)
def test_what_may_differ_goes_into_line_and_native_part(
    sender: Sender, text: bytes, time_ms: int, is_plain: bool
) -> None:
    stored = b"id:.....\ntime:....\n\0.....," + bytes(8) + b"!"
    ranges = (AmqpRange(1, 5, 3, 5, 20), AmqpRange(7, 8, 14, 4, 26, True))
    assert sender.teach(varied(b"first", 5000), stored, ranges=ranges)
    assert sender.is_taken(sender.transfer(varied(text, time_ms) + b"\1x")) is is_plain
    sender.flush()
    expected = b"id:%b\ntime:%d\n\0%b,%b!" % (
        text, time_ms, text, time_ms.to_bytes(8, "big", signed=True),
    )  # fmt: skip
    assert sender.stored() == ([(expected, b"x")] if is_plain else [])


def test_the_arguments_of_lessons_are_checked(sender: Sender) -> None:
    core, handle = sender.core, sender.handle
    for bad in (
        lambda: core.set_amqp_credit(handle, 0, 5, 1, settled=False),
        lambda: core.set_amqp_credit(handle, 5, 0, 1, settled=False),
        lambda: core.set_amqp_credit(handle, 0, 0, 2**31, settled=False),
        lambda: sender.teach(KEY, STORED, channel=65_536),
        lambda: core.forget_amqp_link(9, 0, 0),
        lambda: core.taken_amqp(9),
    ):
        with pytest.raises(ValueError):
            bad()

"""Messages of AMQP on their way out: what is a plain one, its transfer, and what is not settled.

Owns the delivery ids of a session, and the form of a transfer. Never touches a queue. Used by
`delivery` and `amqp_sending`.

Source: AMQP 1.0 (OASIS, 2012) §2.7.5 and §3.2.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_codec.journal.record import RecordFlag
from vespiary_codec.wire.amqp.native_part import FIRST_ACQUIRER, NATIVE, NATIVE_VERSION

if TYPE_CHECKING:
    from vespiary_native.abc_amqp_sending import AmqpEncoding
    from vespiary_native.twin.state import Consumer, Message

PROTOCOL: Final = 3
_PRIORITY_USUAL: Final = 4
_NOT_PLAIN: Final = RecordFlag.LARGE | RecordFlag.SPECIAL
_MODULUS: Final = 2**32
_HALF: Final = 2**31
_HEAD_BYTES_MAX: Final = 8 + 5 + 1 + 5 + 5 + 2 + 32 + 3
"""What a frame of a transfer has beside its piece, as those who split messages reckon."""
_FRAME: Final = struct.Struct(">IBBH")
_PERSISTENT: Final = b"persistent:true"
_TOLD: Final = (
    b"expires:", b"ingress-timestamp:", b"_AMQ_ORIG_", b"_AMQ_REJECT_", b"_AMQ_ACTUAL_EXPIRY:",
    b"AMQ_SCHEDULED_TIME:",
)  # fmt: skip
"""Beginnings of lines that say what a client is told in other sections."""
_SHORT: Final = (0xA0, 0xA1)
_LONG: Final = (0xB0, 0xB1)


class Delivery(NamedTuple):
    """What a client was sent."""

    consumer: Consumer
    sequence: int


class Outgoing:
    """What one session sends.

    Attributes:
        room: Transfers that its client takes.
        sent: Deliveries that are not settled, by id, in the order of the ids.
    """

    def __init__(self) -> None:
        self.room = 0
        self.sent: dict[int, Delivery] = {}
        self._next_id = 0

    def peek_id(self) -> int:
        """Return the next id that is free."""
        while self._next_id in self.sent:  # they have come round
            self._next_id = (self._next_id + 1) % _MODULUS
        return self._next_id

    def take_id(self) -> int:
        """Return the next id that is free; it is not any more."""
        taken = self.peek_id()
        self._next_id = (taken + 1) % _MODULUS
        return taken

    def between(self, first: int, last: int) -> list[int]:
        """Return the ids of this range that are not settled, in their order."""
        reach = (last - first) % _MODULUS
        if reach >= _HALF:
            return []
        found = [one for one in self.sent if (one - first) % _MODULUS <= reach]
        return sorted(found, key=lambda one: (one - first) % _MODULUS)

    def drop(self, consumer: Consumer) -> None:
        """Forget what a consumer was sent that is closed."""
        self.sent = {n: one for n, one in self.sent.items() if one.consumer is not consumer}


class Link:
    """A link by which a client receives.

    Attributes:
        encoding: How its messages are encoded.
        credit: Messages that its client takes.
    """

    def __init__(self, encoding: AmqpEncoding) -> None:
        self.encoding = encoding
        self.credit = 0


class Transfer(NamedTuple):
    """A message that becomes a transfer.

    Attributes:
        encoding: Of its link.
        sequence: Its tag.
        before: The sections before the bytes of its body.
        body_at: Where its body begins.
        body_bytes: Bytes of its body.
        footer: What stands behind its body.
    """

    encoding: AmqpEncoding
    sequence: int
    before: bytes
    body_at: int
    body_bytes: int
    footer: bytes

    @property
    def is_settled(self) -> bool:
        """Whether it is acknowledged when it is given."""
        return self.encoding.is_settled

    def encode(self, view: memoryview, delivery_id: int) -> tuple[bytes, memoryview, bytes]:
        """Return the parts of its frame."""
        encoding = self.encoding
        fields = b"%b%b\xa0\x08%b\x43%c\x42" % (
            _uint(encoding.handle), _uint(delivery_id), self.sequence.to_bytes(8, "big"),
            0x41 if encoding.is_settled else 0x42,
        )  # fmt: skip
        head = b"\0\x53\x14\xc0%c\x06%b%b" % (len(fields) + 1, fields, self.before)
        length = 8 + len(head) + self.body_bytes + len(self.footer)
        body = view[self.body_at : self.body_at + self.body_bytes]
        return _FRAME.pack(length, 2, 0, encoding.channel) + head, body, self.footer


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    if value <= 255:
        return bytes([0x52, value])
    return b"\x70" + value.to_bytes(4, "big")


def plan_transfer(
    consumer: Consumer, link: Link, sequence: int, message: Message, view: memoryview
) -> Transfer | None:
    """Return how a message is sent to a consumer that has a link; None: it is not plain."""
    encoding = link.encoding
    _, at, properties_bytes, body_bytes, flags, _, record_at = message
    is_usual = view[record_at + 6] == PROTOCOL and view[record_at + 7] == _PRIORITY_USUAL
    if encoding.is_stored or not is_usual or flags & _NOT_PLAIN:
        return None
    body_at = at + properties_bytes
    lines, nul, native = bytes(view[at:body_at]).partition(b"\0")
    if not nul or len(native) < NATIVE.size:
        return None
    version, section, code, flags, before_bytes = NATIVE.unpack_from(native)
    footer_at = NATIVE.size + before_bytes
    if version != NATIVE_VERSION or footer_at > len(native):
        return None
    all_lines = lines.split(b"\n")
    if any(line.startswith(_TOLD) for line in all_lines):
        return None
    head = _body_head(section, code, body_bytes)
    if head is None:
        return None
    deliveries = consumer.queue.deliveries.get(sequence, 0)
    is_first = not deliveries and bool(flags & FIRST_ACQUIRER)
    header = _header(_PERSISTENT in all_lines[:-1], deliveries, is_first=is_first)
    before = header + native[NATIVE.size : footer_at] + head
    footer = native[footer_at:]
    if len(before) + body_bytes + len(footer) + _HEAD_BYTES_MAX > encoding.frame_bytes:
        return None
    return Transfer(encoding, sequence, before, body_at, body_bytes, footer)


def _header(is_durable: bool, deliveries: int, *, is_first: bool) -> bytes:
    """Return the header section: durable, priority, no ttl, first-acquirer, delivery-count."""
    fields = b"%c\x50\x04\x40%c%b" % (
        0x41 if is_durable else 0x40, 0x41 if is_first else 0x40, _uint(deliveries),
    )  # fmt: skip
    return b"\0\x53\x70\xc0%c\x05%b" % (len(fields) + 1, fields)


def _body_head(section: int, code: int, body_bytes: int) -> bytes | None:
    """Return what stands before the bytes of a body; None: it cannot say how many there are."""
    if not section:
        return b""
    start = bytes([0, 0x53, section, code])
    if code in _SHORT:
        return start + bytes([body_bytes]) if body_bytes <= 255 else None
    return start + body_bytes.to_bytes(4, "big") if code in _LONG else start

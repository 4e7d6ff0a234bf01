"""Messages of MQTT on their way out: what is a plain one, its packet, and its packet id.

Owns the packet ids that the core gives out, and the form of a PUBLISH. Never touches a queue. Used
by `delivery` and `mqtt_sending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc_mqtt import MqttEncoding, SentMessage
from vespiary_native.twin.mqtt_lines import Said, address_in, read_lines

if TYPE_CHECKING:
    from vespiary_native.twin.state import Consumer, Message

SLOTS: Final = 65_536
SLOTS_FIRST: Final = 64
PROTOCOL: Final = 2
_PRIORITY_USUAL: Final = 4
_NOT_PLAIN: Final = RecordFlag.LARGE | RecordFlag.SPECIAL
_START: Final = b"destination:"
_PERSISTENT: Final = b"persistent:true\n"
_CODED: Final = (b"%", b"+", b"#", b"::")
_SWAPPED: Final = bytes.maketrans(b"./", b"/.")


class Sent(NamedTuple):
    """What has a packet id; without a consumer: nobody any more, or who sends elsewhere."""

    consumer: Consumer | None
    sequence: int
    is_reserved: bool = False


class SentMessages:
    """The packet ids of one connection: slots that double while half of them are in use.

    Attributes:
        window: So many messages may be out.
        out: So many are.
    """

    def __init__(self) -> None:
        self.window = self.out = 0
        self._slots: list[Sent | None] = []
        self._used = 0
        self._at = 0

    def next(self) -> int:
        """Return the next free packet id; 0: there is none, or the window is full."""
        return 0 if self.out >= self.window else self._free()

    def _free(self) -> int:
        """Return the next free packet id; 0: there is none."""
        if self._used == SLOTS - 1:
            return 0
        slots = len(self._slots)
        if self._used * 2 >= slots and slots < SLOTS:
            self._grow(slots * 2)
        while self._slots[self._at] is not None:
            self._at = (self._at + 1) % len(self._slots)
        return self._at

    def take(self) -> int:
        """See `CoreMqtt.take_packet_id`."""
        packet_id = self._free()
        if packet_id:
            self._slots[packet_id] = Sent(None, 0, is_reserved=True)
            self._at = (packet_id + 1) % len(self._slots)
            self._used += 1
        return packet_id

    def _grow(self, slots: int) -> None:
        wider = len(self._slots) or SLOTS_FIRST
        while wider < slots:
            wider *= 2
        self._slots += [None] * (wider - len(self._slots))
        self._slots[0] = Sent(None, 0, is_reserved=True)  # 0 is not a packet id

    def put(self, consumer: Consumer, sequence: int) -> None:
        """Take the id that `next` said."""
        self._slots[self._at] = Sent(consumer, sequence)
        self._at = (self._at + 1) % len(self._slots)
        self._used += 1
        self.out += 1

    def get(self, packet_id: int) -> Sent | None:
        """Return what the core has sent with an id."""
        sent = self._slots[packet_id] if packet_id < len(self._slots) else None
        return None if sent is None or sent.is_reserved else sent

    def free(self, packet_id: int) -> None:
        """Give the id of what was sent free."""
        self._slots[packet_id] = None
        self._used -= 1
        self.out -= 1

    def reserve(self, packet_id: int, *, reserved: bool) -> None:
        """See `CoreMqtt.reserve_packet_id`."""
        if not 0 < packet_id < SLOTS:
            raise ValueError(f"{packet_id} is not a packet id")
        if reserved:
            self._grow(packet_id + 1)
        sent = self._slots[packet_id] if packet_id < len(self._slots) else None
        if (sent is not None and sent.is_reserved) if not reserved else sent is None:
            self._slots[packet_id] = Sent(None, 0, is_reserved=True) if reserved else None
            self._used += 1 if reserved else -1
            return
        raise ValueError(f"packet id {packet_id} is {sent}")

    def orphan(self, consumer: Consumer) -> None:
        """Forget whose messages these were: the client will acknowledge them."""
        for slot, sent in enumerate(self._slots):
            if sent is not None and sent.consumer is consumer:
                self._slots[slot] = sent._replace(consumer=None)

    def messages(self) -> list[SentMessage]:
        """Return what was sent and not acknowledged, by id."""
        return [
            SentMessage(packet_id, sent.consumer.queue.queue_id, sent.sequence)
            for packet_id, sent in enumerate(self._slots)
            if sent is not None and sent.consumer is not None
        ]


class Plan(NamedTuple):
    """A message that becomes a packet.

    Attributes:
        first: Type and flags.
        topic: Its topic.
        rest: The remaining length.
        qos: 0 or 1.
        properties: The property block, of MQTT 5.
        body_at: Where its body begins.
        body_bytes: Bytes of its body.
    """

    first: int
    topic: bytes
    rest: int
    qos: int
    properties: bytes
    body_at: int
    body_bytes: int

    @property
    def is_settled(self) -> bool:
        """Whether it is acknowledged when it is given."""
        return not self.qos

    def encode(self, view: memoryview, packet_id: int) -> tuple[bytes, memoryview]:
        """Return the parts of its PUBLISH."""
        identifier = packet_id.to_bytes(2, "big") if self.qos else b""
        head = b"%c%b%b%b%b%b" % (
            self.first, _length(self.rest), len(self.topic).to_bytes(2, "big"), self.topic,
            identifier, self.properties,
        )  # fmt: skip
        return head, view[self.body_at : self.body_at + self.body_bytes]


def _length(rest: int) -> bytes:
    """Return a remaining length as it is written."""
    digits = bytearray()
    while rest > 127:
        digits.append(rest & 0x7F | 0x80)
        rest >>= 7
    digits.append(rest)
    return bytes(digits)


def _own(properties: bytes, flags: int) -> Said | None:
    """Return what the lines of a message of MQTT say; None: it is not plain."""
    if flags & RecordFlag.ESCAPED or not properties.startswith(_START):
        return None
    address, end, rest_lines = properties[len(_START) :].partition(b"\n")
    if not end or rest_lines not in (b"", _PERSISTENT):
        return None
    return Said(address, bool(rest_lines), b"")


def _other(properties: bytes, flags: int, encoding: MqttEncoding, version: int) -> Said | None:
    """Return what the lines of a message of another protocol say; None: it is not plain."""
    said = read_lines(properties, version, is_escaped=bool(flags & RecordFlag.ESCAPED))
    if said is None or (said.is_persistent and encoding.qos == 2):
        return None
    address = address_in(said.destination or b"", encoding.prefixes)
    return said._replace(destination=address)


def plan_message(
    consumer: Consumer, sequence: int, message: Message, view: memoryview
) -> Plan | None:
    """Return how a message is sent to a consumer that has an encoding; None: it is not plain."""
    encoding, version = consumer.encoding, consumer.connection.version
    assert encoding is not None
    _, at, properties_bytes, body_bytes, flags, _, record_at = message
    is_usual = view[record_at + 7] == _PRIORITY_USUAL and not flags & _NOT_PLAIN
    if sequence < encoding.stored_below or not is_usual:
        return None
    properties = bytes(view[at : at + properties_bytes])
    is_own = view[record_at + 6] == PROTOCOL
    said = _own(properties, flags) if is_own else _other(properties, flags, encoding, version)
    if said is None:
        return None
    topic = encoding.topic or _topic_of(said.destination or b"")
    if not topic:
        return None
    qos = 1 if encoding.qos and said.is_persistent else 0
    block = _length(len(said.properties)) + said.properties if version == 5 else b""
    rest = 2 + len(topic) + 2 * qos + len(block) + body_bytes
    if 1 + len(_length(rest)) + rest > encoding.packet_bytes:
        return None
    is_dup = qos and consumer.queue.deliveries.get(sequence, 0)
    first = 0x30 | qos << 1 | (8 if is_dup else 0)
    return Plan(first, topic, rest, qos, block, at + properties_bytes, body_bytes)


def _topic_of(address: bytes) -> bytes:
    """Return the topic of an address that means the one with dots and slashes swapped."""
    if address.startswith(b"$") or any(code in address for code in _CODED):
        return b""
    return address.translate(_SWAPPED)

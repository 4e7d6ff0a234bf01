"""MQTT's fast path: plain PUBLISH and PUBACK packets in (`abc_mqtt.CoreMqtt.scan_mqtt`).

Owns the decision what is plain, and where a packet ends. Never words an error: what is not plain or
not a packet goes to the codec in Python. A mix-in of `TwinCore`.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc import NoRoom, ScanStatus
from vespiary_native.abc_mqtt import ADDRESS_LINE_BYTES_MAX, ANSWER_BYTES, MqttLimits
from vespiary_native.twin.mqtt_sending import take_puback
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection, SendPlan
from vespiary_native.twin.switching import KeptSend, Switched, stage_send
from vespiary_native.twin.tables import Tables

TOPICS_MAX: Final = 4096
"""Topics that a connection may use without asking; who uses more asks again."""
PROTOCOL: Final = 2
TOPIC_BYTES_MAX: Final = 65_535
_PRIORITY_USUAL: Final = 4
_LENGTH_BYTES: Final = 4
_DUP: Final = 8
_RETAIN: Final = 1
_PUBLISH: Final = 3
_PUBACK: Final = 4
_PUBREC: Final = 5
_FAILURE: Final = 0x80
_FLAGS: Final = {4: 0, 5: 0, 6: 2, 7: 0, 8: 2, 10: 2, 12: 0, 14: 0, 15: 0}
"""Flags of the packets that a client may send, but for PUBLISH."""
_MAY_BE_DUP_3_1: Final = (6, 8, 10)
_AUTH: Final = 15


def scan(
    staging: Staging,
    connection: Connection,
    switched: Switched,
    view: memoryview,
    start: int,
    end: int,
) -> tuple[int, int, int]:
    """Take whole packets from `view[start:end]` (see `abc_mqtt.CoreMqtt.scan_mqtt`)."""
    switched.begin(connection, view)
    answer = _scan(staging, connection, switched, view, start, end)
    return switched.answer if switched.sends else answer


def _scan(
    staging: Staging,
    connection: Connection,
    switched: Switched,
    view: memoryview,
    at: int,
    end: int,
) -> tuple[int, int, int]:
    """Take packets until one is not plain, or not whole, or has to wait; return why."""
    while True:
        if at == end:
            return ScanStatus.NEED_DATA, at, 0
        if not _may_begin(connection, view[at]):
            return ScanStatus.ODD, at, 0
        found = _fixed_header(view, at, end)
        if found is None:
            return ScanStatus.NEED_DATA, at, 0
        body_at, length = found
        if length < 0 or body_at + length - at > connection.packet_bytes_max:
            return ScanStatus.ODD, at, 0
        total = body_at + length - at
        if at + total > end:
            return ScanStatus.NEED_DATA, at, total
        status = ScanStatus.FRAME
        if view[at] >> 4 == _PUBLISH:
            status = _take(staging, connection, switched, view, at, body_at, at + total)
        elif view[at] >> 4 == _PUBACK and not switched.sends:
            status = _take_puback(staging, connection, bytes(view[body_at : at + total]))
        if status is not ScanStatus.NEED_DATA:
            return status, at, total
        at += total


def _may_begin(connection: Connection, first: int) -> bool:
    """Whether a client may send a packet with this first byte behind CONNECT."""
    kind, flags = first >> 4, first & 0x0F
    if kind == _PUBLISH:
        return True
    if kind == _AUTH and connection.version != 5:
        return False
    if connection.version == 3 and kind in _MAY_BE_DUP_3_1:
        flags &= ~_DUP
    return _FLAGS.get(kind) == flags


def _fixed_header(view: memoryview, at: int, end: int) -> tuple[int, int] | None:
    """Return where the rest begins and its length, -1 if that is malformed; None: not there yet."""
    length = 0
    for place in range(_LENGTH_BYTES):
        at += 1
        if at == end:
            return None
        length |= (view[at] & 0x7F) << (7 * place)
        if not view[at] & 0x80:
            return at + 1, length
    return at + 1, -1


def _take(
    staging: Staging,
    connection: Connection,
    switched: Switched,
    view: memoryview,
    at: int,
    body_at: int,
    end: int,
) -> ScanStatus:
    """Stage a PUBLISH, or keep it for its switch; FRAME and BLOCKED: nothing was done."""
    found = _read(connection, view, view[at] & 0x0F, body_at, end)
    if found is None:
        return ScanStatus.FRAME
    plan, packet_id, payload_at = found
    if packet_id is not None and _is_over_quota(staging, connection, switched):
        return ScanStatus.FRAME
    if switched.sends and not plan.route.is_switch:  # nothing is taken before them
        return ScanStatus.FRAME
    send = KeptSend(at, payload_at, end, end, plan, packet_id)
    if plan.route.is_switch:
        return ScanStatus.NEED_DATA if switched.keep(send) else ScanStatus.FRAME
    return stage_send(staging, connection, plan.route, view, send)


def _read(
    connection: Connection, view: memoryview, flags: int, at: int, end: int
) -> tuple[SendPlan, bytes | None, int] | None:
    """Read a PUBLISH; None: it is not plain.

    Returns:
        What is known of messages to its topic, its packet id or None, where its payload begins.
    """
    qos = flags >> 1 & 3
    if flags & _RETAIN or qos > 1 or (not qos and flags & _DUP) or end - at < 2:
        return None
    topic_bytes = view[at] << 8 | view[at + 1]
    topic = bytes(view[at + 2 : at + 2 + topic_bytes])
    at += 2 + topic_bytes
    has_properties = connection.version == 5
    if end - at < 2 * qos + has_properties:
        return None
    packet_id = None
    if qos:
        packet_id = bytes(view[at : at + 2])
        at += 2
    if packet_id == b"\0\0" or (has_properties and view[at]):
        return None
    at += has_properties
    plans = connection.topics.get(topic)
    if plans is None or end - at > connection.body_max or not plans[qos].route.is_open:
        return None
    return plans[qos], packet_id, at


def _take_puback(staging: Staging, connection: Connection, rest: bytes) -> ScanStatus:
    """Take the acknowledgement of a message that the core sent; FRAME, BLOCKED: nothing was done.

    Args:
        staging: The journal's end.
        connection: Whose it is.
        rest: What stands behind the fixed header.
    """
    is_plain = len(rest) == 2
    if connection.version == 5 and len(rest) in (3, 4):  # a reason, and no properties
        is_plain = rest[2] < _FAILURE and not any(rest[3:])
    if not is_plain:
        return ScanStatus.FRAME
    try:
        is_taken = take_puback(staging, connection, int.from_bytes(rest[:2], "big"))
    except NoRoom:
        return ScanStatus.BLOCKED
    return ScanStatus.NEED_DATA if is_taken else ScanStatus.FRAME


def _is_over_quota(staging: Staging, connection: Connection, switched: Switched) -> bool:
    """Whether the client has sent more that waits for an answer than it was told that it may.

    What is kept for a switch waits as well.
    """
    if connection.version != 5:
        return False
    most, kept = connection.unanswered_max, len(switched.sends)
    if staging.output_waiting(connection) // ANSWER_BYTES + kept < most:
        return False
    kept = sum(send.receipt is not None for send in switched.sends)
    return _unanswered(staging, connection) + kept >= most


def _unanswered(staging: Staging, connection: Connection) -> int:
    """Return how many PUBACKs and PUBRECs wait (see `CoreMqtt.unanswered`)."""
    data = memoryview(b"".join(staging.waiting_output(connection)))
    at = count = 0
    while at + 1 < len(data):
        count += data[at] >> 4 in (_PUBACK, _PUBREC)
        found = _fixed_header(data, at, len(data))
        if found is None:
            break
        body_at, length = found
        at = body_at + max(length, 0)
    return count


class TwinMqtt(Tables):
    """The calls of `abc_mqtt.CoreMqtt`; base class of `TwinCore`."""

    def set_ready_mqtt(self, connection: int, version: int, limits: MqttLimits) -> None:
        """See `CoreMqtt.set_ready_mqtt`."""
        known = self._connection(connection)
        if version not in (3, 4, 5) or limits.receive_maximum < 1:
            raise ValueError(f"version {version}, {limits}")
        known.is_mqtt = True
        known.version = version
        known.packet_bytes_max, known.body_max, known.unanswered_max = limits

    def teach_mqtt(self, connection: int, topic: bytes, address_line: bytes, route: int) -> None:
        """See `CoreMqtt.teach_mqtt`."""
        known, to = self._connection(connection), self._route(route)
        if not 0 < len(topic) <= TOPIC_BYTES_MAX or b"\0" in topic:
            raise ValueError(f"a topic of {len(topic)} bytes, or with NUL")
        if not 0 < len(address_line) <= ADDRESS_LINE_BYTES_MAX:
            raise ValueError(f"an address line of {len(address_line)} bytes")
        self._switched.clear()
        if len(known.topics) >= TOPICS_MAX:
            known.topics.clear()
        flags = RecordFlag.ESCAPED.value if b"\\" in address_line else 0
        volatile = SendPlan(
            to, address_line, False, _PRIORITY_USUAL, flags, 1, len(address_line), PROTOCOL
        )
        persistent = volatile._replace(
            properties=address_line + b"persistent:true\n", is_persistent=True, lines=2
        )
        known.topics[bytes(topic)] = (volatile, persistent)

    def unanswered(self, connection: int) -> int:
        """See `CoreMqtt.unanswered`."""
        known = self._connection(connection)
        if not known.is_mqtt:
            raise ValueError(f"connection {connection} is not one of MQTT")
        return _unanswered(self._staging, known)

    def scan_mqtt(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """See `CoreMqtt.scan_mqtt`.

        Durability: what was taken is durable with the block that is filling.
        """
        known, view = self._connection(connection), self._buffer(buffer)
        if not known.is_mqtt:
            raise ValueError(f"connection {connection} is not one of MQTT")
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"bytes {start} to {end} are not in a buffer of {len(view)}")
        return scan(self._staging, known, self._switched, view, start, end)

"""AMQP's fast path in: plain transfers (`abc_amqp.CoreAmqp.scan_amqp`).

Owns the decision what is plain, and where a frame ends. Never words an error: what is not plain or
not a frame goes to the codec in Python. A mix-in of `TwinCore`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc import NoRoom, ScanStatus
from vespiary_native.abc_amqp import (
    FRAME_HEAD_BYTES,
    LINKS_MAX,
    TAG_BYTES_MAX,
    AmqpLesson,
    AmqpLimits,
    AmqpTaken,
)
from vespiary_native.twin.amqp_fields import DISPOSITION, TRANSFER, Fields, read_composite
from vespiary_native.twin.amqp_sending import take_disposition
from vespiary_native.twin.amqp_sessions import AmqpLink, AmqpSession, Lesson, check_lesson
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection
from vespiary_native.twin.tables import Tables

_SIZE_BYTES: Final = 4
_OFFSET_UNIT_BYTES: Final = 4
_OFFSET_MIN: Final = 2
_TYPE_AMQP: Final = 0
PROTOCOL: Final = 3
_HEAD: Final = struct.Struct(">IBBH")
_ID_MASK: Final = 2**32 - 1
CHANNEL_MAX: Final = 2**16 - 1
ALLOWANCE_MAX: Final = 2**31 - 1


class Frame(NamedTuple):
    """One frame.

    Attributes:
        view: The bytes that it stands in.
        body_at: Where its body begins.
        end: Where it ends.
        channel: Its channel.
    """

    view: memoryview
    body_at: int
    end: int
    channel: int


class Confirmed:
    """Deliveries that were taken by one call, and are to be confirmed.

    Attributes:
        frames: The dispositions that are written.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._channel = self._first = self._count = 0

    def add(self, channel: int, delivery: int) -> None:
        """Take in a delivery."""
        is_next = delivery == (self._first + self._count) & _ID_MASK and channel == self._channel
        if self._count and is_next:
            self._count += 1
            return
        self.end()
        self._channel, self._first, self._count = channel, delivery, 1

    def end(self) -> None:
        """Write the disposition of the run that is open, as the codec does."""
        if not self._count:
            return
        last = (self._first + self._count - 1) & _ID_MASK
        fields = b"\x41%b%b\x41\0\x53\x24\x45" % (
            _uint(self._first), _uint(last) if self._count > 1 else b"\x40",
        )  # fmt: skip
        body = b"\0\x53\x15\xc0%c\5%b" % (len(fields) + 1, fields)
        self.frames.append(_HEAD.pack(_HEAD.size + len(body), 2, 0, self._channel) + body)
        self._count = 0


def _uint(value: int) -> bytes:
    if not value:
        return b"\x43"
    return b"\x52%c" % value if value < 256 else b"\x70" + value.to_bytes(4, "big")


def scan(
    staging: Staging, connection: Connection, view: memoryview, start: int, end: int
) -> tuple[int, int, int]:
    """Take whole frames from `view[start:end]` (see `abc_amqp.CoreAmqp.scan_amqp`)."""
    confirmed = Confirmed()
    answer = _scan(staging, connection, confirmed, view, start, end)
    confirmed.end()
    if confirmed.frames:
        staging.receipt(connection, b"".join(confirmed.frames), is_for_all=False)
    return answer


def _scan(
    staging: Staging,
    connection: Connection,
    confirmed: Confirmed,
    view: memoryview,
    at: int,
    end: int,
) -> tuple[int, int, int]:
    """Take frames until one is not plain, or not whole, or has to wait; return why."""
    while True:
        if at == end:
            return ScanStatus.NEED_DATA, at, 0
        found = _find(connection, view, at, end)
        if not isinstance(found, Frame):
            return ScanStatus.ODD if found < 0 else ScanStatus.NEED_DATA, at, max(found, 0)
        status = _take(staging, connection, confirmed, found)
        if status is not ScanStatus.NEED_DATA:
            return status, at, found.end - at
        at = found.end


def _find(connection: Connection, view: memoryview, at: int, end: int) -> Frame | int:
    """Return the frame at `at`; or how many bytes are needed to say more; -1: it is none."""
    left = end - at
    if left < _SIZE_BYTES:
        return _SIZE_BYTES
    size = int.from_bytes(view[at : at + _SIZE_BYTES], "big")
    if not FRAME_HEAD_BYTES <= size <= connection.packet_bytes_max:
        return -1
    if left < FRAME_HEAD_BYTES:
        return FRAME_HEAD_BYTES
    offset, kind = view[at + 4], view[at + 5]
    if offset < _OFFSET_MIN or offset * _OFFSET_UNIT_BYTES > size or kind != _TYPE_AMQP:
        return -1
    if left < size:
        return size
    channel = view[at + 6] << 8 | view[at + 7]
    return Frame(view, at + offset * _OFFSET_UNIT_BYTES, at + size, channel)


def _take(
    staging: Staging, connection: Connection, confirmed: Confirmed, frame: Frame
) -> ScanStatus:
    """Take a frame; FRAME and BLOCKED: it is not done with."""
    found = read_composite(frame.view, frame.body_at, frame.end)
    if found is None:
        return ScanStatus.FRAME
    code, fields, at = found
    if code == TRANSFER:
        payload = bytes(frame.view[at : frame.end])
        return _take_transfer(staging, connection, confirmed, frame.channel, fields, payload)
    if code == DISPOSITION and at == frame.end:
        return take_disposition(staging, connection, frame.channel, fields)
    return ScanStatus.FRAME


class _Transfer(NamedTuple):
    handle: int
    delivery: int
    is_settled: bool


def _read_transfer(fields: Fields) -> _Transfer | None:
    """Read a transfer that is a whole delivery and of no special kind; None: it is left."""
    handle, delivery, tag, message_format = (
        fields.uint(), fields.uint(), fields.binary(), fields.uint(),
    )  # fmt: skip
    is_settled, is_more = fields.boolean(), fields.boolean()
    is_special = bool(fields.ubyte(0)) or not fields.is_null()
    is_special |= fields.boolean()  # resume
    is_special |= fields.boolean()  # aborted
    fields.boolean()  # batchable
    if is_more or is_special or message_format or not fields.is_read:
        return None
    if handle is None or delivery is None or tag is None or len(tag) > TAG_BYTES_MAX:
        return None
    return _Transfer(handle, delivery, is_settled)


def _take_transfer(
    staging: Staging,
    connection: Connection,
    confirmed: Confirmed,
    channel: int,
    fields: Fields,
    payload: bytes,
) -> ScanStatus:
    """Stage the message of a transfer; FRAME and BLOCKED: nothing was done."""
    session = connection.sessions.get(channel)
    transfer = _read_transfer(fields) if session is not None and session.window else None
    if session is None or transfer is None:
        return ScanStatus.FRAME
    link = session.links.get(transfer.handle)
    found = link.find(payload) if link is not None and link.credit else None
    if link is None or found is None:
        return ScanStatus.FRAME
    lesson, body = found
    route, said = lesson.route, lesson.said
    is_taken = len(body) <= connection.body_max and route.is_open
    if not is_taken or staging.accounts.is_held(route):
        return ScanStatus.FRAME
    flags = RecordFlag.ESCAPED.value if said.is_escaped else 0
    try:
        block = staging.add(
            route,
            lesson.stored(payload),
            body,
            is_persistent=said.is_persistent,
            protocol=PROTOCOL,
            flags=flags,
        )
    except NoRoom:
        return ScanStatus.BLOCKED
    except ValueError:
        return ScanStatus.FRAME  # too large: the slow path says so to the client
    if block:
        connection.last_block = block
    session.window -= 1
    link.credit -= 1
    connection.taken[link] = connection.taken.get(link, 0) + 1
    if not (transfer.is_settled or link.is_settled):
        confirmed.add(channel, transfer.delivery)
    return ScanStatus.NEED_DATA


class TwinAmqp(Tables):
    """The calls of `abc_amqp.CoreAmqp`; base class of `TwinCore`."""

    def set_ready_amqp(self, connection: int, limits: AmqpLimits) -> None:
        """See `CoreAmqp.set_ready_amqp`."""
        known = self._connection(connection)
        if limits.frame_bytes < FRAME_HEAD_BYTES:
            raise ValueError(f"{limits}: a frame has {FRAME_HEAD_BYTES} bytes or more")
        known.is_amqp = True
        known.packet_bytes_max, known.body_max = limits

    def _amqp_connection(self, handle: int) -> Connection:
        known = self._connection(handle)
        if not known.is_amqp:
            raise ValueError(f"connection {handle} is not one of AMQP")
        return known

    def set_amqp_window(self, connection: int, channel: int, transfers: int) -> None:
        """See `CoreAmqp.set_amqp_window`."""
        known = self._amqp_connection(connection)
        if not 0 <= channel <= CHANNEL_MAX or not 0 <= transfers <= ALLOWANCE_MAX:
            raise ValueError(f"channel {channel}, {transfers} transfers")
        known.sessions.setdefault(channel, AmqpSession()).window = transfers

    def forget_amqp_session(self, connection: int, channel: int) -> None:
        """See `CoreAmqp.forget_amqp_session`."""
        known = self._amqp_connection(connection)
        session = known.sessions.pop(channel, None)
        for link in session.links.values() if session is not None else ():
            known.taken.pop(link, None)

    def teach_amqp(self, connection: int, channel: int, handle: int, lesson: AmqpLesson) -> bool:
        """See `CoreAmqp.teach_amqp`."""
        known, route = self._amqp_connection(connection), self._queues_route(lesson.route)
        if not 0 <= channel <= CHANNEL_MAX:
            raise ValueError(f"channel {channel}")
        check_lesson(lesson)
        session = known.sessions.setdefault(channel, AmqpSession())
        links = [one for each in known.sessions.values() for one in each.links.values()]
        link = session.links.get(handle)
        if link is None:
            if len(links) >= LINKS_MAX:
                return False
            link = session.links[handle] = AmqpLink(channel, handle)
        others_bytes = sum(one.size_bytes for one in links if one is not link)
        return link.teach(Lesson(lesson, route), others_bytes)

    def set_amqp_credit(
        self, connection: int, channel: int, handle: int, messages: int, *, settled: bool
    ) -> None:
        """See `CoreAmqp.set_amqp_credit`."""
        session = self._amqp_connection(connection).sessions.get(channel)
        link = session.links.get(handle) if session is not None else None
        if link is None or not 0 <= messages <= ALLOWANCE_MAX:
            raise ValueError(f"channel {channel}, handle {handle}: {link}, {messages} messages")
        link.credit, link.is_settled = messages, settled

    def forget_amqp_link(self, connection: int, channel: int, handle: int) -> None:
        """See `CoreAmqp.forget_amqp_link`."""
        known = self._amqp_connection(connection)
        session = known.sessions.get(channel)
        link = session.links.pop(handle, None) if session is not None else None
        if link is not None:
            known.taken.pop(link, None)

    def taken_amqp(self, connection: int) -> list[AmqpTaken]:
        """See `CoreAmqp.taken_amqp`."""
        known = self._amqp_connection(connection)
        taken = [AmqpTaken(one.channel, one.handle, count) for one, count in known.taken.items()]
        known.taken.clear()
        return taken

    def scan_amqp(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """See `CoreAmqp.scan_amqp`.

        Durability: what was taken is durable with the block that is filling.
        """
        known, view = self._amqp_connection(connection), self._buffer(buffer)
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"bytes {start} to {end} are not in a buffer of {len(view)}")
        self._switched.clear()
        return scan(self._staging, known, view, start, end)

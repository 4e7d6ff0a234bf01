"""AMQP's fast path in: plain transfers (`abc_amqp.CoreAmqp.scan_amqp`).

Owns the decision what is plain, and where a frame ends. Never words an error: what is not plain or
not a frame goes to the codec in Python. A mix-in of `TwinCore`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vespiary_native.abc import ScanStatus
from vespiary_native.abc_amqp import FRAME_HEAD_BYTES, AmqpLimits
from vespiary_native.twin.amqp_sessions import AmqpSession
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection
from vespiary_native.twin.tables import Tables

_SIZE_BYTES: Final = 4
_OFFSET_UNIT_BYTES: Final = 4
_OFFSET_MIN: Final = 2
_TYPE_AMQP: Final = 0
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


def scan(
    staging: Staging, connection: Connection, view: memoryview, at: int, end: int
) -> tuple[int, int, int]:
    """Take frames until one is not plain, or not whole, or has to wait; return why."""
    while True:
        if at == end:
            return ScanStatus.NEED_DATA, at, 0
        found = _find(connection, view, at, end)
        if not isinstance(found, Frame):
            return ScanStatus.ODD if found < 0 else ScanStatus.NEED_DATA, at, max(found, 0)
        status = _take(staging, connection, found)
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


def _take(staging: Staging, connection: Connection, frame: Frame) -> ScanStatus:  # noqa: ARG001
    """Take a frame; FRAME and BLOCKED: nothing was done."""
    return ScanStatus.FRAME


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
        self._amqp_connection(connection).sessions.pop(channel, None)

    def scan_amqp(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """See `CoreAmqp.scan_amqp`.

        Durability: what was taken is durable with the block that is filling.
        """
        known, view = self._amqp_connection(connection), self._buffer(buffer)
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"bytes {start} to {end} are not in a buffer of {len(view)}")
        self._switched.clear()
        return scan(self._staging, known, view, start, end)

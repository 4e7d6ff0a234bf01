"""Copies of records for readers of ranges, wherever the records stand: in the ring or in a page.

Owns the bounds of one answer and the form of a copy. Never knows where a message comes from. Used
by `ranges` and `page_looking`.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.record import ADD, PLACE, RecordFlag, RecordType, align8
from vespiary_native.abc_ranges import RangeCopy
from vespiary_native.twin.state import Message

_KEPT: Final = RecordFlag.ESCAPED | RecordFlag.LARGE | RecordFlag.SPECIAL


class RangeCopying:
    """One answer in the making.

    Args:
        queue_id: The queue.
        max_bytes: Of records, with their padding.
        is_first_whole: The first one comes even if it is larger.
        runs_max: Runs of neighbouring sequences, at most.
    """

    def __init__(
        self, queue_id: int, max_bytes: int, *, is_first_whole: bool, runs_max: int
    ) -> None:
        self._queue_id = queue_id
        self._max_bytes = max_bytes
        self._is_first_whole = is_first_whole
        self._runs_max = runs_max
        self._records: list[bytes] = []
        self._runs: list[tuple[int, int]] = []
        self._used = 0
        self._is_full = False

    def put(self, sequence: int, message: Message) -> bool:
        """Copy a message whose slab is in memory; False: there is no room for it."""
        length = align8(ADD.size + PLACE.size + message[2] + message[3])
        is_whole = self._is_first_whole and not self._records
        if self._used + length > self._max_bytes and not is_whole:
            self._is_full = True
            return False
        if not self._runs or self._runs[-1][1] != sequence - 1:
            if len(self._runs) == self._runs_max:
                return False
            self._runs.append((sequence, sequence))
        self._runs[-1] = self._runs[-1][0], sequence
        self._records.append(_copy(self._queue_id, sequence, message).ljust(length, b"\0"))
        self._used += length
        return True

    def result(self, next_sequence: int, absent: tuple[int, int] | None) -> RangeCopy:
        """Return the answer.

        Args:
            next_sequence: Where to go on.
            absent: What has to be in memory for that.
        """
        records = b"".join(self._records)
        count = len(self._records)
        return RangeCopy(records, count, self._runs, next_sequence, self._is_full, absent)


def _copy(queue_id: int, sequence: int, message: Message) -> bytes:
    """Return a message's record with this one place."""
    slab, at, properties_bytes, body_bytes, flags, _, record_at = message
    view = slab.view
    assert view is not None
    _, _, _, protocol, priority, arrival_ms, _, _, _ = ADD.unpack_from(view, record_at)
    content = bytes(view[at : at + properties_bytes + body_bytes])
    head = ADD.pack(
        ADD.size + PLACE.size + len(content),
        RecordType.ADD,
        flags & _KEPT,
        protocol,
        priority,
        arrival_ms,
        body_bytes,
        properties_bytes,
        1,
    )
    return head + PLACE.pack(queue_id, 0, sequence) + content

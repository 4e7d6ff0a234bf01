"""The contract of `abc_inspection.CoreInspection` over the C core (native/src/inspection.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method. A message that was looked
at is built from one packed buffer, without a call per field.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from vespiary_native.answers import DELIVER_STATUS, check
from vespiary_native.loader import ffi, lib
from vespiary_native.values import DeliverStatus, LargeBody, LargeDelivery
from vespiary_native.values_inspection import LOOK_LIVE_MAX, Look, MessageView

_VIEW: Final = struct.Struct("<Q???xHBBQ????III")
"""The fields of a `MessageView` but its properties, then where these begin and end
(`vespiary_view` of core.h)."""
_FIELDS: Final = len(MessageView._fields) - 1


def look_at(out: Any, data: Any, count: int) -> Look:
    """Return what a call that looks has filled in.

    Args:
        out: Its `vespiary_look`.
        data: Where its views are.
        count: How many.
    """
    absent = (out.absent_file, out.absent_slab) if out.absent_file else None
    if not count:
        return Look([], out.next_sequence, absent)
    found = ffi.buffer(data[0], out.length)[:]
    make = tuple.__new__
    return Look(
        [
            make(MessageView, (*view[:_FIELDS], found[view[_FIELDS] : view[-1]]))
            for view in _VIEW.iter_unpack(found[: count * _VIEW.size])
        ],
        out.next_sequence,
        absent,
    )


class NativeInspection:
    """See `abc_inspection.CoreInspection`."""

    _core: Any
    _frames: Any
    _result: Any
    _large: Any
    _look: Any
    _file_id: Any
    _length: Any

    # --- looking --------------------------------------------------------------------------------
    def look(
        self,
        queue_id: int,
        sequence: int,
        max_messages: int,
        *,
        everything: bool = False,
        returned_only: bool = False,
        special_only: bool = False,
        min_priority: int = 0,
    ) -> Look:
        """See `CoreInspection.look`."""
        out, data = self._look, self._frames
        count = lib.vespiary_core_look(
            self._core, queue_id, sequence, min(max(max_messages, 0), LOOK_LIVE_MAX), everything,
            returned_only, special_only, min_priority, out, data,
        )  # fmt: skip
        if count < 0:
            check(count, f"look({queue_id}, {sequence}, {max_messages})")
        return look_at(out, data, count)

    def held(
        self, consumer: int, sequence: int = 0, *, deliveries: int = 0
    ) -> list[tuple[int, int]]:
        """See `CoreInspection.held`."""
        where, room = f"held({consumer}, {sequence})", 0
        while True:
            out = ffi.new("uint64_t[]", 2 * room)
            count = check(
                lib.vespiary_core_held(self._core, consumer, sequence, deliveries, out, room), where
            )
            if count <= room:
                found = ffi.unpack(out, 2 * count) if count else []
                return sorted(zip(found[::2], found[1::2], strict=True))
            room = count

    def held_count(self, consumer: int) -> int:
        """See `CoreInspection.held_count`."""
        count = lib.vespiary_core_held_count(self._core, consumer)
        return check(count, f"held_count({consumer})")

    def next_deliverable(self, queue_id: int) -> int:
        """See `CoreInspection.next_deliverable`."""
        return check(
            lib.vespiary_core_next_deliverable(self._core, queue_id),
            f"next_deliverable({queue_id})",
        )

    def body(self, queue_id: int, sequence: int) -> bytes | None:
        """See `CoreInspection.body`."""
        data = self._frames
        length = check(
            lib.vespiary_core_body(self._core, queue_id, sequence, data),
            f"body({queue_id}, {sequence})",
        )
        return bytes(ffi.buffer(data[0], length)) if data[0] != ffi.NULL else None

    def absent_for(self, queue_id: int, sequence: int) -> tuple[int, int]:
        """See `CoreInspection.absent_for`."""
        bad = lib.vespiary_core_absent_for(
            self._core, queue_id, sequence, self._file_id, self._length
        )
        check(bad, f"absent_for({queue_id}, {sequence})")
        return self._file_id[0], self._length[0]

    # --- giving ---------------------------------------------------------------------------------
    def give(
        self, consumer: int, sequences: list[int], max_bytes: int
    ) -> tuple[DeliverStatus, int, int, bytes]:
        """See `CoreInspection.give`."""
        out, frames, passed = self._result, self._frames, self._length
        count = lib.vespiary_core_give(
            self._core, consumer, sequences, len(sequences), max_bytes, out, passed, frames
        )
        if count < 0:
            check(count, f"give({consumer})")
        data = bytes(ffi.buffer(frames[0], out.position)) if count else b""
        return DELIVER_STATUS[out.status], count, passed[0], data

    def give_large(self, consumer: int, sequence: int) -> LargeDelivery | None:
        """See `CoreInspection.give_large`."""
        found = lib.vespiary_core_give_large(
            self._core, consumer, sequence, self._large, self._frames
        )
        return self._large_delivery(check(found, f"give_large({consumer}, {sequence})"))

    def _large_delivery(self, found: int) -> LargeDelivery | None:
        """Return what `take_large` or `give_large` filled in."""
        if not found:
            return None
        out = self._large
        head = bytes(ffi.buffer(self._frames[0], out.head_length))
        return LargeDelivery(out.sequence, head, LargeBody(out.id, out.size, out.crc))

    # --- ending, setting aside ------------------------------------------------------------------
    def finish(self, queue_id: int, sequences: list[int], *, transaction: int = 0) -> int:
        """See `CoreInspection.finish`.

        Durability: durable with the block that is filling.
        """
        return check(
            lib.vespiary_core_finish(self._core, queue_id, sequences, len(sequences), transaction),
            f"finish({queue_id})",
        )

    def finish_held(self, consumer: int, sequence: int, *, transaction: int = 0) -> int:
        """See `CoreInspection.finish_held`.

        Durability: durable with the block that is filling.
        """
        return check(
            lib.vespiary_core_finish_held(self._core, consumer, sequence, transaction),
            f"finish_held({consumer}, {sequence})",
        )

    def specials_seen(self, queue_id: int) -> None:
        """See `CoreInspection.specials_seen`."""
        check(lib.vespiary_core_specials_seen(self._core, queue_id), f"specials_seen({queue_id})")

    def set_aside(self, queue_id: int, sequence: int) -> bool:
        """See `CoreInspection.set_aside`."""
        return bool(
            check(
                lib.vespiary_core_set_aside(self._core, queue_id, sequence),
                f"set_aside({queue_id}, {sequence})",
            )
        )

    def put_back(self, queue_id: int, sequence: int) -> bool:
        """See `CoreInspection.put_back`."""
        return bool(
            check(
                lib.vespiary_core_put_back(self._core, queue_id, sequence),
                f"put_back({queue_id}, {sequence})",
            )
        )

"""The contract of `abc_pages.CorePages` over the C core (native/src/page*.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

import errno
from itertools import accumulate
from typing import Any, Final

from vespiary_native.answers import check
from vespiary_native.inspection import look_at
from vespiary_native.loader import ffi, lib
from vespiary_native.values_inspection import LOOK_LIVE_MAX, Look
from vespiary_native.values_pages import ExtentFacts, PageFacts, PageFill, PagePiece, PageState

_BATCH: Final = 256
_FILE_BYTES_MAX: Final = 2**32


class NativePages:
    """See `abc_pages.CorePages`."""

    _core: Any
    _slab_bytes: int
    _page_bytes: dict[int, int]  # of pages that are being filled
    _look: Any
    _frames: Any

    # --- out ------------------------------------------------------------------------------------
    def page_open(self, page_id: int, salt: int, size_bytes: int, queue_ids: list[int]) -> None:
        """See `CorePages.page_open`."""
        if not 0 < page_id < 1 << 62 or not 0 <= size_bytes < _FILE_BYTES_MAX:
            raise ValueError(f"page {page_id} of {size_bytes} bytes: out of range")
        check(
            lib.vespiary_core_page_open(
                self._core, page_id, salt, size_bytes, queue_ids, len(queue_ids)
            ),
            f"page_open({page_id}, {size_bytes} bytes, queues {queue_ids})",
        )
        self._page_bytes[page_id] = size_bytes

    def page_fill(
        self,
        page_id: int,
        queue_id: int,
        sequence: int,
        up_to_sequence: int,
        max_bytes: int,
        max_places: int,
    ) -> PageFill:
        """See `CorePages.page_fill`."""
        out = ffi.new("vespiary_page_fill *")
        bad = lib.vespiary_core_page_fill(
            self._core, page_id, queue_id, sequence, up_to_sequence, max_bytes, max_places, out
        )
        check(bad, f"page_fill({page_id}, queue {queue_id})")
        absent = (out.absent_file, out.absent_slab) if out.absent_file else None
        return PageFill(
            out.next_sequence, out.copied_records, out.copied_bytes, bool(out.is_full), absent
        )

    def page_close(self, page_id: int) -> list[PagePiece]:
        """See `CorePages.page_close`."""
        room = self._page_bytes.get(page_id, 0) // self._slab_bytes + 4
        out = ffi.new("vespiary_write[]", room)
        count = check(
            lib.vespiary_core_page_close(self._core, page_id, out, room), f"page_close({page_id})"
        )
        if count:
            self._page_bytes.pop(page_id, None)
        return [PagePiece(one.address, one.length, one.offset) for one in out[0:count]]

    def page_commit(self, page_id: int) -> int:
        """See `CorePages.page_commit`.

        Durability: the file, its name and its folder were flushed before.
        """
        block = lib.vespiary_core_page_commit(self._core, page_id)
        if block == -errno.EMSGSIZE:
            raise ValueError(f"no journal file can hold the PAGE record of page {page_id}")
        return check(block, f"page_commit({page_id})")

    def page_abandon(self, page_id: int) -> None:
        """See `CorePages.page_abandon`."""
        check(lib.vespiary_core_page_abandon(self._core, page_id), f"page_abandon({page_id})")
        self._page_bytes.pop(page_id, None)

    # --- in -------------------------------------------------------------------------------------
    def page_wanted(self) -> list[tuple[int, int]]:
        """See `CorePages.page_wanted`."""
        wanted: list[tuple[int, int]] = []
        out = ffi.new("vespiary_page_wish[]", _BATCH)
        while count := lib.vespiary_core_page_wanted(self._core, out, _BATCH):
            wanted += [(one.queue_id, one.page_id) for one in out[0:count]]
        return wanted

    def page_enter(self, page_id: int, queue_id: int, footer: bytes) -> int:
        """See `CorePages.page_enter`."""
        return check(
            lib.vespiary_core_page_enter(
                self._core, page_id, queue_id, ffi.from_buffer(footer), len(footer)
            ),
            f"page_enter({page_id}, queue {queue_id})",
        )

    def page_leave(self, page_id: int, queue_id: int) -> bool:
        """See `CorePages.page_leave`."""
        return bool(
            check(
                lib.vespiary_core_page_leave(self._core, page_id, queue_id),
                f"page_leave({page_id}, queue {queue_id})",
            )
        )

    def page_look(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        max_messages: int,
        *,
        min_priority: int = 0,
    ) -> Look:
        """See `CorePages.page_look`."""
        out, data = self._look, self._frames
        count = lib.vespiary_core_page_look(
            self._core, page_id, queue_id, ffi.from_buffer(footer), len(footer), sequence,
            min(max(max_messages, 0), LOOK_LIVE_MAX), min_priority, out, data,
        )  # fmt: skip
        check(count, f"page_look({page_id}, queue {queue_id}, {sequence}, {max_messages})")
        return look_at(out, data, count)

    def page_bodies(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequences: list[int],
        max_bytes: int,
    ) -> list[bytes]:
        """See `CorePages.page_bodies`."""
        data, lengths = self._frames, ffi.new("uint32_t[]", max(len(sequences), 1))
        count = check(
            lib.vespiary_core_page_bodies(
                self._core, page_id, queue_id, ffi.from_buffer(footer), len(footer), sequences,
                len(sequences), min(max_bytes, _FILE_BYTES_MAX - 1), lengths, data,
            ),
            f"page_bodies({page_id}, queue {queue_id})",
        )  # fmt: skip
        ends = list(accumulate(lengths[0:count]))
        found = bytes(ffi.buffer(data[0], ends[-1])) if count else b""
        return [found[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def page_pick(self, page_id: int, queue_id: int, footer: bytes, sequences: list[int]) -> int:
        """See `CorePages.page_pick`."""
        return check(
            lib.vespiary_core_page_pick(
                self._core, page_id, queue_id, ffi.from_buffer(footer), len(footer), sequences,
                len(sequences),
            ),
            f"page_pick({page_id}, queue {queue_id})",
        )  # fmt: skip

    def page_keep(self, queue_id: int, sequences: list[int], *, is_kept: bool) -> None:
        """See `CorePages.page_keep`."""
        check(
            lib.vespiary_core_page_keep(self._core, queue_id, sequences, len(sequences), is_kept),
            f"page_keep(queue {queue_id})",
        )

    # --- the end --------------------------------------------------------------------------------
    def page_done(self) -> list[int]:
        """See `CorePages.page_done`."""
        room = lib.vespiary_core_pages(self._core, ffi.NULL, 0)
        out = ffi.new("uint64_t[]", max(room, 1))
        count = lib.vespiary_core_page_done(self._core, out, room)
        return [int(page_id) for page_id in out[0:count]]

    def page_end(self, page_id: int) -> int:
        """See `CorePages.page_end`.

        Durability: the file may go once the block is durable.
        """
        return check(lib.vespiary_core_page_end(self._core, page_id), f"page_end({page_id})")

    def page_forget(self, page_id: int) -> None:
        """See `CorePages.page_forget`."""
        check(lib.vespiary_core_page_forget(self._core, page_id), f"page_forget({page_id})")

    def page_restage(self, page_id: int) -> int:
        """See `CorePages.page_restage`."""
        return check(
            lib.vespiary_core_page_restage(self._core, page_id), f"page_restage({page_id})"
        )

    # --- questions ------------------------------------------------------------------------------
    def pages(self) -> list[PageFacts]:
        """See `CorePages.pages`."""
        room = lib.vespiary_core_pages(self._core, ffi.NULL, 0)
        out = ffi.new("vespiary_page_facts[]", max(room, 1))
        lib.vespiary_core_pages(self._core, out, room)
        return [
            PageFacts(
                one.page_id,
                one.salt,
                one.size,
                PageState(one.state),
                one.places,
                one.record_file,
            )
            for one in out[0:room]
        ]

    def extents(self, queue_id: int, begin: int = 0, most: int | None = None) -> list[ExtentFacts]:
        """See `CorePages.extents`."""
        asked = lib.vespiary_core_extents
        if most is None:
            most = check(asked(self._core, queue_id, begin, ffi.NULL, 0), f"extents({queue_id})")
        out = ffi.new("vespiary_extent_facts[]", max(most, 1))
        count = check(asked(self._core, queue_id, begin, out, most), f"extents({queue_id})")
        return [_extent(one) for one in out[0 : min(count, most)]]

    def extent_index(self, queue_id: int, sequence: int) -> int:
        """See `CorePages.extent_index`."""
        return check(
            lib.vespiary_core_extent_index(self._core, queue_id, sequence),
            f"extent_index({queue_id})",
        )

    def extent(self, page_id: int, queue_id: int) -> ExtentFacts | None:
        """See `CorePages.extent`."""
        out = ffi.new("vespiary_extent_facts *")
        return (
            _extent(out) if lib.vespiary_core_extent(self._core, page_id, queue_id, out) else None
        )

    def page_record_bytes(self, page_id: int) -> int:
        """See `CorePages.page_record_bytes`."""
        return int(lib.vespiary_core_page_record_bytes(self._core, page_id))

    def pages_in(self, file_id: int) -> list[int]:
        """See `CorePages.pages_in`."""
        asked = lib.vespiary_core_pages_in
        room = check(asked(self._core, file_id, ffi.NULL, 0), f"pages_in({file_id})")
        out = ffi.new("uint64_t[]", max(room, 1))
        asked(self._core, file_id, out, room)
        return [int(page_id) for page_id in out[0:room]]


def _extent(facts: Any) -> ExtentFacts:
    return ExtentFacts(facts.page_id, facts.first, facts.last, facts.places, bool(facts.is_open))

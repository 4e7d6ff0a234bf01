"""The contract of `abc_ranges.CoreRanges` over the C core (native/src/ranges.c, page_looking.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.abc_ranges import RUNS_MAX, RangeCopy
from vespiary_native.answers import check
from vespiary_native.loader import ffi, lib


class NativeRanges:
    """See `abc_ranges.CoreRanges`."""

    _core: Any
    _frames: Any

    def copy_range(
        self,
        queue_id: int,
        sequence: int,
        end: int,
        max_bytes: int,
        *,
        is_first_whole: bool = False,
        runs_max: int = RUNS_MAX,
    ) -> RangeCopy:
        """See `CoreRanges.copy_range`."""
        if not 1 <= runs_max <= RUNS_MAX:
            raise ValueError(f"runs_max {runs_max} is not from 1 to {RUNS_MAX}")
        out, data = ffi.new("vespiary_range *"), self._frames
        runs = ffi.new("uint64_t[]", 2 * runs_max)
        bad = lib.vespiary_core_copy_range(
            self._core, queue_id, sequence, end, max_bytes, is_first_whole,
            runs, runs_max, out, data,
        )  # fmt: skip
        check(bad, f"copy_range({queue_id}, {sequence}, {end})")
        return _copied(out, runs, data)

    def page_copy(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        end: int,
        max_bytes: int,
        *,
        is_first_whole: bool = False,
        runs_max: int = RUNS_MAX,
    ) -> RangeCopy:
        """See `CoreRanges.page_copy`."""
        if not 1 <= runs_max <= RUNS_MAX:
            raise ValueError(f"runs_max {runs_max} is not from 1 to {RUNS_MAX}")
        out, data = ffi.new("vespiary_range *"), self._frames
        runs = ffi.new("uint64_t[]", 2 * runs_max)
        bad = lib.vespiary_core_page_copy(
            self._core, page_id, queue_id, ffi.from_buffer(footer), len(footer),
            sequence, end, max_bytes, is_first_whole, runs, runs_max, out, data,
        )  # fmt: skip
        check(bad, f"page_copy({page_id}, queue {queue_id}, {sequence}, {end})")
        return _copied(out, runs, data)

    def finish_below(self, queue_id: int, end: int, max_messages: int) -> int:
        """See `CoreRanges.finish_below`.

        Durability: durable with the block that is filling.
        """
        done = lib.vespiary_core_finish_below(self._core, queue_id, end, max_messages)
        return check(done, f"finish_below({queue_id}, {end})")


def _copied(out: Any, runs: Any, data: Any) -> RangeCopy:
    ends = ffi.unpack(runs, 2 * out.runs) if out.runs else []
    return RangeCopy(
        bytes(ffi.buffer(data[0], out.length)) if out.length else b"",
        out.records,
        list(zip(ends[::2], ends[1::2], strict=True)),
        out.next_sequence,
        bool(out.is_full),
        (out.absent_file, out.absent_slab) if out.absent_file else None,
    )

"""Figures of a journal for metrics, status and tests: counted on the loop, handed out frozen.

Owns: the histogram of flush times and the records that `statistics()` returns. Must never cost more
than a few additions for one write. Called by `writer` and `bindings`.
"""

from __future__ import annotations

import ctypes
import struct
import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from vespiary_broker.store.options import Durability
from vespiary_codec.journal.block import HEADER_BYTES, align4k
from vespiary_native.abc import WriteRequest

FLUSH_BOUNDS_US = (
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 1_000_000,
)  # fmt: skip
"""Upper bounds of the buckets, in microseconds; one more bucket holds what took longer."""


RECORD_BOUNDS = tuple(2**n for n in range(14))
"""Upper bounds of the buckets for records of one write, 1 to 8192."""

BYTE_BOUNDS = tuple(4096 * 2**n for n in range(9))
"""Upper bounds of the buckets for bytes of one write, 4 KiB to 1 MiB."""

_LENGTH_AND_RECORDS = struct.Struct("<II")
_LENGTH_AT = 32  # in a block's header: docs/internals/journal-format.md §2.1


@dataclass(frozen=True, slots=True)
class Distribution:
    """How often a value lay where.

    Attributes:
        bounds: Upper bounds of the buckets.
        counts: Values by bucket, those of `bounds` and one above.
        total: Sum of the values.
    """

    bounds: tuple[int, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: int = 0


class Histogram:
    """Counts values by bucket. Owner: the event loop's thread."""

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0

    def add(self, value: int) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        """Return the counts as they are now."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


_ENDED_MAX = 64
"""Writes that are sorted into the histograms at once, away from the confirms of each."""

EndedWrite = tuple[int, int]
"""Nanoseconds of a write: from its submission, and from when its first record was staged."""


def records_in(request: WriteRequest) -> int:
    """Return the number of records in a write, from the headers of its blocks in memory.

    Args:
        request: A write whose memory is still in place: before `write_done`.
    """
    records, at = 0, request.address
    end = at + request.length
    while at < end:
        header = ctypes.string_at(at + _LENGTH_AT, _LENGTH_AND_RECORDS.size)
        length, count = _LENGTH_AND_RECORDS.unpack(header)
        records += count
        at += align4k(HEADER_BYTES + length)
    return records


class WriteFigures:
    """What is counted for each write. Owner: the event loop's thread.

    Attributes:
        writes: Writes that ended well.
        written_bytes: Bytes of these, padding included.
        flush: Times from submission to completion.
        append_us: From when the first of a write's records was staged until all were durable.
        records: Records of each write.
        bytes: Bytes of each write.
    """

    def __init__(self) -> None:
        self.writes = 0
        self.written_bytes = 0
        self.flush = FlushHistogram()
        self.append_us = Histogram(FLUSH_BOUNDS_US)
        self.records = Histogram(RECORD_BOUNDS)
        self.bytes = Histogram(BYTE_BOUNDS)
        self.is_staged = False
        self._staged_ns = 0
        self._sealed_ns = 0
        self._submitted_ns = 0
        self._first_sequence = 0
        self._last_sequence = 0
        self._ended: list[tuple[int, int, int, int]] = []

    @property
    def blocks(self) -> int:
        """Blocks of the writes that ended well."""
        return self._last_sequence - self._first_sequence + 1 if self.writes else 0

    def note_staged(self) -> None:
        """Note when the first record of the next write was staged."""
        self._staged_ns = time.perf_counter_ns()
        self.is_staged = True

    def note_submitted(self) -> None:
        """Note when a write was submitted; what is staged from now on goes out with the next."""
        self._submitted_ns = time.perf_counter_ns()
        self._sealed_ns = self._staged_ns if self.is_staged else self._submitted_ns
        self.is_staged = False

    def end(self) -> EndedWrite:
        """Note that the write in flight has become durable; `add` counts it when there is time."""
        now_ns = time.perf_counter_ns()
        return now_ns - self._submitted_ns, now_ns - self._sealed_ns

    def add(self, request: WriteRequest, records: int, ended: EndedWrite) -> None:
        """Count a write that has become durable.

        Args:
            request: The write.
            records: `records_in` it.
            ended: What `end` said about it.
        """
        self._ended.append((*ended, records, request.length))
        self.writes += 1
        self.written_bytes += request.length
        self._first_sequence = self._first_sequence or request.sequence
        self._last_sequence = request.sequence
        if len(self._ended) == _ENDED_MAX:
            self.fold()

    def fold(self) -> None:
        """Sort into the histograms what was counted: call it before they are read."""
        for flush_ns, append_ns, records, size_bytes in self._ended:
            self.flush.add(flush_ns // 1000)
            self.append_us.add(append_ns // 1000)
            self.records.add(records)
            self.bytes.add(size_bytes)
        self._ended.clear()


class FlushHistogram:
    """Times of writes with their flush. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._counts = [0] * (len(FLUSH_BOUNDS_US) + 1)
        self.sum_us = 0

    def add(self, elapsed_us: int) -> None:
        """Count one write that took `elapsed_us` microseconds from submission to completion."""
        self._counts[bisect_left(FLUSH_BOUNDS_US, elapsed_us)] += 1
        self.sum_us += elapsed_us

    def counts(self) -> tuple[int, ...]:
        """Return the counts by bucket, those of `FLUSH_BOUNDS_US` and one above."""
        return tuple(self._counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCounts:
    """Files of a journal by state.

    Attributes:
        active: In use, those made ready ahead of need included.
        ahead: Made ready, not yet begun.
        free: Kept for use again.
        bytes_on_disk: Size of all of them.
        pinned: Of the active ones, full files without a live message: they wait for files before
            them, whose messages their acknowledgements cancel.
    """

    active: int
    ahead: int
    free: int
    bytes_on_disk: int
    pinned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStatistics:
    """Kept copies.

    Attributes:
        copies: Copies in the folder.
        copies_bytes: Size of them.
        files_waiting: Full journal files without a copy: they can't be freed.
        bodies: Bodies of large messages kept beside them.
        bodies_bytes: Size of them.
        bodies_waiting: Bodies that nobody needs, without a copy: their files stay.
        copied: Copies of files made since the start.
        removed: Copies removed since the start, by age or size, bodies too.
        blocked_reason: Why copies wait; None while they are made.
    """

    copies: int = 0
    copies_bytes: int = 0
    files_waiting: int = 0
    bodies: int = 0
    bodies_bytes: int = 0
    bodies_waiting: int = 0
    copied: int = 0
    removed: int = 0
    blocked_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCounts:
    """Counters of the compaction since the journal was opened.

    Attributes:
        is_running: Whether files are being emptied now.
        waiting_files: Files that are worth emptying.
        waiting_bytes: What is live in them.
        files: Files that were emptied.
        moved_bytes: Bytes of records written for that.
        moved_messages: Places of messages that were moved.
        step_us: Times for which it, or a checkpoint that frees files, held the event loop.
        step_us_max: The longest of them.
    """

    is_running: bool = False
    waiting_files: int = 0
    waiting_bytes: int = 0
    files: int = 0
    moved_bytes: int = 0
    moved_messages: int = 0
    step_us: Distribution = Distribution()
    step_us_max: int = 0


class LeaseState(NamedTuple):
    """How the ownership of a journal stands.

    Attributes:
        epoch: Number of this owner.
        lease_s: Seconds for which confirms leave after a look at the block.
        age_s: Seconds since the latest good look at it began.
        waiting_reason: Why confirms wait, as a sentence; None while they need not.
    """

    epoch: int
    lease_s: float
    age_s: float
    waiting_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """Counters of one journal since it was opened.

    Attributes:
        engine: Effective engine: ASYNCIO, IO_URING, NIO or MEMORY.
        fallback_reason: Why it is not the one asked for; None if it is.
        durability: What a confirm is worth.
        writes: Writes that ended well.
        written_bytes: Bytes of these, padding included.
        blocks: Blocks of these.
        records: Records added.
        payload_bytes: Bytes of these.
        flush_counts: Writes by time (`counters.FLUSH_BOUNDS_US`, one more above).
        flush_sum_us: Sum of these times in microseconds.
        slab_loads: Slabs read back.
        files: Files by state.
        files_made: Files created.
        preallocation_fallbacks: Of these, made by another strategy than the one asked for.
        files_reclaimed: Files freed.
        sequence_durable: Highest durable block.
        unwritten_bytes: Sealed and not yet durable.
        live_bytes: What is live in the files.
        live_percent: Its share of the files in use, those ahead excepted.
        compaction: Counters of the compaction.
        failed_reason: The sentence of the failure that fenced the journal; None while it works.
        blocked_reason: Why no file can be made; None while there is room.
        reserve_bytes: What the disk reserve takes.
        reserve_owed_bytes: What it gave up for a start on a full disk, and has to get back.
        retention: Kept copies of full files; None while none are kept.
        append_us: See `WriteFigures`.
        write_records: See `WriteFigures`.
        write_bytes: See `WriteFigures`.
        recovery_s: Seconds from the lock on the folder until the journal was open.
        requests_in_flight: Reads and writes that the disk has to end.
        requests_max: Most of them at once.
        ownership: Whose it is; None without persistence.
    """

    engine: str
    fallback_reason: str | None
    durability: Durability
    writes: int
    written_bytes: int
    blocks: int
    records: int
    payload_bytes: int
    flush_counts: tuple[int, ...]
    flush_sum_us: int
    slab_loads: int
    files: FileCounts
    files_made: int
    preallocation_fallbacks: int
    files_reclaimed: int
    sequence_durable: int
    unwritten_bytes: int
    live_bytes: int
    live_percent: float
    compaction: CompactionCounts
    failed_reason: str | None
    blocked_reason: str | None
    reserve_bytes: int = 0
    reserve_owed_bytes: int = 0
    retention: RetentionStatistics | None = None
    append_us: Distribution = Distribution()
    write_records: Distribution = Distribution()
    write_bytes: Distribution = Distribution()
    recovery_s: float = 0.0
    requests_in_flight: int = 0
    requests_max: int = 0
    ownership: LeaseState | None = None

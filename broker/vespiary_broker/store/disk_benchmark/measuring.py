"""Timing writes and reads with the broker's own rings, one operation in flight.

Owns: streams of operations and the turns that they take. Must never write to a file that it was not
given. Called by `benchmark`.

A disk that others use drifts by the second. So the streams of a group take turns of a few
milliseconds in an order shuffled each time, and before a turn the file is flushed, untimed: no
stream pays for another, and a slow second hits all of them alike.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable, Sequence

from vespiary_broker.store.disk import DiskFile
from vespiary_broker.store.disk_benchmark.results import Phase
from vespiary_native.abc_ring import Ring
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import NativeError, StorageError

TURN_S = 0.020
_TOKEN = 1

SYNCED_WRITE = "synced-write"
WRITE = "write"
READ = "read"


class Cursor:
    """The next offset of a file; streams that write to one file in turns share it.

    Args:
        file_bytes: Where the file ends, or would end.
        is_wrapping: Start again at the file's begin; else the file ends there, since a block that
            was written once tells nothing of the first write to one.
    """

    def __init__(self, file_bytes: int, *, is_wrapping: bool) -> None:
        self._file_bytes = file_bytes
        self._is_wrapping = is_wrapping
        self._offset = 0

    def is_at_end(self, block_bytes: int) -> bool:
        """Whether no such block is left."""
        return not self._is_wrapping and self._offset + block_bytes > self._file_bytes

    def take(self, block_bytes: int) -> int:
        """Return the offset of the next block."""
        if self._offset + block_bytes > self._file_bytes:
            self._offset = 0
        offset = self._offset
        self._offset += block_bytes
        return offset


class Stream:
    """Operations of one kind at consecutive offsets of a file. Owner: the measuring thread."""

    def __init__(
        self,
        *,
        group: str,
        kind: str,
        ring: Ring,
        file: DiskFile,
        preallocation: str,
        block_bytes: int,
        cursor: Cursor,
    ) -> None:
        """Prepare; nothing is written yet.

        Args:
            group: Name of those that it is compared with.
            kind: SYNCED_WRITE, WRITE or READ.
            ring: Open; the stream has it to itself during a turn.
            file: Open for reading and writing.
            preallocation: How the file was made.
            block_bytes: Bytes of one operation, at most the file's size.
            cursor: Where the file is.
        """
        self.group = group
        self.kind = kind
        self._ring = ring
        self._file = file
        self._preallocation = preallocation
        self._block_bytes = block_bytes
        self._cursor = cursor
        self._buffer = AlignedBuffer(block_bytes, populate=True)
        # Random, so that a disk or a filesystem that compresses gains nothing.
        self._buffer.memoryview[:] = os.urandom(block_bytes)
        self._times_ns: list[int] = []
        self._elapsed_ns = 0
        self._poll = select.poll()
        self._poll.register(ring.fileno(), select.POLLIN)

    @property
    def elapsed_s(self) -> float:
        """Time measured so far."""
        return self._elapsed_ns / 1e9

    @property
    def is_at_end(self) -> bool:
        """Whether the file has no block left."""
        return self._cursor.is_at_end(self._block_bytes)

    def turn(self, seconds: float) -> None:
        """Go on for so many seconds, one operation at least.

        Raises:
            NativeError: An operation failed.
        """
        os.fdatasync(self._file.fileno())
        begin_ns = time.perf_counter_ns()
        end_ns = begin_ns + int(seconds * 1e9)
        now_ns = begin_ns
        while now_ns < end_ns and not self.is_at_end:
            self._operate(self._cursor.take(self._block_bytes))
            before_ns, now_ns = now_ns, time.perf_counter_ns()
            self._times_ns.append(now_ns - before_ns)
        if self.kind == WRITE:
            os.fdatasync(self._file.fileno())
            now_ns = time.perf_counter_ns()
        self._elapsed_ns += now_ns - begin_ns

    def _operate(self, offset: int) -> None:
        fd, length = self._file.fileno(), self._block_bytes
        if self.kind == READ:
            self._ring.submit_read(fd, self._buffer.address, length, offset, _TOKEN)
        else:
            self._ring.submit_write(
                fd,
                self._buffer.address,
                length,
                offset,
                _TOKEN,
                durable=self.kind == SYNCED_WRITE,
            )
        taken: list[tuple[int, int]] = []
        while not taken:
            self._poll.poll()
            taken = self._ring.completions()
        result = taken[0][1]
        where = f"{self._file.path}:{offset}"
        if result < 0:
            raise NativeError(f"a {self.kind} failed", -result, where=where)
        if result != length:
            raise StorageError(
                f"a {self.kind} was cut short",
                where=where,
                measured=f"{result} bytes",
                allowed=f"{length} bytes",
            )

    @property
    def has_measured(self) -> bool:
        """Whether there was room for one operation at least."""
        return bool(self._times_ns)

    def phase(self) -> Phase:
        """Return the figures.

        Raises:
            StorageError: Nothing was measured.
        """
        if not self._times_ns:
            raise StorageError("the files are too small to measure anything", cure="raise --size")
        ordered = sorted(self._times_ns)
        count, seconds = len(ordered), self._elapsed_ns / 1e9
        return Phase(
            group=self.group,
            kind=self.kind,
            engine=self._ring.name,
            preallocation=self._preallocation,
            block_bytes=self._block_bytes,
            operations=count,
            seconds=seconds,
            operations_per_s=count / seconds,
            bytes_per_s=count * self._block_bytes / seconds,
            p50_us=percentile_us(ordered, 0.50),
            p90_us=percentile_us(ordered, 0.90),
            p99_us=percentile_us(ordered, 0.99),
            max_us=ordered[-1] / 1e3,
        )


def percentile_us(ordered_ns: Sequence[int], fraction: float) -> float:
    """Return a percentile (nearest rank) of ascending nanoseconds, in microseconds."""
    rank = max(-(-int(len(ordered_ns) * fraction * 1000) // 1000) - 1, 0)
    return ordered_ns[min(rank, len(ordered_ns) - 1)] / 1e3


def take_turns(
    streams: Sequence[Stream],
    seconds: float,
    *,
    on_progress: Callable[[float], None] = lambda _: None,
    is_room_uncertain: bool = False,
    seed: int = 1,
) -> list[Phase]:
    """Let streams take turns until each has had its time or reached its file's end.

    Args:
        streams: The streams of one group.
        seconds: Time for each, above 0.
        on_progress: Called after each turn with the seconds that it stands for, of
            `seconds * len(streams)` in all.
        is_room_uncertain: Leave streams out that found no block left, rather than refuse.
        seed: For the order of the turns.

    Returns:
        The figures, in the order of the streams.

    Raises:
        NativeError: An operation failed.
        StorageError: An operation was cut short, or there was no room for a single one.
    """
    chance = random.Random(seed)  # noqa: S311 (an order, no secret)
    left = list(streams)
    while left:
        chance.shuffle(left)
        for stream in list(left):
            before_s = stream.elapsed_s
            stream.turn(min(TURN_S, seconds))
            on_progress(min(stream.elapsed_s, seconds) - min(before_s, seconds))
            if stream.elapsed_s >= seconds or stream.is_at_end:
                left.remove(stream)
                on_progress(max(seconds - stream.elapsed_s, 0.0))
    return [stream.phase() for stream in streams if stream.has_measured or not is_room_uncertain]

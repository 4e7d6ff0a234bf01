"""Reading a range of a queue: the records of its messages, wherever they stand, and the gaps.

Owns the walk for one answer, in short turns of the event loop. Must never change a message. Called
by `streaming`; owner: the event loop.

What stands in the ring, or in a page, is copied by the core, block by block. Where pages
interleave, messages are looked at one by one where they stand (`queue_walk`), and the records are
made here: the same bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_broker.app.queue_walk import Pages, QueueWalk
from vespiary_broker.engine.core import Core, MessageView, RangeCopy
from vespiary_broker.engine.stream_gaps import Gap
from vespiary_codec.journal.ranges import RangeBlocks
from vespiary_codec.journal.record import AddRecord, Place, align8, encode_record

if TYPE_CHECKING:
    from vespiary_broker.engine.streams import Stream
    from vespiary_broker.store.journal import Journal

RUNS_MAX: Final = 10_000
"""Runs of neighbouring sequences in one answer; it ends behind the last of them."""
_LOOKED_AT_ONCE: Final = 256


class Range(NamedTuple):
    """What was read.

    Attributes:
        blocks: The messages (`vespiary_codec.journal.ranges`).
        messages: How many.
        through: All up to this sequence is answered.
        gaps: Where there are none.
    """

    blocks: bytearray
    messages: int
    through: int
    gaps: list[Gap]


class RangeReading:
    """One answer.

    Args:
        core: The core.
        journal: The message journal: it brings back what is not in memory.
        pages: What is known of pages; None: there are none.
        stream: The stream.
        max_bytes: Bound of the blocks; the first message comes in any case.
    """

    def __init__(
        self, core: Core, journal: Journal, pages: Pages | None, stream: Stream, max_bytes: int
    ) -> None:
        self._core = core
        self._stream = stream
        self._queue_id = stream.queue.id
        self._walk = QueueWalk(core, journal, pages, stream.queue)
        self._blocks = RangeBlocks(self._queue_id, max_bytes)
        self._runs: list[tuple[int, int]] = []

    async def read(self, after: int, to: int) -> Range:
        """Read the messages behind one sequence up to another.

        Args:
            after: Begin behind this one.
            to: The last one; all up to it is readable.

        Raises:
            RemoteProtocolError: The queue was deleted meanwhile.
            PageDamaged: Messages stand in a page that is.
        """
        at, blocks = max(after, self._stream.acknowledged) + 1, self._blocks
        try:
            while at <= to and not blocks.is_full and len(self._runs) < RUNS_MAX:
                at = await self._step(at, to)
        finally:
            self._walk.leave()
        through = min(max(at - 1, after), to) if at <= to else to
        answer = blocks.finish()
        return Range(answer, blocks.count, through, self._gaps(after, through))

    async def _step(self, at: int, to: int) -> int:
        """Copy what the block takes yet; return where to go on."""
        blocks = self._blocks
        copied = await self._walk.copy(
            at, to + 1, blocks.room_bytes, is_first_whole=blocks.is_fresh
        )
        if copied is None:
            return await self._step_one_by_one(at, to)
        if copied.messages and not self._take(copied):
            return at
        if copied.absent is not None:
            await self._walk.load(*copied.absent)
        elif copied.is_full:
            blocks.close_block()
        await asyncio.sleep(0)
        return max(at, copied.next_sequence) if copied.next_sequence <= to else to + 1

    def _take(self, copied: RangeCopy) -> bool:
        if not self._blocks.add(copied.records, copied.messages):
            return False
        for first, last in copied.runs:
            self._note(first, last)
        return True

    async def _step_one_by_one(self, at: int, to: int) -> int:
        """Take messages of pages that interleave; return where to go on."""
        step = await self._walk.step(at, _LOOKED_AT_ONCE, everything=True)
        for view in step.messages:
            if view.sequence > to:
                return to + 1
            body = self._walk.body(view.sequence)
            if body is None:
                absent = self._core.absent_for(self._queue_id, view.sequence)
                if absent != (0, 0):
                    await self._walk.load(*absent)
                else:
                    await asyncio.sleep(0)  # the slab of its page comes with the next step
                return view.sequence
            if not self._add(view, body):
                return view.sequence
        await asyncio.sleep(0)
        return step.next_sequence

    def _add(self, view: MessageView, body: bytes) -> bool:
        """Add one message; False: the answer is full."""
        blocks = self._blocks
        record = encode_record(
            AddRecord(
                places=(Place(self._queue_id, view.sequence),),
                properties=view.properties,
                body=body,
                arrival_ms=view.time_ms,
                protocol=view.protocol,
                priority=view.priority,
                has_escapes=view.is_escaped,
                is_large=view.is_large,
                is_special=view.is_special,
            )
        )
        record = record.ljust(align8(len(record)), b"\0")
        if len(record) > blocks.room_bytes and not blocks.is_fresh:
            blocks.close_block()
        if blocks.is_full or not blocks.add(record, 1):
            return False
        self._note(view.sequence, view.sequence)
        return True

    def _note(self, first: int, last: int) -> None:
        if self._runs and self._runs[-1][1] == first - 1:
            first = self._runs.pop()[0]
        self._runs.append((first, last))

    def _gaps(self, after: int, through: int) -> list[Gap]:
        """Return the sequences of the range that were not read, and why."""
        gaps: list[Gap] = []
        at = after + 1
        for first, last in [*self._runs, (through + 1, through)]:
            if at < first:
                gaps += self._stream.explain(at, first - 1)
            at = last + 1
        return gaps

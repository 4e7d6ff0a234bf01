"""What is live in an old file is written again at the journal's end (docs/internals/compaction.md).

Owns the walk over one slab and the copies. Never frees a file, and never decides which one is
walked: that is `vespiary_broker.store.compaction`. Called by the core.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from vespiary_codec.journal.block import FIRST_OFFSET, FLAG_SEAL, HEADER_BYTES, decode_block_header
from vespiary_codec.journal.record import (
    ADD,
    COUNT,
    PLACE,
    RawRecord,
    RecordFlag,
    RecordType,
    decode_add_layout,
    walk_records,
)
from vespiary_native.abc import NoRoom, Relocation
from vespiary_native.twin.image import PAGE, JournalFile, Slab
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Consumer, Message, Queue, place_bytes

_FLAGS_AT: Final = 5
_PLACES_AT: Final = 22


class _Place(NamedTuple):
    """A place that is moved."""

    queue: Queue
    sequence: int
    message: Message


class _AbsentError(Exception):
    """The slab that is walked was dropped: making room for the copies needed its memory."""


class _EnoughError(Exception):
    """As many places were looked at as will do for one call."""


class Walk:
    """One call of `abc.Core.relocate`.

    Args:
        staging: Where the copies go.
        queues: All queues by id.
        consumers: All consumers: what they hold is pointed at the copies too.
    """

    def __init__(
        self, staging: Staging, queues: dict[int, Queue], consumers: Iterable[Consumer]
    ) -> None:
        self._staging = staging
        self._queues = queues
        self._consumers = consumers
        self._moved_bytes = 0
        self._moved_places = 0
        self._looked = self._max_places = 0
        self._record = 0

    def relocate(
        self,
        file: JournalFile,
        index: int,
        begin_at: tuple[int, int],
        max_bytes: int,
        max_places: int,
    ) -> Relocation:
        """Move what is live in a slab, from a block and a record on (see `abc.Core.relocate`).

        Durability: the copies are durable with their blocks.
        """
        image = self._staging.image
        begin = index << image.slab_shift
        end = begin + image.slab_bytes
        offset, self._record = begin_at
        self._max_places = max_places
        at = offset or begin + (0 if index else FIRST_OFFSET)
        if not 0 <= index < len(file.slabs) or at % PAGE or not begin <= at <= end:
            raise ValueError(f"file {file.file_id} has no block at {at} in slab {index}")
        if self._staging.transaction or not self._is_closed(file):
            raise ValueError(f"file {file.file_id} is being filled, or a transaction is staged")
        slab = file.slabs[index]
        is_waiting = slab.buffer is not None and slab.last_sequence > image.durable_sequence
        walked = max_bytes if is_waiting else 0
        limit = min(end - 1, file.size - PAGE)
        is_absent = False
        try:
            while slab.live and at <= limit and walked < max_bytes:
                length = self._move_block(file, slab, at)
                at += length or end
                walked += length
        except _AbsentError:
            is_absent = True
        except _EnoughError:
            pass
        except (NoRoom, MemoryError):
            if not self._moved_places:
                raise
        else:
            if not slab.live or at > limit:
                at = 0
        return Relocation(
            at, self._record if at else 0, self._moved_bytes, self._moved_places, is_absent
        )

    def _is_closed(self, file: JournalFile) -> bool:
        first = self._staging.image.current or self._staging.image.ahead()
        return first is None or file.file_id < first.file_id

    def _move_block(self, file: JournalFile, slab: Slab, offset: int) -> int:
        """Move what is live in one block; return its length, 0 if nothing stands behind it."""
        if slab.view is None:
            raise _AbsentError
        base = offset % self._staging.image.slab_bytes
        header = decode_block_header(slab.view[base : base + HEADER_BYTES], offset=offset)
        if header.file_id != file.file_id:
            raise ValueError(f"file {file.file_id} has no block at {offset}")
        payload = slab.view[base + HEADER_BYTES : base + HEADER_BYTES + header.payload_bytes]
        first = self._record
        records = walk_records(payload, header.records, offset=base + HEADER_BYTES)
        for number, raw in enumerate(records):
            if number < first:
                continue
            self._record = number
            if self._looked >= self._max_places:
                raise _EnoughError
            self._looked += 1
            if raw.type == RecordType.ADD:
                self._move(file, slab, raw)
            if not slab.live:
                break  # its memory may be gone
            if slab.view is None:
                self._record = number + 1
                raise _AbsentError
        self._record = 0
        return 0 if header.flags & FLAG_SEAL else header.length

    def _move(self, file: JournalFile, slab: Slab, raw: RawRecord) -> None:
        """Move one ADD record if a place of it is live."""
        add = decode_add_layout(raw)
        properties_at = raw.offset + add.properties_at
        places = []
        self._looked += len(add.places)
        for queue_id, sequence in add.places:
            queue = self._queues.get(queue_id)
            message = queue.entries.get(sequence) if queue is not None else None
            if queue is None or message is None or sequence >= queue.available:
                continue
            if sequence in queue.reserved or sequence in queue.locked:
                continue  # a prepared branch has it
            if message[0] is slab and message[1] == properties_at:
                places.append(_Place(queue, sequence, message))
        if not places:
            return
        content = bytes(raw.data[add.properties_at :])  # making room may drop the slab
        start = bytearray(raw.data[: ADD.size])
        length = ADD.size + PLACE.size * len(places) + len(content)
        counting = self._staging.counting
        counted = [place for place in places if place.queue.is_durable
                   and counting.journalled(place.queue, place.sequence)]  # fmt: skip
        if not self._make_room(length + 7 & ~7, len(counted) * COUNT.size):
            return  # of a file made before journal-file-size became smaller
        blocks = self._staging.blocks
        own = blocks.slab.file
        assert own is not None
        own.cancels.add(file)
        at = blocks.place(length, is_add=True)
        start[:4] = length.to_bytes(4, "little")
        start[_FLAGS_AT] = start[_FLAGS_AT] & ~RecordFlag.TRANSACTIONAL | RecordFlag.MOVED
        start[_PLACES_AT : _PLACES_AT + 2] = len(places).to_bytes(2, "little")
        middle = b"".join(PLACE.pack(place.queue.queue_id, 0, place.sequence) for place in places)
        blocks.view[at : at + length] = start + middle + content
        content_at = at + len(start) + len(middle)
        self._point(blocks.slab, at, content_at, places)
        self._moved_bytes += length
        self._moved_places += len(places)
        self._count(counted)

    def _make_room(self, length: int, counts_bytes: int) -> bool:
        """Have room for a copy and its counts in one block, or for the copy alone.

        Returns:
            False if no block can hold the copy.
        """
        for wanted in dict.fromkeys((length + counts_bytes, length)):
            with contextlib.suppress(ValueError):
                self._staging.blocks.reserve(wanted, is_add=True)
                return True
        return False

    def _point(self, slab: Slab, at: int, content_at: int, places: list[_Place]) -> None:
        """Point queues, and the consumers that hold a message, at its copy."""
        for queue, sequence, (_, _, properties_bytes, body_bytes, flags, _, _) in places:
            share_bytes = place_bytes(len(places), properties_bytes + body_bytes)
            message = (slab, content_at, properties_bytes, body_bytes, flags, share_bytes, at)
            self._staging.point(queue, sequence, message)
            for consumer in self._consumers:
                if consumer.queue is queue and sequence in consumer.held:
                    consumer.held[sequence] = message

    def _count(self, places: list[_Place]) -> None:
        """Stage how often the moved messages were given out, behind their copy."""
        for queue, sequence, _ in places:
            with contextlib.suppress(NoRoom):
                file = queue.entries[sequence][0].file
                deliveries = self._staging.counting.journalled(queue, sequence)
                self._staging.counting.record(queue, sequence, deliveries, file)
                self._moved_bytes += COUNT.size

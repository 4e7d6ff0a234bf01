"""A page while it is filled: blocks in memory, then its index (journal-format §7).

Owns the bytes of one page until its file is durable. Never changes a queue: `pages` does. Its
header is the store's. Called by `pages`.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import (
    CRC_AT,
    FIRST_OFFSET,
    FLAG_SEAL,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SEED,
    align4k,
)
from vespiary_codec.journal.page import (
    PagePlace,
    PageQueue,
    PageRecord,
    block_file_id,
    encode_footer,
    footer_size_bytes,
)
from vespiary_codec.journal.page_record import (
    COUNT_BYTES,
    LARGE_BYTES,
    PAGED,
    PAGED_QUEUE,
    bitmap_bytes,
)
from vespiary_codec.journal.record import ADD, PLACE, SealRecord, encode_record
from vespiary_native.abc import NoRoom
from vespiary_native.memory import AlignedBuffer
from vespiary_native.twin.image import PAGE, Image, JournalFile
from vespiary_native.values_pages import PAGE_PLACES_MAX, PagePiece, PageState

_SEAL: Final = encode_record(SealRecord())
RECORD_BYTES_MAX: Final = 32768


def record_limit(slab_bytes: int) -> int:
    """Return how large the PAGE record of a new page may become, in bytes."""
    return min(RECORD_BYTES_MAX, slab_bytes // 4)


class Page(JournalFile):
    """A page: a file of blocks like a journal's, with places that the queues do not hold.

    `live` counts its places in extents, those in rings and the branches that need it; `live_bytes`
    those in rings alone.

    Attributes:
        page_id: Its id.
        state: How far it is.
        limit: The bound of its size, while it is filled.
        queue_ids: Queues whose places it takes.
        dropped: Queues that went since their places were copied.
        records: What was copied, in order.
        placed: Per queue: sequence and number of the record, in the order of copying.
        record_file: Journal file with its latest PAGE record.
        record_bytes: Length of that record.
        block: Block that must be durable before its file may go, once nothing in it is live.
        is_looked_at: Somebody looks through a closed extent, and goes on.
    """

    is_page = True

    def __init__(
        self, image: Image, page_id: int, salt: int, size: int, *, state: PageState
    ) -> None:
        room = max(size, 2 * image.slab_bytes) if state is PageState.FILLING else size
        super().__init__(block_file_id(page_id), salt, room, image.slab_bytes)
        self.page_id = page_id
        self.size = self.limit = size
        self.state = state
        self.queue_ids: set[int] = set()
        self.dropped: set[int] = set()
        self.records: list[PageRecord] = []
        self.placed: dict[int, dict[int, int]] = {}
        self.record_file: JournalFile | None = None
        self.record_bytes = 0
        self.block: int | None = None
        self.is_looked_at = False
        self._image = image
        self._footer: AlignedBuffer | None = None
        self._spans: dict[int, tuple[int, int]] = {}
        self._extra_bytes = 0  # of large ones and counts in its PAGE record
        self._places = 0
        self._is_open = False
        self._offset = FIRST_OFFSET  # of the filling block, or of the next one
        self._used = self._end = self._block_records = 0
        self._sequence = 1
        self._previous_crc = 0

    @property
    def places(self) -> int:
        """Number of live places, and of branches that need it; before it is live, of copies."""
        return self.live if self.state in (PageState.LIVE, PageState.ENDED) else self._places

    # --- room -------------------------------------------------------------------------------------
    def takes(self, places: list[tuple[int, int]], extra_bytes: int) -> bool:
        """Whether these places more are within what a PAGE record may hold."""
        if self._places + len(places) > PAGE_PLACES_MAX:
            return False
        spans = dict(self._spans)
        for queue_id, sequence in places:
            first, last = spans.get(queue_id, (sequence, sequence))
            spans[queue_id] = (min(first, sequence), max(last, sequence))
        total = PAGED.size + self._extra_bytes + extra_bytes
        total += sum(PAGED_QUEUE.size + bitmap_bytes(*span) for span in spans.values())
        return total <= record_limit(self._image.slab_bytes)

    def is_full(self, length: int, places: list[tuple[int, int]]) -> bool:
        """Whether a record does not fit any more; the first one always does."""
        if not self.records:
            return False
        padded = length + 7 & ~7
        if self._is_open and self._used + padded <= self._end:
            end = self._offset + align4k(self._used + padded)
        else:
            at, need = self._next_offset, align4k(HEADER_BYTES + padded)
            room = self._image.slab_bytes - at % self._image.slab_bytes
            end = at + need if need <= room else at + room + need
        queues = self.placed.keys() | {queue_id for queue_id, _ in places}
        footer = footer_size_bytes(len(queues), self._places + len(places), len(self.records) + 1)
        return end + PAGE + footer > self.limit

    @property
    def _next_offset(self) -> int:
        return self._offset + align4k(self._used) if self._is_open else self._offset

    # --- copying ----------------------------------------------------------------------------------
    def append(
        self, record: bytes, places: list[tuple[int, int]], extra_bytes: int, block_bytes: int
    ) -> None:
        """Copy an ADD record with these places.

        Raises:
            NoRoom: No slab of memory; nothing was changed.
        """
        at = self._place(len(record), block_bytes)
        view = self._view(at)
        slab_at = at % self._image.slab_bytes
        view[slab_at : slab_at + len(record)] = record
        _, _, flags, protocol, priority, _, body, properties, count = ADD.unpack_from(record)
        number = len(self.records)
        self.records.append(PageRecord(at, body, properties, count, flags, priority, protocol))
        for queue_id, sequence in places:
            self.placed.setdefault(queue_id, {})[sequence] = number
            first, last = self._spans.get(queue_id, (sequence, sequence))
            self._spans[queue_id] = (min(first, sequence), max(last, sequence))
        self._places += len(places)
        self._extra_bytes += extra_bytes

    def _place(self, length: int, block_bytes: int) -> int:
        """Make room for a record; return its offset, padding zeroed."""
        padded = length + 7 & ~7
        if not self._is_open or self._used + padded > self._end:
            self._open(padded, block_bytes)
        at = self._offset + self._used
        view, slab_at = self._view(at), at % self._image.slab_bytes
        view[slab_at + length : slab_at + padded] = bytes(padded - length)
        self._used += padded
        self._block_records += 1
        return at

    def _open(self, padded: int, block_bytes: int) -> None:
        slab_bytes = self._image.slab_bytes
        need = align4k(HEADER_BYTES + padded)
        at = self._next_offset
        room = slab_bytes - at % slab_bytes
        target = at if need <= room else at + room
        self._present(target, (self._image.slabs_left + 1) // 2)
        self._close_filling()
        if target != at:
            view, slab_at = self._view(at), at % slab_bytes
            view[slab_at : slab_at + room] = bytes(room)
            self._close(at, room, records=0)
            room = slab_bytes
        self._offset = target
        self._is_open = True
        self._used = HEADER_BYTES
        self._block_records = 0
        self._end = min(max(HEADER_BYTES + padded, block_bytes), room)

    def _present(self, offset: int, left: int) -> None:
        """Have memory for the slab at an offset, if that leaves so many to others."""
        slab = self.slabs[offset >> self._image.slab_shift]
        if slab.buffer is None:
            if not self._image.can_take(1 + left):
                raise NoRoom("no slab of memory is free for a page")
            self._image.take(slab)

    def _view(self, offset: int) -> memoryview:
        buffer = self.slabs[offset >> self._image.slab_shift].buffer
        assert buffer is not None
        return buffer.memoryview

    def _close_filling(self) -> None:
        if self._is_open:
            self._is_open = False
            self._close(self._offset, self._used, records=self._block_records)

    def _close(self, offset: int, used: int, *, records: int, flags: int = 0) -> None:
        """Write header and checksum of the block at `offset`, and zeros behind its bytes."""
        view, at = self._view(offset), offset % self._image.slab_bytes
        length = align4k(used)
        view[at + used : at + length] = bytes(length - used)
        HEADER.pack_into(
            view, at, MAGIC, FORMAT_VERSION, flags, self._sequence, self.file_id, 0,
            used - HEADER_BYTES, records, self._previous_crc, 0, self.now_ms, 0,
        )  # fmt: skip
        crc = crc32c(view[at : at + used], crc32c(SEED.pack(self.salt, offset)))
        view[at + CRC_AT : at + CRC_AT + 4] = crc.to_bytes(4, "little")
        self._previous_crc = crc
        self._sequence += 1
        self._offset = offset + length

    now_ms = 0
    """The clock, told before each act."""

    # --- its end ----------------------------------------------------------------------------------
    def close(self) -> list[PagePiece]:
        """Write the seal block and the index; return the memory to write.

        Raises:
            NoRoom: No slab of memory for the seal; nothing was changed.
        """
        at = self._next_offset
        self._present(at, self._image.slabs_left // 4)
        self._close_filling()
        view, slab_at = self._view(at), at % self._image.slab_bytes + HEADER_BYTES
        view[slab_at : slab_at + len(_SEAL)] = _SEAL
        self._close(at, HEADER_BYTES + len(_SEAL), records=1, flags=FLAG_SEAL)
        footer = encode_footer(
            page_id=self.page_id,
            salt=self.salt,
            footer_offset=self._offset,
            queues=[
                PageQueue(queue_id, tuple(PagePlace(*one) for one in sorted(placed.items())))
                for queue_id, placed in sorted(self.placed.items())
            ],
            records=self.records,
            blocks=self._sequence - 1,
            seal_crc=self._previous_crc,
        )
        self._footer = AlignedBuffer(len(footer))
        self._footer.memoryview[: len(footer)] = footer
        self.size = self._offset + len(footer)
        self.state = PageState.CLOSED
        return [*self._slab_pieces(), PagePiece(self._footer.address, len(footer), self._offset)]

    def _slab_pieces(self) -> list[PagePiece]:
        pieces = []
        slab_bytes = self._image.slab_bytes
        for slab in self.slabs:
            begin = max(slab.index * slab_bytes, FIRST_OFFSET)
            end = min((slab.index + 1) * slab_bytes, self._offset)
            if begin < end:
                assert slab.buffer is not None
                address = slab.buffer.address + begin % slab_bytes
                pieces.append(PagePiece(address, end - begin, begin))
        return pieces

    def release(self) -> None:
        """Give the memory back: the file is durable, or will never be."""
        for slab in self.slabs:
            if slab.buffer is not None:
                self._image.give(slab)
            slab.is_closed = True
        if self._footer is not None:
            self._footer.close()
            self._footer = None
        del self.slabs[-(-self.size // self._image.slab_bytes) :]
        self.records.clear()
        self.placed.clear()


def add_record(record: memoryview, places: list[tuple[int, int]], flags: int) -> bytes:
    """Return an ADD record with these places and flags, without transaction, all else as it is."""
    length, type_, old, protocol, priority, arrival, body, properties, count = ADD.unpack_from(
        record
    )
    content_at = ADD.size + PLACE.size * count + (8 if old & 1 else 0)
    start = ADD.pack(
        ADD.size + PLACE.size * len(places) + properties + body, type_, flags, protocol, priority,
        arrival, body, properties, len(places),
    )  # fmt: skip
    middle = b"".join(PLACE.pack(queue_id, 0, sequence) for queue_id, sequence in places)
    return start + middle + bytes(record[content_at:length])


def extra_bytes(*, is_large: bool, has_count: bool) -> int:
    """Return what a place needs in a PAGE record besides its bit."""
    return (LARGE_BYTES if is_large else 0) + (COUNT_BYTES if has_count else 0)

"""Blocks: where records go, how a block is closed, what is written next (journal-format §2).

Owns the filling block, the chain of checksums, and the list of what is not written. Never knows
what a record says. Called by the core.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

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
    walk_blocks,
)
from vespiary_codec.journal.file_header import SEAL_BYTES
from vespiary_codec.journal.record import SealRecord, encode_record
from vespiary_native.abc import WRITE_BYTES, BlockFacts, NoRoom, WriteRequest
from vespiary_native.twin.image import Image, JournalFile, Slab

RESERVE_BYTES: Final = 1024 * 1024
_SEAL: Final = encode_record(SealRecord())


class SealedBlock(NamedTuple):
    """A closed block that is not durable yet; `length` as written, a multiple of 4096."""

    sequence: int
    slab: Slab
    offset: int
    length: int


class Blocks:
    """The journal's end: the image's blocks from the last durable one on.

    The filling block's fields are read and advanced by the core itself on the hot path:

    Attributes:
        is_open: There is a filling block.
        slab: Its slab.
        view: Memory of that slab.
        base: Position of the block in the slab.
        used: Bytes of it, header included; of the last one if none is open.
        end: Limit of `used`.
        records: Number of its records.
        add_end: Limit of `used` for ADD records, which leave room to others in the last file.
        sequence: Sequence of the filling block, or of the next one.
        block_bytes: Largest block with more than one record.
        urgent_sequence: Somebody waits for the blocks up to this one.
    """

    def __init__(self, image: Image, block_bytes: int) -> None:
        self._image = image
        self.block_bytes = block_bytes
        self._slab_bytes = image.slab_bytes
        self.is_open = False
        self.slab = Slab(None, 0)
        self.view = memoryview(bytearray())
        self.base = 0
        self.used = 0
        self.end = 0
        self.add_end = 0
        self.records = 0
        self.sequence = 1
        self._offset = 0  # of the filling block in its file
        self._position = FIRST_OFFSET  # of the next block in the current file
        self._previous_crc = 0
        self._sealed: deque[SealedBlock] = deque()  # not handed out
        self._handed: deque[SealedBlock] = deque()  # not durable
        self._handed_sequence = 0
        self.urgent_sequence = 0
        self._is_empty_wanted = False
        self.are_adds_held = False
        self.now_ms = 0
        self.records_added = 0
        self.payload_bytes = 0
        self.unwritten_bytes = 0

    # --- what is known ----------------------------------------------------------------------------
    @property
    def latest(self) -> int:
        """Sequence of the block with the latest record: the open one, else the one closed last."""
        return self.sequence if self.is_open else self.sequence - 1

    @property
    def is_all_durable(self) -> bool:
        """Whether nothing at all waits for a flush."""
        return not self.is_open and self.sequence - 1 == self._image.durable_sequence

    @property
    def unwritten(self) -> int:
        """Number of closed blocks that are not durable."""
        return len(self._sealed) + len(self._handed)

    @property
    def position(self) -> int:
        """Offset of the next block in the current file, the filling one not counted."""
        return self._position

    def has_unwritten(self) -> bool:
        """Whether anything staged has not been handed out."""
        return bool(self._sealed) or self.is_open or self._is_empty_wanted

    def is_urgent(self) -> bool:
        """Whether somebody waits for what is not handed out."""
        return self.urgent_sequence > self._handed_sequence

    def mark_urgent(self) -> None:
        """Say that somebody waits for everything staged so far."""
        self.urgent_sequence = self.latest

    def want_empty_block(self) -> None:
        """Make the next `seal_write` give an empty block if it has nothing else."""
        self._is_empty_wanted = True

    def start(self, sequence: int, previous_crc: int, durable_sequence: int) -> None:
        """Set where the journal goes on.

        Raises:
            ValueError: Something is staged already, or the numbers are out of order.
        """
        if self._image.current is not None or not 0 <= durable_sequence < sequence:
            raise ValueError(
                f"cannot start with block {sequence}, durable {durable_sequence},"
                f" current file {self._image.current and self._image.current.file_id}"
            )
        self.sequence = sequence
        self._previous_crc = previous_crc
        self._handed_sequence = sequence - 1
        self._image.durable_sequence = durable_sequence
        self.urgent_sequence = 0

    # --- placing records --------------------------------------------------------------------------
    def place(self, length: int, *, is_add: bool = False) -> int:
        """Make room for a record and count it; return its position in `slab`, padding zeroed.

        Args:
            length: Bytes of the record without padding.
            is_add: It is an ADD outside a transaction, which leaves room to others.

        Raises:
            NoRoom: No slab or no file; nothing was changed.
        """
        padded = length + 7 & ~7
        used = self.used + padded
        if is_add or not self.is_open or used > self.end:
            self.reserve(padded, is_add=is_add)
            used = self.used + padded
        at = self.base + self.used
        if padded != length:
            self.view[at + length : at + padded] = bytes(padded - length)
        self.used = used
        self.records += 1
        self.records_added += 1
        self.payload_bytes += length
        return at

    def reserve(self, padded: int, *, is_add: bool = False) -> None:
        """Have `padded` bytes free in the filling block; then `place` finds room.

        Raises:
            NoRoom: No slab or no file; nothing was changed.
            ValueError: They fit no block.
        """
        if is_add and self.are_adds_held:
            raise NoRoom("messages are held back until there is room for journal files")
        used = self.used + padded
        if not self.is_open or used > self.end:
            self._open(padded, is_add=is_add)
        elif is_add and used > self.add_end:
            raise NoRoom("the last journal file is kept for acknowledgements")

    def extend(self, length: int) -> None:
        """Add `length` bytes, a multiple of 8 that fits, to the block's last record."""
        self.used += length
        self.payload_bytes += length

    def append(self, record: bytes, *, is_add: bool = False) -> int:
        """Stage a whole record; return its position in `slab`."""
        at = self.place(len(record), is_add=is_add)
        self.view[at : at + len(record)] = record
        return at

    def update_add_limit(self) -> None:
        """Compute `add_end` anew: a file was added or begun."""
        file = self._image.current
        if file is None or self._image.files_ahead:
            self.add_end = self.end
        else:
            # A page-aligned block end, so a limit that is no multiple of a page rounds down.
            limit = (_data_end(file) - _reserve(file)) & ~4095
            self.add_end = min(self.end, limit - self._offset)

    def _region_end(self, file: JournalFile, position: int) -> int:
        """Return the end of the slab at `position`, or of the room for blocks before that."""
        return min((position // self._slab_bytes + 1) * self._slab_bytes, _data_end(file))

    def _plan(self, need: int, *, is_add: bool) -> None:
        """Check that a new block of `need` bytes finds a file and slabs; change nothing."""
        image = self._image
        file = image.current
        position = self._offset + align4k(self.used) if self.is_open else self._position
        ahead = slabs = 0
        touched = -1  # the slab of `file` that is counted already
        while True:
            if file is not None:
                index = position // self._slab_bytes
                if file.slabs[index].buffer is None and index != touched:
                    slabs += 1
                    touched = index
                end = self._region_end(file, position)
                if position + need <= end:
                    break
                if end != _data_end(file):
                    position = end
                    continue
                if ahead:
                    raise ValueError(
                        f"a block of {need} bytes does not fit a file of {file.size} bytes"
                    )
            file = image.ahead(ahead)
            if file is None:
                raise NoRoom("no journal file is free")
            ahead += 1
            position = FIRST_OFFSET
            touched = -1
        is_last = image.files_ahead == ahead
        if is_add and is_last and position + need > _data_end(file) - _reserve(file):
            raise NoRoom("the last journal file is kept for acknowledgements")
        if not image.can_take(slabs):
            raise NoRoom("no slab of memory is free")

    def _open(self, padded: int, *, is_add: bool) -> None:
        """Close what is open and open a block with room for `padded` bytes of records."""
        need = align4k(HEADER_BYTES + padded)
        if need > self._slab_bytes - FIRST_OFFSET:
            raise ValueError(
                f"a record of {padded} bytes does not fit a slab of {self._slab_bytes} bytes"
            )
        self._plan(need, is_add=is_add)
        self._close_filling()
        file = self._image.current or self._next_file()
        while self._position + need > (end := self._region_end(file, self._position)):
            if end != _data_end(file):
                self._pad_slab(file, end)
            else:
                self._seal_file(file)
                file = self._next_file()
        slab = self._present(file)
        assert slab.view is not None
        most = max(HEADER_BYTES + padded, self.block_bytes)
        self.is_open = True
        self.slab = slab
        self.view = slab.view
        self.base = self._position % self._slab_bytes
        self._offset = self._position
        self.used = HEADER_BYTES
        self.end = min(most, end - self._position)
        self.records = 0
        self.update_add_limit()

    def _next_file(self) -> JournalFile:
        file = self._image.ahead()
        assert file is not None, "the plan has looked for it"
        self._image.current = file
        self._image.files_ahead -= 1
        self._position = FIRST_OFFSET
        return file

    def _present(self, file: JournalFile) -> Slab:
        """Return the slab at the current position, with memory."""
        slab = file.slabs[self._position // self._slab_bytes]
        if slab.buffer is None:
            self._image.take(slab)
            assert slab.buffer is not None
            slab.view = slab.buffer.memoryview
        return slab

    def _pad_slab(self, file: JournalFile, end: int) -> None:
        """Close the rest of a slab with a block that holds nothing."""
        slab = self._present(file)
        assert slab.view is not None
        length = end - self._position
        at = self._position % self._slab_bytes
        slab.view[at : at + length] = bytes(length)
        self._close(slab, self._position, length, records=0)

    def _seal_file(self, file: JournalFile) -> None:
        slab = self._present(file)
        assert slab.view is not None
        at = self._position % self._slab_bytes + HEADER_BYTES
        slab.view[at : at + len(_SEAL)] = _SEAL
        self._close(slab, self._position, HEADER_BYTES + len(_SEAL), records=1, flags=FLAG_SEAL)
        if not slab.is_closed:
            self._image.close_slab(slab)

    # --- closing blocks ---------------------------------------------------------------------------
    def _close_filling(self) -> None:
        if self.is_open:
            self._close(self.slab, self._offset, self.used, records=self.records)
            self.is_open = False

    def _close(self, slab: Slab, offset: int, used: int, *, records: int, flags: int = 0) -> None:
        """Write header and checksum of the block at `offset`, and zeros behind its `used` bytes."""
        file, view = slab.file, slab.view
        assert file is not None
        assert view is not None
        at = offset % self._slab_bytes
        length = align4k(used)
        view[at + used : at + length] = bytes(length - used)
        HEADER.pack_into(
            view,
            at,
            MAGIC,
            FORMAT_VERSION,
            flags,
            self.sequence,
            file.file_id,
            self._image.durable_sequence,
            used - HEADER_BYTES,
            records,
            self._previous_crc,
            0,
            self.now_ms,
            0,
        )
        crc = crc32c(view[at : at + used], crc32c(SEED.pack(file.salt, offset)))
        view[at + CRC_AT : at + CRC_AT + 4] = crc.to_bytes(4, "little")
        self._previous_crc = crc
        self._sealed.append(SealedBlock(self.sequence, slab, offset, length))
        slab.last_sequence = self.sequence
        self.sequence += 1
        self.unwritten_bytes += length
        self._position = offset + length
        if not self._position % self._slab_bytes:
            self._image.close_slab(slab)

    # --- writing ----------------------------------------------------------------------------------
    def seal_write(self) -> WriteRequest | None:
        """Return the next run to write (see `abc.Core.seal_write`)."""
        if not self._sealed:
            if self.is_open:
                self._close_filling()
            elif self._is_empty_wanted:
                # Only a better watermark: without room for it nothing is lost.
                self._is_empty_wanted = False
                try:
                    self._open(0, is_add=False)
                except NoRoom:
                    pass
                else:
                    self._close_filling()
        if not self._sealed:
            return None
        self._is_empty_wanted = False
        first = last = self._sealed.popleft()
        self._handed.append(first)
        length = first.length
        while self._sealed and self._is_neighbour(self._sealed[0], first, length):
            last = self._sealed.popleft()
            self._handed.append(last)
            length += last.length
        if self.is_open and not self._sealed:
            filling = SealedBlock(self.sequence, self.slab, self._offset, align4k(self.used))
            if self._is_neighbour(filling, first, length):
                self._close_filling()
                last = self._sealed.popleft()
                self._handed.append(last)
                length += last.length
        self._handed_sequence = last.sequence
        assert first.slab.buffer is not None
        assert first.slab.file is not None
        address = first.slab.buffer.address + first.offset % self._slab_bytes
        return WriteRequest(first.slab.file.file_id, first.offset, address, length, last.sequence)

    def _is_neighbour(self, block: SealedBlock, first: SealedBlock, length: int) -> bool:
        return (
            block.slab is first.slab
            and block.offset == first.offset + length
            and length + block.length <= WRITE_BYTES
        )

    def write_done(self, sequence: int) -> None:
        """Note that blocks are durable.

        Raises:
            ValueError: They were not handed out, or were durable long ago.
        """
        if not self._image.durable_sequence <= sequence <= self._handed_sequence:
            raise ValueError(
                f"block {sequence} is not from {self._image.durable_sequence} (durable)"
                f" to {self._handed_sequence} (handed out)"
            )
        while self._handed and self._handed[0].sequence <= sequence:
            self.unwritten_bytes -= self._handed.popleft().length
        self._image.set_durable(sequence)


def _data_end(file: JournalFile) -> int:
    return file.size - SEAL_BYTES


def _reserve(file: JournalFile) -> int:
    """Return how much of the last file ADD records leave to acknowledgements and checkpoints."""
    return min(file.size // 8, RESERVE_BYTES)


def room_left(image: Image, position: int) -> int:
    """Return the bytes for blocks from `position` of the current file on, over all files ahead."""
    room = sum(
        file.size - FIRST_OFFSET - SEAL_BYTES
        for file in image.files[len(image.files) - image.files_ahead :]
    )
    if image.current is not None:
        room += image.current.size - SEAL_BYTES - position
    return room


def verify_blocks(
    data: memoryview, offset: int, salt: int, file_id: int, limit: int
) -> list[BlockFacts]:
    """Walk blocks while they are valid and whole (see `abc.BlockVerifier`)."""
    found: list[BlockFacts] = []
    if limit < 1:
        return found
    for at, header, _ in walk_blocks(data, offset=offset, salt=salt, file_id=file_id):
        found.append(
            BlockFacts(
                offset=at,
                length=header.length,
                sequence=header.sequence,
                watermark=header.watermark,
                previous_crc=header.previous_crc,
                crc=header.crc,
                records=header.records,
                is_seal=header.is_seal,
                time_ms=header.time_ms,
            )
        )
        if len(found) == limit:
            break
    return found

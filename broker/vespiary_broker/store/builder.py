"""`JournalBuilder`: a journal written from records, for tools, with no broker and no event loop.

Owns: the files of a journal that is being made, from the first to the seal of the last. The same
pool, blocks and order of flushes as a broker's, so that a broker starts from what comes out. Must
never write to a folder that is a journal already: its callers give it one that no broker looks at,
and move the files to their place at the end. Called by
`importing` and `salvage`; it blocks.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import FileForm, FilePool, PoolRules, StoredFile
from vespiary_broker.store.reclaim import files_record
from vespiary_broker.store.survey import survey_folder
from vespiary_codec.journal.block import (
    CRC_AT,
    FIRST_OFFSET,
    FLAG_SEAL,
    HEADER_BYTES,
    BlockHeader,
    align4k,
    encode_block,
)
from vespiary_codec.journal.file_header import SEAL_BYTES
from vespiary_codec.journal.record import SealRecord, align8, encode_record
from vespiary_native.abc import BLOCK_BYTES, SLAB_BYTES
from vespiary_spec.errors import RecordTooLarge


class Continuation(NamedTuple):
    """The journal so far, for a builder that goes on.

    Attributes:
        files: Its files, all sealed and durable, by id.
        sequence: Of the last block.
        crc: Of the last block.
        next_id: Id of the next file.
    """

    files: list[StoredFile]
    sequence: int
    crc: int
    next_id: int


class JournalBuilder:
    """Writes records into new files. Owner: the thread that made it; used once.

    Attributes:
        blocks: Blocks written.
        files_made: Files begun.
    """

    def __init__(
        self,
        folder: Path,
        form: FileForm,
        file_size_bytes: int,
        disk: DiskLike,
        *,
        journal_id: bytes,
        before: Continuation | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Prepare; nothing is written yet.

        Args:
            folder: An existing folder without a journal (or with the one of `before`).
            form: Names and kind of the files.
            file_size_bytes: Size of each file: a multiple of 4096, at least 64 KiB.
            disk: The file system.
            journal_id: 16 bytes.
            before: What is there already; None begins with file 1.
            clock_ms: Milliseconds since 1970, for headers and blocks.
        """
        rules = PoolRules(
            file_size_bytes=file_size_bytes, min_files=0, reserve_files=0, is_direct=False
        )
        self._pool = FilePool(folder, form, rules, disk, journal_id=journal_id, clock_ms=clock_ms)
        self._clock_ms = clock_ms
        self._file: StoredFile | None = None
        self._offset = FIRST_OFFSET
        self._sequence = self._durable = before.sequence if before else 0
        self._crc = before.crc if before else 0
        if before:
            self._pool.adopt(before.files, [], before.next_id)
        self._records: list[bytes] = []
        self._payload_bytes = 0
        self._room_bytes = (
            min(file_size_bytes - 2 * SEAL_BYTES, SLAB_BYTES) - FIRST_OFFSET - HEADER_BYTES
        )
        self._block_bytes = min(BLOCK_BYTES, self._room_bytes // 4)
        self._files_bytes = FIRST_OFFSET
        self._is_at_gap = False
        self._is_fresh = False
        self.blocks = 0
        self.files_made = 0

    @property
    def record_bytes_max(self) -> int:
        """Largest record that these files take."""
        return self._room_bytes

    def add(self, record: bytes) -> None:
        """Append a record.

        Args:
            record: Its bytes without padding; neither FILES nor SEAL, which are the builder's.

        Raises:
            RecordTooLarge: It does not fit into a file of this size; nothing was written of it.
            DiskFull: There is no room for another file.
            NativeError: A call failed.

        Durability: none before `finish`.
        """
        size = align8(len(record))
        if size > self._room_bytes:
            raise RecordTooLarge(
                "a record does not fit into a journal file of this size",
                measured=f"{len(record)} bytes",
                allowed=f"at most {self._room_bytes} bytes",
                cure="give a larger file size",
            )
        if self._records and HEADER_BYTES + self._payload_bytes + size > self._block_bytes:
            self._write_pending()
        self._records.append(record)
        self._payload_bytes += size

    def gap(self) -> None:
        """Leave out the number of a block and of a file, as a reclaimed file does.

        Raises:
            DiskFull: There is no room for another file.
            NativeError: A call failed.
        """
        self._write_pending()
        self._seal()
        self._is_at_gap = True

    def finish(self) -> None:
        """Write what is left and seal the last file.

        Raises:
            DiskFull: There is no room for another file.
            NativeError: A call failed.

        Durability: on return all records survive a power cut, under the names of their files.
        """
        self._write_pending()
        self._seal()

    def close(self) -> None:
        """Close the files, after a failure or at the end."""
        self._pool.close()

    # --- blocks -----------------------------------------------------------------------------------

    def _write_pending(self) -> None:
        """Write the records that wait as one block."""
        if not self._records:
            return
        payload = b"".join(record.ljust(align8(len(record)), b"\0") for record in self._records)
        number = len(self._records)
        self._make_room(align4k(HEADER_BYTES + len(payload)))
        self._write(payload, number)
        self._is_fresh = False
        self._records.clear()
        self._payload_bytes = 0

    def _make_room(self, length: int) -> None:
        """Have a file open in which a block of that length crosses neither a slab nor the seal."""
        while True:
            if self._file is None:
                self._begin()
            assert self._file is not None
            data_end = self._file.size_bytes - SEAL_BYTES - self._files_bytes
            slab_end = (self._offset // SLAB_BYTES + 1) * SLAB_BYTES
            if self._offset + length <= min(data_end, slab_end):
                return
            if self._offset + length > data_end or slab_end >= data_end:
                if self._is_fresh:
                    raise RecordTooLarge(
                        "a block does not fit into a journal file of this size",
                        where=str(self._file.path),
                        measured=f"{length} bytes",
                        allowed=f"at most {data_end - self._offset} bytes",
                        cure="give a larger file size",
                    )
                self._seal()
            else:  # a block without records fills the slab: the broker's memory is cut there
                self._write(bytes(slab_end - self._offset - HEADER_BYTES), 0)

    def _begin(self) -> None:
        """Make the next file.

        Its first record is one of the caller's, never FILES: right behind a gap that would change
        what the gap says of transactions (journal-format §3.3).
        """
        if self._is_at_gap:
            self._sequence += 1
            self._durable = self._sequence
            skipped = self._pool.activate(is_first=True, watermark=self._durable)
            self._pool.release(skipped.file_id)
            self._is_at_gap = False
        self._file = self._pool.activate(is_first=True, watermark=self._durable)
        self._offset = FIRST_OFFSET
        self.files_made += 1
        self._files_bytes = align4k(
            HEADER_BYTES + len(encode_record(files_record(self._pool.active_ids)))
        )
        self._is_fresh = True

    def _write(self, payload: bytes, records: int, flags: int = 0) -> None:
        assert self._file is not None
        assert self._file.handle is not None
        header = BlockHeader(
            sequence=self._sequence + 1,
            file_id=self._file.file_id,
            watermark=self._durable,
            payload_bytes=len(payload),
            records=records,
            previous_crc=self._crc,
            time_ms=self._clock_ms(),
            flags=flags,
        )
        block = encode_block(header, payload, salt=self._file.salt, offset=self._offset)
        self._file.handle.write(memoryview(block), self._offset)
        (self._crc,) = struct.unpack_from("<I", block, CRC_AT)
        self._sequence += 1
        self._offset += len(block)
        self.blocks += 1

    def _seal(self) -> None:
        """End the file with a list of all files so far, and a seal.

        One flush for both: the seal's watermark speaks of blocks that the same flush makes durable,
        which nobody can see, since the file has not got its place yet.

        Durability: on return all blocks of the file survive a power cut.
        """
        if self._file is None:
            return
        assert self._file.handle is not None
        listed = encode_record(files_record(self._pool.active_ids))
        self._write(listed.ljust(align8(len(listed)), b"\0"), 1)
        self._durable = self._sequence
        seal = encode_record(SealRecord())
        self._write(seal.ljust(align8(len(seal)), b"\0"), 1, FLAG_SEAL)
        self._pool.retire(self._file.file_id, is_flushed=False)
        self._durable = self._sequence
        self._file = None


def move_to_place(work: Path, folder: Path, form: FileForm, disk: DiskLike) -> int:
    """Move a finished journal to its place, the newest file first; return its number of files.

    Args:
        work: Where its files are now; removed at the end.
        folder: Where they shall be, on the same file system.
        form: Names and kind of the files.
        disk: The file system.

    Raises:
        NativeError: A call failed; it can be made again.

    Durability: on return the names survive a power cut. Until the last move is durable a broker
        refuses the folder, because the newest file lists files that are missing.
    """
    survey = survey_folder(work, form, disk, is_direct=False)
    for file in reversed(survey.active):
        disk.rename(file.path, folder / file.path.name)
        disk.flush_folder(folder)
    for name in disk.names(work):
        disk.remove(work / name)
    disk.flush_folder(work)
    disk.remove_folder(work)
    disk.flush_folder(folder)
    return sum(form.number(name) is not None for name in disk.names(folder))

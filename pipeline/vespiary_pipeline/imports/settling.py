"""From the files of tasks to one journal: numbers, headers, checksums, the chain of blocks.

Owns the second look at what the tasks wrote, on the driver: places get the numbers of their queues,
then each block its header, whose checksum covers both and the block before. Blocks are read and
written where they are, one after the other, so memory is that of a block. Must never give a file
its name in a folder that a broker may look at: that is `folder`. Called by `layout`.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vespiary_codec.journal.block import (
    CRC_AT,
    FIRST_OFFSET,
    FLAG_SEAL,
    HEADER_BYTES,
    BlockHeader,
    align4k,
    encode_block_header,
)
from vespiary_codec.journal.file_forms import FileForm
from vespiary_codec.journal.file_header import (
    FileHeader,
    FileState,
    encode_file_header,
)
from vespiary_codec.journal.record import (
    FileRun,
    FilesRecord,
    SealRecord,
    align8,
    encode_record,
)
from vespiary_pipeline.imports.staged import (
    LISTED_BYTES,
    Index,
    record_bytes_max,
)
from vespiary_pipeline.targets import disk_errors
from vespiary_spec.errors import NativeError, RecordTooLarge

_CRC: Final = struct.Struct("<I")
_ID: Final = struct.Struct("<Q")
_FLUSHES_AT_ONCE: Final = 4


class Numbering(NamedTuple):
    """What the numbers of a task become.

    Attributes:
        queue_ids: The queue's id, by the task's number for it.
        first_sequences: What is added to the sequences of that queue.
        first_body: What is added to the numbers of large bodies.
    """

    queue_ids: npt.NDArray[np.uint64]
    first_sequences: npt.NDArray[np.uint64]
    first_body: int


class JournalChain:
    """The files of one journal, from the first to the last. Owner: the thread that made it.

    Attributes:
        files: How many there are.

    Args:
        folder: Where they get their names.
        form: Names and kind of the files.
        file_bytes: Size of each file.
    """

    def __init__(self, folder: Path, form: FileForm, file_bytes: int) -> None:
        self.files = 0
        self._folder = folder
        self._form = form
        self._file_bytes = file_bytes
        self._journal_id = secrets.token_bytes(16)
        self._sequence = 0
        self._crc = 0
        self._salt = 0
        self._flushes = ThreadPoolExecutor(_FLUSHES_AT_ONCE)
        self._flushing: list[Future[None]] = []

    def settle(self, path: Path, index: Index, numbers: Numbering) -> npt.NDArray[np.uint64]:
        """Make a task's file the next one of the journal.

        Args:
            path: The file; it is moved.
            index: What is to be put right in it.
            numbers: What the task's numbers become.

        Returns:
            Queue id and sequence of its places, a row for each.

        Raises:
            NativeError: A call failed.

        Durability: none before `finish`.
        """
        with disk_errors("a journal file can't be written", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._begin(descriptor)
                settled = [
                    self._settle(descriptor, block, index, numbers) for block in index.blocks
                ]
                last = index.blocks[-1]
                self._end(descriptor, int(last[0]) + align4k(HEADER_BYTES + int(last[1])))
            finally:
                os.close(descriptor)
            target = self._folder / self._form.name(self.files)
            path.rename(target)
        self._flush(target)
        return np.concatenate(settled)

    def write(self, records: Sequence[bytes]) -> None:
        """Make files of records.

        Args:
            records: Their bytes without padding, none of them FILES or SEAL.

        Raises:
            RecordTooLarge: One does not fit into a file.
            NativeError: A call failed.

        Durability: none before `finish`.
        """
        room = record_bytes_max(self._file_bytes)
        waiting = list(records)
        while True:
            payload, taken = bytearray(), 0
            for record in waiting:
                size = align8(len(record))
                if size > room:
                    raise RecordTooLarge(
                        "a record does not fit into a journal file",
                        measured=f"{len(record)} bytes", allowed=f"at most {room} bytes",
                    )  # fmt: skip
                if len(payload) + size > room:
                    break
                payload += record.ljust(size, b"\0")
                taken += 1
            self._write_file(payload, taken)
            waiting = waiting[taken:]
            if not waiting:
                return

    def finish(self) -> None:
        """Wait until all files are on the disk.

        Raises:
            NativeError: A call failed.

        Durability: on return the files and their names survive a power cut.
        """
        self._flushes.shutdown(wait=True)
        for flush in self._flushing:
            flush.result()
        flush_folder(self._folder)

    def close(self) -> None:
        """Wait for what is under way, after a failure or at the end."""
        self._flushes.shutdown(wait=True, cancel_futures=True)

    # --- one file ---------------------------------------------------------------------------------

    def _write_file(self, payload: bytearray, records: int) -> None:
        target = self._folder / self._form.name(self.files + 1)
        with disk_errors("a journal file can't be written", target):
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(descriptor, 0, self._file_bytes)
                self._begin(descriptor)
                offset = FIRST_OFFSET
                if records:
                    offset = self._block(descriptor, offset, payload, records)
                self._end(descriptor, offset)
            finally:
                os.close(descriptor)
        self._flush(target)

    def _begin(self, descriptor: int) -> None:
        self.files += 1
        self._salt = secrets.randbits(64)
        header = FileHeader(
            state=FileState.ACTIVE, kind=self._form.kind, journal_id=self._journal_id,
            file_id=self.files, salt=self._salt, size_bytes=self._file_bytes,
            activated_ms=_now_ms(), watermark=self._sequence,
        )  # fmt: skip
        _write_at(descriptor, encode_file_header(header), 0)

    def _settle(
        self, descriptor: int, block: npt.NDArray[np.uint32], index: Index, numbers: Numbering
    ) -> npt.NDArray[np.uint64]:
        """Put the numbers of a block right, then give it its header."""
        offset, payload_bytes, records = (int(number) for number in block)
        begin, end = offset + HEADER_BYTES, offset + HEADER_BYTES + payload_bytes
        # Read with what stands before the payload, so that places lie at multiples of 8.
        payload = bytearray(_read_at(descriptor, payload_bytes, begin))
        places = _within(index.places, begin, end)
        words = np.frombuffer(payload, np.dtype("<u8"))
        at = (places - begin) >> 3
        queues = words[at]  # the word's upper half is zero
        words[at] = numbers.queue_ids[queues]
        words[at + 1] += numbers.first_sequences[queues]
        settled = np.column_stack([words[at], words[at + 1]])
        del words
        for reference in _within(index.bodies, begin, end) - begin:
            (number,) = _ID.unpack_from(payload, reference)
            _ID.pack_into(payload, reference, number + numbers.first_body)
        if records:
            _write_at(descriptor, payload, begin)
        self._header(descriptor, offset, payload, records)
        return settled

    def _end(self, descriptor: int, offset: int) -> None:
        """Write the list of all files so far, and the seal."""
        listed = encode_record(FilesRecord((FileRun(1, self.files),)))
        assert align4k(HEADER_BYTES + len(listed)) <= LISTED_BYTES
        offset = self._block(descriptor, offset, listed, 1)
        self._block(descriptor, offset, encode_record(SealRecord()), 1, FLAG_SEAL)

    def _block(
        self, descriptor: int, offset: int, payload: bytes | bytearray, records: int, flags: int = 0
    ) -> int:
        """Write a block; return where the next one begins."""
        _write_at(descriptor, payload, offset + HEADER_BYTES)
        self._header(descriptor, offset, payload, records, flags)
        return offset + align4k(HEADER_BYTES + len(payload))

    def _header(
        self, descriptor: int, offset: int, payload: bytes | bytearray, records: int, flags: int = 0
    ) -> None:
        """Write a block's header.

        The watermark covers all blocks before: nobody sees the journal until all of it is durable,
        so a reader that sees this block knows that those are.
        """
        header = BlockHeader(
            sequence=self._sequence + 1, file_id=self.files, watermark=self._sequence,
            payload_bytes=len(payload), records=records, previous_crc=self._crc,
            time_ms=_now_ms(), flags=flags,
        )  # fmt: skip
        encoded = encode_block_header(header, payload, salt=self._salt, offset=offset)
        (self._crc,) = _CRC.unpack_from(encoded, CRC_AT)
        self._sequence += 1
        _write_at(descriptor, encoded, offset)

    def _flush(self, path: Path) -> None:
        self._flushing.append(self._flushes.submit(flush_file, path))


def _within(offsets: npt.NDArray[np.uint32], begin: int, end: int) -> npt.NDArray[np.int64]:
    low, high = np.searchsorted(offsets, [begin, end])
    return offsets[low:high].astype(np.int64)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def flush_file(path: Path) -> None:
    """Flush a file.

    Raises:
        NativeError: The call failed.

    Durability: on return what was written to it survives a power cut.
    """
    _flush_path(path, os.O_RDONLY)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder.

    Raises:
        NativeError: The call failed.

    Durability: on return they survive a power cut.
    """
    _flush_path(folder, os.O_RDONLY | os.O_DIRECTORY)


def _flush_path(path: Path, flags: int) -> None:
    with disk_errors("what was written can't be flushed", path):
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_at(descriptor: int, size_bytes: int, offset: int) -> bytes:
    parts = []
    while size_bytes:
        part = os.pread(descriptor, size_bytes, offset)
        if not part:
            raise NativeError("a file of a task ends too early", where=f"offset {offset}")
        parts.append(part)
        size_bytes -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_at(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        number = os.pwrite(descriptor, view, offset)
        view, offset = view[number:], offset + number

"""What one task writes: journal files with blanks, and bodies of large messages.

Owns the layout of a file: where blocks begin and end (journal-format §2 and §6). A task does not
know what other tasks write, so it leaves the headers of file and blocks blank, and numbers queues,
places and large bodies from 0. Beside each file lies an index of what is to be put right. Must
never flush anything: `settling` changes these files and flushes them. Called by `writer`.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import FIRST_OFFSET, HEADER_BYTES, align4k
from vespiary_codec.journal.file_header import SEAL_BYTES
from vespiary_codec.journal.large_reference import (
    REFERENCE_BYTES,
    LargeReference,
    encode_large_reference,
)
from vespiary_codec.journal.record import ADD, PLACE, align8
from vespiary_native.abc import BLOCK_BYTES, SLAB_BYTES
from vespiary_pipeline.imports.rows import Encoded
from vespiary_pipeline.targets import disk_errors

LISTED_BYTES: Final = align4k(HEADER_BYTES + 32)
"""Room for the FILES record in front of the seal: one run."""

_LENGTH: Final = struct.Struct("<I")

Numbers = npt.NDArray[np.uint32]


class Block(NamedTuple):
    """Where a block stands in its file.

    Attributes:
        offset: Where its header begins.
        payload_bytes: Length of its records.
        records: Number of them; 0 in a block that fills a slab.
    """

    offset: int
    payload_bytes: int
    records: int


class Index(NamedTuple):
    """What is to be put right in a file.

    Attributes:
        blocks: A row of offset, length and number of records for each block.
        places: Offset of each place.
        bodies: Offset of each reference to a large body.
    """

    blocks: Numbers
    places: Numbers
    bodies: Numbers


def record_bytes_max(file_bytes: int) -> int:
    """Return the size of the largest record that a file takes.

    Args:
        file_bytes: Size of the file.
    """
    room = min(file_bytes - SEAL_BYTES - LISTED_BYTES, SLAB_BYTES)
    return room - FIRST_OFFSET - HEADER_BYTES


def file_path(folder: Path, number: int) -> Path:
    """Return where a task's file lies."""
    return folder / f"{number}.blocks"


def body_path(folder: Path, number: int) -> Path:
    """Return where a task's large body lies."""
    return folder / f"{number}.body"


def read_index(folder: Path, number: int) -> Index:
    """Return the index of a task's file."""
    with np.load(file_path(folder, number).with_suffix(".npz")) as arrays:
        return Index(arrays["blocks"], arrays["places"], arrays["bodies"])


class StagedFiles:
    """The files of one task. Owner: the task; `close` ends them, whatever became of it.

    Attributes:
        files: How many files were begun.
        bodies: How many large bodies were written.

    Args:
        folder: The task's own.
        file_bytes: Size of each file.
    """

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self.files = 0
        self.bodies = 0
        self._folder = folder
        self._file_bytes = file_bytes
        self._block_bytes = min(BLOCK_BYTES, record_bytes_max(file_bytes) // 4)
        self._data_end = file_bytes - SEAL_BYTES - LISTED_BYTES
        self._descriptor = -1
        self._offset = 0
        self._records: list[bytes] = []
        self._payload_bytes = 0
        self._pending: list[tuple[int, int, bool]] = []
        self._blocks: list[Block] = []
        self._places: list[int] = []
        self._references: list[int] = []

    def add(self, message: Encoded) -> None:
        """Append a message.

        Raises:
            DiskFull: There is no room.
            NativeError: A call failed.
        """
        record = message.record
        if message.large_body is not None:
            record = record[:-REFERENCE_BYTES] + self._write_body(message.large_body)
        size = align8(len(record))
        if self._records and HEADER_BYTES + self._payload_bytes + size > self._block_bytes:
            self._write_block()
        self._pending.append((self._payload_bytes, message.places, message.large_body is not None))
        self._records.append(record if size == len(record) else record.ljust(size, b"\0"))
        self._payload_bytes += size

    def finish(self) -> None:
        """Write what is left.

        Raises:
            DiskFull: There is no room.
            NativeError: A call failed.
        """
        if self._records:
            self._write_block()
        self._end_file()

    def close(self) -> None:
        """Close the file that is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write_body(self, body: bytes) -> bytes:
        path = body_path(self._folder, self.bodies)
        with disk_errors("a large body can't be written", path):
            path.write_bytes(body)
        self.bodies += 1
        return encode_large_reference(LargeReference(self.bodies - 1, len(body), crc32c(body)))

    def _write_block(self) -> None:
        length = align4k(HEADER_BYTES + self._payload_bytes)
        self._make_room(length)
        at = self._offset + HEADER_BYTES
        for (offset, places, is_large), record in zip(self._pending, self._records, strict=True):
            first = at + offset + ADD.size
            if places == 1:
                self._places.append(first)
            else:
                self._places += range(first, first + places * PLACE.size, PLACE.size)
            if is_large:
                (size,) = _LENGTH.unpack_from(record)
                self._references.append(at + offset + size - REFERENCE_BYTES)
        path = file_path(self._folder, self.files - 1)
        payload = b"".join([bytes(HEADER_BYTES), *self._records])
        with disk_errors("a journal file can't be written", path):
            _write_all(self._descriptor, payload, self._offset)
        self._blocks.append(Block(self._offset, self._payload_bytes, len(self._records)))
        self._offset += length
        self._records, self._pending, self._payload_bytes = [], [], 0

    def _make_room(self, length: int) -> None:
        """Have a file open in which a block of that length crosses neither a slab nor the end."""
        if self._descriptor < 0:
            self._begin_file()
        slab_end = (self._offset // SLAB_BYTES + 1) * SLAB_BYTES
        if self._offset + length > self._data_end or (
            self._offset + length > slab_end and slab_end + length > self._data_end
        ):
            self._end_file()
            self._begin_file()
        elif self._offset + length > slab_end:
            # A block without records fills the slab: the broker's memory is cut there.
            self._blocks.append(Block(self._offset, slab_end - self._offset - HEADER_BYTES, 0))
            self._offset = slab_end

    def _begin_file(self) -> None:
        path = file_path(self._folder, self.files)
        with disk_errors("a journal file can't be made", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o640)
            os.posix_fallocate(self._descriptor, 0, self._file_bytes)
        self._offset = FIRST_OFFSET
        self.files += 1

    def _end_file(self) -> None:
        if self._descriptor < 0:
            return
        path = file_path(self._folder, self.files - 1)
        with disk_errors("a journal file can't be written", path):
            self.close()
            np.savez(
                path.with_suffix(".npz"),
                blocks=np.array(self._blocks, np.uint32).reshape(-1, 3),
                places=np.array(self._places, np.uint32),
                bodies=np.array(self._references, np.uint32),
            )
        self._blocks, self._places, self._references = [], [], []


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        number = os.pwrite(descriptor, view, offset)
        view, offset = view[number:], offset + number

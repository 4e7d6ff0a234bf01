"""`Builder`: journals written block by block with the codec alone, on a `MemoryDisk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_codec.journal.file_header import (
    FileHeader,
    FileState,
    JournalKind,
    encode_file_header,
)
from vespiary_codec.journal.record import (
    FileRun,
    FilesRecord,
    SealRecord,
)
from vespiary_testkit.faulty_disk import Inode, MemoryDisk
from vespiary_testkit.journal_blocks import BlockChain
from vespiary_testkit.journal_workload import FILE_BYTES

FOLDER = Path("/journal")


class Builder:
    """Writes a journal block by block.

    Attributes:
        disk: Its disk.
        chain: Sequence and checksum of the last block.
        file_id: The file that is written.
        offset: Where its next block goes.
    """

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.chain = BlockChain()
        self.offset = 4096
        self.file_id = 0

    def file(
        self, file_id: int, *, state: FileState = FileState.ACTIVE, watermark: int = 0
    ) -> None:
        """Begin a file."""
        header = FileHeader(
            state=state,
            kind=JournalKind.MESSAGE,
            journal_id=b"j" * 16,
            file_id=file_id,
            salt=file_id * 7919,
            size_bytes=FILE_BYTES,
            activated_ms=1,
            watermark=watermark,
        )
        data = bytearray(FILE_BYTES)
        data[:4096] = encode_file_header(header)
        self.disk.files[self.path(file_id)] = Inode(file_id, data)
        self.file_id, self.offset = file_id, 4096

    def path(self, file_id: int) -> Path:
        return FOLDER / MESSAGE_FORM.name(file_id)

    def block(
        self,
        *records: Any,
        watermark: int = 0,
        sequence: int | None = None,
        previous_crc: int | None = None,
        is_seal: bool = False,
    ) -> int:
        """Write the next block; return its offset."""
        data = self.chain.block(
            records,
            file_id=self.file_id,
            offset=self.offset,
            salt=self.file_id * 7919,
            watermark=watermark,
            sequence=sequence,
            previous_crc=previous_crc,
            is_seal=is_seal,
        )
        at, self.offset = self.offset, self.offset + len(data)
        self.disk.files[self.path(self.file_id)].data[at : at + len(data)] = data
        return at

    def files(self, *ids: int, watermark: int = 0) -> int:
        """Write a block with a FILES record."""
        return self.block(FilesRecord(tuple(FileRun(n, n) for n in ids)), watermark=watermark)

    def seal(self, watermark: int = 0) -> int:
        return self.block(SealRecord(), watermark=watermark, is_seal=True)

    def damage(self, file_id: int, offset: int) -> None:
        """Make one block unreadable, at its last header byte."""
        self.disk.flip(self.path(file_id), offset + 60, 3)

"""`Builder`: journals written block by block with the codec alone, on a `MemoryDisk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_codec.journal.block import BlockHeader, encode_block
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
    align8,
    encode_record,
)
from vespiary_testkit.faulty_disk import Inode, MemoryDisk
from vespiary_testkit.journal_workload import FILE_BYTES

FOLDER = Path("/journal")
CRC_AT = 44


class Builder:
    """Writes a journal block by block."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.sequence = 0
        self.crc = 0
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
        encoded = [encode_record(record) for record in records]
        payload = b"".join(data.ljust(align8(len(data)), b"\0") for data in encoded)
        header = BlockHeader(
            sequence=self.sequence + 1 if sequence is None else sequence,
            file_id=self.file_id,
            watermark=watermark,
            payload_bytes=len(payload),
            records=len(records),
            previous_crc=self.crc if previous_crc is None else previous_crc,
            time_ms=1,
            flags=int(is_seal),
        )
        data = encode_block(header, payload, salt=self.file_id * 7919, offset=self.offset)
        at, self.offset = self.offset, self.offset + len(data)
        self.disk.files[self.path(self.file_id)].data[at : at + len(data)] = data
        self.sequence = header.sequence
        self.crc = int.from_bytes(data[CRC_AT : CRC_AT + 4], "little")
        return at

    def files(self, *ids: int, watermark: int = 0) -> int:
        """Write a block with a FILES record."""
        return self.block(FilesRecord(tuple(FileRun(n, n) for n in ids)), watermark=watermark)

    def seal(self, watermark: int = 0) -> int:
        return self.block(SealRecord(), watermark=watermark, is_seal=True)

    def damage(self, file_id: int, offset: int) -> None:
        """Make one block unreadable, at its last header byte."""
        self.disk.flip(self.path(file_id), offset + 60, 3)

"""Whole journals for Spark to read: files of 10 MiB with messages, their ends, and transactions.

Owns: what the records are, and how they fill files. Must never: be written by a broker, whose speed
is not what is measured. Called by `benchmarks.pipeline.frames`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from vespiary_codec.journal.block import (
    CRC_AT,
    FIRST_OFFSET,
    FLAG_SEAL,
    HEADER_BYTES,
    BlockHeader,
    encode_block,
)
from vespiary_codec.journal.file_forms import MESSAGE_FORM
from vespiary_codec.journal.file_header import (
    SEAL_BYTES,
    FileHeader,
    FileState,
    JournalKind,
    encode_file_header,
)
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    SealRecord,
    SequenceRange,
    align8,
    digest_members,
    encode_record,
)

JOURNAL_ID = bytes(range(16))
_BLOCK_BYTES = 256 * 1024
_TIME_MS = 1_700_000_000_000
_PROPERTIES = b"destination:/queue/orders\ncontent-type:text/plain\nregion:north\n"
_NOISE_BYTES = 64 * 1024 * 1024
"""Bodies come again after so much of them: farther than any compression looks back."""
_TURN = 50
"""Messages of a turn: a fifth of them are one transaction."""
_LAG_TURNS = 200
"""Turns that a message waits: so that 10 000 messages are live at the end."""


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """A journal in its folder.

    Attributes:
        folder: A broker's data folder.
        records: Records in it.
        live: Messages that nothing ended.
        used_bytes: Bytes of blocks.
    """

    folder: Path
    records: int
    live: int
    used_bytes: int


def records_of(messages: int, body_bytes: int) -> Iterator[bytes]:
    """Yield encoded records: ADDs, a transaction in each turn, ACKs of what came turns before.

    Args:
        messages: How many are added: whole turns of 50, at least one.
        body_bytes: Of each; no two near each other are the same, and they do not compress.
    """
    noise = os.urandom(_NOISE_BYTES + body_bytes)
    for turn in range(max(1, messages // _TURN)):
        first = turn * _TURN + 1
        transaction = turn + 1
        members = []
        for sequence in range(first, first + _TURN):
            is_member = sequence - first < _TURN // 5
            own = transaction if is_member else 0
            place = (Place(1, sequence),)
            begin = sequence * body_bytes % _NOISE_BYTES
            body = noise[begin : begin + body_bytes]
            data = encode_record(AddRecord(place, _PROPERTIES, body, _TIME_MS, transaction=own))
            if is_member:
                members.append(data)
            yield data
        yield encode_record(CommitRecord(transaction, len(members), digest_members(members)))
        old = first - _LAG_TURNS * _TURN
        for sequence in range(old, old + _TURN) if old > 0 else ():
            yield encode_record(AckRecord(1, (SequenceRange(sequence, 1),)))


def _payloads(records: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield records by the block, with their number."""
    own: list[bytes] = []
    used = 0
    for data in records:
        padded = data.ljust(align8(len(data)), b"\0")
        if own and used + len(padded) > _BLOCK_BYTES:
            yield len(own), b"".join(own)
            own, used = [], 0
        own.append(padded)
        used += len(padded)
    yield len(own), b"".join(own)


class _Writer:
    """Blocks in file after file, each with its seal but the last. Owner: `write_journal`."""

    def __init__(self, home: Path, file_bytes: int) -> None:
        self._home = home
        self._file_bytes = file_bytes
        self._file: BinaryIO | None = None
        self._file_id = self._at = self._crc = self._blocks = 0
        self.records = self.used_bytes = 0

    def add(self, payload: bytes, records: int) -> None:
        """Write a block, into a new file if it does not fit."""
        room = self._file_bytes - SEAL_BYTES - self._at
        if self._file is None or -(-(len(payload) + HEADER_BYTES) // 4096) * 4096 > room:
            if self._file is not None:
                self._block(encode_record(SealRecord()), 1, FLAG_SEAL)
            self._next_file()
        self._block(payload, records, 0)

    def _block(self, payload: bytes, records: int, flags: int) -> None:
        assert self._file is not None
        self._blocks += 1
        header = BlockHeader(
            sequence=self._blocks,
            file_id=self._file_id,
            watermark=self._blocks - 1,
            payload_bytes=len(payload),
            records=records,
            previous_crc=self._crc,
            time_ms=_TIME_MS,
            flags=flags,
        )
        block = encode_block(header, payload, salt=_salt(self._file_id), offset=self._at)
        self._crc = int.from_bytes(block[CRC_AT : CRC_AT + 4], "little")
        self._file.write(block)
        self._at += len(block)
        self.used_bytes += len(block)
        self.records += records

    def _next_file(self) -> None:
        self.close()
        self._file_id += 1
        self._file = (self._home / MESSAGE_FORM.name(self._file_id)).open("wb")
        self._file.write(_file_header(self._file_id, self._file_bytes, self._blocks))
        self._at = FIRST_OFFSET

    def close(self) -> None:
        """Give the file its size."""
        if self._file is not None:
            self._file.truncate(self._file_bytes)
            self._file.close()


def write_journal(
    folder: Path, messages: int, body_bytes: int, file_bytes: int = 10 * 1024 * 1024
) -> Journal:
    """Write a message journal.

    Args:
        folder: The data folder, which is made.
        messages: As for `records_of`.
        body_bytes: As for `records_of`.
        file_bytes: Size of each file; a message has to fit.
    """
    home = folder / "journal"
    home.mkdir(parents=True)
    writer = _Writer(home, file_bytes)
    for records, payload in _payloads(records_of(messages, body_bytes)):
        writer.add(payload, records)
    writer.close()
    live = min(max(1, messages // _TURN), _LAG_TURNS) * _TURN
    return Journal(folder=folder, records=writer.records, live=live, used_bytes=writer.used_bytes)


def _salt(file_id: int) -> int:
    return 0x5EED_0000_0000_0000 + file_id


def _file_header(file_id: int, file_bytes: int, watermark: int) -> bytes:
    return encode_file_header(
        FileHeader(
            state=FileState.ACTIVE,
            kind=JournalKind.MESSAGE,
            journal_id=JOURNAL_ID,
            file_id=file_id,
            salt=_salt(file_id),
            size_bytes=file_bytes,
            activated_ms=_TIME_MS,
            watermark=watermark,
        )
    )

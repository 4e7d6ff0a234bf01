"""One file of a journal and one core: seconds of processor from its bytes to columns.

Owns: a file of blocks of messages, and the loop that reads it in windows as the pipeline does. Must
never: give a figure for a walk that did not see every record. Called by
`benchmarks.pipeline.__main__`.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from vespiary_codec.journal.block import FIRST_OFFSET, BlockHeader, encode_block
from vespiary_codec.journal.columns import Scan
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    Place,
    SequenceRange,
    align8,
    encode_record,
)
from vespiary_native import columns

WINDOW_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 256 * 1024
_SALT = 0x5EED_5EED_5EED_5EED
_FILE_ID = 1
_PROPERTIES = b"destination:/queue/orders\ncontent-type:text/plain\nregion:north\n"


class ScanError(Exception):
    """A walk did not end where the file does, or lost records on the way."""


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """A file of blocks.

    Attributes:
        path: Where it lies.
        records: ADD and ACK records in it.
        end: Offset behind its last block.
    """

    path: Path
    records: int
    end: int


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of journal a second of processor time: one core, no Spark.

    Attributes:
        scan: Blocks to columns, no more.
        properties: And all headers of all messages.
        bodies: And all bodies copied out.
        records_per_s: Records a second of the scan alone.
    """

    scan: float
    properties: float
    bodies: float
    records_per_s: float


def _blocks(body_bytes: int) -> Iterator[list[bytes]]:
    """Yield the records of block after block: messages, each with the ACK of the one before."""
    body = os.urandom(body_bytes)
    sequence = 0
    while True:
        own: list[bytes] = []
        used = 0
        while used < _BLOCK_BYTES - body_bytes - 512:
            sequence += 1
            message = AddRecord((Place(1, sequence),), _PROPERTIES, body, 1_700_000_000_000)
            for record in (message, AckRecord(1, (SequenceRange(sequence, 1),))):
                data = encode_record(record)
                own.append(data.ljust(align8(len(data)), b"\0"))
                used += len(own[-1])
        yield own


def make_journal(path: Path, body_bytes: int, size_bytes: int) -> Journal:
    """Write blocks of 256 KiB with messages and their acknowledgements.

    Args:
        path: The file to make.
        body_bytes: Of each message; as random as bodies that do not compress.
        size_bytes: About how long the file gets.
    """
    crc = records = 0
    with path.open("wb") as file:
        file.write(bytes(FIRST_OFFSET))
        for number, own in enumerate(_blocks(body_bytes), 1):
            payload = b"".join(own)
            header = BlockHeader(
                sequence=number,
                file_id=_FILE_ID,
                watermark=number - 1,
                payload_bytes=len(payload),
                records=len(own),
                previous_crc=crc,
                time_ms=1_700_000_000_000,
            )
            block = encode_block(header, payload, salt=_SALT, offset=file.tell())
            crc = int.from_bytes(block[44:48], "little")
            file.write(block)
            records += len(own)
            if file.tell() >= size_bytes:
                return Journal(path=path, records=records, end=file.tell())
    raise AssertionError("blocks never end")


def walk(journal: Journal, use: Callable[[bytes, Scan], object]) -> float:
    """Read a file in windows and scan them; return seconds of this process's processor time.

    Args:
        journal: The file.
        use: What is done with each window and its columns.

    Raises:
        ScanError: It ended before the file, or not all records were seen.
    """
    at, records = FIRST_OFFSET, 0
    previous = None
    descriptor = os.open(journal.path, os.O_RDONLY)
    try:
        begun = time.process_time()
        while at < journal.end:
            window = os.pread(descriptor, WINDOW_BYTES, at)
            found = columns.scan(window, offset=at, salt=_SALT, file_id=_FILE_ID, previous=previous)
            if not found.blocks:
                raise ScanError(f"the scan of {journal.path} ended at {found.stop}")
            use(window, found)
            at, records = found.stop.offset, records + found.columns.rows
            previous = (found.sequence, found.crc)
        seconds = time.process_time() - begun
    finally:
        os.close(descriptor)
    if records != journal.records:
        raise ScanError(f"{records} records of {journal.records} were seen in {journal.path}")
    return seconds


def _nothing(_window: bytes, _found: Scan) -> None:
    """Look at no column."""


def _headers(window: bytes, found: Scan) -> None:
    columns.properties(window, found.columns)


def _bodies(window: bytes, found: Scan) -> None:
    columns.gather(window, found.columns.body_at, found.columns.body_bytes)


def measure(journal: Journal) -> Passes:
    """Walk a file three times, after once to have it in the page cache.

    Raises:
        ScanError: As for `walk`.
    """
    walk(journal, _nothing)
    length = journal.end - FIRST_OFFSET
    scan = walk(journal, _nothing)
    return Passes(
        scan=length / scan,
        properties=length / walk(journal, _headers),
        bodies=length / walk(journal, _bodies),
        records_per_s=journal.records / scan,
    )

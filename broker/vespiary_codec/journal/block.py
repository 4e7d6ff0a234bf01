"""Blocks: the unit of checksum and of loss (journal-format §2).

Owns the 64-byte header, the salted and chained checksum, and the walk from one valid block to the
next. Never judges what an invalid block means: that is the store's recovery (§4). Called by the
pure-Python core, by the store, by the journal tools and by the pipeline.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.errors import JournalFormatError

MAGIC: Final = 0x4B4C4256
"""`VBLK` as a little-endian number."""

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 64
ALIGNMENT: Final = 4096
FIRST_OFFSET: Final = 4096
"""Offset of the first block in a file."""

FLAG_SEAL: Final = 1

HEADER: Final = struct.Struct("<IHHQQQIIIIQQ")
"""magic, version, flags, sequence, file id, watermark, payload, records, CRC before, CRC, time."""

CRC_AT: Final = 44
SEED: Final = struct.Struct("<QQ")
"""salt, offset of the block in its file."""

_CRC: Final = struct.Struct("<I")
_OFFSETS: Final = {
    "magic": 0,
    "format version": 4,
    "sequence": 8,
    "file id": 16,
    "payload length": 32,
}

assert HEADER.size == HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """What the header of a block says, less its checksum.

    Attributes:
        sequence: Number of the block in the journal, from 1, without gaps.
        file_id: Id of its file.
        watermark: Highest sequence known to be durable when the block was closed.
        payload_bytes: Length of the records, the padding behind each of them included.
        records: Number of records.
        previous_crc: Checksum of the block before; 0 for sequence 1.
        crc: Checksum of this block; 0 until `encode_block` has computed it.
        time_ms: Time of closing, milliseconds since 1970.
        flags: 1 = the file ends with this block.
    """

    sequence: int
    file_id: int
    watermark: int
    payload_bytes: int
    records: int
    previous_crc: int
    time_ms: int
    crc: int = 0
    flags: int = 0

    @property
    def is_seal(self) -> bool:
        """Whether the file ends with this block."""
        return bool(self.flags & FLAG_SEAL)

    @property
    def length(self) -> int:
        """Bytes from this block's start to the next one's."""
        return align4k(HEADER_BYTES + self.payload_bytes)


def align4k(n: int) -> int:
    """Return `n` rounded up to a multiple of 4096."""
    return n + 4095 & ~4095


def block_crc(
    header: bytes | bytearray | memoryview,
    payload: bytes | bytearray | memoryview,
    *,
    salt: int,
    offset: int,
) -> int:
    """Return the checksum of a block, seeded with the file's life and the block's place.

    Args:
        header: The 64 bytes of the header with zeros at 44 to 48.
        payload: The payload.
        salt: Salt of the file.
        offset: Offset of the block in the file.
    """
    return crc32c(payload, crc32c(header, crc32c(SEED.pack(salt, offset))))


def encode_block(header: BlockHeader, payload: bytes, *, salt: int, offset: int) -> bytes:
    """Return a block as it stands in its file, padded to a multiple of 4096.

    Args:
        header: What it shall say; its `crc` is computed here, its `payload_bytes` must fit.
        payload: The records.
        salt: Salt of the file.
        offset: Offset of the block in the file, a multiple of 4096.

    Raises:
        ValueError: `payload_bytes` is not the payload's length, or a field is out of range.
    """
    encoded = encode_block_header(header, payload, salt=salt, offset=offset)
    return (encoded + payload).ljust(header.length, b"\0")


def encode_block_header(
    header: BlockHeader, payload: bytes | bytearray | memoryview, *, salt: int, offset: int
) -> bytes:
    """Return the 64 bytes of a block's header, its checksum over the payload included.

    Args:
        header: As for `encode_block`.
        payload: The records.
        salt: Salt of the file.
        offset: Offset of the block in the file, a multiple of 4096.

    Raises:
        ValueError: As for `encode_block`.
    """
    if header.payload_bytes != len(payload):
        raise ValueError(
            f"the header announces {header.payload_bytes} bytes, the payload has {len(payload)}"
        )
    if offset % ALIGNMENT:
        raise ValueError(f"block offset {offset} is not a multiple of {ALIGNMENT}")
    try:
        encoded = bytearray(_pack(header))
    except struct.error as error:
        raise ValueError(f"a field of the block header is out of range: {error}") from error
    _CRC.pack_into(encoded, CRC_AT, block_crc(encoded, payload, salt=salt, offset=offset))
    return bytes(encoded)


def _pack(header: BlockHeader) -> bytes:
    return HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        header.flags,
        header.sequence,
        header.file_id,
        header.watermark,
        header.payload_bytes,
        header.records,
        header.previous_crc,
        0,
        header.time_ms,
        0,
    )


def decode_block_header(data: bytes | bytearray | memoryview, *, offset: int) -> BlockHeader:
    """Return what a block's header says, without a look at its checksum.

    Args:
        data: At least 64 bytes from the block's start.
        offset: Offset of the block in its file, for the errors.

    Raises:
        JournalFormatError: It is not the header of a block: offset in the file, found, expected.
    """
    if len(data) < HEADER_BYTES:
        raise JournalFormatError(
            "a block header is cut off",
            offset=offset,
            found=f"{len(data)} bytes",
            expected=f"{HEADER_BYTES} bytes",
        )
    magic, version, flags, sequence, file_id, mark, payload, records, before, crc, time_ms, _ = (
        HEADER.unpack_from(data)
    )
    if magic != MAGIC:
        found = "zeros" if not any(bytes(data[:HEADER_BYTES])) else f"{magic:#010x}"
        _refuse("magic", offset, found, f"{MAGIC:#010x}")
    if version != FORMAT_VERSION:
        _refuse("format version", offset, version, FORMAT_VERSION)
    return BlockHeader(
        sequence=sequence,
        file_id=file_id,
        watermark=mark,
        payload_bytes=payload,
        records=records,
        previous_crc=before,
        crc=crc,
        time_ms=time_ms,
        flags=flags,
    )


def decode_block(
    data: bytes | bytearray | memoryview, *, offset: int, salt: int, file_id: int
) -> tuple[BlockHeader, memoryview]:
    """Return the header and the payload of a valid block.

    Args:
        data: Bytes from the block's start, at least as many as the block has with its padding.
        offset: Offset of the block in its file.
        salt: Salt of the file.
        file_id: Id of the file.

    Raises:
        JournalFormatError: The block is not valid here: offset in the file, found, expected.
    """
    octets = memoryview(data)
    header = decode_block_header(octets, offset=offset)
    if header.file_id != file_id:
        _refuse("file id", offset, header.file_id, file_id)
    if header.length > len(octets):
        _refuse(
            "payload length", offset, f"{header.payload_bytes}", f"a block of {len(octets)} bytes"
        )
    payload = octets[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    blanked = bytearray(octets[:HEADER_BYTES])
    _CRC.pack_into(blanked, CRC_AT, 0)
    computed = block_crc(blanked, payload, salt=salt, offset=offset)
    if computed != header.crc:
        raise JournalFormatError(
            "bad checksum of a block",
            offset=offset + CRC_AT,
            found=f"{header.crc:#010x}",
            expected=f"{computed:#010x}",
        )
    return header, payload


def _refuse(field: str, offset: int, found: object, expected: object) -> None:
    raise JournalFormatError(
        f"bad {field} in a block header",
        offset=offset + _OFFSETS[field],
        found=found,
        expected=expected,
    )


def walk_blocks(
    data: bytes | bytearray | memoryview, *, offset: int, salt: int, file_id: int
) -> Iterator[tuple[int, BlockHeader, memoryview]]:
    """Yield (offset in the file, header, payload) of block after block while they are valid.

    The walk ends with a seal, at the first thing that is not a valid block, or with the data.
    Whether the sequences and the chain go on is for the caller to compare.

    Args:
        data: Bytes of the file from `offset` on, at a block's start.
        offset: File offset of `data[0]`.
        salt: Salt of the file.
        file_id: Id of the file.
    """
    octets = memoryview(data)
    at = 0
    while at + HEADER_BYTES <= len(octets):
        try:
            header, payload = decode_block(
                octets[at:], offset=offset + at, salt=salt, file_id=file_id
            )
        except JournalFormatError:
            return  # the caller asked where the valid blocks end: here
        yield offset + at, header, payload
        if header.is_seal:
            return
        at += header.length

"""The header of a journal file: its first 4096 bytes (journal-format §1.1).

Owns their encoding. Never decides whether a file may be used or what a bad header means for the
journal: that is the store's recovery. Called by the store, the journal tools and the pipeline.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.errors import JournalFormatError

MAGIC: Final = b"VSPYJRNL"
FORMAT_VERSION: Final = 1
READABLE_VERSIONS: Final = (1,)
SOFTWARE_FORMAT: Final = 1
"""Lowest reader version for the files that this code writes, and the highest that it knows."""

ALIGNMENT: Final = 4096
HEADER_BYTES: Final = 4096
CHECKED_BYTES: Final = 512
"""All fields stand in one sector; the rest of the header is zero."""

FILE_BYTES_MIN: Final = 64 * 1024
SEAL_BYTES: Final = 4096
"""Kept free at a file's end for the block that seals it."""

FLAG_GROWS: Final = 1
"""The file may be shorter than its header says: it grows with its content."""

_FIELDS: Final = struct.Struct("<8sHBBI16sQQQQIIQ")
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = 508
_OFFSETS: Final = {
    "magic": 0,
    "format version": 8,
    "state": 10,
    "journal kind": 11,
    "block alignment": 12,
    "file id": 32,
    "file size": 48,
    "software format": 64,
    "flags": 68,
    "watermark": 72,
    "padding": _FIELDS.size,
    "checksum": _CRC_AT,
}


class FileState(IntEnum):
    """Whether a file holds anything."""

    FREE = 1
    ACTIVE = 2


class JournalKind(IntEnum):
    """Which journal a file belongs to."""

    MESSAGE = 1
    BINDINGS = 2
    JMS = 3
    PAGE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """What the header of a file says.

    Attributes:
        state: Free or active.
        kind: Kind of the journal.
        journal_id: 16 random bytes, the same in all files of one journal.
        file_id: 1, 2, 3, … in order of activation, never used twice.
        salt: 64 random bits, new at every activation.
        size_bytes: Size of the file, a multiple of 4096, at least 64 KiB.
        is_growing: The file may be shorter than that: what is missing reads as zeros.
        watermark: Highest block sequence of the journal that was known to be durable at the
            activation; 0 says nothing.
        activated_ms: Time of activation, milliseconds since 1970-01-01 UTC.
        software_format: Lowest reader version that may read the file.
    """

    state: FileState
    kind: JournalKind
    journal_id: bytes
    file_id: int
    salt: int
    size_bytes: int
    activated_ms: int
    software_format: int = SOFTWARE_FORMAT
    is_growing: bool = False
    watermark: int = 0


def encode_file_header(header: FileHeader) -> bytes:
    """Return the 4096 bytes of a file header.

    Args:
        header: What it shall say.

    Raises:
        ValueError: A field is out of its range.
    """
    if len(header.journal_id) != 16:
        raise ValueError(f"the journal id has {len(header.journal_id)} bytes; it must have 16")
    if header.size_bytes % ALIGNMENT or header.size_bytes < FILE_BYTES_MIN:
        raise ValueError(
            f"file size {header.size_bytes} is not a multiple of {ALIGNMENT} of at least"
            f" {FILE_BYTES_MIN} bytes"
        )
    try:
        fields = _FIELDS.pack(
            MAGIC,
            FORMAT_VERSION,
            header.state,
            header.kind,
            ALIGNMENT,
            header.journal_id,
            header.file_id,
            header.salt,
            header.size_bytes,
            header.activated_ms,
            header.software_format,
            FLAG_GROWS if header.is_growing else 0,
            header.watermark,
        )
    except struct.error as error:
        raise ValueError(f"a field of the file header is out of range: {error}") from error
    checked = fields.ljust(_CRC_AT, b"\0")
    return (checked + _CRC.pack(crc32c(checked))).ljust(HEADER_BYTES, b"\0")


def decode_file_header(data: bytes | bytearray | memoryview) -> FileHeader | None:
    """Return what the header of a file says; None if it was never written (all zero: free).

    Args:
        data: The first 512 bytes of the file, or more.

    Raises:
        JournalFormatError: It is not a header of this format: offset in the file, found, expected.
    """
    if len(data) < CHECKED_BYTES:
        raise JournalFormatError(
            "the file header is cut off",
            offset=0,
            found=f"{len(data)} bytes",
            expected=f"at least {CHECKED_BYTES} bytes",
        )
    sector = bytes(data[:CHECKED_BYTES])
    if not any(sector):
        return None
    magic, version, state, kind, alignment, journal_id, file_id, salt, size, *rest = (
        _FIELDS.unpack_from(sector)
    )
    activated, software, flags, watermark = rest
    if magic != MAGIC:
        _refuse("magic", "another magic", "the magic of a Vespiary journal")
    # The version comes before the checksum: a newer format may keep its checksum elsewhere.
    if version not in READABLE_VERSIONS:
        _refuse("format version", version, " or ".join(map(str, READABLE_VERSIONS)))
    (crc,) = _CRC.unpack_from(sector, _CRC_AT)
    computed = crc32c(sector[:_CRC_AT])
    if crc != computed:
        _refuse("checksum", f"{crc:#010x}", f"{computed:#010x}")
    if software > SOFTWARE_FORMAT or not software:
        _refuse("software format", software, f"1 to {SOFTWARE_FORMAT}: a newer reader is needed")
    if state not in FileState.__members__.values():
        _refuse("state", state, "1 (free) or 2 (active)")
    if kind not in JournalKind.__members__.values():
        _refuse("journal kind", kind, "1 to 4")
    if alignment != ALIGNMENT:
        _refuse("block alignment", alignment, ALIGNMENT)
    if size % ALIGNMENT or size < FILE_BYTES_MIN:
        _refuse("file size", size, f"a multiple of {ALIGNMENT}, at least {FILE_BYTES_MIN}")
    if not file_id and state == FileState.ACTIVE:
        _refuse("file id", file_id, "1 or more in an active file")
    if flags & ~FLAG_GROWS:
        _refuse("flags", flags, f"0 or {FLAG_GROWS}")
    if any(sector[_FIELDS.size : _CRC_AT]):
        _refuse("padding", "something else", "zeros")
    return FileHeader(
        state=FileState(state),
        kind=JournalKind(kind),
        journal_id=journal_id,
        file_id=file_id,
        salt=salt,
        size_bytes=size,
        activated_ms=activated,
        software_format=software,
        is_growing=bool(flags & FLAG_GROWS),
        watermark=watermark,
    )


def _refuse(field: str, found: object, expected: object) -> None:
    raise JournalFormatError(
        f"bad {field} in the file header", offset=_OFFSETS[field], found=found, expected=expected
    )


def mend_file_header(data: bytes | bytearray | memoryview) -> bytes | None:
    """Return a header in which one damaged byte is put right; None if it can't be.

    A checksum finds which byte must have which value: of the 129 540 ways to change one byte each
    gives another difference of the checksum, or nearly so. What comes out is a guess until a block
    of the file validates under its salt.

    Args:
        data: The first 512 bytes of a file whose header is refused.
    """
    sector = bytearray(data[:CHECKED_BYTES])
    if len(sector) < CHECKED_BYTES:
        return None
    (stored,) = _CRC.unpack_from(sector, _CRC_AT)
    difference = stored ^ crc32c(bytes(sector[:_CRC_AT]))
    if not difference:
        return None
    # The checksum itself may be the damaged byte; then the fields are as they were.
    if sum(bool(difference >> shift & 0xFF) for shift in (0, 8, 16, 24)) == 1:
        _CRC.pack_into(sector, _CRC_AT, stored ^ difference)
        return bytes(sector)
    zero = crc32c(b"\0")
    effects = [crc32c(bytes([change])) ^ zero for change in range(256)]
    step = list(effects)
    for at in range(_CRC_AT - 1, -1, -1):
        if difference in effects:
            sector[at] ^= effects.index(difference)
            return bytes(sector)
        effects = [effect >> 8 ^ step[effect & 0xFF] for effect in effects]
    return None

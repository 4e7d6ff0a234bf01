"""The reference that an ADD record holds in place of a large body (journal-format §3.5).

Owns its 24 bytes: u64 id, u64 size, u32 CRC-32C of the file's bytes, u32 zero. Must never look into
folders: the file belongs to the store. Called by the pure-Python core, by those who send large
messages, and by the journal tools.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from vespiary_codec.journal.errors import JournalFormatError

_REFERENCE: Final = struct.Struct("<QQII")
REFERENCE_BYTES: Final = _REFERENCE.size


def body_name(large_id: int) -> str:
    """Return the name of the file of a body."""
    return f"{large_id:016x}.msg"


class LargeReference(NamedTuple):
    """Which file holds a body.

    Attributes:
        large_id: The body's id, never used twice.
        size_bytes: Bytes of the file.
        crc: CRC-32C of them.
    """

    large_id: int
    size_bytes: int
    crc: int


def encode_large_reference(reference: LargeReference) -> bytes:
    """Return the bytes of a reference.

    Raises:
        ValueError: A field is out of range.
    """
    try:
        return _REFERENCE.pack(*reference, 0)
    except struct.error as error:
        raise ValueError(f"{reference}: a field is out of range: {error}") from error


def decode_large_reference(
    data: bytes | bytearray | memoryview, *, offset: int = 0
) -> LargeReference:
    """Return what the body of an ADD record with flag 4 says.

    Args:
        data: The body.
        offset: Offset of `data[0]`, for the error.

    Raises:
        JournalFormatError: It has another length.
    """
    if len(data) != REFERENCE_BYTES:
        raise JournalFormatError(
            "a reference to a large body has a wrong length",
            offset=offset,
            found=len(data),
            expected=REFERENCE_BYTES,
        )
    return LargeReference(*_REFERENCE.unpack(data)[:3])

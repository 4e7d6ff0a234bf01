"""DUPLICATE records: the duplicate ids of one address (journal-format §3.7).

Owns their encoding. Must never decide which ids are remembered: the highest numbers of an address
are, and the engine counts them. Called by `record`, by the engine and by the journal tools.

Layout behind the record's first 8 bytes: u32 number of ids, u16 length of the address, u16 zero,
the address (UTF-8); then per id u64 number, u16 length, the id; with flag 1 a u64 transaction id
ends the record. An id of no bytes says that the address was cleared: its number and all below are
void.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from vespiary_codec.journal.errors import JournalFormatError

_HEAD: Final = struct.Struct("<IHH")
"""number of ids, length of the address, zero."""
_ID: Final = struct.Struct("<QH")
"""number, length of the id."""
_TRANSACTION: Final = struct.Struct("<Q")
ID_OVERHEAD_BYTES: Final = _ID.size


class DuplicateId(NamedTuple):
    """An id and its number within its address; empty for a mark that clears all up to it."""

    number: int
    id: bytes


class DuplicateRecord(NamedTuple):
    """Ids that an address has seen. `transaction` is 0 outside of one."""

    address: str
    ids: tuple[DuplicateId, ...]
    transaction: int = 0


def duplicate_body(record: DuplicateRecord) -> bytes:
    """Return what follows the first 8 bytes of a DUPLICATE record.

    Raises:
        ValueError: A field is out of the range of the format.
    """
    address = record.address.encode()
    try:
        parts = [_HEAD.pack(len(record.ids), len(address), 0), address]
        for number, text in record.ids:
            parts += (_ID.pack(number, len(text)), text)
        if record.transaction:
            parts.append(_TRANSACTION.pack(record.transaction))
    except struct.error as error:
        raise ValueError(f"DuplicateRecord: a field is out of range: {error}") from error
    return b"".join(parts)


def decode_duplicate(body: bytes | bytearray | memoryview, *, offset: int = 0) -> DuplicateRecord:
    """Return what a DUPLICATE record says; its length tells whether it is a transaction's member.

    Args:
        body: The record's bytes after the first 8, as `Core.restore_block` returns them.
        offset: Where the body stands, for the errors.

    Raises:
        JournalFormatError: Its fields do not fit its length.
    """
    data = memoryview(body)
    try:
        count, length, _ = _HEAD.unpack_from(data)
        at = _HEAD.size + length
        address = str(data[_HEAD.size : at], "utf-8")
        ids = []
        for _ in range(count):
            number, length = _ID.unpack_from(data, at)
            at += _ID.size + length
            ids.append(DuplicateId(number, bytes(data[at - length : at])))
        transaction = _TRANSACTION.unpack_from(data, at)[0] if at + 8 == len(data) else 0
    except (struct.error, UnicodeDecodeError) as error:
        raise JournalFormatError(
            "a DUPLICATE record is malformed",
            offset=offset,
            found=f"{len(data)} bytes ({error})",
            expected="an address and its ids",
        ) from error
    if at + (_TRANSACTION.size if transaction else 0) != len(data):
        raise JournalFormatError(
            "a DUPLICATE record has a wrong length", offset=offset, found=len(data), expected=at
        )
    return DuplicateRecord(address, tuple(ids), transaction)

"""The ownership block: who may write to a journal, one block of 4096 bytes (journal-format §8).

Owns its encoding. Never decides whether an owner lives or how long anybody waits: that is the
store's `ownership`. Called by the store.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.errors import JournalFormatError

MAGIC: Final = b"VSPYOWNR"
FORMAT_VERSION: Final = 1
OWNER_BLOCK_BYTES: Final = 4096
CHECKED_BYTES: Final = 512
"""All fields stand in one sector, so a write of it is there whole or not at all."""
HOST_BYTES_MAX: Final = 255

_FIELDS: Final = struct.Struct("<8sHBBI16s16sQQ16sH")
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = 508
_NOBODY: Final = bytes(16)


class OwnerState(IntEnum):
    """What the block says of its owner."""

    RELEASED = 1
    """It stopped, and everything that it wrote is durable: nobody has to wait."""
    CLAIMING = 2
    """It waits until the lease of the owner before has run out, and has changed nothing yet."""
    HELD = 3
    """It writes to the journal, or ended without a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerBlock:
    """One state of the ownership.

    Attributes:
        state: What the owner does.
        epoch: 1, 2, 3, …: one more with every owner.
        owner_id: 16 random bytes, new with every start of a broker.
        boot_id: The 16 bytes by which the owner's kernel knows its boot.
        lease_ms: Milliseconds for which the owner confirms after it last read this block; of a
            claim the longest that anybody may still confirm.
        time_ms: When it was written, milliseconds since 1970; for people.
        ousted_boot_id: The kernel of the owner that was ousted without its word; zeros: nobody was.
        host: Name of the owner's machine or pod; for people.
    """

    state: OwnerState
    epoch: int
    owner_id: bytes
    boot_id: bytes
    lease_ms: int
    time_ms: int
    ousted_boot_id: bytes = _NOBODY
    host: str = ""


def encode_owner_block(block: OwnerBlock) -> bytes:
    """Return the 4096 bytes of a block; a host name that is too long is cut off."""
    host = block.host.encode()[:HOST_BYTES_MAX]
    fields = _FIELDS.pack(
        MAGIC,
        FORMAT_VERSION,
        block.state,
        0,
        block.lease_ms,
        block.owner_id,
        block.boot_id,
        block.epoch,
        block.time_ms,
        block.ousted_boot_id,
        len(host),
    )
    checked = (fields + host).ljust(_CRC_AT, b"\0")
    return (checked + _CRC.pack(crc32c(checked))).ljust(OWNER_BLOCK_BYTES, b"\0")


def decode_owner_block(data: bytes | memoryview) -> OwnerBlock:
    """Read a block.

    Raises:
        JournalFormatError: It is none, or damaged, or of a newer version; says which.
    """
    sector = bytes(data[:CHECKED_BYTES])
    if len(sector) < CHECKED_BYTES or not sector.startswith(MAGIC):
        raise JournalFormatError(
            "this is no ownership block", offset=0, found=sector[:8].hex(), expected=MAGIC.decode()
        )
    fields = _FIELDS.unpack_from(sector)
    if fields[1] != FORMAT_VERSION:
        raise JournalFormatError(
            "the ownership block has another format version",
            offset=8,
            found=str(fields[1]),
            expected=str(FORMAT_VERSION),
        )
    (crc,) = _CRC.unpack_from(sector, _CRC_AT)
    if crc != crc32c(sector[:_CRC_AT]) or fields[2] not in tuple(OwnerState):
        raise JournalFormatError(
            "the ownership block is damaged",
            offset=_CRC_AT,
            found=f"{crc:08x}",
            expected=f"{crc32c(sector[:_CRC_AT]):08x}",
        )
    host = sector[_FIELDS.size : _FIELDS.size + fields[10]]
    return OwnerBlock(
        state=OwnerState(fields[2]),
        epoch=fields[7],
        owner_id=fields[5],
        boot_id=fields[6],
        lease_ms=fields[4],
        time_ms=fields[8],
        ousted_boot_id=fields[9],
        host=host.decode(errors="replace"),
    )

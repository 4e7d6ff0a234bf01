"""Branches of distributed transactions: their names (XIDs), and what PREPARE and ROLLBACK say.

Owns the encoding of an XID, in records and as text, and of the two records (journal-format §3.4).
Never keeps state. Called by `record`, by the engine and by the journal tools.

Source of the XID: X/Open CAE Specification C193, "Distributed Transaction Processing: The XA
Specification", section 4.2: a format id, a global transaction id and a branch qualifier of at most
64 bytes each. Format id -1 is the null XID, which names no branch.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from vespiary_codec.journal.errors import JournalFormatError

END: Final = struct.Struct("<IBBHQII")
"""length, type, flags, zero, transaction, members, digest: PREPARE begins so, ROLLBACK is that."""

_BRANCH: Final = struct.Struct("<QiBBH")
"""time, format id, length of the global id, of the branch qualifier, of the user's name."""

_PREPARE: Final = 8
_ROLLBACK: Final = 9
PART_BYTES_MAX: Final = 64
USER_BYTES_MAX: Final = 1024
FORMAT_ID_MAX: Final = 2**31 - 1
_TEXT: Final = re.compile(r"([0-9]{1,10}):((?:[0-9a-f]{2}){1,64}):((?:[0-9a-f]{2}){0,64})")


class Xid(NamedTuple):
    """The name of a branch: format id, global transaction id, branch qualifier."""

    format_id: int
    global_id: bytes
    qualifier: bytes

    def __str__(self) -> str:
        """Return the text form: the format id, and the two ids in hexadecimal."""
        return f"{self.format_id}:{self.global_id.hex()}:{self.qualifier.hex()}"


def parse_xid(text: str) -> Xid:
    """Return the XID of a text like `4660:0a0b:01`.

    Args:
        text: Format id in decimal (0 to 2**31 - 1), global id (1 to 64 bytes) and branch qualifier
            (0 to 64 bytes) in lower-case hexadecimal, with colons between them.

    Raises:
        ValueError: It is not of that form.
    """
    match = _TEXT.fullmatch(text)
    if match is None or int(match[1]) > FORMAT_ID_MAX:
        raise ValueError(
            f"{text[:300]!a} is no XID: FORMAT:GLOBAL:QUALIFIER, a number up to {FORMAT_ID_MAX},"
            f" then 1 to {PART_BYTES_MAX} and 0 to {PART_BYTES_MAX} bytes in lower-case hexadecimal"
        )
    return Xid(int(match[1]), bytes.fromhex(match[2]), bytes.fromhex(match[3]))


class BranchName(NamedTuple):
    """What a PREPARE record says beside the members: whose branch, when prepared, and its XID."""

    xid: Xid
    prepared_ms: int
    user: str


class PrepareRecord(NamedTuple):
    """A branch is prepared: its members stay until a COMMIT or ROLLBACK of the same id."""

    transaction: int
    members: int
    digest: int
    branch: bytes


class RollbackRecord(NamedTuple):
    """A prepared branch is void."""

    transaction: int
    members: int
    digest: int


def encode_branch(name: BranchName) -> bytes:
    """Return the bytes that a PREPARE record ends in.

    Raises:
        ValueError: A part is out of the range of the format.
    """
    xid, user = name.xid, name.user.encode()
    if not (
        0 <= xid.format_id <= FORMAT_ID_MAX
        and 1 <= len(xid.global_id) <= PART_BYTES_MAX
        and len(xid.qualifier) <= PART_BYTES_MAX
        and len(user) <= USER_BYTES_MAX
    ):
        raise ValueError(f"the branch {xid} of user {name.user[:100]!a} is out of range")
    start = _BRANCH.pack(
        name.prepared_ms, xid.format_id, len(xid.global_id), len(xid.qualifier), len(user)
    )
    return start + xid.global_id + xid.qualifier + user


def decode_branch(data: bytes | bytearray | memoryview, *, offset: int = 0) -> BranchName:
    """Return what a PREPARE record ends in.

    Args:
        data: The bytes behind the digest.
        offset: Offset of `data[0]`, for the errors.

    Raises:
        JournalFormatError: The lengths do not fit, or a part is out of range.
    """
    octets = bytes(data)
    if len(octets) < _BRANCH.size:
        raise JournalFormatError(
            "the name of a branch is cut off",
            offset=offset,
            found=f"{len(octets)} bytes",
            expected=f"at least {_BRANCH.size}",
        )
    prepared_ms, format_id, global_bytes, qualifier_bytes, user_bytes = _BRANCH.unpack_from(octets)
    qualifier_at = _BRANCH.size + global_bytes
    user_at = qualifier_at + qualifier_bytes
    is_in_range = (
        format_id >= 0
        and 1 <= global_bytes <= PART_BYTES_MAX
        and qualifier_bytes <= PART_BYTES_MAX
        and user_bytes <= USER_BYTES_MAX
    )
    if not is_in_range or user_at + user_bytes != len(octets):
        raise JournalFormatError(
            "the name of a branch does not fit its record",
            offset=offset,
            found=f"format {format_id}, {global_bytes}, {qualifier_bytes} and {user_bytes} bytes"
            f" in {len(octets)}",
            expected="lengths that add up",
        )
    try:
        user = octets[user_at:].decode()
    except UnicodeDecodeError as error:
        raise JournalFormatError(
            "the user of a branch is not UTF-8",
            offset=offset + user_at + error.start,
            found=f"octet {octets[user_at + error.start]:#04x}",
            expected="UTF-8",
        ) from error
    xid = Xid(format_id, octets[_BRANCH.size : qualifier_at], octets[qualifier_at:user_at])
    return BranchName(xid, prepared_ms, user)


def encode_end(record: PrepareRecord | RollbackRecord) -> bytes:
    """Return the bytes of a PREPARE or ROLLBACK record, without padding."""
    data = record.branch if isinstance(record, PrepareRecord) else b""
    type_ = _PREPARE if isinstance(record, PrepareRecord) else _ROLLBACK
    return END.pack(END.size + len(data), type_, 0, 0, *record[:3]) + data


def decode_end(
    data: bytes | bytearray | memoryview, *, offset: int = 0
) -> PrepareRecord | RollbackRecord:
    """Return what a PREPARE or ROLLBACK record says; the end of a PREPARE is for `decode_branch`.

    Args:
        data: The record's bytes without padding.
        offset: Where it stands, for the errors.

    Raises:
        JournalFormatError: Its length is not that of its fields.
    """
    is_prepare = data[4] == _PREPARE
    if len(data) < END.size or (len(data) > END.size and not is_prepare):
        raise JournalFormatError(
            f"a {'PREPARE' if is_prepare else 'ROLLBACK'} record has a wrong length",
            offset=offset,
            found=len(data),
            expected=f"{'at least ' if is_prepare else ''}{END.size}",
        )
    transaction, members, digest = END.unpack_from(data)[4:]
    if is_prepare:
        return PrepareRecord(transaction, members, digest, bytes(data[END.size :]))
    return RollbackRecord(transaction, members, digest)

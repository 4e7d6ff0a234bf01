"""Records: what stands in blocks (journal-format §3).

Owns their encoding, the walk over a payload, and the digest of transactions. Never keeps state
between records: what they mean together is the core's. Called by the pure-Python core, by the
store, by the journal tools and by the pipeline.

Every decoder takes a record's bytes without its padding and `offset`, where it stands, for errors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord, decode_end, encode_end
from vespiary_codec.journal.duplicate import DuplicateRecord, decode_duplicate, duplicate_body
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.page_record import (
    PageDoneRecord,
    PagedRecord,
    decode_page_done,
    decode_paged,
    encode_page_done,
    encode_paged,
)
from vespiary_codec.journal.record_types import SEQUENCE_MAX as SEQUENCE_MAX
from vespiary_codec.journal.record_types import RecordFlag as RecordFlag
from vespiary_codec.journal.record_types import RecordType as RecordType

START: Final = struct.Struct("<IBBH")
"""length, type, flags, depends on the type."""

ADD: Final = struct.Struct("<IBBBBQIHH")
"""length, type, flags, protocol, priority, arrival, body length, properties length, places."""

PLACE: Final = struct.Struct("<IIQ")
"""queue id, zero, sequence."""

ACK: Final = struct.Struct("<IBBHII")
"""length, type, flags, zero, queue id, number of ranges."""

RANGE: Final = struct.Struct("<QQ")
"""first sequence, count; in FILES: first id, last id."""

TRANSACTION: Final = struct.Struct("<Q")
COUNT: Final = struct.Struct("<IBBHIIQ")
"""length, type, flags, zero, queue id, deliveries, sequence."""

COMMIT: Final = struct.Struct("<IBBHQII")
"""length, type, flags, zero, transaction, members, digest."""

SEAL: Final = struct.Struct("<IBBHQ")
QUEUE_STATE: Final = struct.Struct("<IIQQ")
"""queue id, zero, head, tail."""

_TWO: Final = struct.Struct("<II")
_MUST_KNOW: Final = 0x80
_KNOWN: Final = frozenset(RecordType)


class Place(NamedTuple):
    """One place of a message: a queue and the sequence in it."""

    queue_id: int
    sequence: int


class SequenceRange(NamedTuple):
    """`number` sequences from `first` on."""

    first: int
    number: int


class FileRun(NamedTuple):
    """File ids from `first` to `last`, both included."""

    first: int
    last: int


class QueueState(NamedTuple):
    """Oldest unacknowledged and next sequence of a queue."""

    queue_id: int
    head: int
    tail: int


class AddRecord(NamedTuple):
    """A message and its places (§3.2), `is_moved` if it is the copy of an earlier record.

    With `is_large` the body is a `large_reference`. `transaction` is 0 outside of one.
    """

    places: tuple[Place, ...]
    properties: bytes
    body: bytes
    arrival_ms: int
    protocol: int = 1
    priority: int = 4
    has_escapes: bool = False
    transaction: int = 0
    is_large: bool = False
    is_special: bool = False
    is_moved: bool = False


class AddLayout(NamedTuple):
    """An ADD record without its content: where that stands, relative to the record's start."""

    places: tuple[Place, ...]
    properties_at: int
    properties_bytes: int
    body_bytes: int
    arrival_ms: int
    protocol: int
    priority: int
    has_escapes: bool
    transaction: int
    is_large: bool = False
    is_special: bool = False


class AckRecord(NamedTuple):
    """Messages of one queue that are done. `transaction` is 0 outside of one."""

    queue_id: int
    ranges: tuple[SequenceRange, ...]
    transaction: int = 0


class CountRecord(NamedTuple):
    """A message was given back; it has been given out `deliveries` times."""

    queue_id: int
    deliveries: int
    sequence: int


class CommitRecord(NamedTuple):
    """A transaction counts, if its members are there and have this digest (§3.3)."""

    transaction: int
    members: int
    digest: int


class FilesRecord(NamedTuple):
    """The files that are in use."""

    runs: tuple[FileRun, ...]

    def __contains__(self, file_id: object) -> bool:
        """Whether a file is listed."""
        return any(isinstance(file_id, int) and a <= file_id <= b for a, b in self.runs)


class QueuesRecord(NamedTuple):
    """States of all durable queues."""

    queues: tuple[QueueState, ...]


class SealRecord(NamedTuple):
    """The only record of a seal block."""


class PutRecord(NamedTuple):
    """Replaces the value of a key (bindings and JMS journals)."""

    key: str
    value: bytes


class RemoveRecord(NamedTuple):
    """Takes a key out (bindings and JMS journals)."""

    key: str


Record = (
    AddRecord
    | AckRecord
    | CountRecord
    | CommitRecord
    | PrepareRecord
    | RollbackRecord
    | FilesRecord
    | QueuesRecord
    | SealRecord
    | DuplicateRecord
    | PutRecord
    | RemoveRecord
    | PagedRecord
    | PageDoneRecord
)


class RawRecord(NamedTuple):
    """A record as it stands in a payload.

    Attributes:
        offset: Of its first byte, from what the caller of `walk_records` said.
        type: Its type, known or not.
        flags: Its flags.
        data: Its bytes without padding.
    """

    offset: int
    type: int
    flags: int
    data: memoryview


def align8(n: int) -> int:
    """Return `n` rounded up to a multiple of 8."""
    return n + 7 & ~7


def digest_members(members: Iterable[bytes | bytearray | memoryview], value: int = 0) -> int:
    """Return the digest of a transaction's members, each without its padding, in journal order."""
    for member in members:
        value = crc32c(member, value)
    return value


# --- the walk -------------------------------------------------------------------------------------


def walk_records(
    payload: bytes | bytearray | memoryview, records: int, *, offset: int = 0
) -> Iterator[RawRecord]:
    """Yield the records of a payload, unknown types included unless a reader must know them.

    Args:
        payload: The payload of a valid block.
        records: Number of records that the block's header announces.
        offset: Offset of the payload's first byte, for the errors.

    Raises:
        JournalFormatError: A record does not fit in the payload, or must be known and is not.
    """
    octets = memoryview(payload)
    at = 0
    for number in range(records):
        if at + START.size > len(octets):
            raise JournalFormatError(
                f"record {number + 1} is missing",
                offset=offset + at,
                found=f"{max(len(octets) - at, 0)} bytes",
                expected=f"{records} records",
            )
        length, type_, flags, _ = START.unpack_from(octets, at)
        if length < START.size or at + length > len(octets):
            raise JournalFormatError(
                f"bad length of record {number + 1}",
                offset=offset + at,
                found=length,
                expected=f"8 to {len(octets) - at}",
            )
        if type_ & _MUST_KNOW and type_ not in _KNOWN:
            raise JournalFormatError(
                f"record {number + 1} needs a newer reader",
                offset=offset + at + 4,
                found=f"type {type_}",
                expected="a type below 128",
            )
        yield RawRecord(offset + at, type_, flags, octets[at : at + length])
        at += align8(length)
    if align8(at) != align8(len(octets)) and records:
        raise JournalFormatError(
            "bytes behind the last record",
            offset=offset + at,
            found=f"{len(octets) - at} bytes",
            expected="the end of the payload",
        )


# --- encoding -------------------------------------------------------------------------------------


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record, without padding.

    Raises:
        ValueError: A field is out of the range of the format.
    """
    try:
        return _encode(record)
    except struct.error as error:
        raise ValueError(f"{type(record).__name__}: a field is out of range: {error}") from error


def _encode(record: Record) -> bytes:
    if isinstance(record, AddRecord):
        return _encode_add(record)
    if isinstance(record, AckRecord):
        return _encode_ack(record)
    if isinstance(record, CountRecord):
        return COUNT.pack(COUNT.size, RecordType.COUNT, 0, 0, *record)
    if isinstance(record, CommitRecord):
        return COMMIT.pack(COMMIT.size, RecordType.COMMIT, 0, 0, *record)
    if isinstance(record, PrepareRecord | RollbackRecord):
        return encode_end(record)
    if isinstance(record, SealRecord):
        return SEAL.pack(SEAL.size, RecordType.SEAL, 0, 0, 0)
    if isinstance(record, FilesRecord):
        runs = b"".join(RANGE.pack(*run) for run in record.runs)
        return general_record(RecordType.FILES, _TWO.pack(len(record.runs), 0) + runs)
    if isinstance(record, QueuesRecord):
        states = b"".join(QUEUE_STATE.pack(q, 0, head, tail) for q, head, tail in record.queues)
        return general_record(RecordType.QUEUES, _TWO.pack(len(record.queues), 0) + states)
    if isinstance(record, DuplicateRecord):
        flags = RecordFlag.TRANSACTIONAL if record.transaction else 0
        return general_record(RecordType.DUPLICATE, duplicate_body(record), flags)
    if isinstance(record, PagedRecord):
        return encode_paged(record)
    if isinstance(record, PageDoneRecord):
        return encode_page_done(record)
    key = record.key.encode()
    if isinstance(record, PutRecord):
        return general_record(RecordType.PUT, _TWO.pack(len(key), 0) + key + record.value)
    return general_record(RecordType.REMOVE, _TWO.pack(len(key), 0) + key)


def general_record(type_: int, body: bytes, flags: int = 0) -> bytes:
    """Return the bytes of a record of the general form: the 8-byte start, then `body`."""
    return START.pack(START.size + len(body), type_, flags, 0) + body


def _encode_add(record: AddRecord) -> bytes:
    if not record.places:
        raise ValueError("an ADD record needs one place or more")
    if not 0 <= record.priority <= 9:
        raise ValueError(f"priority {record.priority} is not 0 to 9")
    flags = RecordFlag.ESCAPED if record.has_escapes else 0
    flags |= RecordFlag.LARGE * record.is_large | RecordFlag.MOVED * record.is_moved
    flags |= RecordFlag.SPECIAL * record.is_special
    middle = b"".join(PLACE.pack(queue_id, 0, sequence) for queue_id, sequence in record.places)
    if record.transaction:
        flags |= RecordFlag.TRANSACTIONAL
        middle += TRANSACTION.pack(record.transaction)
    start = ADD.pack(
        ADD.size + len(middle) + len(record.properties) + len(record.body),
        RecordType.ADD,
        flags,
        record.protocol,
        record.priority,
        record.arrival_ms,
        len(record.body),
        len(record.properties),
        len(record.places),
    )
    return start + middle + record.properties + record.body


def _encode_ack(record: AckRecord) -> bytes:
    ranges = b"".join(RANGE.pack(*one) for one in record.ranges)
    flags = 0
    if record.transaction:
        flags = RecordFlag.TRANSACTIONAL
        ranges += TRANSACTION.pack(record.transaction)
    length = ACK.size + len(ranges)
    return ACK.pack(length, RecordType.ACK, flags, 0, record.queue_id, len(record.ranges)) + ranges


# --- decoding -------------------------------------------------------------------------------------


def decode_record(raw: RawRecord) -> Record | None:
    """Return what a record says; None if its type is unknown and may be skipped.

    Raises:
        JournalFormatError: Its fields do not fit its length, or a sequence is out of range.
    """
    data, offset = raw.data, raw.offset
    if raw.type == RecordType.ADD:
        return _decode_add(raw)
    if raw.type == RecordType.ACK:
        return decode_ack(raw)
    if raw.type == RecordType.COUNT:
        _need(data, COUNT.size, offset, "a COUNT record")
        count = CountRecord(*COUNT.unpack_from(data)[4:])
        if not 0 < count.sequence <= SEQUENCE_MAX:
            _refuse_sequence("a COUNT record", offset + 16, count.sequence)
        return count
    if raw.type == RecordType.COMMIT:
        _need(data, COMMIT.size, offset, "a COMMIT record")
        return CommitRecord(*COMMIT.unpack_from(data)[4:])
    if raw.type in (RecordType.PREPARE, RecordType.ROLLBACK):
        return decode_end(data, offset=offset)
    if raw.type == RecordType.SEAL:
        _need(data, SEAL.size, offset, "a SEAL record")
        return SealRecord()
    body, at = data[START.size :], offset + START.size
    if raw.type == RecordType.FILES:
        return FilesRecord(decode_file_runs(body, offset=at))
    if raw.type == RecordType.QUEUES:
        return QueuesRecord(decode_queue_states(body, offset=at))
    if raw.type == RecordType.DUPLICATE:
        return decode_duplicate(body, offset=at)
    if raw.type == RecordType.PAGE:
        return decode_paged(data, offset=offset)
    if raw.type == RecordType.PAGE_DONE:
        return decode_page_done(data, offset=offset)
    if raw.type == RecordType.PUT:
        return PutRecord(*decode_put(body, offset=at))
    if raw.type == RecordType.REMOVE:
        key, value = decode_put(body, offset=at)
        if value:
            raise JournalFormatError(
                "bytes behind the key of a REMOVE record",
                offset=at + len(body) - len(value),
                found=f"{len(value)} bytes",
                expected="the end of the record",
            )
        return RemoveRecord(key)
    return None


def _need(data: memoryview, length: int, offset: int, what: str) -> None:
    if len(data) != length:
        raise JournalFormatError(
            f"{what} has a wrong length", offset=offset, found=len(data), expected=length
        )


def _refuse_sequence(what: str, offset: int, found: object) -> None:
    raise JournalFormatError(
        f"a sequence of {what} is out of range",
        offset=offset,
        found=found,
        expected=f"1 to {SEQUENCE_MAX}",
    )


def decode_add_layout(raw: RawRecord) -> AddLayout:
    """Return what an ADD record says but its content, which is not touched.

    Raises:
        JournalFormatError: Its fields do not fit its length, or a sequence is out of range.
    """
    data, offset = raw.data, raw.offset
    if len(data) < ADD.size:
        raise JournalFormatError(
            "an ADD record is cut off",
            offset=offset,
            found=f"{len(data)} bytes",
            expected=f"at least {ADD.size}",
        )
    _, _, flags, protocol, priority, arrival, body, properties, count = ADD.unpack_from(data)
    if not count:
        raise JournalFormatError(
            "an ADD record has no places", offset=offset + 22, found=0, expected="1 or more"
        )
    is_member = bool(flags & RecordFlag.TRANSACTIONAL)
    after = ADD.size + PLACE.size * count
    content = after + (TRANSACTION.size if is_member else 0)
    _need(data, content + properties + body, offset, "an ADD record")
    places = tuple(
        Place(queue_id, sequence)
        for queue_id, _, sequence in PLACE.iter_unpack(data[ADD.size : after])
    )
    for number, place in enumerate(places):
        if not 0 < place.sequence <= SEQUENCE_MAX:
            at = offset + ADD.size + number * PLACE.size + 8
            _refuse_sequence("an ADD record", at, place.sequence)
    return AddLayout(
        places,
        content,
        properties,
        body,
        arrival,
        protocol,
        priority,
        bool(flags & RecordFlag.ESCAPED),
        TRANSACTION.unpack_from(data, after)[0] if is_member else 0,
        bool(flags & RecordFlag.LARGE),
        bool(flags & RecordFlag.SPECIAL),
    )


def _decode_add(raw: RawRecord) -> AddRecord:
    add = decode_add_layout(raw)
    body_at = add.properties_at + add.properties_bytes
    return AddRecord(
        add.places,
        bytes(raw.data[add.properties_at : body_at]),
        bytes(raw.data[body_at:]),
        *add[4:],
        is_moved=bool(raw.flags & RecordFlag.MOVED),
    )


def decode_ack(raw: RawRecord) -> AckRecord:
    """Return what an ACK record says.

    Raises:
        JournalFormatError: Its fields do not fit its length, or a range is out of range.
    """
    data, offset = raw.data, raw.offset
    if len(data) < ACK.size:
        raise JournalFormatError(
            "an ACK record is cut off",
            offset=offset,
            found=f"{len(data)} bytes",
            expected=f"at least {ACK.size}",
        )
    _, _, flags, _, queue_id, count = ACK.unpack_from(data)
    is_member = bool(flags & RecordFlag.TRANSACTIONAL)
    end = ACK.size + RANGE.size * count
    _need(data, end + (TRANSACTION.size if is_member else 0), offset, "an ACK record")
    ranges = tuple(SequenceRange(*one) for one in RANGE.iter_unpack(data[ACK.size : end]))
    for number, (first, length) in enumerate(ranges):
        if first + length > SEQUENCE_MAX + 1:
            at = offset + ACK.size + number * RANGE.size
            _refuse_sequence("an ACK record", at, f"{length} from {first} on")
    return AckRecord(
        queue_id,
        ranges,
        TRANSACTION.unpack_from(data, end)[0] if is_member else 0,
    )


def decode_file_runs(
    body: bytes | bytearray | memoryview, *, offset: int = 0
) -> tuple[FileRun, ...]:
    """Return the runs of a FILES record.

    Args:
        body: The record's bytes after the first 8, as `Core.restore_block` returns them.
        offset: Offset of `body[0]`, for the errors.

    Raises:
        JournalFormatError: The number of runs does not fit the length, or a run is upside down.
    """
    octets = _counted(body, RANGE.size, offset, "a FILES record")
    runs = tuple(FileRun(*run) for run in RANGE.iter_unpack(octets))
    for number, (first, last) in enumerate(runs):
        if first > last:
            raise JournalFormatError(
                "a FILES record has a run that ends before it begins",
                offset=offset + _TWO.size + number * RANGE.size,
                found=f"{first} to {last}",
                expected="first to last",
            )
    return runs


def decode_queue_states(
    body: bytes | bytearray | memoryview, *, offset: int = 0
) -> tuple[QueueState, ...]:
    """Return the entries of a QUEUES record.

    Args:
        body: The record's bytes after the first 8.
        offset: Offset of `body[0]`, for the errors.

    Raises:
        JournalFormatError: The number of entries does not fit the length, or one is out of range.
    """
    octets = _counted(body, QUEUE_STATE.size, offset, "a QUEUES record")
    states = tuple(
        QueueState(queue_id, head, tail)
        for queue_id, _, head, tail in QUEUE_STATE.iter_unpack(octets)
    )
    for number, (_, head, tail) in enumerate(states):
        if max(head, tail) > SEQUENCE_MAX + 1:
            at = offset + _TWO.size + number * QUEUE_STATE.size + 8
            _refuse_sequence("a QUEUES record", at, f"{head} to {tail}")
    return states


def _counted(
    body: bytes | bytearray | memoryview, item_bytes: int, offset: int, what: str
) -> memoryview:
    """Return the items behind a count, when exactly that many are there."""
    octets = memoryview(body)
    count = _TWO.unpack_from(octets)[0] if len(octets) >= _TWO.size else -1
    if len(octets) != _TWO.size + count * item_bytes:
        raise JournalFormatError(
            f"{what} has a wrong length",
            offset=offset,
            found=f"{len(octets)} bytes for {count} entries",
            expected=f"8 bytes and {item_bytes} for each entry",
        )
    return octets[_TWO.size :]


def decode_put(body: bytes | bytearray | memoryview, *, offset: int = 0) -> tuple[str, bytes]:
    """Return key and value of a PUT record; of a REMOVE record the key and nothing.

    Args:
        body: The record's bytes after the first 8, as `Core.restore_block` returns them.
        offset: Offset of `body[0]`, for the errors.

    Raises:
        JournalFormatError: The key does not fit the record or is not UTF-8.
    """
    octets = bytes(body)
    length = _TWO.unpack_from(octets)[0] if len(octets) >= _TWO.size else -1
    if length < 0 or _TWO.size + length > len(octets):
        raise JournalFormatError(
            "a key does not fit its record",
            offset=offset,
            found=f"a key of {length} bytes in {len(octets)}",
            expected=f"at most {max(len(octets) - _TWO.size, 0)}",
        )
    try:
        key = octets[_TWO.size : _TWO.size + length].decode()
    except UnicodeDecodeError as error:
        raise JournalFormatError(
            "a key is not UTF-8",
            offset=offset + _TWO.size + error.start,
            found=f"octet {octets[_TWO.size + error.start]:#04x}",
            expected="UTF-8",
        ) from error
    return key, octets[_TWO.size + length :]

"""The walk from blocks to columns, in Python: the specification of `native/src/columns.c`.

Owns `scan`. Must never read a file. Called by `vespiary_native.columns`, where the native part is
not there or not wanted.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from typing import Final, NamedTuple

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import (
    HEADER_BYTES,
    BlockHeader,
    decode_block,
    decode_block_header,
)
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.columns import POSITION_BITS, Columns, Scan, Stop
from vespiary_codec.journal.duplicate import DuplicateRecord
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.page_record import PageDoneRecord, PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddLayout,
    CommitRecord,
    CountRecord,
    PutRecord,
    RawRecord,
    RecordFlag,
    RecordType,
    RemoveRecord,
    decode_add_layout,
    decode_record,
    walk_records,
)

ROWS_MAX: Final = 2**31 - 1
_ENDS: Final = frozenset((RecordType.COMMIT, RecordType.PREPARE, RecordType.ROLLBACK))
_SEQUENCE_END: Final = 1 << 63 - POSITION_BITS
"""Positions of this block's records and of later ones do not fit into 64 bits."""

_KEY_AT: Final = 16
"""Of PUT and REMOVE: 8 bytes that all records have, length of the key, zero."""


class _Fields(NamedTuple):
    """What one record adds to the columns; places as (queue id, sequence, number)."""

    transaction: int = 0
    number: int = 0
    digest: int = 0
    arrival_ms: int = 0
    protocol: int = 0
    priority: int = 0
    properties_at: int = 0
    properties_bytes: int = 0
    body_at: int = 0
    body_bytes: int = 0
    body_size: int = 0
    places: tuple[tuple[int, int, int], ...] = ()


def _signed(value: int) -> int:
    """Return the number that the same 64 bits mean with a sign: no writer uses the highest bit."""
    return value if value < 1 << 63 else value - (1 << 64)


class _Rows:
    """The buffers while they grow."""

    def __init__(self) -> None:
        self.kind, self.flags = array("B"), array("B")
        self.protocol, self.priority = array("B"), array("B")
        self.offset, self.block, self.block_time_ms = array("q"), array("q"), array("q")
        self.position, self.length, self.transaction = array("q"), array("q"), array("q")
        self.crc, self.number, self.digest = array("q"), array("q"), array("q")
        self.arrival_ms, self.properties_at = array("q"), array("q")
        self.properties_bytes, self.body_at = array("q"), array("q")
        self.body_bytes, self.body_size, self.record_at = array("q"), array("q"), array("q")
        self.places_from = array("i", [0])
        self.place_queue, self.place_sequence = array("q"), array("q")
        self.place_number = array("q")

    def put(self, raw: RawRecord, header: BlockHeader, index: int, at: int, own: _Fields) -> None:
        """Add a record that stands at `at` in the window."""
        self.kind.append(raw.type)
        self.flags.append(raw.flags)
        self.offset.append(raw.offset)
        self.block.append(header.sequence)
        self.block_time_ms.append(_signed(header.time_ms))
        self.position.append(header.sequence << POSITION_BITS | index)
        self.length.append(len(raw.data))
        self.record_at.append(at)
        is_member = bool(own.transaction) and raw.type not in _ENDS
        self.crc.append(crc32c(raw.data) if is_member else 0)
        for name in (
            "transaction", "number", "digest", "arrival_ms", "protocol", "priority",
            "properties_at", "properties_bytes", "body_at", "body_bytes", "body_size",
        ):  # fmt: skip
            getattr(self, name).append(_signed(getattr(own, name)))
        for queue_id, sequence, number in own.places:
            self.place_queue.append(queue_id)
            self.place_sequence.append(_signed(sequence))
            self.place_number.append(_signed(number))
        self.places_from.append(len(self.place_queue))

    def columns(self) -> Columns:
        """Return the buffers as they are now."""
        names = Columns._fields[1:]
        return Columns(len(self.kind), *(memoryview(getattr(self, name)) for name in names))


def scan(
    window: bytes | bytearray | memoryview,
    *,
    offset: int,
    salt: int,
    file_id: int,
    previous: tuple[int, int] | None = None,
    kinds: Container[int] | None = None,
    members: bool = True,
    rows_max: int = ROWS_MAX,
) -> Scan:
    """Walk blocks while they are valid and follow one another; return their records as columns.

    A block whose records do not fit their fields ends the walk like one with a bad checksum, and
    none of its records is in the columns.

    Args:
        window: Bytes of a file from a block's start on.
        offset: Where `window` begins in the file.
        salt: Salt of the file.
        file_id: Id of the file.
        previous: Sequence and checksum of the block before; None: any block may be the first.
        kinds: Types of the records that are wanted; None: all.
        members: Want members and ends of transactions too, whatever their type.
        rows_max: Stop behind the block with which there are so many rows; a block is never split.

    Raises:
        OverflowError: The rows have more than 2**31 - 1 places.
    """
    octets = memoryview(window)
    rows = _Rows()
    at = blocks = records = watermark = time_ms = 0
    last = previous
    while True:
        stop, header = _look(octets, at, offset, salt, file_id, last)
        if header is None:
            assert stop is not None
            break
        try:
            found = _records(octets, at, offset, header)
        except JournalFormatError as error:
            stop = Stop(offset + at, "invalid", found=str(error))
            break
        for index, (raw, place, own) in enumerate(found):
            is_wanted = kinds is None or raw.type in kinds
            is_wanted = is_wanted or (members and (own.transaction != 0 or raw.type in _ENDS))
            if is_wanted:
                rows.put(raw, header, index, place, own)
        blocks += 1
        records += header.records
        watermark = max(watermark, header.watermark)
        time_ms = header.time_ms
        last = (header.sequence, header.crc)
        at += header.length
        if header.is_seal:
            stop = Stop(offset + at, "end")
            break
        if len(rows.kind) >= rows_max:
            stop = Stop(offset + at, "rows")
            break
    sequence, crc = last or (0, 0)
    return Scan(rows.columns(), stop, blocks, records, sequence, crc, watermark, time_ms)


def _look(
    octets: memoryview,
    at: int,
    offset: int,
    salt: int,
    file_id: int,
    last: tuple[int, int] | None,
) -> tuple[Stop | None, BlockHeader | None]:
    """Return the header of a valid block that follows `last`, or why there is none."""
    if at + HEADER_BYTES > len(octets):
        return Stop(offset + at, "window"), None
    place = offset + at
    try:
        header = decode_block_header(octets[at : at + HEADER_BYTES], offset=place)
        if header.file_id == file_id and at + header.length > len(octets):
            return Stop(place, "window", needed_bytes=header.length), None
        header, _ = decode_block(octets[at:], offset=place, salt=salt, file_id=file_id)
    except JournalFormatError as error:
        return Stop(place, "invalid", found=str(error)), None
    if header.sequence >= _SEQUENCE_END or header.records > 1 << POSITION_BITS:
        found = (
            f"block {header.sequence} with {header.records} records, for which no number is left"
        )
        return Stop(place, "invalid", found=found), None
    if last is not None and (header.sequence, header.previous_crc) != (last[0] + 1, last[1]):
        found = f"block {header.sequence}, which does not follow block {last[0]}"
        return Stop(place, "invalid", found=found), None
    return None, header


def _records(
    octets: memoryview, at: int, offset: int, header: BlockHeader
) -> list[tuple[RawRecord, int, _Fields]]:
    """Return the records of a block: the record, its place in the window, its fields.

    Raises:
        JournalFormatError: One does not fit its fields.
    """
    start = at + HEADER_BYTES
    payload = octets[start : start + header.payload_bytes]
    return [
        (raw, raw.offset - offset, _fields(raw, raw.offset - offset))
        for raw in walk_records(payload, header.records, offset=offset + start)
    ]


def _fields(raw: RawRecord, at: int) -> _Fields:
    """Return what a record adds to the columns; nothing of a type that is not known."""
    if raw.type == RecordType.ADD:
        return _add(raw, at, decode_add_layout(raw))
    record = decode_record(raw)
    if isinstance(record, AckRecord):
        places = tuple((record.queue_id, first, number) for first, number in record.ranges)
        return _Fields(transaction=record.transaction, places=places)
    if isinstance(record, CountRecord):
        place = (record.queue_id, record.sequence, 1)
        return _Fields(number=record.deliveries, places=(place,))
    if isinstance(record, CommitRecord | PrepareRecord | RollbackRecord):
        transaction, members, digest = record[:3]
        return _Fields(transaction=transaction, number=members, digest=digest)
    if isinstance(record, PagedRecord):
        return _Fields(number=record.page_id, places=tuple(_runs(record)))
    if isinstance(record, PageDoneRecord):
        return _Fields(number=record.page_id)
    if isinstance(record, PutRecord | RemoveRecord):
        key_bytes = len(record.key.encode())
        return _Fields(
            properties_at=at + _KEY_AT,
            properties_bytes=key_bytes,
            body_at=at + _KEY_AT + key_bytes,
            body_bytes=len(raw.data) - _KEY_AT - key_bytes,
        )
    if isinstance(record, DuplicateRecord) and raw.flags & RecordFlag.TRANSACTIONAL:
        return _Fields(transaction=record.transaction)
    return _Fields()


def _add(raw: RawRecord, at: int, add: AddLayout) -> _Fields:
    body_at = add.properties_at + add.properties_bytes
    size = add.body_bytes
    if add.is_large:
        size = decode_large_reference(raw.data[body_at:], offset=raw.offset + body_at).size_bytes
    return _Fields(
        transaction=add.transaction,
        arrival_ms=add.arrival_ms,
        protocol=add.protocol,
        priority=add.priority,
        properties_at=at + add.properties_at,
        properties_bytes=add.properties_bytes,
        body_at=at + body_at,
        body_bytes=add.body_bytes,
        body_size=size,
        places=tuple((queue_id, sequence, 1) for queue_id, sequence in add.places),
    )


def _runs(record: PagedRecord) -> list[tuple[int, int, int]]:
    """Return what a PAGE record names, as runs of following sequences."""
    runs: list[tuple[int, int, int]] = []
    for queue in record.queues:
        first = before = queue.sequences[0]
        for sequence in (*queue.sequences[1:], None):
            if sequence is None or sequence != before + 1:
                runs.append((queue.queue_id, first, before - first + 1))
                first = sequence if sequence is not None else 0
            before = sequence if sequence is not None else 0
    return runs

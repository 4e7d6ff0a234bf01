"""What a record says, as names and short texts: for exports, listings and reports.

Owns the names of operations and of their fields. Never shows content (bodies, properties, values)
and never fails on a record that it does not know: its bytes are for the caller to keep. Called by
`text` and by the journal tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.record import (
    START,
    TRANSACTION,
    AckRecord,
    FilesRecord,
    PutRecord,
    QueuesRecord,
    RawRecord,
    RecordFlag,
    RecordType,
    decode_ack,
    decode_add_layout,
    decode_record,
)


def type_name(number: int) -> str:
    """Return the name of a type as the format has it (`ADD`), or its number if it has none."""
    return RecordType(number).name if number in RecordType.__members__.values() else str(number)


def operation(raw: RawRecord) -> str:
    """Return what a record does, in one word: `Add`, `AckTX`, `Commit`, `Type11`."""
    name = type_name(raw.type)
    if name.isdecimal():
        return f"Type{name}"
    is_member = raw.flags & RecordFlag.TRANSACTIONAL
    return "".join(part.title() for part in name.split("_")) + ("TX" if is_member else "")


def transaction_of(raw: RawRecord) -> int:
    """Return the transaction that a record is a member of, 0 if it is of none.

    Raises:
        JournalFormatError: Its fields do not fit its length.
    """
    if not raw.flags & RecordFlag.TRANSACTIONAL:
        return 0
    if raw.type == RecordType.ADD:
        return decode_add_layout(raw).transaction
    if raw.type == RecordType.ACK:
        return decode_ack(raw).transaction
    if raw.type == RecordType.DUPLICATE and len(raw.data) >= START.size + TRANSACTION.size:
        (transaction,) = TRANSACTION.unpack_from(raw.data, len(raw.data) - TRANSACTION.size)
        return int(transaction)
    return 0


def details(raw: RawRecord) -> tuple[tuple[str, str], ...]:
    """Return the fields of a record as (name, text), without content.

    A text holds no comma, line feed or control character. A record of an unknown type has no
    fields, and neither has one that does not decode: whoever needs to know why decodes it.
    """
    try:
        return tuple(_details(raw))
    except JournalFormatError:
        return ()


def _details(raw: RawRecord) -> Iterator[tuple[str, str]]:
    if raw.type == RecordType.ADD:
        add = decode_add_layout(raw)
        yield "queue", ";".join(f"{place.queue_id}:{place.sequence}" for place in add.places)
        if add.transaction:
            yield "txID", str(add.transaction)
        yield "time", str(add.arrival_ms)
        yield "priority", str(add.priority)
        yield "protocol", str(add.protocol)
        yield "properties", str(add.properties_bytes)
        yield "body", str(add.body_bytes)
    elif raw.type == RecordType.ACK:
        yield from _acknowledgement(decode_ack(raw))
    else:
        yield from _other(decode_record(raw))


def _acknowledgement(ack: AckRecord) -> Iterator[tuple[str, str]]:
    yield "queue", str(ack.queue_id)
    yield "ranges", ";".join(f"{first}+{number}" for first, number in ack.ranges)
    if ack.transaction:
        yield "txID", str(ack.transaction)


def _other(record: object) -> Iterator[tuple[str, str]]:
    if isinstance(record, FilesRecord):
        yield "files", ";".join(f"{first}-{last}" for first, last in record.runs)
    elif isinstance(record, QueuesRecord):
        yield "queues", ";".join(f"{queue}:{head}:{tail}" for queue, head, tail in record.queues)
    elif isinstance(record, PutRecord):
        yield "key", quote(record.key, safe="/")
        yield "value", str(len(record.value))
    elif isinstance(record, tuple):
        fields = getattr(record, "_fields", ())
        yield from ((name, _text(value)) for name, value in zip(fields, record, strict=True))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return str(len(value))
    if isinstance(value, tuple):
        return ";".join(_text(item) for item in value)
    return quote(str(value), safe="/:;+ ")

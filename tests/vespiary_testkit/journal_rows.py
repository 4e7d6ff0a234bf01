"""Records as rows of the pipeline's tables, made with the codec alone.

`RowSink` is a sink of the recovery: what a broker would recover becomes `schema.RECORDS`, so that
tests of the transforms need no source.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.description import transaction_of
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.page_record import PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    PageDoneRecord,
    PrepareRecord,
    PutRecord,
    RawRecord,
    RecordType,
    RemoveRecord,
    RollbackRecord,
    decode_record,
    walk_records,
)
from vespiary_pipeline.schema import RECORDS

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def time_of(milliseconds: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=milliseconds)


class RowSink:
    """Makes a row of each record. Owner: the test.

    Args:
        journal: Kind of the journal.
    """

    def __init__(self, journal: str = "message") -> None:
        self.journal = journal
        self.rows: list[dict[str, Any]] = []
        self._sequence = 0
        self._gaps = 0
        self._is_after_gap = False

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        pass

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        (sequence,) = struct.unpack_from("<Q", block, 8)
        (records,) = struct.unpack_from("<I", block, 36)
        (time_ms,) = struct.unpack_from("<Q", block, 48)
        if sequence != self._sequence + 1:
            self._gaps += 1
            self._is_after_gap = True
        self._sequence = sequence
        raws = walk_records(block[64:], records, offset=offset + 64)
        for number, raw in enumerate(raws):
            row = dict.fromkeys(RECORDS.names)
            row.update(
                journal=self.journal,
                path=f"file-{file_id}",
                file_id=file_id,
                offset=raw.offset,
                block=sequence,
                block_time=time_of(time_ms),
                position=(sequence << 16) + number,
                kind=_kind(raw),
                flags=raw.flags,
                length=len(raw.data),
                gaps=self._gaps,
                after_gap=self._is_after_gap,
                **fields(raw),
            )
            self.rows.append(row)
            self._is_after_gap = False
        return []


def _kind(raw: RawRecord) -> str:
    known = raw.type in RecordType.__members__.values()
    return RecordType(raw.type).name if known else f"TYPE_{raw.type}"


def fields(raw: RawRecord) -> dict[str, Any]:
    """Return the columns that a record of its kind has."""
    record = decode_record(raw)
    found: dict[str, Any] = {}
    if number := transaction_of(raw):
        found = {"transaction": number, "crc": crc32c(raw.data)}
    if isinstance(record, AddRecord):
        found |= _message(record)
    elif isinstance(record, AckRecord):
        found["places"] = [(record.queue_id, first, count) for first, count in record.ranges]
    elif isinstance(record, CountRecord):
        found["places"] = [(record.queue_id, record.sequence, 1)]
        found["deliveries"] = record.deliveries
    elif isinstance(record, CommitRecord | PrepareRecord | RollbackRecord):
        found |= {"transaction": record.transaction, "members": record.members}
        found |= {"digest": record.digest, "data": bytes(raw.data)}
    elif isinstance(record, PagedRecord):
        found["page_id"] = record.page_id
        found["places"] = [
            (queue.queue_id, first, count)
            for queue in record.queues
            for first, count in _runs(queue.sequences)
        ]
    elif isinstance(record, PageDoneRecord):
        found["page_id"] = record.page_id
    elif isinstance(record, PutRecord):
        found |= {"key": record.key, "value": record.value.decode()}
    elif isinstance(record, RemoveRecord):
        found["key"] = record.key
    if "places" in found:
        names = ("queue_id", "sequence", "number")
        found["places"] = [dict(zip(names, place, strict=True)) for place in found["places"]]
    return found


def _message(record: AddRecord) -> dict[str, Any]:
    lines = [line.split(":", 1) for line in record.properties.decode().split("\n") if ":" in line]
    headers: dict[str, str] = {}
    for name, value in lines:
        headers.setdefault(name, value)
    body = record.body
    expires = int(headers.get("expires", "0"))
    return {
        "places": [(queue_id, sequence, 1) for queue_id, sequence in record.places],
        "arrival": time_of(record.arrival_ms),
        "expires": time_of(expires) if expires else None,
        "address": headers.get("destination", "").removeprefix("/queue/") or None,
        "priority": record.priority,
        "protocol": record.protocol,
        "large": record.is_large,
        "properties": headers,
        "properties_bytes": len(record.properties),
        "body_bytes": decode_large_reference(body).size_bytes if record.is_large else len(body),
    }


def _runs(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for sequence in sequences:
        if first is None or last is None or sequence != last + 1:
            if first is not None and last is not None:
                yield first, last - first + 1
            first = sequence
        last = sequence
    if first is not None and last is not None:
        yield first, last - first + 1


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as a table of `schema.RECORDS`."""
    return pa.Table.from_pylist(rows, schema=RECORDS.arrow())

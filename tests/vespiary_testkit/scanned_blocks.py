"""Windows of blocks for the column scan: any records, and what the decoders say of them.

Owns hypothesis' strategies of records and the comparison of columns with decoded records.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.columns import Columns
from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.page_record import PageDoneRecord, PagedQueue, PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    FileRun,
    FilesRecord,
    Place,
    PutRecord,
    QueuesRecord,
    QueueState,
    RemoveRecord,
    SequenceRange,
    align8,
    general_record,
)
from vespiary_testkit.journal_blocks import BlockChain, encoded

SALT = 0x1234_5678_9ABC_DEF0
FILE_ID = 7

_u32 = st.integers(1, 2**32 - 1)
_u62 = st.integers(1, 2**62)
_transaction = st.one_of(st.just(0), st.integers(1, 2**62))
_line = st.one_of(
    st.sampled_from([b"destination:/queue/a", b"expires:12", b"a:b", b"a:c", b":x", b"nothing"]),
    st.binary(max_size=12),
)
_properties = st.lists(_line, max_size=5).map(lambda lines: b"".join(b"%s\n" % s for s in lines))
_places = st.lists(st.builds(Place, _u32, _u62), min_size=1, max_size=3).map(tuple)
_add = st.builds(
    AddRecord,
    places=_places,
    properties=_properties,
    body=st.binary(max_size=40),
    arrival_ms=st.integers(0, 2**47),
    protocol=st.integers(0, 255),
    priority=st.integers(0, 9),
    has_escapes=st.booleans(),
    transaction=_transaction,
    is_large=st.just(False),
    is_special=st.booleans(),
    is_moved=st.booleans(),
)
_large = st.builds(
    AddRecord,
    places=_places,
    properties=_properties,
    body=st.builds(LargeReference, _u62, _u62, _u32).map(encode_large_reference),
    arrival_ms=st.integers(0, 2**47),
    protocol=st.just(1),
    priority=st.just(4),
    transaction=st.just(0),
    is_large=st.just(True),
)
_sequences = st.sets(st.integers(1, 60), min_size=1, max_size=20).map(lambda s: tuple(sorted(s)))
_page = st.builds(
    PagedRecord,
    page_id=st.integers(1, 2**60),
    salt=_u62,
    size_bytes=st.just(16384),
    queues=st.dictionaries(_u32, _sequences, min_size=1, max_size=3).map(
        lambda queues: tuple(PagedQueue(queue, queues[queue]) for queue in sorted(queues))
    ),
)
records = st.one_of(
    _add,
    _large,
    st.builds(
        AckRecord, _u32, st.lists(st.builds(SequenceRange, _u62, _u62), max_size=3).map(tuple),
        _transaction,
    ),
    st.builds(CountRecord, _u32, st.integers(0, 99), _u62),
    st.builds(CommitRecord, _u62, st.integers(0, 99), _u32),
    st.builds(PrepareRecord, _u62, st.integers(0, 99), _u32, st.binary(max_size=30)),
    st.builds(RollbackRecord, _u62, st.integers(0, 99), _u32),
    st.builds(FilesRecord, st.just((FileRun(1, 3), FileRun(5, 5)))),
    st.builds(QueuesRecord, st.just((QueueState(1, 2, 3),))),
    st.builds(
        DuplicateRecord, st.just("orders"), st.just((DuplicateId(1, b"id"),)),
        _transaction,
    ),
    st.builds(PutRecord, st.text(max_size=8), st.binary(max_size=12)),
    st.builds(RemoveRecord, st.text(max_size=8)),
    _page,
    st.builds(PageDoneRecord, st.integers(1, 2**60)),
    st.builds(lambda body: general_record(77, body), st.binary(max_size=9)),
)  # fmt: skip
"""Records of all kinds, as the codec has them, and bytes of one that nobody knows."""


def window_of(
    blocks: list[list[Any]], *, first: int = 1, crc: int = 0, seal: bool = False
) -> bytes:
    """Return valid blocks with these records, at offset 4096 of file `FILE_ID`.

    Args:
        blocks: Records of each block.
        first: Sequence of the first.
        crc: Checksum of the block before it.
        seal: The last one is a seal.
    """
    made, chain = bytearray(), BlockChain(first - 1, crc)
    for number, own in enumerate(blocks):
        made += chain.block(
            own,
            file_id=FILE_ID,
            offset=4096 + len(made),
            salt=SALT,
            time_ms=1_000_000 + number,
            watermark=chain.sequence,
            is_seal=seal and number == len(blocks) - 1,
        )
    return bytes(made)


def numbers(buffer: Any, code: str = "q") -> list[int]:
    """Return the numbers of a buffer."""
    return memoryview(buffer).cast("B").cast(code).tolist()


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """Return columns as rows; places as (queue id, sequence, number)."""
    codes = {"kind": "B", "flags": "B", "protocol": "B", "priority": "B", "places_from": "i"}
    lists = {
        name: numbers(getattr(columns, name), codes.get(name, "q"))
        for name in Columns._fields
        if name != "rows"
    }
    ends = lists.pop("places_from")
    places = list(
        zip(
            lists.pop("place_queue"), lists.pop("place_sequence"), lists.pop("place_number"),
            strict=True,
        )
    )  # fmt: skip
    assert len(ends) == columns.rows + 1
    assert ends[-1] == len(places)
    rows = [
        {name: lists[name][at] for name in lists} | {"places": places[ends[at] : ends[at + 1]]}
        for at in range(columns.rows)
    ]
    assert all(len(values) == columns.rows for values in lists.values())
    return rows


def expected_rows(blocks: list[list[Any]], *, first: int = 1) -> list[dict[str, Any]]:
    """Return what the columns of `window_of(blocks)` have to say, from the records themselves."""
    rows = []
    at = 0
    for number, own in enumerate(blocks):
        record_at = at + 64
        for index, record in enumerate(own):
            data = encoded(record)
            row = dict.fromkeys(
                (
                    name
                    for name in Columns._fields
                    if not name.startswith("place") and name != "rows"
                ),
                0,
            )
            row |= {
                "kind": data[4],
                "flags": data[5],
                "offset": 4096 + record_at,
                "block": first + number,
                "block_time_ms": 1_000_000 + number,
                "position": (first + number) * 65536 + index,
                "length": len(data),
                "record_at": record_at,
                "places": [],
            }
            row |= _own(record, data, record_at)
            rows.append(row)
            record_at += align8(len(data))
        at += (record_at - at + 4095) // 4096 * 4096
    return rows


def _own(record: Any, data: bytes, at: int) -> dict[str, Any]:
    is_end = isinstance(record, CommitRecord | PrepareRecord | RollbackRecord)
    member = getattr(record, "transaction", 0) and not is_end
    row: dict[str, Any] = {"crc": crc32c(data)} if member else {}
    row["transaction"] = getattr(record, "transaction", 0)
    if isinstance(record, AddRecord):
        properties_at = at + 24 + 16 * len(record.places) + (8 if record.transaction else 0)
        row |= {
            "arrival_ms": record.arrival_ms,
            "protocol": record.protocol,
            "priority": record.priority,
            "properties_at": properties_at,
            "properties_bytes": len(record.properties),
            "body_at": properties_at + len(record.properties),
            "body_bytes": len(record.body),
            "body_size": int.from_bytes(record.body[8:16], "little")
            if record.is_large
            else len(record.body),
            "places": [(queue, sequence, 1) for queue, sequence in record.places],
        }
    elif isinstance(record, AckRecord):
        row["places"] = [(record.queue_id, *one) for one in record.ranges]
    elif isinstance(record, CountRecord):
        row |= {"number": record.deliveries, "places": [(record.queue_id, record.sequence, 1)]}
    elif is_end:
        row |= {"number": record.members, "digest": record.digest}
    elif isinstance(record, PageDoneRecord):
        row["number"] = record.page_id
    elif isinstance(record, PutRecord | RemoveRecord):
        key = len(record.key.encode())
        row |= {
            "properties_at": at + 16,
            "properties_bytes": key,
            "body_at": at + 16 + key,
            "body_bytes": len(data) - 16 - key,
        }
    elif isinstance(record, PagedRecord):
        row |= {"number": record.page_id, "places": _runs(record)}
    return row


def _runs(record: PagedRecord) -> list[tuple[int, int, int]]:
    runs: list[list[int]] = []
    for queue in record.queues:
        for sequence in queue.sequences:
            if runs and runs[-1][0] == queue.queue_id and runs[-1][1] + runs[-1][2] == sequence:
                runs[-1][2] += 1
            else:
                runs.append([queue.queue_id, sequence, 1])
    return [(queue, first, number) for queue, first, number in runs]

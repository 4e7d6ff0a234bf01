"""Records: round trips, the bytes of the specification, and malformed ones with their place."""

from __future__ import annotations

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.record import (
    SEQUENCE_MAX,
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
    RawRecord,
    Record,
    RecordType,
    RemoveRecord,
    SealRecord,
    SequenceRange,
    align8,
    decode_add_layout,
    decode_file_runs,
    decode_put,
    decode_record,
    digest_members,
    encode_record,
    general_record,
    walk_records,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
SEQUENCES = st.integers(1, SEQUENCE_MAX)
TAILS = st.integers(0, SEQUENCE_MAX + 1)
RANGES = SEQUENCES.flatmap(
    lambda first: st.builds(SequenceRange, st.just(first), st.integers(0, SEQUENCE_MAX + 1 - first))
)
RECORDS = st.one_of(
    st.builds(
        AddRecord,
        places=st.lists(st.builds(Place, U32, SEQUENCES), min_size=1, max_size=4).map(tuple),
        properties=st.binary(max_size=80),
        body=st.binary(max_size=200),
        arrival_ms=U64,
        protocol=st.integers(0, 255),
        priority=st.integers(0, 9),
        has_escapes=st.booleans(),
        transaction=U64,
        is_large=st.booleans(),
        is_special=st.booleans(),
        is_moved=st.booleans(),
    ),
    st.builds(
        AckRecord,
        queue_id=U32,
        ranges=st.lists(RANGES, max_size=4).map(tuple),
        transaction=U64,
    ),
    st.builds(CountRecord, U32, U32, SEQUENCES),
    st.builds(CommitRecord, U64, U32, U32),
    st.builds(PrepareRecord, U64, U32, U32, st.binary(max_size=60)),
    st.builds(RollbackRecord, U64, U32, U32),
    st.lists(st.tuples(U64, U64).map(sorted).map(lambda run: FileRun(*run)), max_size=4).map(
        lambda runs: FilesRecord(tuple(runs))
    ),
    st.lists(st.builds(QueueState, U32, TAILS, TAILS), max_size=4).map(
        lambda queues: QueuesRecord(tuple(queues))
    ),
    st.just(SealRecord()),
    st.builds(PutRecord, st.text(max_size=20), st.binary(max_size=40)),
    st.builds(RemoveRecord, st.text(max_size=20)),
)


def payload_of(records: list[Record]) -> bytes:
    encoded = [encode_record(record) for record in records]
    return b"".join(data.ljust(align8(len(data)), b"\0") for data in encoded)


@given(st.lists(RECORDS, max_size=6))
def test_round_trip_through_a_payload(records: list[Record]) -> None:
    walked = list(walk_records(payload_of(records), len(records), offset=64))
    assert [decode_record(raw) for raw in walked] == records
    assert all(raw.offset % 8 == 0 for raw in walked)


def test_bytes_of_add_and_ack_stand_where_the_format_page_says() -> None:
    add = encode_record(
        AddRecord((Place(5, 9), Place(6, 1)), b"k:v\n", b"body", 1234, 1, 7, True, 88)
    )
    assert add == (
        struct.pack("<IBBBBQIHH", 72, 1, 3, 1, 7, 1234, 4, 4, 2)
        + struct.pack("<IIQIIQ", 5, 0, 9, 6, 0, 1)
        + struct.pack("<Q", 88)
        + b"k:v\nbody"
    )
    ack = encode_record(AckRecord(5, (SequenceRange(1, 3),), 88))
    assert ack == struct.pack("<IBBHIIQQQ", 40, 2, 1, 0, 5, 1, 1, 3, 88)
    assert encode_record(SealRecord()) == struct.pack("<IBBHQ", 16, 7, 0, 0, 0)


def test_layout_finds_the_content_without_reading_it() -> None:
    data = encode_record(AddRecord((Place(1, 1),), b"a:b\n", b"xyz", 0, transaction=3))
    layout = decode_add_layout(RawRecord(0, 1, 1, memoryview(data)))
    end = layout.properties_at + layout.properties_bytes
    assert data[layout.properties_at : end] == b"a:b\n"
    assert data[end : end + layout.body_bytes] == b"xyz"
    assert layout.transaction == 3


def test_unknown_types_are_skipped_unless_a_reader_must_know_them() -> None:
    (raw,) = walk_records(general_record(100, b"whatever"), 1)
    assert decode_record(raw) is None
    with pytest.raises(JournalFormatError, match="newer reader"):
        list(walk_records(general_record(200, b"whatever"), 1))


def test_a_payload_of_zeros_without_records_is_a_gap() -> None:
    assert list(walk_records(bytes(4000), 0)) == []


@pytest.mark.parametrize(
    ("payload", "records", "offset", "what"),
    [
        (b"\x07" + bytes(7), 1, 64, "bad length"),
        (struct.pack("<IBBH", 24, 3, 0, 0) + bytes(8), 1, 64, "bad length"),
        (b"", 1, 64, "missing"),
        (general_record(40, b""), 2, 72, "missing"),
        (general_record(40, b"") + general_record(40, b""), 1, 72, "behind the last"),
    ],
)
def test_walk_names_the_place(payload: bytes, records: int, offset: int, what: str) -> None:
    with pytest.raises(JournalFormatError, match=what) as caught:
        list(walk_records(payload, records, offset=64))
    assert caught.value.offset == offset


MALFORMED = {
    "an ADD that is cut off": general_record(1, bytes(10)),
    "an ADD without places": general_record(1, bytes(16)),
    "an ADD that is too short": encode_record(AddRecord((Place(1, 1),), b"", b"abc", 0))[:-1],
    "an ACK that is cut off": general_record(2, bytes(7)),
    "an ACK with too few ranges": general_record(2, struct.pack("<II", 1, 2) + bytes(16)),
    "a COUNT": general_record(3, bytes(8)),
    "a COMMIT": general_record(4, bytes(8)),
    "a PREPARE": general_record(8, bytes(15)),
    "a ROLLBACK": general_record(9, bytes(17)),
    "a SEAL": general_record(7, b""),
    "FILES": general_record(5, struct.pack("<II", 2, 0) + bytes(16)),
    "FILES upside down": general_record(5, struct.pack("<IIQQ", 1, 0, 9, 3)),
    "FILES that is cut off": general_record(5, bytes(4)),
    "QUEUES": general_record(6, struct.pack("<II", 1, 0)),
    "a PUT": general_record(32, struct.pack("<II", 9, 0) + b"key"),
    "a PUT that is cut off": general_record(32, bytes(3)),
    "a PUT with a key that is no text": general_record(32, struct.pack("<II", 1, 0) + b"\xff"),
    "a REMOVE with a value": general_record(33, struct.pack("<II", 1, 0) + b"kv"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_are_refused_with_their_place(name: str) -> None:
    data = MALFORMED[name]
    raw = RawRecord(500, data[4], data[5], memoryview(data))
    with pytest.raises(JournalFormatError) as caught:
        decode_record(raw)
    assert 500 <= caught.value.offset <= 500 + len(data)


@given(st.sampled_from([int(t) for t in RecordType]), st.integers(0, 1), st.binary(max_size=60))
def test_garbage_is_decoded_or_refused_and_nothing_else(
    type_: int, flags: int, body: bytes
) -> None:
    data = general_record(type_, body, flags)
    fault = 0
    try:
        decode_record(RawRecord(0, type_, flags, memoryview(data)))
    except JournalFormatError as error:
        fault = error.offset
    assert 0 <= fault <= len(data)


@pytest.mark.parametrize(
    "record",
    [
        AddRecord((), b"", b"", 0),
        AddRecord((Place(1, 1),), b"", b"", 0, priority=10),
        AddRecord((Place(1, 1),), bytes(65536), b"", 0),
        AddRecord((Place(2**32, 1),), b"", b"", 0),
        CountRecord(1, 2**32, 1),
    ],
)
def test_encoder_refuses_what_the_format_cannot_hold(record: Record) -> None:
    with pytest.raises(ValueError):
        encode_record(record)


def test_files_record_knows_its_runs() -> None:
    files = FilesRecord((FileRun(2, 4), FileRun(9, 9)))
    assert [n for n in range(12) if n in files] == [2, 3, 4, 9]
    assert decode_file_runs(encode_record(files)[8:]) == files.runs
    assert decode_put(encode_record(PutRecord("queue/1", b"{}"))[8:]) == ("queue/1", b"{}")


def test_digest_goes_over_members_without_padding() -> None:
    members = [encode_record(AckRecord(1, (SequenceRange(n, 1),), 5)) for n in (1, 2)]
    assert digest_members(members) == crc32c(b"".join(members))


def test_errors_survive_pickling() -> None:
    error = JournalFormatError("what", offset=5, found=1, expected=2)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.offset, again.expected) == (str(error), 5, 2)

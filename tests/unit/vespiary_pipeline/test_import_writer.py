"""What an import writes is what a recovery reads: row by row, in whole and sound journals."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql.types import StringType, StructField, StructType

from vespiary_broker.cli.journals import verify
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.recovery import Recovery
from vespiary_broker.store.survey import survey_folder
from vespiary_codec.journal.block import decode_block_header, walk_blocks
from vespiary_codec.journal.file_header import decode_file_header
from vespiary_codec.journal.large_reference import body_name, decode_large_reference
from vespiary_codec.journal.record import (
    AddRecord,
    PutRecord,
    QueuesRecord,
    QueueState,
    Record,
    decode_record,
    walk_records,
)
from vespiary_codec.wire.stomp.properties import parse_properties
from vespiary_native.abc import SLAB_BYTES
from vespiary_native.choice import block_verifier
from vespiary_pipeline.source import VespiarySource
from vespiary_spec.errors import ConfigError, ImportRefused, UnknownSetting
from vespiary_testkit.imported import carried, import_rows, schema_of, write, writer_of
from vespiary_testkit.source_rows import rows_of

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
NOON_MS = 1_795_348_800_000


class Records:
    """A sink of the recovery that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.found: list[Record] = []

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        pass

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        header = decode_block_header(block, offset=offset)
        for raw in walk_records(block[64:], header.records, offset=offset + 64):
            record = decode_record(raw)
            assert record is not None
            self.found.append(record)
        return []


def recovered(folder: Path, form: FileForm) -> list[Record]:
    """Return the records that a recovery reads."""
    sink, disk = Records(), Disk()
    survey = survey_folder(folder, form, disk, is_direct=False)
    Recovery(survey, disk, block_verifier()).run(sink)
    return sink.found


def adds(data: Path) -> list[AddRecord]:
    found = recovered(data / "journal", MESSAGE_FORM)
    return [record for record in found if isinstance(record, AddRecord)]


def states(data: Path) -> dict[int, QueueState]:
    found = recovered(data / "journal", MESSAGE_FORM)
    lists = [record.queues for record in found if isinstance(record, QueuesRecord)]
    return {state.queue_id: state for queues in lists for state in queues}


def bindings(data: Path) -> dict[str, Any]:
    found = recovered(data / "bindings", BINDINGS_FORM)
    return {one.key: json.loads(one.value) for one in found if isinstance(one, PutRecord)}


def verified(data: Path) -> None:
    """Let the broker's own tool look at every bit."""
    result = CliRunner().invoke(verify, [str(data), "--json"], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert {one["finding"] for one in json.loads(result.output)} == {"good"}, result.output


def headers_of(record: AddRecord) -> dict[str, str]:
    return dict(parse_properties(record.properties))


def test_rows_are_the_messages_of_a_recovery(tmp_path: Path) -> None:
    rows = [
        {"body": b"plain"},
        {"body": b""},
        {"body": b"x", "properties": [("a:b", "c\\d\ne\rf"), ("n", None)], "priority": 9},
        {"body": b"y", "arrival": NOON, "expires": NOON + datetime.timedelta(days=1)},
        {"body": b"z", "properties": [("destination", "/queue/orders"), ("JMSXGroupID", "g")]},
        {"body": b"w", "persistent": True, "properties": [("persistent", "false")]},
    ]
    import_rows(tmp_path / "data", rows[:2], rows[2:])
    verified(tmp_path / "data")
    found = adds(tmp_path / "data")
    assert [one.body for one in found] == [row["body"] for row in rows]
    assert [one.places for one in found] == [((1, number),) for number in range(1, 7)]
    assert [one.priority for one in found] == [4, 4, 9, 4, 4, 4]
    assert [one.is_special for one in found] == [False, False, True, True, True, False]
    assert [one.has_escapes for one in found] == [False, False, True, False, False, False]
    assert not any(one.transaction or one.is_large or one.is_moved for one in found)
    assert found[3].arrival_ms == NOON_MS
    assert [headers_of(one) for one in found] == [
        {"destination": "orders"},
        {"destination": "orders"},
        {"a:b": "c\\d\ne\rf", "destination": "orders", "priority": "9"},
        {"destination": "orders", "expires": str(NOON_MS + 86_400_000)},
        {"destination": "/queue/orders", "JMSXGroupID": "g"},
        {"persistent": "true", "destination": "orders"},
    ]


def test_columns_win_over_properties_and_null_leaves_them(tmp_path: Path) -> None:
    said = [("destination", "elsewhere"), ("priority", "2"), ("expires", f"{NOON_MS}")]
    later = NOON + datetime.timedelta(hours=1)
    rows = [
        {"body": b"", "properties": said, "priority": 7, "expires": later},
        {"body": b"", "properties": said, "priority": None, "expires": None},
        {"body": b"", "properties": said, "priority": 2, "expires": NOON},
        {"body": b"", "properties": [("message-id", "7"), ("content-length", "3"), ("k", "1")]},
    ]
    import_rows(tmp_path / "data", rows)
    found = adds(tmp_path / "data")
    kept = {"destination": "orders", "priority": "2", "expires": f"{NOON_MS}"}
    assert [headers_of(one) for one in found] == [
        {"destination": "orders", "priority": "7", "expires": f"{NOON_MS + 3_600_000}"},
        kept,
        kept,
        {"k": "1", "destination": "orders"},
    ]
    assert [one.priority for one in found] == [7, 2, 2, 4]


def test_a_message_has_a_place_in_each_of_its_queues(tmp_path: Path) -> None:
    topic = {"address": "prices", "properties": [("destination", "/topic/prices")]}
    first = [
        {"body": b"1", **topic, "queues": ["audit", "desk"]},
        {"body": b"2", **topic, "queues": ["desk"]},
    ]
    second = [
        {"body": b"3", "address": "orders", "queues": None},
        {"body": b"4", **topic, "queues": ["desk", "audit"]},
        {"body": b"5", "address": "stock::left", "queues": None},
    ]
    import_rows(tmp_path / "data", first, second)
    verified(tmp_path / "data")
    found = adds(tmp_path / "data")
    assert [one.places for one in found] == [
        ((1, 1), (2, 1)), ((2, 2),), ((3, 1),), ((2, 3), (1, 2)), ((4, 1),),
    ]  # fmt: skip
    assert states(tmp_path / "data") == {
        1: QueueState(1, 1, 3),
        2: QueueState(2, 1, 4),
        3: QueueState(3, 1, 2),
        4: QueueState(4, 1, 2),
    }
    assert bindings(tmp_path / "data") == {
        "address/prices": {"routing-types": ["MULTICAST"], "auto-created": False},
        "address/orders": {"routing-types": ["ANYCAST"], "auto-created": False},
        "address/stock": {"routing-types": ["ANYCAST"], "auto-created": False},
        "queue/1": _queue("audit", "prices", "MULTICAST"),
        "queue/2": _queue("desk", "prices", "MULTICAST"),
        "queue/3": _queue("orders", "orders", "ANYCAST"),
        "queue/4": _queue("left", "stock", "ANYCAST"),
        "counter/queue-id": {"next": 5},
    }


def _queue(name: str, address: str, routing_type: str) -> dict[str, Any]:
    return {
        "name": name, "address": address, "routing-type": routing_type, "auto-created": False,
    }  # fmt: skip


def test_many_files_are_one_chain(tmp_path: Path) -> None:
    """Blocks that cross neither a slab nor a file's end, of several tasks, one of them empty."""
    sizes = [1, 70_000, 99_000, 30_000, 5, 101_000, 64, 4031, 4032, 4033] * 30
    rows = [{"body": bytes([n % 251]) * size} for n, size in enumerate(sizes)]
    import_rows(tmp_path / "data", rows[:200], [], rows[200:], fileSize="3m")
    verified(tmp_path / "data")
    found = adds(tmp_path / "data")
    assert [one.body for one in found] == [row["body"] for row in rows]
    assert [one.places[0].sequence for one in found] == list(range(1, len(rows) + 1))
    files = list((tmp_path / "data" / "journal").iterdir())
    assert len(files) == 6
    for path in files:
        data = path.read_bytes()
        header = decode_file_header(data)
        assert header is not None
        assert header.size_bytes == len(data) == 3 << 20
        own = {"salt": header.salt, "file_id": header.file_id}
        blocks = list(walk_blocks(data[4096:], offset=4096, **own))
        assert blocks[-1][1].is_seal
        assert blocks[-1][1].watermark == blocks[-1][1].sequence - 1
        for offset, block, _ in blocks:
            assert offset // SLAB_BYTES == (offset + block.length - 1) // SLAB_BYTES


def test_many_queues_have_many_records_of_state(tmp_path: Path) -> None:
    rows = [{"body": b"", "queue": f"q{number}"} for number in range(3000)]
    import_rows(tmp_path / "data", rows)
    verified(tmp_path / "data")
    assert len(states(tmp_path / "data")) == 3000
    assert len(bindings(tmp_path / "data")) == 3002


def test_an_empty_frame_is_a_broker_without_messages(tmp_path: Path) -> None:
    import_rows(tmp_path / "data", [])
    verified(tmp_path / "data")
    assert not adds(tmp_path / "data")
    assert bindings(tmp_path / "data") == {"counter/queue-id": {"next": 1}}


def test_large_bodies_have_files_of_their_own(tmp_path: Path) -> None:
    first = [{"body": b"a" * 1024}, {"body": b"b" * 1025}, {"body": b"c" * 300_000}]
    second = [{"body": b"d" * 1024}, {"body": b"e" * 1025}, {"body": b"f" * 300_000}]
    rows = first + second
    import_rows(tmp_path / "data", first, second, largeMessageSize="1k", fileSize="64k")
    verified(tmp_path / "data")
    found = adds(tmp_path / "data")
    assert [one.is_large for one in found] == [False, True, True] * 2
    for index, one in enumerate(found):
        if one.is_large:
            large_id, size, _ = decode_large_reference(one.body)
            body = (tmp_path / "data" / "large-messages" / body_name(large_id)).read_bytes()
            assert body == rows[index]["body"]
            assert size == len(body)
    assert len(list((tmp_path / "data" / "large-messages").iterdir())) == 4


def test_a_body_that_no_file_can_hold_is_large(tmp_path: Path) -> None:
    import_rows(tmp_path / "data", [{"body": b"x" * 60_000}], fileSize="64k")
    verified(tmp_path / "data")
    assert adds(tmp_path / "data")[0].is_large


def test_the_format_reads_what_it_wrote(tmp_path: Path) -> None:
    rows = [{"body": b"%d" % n, "arrival": NOON, "properties": [("n", str(n))]} for n in range(9)]
    import_rows(tmp_path / "data", rows[:4], rows[4:])
    found = [row for row in rows_of(tmp_path / "data", body="true") if row["kind"] == "ADD"]
    assert [row["body"] for row in found] == [row["body"] for row in rows]
    assert {row["arrival"] for row in found} == {NOON}
    assert [row["properties"]["n"] for row in found] == [str(n) for n in range(9)]
    assert {tuple(row["queues"]) for row in found} == {("orders",)}


def test_rows_may_say_their_sequences(tmp_path: Path) -> None:
    first = [{"body": b"7", "queues": ["a", "b"], "sequences": [7, 3]}]
    second = [{"body": b"2", "queues": ["a"], "sequences": [2]}]
    import_rows(tmp_path / "data", first, second)
    verified(tmp_path / "data")
    assert [one.places for one in adds(tmp_path / "data")] == [((1, 7), (2, 3)), ((1, 2),)]
    assert states(tmp_path / "data") == {1: QueueState(1, 2, 8), 2: QueueState(2, 3, 4)}


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"body": b"", "queues": ["a"], "sequences": [3]}] * 2, "queue a, sequence 3"),
        ([{"body": b"", "queues": ["a"], "sequences": [3, 4]}], "the sequences are not those"),
        ([{"body": b"", "queues": ["a"], "sequences": [0]}], "the sequences are not those"),
        ([{"body": b"", "queues": ["a"], "sequences": None}], "the sequences are not those"),
        ([{"body": b"", "queues": ["a", "a"]}], "stands in a queue once"),
        ([{"body": b"", "queues": [None]}], "cannot be the name"),
        ([{"body": b"", "queue": "a\tb"}], "cannot be the name"),
        ([{"body": b"", "queue": "a "}], "cannot be the name"),
        ([{"body": b"", "queue": "q", "address": " a"}], "cannot be the name"),
        ([{"body": b"", "queue": "a" * 1025}], "cannot be the name"),
        ([{"body": b"", "queue": "q", "address": name} for name in "ab"], "row 1 of partition 0"),
        ([{"body": b"1"}, {"body": None}], "row 1 of partition 0: a message has no body"),
        ([{"body": b"", "priority": 10}], "a wrong priority"),
        ([{"body": b"", "persistent": False}], "in no journal"),
        ([{"body": b"", "properties": [("n", "x" * 65536)]}], "cannot be stored"),
        ([{"body": b"", "properties": [("n", "a\0b")]}], "cannot be stored"),
        ([{"body": b"", "properties": [("", "b")]}], "has no name"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_told(
    tmp_path: Path, rows: list[dict[str, Any]], sentence: str
) -> None:
    with pytest.raises(ImportRefused) as refused:
        import_rows(tmp_path / "data", rows)
    assert sentence in str(refused.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (("address",), {}, "needs the column body"),
        (("body", "sequences"), {}, "those of the queues"),
        (("body",), {"address": ""}, "nothing says where"),
        (("body",), {"fileSize": "65537"}, "fileSize"),
        (("body",), {"path": "s3a://bucket/x"}, "driver and executors share"),
    ],
)
def test_what_an_import_cannot_take_is_told(
    tmp_path: Path, columns: tuple[str, ...], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        writer_of(**{"path": tmp_path / "data", "names": columns, **options})
    assert sentence in str(refused.value)


def test_an_unknown_column_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    schema = StructType([*schema_of("body").fields, StructField("subject", StringType())])
    source = VespiarySource({"path": str(tmp_path / "data"), "address": "orders"})
    with pytest.raises(ConfigError, match=r"subject.*body, address, queue") as refused:
        source.writer(schema=schema, overwrite=False)
    assert "select" in str(refused.value)


def test_a_mistyped_option_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(UnknownSetting, match="Did you mean fileSize"):
        writer_of(tmp_path / "data", ("body",), filesize_="1m")


def test_overwriting_is_refused(tmp_path: Path) -> None:
    source = VespiarySource({"path": str(tmp_path / "data"), "address": "orders"})
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        source.writer(schema=schema_of("body"), overwrite=True)


def test_columns_of_an_export_that_say_nothing_are_passed_over(tmp_path: Path) -> None:
    import_rows(tmp_path / "data", [{"body": b"1", "file_id": 7}])
    assert adds(tmp_path / "data")[0].places == ((1, 1),)


def test_bindings_of_another_broker_are_taken_over(tmp_path: Path) -> None:
    import_rows(tmp_path / "first", [{"body": b"", "queue": "left"}, {"body": b""}])
    rows = [
        {"body": b"1", "address": "elsewhere", "queue": "orders"},
        {"body": b"2", "address": "new", "queue": "new"},
        {"body": b"3", "address": "orders", "queue": "orders"},
    ]
    import_rows(tmp_path / "second", rows, bindings=str(tmp_path / "first"))
    verified(tmp_path / "second")
    assert [one.places for one in adds(tmp_path / "second")] == [((2, 1),), ((3, 1),), ((2, 2),)]
    found = bindings(tmp_path / "second")
    assert found["queue/1"] == _queue("left", "orders", "ANYCAST")
    assert found["queue/2"] == _queue("orders", "orders", "ANYCAST")
    assert found["queue/3"] == _queue("new", "new", "ANYCAST")
    assert found["counter/queue-id"] == {"next": 4}


@pytest.mark.parametrize("is_one_task", [True, False])
def test_bindings_that_do_not_know_a_queue_do_not_settle_its_address(
    tmp_path: Path, *, is_one_task: bool
) -> None:
    import_rows(tmp_path / "first", [{"body": b""}])
    rows = [{"body": b"", "address": name, "queue": "q"} for name in "ab"]
    parts = [rows] if is_one_task else [rows[:1], rows[1:]]
    with pytest.raises(ImportRefused, match="queue q, addresses a and b"):
        import_rows(tmp_path / "second", *parts, bindings=str(tmp_path / "first"))


def test_queues_of_one_name_in_two_tasks_are_one(tmp_path: Path) -> None:
    rows = [{"body": b"1", "queue": "a"}, {"body": b"2", "queue": "b"}]
    import_rows(tmp_path / "data", rows, rows[::-1])
    assert [one.places for one in adds(tmp_path / "data")] == [
        ((1, 1),), ((2, 1),), ((2, 2),), ((1, 2),),
    ]  # fmt: skip


def test_partitions_count_in_their_order_whatever_order_they_are_told_in(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "data", ("body",))
    told = [write(writer, number, [{"body": b"%d" % number}], ("body",)) for number in (2, 0, 1)]
    carried(writer).commit(told)
    assert [one.body for one in adds(tmp_path / "data")] == [b"0", b"1", b"2"]

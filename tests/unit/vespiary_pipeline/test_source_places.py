"""What lies at a path, and that all of it is read: journals, pages, copies, exports, and names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.record import (
    AckRecord,
    CommitRecord,
    PutRecord,
    RawRecord,
    Record,
    RemoveRecord,
    SequenceRange,
    encode_record,
)
from vespiary_codec.journal.text import TextWriter
from vespiary_spec.errors import (
    BadExport,
    ConfigError,
    CorruptRecord,
    PageDamaged,
    StorageError,
)
from vespiary_testkit.page_builder import JOURNAL_ID, Message, messages
from vespiary_testkit.source_rows import rows_of
from vespiary_testkit.written_files import JournalWriter, large_message, message, write_page

QUEUES = {1: "orders", 2: "letters", 3: "gone"}


def write_bindings(folder: Path) -> Path:
    """Write a bindings journal with three queues, of which the last was removed."""
    puts = [
        PutRecord(f"queue/{number}", json.dumps({"name": name}).encode())
        for number, name in QUEUES.items()
    ]
    return JournalWriter(folder, "bindings").file(1, puts, [RemoveRecord("queue/3")])


def write_data(path: Path) -> Path:
    """Write a broker's data folder: all journals, a page and a large body."""
    large = large_message(path / "large-messages", 4, b"large")
    JournalWriter(path / "journal").file(
        1, [message(1), message(2, queue_id=2), message(3, queue_id=3)], [large]
    )
    write_bindings(path / "bindings")
    JournalWriter(path / "jms", "jms").file(1, [PutRecord("connectionFactory/a", b"{}")])
    write_page(path / "paging", 7, messages(12))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def seen(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["journal"], Path(row["path"]).name) for row in rows}


MESSAGE = ("message", "activemq-data-1.hq")
BINDINGS = ("bindings", "activemq-bindings-1.bindings")
JMS = ("jms", "activemq-jms-1.jms")
PAGE = ("page", f"{7:016x}.page")


@pytest.mark.parametrize(
    ("below", "options", "expected"),
    [
        ("", {}, {MESSAGE, BINDINGS, JMS}),
        ("", {"journal": "message"}, {MESSAGE}),
        ("", {"journal": "jms,page"}, {JMS, PAGE}),
        ("journal", {}, {MESSAGE}),
        ("bindings", {}, {BINDINGS}),
        ("jms", {}, {JMS}),
        ("paging", {}, {PAGE}),
        ("paging/0123456789abcdef0123456789abcdef", {}, {PAGE}),
    ],
)
@pytest.mark.parametrize("table", ["records", "files"])
def test_a_path_is_known_by_what_lies_there(
    data: Path, below: str, options: dict[str, str], expected: set[tuple[str, str]], table: str
) -> None:
    assert seen(rows_of(data / below, table=table, **options)) == expected


def test_several_paths_are_read_together(data: Path, tmp_path: Path) -> None:
    other = write_data(tmp_path / "other")
    paths = json.dumps([str(data / "journal"), str(other / "bindings")])
    rows = rows_of(None, paths=paths)
    assert {Path(row["path"]).parts[-3:-1] for row in rows} == {
        ("data", "journal"),
        ("other", "bindings"),
    }


def test_names_of_queues_come_from_the_bindings_beside(data: Path, tmp_path: Path) -> None:
    rows = rows_of(data, journal="message")
    assert [row["queues"] for row in rows] == [["orders"], ["letters"], [None], ["orders"]]
    assert rows_of(data / "journal") == rows
    (data / "bindings").rename(tmp_path / "elsewhere")
    assert [row["queues"] for row in rows_of(data / "journal")] == [[None]] * 4
    named = rows_of(data / "journal", bindings=str(tmp_path / "elsewhere"))
    assert [row["queues"] for row in named] == [row["queues"] for row in rows]


def test_damaged_bindings_cost_no_more_than_their_names(data: Path) -> None:
    path = data / "bindings" / "activemq-bindings-1.bindings"
    content = bytearray(path.read_bytes())
    content[4096 + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match="confirmed data is damaged"):
        rows_of(data, journal="message")
    rows = rows_of(data, journal="message", onCorrupt="report")
    assert [row["queues"] for row in rows] == [[None]] * 4
    assert not any(row["error"] for row in rows)


def test_keys_and_values_of_bindings(data: Path) -> None:
    rows = rows_of(data, journal="bindings")
    assert [(row["kind"], row["key"]) for row in rows] == [
        ("PUT", "queue/1"),
        ("PUT", "queue/2"),
        ("PUT", "queue/3"),
        ("REMOVE", "queue/3"),
    ]
    assert [row["value"] and json.loads(row["value"])["name"] for row in rows] == [
        "orders",
        "letters",
        "gone",
        None,
    ]
    assert {row["address"] for row in rows} == {None}


def test_what_is_no_journal_is_refused_with_the_path_and_a_cure(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(StorageError, match="nothing of a broker lies here") as caught:
            rows_of(path)
        assert caught.value.where == str(path)
        assert caught.value.cure
    with pytest.raises(StorageError, match="there is no such folder"):
        rows_of(tmp_path / "absent")


def test_a_broker_without_pages_has_none(tmp_path: Path) -> None:
    JournalWriter(tmp_path / "journal").file(1, [message(1)])
    assert rows_of(tmp_path, journal="page") == []
    (tmp_path / "paging").mkdir()
    assert rows_of(tmp_path, journal="page") == []
    assert seen(rows_of(tmp_path, journal="page,message")) == {MESSAGE}


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_of_the_files_is_read_instead_of_them(data: Path) -> None:
    for folder in ("journal", "bindings"):
        (data / folder).rename(data / "aside")
        (data / folder / ".vespiary-snapshot-nightly").mkdir(parents=True)
        (data / "aside").rename(data / folder / ".vespiary-snapshot-nightly" / "files")
    JournalWriter(data / "journal").file(1, [message(50)])
    copied = rows_of(data, journal="message", snapshot="nightly")
    assert [row["queues"] for row in copied] == [["orders"], ["letters"], [None], ["orders"]]
    folder = data / "journal" / ".vespiary-snapshot-nightly"
    assert rows_of(folder) == rows_of(folder / "files") == copied
    assert [row["arrival"].microsecond for row in rows_of(data, journal="message")] == [50_000]
    with pytest.raises(StorageError, match="there is no snapshot of this name"):
        rows_of(data, snapshot="weekly")


def test_kept_copies_of_which_some_are_gone(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal")
    kept = tmp_path / "kept"
    kept.mkdir()
    for number in (1, 2, 3, 4):
        add = large_message(
            kept / "large-messages",
            number,
            b"large" * number,
            f"20261122071801-{number:016x}.msg",
        )
        path = writer.file(number, [add], is_sealed=True)
        path.rename(kept / f"activemq-data-2026112207180{number}-{number}.hq")
    (kept / "activemq-data-20261122071802-2.hq").unlink()
    rows = [row for row in rows_of(kept, body="true") if row["kind"] == "ADD"]
    assert [(row["file_id"], row["gaps"], row["after_gap"]) for row in rows] == [
        (1, 0, False),
        (3, 1, True),
        (4, 1, False),
    ]
    assert [row["body"] for row in rows] == [b"large" * number for number in (1, 3, 4)]
    assert not any(row["error"] for row in rows)
    # A body that a message still needs is with the broker.
    (kept / "large-messages" / f"20261122071801-{4:016x}.msg").unlink()
    large_message(tmp_path / "broker" / "large-messages", 4, b"large" * 4)
    found = rows_of(kept, body="true", largeMessages=str(tmp_path / "broker" / "large-messages"))
    assert [row["body"] for row in found if row["kind"] == "ADD"] == [row["body"] for row in rows]


def test_a_kept_copy_that_is_damaged_is_told(tmp_path: Path) -> None:
    path = JournalWriter(tmp_path).file(1, [message(1)], [message(2)], is_sealed=True)
    kept = path.rename(tmp_path / "activemq-data-20261122071801-1.hq")
    content = bytearray(kept.read_bytes())
    content[4096 + 100] ^= 1
    kept.write_bytes(content)
    with pytest.raises(CorruptRecord, match="confirmed data is damaged") as caught:
        rows_of(tmp_path)
    assert caught.value.where == f"{kept}:4096"
    found = rows_of(tmp_path, onCorrupt="report")
    assert [row["kind"] for row in found] == [None, "ADD", "SEAL"]


# --- pages ----------------------------------------------------------------------------------------


def test_the_messages_of_a_page(data: Path) -> None:
    content = messages(12)
    rows = [row for row in rows_of(data, journal="page", body="true") if row["kind"] == "ADD"]
    assert [row["body"] for row in rows] == [one.body for one in content]
    assert {(row["journal"], row["file_id"]) for row in rows} == {("page", 7)}
    assert [row["places"][0]["sequence"] for row in rows] == list(range(1, 13))
    assert {tuple(row["queues"]) for row in rows} == {("orders",)}
    assert rows_of(data, journal="page", maxFileId="6") == []
    assert len(rows_of(data, journal="page", minFileId="7", columns="kind")) == 13
    (file,) = rows_of(data, journal="page", table="files")
    assert (file["file_id"], file["adds"], file["sealed"], file["error"]) == (7, 12, True, None)


def test_a_damaged_page_is_told(data: Path) -> None:
    path = next((data / "paging").rglob("*.page"))
    whole = path.read_bytes()
    for at, error in ((4096 + 100, CorruptRecord), (20, PageDamaged)):
        content = bytearray(whole)
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(error) as caught:
            rows_of(data, journal="page")
        assert caught.value.where.startswith(str(path))
        found = rows_of(data, journal="page", onCorrupt="report")
        assert [row["path"] for row in found if row["error"]] == [str(path)]
        kinds = [row["kind"] for row in found]
        assert kinds == ([None, "ADD", "ADD", "SEAL"] if error is CorruptRecord else [None])


def test_messages_of_several_queues_in_a_page(tmp_path: Path) -> None:
    content = [Message(b"a", ((1, 1), (2, 9))), Message(b"b", ((2, 10),))]
    write_page(tmp_path / "paging", 1, content)
    write_bindings(tmp_path / "bindings")
    rows = rows_of(tmp_path / "paging")
    assert [row["queues"] for row in rows[:2]] == [["orders", "letters"], ["letters"]]


# --- exports --------------------------------------------------------------------------------------


RECORDS = [message(1), message(2, b"x" * 300), AckRecord(1, (SequenceRange(1, 1),))]


def write_export(
    path: Path, *, has_totals: bool = True, records: Sequence[Record] = RECORDS
) -> list[bytes]:
    """Write an export with a gap before its last record; return its lines."""
    writer = TextWriter()
    lines = [
        writer.header(JournalKind.MESSAGE, JOURNAL_ID),
        writer.file("activemq-data-1.hq", 1, 65536),
    ]
    for number, record in enumerate(records):
        data = encode_record(record)
        if number == 2:
            lines.append(writer.gap())
        lines.append(writer.record(RawRecord(0, data[4], data[5], memoryview(data))))
    lines += [writer.totals()] if has_totals else []
    path.write_bytes(b"".join(lines))
    return lines


SAME = ("kind", "flags", "length", "places", "address", "queues", "arrival", "properties", "body")


def test_an_export_has_the_rows_of_its_journal(tmp_path: Path) -> None:
    JournalWriter(tmp_path / "journal").file(1, RECORDS)
    write_bindings(tmp_path / "bindings")
    write_export(tmp_path / "journal.txt")
    text = rows_of(
        tmp_path / "journal.txt", body="true", data="true", bindings=str(tmp_path / "bindings")
    )
    journal = rows_of(tmp_path / "journal", body="true", data="true")
    assert [{name: row[name] for name in SAME} for row in text] == [
        {name: row[name] for name in SAME} for row in journal
    ]
    assert [row["offset"] for row in text] == [3, 4, 6]
    assert [(row["gaps"], row["after_gap"]) for row in text] == [(0, False), (0, False), (1, True)]
    for options in ({"batchRows": "1"}, {"batchBytes": "64k"}):
        assert rows_of(tmp_path / "journal.txt", **options) == rows_of(tmp_path / "journal.txt")
    assert [row["kind"] for row in rows_of(tmp_path / "journal.txt", kinds="ACK")] == ["ACK"]


def test_records_of_transactions_in_an_export(tmp_path: Path) -> None:
    member = AckRecord(1, (SequenceRange(1, 1),), transaction=5)
    write_export(tmp_path / "journal.txt", records=[message(1), member, CommitRecord(5, 1, 0)])
    rows = rows_of(tmp_path / "journal.txt", kinds="PREPARE", members="true")
    assert [row["kind"] for row in rows] == ["ACK", "COMMIT"]


def test_an_export_that_is_damaged_or_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.txt"
    lines = write_export(path, has_totals=False)
    with pytest.raises(BadExport):
        rows_of(path)
    found = rows_of(path, onCorrupt="report")
    assert [row["kind"] for row in found] == ["ADD", "ADD", "ACK", None]
    lines[3] = lines[3].replace(b"length@", b"length@1")
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadExport) as caught:
        rows_of(path)
    assert caught.value.where == f"{path}:4"
    found = rows_of(path, onCorrupt="report")
    assert [(row["kind"], row["offset"]) for row in found] == [("ADD", 3), (None, 4)]


def test_large_bodies_of_an_export_lie_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.txt"
    writer = TextWriter()
    data = encode_record(large_message(tmp_path / "journal.txt.large-messages", 9, b"large"))
    lines = [
        writer.header(JournalKind.MESSAGE, JOURNAL_ID),
        writer.record(RawRecord(0, data[4], data[5], memoryview(data))),
        writer.totals(),
    ]
    path.write_bytes(b"".join(lines))
    (row,) = rows_of(path, body="true")
    assert (row["body"], row["error"]) == (b"large", None)


def test_an_export_has_no_files(tmp_path: Path) -> None:
    write_export(tmp_path / "journal.txt")
    with pytest.raises(ConfigError, match="an export has records only"):
        rows_of(tmp_path / "journal.txt", table="files")

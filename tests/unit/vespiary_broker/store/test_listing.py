"""`vespiary journal print`: every record is there, and in safe mode nothing of its content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.listing import Entry, list_journal
from vespiary_broker.store.reader import read_journal
from vespiary_codec.journal.branch import BranchName, PrepareRecord, Xid, encode_branch
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.record import (
    AddRecord,
    Place,
    PutRecord,
    encode_record,
    general_record,
)
from vespiary_native.choice import block_verifier
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_records import write_freed_files, write_journal
from vespiary_testkit.journal_workload import FILE_BYTES

FOLDER = Path("/journal")
SECRET = b"s3cret"


def listed(disk: MemoryDisk, **options: bool) -> list[Entry]:
    return list(list_journal(FOLDER, MESSAGE_FORM, disk, block_verifier(), **options))


@pytest.fixture(scope="module")
def disk() -> MemoryDisk:
    made = MemoryDisk()
    write_journal(FOLDER, made)
    return made


@pytest.fixture
def secrets() -> MemoryDisk:
    made = MemoryDisk()
    builder = JournalBuilder(FOLDER, MESSAGE_FORM, FILE_BYTES, made, journal_id=bytes(16))
    reference = encode_large_reference(LargeReference(0x1F, 123_456, 7))
    branch = encode_branch(BranchName(Xid(1, b"\x0a", b"\x0b"), 1_790_000_000_000, "u"))
    for record in (
        AddRecord((Place(1, 1),), b"token:" + SECRET + b"\nb:c\n", SECRET, 5),
        AddRecord((Place(1, 2),), b"", reference, 5, is_large=True),
        PrepareRecord(9, 1, 2, branch),
        PutRecord("key", SECRET),
    ):
        builder.add(encode_record(record))
    builder.add(general_record(77, SECRET))
    builder.finish()
    builder.close()
    return made


def test_every_record_is_listed_once(disk: MemoryDisk):
    entries = listed(disk)
    report = read_journal(FOLDER, disk=disk)
    records = [entry for entry in entries if entry.event == "record"]
    assert len(records) == sum(report.records_by_type.values())
    places = [(entry.file, entry.offset) for entry in records]
    assert len(set(places)) == len(places)
    assert [e.file for e in entries if e.event == "file"] == [
        file.name for file in report.files if file.state in ("used", "ahead", "leftover")
    ]
    assert {entry.event for entry in entries} == {"file", "record"}


def test_freed_files_are_listed_if_asked():
    disk = MemoryDisk()
    write_freed_files(FOLDER, disk)
    more = [entry for entry in listed(disk, has_reclaimed=True) if entry.is_reclaimed]
    assert any(entry.event == "record" and entry.operation == "Add" for entry in more)
    assert not any(entry.is_reclaimed for entry in listed(disk))


def test_what_a_record_says(secrets: MemoryDisk):
    plain, large, prepare, put, unknown = [e for e in listed(secrets) if e.event == "record"][:5]
    assert plain.properties == (("token", "s3cret"), ("b", "c"))
    assert plain.content == SECRET
    assert plain.fields["queue"] == "1:1"
    assert large.content is None
    assert (large.fields["largeID"], large.fields["largeBytes"]) == ("000000000000001f", "123456")
    assert prepare.fields["xid"] == "1:0a:0b"
    assert (put.fields["key"], put.content) == ("key", SECRET)
    assert (unknown.operation, unknown.content) == ("Type77", SECRET)


def test_safe_mode_shows_no_content(secrets: MemoryDisk):
    text = json.dumps([entry.to_json() for entry in listed(secrets, is_safe=True)])
    assert "s3cret" not in text
    assert "czNjcmV0" not in text, "nor in base64"
    assert '["token", "***"]' in text
    assert "s3cret" in json.dumps([entry.to_json() for entry in listed(secrets)])


def test_holes_are_named_and_passed_over(disk: MemoryDisk):
    image = disk.copy()
    name = next(entry.file for entry in listed(disk))
    image.flip(FOLDER / name, 4096 + 100, 1)
    entries = listed(image)
    hole = next(entry for entry in entries if entry.event == "hole")
    assert (hole.file, hole.offset) == (name, 4096)
    assert "checksum" in hole.operation
    assert any(entry.event == "record" and entry.file == name for entry in entries)
    image.flip(FOLDER / name, 40, 1)
    refused = next(entry for entry in listed(image) if entry.event == "refused")
    assert refused.file == name
    assert refused.to_json()["what"]

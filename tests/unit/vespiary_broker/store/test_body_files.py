"""Bodies of large messages as the tools see them: compared byte by byte, copied durably."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vespiary_broker.store.body_files import check_bodies, copy_bodies
from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.live_set import LiveBody, LiveSet
from vespiary_broker.store.reader import Finding, read_journal
from vespiary_broker.store.verifying import BodyPlace, ProblemKind, verify_journal
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import BranchName, Xid, encode_branch
from vespiary_codec.journal.large_reference import (
    LargeReference,
    body_name,
    encode_large_reference,
)
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import NativeError
from vespiary_testkit.faulty_disk import MemoryDisk

FOLDER, BODIES, OTHER = Path("/journal"), Path("/large-messages"), Path("/other")
CONTENT = bytes(range(256)) * 5000  # more than a piece


def write(disk: MemoryDisk, name: str, content: bytes) -> None:
    disk.make_folder(BODIES)
    file = disk.create(BODIES / name, is_direct=False)
    file.write(memoryview(content), 0)
    file.flush()
    file.close()


def body(disk: MemoryDisk, large_id: int, content: bytes = CONTENT) -> LiveBody:
    write(disk, body_name(large_id), content)
    return LiveBody(LargeReference(large_id, len(content), crc32c(content)), 1, large_id)


def test_whole_bodies_are_good_and_others_are_named_with_what_is_wrong():
    disk = MemoryDisk()
    bodies = [body(disk, number) for number in (1, 2, 3, 4)] + [body(disk, 5, b"")]
    assert check_bodies(bodies, BODIES, disk) == []
    disk.remove(BODIES / body_name(2))
    disk.flip(BODIES / body_name(3), len(CONTENT) - 1, 7)
    write(disk, body_name(4), CONTENT[:-1])
    found = {lost.sequence: lost.what for lost in check_bodies(bodies, BODIES, disk)}
    assert found[2] == "the file is missing"
    assert "checksum" in found[3]
    assert found[4] == f"the file has {len(CONTENT) - 1} bytes, the message {len(CONTENT)}"
    assert set(found) == {2, 3, 4}


def test_copies_are_flushed_before_they_have_their_name():
    disk = MemoryDisk()
    bodies = [body(disk, 1), body(disk, 2, b"small")]
    steps: list[tuple[str, str]] = []
    disk.fail = lambda step, path: steps.append((step, path.name)) or 0  # type: ignore[func-returns-value]
    copied = copy_bodies(bodies, BODIES, OTHER, disk)
    assert (copied.files, copied.size_bytes, copied.lost) == (2, len(CONTENT) + 5, ())
    flushes = [step for step in steps if step[0] in ("flush", "rename", "flush_folder")]
    assert flushes == [
        ("flush", f"{body_name(1)}.tmp"),
        ("rename", f"{body_name(1)}.tmp"),
        ("flush", f"{body_name(2)}.tmp"),
        ("rename", f"{body_name(2)}.tmp"),
        ("flush_folder", OTHER.name),
    ]
    assert check_bodies(bodies, OTHER, disk) == []
    assert not [path for path in disk.files if path.suffix == ".tmp"]


def test_what_is_there_stays_and_what_is_damaged_is_not_copied():
    disk = MemoryDisk()
    bodies = [body(disk, 1), body(disk, 2), body(disk, 3)]
    assert copy_bodies(bodies[:1], BODIES, OTHER, disk).files == 1
    disk.flip(BODIES / body_name(2), 0, 0)
    before = bytes(disk.files[OTHER / body_name(1)].data)
    copied = copy_bodies(bodies, BODIES, OTHER, disk)
    assert copied.files == 2
    assert [lost.file for lost in copied.lost] == [body_name(2)]
    assert disk.names(OTHER) == [body_name(1), body_name(3)]
    disk.flip(OTHER / body_name(1), 0, 0)
    (lost,) = copy_bodies(bodies[:1], BODIES, OTHER, disk).lost
    assert "is there, and is another" in lost.what
    assert bytes(disk.files[OTHER / body_name(1)].data) != before, "nothing is written over"


def test_a_full_disk_leaves_no_part_of_a_body():
    disk = MemoryDisk()
    bodies = [body(disk, 1)]
    disk.fail = lambda step, path: errno.ENOSPC if step == "write" and path.parent == OTHER else 0
    with pytest.raises(NativeError):
        copy_bodies(bodies, BODIES, OTHER, disk)
    assert disk.names(OTHER) == []


# --- which bodies a journal needs ---------------------------------------------------------------


def journal(disk: MemoryDisk) -> dict[str, int]:
    """Write a journal with large messages in all states; return their ids by state."""
    ids = {
        name: number
        for number, name in enumerate(("live", "done", "prepared", "open", "gone", "committed"), 1)
    }

    def add(name: str, queue_id: int = 1, transaction: int = 0) -> bytes:
        reference = body(disk, ids[name]).reference
        return encode_record(
            AddRecord(
                (Place(queue_id, ids[name]),),
                b"a:b\n",
                encode_large_reference(reference),
                1,
                transaction=transaction,
                is_large=True,
            )
        )

    prepared, committed = add("prepared", transaction=7), add("committed", transaction=9)
    branch = encode_branch(BranchName(Xid(1, b"x", b""), 1, "amy"))
    end = encode_record(CommitRecord(7, 1, digest_members([prepared])))
    builder = JournalBuilder(FOLDER, MESSAGE_FORM, 1 << 20, disk, journal_id=bytes(16))
    records = [
        add("live"),
        add("done"),
        encode_record(AckRecord(1, (SequenceRange(ids["done"], 1),))),
        prepared,
        (len(end) + len(branch)).to_bytes(4, "little") + b"\x08" + end[5:] + branch,
        add("open", transaction=8),
        add("gone", queue_id=2),
        committed,
        encode_record(CommitRecord(9, 1, digest_members([committed]))),
    ]
    for record in records:
        builder.add(record)
    builder.finish()
    builder.close()
    return ids


def test_a_journal_needs_the_bodies_of_live_messages_and_prepared_branches():
    disk = MemoryDisk()
    ids = journal(disk)
    live = LiveSet()
    read_journal(FOLDER, disk=disk, live=live)
    needed = {each.reference.large_id for each in live.bodies(frozenset({1}))}
    assert needed == {ids["live"], ids["prepared"], ids["committed"]}
    assert {each.reference.large_id for each in live.bodies()} == needed | {ids["gone"]}


def test_verify_names_each_body_that_is_missing_or_another():
    disk = MemoryDisk()
    ids = journal(disk)
    place = BodyPlace(BODIES, lambda: frozenset({1}))
    good = verify_journal(FOLDER, MESSAGE_FORM, disk, block_verifier(), place)
    assert (good.finding, good.bodies) == (Finding.GOOD, 3)
    for name in ("done", "open", "gone"):
        disk.remove(BODIES / body_name(ids[name]))
    good = verify_journal(FOLDER, MESSAGE_FORM, disk, block_verifier(), place)
    assert good.finding is Finding.GOOD, "nobody needs them"
    disk.remove(BODIES / body_name(ids["prepared"]))
    disk.flip(BODIES / body_name(ids["live"]), 700_000, 3)
    bad = verify_journal(FOLDER, MESSAGE_FORM, disk, block_verifier(), place)
    assert bad.finding is Finding.BAD
    assert bad.report.finding is Finding.GOOD, "a broker starts from it"
    assert [(p.kind, p.file) for p in bad.problems] == [
        (ProblemKind.BODY, body_name(ids["live"])),
        (ProblemKind.BODY, body_name(ids["prepared"])),
    ]
    assert "message 1 of queue 1: the file has the checksum" in bad.problems[0].what
    assert "missing" in bad.problems[1].what
    assert verify_journal(FOLDER, MESSAGE_FORM, disk, block_verifier()).finding is Finding.GOOD


def test_a_body_that_goes_with_its_message_while_verify_looks_is_no_problem():
    disk = MemoryDisk()
    ids = journal(disk)
    disk.remove(BODIES / body_name(ids["gone"]))
    looks = iter([None, frozenset({1})])
    place = BodyPlace(BODIES, lambda: next(looks))
    assert verify_journal(FOLDER, MESSAGE_FORM, disk, block_verifier(), place).finding is (
        Finding.GOOD
    )

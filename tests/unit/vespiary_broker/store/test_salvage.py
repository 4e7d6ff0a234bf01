"""`vespiary journal recover`: what is left is saved, what is not is said, and a broker goes on."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.reader import Finding, read_journal
from vespiary_broker.store.salvage import SalvageReport, SalvageRules, salvage_journal
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    Place,
    PutRecord,
    Record,
    SequenceRange,
    digest_members,
    encode_record,
    general_record,
)
from vespiary_codec.journal.text import TextWriter
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import JournalError, StorageError
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.journal_records import (
    export_lines,
    locked_elsewhere,
    raw_record,
    write_freed_files,
    write_journal,
)
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    core_counts,
    open_memory,
    recover,
    recover_live,
)
from vespiary_testkit.journal_workload import LiveSet as LiveMessages
from vespiary_testkit.seeds import seed_for

OLD = Path("/old")
NEW = Path("/new")


def salvage(disk: MemoryDisk, *, form=MESSAGE_FORM, complete=None, **rules: bool) -> SalvageReport:
    before = {path: bytes(inode.data) for path, inode in disk.files.items()}
    report = salvage_journal(
        OLD,
        form,
        NEW,
        disk=disk,
        verify=block_verifier(),
        file_size_bytes=FILE_BYTES,
        rules=SalvageRules(**rules),
        complete=complete or (lambda _, __: {}),
    )
    assert {path: bytes(disk.files[path].data) for path in before} == before, "the old one is kept"
    assert not disk.open_files
    return report


@pytest.fixture(scope="module")
def written() -> MemoryDisk:
    disk = MemoryDisk()
    write_journal(OLD, disk)
    return disk


@pytest.fixture
def disk(written: MemoryDisk) -> MemoryDisk:
    return written.copy()


def built(*blocks: list[bytes | Record]) -> MemoryDisk:
    """A journal with these blocks."""
    disk = MemoryDisk()
    builder = JournalBuilder(OLD, MESSAGE_FORM, FILE_BYTES, disk, journal_id=bytes(16))
    for block in blocks:
        for record in block:
            builder.add(record if isinstance(record, bytes) else encode_record(record))
        builder._write_pending()
    builder.finish()
    builder.close()
    return disk


def add(sequence: int, *, queue: int = 1, transaction: int = 0, body: bytes = b"x") -> AddRecord:
    return AddRecord((Place(queue, sequence),), b"a:b\n", body, 5, transaction=transaction)


def commit_of(*records: Record, transaction: int) -> CommitRecord:
    encoded = [encode_record(record) for record in records]
    return CommitRecord(transaction, len(encoded), digest_members(encoded))


def spoil(disk: MemoryDisk, block: int) -> None:
    """Flip a bit of a block of the first file; blocks are 4096 bytes long here."""
    disk.flip(OLD / "activemq-data-1.hq", 4096 * (block + 1) + 70, 2)


# --- a good journal -------------------------------------------------------------------------------


def test_of_a_good_journal_nothing_is_lost(disk: MemoryDisk):
    report = salvage(disk)
    assert report.losses == ()
    assert recover_live(disk, NEW) == recover_live(disk, OLD)
    assert core_counts(disk, NEW) == core_counts(disk, OLD)
    assert read_journal(NEW, disk=disk).finding is Finding.GOOD
    assert report.live_messages == read_journal(OLD, disk=disk).live_messages


def test_only_what_is_needed_is_written(disk: MemoryDisk):
    salvage(disk)
    types = read_journal(NEW, disk=disk).records_by_type
    assert set(types) <= {"ADD", "COUNT", "QUEUES", "FILES", "SEAL", "99"}
    assert any(b"type@99" in line for line in export_lines(NEW, disk))


def test_sequences_are_not_used_twice_after_it(disk: MemoryDisk):
    async def live(place: Path) -> list[int]:
        journal = await open_memory(place, disk)
        tails = [journal.core.queue_statistics(queue_id).tail for queue_id in (1, 2)]
        await journal.close()
        return tails

    with locked_elsewhere(OLD, disk) as place:
        before = product_loop.run(live(place))
    salvage(disk)
    with locked_elsewhere(NEW, disk) as place:
        assert product_loop.run(live(place)) == before


# --- damage ---------------------------------------------------------------------------------------


def test_around_a_bad_block_all_is_saved():
    disk = built([add(1)], [add(2)], [add(3)])
    spoil(disk, 1)
    with pytest.raises(JournalError):
        recover_live(disk, OLD)
    report = salvage(disk)
    assert recover_live(disk, NEW) == {(1, 1), (1, 3)}
    (loss,) = report.losses
    assert (loss.file, loss.offset, loss.end) == ("activemq-data-1.hq", 8192, 12288)
    assert (loss.first_sequence, loss.last_sequence) == (2, 2)
    assert "checksum" in loss.what


def test_a_lost_acknowledgement_brings_its_message_back():
    disk = built([add(1), add(2)], [AckRecord(1, (SequenceRange(1, 1),))], [add(3)])
    spoil(disk, 1)
    salvage(disk)
    assert recover_live(disk, NEW) == {(1, 1), (1, 2), (1, 3)}


def test_a_lost_file_header_is_a_loss_and_the_others_are_read(disk: MemoryDisk):
    for path in list(disk.files):
        if path.name == "activemq-data-1.hq":
            disk.files[path].data[:512] = b"\xff" * 512
    report = salvage(disk)
    assert report.losses[0].file == "activemq-data-1.hq"
    assert report.blocks > 0
    assert read_journal(NEW, disk=disk).finding is Finding.GOOD


@pytest.mark.parametrize("at", [0, 8, 10, 33, 41, 45, 60, 300, 508, 511])
def test_one_damaged_byte_of_a_file_header_is_mended(disk: MemoryDisk, at: int):
    before = recover_live(disk, OLD)
    header = disk.files[OLD / "activemq-data-1.hq"].data
    header[at] ^= 0x5A
    with pytest.raises(JournalError):
        recover_live(disk, OLD)
    report = salvage(disk)
    assert [(loss.file, loss.end) for loss in report.losses] == [("activemq-data-1.hq", 4096)]
    assert "mended" in report.losses[0].what
    assert recover_live(disk, NEW) == before


class Whereabouts(LiveMessages):
    """Also keeps the block of each live message that was sent outside of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[tuple[int, int], tuple[int, range]] = {}

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        for _, record in self.decode(offset, block):
            if isinstance(record, AddRecord) and not record.transaction:
                at = range(offset, offset + len(block))
                self.blocks |= {tuple(place): (file_id, at) for place in record.places}
        return super().restore_block(file_id, offset, block)


@pytest.mark.parametrize("case", range(8))
def test_any_damage_is_survived_and_said(disk: MemoryDisk, case: int):
    """Confirmed messages that stand in good blocks are saved, whatever else is broken."""
    chance = random.Random(seed_for(f"salvage {case}"))
    before = Whereabouts()
    recover(disk, OLD, before)
    used = [file for file in read_journal(OLD, disk=disk).files if file.state == "used"]
    hit: set[tuple[int, int]] = set()
    for _ in range(chance.randrange(1, 5)):
        file = chance.choice(used)
        data = disk.files[OLD / file.name].data
        at = chance.randrange(4096, min(4096 + file.used_bytes, len(data) - 600))
        data[at : at + 600] = chance.randbytes(600)
        hit |= {(file.file_id, at), (file.file_id, at + 599)}
    good = {
        place
        for place, (file_id, block) in before.blocks.items()
        if place in before.live and not any(f == file_id and at in block for f, at in hit)
    }
    report = salvage(disk)
    after = recover_live(disk, NEW)
    # Good: padding alone was hit, or the tail, which a power cut may have torn as well.
    assert report.losses or read_journal(OLD, disk=disk).finding is Finding.GOOD
    assert good <= after
    assert read_journal(NEW, disk=disk).finding is Finding.GOOD


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_without_commit_is_reported_and_taken_only_if_asked():
    blocks = [[add(1), add(2, transaction=9), add(3, transaction=9)]]
    disk = built(*blocks)
    report = salvage(disk)
    assert report.uncommitted == {9: 2}
    assert recover_live(disk, NEW) == {(1, 1)}
    disk = built(*blocks)
    report = salvage(disk, includes_uncommitted=True)
    assert report.uncommitted == {9: 2}
    assert recover_live(disk, NEW) == {(1, 1), (1, 2), (1, 3)}


def test_a_committed_transaction_counts_with_what_is_left_of_it():
    members = [add(n, transaction=9) for n in (1, 2, 3)]
    disk = built([members[0]], [members[1]], [members[2]], [commit_of(*members, transaction=9)])
    spoil(disk, 1)
    report = salvage(disk)
    assert report.incomplete == (9,)
    assert recover_live(disk, NEW) == {(1, 1), (1, 3)}


def test_a_prepared_branch_is_copied_as_it_is():
    members: list[Record] = [add(2, transaction=9), AckRecord(1, (SequenceRange(1, 1),), 9)]
    end = commit_of(*members, transaction=9)
    prepare = PrepareRecord(9, end.members, end.digest, b"name of the branch")
    disk = built([add(1)], [*members, prepare])
    report = salvage(disk)
    assert report.prepared == (9,)
    again = read_journal(NEW, disk=disk)
    assert again.prepared_transactions == (9,)
    assert again.live_messages == {1: 1}
    lines = [line for line in export_lines(NEW, disk) if b"txID@9" in line or b"type@8" in line]
    old = [line for line in export_lines(OLD, disk) if b"txID@9" in line or b"type@8" in line]
    assert lines == old
    assert len(lines) == 3


def test_other_records_of_a_committed_transaction_stand_alone_afterwards():
    duplicate = DuplicateRecord("orders", (DuplicateId(1, b"id-1"),), 9)
    members: list[Record] = [duplicate, add(1, transaction=9)]
    lost = DuplicateRecord("orders", (DuplicateId(2, b"id-2"),), 10)
    disk = built([*members, commit_of(*members, transaction=9), lost, general_record(77, b"abc")])
    report = salvage(disk)
    assert report.uncommitted == {10: 1}
    alone = encode_record(duplicate._replace(transaction=0))
    expected = [TextWriter().record(raw_record(r)) for r in (alone, general_record(77, b"abc"))]
    lines = export_lines(NEW, disk)
    assert all(line in lines for line in expected)
    assert not any(b"type@11,flags@1" in line for line in lines)
    assert recover_live(disk, NEW) == {(1, 1)}


def test_nothing_of_a_branch_that_was_rolled_back_is_taken():
    members: list[Record] = [DuplicateRecord("orders", (DuplicateId(1, b"id"),), 9)]
    members.append(add(1, transaction=9))
    end = commit_of(*members, transaction=9)
    rollback = RollbackRecord(9, end.members, end.digest)
    disk = built([*members, PrepareRecord(9, end.members, end.digest, b"name"), rollback, add(2)])
    report = salvage(disk)
    assert (report.prepared, report.uncommitted) == ((), {})
    assert recover_live(disk, NEW) == {(1, 2)}
    types = read_journal(NEW, disk=disk).records_by_type
    assert set(types) == {"ADD", "QUEUES", "FILES", "SEAL"}


def test_numbers_of_messages_that_are_gone_are_not_given_again():
    disk = built([add(1), add(2), AckRecord(1, (SequenceRange(1, 2),))])
    salvage(disk)
    live = LiveSet()
    read_journal(NEW, disk=disk, live=live)
    assert live.tails == {1: 3}


# --- undelete -------------------------------------------------------------------------------------


def test_acknowledged_messages_come_back_only_if_asked():
    blocks = [[add(1), add(2)], [AckRecord(1, (SequenceRange(1, 1),)), CountRecord(1, 3, 2)]]
    disk = built(*blocks)
    salvage(disk)
    assert recover_live(disk, NEW) == {(1, 2)}
    assert read_journal(NEW, disk=disk).records_by_type["COUNT"] == 1
    disk = built(*blocks)
    salvage(disk, includes_acknowledged=True)
    assert recover_live(disk, NEW) == {(1, 1), (1, 2)}


def test_files_that_were_freed_are_searched_too():
    disk = MemoryDisk()
    write_freed_files(OLD, disk)
    assert any(file.state == "free" and file.file_id for file in read_journal(OLD, disk=disk).files)
    plain = salvage(disk.copy())
    report = salvage(disk, includes_acknowledged=True)
    assert report.files_read > plain.files_read
    assert recover_live(disk, NEW) > recover_live(disk, OLD)
    assert read_journal(NEW, disk=disk).finding is Finding.GOOD


def test_of_several_places_only_the_live_ones_are_kept():
    message = AddRecord((Place(1, 1), Place(2, 7)), b"a:b\n", b"body", 5, priority=8)
    disk = built([message, AckRecord(1, (SequenceRange(1, 1),))])
    salvage(disk)
    assert recover_live(disk, NEW) == {(2, 7)}
    (line,) = [line for line in export_lines(NEW, disk) if b"operation@Add," in line]
    assert b"queue@2:7," in line
    assert b"priority@8," in line


# --- bindings and refusals ------------------------------------------------------------------------


def test_bindings_are_saved_and_completed():
    disk = MemoryDisk()
    builder = JournalBuilder(OLD, BINDINGS_FORM, FILE_BYTES, disk, journal_id=bytes(16))
    for key in ("a", "b", "c"):
        builder.add(encode_record(PutRecord(key, b'{"v":1}')))
        builder._write_pending()
    builder.finish()
    builder.close()
    disk.flip(OLD / "activemq-bindings-1.bindings", 8192 + 70, 1)
    seen = {}

    def complete(saved: dict[str, bytes], has_losses: bool) -> dict[str, bytes]:
        seen.update(saved)
        assert has_losses
        return {"d": b"2", "a": b"3"}

    report = salvage(disk, form=BINDINGS_FORM, complete=complete)
    assert set(seen) == {"a", "c"}
    assert report.bindings == {"a": b"3", "c": b'{"v":1}', "d": b"2"}
    assert read_journal(NEW, form=BINDINGS_FORM, disk=disk).bindings == 3


def test_a_folder_with_anything_in_it_is_refused(disk: MemoryDisk):
    disk.create(NEW / "activemq-data-1.hq", is_direct=False).close()
    with pytest.raises(StorageError, match="empty or a new folder"):
        salvage(disk)
    assert disk.names(NEW) == ["activemq-data-1.hq"]


def test_of_every_image_that_a_power_cut_leaves_all_live_messages_are_saved():
    disk = MemoryDisk()
    write_journal(OLD, disk, turns=4, is_closed=False)
    first, images = seed_for("salvage cuts") % 6, 0
    cuts = crash_images(disk.log, seed=seed_for("salvage images"), subsets_max=2, torn_max=1)
    for image in itertools.islice(cuts, first, None, 6):
        try:
            live = recover_live(image.disk, OLD)
        except JournalError:
            continue  # the cut lay in the making of a file
        salvage(image.disk)
        assert live <= recover_live(image.disk, NEW), image.label
        images += 1
    assert images > 20

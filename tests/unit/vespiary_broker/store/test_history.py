"""Kept copies read back: what was committed, each message once, and damage is named."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.store.history import History, _Ranges
from vespiary_broker.store.options import RetentionOptions
from vespiary_broker.store.retention_folder import copy_name, parse_name
from vespiary_codec.journal.block import BlockHeader, encode_block
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord
from vespiary_codec.journal.file_header import (
    FileHeader,
    FileState,
    JournalKind,
    encode_file_header,
)
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    Record,
    SealRecord,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import CorruptRecord, JournalError
from vespiary_testkit.faulty_disk import Inode, MemoryDisk
from vespiary_testkit.journal_workload import Client, open_memory, run, until
from vespiary_testkit.seeds import seed_for

KEPT = Path("/kept")
SIZE = 64 * 1024


def add(sequence: int, transaction: int = 0, queue: int = 1) -> AddRecord:
    return AddRecord(
        (Place(queue, sequence),), b"a:b\n", b"%d" % sequence, 1000 + sequence,
        transaction=transaction,
    )  # fmt: skip


def commit(transaction: int, *members: Record) -> CommitRecord:
    digest = digest_members([encode_record(member) for member in members])
    return CommitRecord(transaction, len(members), digest)


class Shelf:
    """A folder of copies, written by the codec alone: one block for each list of records."""

    def __init__(self, journal_id: bytes = b"j" * 16) -> None:
        self.disk = MemoryDisk()
        self.sequence = 0
        self.crc = 0
        self.journal_id = journal_id

    def put(self, file_id: int, *blocks: list[Record], is_sealed: bool = True) -> Path:
        header = FileHeader(
            state=FileState.ACTIVE, kind=JournalKind.MESSAGE, journal_id=self.journal_id,
            file_id=file_id, salt=5, size_bytes=SIZE, activated_ms=1,
        )  # fmt: skip
        data = bytearray(SIZE)
        head = encode_file_header(header)
        data[: len(head)] = head
        offset = 4096
        for records in [*blocks, [SealRecord()]] if is_sealed else blocks:
            self.sequence += 1
            parts = [encode_record(record) for record in records]
            payload = b"".join(part + bytes(-len(part) % 8) for part in parts)
            block = encode_block(
                BlockHeader(
                    sequence=self.sequence, file_id=file_id, watermark=0,
                    payload_bytes=len(payload), records=len(records), previous_crc=self.crc,
                    time_ms=self.sequence * 10, flags=int(records == [SealRecord()]),
                ),
                payload, salt=5, offset=offset,
            )  # fmt: skip
            self.crc = int.from_bytes(block[44:48], "little")
            data[offset : offset + len(block)] = block
            offset += -(-len(block) // 4096) * 4096
        path = KEPT / copy_name(file_id * 1000, file_id)
        self.disk.files[path] = Inode(file_id, data)
        return path

    def lose(self) -> None:
        """Have blocks that no copy holds."""
        self.sequence += 3

    def history(self) -> History:
        return History(KEPT, self.disk, block_verifier())  # type: ignore[arg-type]

    def read(self) -> list[int]:
        self.last = self.history()
        return [int(message.body) for message in self.last.messages()]


def test_messages_come_in_order_whatever_became_of_them():
    shelf = Shelf()
    shelf.put(1, [add(1), add(2)], [AckRecord(1, (SequenceRange(1, 2),))])
    shelf.put(2, [add(3)])
    assert shelf.read() == [1, 2, 3]
    counts = shelf.last.counts
    assert (counts.files, counts.messages, counts.gaps) == (2, 3, 0)
    assert (counts.first_ms, counts.last_ms) == (10, 50)


def test_members_count_with_their_commit_and_where_it_stands():
    shelf = Shelf()
    members = [add(1, 7), AckRecord(1, (SequenceRange(9, 1),), 7)]
    ids = DuplicateRecord("a", (DuplicateId(1, b"x"),), 7)
    shelf.put(1, [*members, ids], [add(2)])
    shelf.put(2, [commit(7, *members, ids)], [add(3)])
    assert shelf.read() == [2, 1, 3]
    assert shelf.last.counts.void == 0


@pytest.mark.parametrize(
    "end",
    [
        [],
        [CommitRecord(7, 2, 0)],
        [commit(8, add(1, 8))],
        [RollbackRecord(7, 1, 0)],
    ],
)
def test_members_without_a_valid_commit_are_not_replayed(end: list[Record]):
    shelf = Shelf()
    shelf.put(1, [add(1, 7)], [*end, add(2)])
    assert shelf.read() == [2]
    assert shelf.last.counts.void == 1


def test_a_prepared_branch_counts_with_its_commit():
    shelf = Shelf()
    members = [add(1, 7), add(2, 7)]
    digest = digest_members([encode_record(member) for member in members])
    shelf.put(1, [*members, PrepareRecord(7, 2, digest, b"")], [add(3)])
    shelf.put(2, [CommitRecord(7, 2, digest)])
    assert shelf.read() == [3, 1, 2]


def test_a_number_that_a_void_message_had_may_be_used_again():
    shelf = Shelf()
    shelf.put(1, [add(1, 7)], [add(1)])
    assert shelf.read() == [1]
    assert (shelf.last.counts.void, shelf.last.counts.repeated) == (1, 0)


def test_a_message_that_was_moved_is_given_once():
    shelf = Shelf()
    shelf.put(1, [add(1), add(2)])
    shelf.put(2, [add(1), add(3), add(2)])
    assert shelf.read() == [1, 2, 3]
    assert shelf.last.counts.repeated == 2


def test_a_transaction_that_a_missing_copy_cut_is_given_as_far_as_it_is_there():
    shelf = Shelf()
    members = [add(1, 7), add(2, 7)]
    shelf.put(1, [add(9, 0, queue=2)])
    shelf.lose()
    shelf.put(3, [members[1], commit(7, *members)])
    assert shelf.read() == [9, 2]
    assert shelf.last.counts.gaps == 1


def test_a_history_may_begin_in_the_middle_of_a_transaction():
    shelf = Shelf()
    members = [add(1, 7), add(2, 7)]
    shelf.lose()
    shelf.put(4, [members[1], commit(7, *members)], [add(3)])
    assert shelf.read() == [2, 3]
    assert shelf.last.counts.gaps == 0


def test_damage_is_named_with_file_and_offset():
    shelf = Shelf()
    path = shelf.put(1, [add(1)], [add(2)])
    shelf.disk.flip(path, 8192 + 70, 1)
    with pytest.raises(CorruptRecord, match=f"{path}:8192"):
        shelf.read()


def test_a_copy_without_its_seal_is_damaged():
    shelf = Shelf()
    shelf.put(1, [add(1)], is_sealed=False)
    with pytest.raises(CorruptRecord):
        shelf.read()


def test_an_empty_folder_and_two_journals_are_refused():
    shelf = Shelf()
    with pytest.raises(JournalError, match="no kept copies"):
        shelf.read()
    shelf.put(1, [add(1)])
    shelf.journal_id = b"k" * 16
    shelf.put(2, [add(2)])
    with pytest.raises(JournalError, match="several journals"):
        shelf.read()


@given(st.lists(st.integers(0, 30)))
def test_ranges_are_a_set(numbers: list[int]):
    ranges, known = _Ranges(), set()
    for number in numbers:
        assert ranges.add(number) == (number not in known)
        known.add(number)
    assert len(ranges._starts) == len({n for n in known if n - 1 not in known})


@run
async def test_what_a_journal_confirmed_is_in_its_history(tmp_path: Path):
    """A real life: sends, transactions, acknowledgements, reclaim; nothing written on reading."""
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, retention=RetentionOptions(directory=KEPT))
    client = Client(journal, disk, 1)
    chance = random.Random(seed_for("history"))
    for _ in range(40):
        await client.send(1)
        if chance.random() < 0.3:
            await client.send_transaction(2)
        await client.receive()
        await client.acknowledge(len(client.held))
        await asyncio.sleep(0)
    current = journal.core.current_file()
    await until(
        lambda: (
            {p[1] for path in disk.files if (p := parse_name(path.name))} >= set(range(1, current))
        )
    )
    await journal.close()
    marks = [op.name.split() for op in disk.log if op.kind == "mark"]
    confirmed = {(int(m[1]), int(m[2])) for m in marks if m[0] == "confirmed"}
    before = len(disk.log)
    history = History(KEPT, disk, block_verifier())
    found = [place for message in history.messages() for place in message.places]
    assert len(found) == len(set(found))
    assert set(found) <= confirmed
    assert len(found) > len(confirmed) * 0.7, "all but those of the last file"
    assert {op.kind for op in disk.log[before:]} <= {"open", "mark"}

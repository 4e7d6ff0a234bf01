"""The tools' live set says what the core says, also on what a power cut leaves."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.reader import read_journal
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    Record,
    SequenceRange,
    digest_members,
    encode_record,
    general_record,
)
from vespiary_spec.errors import JournalError
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.journal_blocks import Story
from vespiary_testkit.journal_records import write_journal
from vespiary_testkit.journal_workload import FILE_BYTES, QUEUES, new_core, recover
from vespiary_testkit.seeds import seed_for

FOLDER = Path("/journal")


@pytest.fixture(scope="module")
def disk() -> MemoryDisk:
    made = MemoryDisk()
    write_journal(FOLDER, made, turns=9, is_closed=False)
    return made


def core_of(disk: MemoryDisk):
    core = new_core()
    found = recover(disk, FOLDER, core)
    core.restore_done()
    return core, found


def check_against_core(disk: MemoryDisk) -> None:
    core, found = core_of(disk)
    live = LiveSet()
    recover(disk, FOLDER, live)
    for queue_id in QUEUES:
        assert live.live_messages.get(queue_id, 0) == core.queue_statistics(queue_id).ready
    tails = live.tails
    assert {q: tails.get(q, 1) for q in QUEUES} == {
        q: core.queue_statistics(q).tail for q in QUEUES
    }
    for file in found.used:
        count = live.files[file.file_id]
        assert count.live_places == core.live_places(file.file_id), file.file_id
        assert sorted(count.cancels) == sorted(core.cancels(file.file_id)), file.file_id


def test_a_journal(disk: MemoryDisk):
    check_against_core(disk)


def test_what_a_power_cut_leaves(disk: MemoryDisk):
    first, images = seed_for("live set cuts") % 4, 0
    cuts = crash_images(disk.log, seed=seed_for("live set images"), subsets_max=2, torn_max=1)
    for image in itertools.islice(cuts, first, None, 4):
        try:
            check_against_core(image.disk)
        except JournalError:
            continue  # the cut lay in the making of a file
        images += 1
    assert images > 60


class Feed(Story):
    """A journal told block by block to a live set and to a core, as far as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.live: Any = LiveSet()
        self.core: Any = new_core()

    def file(self, file_id: int) -> None:
        super().file(file_id)
        self._feed()

    def block(self, *records: bytes | Record, gap: int = 0) -> None:
        super().block(*records, gap=gap)
        self._feed()

    def _feed(self) -> None:
        for sink in (self.live, self.core):
            self.steps[-1].tell(sink)

    def check(self, live: dict[int, int]) -> None:
        self.core.restore_done()
        ready = {q: self.core.queue_statistics(q).ready for q in QUEUES}
        assert ready == {q: live.get(q, 0) for q in QUEUES}
        assert self.live.live_messages == live


def member(number: int, transaction: int = 5) -> bytes:
    return encode_record(AddRecord((Place(1, number),), b"", b"x", 1, transaction=transaction))


def commit(*members: bytes, transaction: int = 5) -> CommitRecord:
    return CommitRecord(transaction, len(members), digest_members(members))


@pytest.mark.parametrize("where", ["before a member", "before the commit", "nowhere"])
def test_a_commit_with_fewer_members_counts_where_a_file_was_reclaimed(where: str):
    feed = Feed()
    feed.file(1)
    feed.block(AddRecord((Place(2, 1),), b"", b"y", 1))
    first, second = member(1), member(2)
    if where == "before a member":
        feed.file(3)
        feed.block(second, gap=4)
        feed.block(commit(first, second))
    elif where == "before the commit":
        feed.block(second)
        feed.file(3)
        feed.block(commit(first, second), gap=4)
    else:
        feed.block(second)
        feed.block(commit(first, second))
    feed.check({2: 1} if where == "nowhere" else {1: 1, 2: 1})
    assert feed.live.voided_transactions == (where == "nowhere")


def test_the_later_record_of_a_place_counts():
    feed = Feed()
    feed.file(1)
    feed.block(AddRecord((Place(1, 7), Place(2, 3)), b"", b"one", 10))
    feed.file(2)
    feed.block(AddRecord((Place(1, 7),), b"", b"one", 10))
    feed.check({1: 1, 2: 1})
    assert [feed.live.files[n].live_places for n in (1, 2)] == [1, 1]
    assert feed.live.is_live(1, 7, 2, 4096 + 64)
    assert not feed.live.is_live(1, 7, 1, 4096 + 64)
    assert {(p.queue_id, p.sequence, p.file_id) for p in feed.live.places()} == {
        (1, 7, 2),
        (2, 3, 1),
    }


def test_a_prepared_branch_waits_for_its_outcome():
    live = LiveSet()
    live.restore_file(1, 1, FILE_BYTES)
    feed = Feed()
    feed.core = live  # the core's own tests know branches; here alone the tools' set is asked
    feed.live = LiveSet()
    feed.file(1)
    members = [member(1), member(2)]
    end = encode_record(commit(*members))
    prepare = bytes([*end[:4], 8, *end[5:]])
    feed.block(*members, prepare)
    assert feed.live.live_messages == {}
    assert feed.live.voided_transactions == 0
    assert feed.live.transactions[5].is_prepared
    feed.block(commit(*members))
    assert feed.live.live_messages == {1: 2}
    feed.block(
        member(3, 6),
        bytes([*encode_record(commit(member(3, 6), transaction=6))[:4], 8])
        + encode_record(commit(member(3, 6), transaction=6))[5:],
    )
    feed.block(
        bytes([*encode_record(commit(member(3, 6), transaction=6))[:4], 9])
        + encode_record(commit(member(3, 6), transaction=6))[5:]
    )
    assert feed.live.live_messages == {1: 2}
    assert not feed.live.transactions


def test_what_was_acknowledged_can_be_counted_too():
    live = LiveSet(counts_acknowledged=True)
    feed = Feed()
    feed.live = live
    feed.file(1)
    feed.block(AddRecord((Place(1, 1),), b"", b"y", 1), AckRecord(1, (SequenceRange(1, 1),)))
    assert live.live_messages == {1: 1}
    assert live.tails == {1: 2}


def test_unknown_records_are_counted_and_change_nothing():
    feed = Feed()
    feed.file(1)
    feed.block(general_record(77, b"abc"), AddRecord((Place(1, 1),), b"", b"y", 1))
    feed.check({1: 1})
    assert feed.live.types == {77: 1, 1: 1}


def test_the_report_says_what_pins_a_file(disk: MemoryDisk):
    report = read_journal(FOLDER, disk=disk)
    used = [file for file in report.files if file.state == "used"]
    assert used[0].pinned_by.endswith("live messages")
    assert used[0].oldest is not None
    assert report.oldest == used[0].oldest
    assert (report.oldest.file, report.oldest.sequence) == (used[0].name, 1)
    assert report.live_bytes == sum(file.live_bytes for file in used)
    expected = 100 * report.live_bytes / sum(file.size_bytes for file in used)
    assert abs(report.live_percent - expected) < 0.1
    assert all(file.last_time_ms >= file.activated_ms > 0 for file in used)

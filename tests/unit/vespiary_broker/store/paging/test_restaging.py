"""Pages are named again while that frees files, the oldest first, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store.paging.restaging import PINNED_MAX, RESTAGED_MAX, Restaging
from vespiary_codec.journal.page import PAGE_BIT
from vespiary_native.abc import NoRoom
from vespiary_native.values import ImageStatistics
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import run, until
from vespiary_testkit.paging_rig import PagingClient, PagingRig

RECORD_BYTES = 1024
NO_STATISTICS = ImageStatistics(**dict.fromkeys(ImageStatistics._fields, 0))


class FakeJournal:
    """A journal in which nothing lives but records of pages, and acknowledgements in pages.

    Attributes:
        each: Records that a file takes.
        record_of: The file with each page's latest record.
        acknowledged: Pages in which a file's acknowledgements end places.
        messages: Live messages of a file.
        written: Records written, those of no page included.
        named: Records written by `page_restage`.
        room: Records for which there is room.
        is_between: The last file is full, and there is no next one yet.
    """

    def __init__(self, pages: int, each: int) -> None:
        self.each = each
        self.record_of = {page: 1 + page // each for page in range(pages)}
        self.acknowledged: dict[int, set[int]] = {}
        self.messages: dict[int, int] = {}
        self.written = pages
        self.room = 1 << 40
        self.is_between = False
        self.named = 0

    @property
    def filling(self) -> int:
        return 1 + self.written // self.each

    def current_file(self) -> int:
        return 0 if self.is_between else self.filling

    def active_ids(self) -> list[int]:
        used = {*self.record_of.values(), *self.acknowledged, *self.messages, self.filling}
        return sorted(used)

    def pages_in(self, file_id: int) -> list[int]:
        return [page for page, file in self.record_of.items() if file == file_id]

    def live_places(self, file_id: int) -> int:
        return len(self.pages_in(file_id)) + self.messages.get(file_id, 0)

    def cancels(self, file_id: int) -> list[int]:
        return [3, *(page | PAGE_BIT for page in self.acknowledged.get(file_id, ()))]

    def page_restage(self, page_id: int) -> int:
        if not self.room:
            raise NoRoom("no room")
        self.room -= 1
        self.named += 1
        self.record_of[page_id] = self.filling
        self.written += 1
        for pages in self.acknowledged.values():
            pages.discard(page_id)
        self.acknowledged = {file: pages for file, pages in self.acknowledged.items() if pages}
        return self.written

    def size_of(self, file_id: int) -> int:
        return self.each * RECORD_BYTES

    def image_statistics(self) -> ImageStatistics:
        return NO_STATISTICS._replace(payload_bytes=self.named * RECORD_BYTES)

    def roll(self, files: int = 1) -> None:
        """Fill some files with what is of no page, and does not live."""
        self.written = (self.filling - 1 + files) * self.each


def finish(restaging: Restaging) -> int:
    """Return how many steps it takes until nothing is named again."""
    steps = 0
    while restaging.step(()):
        steps += 1
        assert steps < 1000, "it goes on for ever"
    return steps


def test_records_that_fill_many_files_are_written_once_again_and_then_left_alone() -> None:
    journal = FakeJournal(pages=1000, each=100)
    restaging = Restaging(journal, journal)
    assert finish(restaging) == -(-1000 // RESTAGED_MAX)
    assert journal.written == 2000
    for _ in range(3):
        journal.roll()
        assert not restaging.step(()), "as many files as the records need"
    assert journal.written < 2500


def test_many_more_files_than_records_need_are_a_reason_to_begin_again() -> None:
    journal = FakeJournal(pages=1000, each=100)
    restaging = Restaging(journal, journal)
    finish(restaging)
    journal.acknowledged = {journal.filling + number: {500} for number in range(40)}
    journal.roll(41)
    assert finish(restaging) > 0
    assert not journal.acknowledged
    assert len(journal.active_ids()) <= 12


def test_what_others_write_in_between_does_not_count_as_needed() -> None:
    journal = FakeJournal(pages=2000, each=500)
    restaging = Restaging(journal, journal)
    steps = 0
    while restaging.step(()):
        steps += 1
        if journal.named < 2000:
            journal.roll()
    assert steps > 2 * (2000 // RESTAGED_MAX), "they stood in a file for each step, all but empty"
    assert len(journal.active_ids()) <= 6
    assert journal.named <= 4000


def test_when_records_end_few_files_are_a_reason() -> None:
    journal = FakeJournal(pages=1000, each=100)
    restaging = Restaging(journal, journal)
    finish(restaging)
    journal.record_of = {}
    journal.roll()
    assert not restaging.step(())
    journal.record_of = {1: journal.filling, 2: journal.filling + 1, 3: journal.filling + 2}
    journal.roll(4)
    assert restaging.step(())
    assert len(journal.active_ids()) == 1


def test_files_that_are_kept_for_few_pages_go() -> None:
    journal = FakeJournal(pages=10, each=1)
    journal.each = 1000
    journal.roll(20)
    restaging = Restaging(journal, journal)
    assert restaging.step(())
    assert not restaging.step(())
    assert journal.active_ids() == [journal.filling]
    journal.acknowledged = {2: {1}, 3: {2}, 4: {3}}
    assert restaging.step(())
    assert not journal.acknowledged


def test_few_files_are_left_alone() -> None:
    journal = FakeJournal(pages=PINNED_MAX, each=1)
    assert not Restaging(journal, journal).step(())
    assert journal.written == PINNED_MAX


def test_files_that_messages_keep_are_left_alone() -> None:
    journal = FakeJournal(pages=400, each=100)
    journal.messages = {2: 1, 3: 1}
    restaging = Restaging(journal, journal)
    assert not restaging.step(())
    del journal.messages[2]
    assert restaging.step(())


def test_a_step_names_so_many_pages_the_oldest_file_first_and_none_that_is_done() -> None:
    journal = FakeJournal(pages=400, each=100)
    journal.record_of = {399 - page: file for page, file in journal.record_of.items()}
    restaging = Restaging(journal, journal)
    assert restaging.step({300, 301})
    assert journal.written == 400 + RESTAGED_MAX
    moved = [page for page, file in journal.record_of.items() if file > 4]
    assert sorted(moved) == list(range(302, 302 + RESTAGED_MAX))


def test_without_room_it_goes_on_later() -> None:
    journal = FakeJournal(pages=400, each=100)
    restaging = Restaging(journal, journal)
    journal.room = 10
    with pytest.raises(NoRoom):
        restaging.step(())
    journal.room = 1 << 40
    finish(restaging)
    assert journal.written == 800
    assert min(journal.record_of.values()) == 5


def test_what_comes_while_a_cycle_is_under_way_waits_for_the_next() -> None:
    journal = FakeJournal(pages=400, each=100)
    restaging = Restaging(journal, journal)
    while restaging.step(()):
        page = max(journal.record_of) + 1
        journal.record_of |= {page + number: journal.filling for number in range(RESTAGED_MAX)}
        journal.roll()
        assert page < 400 * 4, "it never ends"


def test_between_two_files_nothing_is_concluded() -> None:
    journal = FakeJournal(pages=1000, each=100)
    restaging = Restaging(journal, journal)
    finish(restaging)
    journal.is_between = True
    assert not restaging.step(())
    journal.is_between = False
    assert not restaging.step(())
    assert journal.written == 2000


@run
async def test_old_files_go_while_new_ones_fill(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    rig.address.page_bytes //= 2
    client = PagingClient(rig, 1)

    async def page(rounds: int) -> None:
        for _ in range(rounds):
            await client.send(20)
            await rig.move_all()

    await page(40)
    assert rig.pager.statistics().pages > RESTAGED_MAX
    began = rig.core.current_file()
    for _ in range(16):
        filling = rig.core.current_file()
        rig.pager._restage()
        while rig.core.current_file() <= filling:
            await page(1)
    active = rig.journal.readable.active_ids()
    assert not any(rig.core.pages_in(file_id) for file_id in active if file_id < began)
    await until(lambda: rig.journal.readable.active_ids()[0] >= began)
    await rig.close()

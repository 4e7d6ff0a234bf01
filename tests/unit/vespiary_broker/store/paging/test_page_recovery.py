"""What a start makes of the paging folder: each line of the table."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from vespiary_broker.store.paging.folders import PageFolders, page_name, unfinished_name
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_broker.store.paging.page_recovery import remove_leftovers, survey_pages
from vespiary_spec.errors import ForeignJournal, NativeError, PageDamaged
from vespiary_testkit.faulty_disk import Inode, MemoryDisk
from vespiary_testkit.page_builder import JOURNAL_ID, SALT, build_page, messages, parts_of

ROOT = Path("/paging")


def page_files(disk: MemoryDisk) -> PageFiles:
    return PageFiles(PageFolders(ROOT, disk), disk, journal_id=JOURNAL_ID)


def written(files: PageFiles, page_id: int, address: str = "orders") -> PageFile:
    page = build_page(messages(3), page_id=page_id)
    return files.write(address, page_id, SALT, 5, parts_of(page))


def test_pages_that_the_journal_names_are_found_in_all_folders() -> None:
    files = page_files(MemoryDisk())
    one, two = written(files, 1), written(files, 2, "a/b")
    found = survey_pages(files, {1: SALT, 2: SALT})
    assert found.pages == {1: one, 2: two}
    assert (found.leftovers, found.odd, found.highest_id) == ([], [], 2)


def test_nothing_lies_there_and_nothing_is_named() -> None:
    found = survey_pages(page_files(MemoryDisk()), {})
    assert (found.pages, found.highest_id) == ({}, 0)


def test_what_a_crash_left_is_removed_and_nothing_else() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files, 1)
    written(files, 7)
    folder = files.folders.path("orders")
    for name in (unfinished_name(9), "notes.txt", page_name(4)):
        disk.files[folder / name] = Inode(100, bytearray(b"x"))
    found = survey_pages(files, {1: SALT})
    assert found.leftovers == [folder / page_name(7), folder / unfinished_name(9)]
    assert found.odd == [folder / page_name(4)]
    assert found.highest_id == 9
    assert remove_leftovers(files, found) == 2
    assert {path.name for path in disk.files} == {
        "address",
        "notes.txt",
        page_name(1),
        page_name(4),
    }


def test_a_leftover_that_cannot_be_removed_stays() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files, 1)
    found = survey_pages(files, {})
    disk.fail = lambda what, _: errno.EROFS if what == "remove" else 0
    assert remove_leftovers(files, found) == 0
    assert files.path("orders", 1) in disk.files


def test_a_missing_page_stops_the_start() -> None:
    files = page_files(MemoryDisk())
    written(files, 1)
    with pytest.raises(PageDamaged, match="missing") as caught:
        survey_pages(files, {1: SALT, 5: SALT})
    assert caught.value.where == f"{ROOT}/*/{page_name(5)}"
    assert "mounted" in caught.value.cure


def test_all_damaged_pages_are_told_and_the_first_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    for page_id in (1, 2, 3):
        written(files, page_id)
    disk.files[files.path("orders", 2)].data[200] ^= 4
    del disk.files[files.path("orders", 3)].data[-4096:]
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(PageDamaged, match="and 1 more of 3 pages") as caught,
    ):
        survey_pages(files, {1: SALT, 2: SALT, 3: SALT})
    assert caught.value.where == f"{files.path('orders', 2)}:4092"
    assert len(caplog.records) == 2
    assert len(disk.files) == 4


def test_a_page_of_another_journal_stops_the_start_and_is_not_removed() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files, 1)
    files.journal_id = b"k" * 16
    with pytest.raises(ForeignJournal, match="another journal"):
        survey_pages(files, {})
    assert files.path("orders", 1) in disk.files


def test_a_copy_beside_its_original_is_named() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files, 1)
    copy = files.folders.make("others") / page_name(1)
    disk.files[copy] = Inode(100, bytearray(disk.files[files.path("orders", 1)].data))
    with pytest.raises(PageDamaged, match="two files are page 1"):
        survey_pages(files, {1: SALT})


def test_a_page_in_the_folder_of_another_address_is_named() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files, 1)
    wrong = files.folders.make("others") / page_name(1)
    disk.files[wrong] = disk.files.pop(files.path("orders", 1))
    with pytest.raises(PageDamaged, match="folder of another address") as caught:
        survey_pages(files, {1: SALT})
    assert caught.value.allowed == str(files.path("orders", 1))


def test_a_file_that_cannot_be_opened_now_stops_the_start_as_that() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files, 1)
    disk.fail = lambda what, _: errno.EACCES if what == "open" else 0
    with pytest.raises(NativeError, match="cannot open"):
        survey_pages(files, {1: SALT})

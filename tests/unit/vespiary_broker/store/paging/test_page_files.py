"""Page files: whole and flushed before they have a name; nothing is left of one that failed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import SpaceLimits
from vespiary_broker.store.paging.folders import PageFolders, unfinished_name
from vespiary_broker.store.paging.page_files import (
    WRITE_BYTES_MAX,
    PageFile,
    PageFiles,
    PagePart,
)
from vespiary_broker.store.paging.verifying import verify_page
from vespiary_codec.journal.page import ADDRESS_BYTES_MAX, decode_footer
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import DiskFull, ForeignJournal, NativeError, PageDamaged
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.page_builder import (
    JOURNAL_ID,
    SALT,
    Message,
    build_page,
    messages,
    parts_of,
    whole_parts_of,
)
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.small_disk import MIB, small_disk

ROOT = Path("/paging")
PAGE = build_page(messages(30))


def page_files(disk: MemoryDisk | Disk, root: Path = ROOT, **options: object) -> PageFiles:
    return PageFiles(PageFolders(root, disk), disk, journal_id=JOURNAL_ID, **options)  # type: ignore[arg-type]


def written(files: PageFiles, page: bytes = PAGE, page_id: int = 1) -> PageFile:
    return files.write("orders", page_id, SALT, 5, parts_of(page))


def test_a_page_is_flushed_before_it_has_its_name_and_its_name_before_it_counts() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    files.folders.make("orders")
    disk.log.clear()
    page = written(files)
    kinds = [op.kind for op in disk.log]
    assert kinds == ["make", *["write"] * (kinds.count("write")), "flush", "rename", "folder"]
    path = files.path("orders", 1)
    assert page.size_bytes == len(PAGE) + 4096 == len(disk.files[path].data)
    assert bytes(disk.files[path].data[4096:]) == PAGE
    assert disk.open_files == {}


def test_messages_of_high_priority_stand_in_front_of_others() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    content = [
        Message(b"body", ((1, number),), f"n:{number}\n".encode(), priority=number % 10)
        for number in range(1, 31)
    ]
    page = files.write("orders", 1, SALT, 5, whole_parts_of(build_page(content)))
    path = files.path("orders", 1)
    assert page.highest_priority == 9
    index = decode_footer(files.read_footer(page), page_id=1, salt=SALT)
    ranks = [record.priority for record in index.records]
    assert ranks == sorted(ranks, reverse=True)
    report = verify_page(path, disk)  # with its sketch, which is one of this order
    assert report.problems == []
    assert report.places == {1: 30}


def test_no_write_is_larger_than_one_of_the_journal() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    page = bytes(3 * WRITE_BYTES_MAX + 4096)
    files.write("orders", 1, SALT, 5, [PagePart(memoryview(page), 4096)])
    assert max(len(op.data) for op in disk.log) == WRITE_BYTES_MAX
    assert len(disk.files[files.path("orders", 1)].data) == len(page) + 4096


def test_after_a_power_cut_a_page_with_a_durable_name_is_whole() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    files.folders.make("orders")
    written(files, build_page(messages(3)))
    disk.mark("written")
    disk.log.append(disk.log[-2]._replace(kind="folder"))  # one more cut, behind the mark
    path = files.path("orders", 1)
    images = whole = 0
    for image in crash_images(disk.log, seed=seed_for("page files")):
        images += 1
        if path in image.disk.files:
            whole += 1
            page = page_files(image.disk).look(path, 1, SALT)
            assert page_files(image.disk).read_footer(page)
        else:
            assert "written" not in image.marks
    assert whole
    assert images > 20


@pytest.mark.parametrize("kind", ["create", "write", "flush", "rename", "flush_folder"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_nothing_is_left_of_a_page_that_failed(kind: str, number: int) -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    folder = files.folders.make("orders")
    disk.fail = lambda what, _: number if what == kind else 0
    with pytest.raises(NativeError if number == errno.EIO else DiskFull) as caught:
        written(files)
    assert str(folder) in caught.value.where
    assert set(disk.files) == {folder / "address"}
    assert disk.open_files == {}
    disk.fail = lambda *_: 0
    written(files, page_id=2)
    assert files.path("orders", 2) in disk.files


def test_nothing_is_left_of_a_page_for_which_there_is_no_memory() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    folder = files.folders.make("orders")

    def fail(what: str, _: Path) -> int:
        if what == "write":
            raise MemoryError
        return 0

    disk.fail = fail
    with pytest.raises(MemoryError):
        written(files)
    assert set(disk.files) == {folder / "address"}, "each try would leave another file"
    assert disk.open_files == {}


def test_the_third_write_may_fail_as_well() -> None:
    disk = MemoryDisk(capacity_bytes=9000)
    with pytest.raises(DiskFull, match="the disk for pages is full"):
        written(page_files(disk))
    assert len(disk.files) == 1


def test_a_file_that_cannot_be_removed_is_left_to_the_next_start() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    disk.fail = lambda what, _: errno.EIO if what in ("flush", "remove") else 0
    folder = files.folders.path("orders")
    files.folders._made.add(folder.name)
    with pytest.raises(NativeError, match="cannot flush"):
        written(files)
    assert set(disk.files) == {folder / unfinished_name(1)}


def test_a_folder_that_was_taken_away_is_made_again() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    folder = files.folders.make("orders")
    del disk.files[folder / "address"]
    disk.fail = lambda what, _: errno.ENOENT if what == "create" else 0
    with pytest.raises(NativeError):
        written(files)
    disk.fail = lambda *_: 0
    written(files, page_id=2)
    assert folder / "address" in disk.files


@pytest.mark.parametrize(
    ("limits", "is_full"),
    [
        (SpaceLimits(90, -1), True),
        (SpaceLimits(100, -1), False),
        (SpaceLimits(98, -1), False),
        (SpaceLimits(90, 10_000), False),
        (SpaceLimits(100, 100_000), True),
    ],
)
def test_the_limits_of_the_disk_hold_for_pages(limits: SpaceLimits, *, is_full: bool) -> None:
    disk = MemoryDisk(capacity_bytes=1_000_000)
    filler = disk.create(ROOT / "filler", is_direct=False)
    filler.write(memoryview(bytes(950_000)), 0)
    files = page_files(disk, limits=limits)
    if is_full:
        with pytest.raises(DiskFull, match=r"max-disk-usage|min-disk-free"):
            written(files)
        assert set(disk.files) == {ROOT / "filler"}
    else:
        assert written(files).page_id == 1


def test_a_page_is_read_back() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    page = written(files)
    path = files.path("orders", 1)
    assert page.highest_priority == 4
    assert files.look(path, 1, SALT) == page
    header = files.read_header(path)
    assert (header.address, header.created_ms, header.journal_id) == ("orders", 5, JOURNAL_ID)
    index = decode_footer(files.read_footer(page), page_id=1, salt=SALT)
    assert [place.sequence for place in index.queues[0].places] == list(range(1, 31))
    file = files.open(page)
    assert file.size_bytes() == page.size_bytes
    file.close()
    assert disk.open_files == {}


def test_what_a_page_may_hold_is_known_from_its_header() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    page = written(files)
    sketch = files.sketches.get(1)
    assert sketch is not None
    assert sketch.names[b"destination"].only == b"orders"
    later = page_files(disk)
    assert not later.sketches.knows(1)
    later.look(files.path("orders", 1), 1, SALT)
    assert later.sketches.get(1) == sketch
    again = page_files(disk)
    again.read_sketch(page)
    assert again.sketches.get(1) == sketch
    again.remove("orders", [1])
    assert not again.sketches.knows(1)


def test_a_page_without_room_for_a_sketch_is_written_without_one() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    address = "x" * ADDRESS_BYTES_MAX
    page = files.write(address, 1, SALT, 5, parts_of(PAGE))
    assert files.look(files.path(address, 1), 1, SALT) == page
    assert files.sketches.knows(1)
    assert files.sketches.get(1) is None


def test_a_sketch_that_is_damaged_is_never_believed() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    page = written(files)
    path = files.path("orders", 1)
    whole = bytes(disk.files[path].data)
    length = len(files.read_header(path).sketch)
    files = page_files(disk)
    for at in range(64 + len("orders"), 64 + len("orders") + length):
        disk.files[path].data[at] ^= 0x10
        with pytest.raises(PageDamaged, match="checksum in the page header"):
            files.look(path, 1, SALT)
        with pytest.raises(PageDamaged, match="checksum in the page header"):
            files.read_sketch(page)
        disk.files[path].data[at] ^= 0x10
    assert len(files.sketches) == 0
    assert bytes(disk.files[path].data) == whole


def _cut(data: bytearray) -> None:
    del data[-4096:]


def _cut_odd(data: bytearray) -> None:
    del data[-1:]


def _empty(data: bytearray) -> None:
    data.clear()


def _flip(at: int) -> Callable[[bytearray], None]:
    def flip(data: bytearray) -> None:
        data[at] ^= 1

    return flip


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_cut, "magic"),
        (_cut_odd, "cut off"),
        (_empty, "cut off"),
        (_flip(100), "checksum in the page header"),
        (_flip(4090), "checksum in the page header"),
        (_flip(-5), "checksum in the trailer"),
    ],
)
def test_a_page_whose_ends_are_damaged_is_named(
    spoil: Callable[[bytearray], None], what: str
) -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files)
    path = files.path("orders", 1)
    spoil(disk.files[path].data)
    with pytest.raises(PageDamaged, match=what) as caught:
        files.look(path, 1, SALT)
    assert caught.value.where.startswith(f"{path}:")
    assert "backup" in caught.value.cure
    assert disk.open_files == {}


def test_a_damaged_index_is_named_when_it_is_read() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    page = written(files)
    path = files.path("orders", 1)
    at = page.size_bytes - 4096 + 100
    disk.files[path].data[at] ^= 1
    assert page.highest_priority == 4
    assert files.look(path, 1, SALT) == page
    with pytest.raises(PageDamaged, match="index"):
        files.read_footer(page)


@pytest.mark.parametrize(("page_id", "salt"), [(2, SALT), (1, SALT + 1)])
def test_another_page_is_not_taken(page_id: int, salt: int) -> None:
    files = page_files(MemoryDisk())
    written(files)
    with pytest.raises(PageDamaged, match="not the one that the journal names"):
        files.look(files.path("orders", 1), page_id, salt)


def test_a_page_of_another_journal_or_version_is_not_taken() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    written(files)
    path = files.path("orders", 1)
    files.journal_id = b"k" * 16
    with pytest.raises(ForeignJournal, match="another journal"):
        files.look(path, 1, SALT)
    disk.files[path].data[8] = 3
    with pytest.raises(ForeignJournal, match="format version"):
        files.look(path, 1, SALT)


def test_a_missing_page_is_named_and_an_unreadable_one_told_apart() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    page = written(files)
    disk.fail = lambda what, _: errno.EMFILE if what == "open" else 0
    with pytest.raises(NativeError):
        files.read_footer(page)
    disk.fail = lambda *_: 0
    del disk.files[files.path("orders", 1)]
    with pytest.raises(PageDamaged, match="missing"):
        files.read_footer(page)


def test_pages_are_removed_and_what_fails_is_told() -> None:
    disk = MemoryDisk()
    files = page_files(disk)
    for page_id in (1, 2):
        written(files, page_id=page_id)
    stuck = files.path("orders", 2)
    disk.fail = lambda what, path: errno.EROFS if what == "remove" and path == stuck else 0
    assert [error.errno for error in files.remove("orders", [1, 2, 3])] == [errno.EROFS]  # type: ignore[attr-defined]
    assert stuck in disk.files
    assert files.path("orders", 1) not in disk.files


def _fill(files: PageFiles, pieces: list[PagePart]) -> int:
    """Write pages until the disk is full; return how many there was room for."""
    for page_id in range(3, 20):
        try:
            files.write("orders", page_id, SALT, 5, pieces)
        except DiskFull:
            return page_id - 3
    pytest.fail("a disk of 16 MiB took 17 pages of 4 MiB")


def test_a_small_disk_fills_up_and_lets_go(tmp_path: Path) -> None:
    with small_disk(tmp_path, 16 * MIB) as mount:
        files = page_files(Disk(), mount / "paging")
        data = AlignedBuffer(4 * MIB)
        pieces = [PagePart(data.memoryview, 4096)]
        for page_id in (1, 2):
            files.write("orders", page_id, SALT, 5, pieces)
        stored = 2 + _fill(files, pieces)
        folder = files.folders.path("orders")
        assert len(list(folder.glob("*.page"))) == stored
        assert not list(folder.glob("*.tmp"))
        assert files.remove("orders", [1]) == []
        files.write("orders", 30, SALT, 5, pieces)


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_page_on_a_real_disk_is_read_back(tmp_path: Path, *, is_direct: bool) -> None:
    files = page_files(Disk(), tmp_path, is_direct=is_direct)
    content = AlignedBuffer(len(PAGE))
    content.memoryview[:] = PAGE
    index_at = len(PAGE) - len(parts_of(PAGE)[-1].data)
    parts = [
        PagePart(content.memoryview[:index_at], 4096),
        PagePart(content.memoryview[index_at:], 4096 + index_at),
    ]
    page = files.write("a/b", 1, SALT, 5, parts)
    assert page.highest_priority == 4
    assert files.look(files.path("a/b", 1), 1, SALT) == page
    assert len(decode_footer(files.read_footer(page), page_id=1, salt=SALT).records) == 30

"""Export and import: the same journal again, whole or not at all, also when it is interrupted."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from vespiary_broker.store.bindings import BindingsJournal, BindingsParts
from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.importing import WORK_FOLDER, ImportReport, JournalImport
from vespiary_broker.store.reader import Finding, read_journal
from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_codec.journal.text import TextWriter
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import (
    BadExport,
    CorruptRecord,
    NativeError,
    RecordTooLarge,
    StorageError,
)
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.journal_records import (
    LineSource,
    content_of,
    export_lines,
    locked_elsewhere,
    raw_record,
    write_journal,
)
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    core_counts,
    open_memory,
    recover,
    recover_live,
)
from vespiary_testkit.seeds import seed_for

OLD = Path("/old")
NEW = Path("/new")


@pytest.fixture(scope="module")
def written() -> MemoryDisk:
    disk = MemoryDisk()
    write_journal(OLD, disk)
    return disk


@pytest.fixture
def disk(written: MemoryDisk) -> MemoryDisk:
    return written.copy()


@pytest.fixture(scope="module")
def lines(written: MemoryDisk) -> list[bytes]:
    return export_lines(OLD, written)


def importer(
    disk: MemoryDisk, *, size: int = FILE_BYTES, is_resumed: bool = False
) -> JournalImport:
    return JournalImport(
        NEW,
        "activemq-data",
        "hq",
        size,
        disk=disk,
        verify=block_verifier(),
        is_resumed=is_resumed,
        source_name="text",
    )


def do_import(disk: MemoryDisk, lines: list[bytes], **names) -> ImportReport:
    return importer(disk, **names).run(LineSource(lines))


@pytest.mark.parametrize("size", [FILE_BYTES, 4 * FILE_BYTES, 4 * 1024 * 1024])
def test_the_import_is_the_same_journal_again(disk: MemoryDisk, lines: list[bytes], size: int):
    report = do_import(disk, lines, size=size)
    assert recover_live(disk, NEW) == recover_live(disk, OLD)
    assert core_counts(disk, NEW) == core_counts(disk, OLD)
    again = export_lines(NEW, disk)
    assert content_of(again) == content_of(lines)
    assert report.records == sum(line.startswith(b"operation@") for line in lines)
    assert report.files == len([line for line in again if line.startswith(b"#File")])
    assert any(b"type@99" in line for line in again), "a type that nobody knows came along"


@pytest.mark.parametrize(
    ("prefix", "extension"),
    [("activemq-bindings", "bindings"), ("activemq-jms", "jms"), ("activemq-data", "bindings")],
)
def test_names_of_another_kind_of_journal_are_refused(
    disk: MemoryDisk, lines: list[bytes], prefix: str, extension: str
):
    importing = JournalImport(
        NEW, prefix, extension, FILE_BYTES, disk=disk, verify=block_verifier(), source_name="text"
    )
    with pytest.raises(BadExport, match=r"another kind.*MESSAGE.*for such names"):
        importing.run(LineSource(lines))
    assert not disk.names(NEW)


def test_no_folder_or_file_of_the_work_is_left(disk: MemoryDisk, lines: list[bytes]):
    do_import(disk, lines)
    assert not disk.names(NEW / WORK_FOLDER)
    assert all(MESSAGE_FORM.number(name) and name[-3:] == ".hq" for name in disk.names(NEW))
    assert not disk.open_files


def test_all_of_an_import_is_below_the_watermark(disk: MemoryDisk, lines: list[bytes]):
    do_import(disk, lines)
    report = read_journal(NEW, disk=disk)
    assert report.finding is Finding.GOOD
    assert (report.sequence, report.watermark) == (report.sequence, report.sequence - 1)
    assert all(file.is_sealed for file in report.files)


def test_a_broker_goes_on_from_an_import(disk: MemoryDisk, lines: list[bytes]):
    do_import(disk, lines)
    before = recover_live(disk, NEW)

    async def live(place: Path) -> None:
        journal = await open_memory(place, disk)
        route = journal.core.open_route([1])
        journal.core.publish(route, b"a:b\n", b"one more", persistent=True)
        await journal.wait_durable()
        await journal.close()

    with locked_elsewhere(NEW, disk) as place:
        product_loop.run(live(place))
    after = recover_live(disk, NEW)
    assert len(after) == len(before) + 1
    assert before < after


def test_bindings(tmp_path: Path):
    disk = MemoryDisk()
    values = {f"key/{number}": {"a": number} for number in range(200)}

    async def live() -> None:
        journal = await BindingsJournal.open(
            tmp_path / "a", parts=BindingsParts(), file_size_bytes=FILE_BYTES
        )
        for key, value in values.items():
            await journal.put(key, value)
        await journal.remove("key/7")
        await journal.close()

    product_loop.run(live())
    for path in (tmp_path / "a").glob("*.bindings"):
        handle = disk.create(OLD / path.name, is_direct=False)
        handle.write(memoryview(path.read_bytes()), 0)
        handle.close()
    lines = export_lines(OLD, disk, BINDINGS_FORM)
    report = JournalImport(
        NEW, "other", "bind", FILE_BYTES, disk=disk, verify=block_verifier()
    ).run(LineSource(lines))
    assert report.kind == "BINDINGS"
    form = FileForm("other", "bind", JournalKind.BINDINGS)
    assert content_of(export_lines(NEW, disk, form)) == content_of(lines)
    assert read_journal(NEW, form=form, disk=disk).bindings == len(values) - 1


# --- transactions whose members were reclaimed ----------------------------------------------------


def _transaction_with_a_reclaimed_member(disk: MemoryDisk) -> list[bytes]:
    """A member in file 1, which is gone; another and the COMMIT in file 2."""
    members = [
        encode_record(AddRecord((Place(1, n),), b"", b"x" * 10, n, transaction=5)) for n in (1, 2)
    ]
    commit = encode_record(CommitRecord(5, 2, digest_members(members)))
    acknowledged = encode_record(AckRecord(1, (SequenceRange(1, 1),)))
    writer = TextWriter()
    lines = [writer.header(JournalKind.MESSAGE, bytes(16)), writer.gap()]
    lines += [writer.record(raw_record(data)) for data in (members[1], commit, acknowledged)]
    return [*lines, writer.totals()]


def test_a_gap_keeps_what_it_says_of_a_transaction():
    disk = MemoryDisk()
    lines = _transaction_with_a_reclaimed_member(disk)
    do_import(disk, lines)
    assert core_counts(disk, NEW)[1] == 1
    assert export_lines(NEW, disk)[2:] == lines[1:]
    without = [line for line in lines if not line.startswith(b"#Gap")]
    reader = MemoryDisk()
    with pytest.raises(BadExport, match="totals"):
        do_import(reader, without)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 2, -1])
def test_a_text_that_is_cut_off_is_refused(disk: MemoryDisk, lines: list[bytes], keep: int):
    with pytest.raises(BadExport) as caught:
        do_import(disk, lines[:keep])
    assert caught.value.where.startswith("text:")
    assert set(disk.names(NEW)) <= {WORK_FOLDER}
    with pytest.raises(BadExport, match="cut off"):
        do_import(disk.copy(), [*lines[:-1], lines[-1][:-3]], is_resumed=True)


def test_nothing_is_left_that_a_broker_takes_for_a_journal(disk: MemoryDisk, lines: list[bytes]):
    changed = bytearray(lines[-2])
    changed[20] ^= 1
    with pytest.raises(BadExport) as caught:
        do_import(disk, [*lines[:-2], bytes(changed), lines[-1]])
    assert caught.value.where == f"text:{len(lines) - 1}"
    assert disk.names(NEW) == [WORK_FOLDER]
    assert disk.names(NEW / WORK_FOLDER), "that is what --resume goes on from"
    with pytest.raises(StorageError, match="was interrupted here"):
        do_import(disk, lines)
    report = do_import(disk, lines, is_resumed=True)
    assert 0 < report.resumed_records < report.records
    assert content_of(export_lines(NEW, disk)) == content_of(lines)


def test_a_folder_with_anything_in_it_is_refused(disk: MemoryDisk, lines: list[bytes]):
    disk.create(NEW / "readme.txt", is_direct=False).close()
    for is_resumed in (False, True):
        with pytest.raises(StorageError, match="empty or a new folder"):
            do_import(disk, lines, is_resumed=is_resumed)
    assert disk.names(NEW) == ["readme.txt"]


def test_a_second_import_is_refused_and_changes_nothing(disk: MemoryDisk, lines: list[bytes]):
    do_import(disk, lines)
    before = {path: bytes(inode.data) for path, inode in disk.files.items()}
    writer = TextWriter()
    record = encode_record(AddRecord((Place(1, 1),), b"", b"another", 1))
    other = [writer.header(JournalKind.MESSAGE, bytes(16)), writer.record(raw_record(record))]
    other.append(writer.totals())
    for text, is_resumed in ((lines, False), (other, False), (other, True)):
        with pytest.raises(StorageError, match="empty or a new folder"):
            do_import(disk, text, is_resumed=is_resumed)
    assert {path: bytes(inode.data) for path, inode in disk.files.items()} == before


def test_resuming_an_import_that_is_complete_changes_nothing(disk: MemoryDisk, lines: list[bytes]):
    done = do_import(disk, lines)
    before = {path: bytes(inode.data) for path, inode in disk.files.items()}
    report = do_import(disk, lines, is_resumed=True)
    assert (report.records, report.resumed_records) == (done.records, done.records)
    assert {path: bytes(inode.data) for path, inode in disk.files.items()} == before
    assert not disk.names(NEW / WORK_FOLDER)
    assert not disk.open_files


def test_the_empty_mount_of_a_volume_is_empty_enough(disk: MemoryDisk, lines: list[bytes]):
    for name in ("lost+found", ".vespiary-volume.json", "server.lock"):
        disk.create(NEW / name, is_direct=False).close()
    assert do_import(disk, lines).records


def test_a_record_that_no_file_takes_is_named_by_its_line(disk: MemoryDisk):
    writer = TextWriter()
    record = encode_record(AddRecord((Place(1, 1),), b"", bytes(60_000), 1))
    lines = [writer.header(JournalKind.MESSAGE, bytes(16)), writer.record(raw_record(record))]
    lines.append(writer.totals())
    with pytest.raises(RecordTooLarge) as caught:
        do_import(disk, lines)
    assert caught.value.where == "text:2"
    again = MemoryDisk()
    assert do_import(again, lines, size=128 * 1024).records == 1
    assert recover_live(again, NEW) == {(1, 1)}


def test_a_line_that_no_record_needs_is_not_read_to_its_end(disk: MemoryDisk, lines: list[bytes]):
    source = LineSource([lines[0], b"x" * 10_000_000])
    with pytest.raises(BadExport, match="cut off"):
        importer(disk).run(source)
    assert source.longest <= 2 * FILE_BYTES + 64 * 1024


# --- memory ---------------------------------------------------------------------------------------


def test_the_text_is_read_line_by_line(disk: MemoryDisk, lines: list[bytes]):
    """No line is asked for before those before it are on their way: never the whole text."""
    source = LineSource(lines)
    behind: list[int] = []

    def count(kind: str, path: Path) -> int:
        if kind == "write" and WORK_FOLDER in str(path):
            behind.append(source.lines_read)
        return 0

    disk.fail = count
    importer(disk).run(source)
    half = len(lines) // 2
    assert any(0 < at < half for at in behind), "the first half is written before the rest is read"
    assert source.longest == max(map(len, lines))


# --- interruptions --------------------------------------------------------------------------------


def test_a_full_disk_and_then_more_room(disk: MemoryDisk, lines: list[bytes]):
    disk.capacity_bytes = disk.used_bytes() + 4 * FILE_BYTES
    with pytest.raises(Exception, match="room"):
        do_import(disk, lines)
    disk.capacity_bytes = 1 << 40
    report = do_import(disk, lines, is_resumed=True)
    assert report.resumed_records
    assert content_of(export_lines(NEW, disk)) == content_of(lines)


def test_another_text_does_not_continue_an_import(disk: MemoryDisk, lines: list[bytes]):
    disk.capacity_bytes = disk.used_bytes() + 4 * FILE_BYTES
    with pytest.raises(Exception, match="room"):
        do_import(disk, lines)
    disk.capacity_bytes = 1 << 40
    writer = TextWriter()
    other = [writer.header(JournalKind.MESSAGE, bytes(16))]
    record = encode_record(AddRecord((Place(1, 1),), b"", b"another", 1))
    other += [writer.record(raw_record(record)), writer.totals()]
    with pytest.raises(BadExport, match="not the text"):
        do_import(disk, other, is_resumed=True)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["create", "write", "flush", "rename", "flush_folder", "open"])
def test_a_call_that_fails_at_any_time_can_be_made_up_for(
    disk: MemoryDisk, lines: list[bytes], kind: str
):
    chance = random.Random(seed_for(f"import faults {kind}"))
    for _ in range(6):
        image = disk.copy()
        left = chance.randrange(0, 30)

        def fail(step: str, path: Path) -> int:
            nonlocal left
            left -= step == kind and str(path).startswith(str(NEW))
            return errno.EIO if left < 0 else 0

        image.fail = fail
        try:
            do_import(image, lines)
        except NativeError:
            image.fail = lambda _kind, _path: 0
            do_import(image, lines, is_resumed=True)
        image.fail = lambda _kind, _path: 0
        assert content_of(export_lines(NEW, image)) == content_of(lines)


def _failing_last(disk: MemoryDisk, lines: list[bytes], kind: str, number: int) -> MemoryDisk:
    """Import on a copy of a disk, with the last call but `number` of a kind failing."""
    image, calls = disk.copy(), 0

    def count(step: str, path: Path) -> int:
        nonlocal calls
        calls += step == kind and str(path).startswith(str(NEW))
        return errno.EIO if calls == fails_at else 0

    fails_at = -1
    image.fail = count
    do_import(image, lines)
    image, calls, fails_at = disk.copy(), 0, calls - number
    image.fail = count
    with pytest.raises(NativeError):
        do_import(image, lines)
    image.fail = lambda _kind, _path: 0
    return image


@pytest.mark.parametrize(
    ("kind", "number"),
    [("rename", 0), *(("flush_folder", n) for n in range(4)), ("remove_folder", 0)],
)
def test_an_import_that_failed_at_its_very_end_can_be_resumed(
    disk: MemoryDisk, lines: list[bytes], kind: str, number: int
):
    """All files are at their place then, and nothing else says that the import is not over."""
    image = _failing_last(disk, lines, kind, number)
    report = do_import(image, lines, is_resumed=True)
    assert report.resumed_records == sum(line.startswith(b"operation@") for line in lines)
    assert content_of(export_lines(NEW, image)) == content_of(lines)
    assert not image.names(NEW / WORK_FOLDER)


@pytest.mark.parametrize("is_longer", [False, True])
def test_a_journal_of_another_text_is_no_import_to_resume(
    disk: MemoryDisk, lines: list[bytes], is_longer: bool
):
    writer = TextWriter()
    texts = []
    for count in (2, 3):
        text = [writer.header(JournalKind.MESSAGE, bytes(16))]
        for number in range(count):
            record = encode_record(AddRecord((Place(1, number + 1),), b"", b"another", 1))
            text.append(writer.record(raw_record(record)))
        texts.append([*text, writer.totals()])
        writer = TextWriter()
    done = _failing_last(disk, texts[not is_longer], "flush_folder", 0)
    for other in (texts[is_longer], lines):
        with pytest.raises(StorageError, match="empty or a new folder"):
            do_import(done, other, is_resumed=True)
    with pytest.raises(StorageError, match="empty or a new folder"):
        do_import(done, texts[not is_longer])
    assert content_of(export_lines(NEW, done)) == content_of(texts[not is_longer])


def _state(disk: MemoryDisk) -> str:
    """What a broker would do with the folder: start empty, refuse, or have it all."""
    names = [name for name in disk.names(NEW) if MESSAGE_FORM.number(name) is not None]
    if not names:
        return "empty"
    try:
        recover(disk, NEW, _Nothing())
    except CorruptRecord as error:
        return "refused" if "is missing" in str(error) else str(error)
    return "whole"


class _Nothing:
    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        pass

    def restore_block(self, file_id, offset, block):
        return []


def test_the_power_may_go_at_any_moment(disk: MemoryDisk, lines: list[bytes]):
    """Behind each step: no journal, one that is refused, or all of it; and resuming ends it."""
    want = content_of(lines)
    old_files = {path: bytes(inode.data) for path, inode in disk.files.items()}
    live = MemoryDisk()
    do_import(live, lines)
    seen: dict[str, int] = {}
    chance = random.Random(seed_for("import cuts"))
    for image in crash_images(live.log, seed=seed_for("import images"), subsets_max=2, torn_max=1):
        state = _state(image.disk)
        seen[state] = seen.get(state, 0) + 1
        if state == "whole":
            assert content_of(export_lines(NEW, image.disk)) == want, image.label
        elif chance.random() < 0.04 or (state == "refused" and chance.random() < 0.3):
            do_import(image.disk, lines, is_resumed=True)
            assert content_of(export_lines(NEW, image.disk)) == want, image.label
    assert set(seen) == {"empty", "refused", "whole"}, seen
    assert {path: bytes(inode.data) for path, inode in disk.files.items()} == old_files


# --- the builder ----------------------------------------------------------------------------------


def test_blocks_cross_no_slab(disk: MemoryDisk):
    """The broker's memory is cut at 2 MiB: large records may not stand across that."""
    size = 5 * 1024 * 1024
    builder = JournalBuilder(NEW, MESSAGE_FORM, size, disk, journal_id=bytes(16))
    disk.make_folder(NEW)
    for sequence in range(1, 30):
        builder.add(encode_record(AddRecord((Place(1, sequence),), b"", bytes(400_000), 1)))
    builder.finish()
    builder.close()
    found: list[tuple[int, int]] = []

    class Places(_Nothing):
        def restore_block(self, file_id, offset, block):
            found.append((offset, offset + len(block)))
            return []

    recover(disk, NEW, Places())
    slab = 2 * 1024 * 1024
    assert all(begin // slab == (end - 1) // slab for begin, end in found)
    assert builder.files_made == 3

"""Windows read ahead: what is found is the same as without, whatever is asked for."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk, OsFile
from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.read_ahead import ReadAhead, Window, windows_of
from vespiary_broker.store.survey import survey_folder
from vespiary_spec.errors import CorruptRecord, NativeError
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, LiveSet, open_memory, recover, until

WINDOW = 8192
FILES = 3
FILE_BYTES = 4 * WINDOW


class FailingFile(OsFile):
    """Fails to read at some offsets."""

    fails_at: int

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if offset == self.fails_at:
            raise NativeError("cannot read", errno.EIO, where=f"{self.path}:{offset}")
        return super().read_into(buffer, offset)


class FailingDisk(Disk):
    """A disk with one bad place in each file."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.fails_at = fails_at

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> FailingFile:
        opened = FailingFile(path, 0)
        opened.fails_at = self.fails_at
        return opened


def content(file: int, offset: int, length: int) -> bytes:
    return b"".join(
        (file * 1000 + at // 4096).to_bytes(4, "little") * 1024
        for at in range(offset, offset + length, 4096)
    )


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = []
    for file in range(FILES):
        made.append(tmp_path / f"{file}.hq")
        made[-1].write_bytes(content(file, 0, FILE_BYTES))
    return made


def windows(paths: list[Path]) -> list[Window]:
    return list(windows_of([(path, FILE_BYTES) for path in paths], 4096, WINDOW))


def ahead_of(paths: list[Path], disk: Disk) -> ReadAhead:
    return ReadAhead(disk, windows(paths), is_direct=False)


def test_windows_end_at_multiples_of_their_size():
    path = Path("a")
    assert [*windows_of([(path, 20_480)], 4096, 8192)] == [
        Window(path, 4096, 4096),
        Window(path, 8192, 8192),
        Window(path, 16_384, 4096),
    ]


def test_every_window_has_its_own_bytes(paths: list[Path]):
    with ahead_of(paths, Disk()).running() as ahead:
        for window in windows(paths):
            found = ahead.take(*window)
            assert found == content(paths.index(window.path), window.offset, window.length)


def test_the_memory_stays_until_the_next_window_is_taken(paths: list[Path]):
    with ahead_of(paths, Disk()).running() as ahead:
        found = ahead.take(*windows(paths)[0])
        for read in list(ahead._reads):
            read.done.result()  # all that may be read meanwhile has been
        assert found == content(0, 4096, WINDOW - 4096)


@pytest.mark.parametrize("step", [2, 3, 5, 7])
def test_windows_may_be_left_out(paths: list[Path], step: int):
    with ahead_of(paths, Disk()).running() as ahead:
        for window in windows(paths)[::step]:
            found = ahead.take(*window)
            assert found == content(paths.index(window.path), window.offset, window.length)


def test_what_was_not_expected_is_the_callers_to_read(paths: list[Path]):
    expected = windows(paths)
    with ahead_of(paths, Disk()).running() as ahead:
        assert ahead.take(*expected[1]) is not None
        assert ahead.take(paths[0], 12_288, 4096) is None  # within a window
        assert ahead.take(paths[0], expected[2].offset, 4096) is None  # another length
        assert ahead.take(*expected[0]) is None  # it is behind
        assert ahead.take(Path("elsewhere"), 4096, 4096) is None
        assert ahead.take(*expected[2]) == content(0, expected[2].offset, WINDOW)


def test_a_file_that_grows_ends_where_it_ends(paths: list[Path]):
    with paths[0].open("r+b") as file:
        file.truncate(12_288)
    with ahead_of(paths, Disk()).running() as ahead:
        taken = [ahead.take(*window) for window in windows(paths)[:3]]
        lengths = [len(bytes(found or b"")) for found in taken[2:]]
    assert lengths == [0]


def test_an_error_belongs_to_its_window(paths: list[Path]):
    expected = windows(paths)
    with ahead_of(paths, FailingDisk(WINDOW)).running() as ahead:
        assert ahead.take(*expected[0]) is not None
        with pytest.raises(NativeError, match=f"0.hq:{WINDOW}"):
            ahead.take(*expected[1])


def test_an_error_of_a_window_that_nobody_wants_is_none(paths: list[Path]):
    expected = windows(paths)
    with ahead_of(paths, FailingDisk(WINDOW)).running() as ahead:
        assert ahead.take(*expected[0]) is not None
        assert ahead.take(*expected[2]) == content(0, expected[2].offset, WINDOW)


def test_its_threads_end_with_it(paths: list[Path]):
    with ahead_of(paths, Disk()).running() as ahead:
        ahead.take(*windows(paths)[0])
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


# --- a recovery ---------------------------------------------------------------------------------


class Blocks(LiveSet):
    """Keeps every block that was taken, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, int, bytes]] = []

    def restore_block(self, file_id, offset, block):
        self.taken.append((file_id, offset, bytes(block)))
        return super().restore_block(file_id, offset, block)


class WatchedDisk(MemoryDisk):
    """Remembers which threads opened its files."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool):
        self.threads.add(threading.current_thread().name.partition("_")[0])
        return super().open(path, is_direct=is_direct, is_readonly=is_readonly)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def journal(folder: Path) -> WatchedDisk:
    disk = WatchedDisk()

    async def write() -> None:
        opened = await open_memory(folder, disk, quiet_delay_s=1000.0)
        client = Client(opened, disk, 5)
        for _ in range(8):
            await client.send(4)
            await client.receive()
            client.held = client.held[1:]
            await client.acknowledge(len(client.held) // 2)
        await until(lambda: opened.core.files_ahead() >= 2)
        await opened.close()

    product_loop.run(write())
    return disk


def outcome(disk: MemoryDisk, folder: Path, *, ahead_bytes_min: int) -> object:
    sink = Blocks()
    try:
        found = recover(disk, folder, sink, ahead_bytes_min=ahead_bytes_min)
    except CorruptRecord as error:
        return str(error), sink.taken
    return found.sequence, found.crc, found.records, found.tail, found.watermark, sink.taken


def test_a_recovery_finds_the_same_with_and_without(journal: MemoryDisk, folder: Path):
    found = outcome(journal, folder, ahead_bytes_min=0)
    assert found == outcome(journal, folder, ahead_bytes_min=1 << 40)
    assert isinstance(found, tuple)
    assert len({file_id for file_id, _, _ in found[-1]}) > 2


@pytest.mark.parametrize(("ahead_bytes_min", "is_ahead"), [(0, True), (1 << 40, False)])
def test_only_a_journal_that_is_worth_it_is_read_ahead(
    journal: WatchedDisk, folder: Path, ahead_bytes_min: int, is_ahead: bool
):
    journal.threads.clear()
    outcome(journal, folder, ahead_bytes_min=ahead_bytes_min)
    assert ("read-ahead" in journal.threads) is is_ahead


def test_a_recovery_of_a_damaged_journal_says_the_same_with_and_without(
    journal: MemoryDisk, folder: Path
):
    sink = Blocks()
    recover(journal, folder, sink, ahead_bytes_min=0)
    active = survey_folder(folder, MESSAGE_FORM, journal, is_direct=True).active
    paths = {file.file_id: file.path for file in active}
    for file_id, offset, _ in sink.taken[:: max(1, len(sink.taken) // 12)]:
        data = journal.files[paths[file_id]].data
        data[offset + 70] ^= 1
        try:
            assert outcome(journal, folder, ahead_bytes_min=0) == outcome(
                journal, folder, ahead_bytes_min=1 << 40
            )
        finally:
            data[offset + 70] ^= 1

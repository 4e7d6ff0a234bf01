"""The watermark in file headers: the newest file with blocks can't vanish behind a good header."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.bindings import BindingsTable
from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.files import BINDINGS_FORM, JMS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.reader import Finding
from vespiary_broker.store.recovery import Recovery
from vespiary_broker.store.salvage import SalvageRules, salvage_journal
from vespiary_broker.store.survey import SurveyedFile, survey_folder, verify_blocks_python
from vespiary_broker.store.takeover import seal_tail
from vespiary_broker.store.verifying import ProblemKind, verify_journal
from vespiary_codec.journal.record import FileRun, FilesRecord, PutRecord, encode_record
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit.block_builder import FOLDER, Builder
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    Client,
    LiveSet,
    open_memory,
    recover,
    recover_live,
    run,
    run_in_virtual_time,
    until,
)
from vespiary_testkit.memory_bindings import open_bindings

HEADER_END = 4096


def active(disk: MemoryDisk, folder: Path, form: FileForm = MESSAGE_FORM) -> list[SurveyedFile]:
    return survey_folder(folder, form, disk, is_direct=True).active


def zero(disk: MemoryDisk, path: Path) -> None:
    """Make a file read as zeros behind its header."""
    data = disk.files[path].data
    data[HEADER_END:] = bytes(len(data) - HEADER_END)


def is_witnessed(disk: MemoryDisk, folder: Path) -> bool:
    """Whether a header says that the first block of the newest file with blocks is durable."""
    return max(file.watermark for file in active(disk, folder)) >= max(first_blocks(disk, folder))


def first_blocks(disk: MemoryDisk, folder: Path) -> list[int]:
    """Return the sequences of the files' first blocks."""
    sink = FirstBlocks()
    recover(disk, folder, sink)
    return list(sink.first.values())


class FirstBlocks(LiveSet):
    """Keeps the sequence of each file's first block."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, int] = {}

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        self.first.setdefault(file_id, int.from_bytes(block[8:16], "little"))
        return super().restore_block(file_id, offset, block)


# --- written by the journals ----------------------------------------------------------------------


@pytest.mark.parametrize("turns", [0, 3, 12, 40])
@pytest.mark.parametrize("lives", [1, 2])
@run_in_virtual_time
async def test_the_newest_file_of_messages_reads_as_zeros(tmp_path: Path, lives: int, turns: int):
    disk = MemoryDisk()
    for _ in range(lives):
        journal = await open_memory(tmp_path, disk)
        client = Client(journal, disk, 5)
        for _ in range(turns + 1):
            await client.send(3)
        await until(lambda j=journal: not j._is_uncovered and is_witnessed(disk, tmp_path))  # type: ignore[misc]
        await journal.close()
    found = recover(disk, tmp_path, LiveSet())
    begun, last = found.used, found.sequence
    assert recover_live(disk, tmp_path)
    for file in begun:
        damaged = disk.copy()
        zero(damaged, file.path)
        with pytest.raises(CorruptRecord, match=r"block \d+ is not there") as caught:
            recover(damaged, tmp_path, LiveSet())
        assert caught.value.where == f"{file.path}:{HEADER_END}"
    assert "the header of activemq-data-" in str(caught.value), "nothing else proves the last one"
    # The verdict changes nothing, and the tools say the same.
    steps = len(damaged.log)
    with pytest.raises(CorruptRecord):
        await open_memory(tmp_path, damaged)
    assert len(damaged.log) == steps
    verified = verify_journal(tmp_path, MESSAGE_FORM, damaged, block_verifier())
    assert verified.finding is Finding.BAD
    named = [problem for problem in verified.problems if problem.kind is ProblemKind.CORRUPT]
    assert [(problem.file, problem.offset) for problem in named] == [(begun[-1].path.name, 4096)]
    assert 0 < named[0].sequence <= last
    report = salvage_journal(
        tmp_path,
        MESSAGE_FORM,
        tmp_path / "saved",
        disk=damaged,
        verify=block_verifier(),
        file_size_bytes=FILE_BYTES,
        rules=SalvageRules(),
    )
    lost = [(loss.file, loss.offset, loss.first_sequence) for loss in report.losses]
    assert lost == [(begun[-1].path.name, 4096, named[0].sequence)]
    assert named[0].sequence <= report.losses[0].last_sequence <= last


@run
async def test_a_file_that_begins_while_files_are_made_has_its_witness(tmp_path: Path):
    """All files ahead were made when its first block was not durable yet, and none is to spare."""
    disk, rings = MemoryDisk(), []

    def make_ring(disk: MemoryDisk) -> MemoryRing:
        rings.append(MemoryRing(disk))
        return rings[-1]

    journal = await open_memory(tmp_path, disk, make_ring)
    await until(lambda: journal.core.files_ahead() == 2 and not journal._pool.has_spare)
    route, begun = journal.core.open_route([1]), []

    def begin_next() -> None:
        """Stage messages until the first block of the next file is on its way, and keep it so."""
        last = begun[-1] if begun else 0
        while journal._in_flight is None or journal._in_flight.file_id == last:
            rings[-1].release()
            rings[-1].hold()  # what is submitted from here on
            journal._on_completions()
            journal.core.publish(route, b"", bytes(3000), persistent=True)
            journal.kick()
        begun.append(journal._in_flight.file_id)

    def on_step(step: str, _path: Path) -> int:
        if step == "create" and len(begun) == 1:
            begin_next()
        return 0

    begin_next()
    disk.fail = on_step
    rings[-1].release()
    await until(lambda: len(begun) == 2 and journal.core.files_ahead() == 2)
    disk.fail = lambda *_: 0
    assert max(file.watermark for file in active(disk, tmp_path)) < max(
        first_blocks(disk, tmp_path)
    )
    rings[-1].release()
    await until(lambda: not journal._is_uncovered and is_witnessed(disk, tmp_path))
    assert journal.core.files_ahead() <= 3
    await journal.close()


@pytest.mark.parametrize("form", [BINDINGS_FORM, JMS_FORM])
@pytest.mark.parametrize("values", [1, 3, 40])
@pytest.mark.parametrize("lives", [1, 3])
@run
async def test_the_newest_file_of_bindings_reads_as_zeros(
    tmp_path: Path, lives: int, values: int, form: FileForm
):
    disk = MemoryDisk()
    for _ in range(lives):
        journal = await open_bindings(tmp_path, disk, form=form)
        for number in range(values):
            await journal.put(f"queue/{number % 7}", "x" * 2000)
        await journal.close()
    files = active(disk, tmp_path, form)
    found = Recovery(
        survey_folder(tmp_path, form, disk, is_direct=True), disk, verify_blocks_python
    ).run(BindingsTable())
    begun = found.used
    assert [file.path for file in found.ahead] == [files[-1].path], "one is ready behind the newest"
    for file in begun:
        damaged = disk.copy()
        zero(damaged, file.path)
        survey = survey_folder(tmp_path, form, damaged, is_direct=True)
        with pytest.raises(CorruptRecord, match="is not there") as caught:
            Recovery(survey, damaged, verify_blocks_python).run(BindingsTable())
        assert caught.value.where == f"{file.path}:{HEADER_END}"
    assert f"the header of {files[-1].path.name}" in str(caught.value)


@run
async def test_no_header_says_more_than_is_durable(tmp_path: Path):
    """Read off the disk's log: a header is written when all that it speaks of was flushed."""
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    client = Client(journal, disk, 5)
    for _ in range(40):
        await client.send(3)
    await journal.close()
    durable = 0
    written: dict[int, int] = {}
    said = []
    for op in disk.log:
        if op.kind == "write" and op.token >= 0:
            blocks = verify_any(op.data)
            written[op.token] = max(blocks, default=0)
        elif op.kind == "done":
            durable = max(durable, written[op.token])
        elif op.kind == "write" and op.data[:8] == b"VSPYJRNL" and op.data[10] == 2:
            said.append(int.from_bytes(op.data[72:80], "little"))
            assert said[-1] <= durable
    assert said == sorted(said)
    assert said[-1] > 20


def verify_any(data: bytes) -> list[int]:
    """Return the sequences of the blocks that begin in a write."""
    places = range(0, len(data), 4096)
    return [
        int.from_bytes(data[at + 8 : at + 16], "little")
        for at in places
        if data[at : at + 4] == b"VBLK"
    ]


def test_the_builder_of_tools_writes_them(tmp_path: Path):
    disk = MemoryDisk()
    builder = JournalBuilder(tmp_path, BINDINGS_FORM, FILE_BYTES, disk, journal_id=b"j" * 16)
    for number in range(60):
        builder.add(encode_record(PutRecord(f"k{number}", bytes(3000))))
    builder.gap()
    builder.add(encode_record(PutRecord("last", bytes(3000))))
    builder.finish()
    builder.close()
    files = active(disk, tmp_path, BINDINGS_FORM)
    watermarks = [file.watermark for file in files]
    assert watermarks[0] == 0
    assert all(older < newer for older, newer in itertools.pairwise(watermarks))
    survey = survey_folder(tmp_path, BINDINGS_FORM, disk, is_direct=True)
    table = BindingsTable()
    Recovery(survey, disk, verify_blocks_python).run(table)
    assert len(table.entries) == 61


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize("watermark", [0, 2, 3, 4, 1 << 60])
def test_a_sealed_file_and_what_the_header_behind_it_says(watermark: int):
    builder = Builder()
    builder.file(1)
    builder.files(1, 2, 3)
    builder.block()
    builder.seal(watermark=2)
    builder.file(2)
    builder.file(3, watermark=watermark)
    if watermark <= 3:
        found = recover(builder.disk, FOLDER, LiveSet())
        assert (found.sequence, found.tail, found.lost_blocks) == (3, None, 0)
        assert found.watermark == max(watermark, 2)
        return
    with pytest.raises(CorruptRecord, match="block 4 is not there") as caught:
        recover(builder.disk, FOLDER, LiveSet())
    assert caught.value.where == f"{builder.path(2)}:4096"
    assert "the header of activemq-data-3.hq" in str(caught.value)


@pytest.mark.parametrize("watermark", [0, 1])
def test_a_journal_without_any_block(watermark: int):
    builder = Builder()
    builder.file(1)
    builder.file(2, watermark=watermark)
    if not watermark:
        assert recover(builder.disk, FOLDER, LiveSet()).sequence == 0
        return
    with pytest.raises(CorruptRecord, match="block 1 is not there") as caught:
        recover(builder.disk, FOLDER, LiveSet())
    assert caught.value.where == f"{builder.path(1)}:4096"


def test_a_header_in_use_that_knows_of_more_than_the_sealed_end():
    builder = Builder()
    builder.file(1, watermark=9)
    builder.files(1)
    builder.seal(watermark=1)
    with pytest.raises(CorruptRecord, match="blocks up to 9 were durable"):
        recover(builder.disk, FOLDER, LiveSet())


def test_a_header_of_a_file_that_is_behind_proves_nothing():
    builder = Builder()
    builder.file(1)
    builder.files(1)
    builder.block()
    builder.file(2, watermark=2)
    place = builder.offset
    assert place == 4096
    found = recover(builder.disk, FOLDER, LiveSet())
    assert (found.sequence, found.watermark, found.unproven_blocks) == (2, 2, 0)


# --- class D1 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sealed", [True, False])
def test_under_d1_a_loss_is_told_and_accuses_nothing_later(
    is_sealed: bool, caplog: pytest.LogCaptureFixture
):
    """The lost numbers are given again: a torn tail among them must not look like damage."""
    caplog.set_level(logging.CRITICAL)
    builder = Builder()
    builder.file(1)
    builder.block(FilesRecord((FileRun(1, 3),)))
    builder.block()
    if is_sealed:
        builder.seal(watermark=2)
    taken = builder.chain.sequence
    builder.file(2)  # its blocks were lost
    builder.file(3, watermark=taken + 50)
    found = recover(builder.disk, FOLDER, LiveSet(), is_flushed=False)
    assert (found.sequence, found.lost_blocks) == (taken, 50)
    log = len(builder.disk.log)
    sequence, _ = seal_tail(found, builder.disk, is_direct=True, now_ms=1)
    kinds = [op.kind for op in builder.disk.log[log:]]
    assert kinds[:3] == ["flush", "write", "flush"], "the header before anything else"
    assert builder.disk.log[log + 1].offset == 0
    assert active(builder.disk, FOLDER)[-1].watermark == taken
    again = recover(builder.disk, FOLDER, LiveSet())  # with flushes now
    assert (again.sequence, again.lost_blocks) == (sequence, 0)

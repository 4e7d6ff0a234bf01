"""The course of a recovery: ends, leftovers, lost flushes, figures, the seal."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.recovery import Progress, Recovery, log_outcome
from vespiary_broker.store.survey import survey_folder
from vespiary_broker.store.takeover import seal_tail
from vespiary_codec.journal.block import BlockHeader, encode_block
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CountRecord,
    Place,
    PutRecord,
    SequenceRange,
    align8,
    encode_record,
)
from vespiary_native.choice import block_verifier, open_core
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import (
    Client,
    LiveSet,
    open_memory,
    recover,
    recover_live,
    until,
)


async def _write(folder: Path, disk: MemoryDisk, turns: int, *, is_closed: bool) -> None:
    journal = await open_memory(folder, disk, quiet_delay_s=1000.0)
    client = Client(journal, disk, 5)
    for _ in range(turns):
        await client.send(3)
        await asyncio.sleep(0.001)
    await until(lambda: journal.core.files_ahead() >= 2)
    await client.send(1)
    await client.send(1)  # above all watermarks, those of file headers too
    if not is_closed:
        journal.fail(CorruptRecord("the test pulls the plug"))
    await journal.close()


def written(folder: Path, turns: int = 12, *, is_closed: bool = False) -> MemoryDisk:
    disk = MemoryDisk()
    product_loop.run(_write(folder, disk, turns, is_closed=is_closed))
    return disk


def places_in_last_file(disk: MemoryDisk, folder: Path) -> list[int]:
    """Return the offsets of the blocks in the newest file with blocks."""
    places: list[tuple[int, int]] = []

    class Places(LiveSet):
        def restore_block(self, file_id, offset, block):
            places.append((file_id, offset))
            return super().restore_block(file_id, offset, block)

    recover(disk, folder, Places())
    return [offset for file_id, offset in places if file_id == places[-1][0]]


def last_block(disk: MemoryDisk, folder: Path) -> tuple[Path, int, int]:
    """Return path, offset and length of the journal's last block."""
    places = []

    class Places(LiveSet):
        def restore_block(self, file_id, offset, block):
            places.append((file_id, offset, len(block)))
            return super().restore_block(file_id, offset, block)

    recover(disk, folder, Places())
    file_id, offset, length = places[-1]
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    return next(f.path for f in survey.active if f.file_id == file_id), offset, length


def test_an_empty_folder_is_an_empty_journal(tmp_path: Path):
    found = recover(MemoryDisk(), tmp_path, LiveSet())
    assert (found.used, found.ahead, found.sequence, found.crc, found.tail) == ([], [], 0, 0, None)


def test_figures(tmp_path: Path):
    disk = written(tmp_path)
    found = recover(disk, tmp_path, LiveSet())
    assert found.blocks == found.sequence > 12
    assert found.records >= 36
    assert len(found.used) >= 2
    assert len(found.ahead) == 2
    assert found.bytes_read % 4096 == 0
    assert found.unproven_blocks == found.sequence - found.watermark == 1
    assert found.unproven_records >= 1
    assert (found.dropped_blocks, found.lost_blocks) == (0, 0)


def test_a_clean_close_leaves_nothing_unproven_but_an_empty_block(tmp_path: Path):
    found = recover(written(tmp_path, is_closed=True), tmp_path, LiveSet())
    assert (found.unproven_blocks, found.unproven_records) == (1, 0)


def test_progress_goes_file_by_file(tmp_path: Path):
    disk = written(tmp_path)
    steps: list[Progress] = []
    survey = survey_folder(tmp_path, MESSAGE_FORM, disk, is_direct=True)
    found = Recovery(survey, disk, block_verifier(), progress=steps.append).run(LiveSet())
    assert [step.files_done for step in steps] == list(range(1, len(found.used) + 1))
    assert {step.files_total for step in steps} == {len(found.used)}
    assert steps[-1].bytes_done == found.bytes_read


def test_a_torn_tail_ends_the_journal_and_is_reported(tmp_path: Path):
    disk = written(tmp_path)
    before = recover(disk, tmp_path, LiveSet())
    path, offset, length = last_block(disk, tmp_path)
    disk.files[path].data[offset + length - 8] ^= 1
    found = recover(disk, tmp_path, LiveSet())
    assert found.sequence == before.sequence - 1
    assert found.tail is not None
    assert (found.tail.file.path, found.tail.offset, found.tail.is_torn) == (path, offset, True)


def test_the_seal_stands_at_the_hole_and_the_next_start_goes_on_behind_it(tmp_path: Path):
    disk = written(tmp_path)
    path, offset, length = last_block(disk, tmp_path)
    disk.files[path].data[offset + length - 8] ^= 1
    live = recover_live(disk, tmp_path)
    found = recover(disk, tmp_path, LiveSet())
    sequence, crc = seal_tail(found, disk, is_direct=True, now_ms=9)
    assert sequence == found.sequence + 1
    again = recover(disk, tmp_path, LiveSet())
    assert (again.sequence, again.crc, again.tail) == (sequence, crc, None)
    assert again.watermark == found.sequence, "what was taken is durable, and the seal says so"
    assert seal_tail(again, disk, is_direct=True, now_ms=9) == (sequence, crc)
    assert recover_live(disk, tmp_path) == live


@pytest.mark.parametrize("is_direct", [True, False])
def test_what_was_read_is_flushed_before_it_counts(tmp_path: Path, is_direct: bool):
    disk = written(tmp_path)
    found = recover(disk, tmp_path, LiveSet())
    disk.log.clear()
    seal_tail(found, disk, is_direct=is_direct, now_ms=9)
    kinds = [op.kind for op in disk.log]
    # One flush clears the drive's cache for all; the kernel's cache has to be flushed file by file.
    flushes = 1 if is_direct else len(found.used)
    assert kinds == ["flush"] * flushes + ["write", "flush"]


def test_lost_flushes_are_damage_under_d2_and_a_reported_loss_under_d1(tmp_path: Path):
    for turns in range(8, 20):
        disk = written(tmp_path, turns)
        path, offset, _ = last_block(disk, tmp_path)
        in_last = places_in_last_file(disk, tmp_path)
        if len(in_last) >= 4:
            break
    hole = in_last[-3]
    disk.files[path].data[hole : hole + 64] = bytes(64)
    with pytest.raises(CorruptRecord) as caught:
        recover(disk, tmp_path, LiveSet())
    assert caught.value.where == f"{path}:{hole}"
    found = recover(disk, tmp_path, LiveSet(), is_flushed=False)
    assert found.tail is not None
    assert found.tail.offset == hole
    assert (found.dropped_blocks, found.lost_blocks) == (2, 2)
    assert offset == in_last[-1]


def test_leftovers_of_an_interrupted_reclaim_are_freed(tmp_path: Path):
    disk = MemoryDisk()
    kept: dict[Path, bytearray] = {}

    async def live() -> None:
        journal = await open_memory(tmp_path, disk)
        client = Client(journal, disk, 5)
        for _ in range(10):
            await client.send(3)
            await asyncio.sleep(0.001)
            if not kept:
                path = tmp_path / "activemq-data-1.hq"
                kept[path] = bytearray(disk.files[path].data)
        kept[path][:] = disk.files[path].data
        await client.receive()
        await client.acknowledge(len(client.held))
        await until(lambda: journal.statistics().files_reclaimed >= 1)
        await journal.close()

    product_loop.run(live())
    live_before = recover_live(disk, tmp_path)
    # The power went after the checkpoint and before the header of file 1 was freed.
    for path in [path for path in disk.files if path.name == "activemq-data-1.hq"]:
        del disk.files[path]
    path, data = next(iter(kept.items()))
    disk.files[path] = type(next(iter(disk.files.values())))(99, data)
    found = recover(disk, tmp_path, LiveSet())
    # Closing may have come between the next checkpoint and its files: then there are more.
    assert 1 in [file.file_id for file in found.leftovers]
    assert recover_live(disk, tmp_path) == live_before

    async def reopen() -> None:
        journal = await open_memory(tmp_path, disk)
        await journal.close()

    product_loop.run(reopen())
    survey = survey_folder(tmp_path, MESSAGE_FORM, disk, is_direct=True)
    assert 1 not in [file.file_id for file in survey.active]


_UNKNOWN = encode_record(PutRecord("k", b"v")).ljust(24, b"\0")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        # A type that only newer readers know.
        (_UNKNOWN[:4] + b"\x85" + _UNKNOWN[5:], "needs a newer reader"),
        (encode_record(AddRecord((Place(1, 2**63),), b"", b"", 1)), "out of range"),
        (encode_record(AckRecord(1, (SequenceRange(2, 2**63),))), "out of range"),
        (encode_record(CountRecord(1, 1, 2**63)), "out of range"),
    ],
)
@pytest.mark.parametrize("is_core", [True, False])
def test_a_malformed_record_under_a_good_checksum_is_named(
    tmp_path: Path, record: bytes, said: str, is_core: bool
):
    disk = written(tmp_path)
    found = recover(disk, tmp_path, LiveSet())
    assert found.tail is not None
    payload = record.ljust(align8(len(record)), b"\0")
    header = BlockHeader(
        sequence=found.sequence + 1,
        file_id=found.tail.file.file_id,
        watermark=found.sequence,
        payload_bytes=len(payload),
        records=1,
        previous_crc=found.crc,
        time_ms=1,
    )
    place = found.tail.offset
    block = encode_block(header, payload, salt=found.tail.file.salt, offset=place)
    disk.files[found.tail.file.path].data[place : place + len(block)] = block
    sink = open_core(slabs_max=16, record_bytes_max=64 * 1024) if is_core else LiveSet()
    with pytest.raises(CorruptRecord, match=None if is_core else said) as caught:
        recover(disk, tmp_path, sink)
    assert caught.value.where == f"{found.tail.file.path}:{place}"


def test_the_log_tells_the_uncertain_zones(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    disk = written(tmp_path)
    with caplog.at_level(logging.INFO, "vespiary_broker.store.recovery"):
        log_outcome(recover(disk, tmp_path, LiveSet()), tmp_path)
    assert "recovered" in caplog.text
    assert re.search(
        r"the end of the journal, 1 block \(\d records?\), is above the durable", caplog.text
    )

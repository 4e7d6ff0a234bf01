"""Table 3 of recovery on real bytes: every combination of its facts, made with the codec alone.

`test_journal_verdicts` asks the pure functions; here each combination is a small journal on a disk,
and the whole recovery must come to the verdict that the table prints (docs/internals/recovery.md).
"""

from __future__ import annotations

import itertools

import pytest

from vespiary_codec.journal.file_header import (
    FileHeader,
    FileState,
    JournalKind,
    encode_file_header,
)
from vespiary_codec.journal.verdicts import (
    PlaceFacts,
    PlaceVerdict,
    Role,
    RoleFacts,
    assign_role,
    judge_place,
)
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit.block_builder import FOLDER, Builder
from vespiary_testkit.journal_workload import FILE_BYTES, LiveSet, recover

# --- table 3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", list(itertools.product((False, True), repeat=5)))
def test_every_combination_of_a_place(facts: tuple[bool, ...]) -> None:
    is_there, is_older, is_covered, is_witnessed, is_flushed = facts
    builder = Builder()
    builder.file(1)
    builder.files(*((1, 2) if is_older else (1,)))
    place = builder.block()
    builder.block(watermark=2 if is_covered else 1)
    if is_older:
        builder.seal(watermark=2 if is_covered else 1)
        builder.file(2)
        builder.files(1, 2, watermark=2 if is_covered else 1)
    builder.file(3 if is_older else 2, watermark=2 if is_witnessed else 1)  # never begun
    if not is_there:
        builder.damage(1, place)
    verdict = judge_place(PlaceFacts(*facts))
    if verdict is PlaceVerdict.CORRUPT:
        with pytest.raises(CorruptRecord) as caught:
            recover(builder.disk, FOLDER, LiveSet(), is_flushed=is_flushed)
        assert caught.value.where == f"{builder.path(1)}:{place}"
        assert "block 2 is not there" in str(caught.value)
        if is_witnessed and not is_covered:
            assert f"the header of activemq-data-{3 if is_older else 2}.hq" in str(caught.value)
        return
    found = recover(builder.disk, FOLDER, LiveSet(), is_flushed=is_flushed)
    if verdict is PlaceVerdict.TAKE:
        assert found.sequence == builder.chain.sequence
        assert found.dropped_blocks == found.lost_blocks == 0
        return
    assert (found.sequence, found.dropped_blocks) == (1, 1)
    assert found.tail is not None
    assert found.tail.offset == place
    assert found.lost_blocks == (1 if verdict is PlaceVerdict.LOST else 0)


# --- table 2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", list(itertools.product((False, True), repeat=3)))
def test_every_combination_of_a_file_id(facts: tuple[bool, bool, bool]) -> None:
    """Id 2 or 4 is looked at; the newest FILES record stands in file 3, one more is ahead."""
    is_active, is_listed, is_above = facts
    looked_at, ahead = (4, 5) if is_above else (2, 4)
    builder = Builder()
    builder.chain.sequence, builder.chain.crc = 7, 99  # of older files, which were reclaimed
    if is_active and not is_above:
        builder.file(2)
        builder.files(2)
        builder.seal()
    builder.file(3)
    ids = {3, ahead} | ({looked_at} if is_listed else set())
    builder.files(*sorted(ids))
    if is_above and is_active:
        builder.file(4)
    builder.file(ahead)
    role = assign_role(RoleFacts(is_active, is_listed, is_above))
    if role is Role.MISSING:
        with pytest.raises(CorruptRecord, match=f"file {looked_at} of the journal is missing"):
            recover(builder.disk, FOLDER, LiveSet())
        return
    found = recover(builder.disk, FOLDER, LiveSet())
    used = [file.file_id for file in (*found.used, *found.ahead)]
    assert (looked_at in used) == (role is Role.IN_USE)
    leftovers = [file.file_id for file in found.leftovers]
    assert leftovers == ([looked_at] if role is Role.LEFTOVER else [])


@pytest.mark.parametrize("is_listed", [True, False])
def test_nobody_counts_up_to_a_distant_file_id(is_listed: bool) -> None:
    """One more file is ahead, whose id takes ages to count to; the first id between is missing."""
    builder = Builder()
    builder.file(3)
    builder.files(*range(3, 5) if is_listed else (3,))
    builder.file(2**32 - 1)
    with pytest.raises(CorruptRecord, match="file 4 of the journal is missing"):
        recover(builder.disk, FOLDER, LiveSet())


# --- what makes a block the expected one ----------------------------------------------------------


def test_a_block_of_another_chain_is_not_taken() -> None:
    builder = Builder()
    builder.file(1)
    builder.files(1)
    place = builder.block(previous_crc=builder.chain.crc ^ 1)
    found = recover(builder.disk, FOLDER, LiveSet())
    assert (found.sequence, found.dropped_blocks) == (1, 1)
    assert found.tail is not None
    assert found.tail.offset == place


@pytest.mark.parametrize("sequence", [1, 3, 4, 1 << 40])
def test_a_block_of_another_sequence_is_not_taken(sequence: int) -> None:
    builder = Builder()
    builder.file(1)
    builder.files(1)
    builder.block(sequence=sequence)
    found = recover(builder.disk, FOLDER, LiveSet())
    assert (found.sequence, found.dropped_blocks) == (1, 1)


def test_a_block_of_another_place_of_another_file_or_of_another_life_is_not_taken() -> None:
    whole = Builder()
    whole.file(1)
    whole.files(1)
    place = whole.block()
    block = bytes(whole.disk.files[whole.path(1)].data[place : place + 4096])
    moved = Builder()
    moved.file(1)
    moved.files(1)
    data = moved.disk.files[moved.path(1)].data
    data[place + 4096 : place + 8192] = block  # one place further
    assert recover(moved.disk, FOLDER, LiveSet()).sequence == 1
    other = Builder()
    other.file(1)
    other.files(1)
    header = bytearray(other.disk.files[other.path(1)].data[:4096])
    salted = FileHeader(
        state=FileState.ACTIVE,
        kind=JournalKind.MESSAGE,
        journal_id=b"j" * 16,
        file_id=1,
        salt=1,
        size_bytes=FILE_BYTES,
        activated_ms=1,
    )
    header[:] = encode_file_header(salted)
    other.disk.files[other.path(1)].data[:4096] = header  # another life: another salt
    assert recover(other.disk, FOLDER, LiveSet()).sequence == 0

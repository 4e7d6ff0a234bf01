"""DUPLICATE records in the core: members of transactions like any other, told when they count."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_codec.journal.block import decode_block, encode_block
from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord, duplicate_body
from vespiary_codec.journal.record import (
    CommitRecord,
    RecordType,
    decode_record,
    digest_members,
    walk_records,
)
from vespiary_testkit.core_rig import KIB, SALT, CoreRig

TYPE = RecordType.DUPLICATE


def body(transaction: int = 0, number: int = 1, text: bytes = b"id") -> bytes:
    return duplicate_body(DuplicateRecord("a", (DuplicateId(number, text),), transaction))


def told(rig: CoreRig, *, without: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    """Return (file, type) of the records that a restart hands to Python."""
    again = CoreRig(type(rig.core), rig.verify, files=0)
    again.core.open_queue(1)
    found: list[tuple[int, int]] = []
    for file_id, data in rig.files.items():
        view = memoryview(data)
        blocks = rig.verify(view[4096:], 4096, SALT + file_id, file_id, 10_000)
        if not blocks or file_id in without:
            continue
        again.core.restore_file(file_id, SALT + file_id, len(data))
        for facts in blocks:
            block = view[facts.offset : facts.offset + facts.length]
            others = again.core.restore_block(file_id, facts.offset, block)
            found += [(file_id, type_) for type_, _ in others]
    again.core.restore_done()
    rig.again = again  # type: ignore[attr-defined]
    return found


def commit_one(rig: CoreRig, transaction: int = 7) -> None:
    rig.core.begin(transaction, 1000, 3)
    rig.publish(b"one", transaction=transaction)
    rig.core.append_record(TYPE, body(transaction), flags=1)
    rig.core.commit(transaction)
    rig.flush()


def test_the_id_is_a_member_with_digest(rig: CoreRig) -> None:
    commit_one(rig)
    offset = rig.blocks()[0][0].offset
    data = memoryview(rig.files[1])[offset:]
    header, payload = decode_block(data, offset=offset, salt=SALT + 1, file_id=1)
    raw = list(walk_records(payload, header.records))
    assert decode_record(raw[1]) == DuplicateRecord("a", (DuplicateId(1, b"id"),), 7)
    assert decode_record(raw[2]) == CommitRecord(7, 2, digest_members([r.data for r in raw[:2]]))


def test_python_is_told_of_the_id_and_then_of_the_commit(rig: CoreRig) -> None:
    commit_one(rig)
    assert told(rig) == [(1, TYPE), (1, RecordType.COMMIT)]


def test_an_id_outside_of_transactions_needs_no_commit(rig: CoreRig) -> None:
    rig.core.append_record(TYPE, body())
    rig.flush()
    assert told(rig) == [(1, TYPE)]


def test_a_transaction_without_ids_is_not_told_of(rig: CoreRig) -> None:
    rig.core.begin(7, 1000, 3)
    rig.publish(b"one", transaction=7)
    rig.core.commit(7)
    rig.flush()
    assert told(rig) == []


def _break(rig: CoreRig, what: bytes) -> None:
    """Replace some bytes of the id's record and give the block a good checksum again."""
    facts, _ = rig.blocks()[0]
    header, payload = decode_block(
        memoryview(rig.files[1])[facts.offset :], offset=facts.offset, salt=SALT + 1, file_id=1
    )
    changed = bytes(payload).replace(what, bytes(reversed(what)))
    assert changed != bytes(payload)
    block = encode_block(header, changed, salt=SALT + 1, offset=facts.offset)
    rig.files[1][facts.offset : facts.offset + len(block)] = block


def test_a_commit_whose_digest_is_wrong_is_not_told_of(rig: CoreRig) -> None:
    rig.core.begin(7, 1000, 3)
    rig.publish(b"one", transaction=7)
    rig.core.append_record(TYPE, body(7, text=b"wxyz"), flags=1)
    rig.core.commit(7)
    rig.flush()
    _break(rig, b"wxyz")
    assert told(rig) == [(1, TYPE)]
    assert rig.again.core.queue_statistics(1).ready == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("data", "flags"), [(body(8), 1), (body(), 1), (b"", 1), (b"\0" * 15, 1)])
def test_a_member_names_the_transaction_that_is_open(rig: CoreRig, data: bytes, flags: int) -> None:
    with pytest.raises(ValueError):
        rig.core.append_record(TYPE, data, flags=flags)
    rig.core.begin(7, 1000, 3)
    with pytest.raises(ValueError):
        rig.core.append_record(TYPE, data, flags=flags)
    rig.core.commit(7)
    rig.flush()
    assert rig.records()[0] == CommitRecord(7, 0, 0), "nothing was staged"


@pytest.mark.parametrize("cut", [b"", bytes(7)])
def test_a_record_that_is_cut_off_is_malformed(rig: CoreRig, cut: bytes) -> None:
    rig.core.append_record(TYPE, cut)
    rig.flush()
    with pytest.raises(ValueError):
        told(rig)


def over_two_files(rig: CoreRig) -> None:
    """Stage a transaction whose id stands in the first file and whose COMMIT in the second."""
    rig.add_file()
    while not rig.writes or rig.writes[-1].offset + rig.writes[-1].length < 220 * KIB:
        rig.publish(bytes(20 * KIB))
        rig.flush()
    rig.core.begin(5, 60 * KIB, 3)
    rig.core.append_record(TYPE, body(5), flags=1)
    rig.publish(bytes(35 * KIB), transaction=5)
    rig.publish(b"late", transaction=5)
    rig.core.commit(5)
    rig.flush()


def test_the_commit_keeps_the_file_of_the_id(rig: CoreRig) -> None:
    over_two_files(rig)
    assert rig.core.current_file() == 2
    assert rig.core.cancels(2) == [1]
    told(rig)
    again: Any = rig.again  # type: ignore[attr-defined]
    assert again.core.cancels(2) == [1], "and so after a restart"


def test_messages_count_when_the_file_of_their_id_is_gone(rig: CoreRig) -> None:
    over_two_files(rig)
    left = rig.core.live_places(2)
    told(rig, without=(1,))
    again: Any = rig.again  # type: ignore[attr-defined]
    assert left > 0
    assert again.core.live_places(2) == left

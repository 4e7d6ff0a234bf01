"""Confirms and transactions at their edges: what the seeded faults showed to be untested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vespiary_codec.journal.block import BlockHeader, encode_block
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    SequenceRange,
    align8,
    digest_members,
    encode_record,
)
from vespiary_testkit.core_rig import SALT, CoreRig, ids

FILE_BYTES = 64 * 1024


def send(receipt: bytes) -> bytes:
    return b"SEND\ndestination:/queue/a\npersistent:true\nreceipt:" + receipt + b"\n\nbody\0"


def test_a_completion_frees_the_receipts_of_its_own_write_alone(rig: CoreRig) -> None:
    consumer = rig.consume()
    rig.scan(send(b"r1"))
    first = rig.write()
    assert first is not None
    rig.scan(send(b"r2"))
    rig.core.write_done(first.sequence)
    assert rig.core.take_receipts() == [(rig.connection, b"RECEIPT\nreceipt-id:r1\n\n\0")]
    assert ids(rig.deliver(consumer)) == [1]
    second = rig.write()
    assert second is not None
    assert rig.core.take_receipts() == []
    assert rig.deliver(consumer) == []
    rig.core.write_done(second.sequence)
    assert rig.core.take_receipts() == [(rig.connection, b"RECEIPT\nreceipt-id:r2\n\n\0")]
    assert ids(rig.deliver(consumer)) == [2]


# --- transactions, block by block ---------------------------------------------------------------


class Blocks:
    """Feeds blocks that the codec made to a core that recovers."""

    def __init__(self, make: Callable[..., CoreRig]) -> None:
        self.core = make(files=0).core
        self.core.open_queue(1)
        self.sequence = 0
        self.offsets: dict[int, int] = {}

    def feed(self, file_id: int, *records: Any, skipped: int = 0) -> None:
        """Give one block with these records; `skipped` blocks before it are not there."""
        if file_id not in self.offsets:
            self.core.restore_file(file_id, SALT + file_id, FILE_BYTES)
            self.offsets[file_id] = 4096
        self.sequence += 1 + skipped
        encoded = [encode_record(record) for record in records]
        payload = b"".join(data.ljust(align8(len(data)), b"\0") for data in encoded)
        header = BlockHeader(
            sequence=self.sequence,
            file_id=file_id,
            watermark=0,
            payload_bytes=len(payload),
            records=len(records),
            previous_crc=0,
            time_ms=1,
        )
        offset = self.offsets[file_id]
        block = encode_block(header, payload, salt=SALT + file_id, offset=offset)
        self.offsets[file_id] += len(block)
        self.core.restore_block(file_id, offset, memoryview(block))

    def end(self) -> tuple[int, int]:
        """End the recovery; return the messages that are there and the transactions dropped."""
        dropped = self.core.restore_done()
        return self.core.queue_statistics(1).ready, dropped


def add(sequence: int, transaction: int = 0, body: bytes = b"body") -> AddRecord:
    return AddRecord(((1, sequence),), b"", body, 1, transaction=transaction)


def commit_of(*members: Any, transaction: int = 9) -> CommitRecord:
    digest = digest_members([encode_record(member) for member in members])
    return CommitRecord(transaction, len(members), digest)


def test_a_whole_transaction_counts(make: Callable[..., CoreRig]) -> None:
    blocks = Blocks(make)
    blocks.feed(1, add(1, 9), add(2, 9), commit_of(add(1, 9), add(2, 9)))
    assert blocks.end() == (2, 0)


@pytest.mark.parametrize("there", [(1,), (2,), (1, 3), (1, 2, 3), (2, 1)])
def test_a_commit_counts_with_just_its_members(
    make: Callable[..., CoreRig], there: tuple[int, ...]
) -> None:
    """Fewer, others, more, or in another order: without a reclaimed file all of them are void."""
    blocks = Blocks(make)
    blocks.feed(1, *(add(sequence, 9) for sequence in there))
    blocks.feed(1, commit_of(add(1, 9), add(2, 9)))
    assert blocks.end() == (0, 1)


def test_a_member_with_another_body_voids_its_transaction(make: Callable[..., CoreRig]) -> None:
    blocks = Blocks(make)
    blocks.feed(1, add(1, 9, b"bodY"), commit_of(add(1, 9)))
    assert blocks.end() == (0, 1)


def test_behind_a_reclaimed_file_a_commit_counts_with_fewer_members_and_not_with_more(
    make: Callable[..., CoreRig],
) -> None:
    blocks = Blocks(make)
    blocks.feed(1, add(7))
    blocks.feed(3, add(2, 9), commit_of(add(1, 9), add(2, 9)), skipped=4)
    assert blocks.end() == (2, 0)
    blocks = Blocks(make)
    blocks.feed(1, add(7))
    blocks.feed(3, add(1, 9), add(2, 9), commit_of(add(1, 9)), skipped=4)
    assert blocks.end() == (1, 1)


def test_the_file_of_a_transactional_acknowledgement_waits_for_what_it_ends(
    make: Callable[..., CoreRig],
) -> None:
    """Were file 2 freed before file 1, the COMMIT in file 3 would no longer end the message."""
    ack = AckRecord(1, (SequenceRange(1, 1),), 9)
    blocks = Blocks(make)
    blocks.feed(1, add(1), add(2))
    blocks.feed(2, ack)
    blocks.feed(3, commit_of(ack))
    assert blocks.end() == (1, 0)
    assert blocks.core.cancels(2) == [1]
    assert blocks.core.cancels(3) == [1, 2]

"""The core over time: transactions, files that go, memory that is short, restarts."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from vespiary_codec.journal.block import decode_block
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    SequenceRange,
    digest_members,
    walk_records,
)
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom
from vespiary_testkit.core_rig import DESTINATION, KIB, SALT, CoreRig, ids

# --- transactions -------------------------------------------------------------------------------


def test_a_transaction_counts_with_its_commit(rig: CoreRig) -> None:
    rig.publish(b"old")
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer)
    rig.core.begin(77, 1000, 10)
    rig.publish(b"one", transaction=77)
    rig.publish(b"volatile", persistent=False, transaction=77)
    assert rig.core.acknowledge(consumer, 1, transaction=77) == 1
    rig.core.commit(77)
    assert rig.deliver(consumer) == []
    rig.flush()
    assert ids(rig.deliver(consumer)) == [2, 3]
    _, add, ack, commit = rig.records()
    assert isinstance(add, AddRecord)
    assert add.transaction == 77
    assert ack == AckRecord(1, (SequenceRange(1, 1),), 77)
    offset = rig.blocks()[1][0].offset
    data = memoryview(rig.files[1])[offset:]
    header, payload = decode_block(data, offset=offset, salt=SALT + 1, file_id=1)
    raw = [record.data for record in walk_records(payload, header.records)]
    assert commit == CommitRecord(77, 2, digest_members(raw[:2]))


def test_a_transaction_needs_room_beforehand(rig: CoreRig) -> None:
    with pytest.raises(NoRoom):
        rig.core.begin(1, 600 * KIB, 10)
    rig.core.begin(2, 1000, 1)
    with pytest.raises(ValueError):
        rig.core.begin(3, 1000, 1)
    rig.core.commit(2)


def commit_over_two_files(rig: CoreRig) -> None:
    """Fill the first file, then stage a transaction with a member in each of two files."""
    while not rig.writes or rig.writes[-1].offset + rig.writes[-1].length < 220 * KIB:
        rig.publish(bytes(20 * KIB))
        rig.flush()
    rig.core.begin(5, 60 * KIB, 3)
    rig.publish(b"early", transaction=5)
    rig.publish(bytes(35 * KIB), transaction=5)
    rig.publish(b"late", transaction=5)
    rig.core.commit(5)
    rig.flush()


def test_a_commit_keeps_the_files_of_its_members(rig: CoreRig) -> None:
    rig.add_file()
    commit_over_two_files(rig)
    assert rig.core.current_file() == 2
    assert rig.core.cancels(2) == [1]
    assert rig.core.cancels(1) == []


def test_a_commit_still_counts_when_the_file_of_its_first_members_is_reclaimed(
    rig: CoreRig,
) -> None:
    rig.add_file()
    commit_over_two_files(rig)
    consumer = rig.consume()
    rig.deliver(consumer)
    for sequence in range(1, 40):
        if rig.core.live_places(1):
            rig.core.acknowledge(consumer, sequence)
    rig.flush()
    assert rig.core.live_places(1) == 0
    left = rig.core.live_places(2)
    assert left > 0
    again = rig.restored(without=(1,))
    assert again.core.live_places(2) == left
    assert again.dropped == 0


def test_members_without_a_whole_transaction_are_void(rig: CoreRig) -> None:
    rig.publish(b"plain")
    rig.flush()
    rig.core.begin(6, 1000, 3)
    rig.publish(b"member", transaction=6)
    for _ in range(3):
        rig.publish(bytes(10 * KIB), transaction=6)
    rig.core.commit(6)
    rig.flush()
    whole = rig.restored()
    assert whole.core.queue_statistics(1).ready == 5
    facts, _ = rig.blocks()[-1]
    rig.files[1][facts.offset :] = bytes(len(rig.files[1]) - facts.offset)
    torn = rig.restored()
    assert torn.dropped == 1
    assert torn.core.queue_statistics(1).ready == 1
    assert torn.core.live_places(1) == 1


# --- files and memory ---------------------------------------------------------------------------


def test_memory_is_bounded_and_what_was_dropped_comes_back(make: Callable[..., CoreRig]) -> None:
    rig = make(slabs_max=7).begin()
    rig.fill(60)
    # The slab being filled and four that are protected: what was closed before those is dropped
    # rather than that memory is made while messages wait.
    assert rig.core.image_statistics().slabs_total == 5
    for _ in range(3):
        rig.core.add_slab(rig.core.make_slab())
    statistics = rig.core.image_statistics()
    assert (statistics.slabs_total, statistics.slabs_max) == (7, 7)
    consumer = rig.consume()
    got: list[int] = []
    loaded = []
    while len(got) < 60:
        status, _, frames = rig.core.deliver(consumer, 1, 10**6)
        if status == DeliverStatus.ABSENT:
            rig.core.take_ready_queues()
            loaded.append(rig.load(consumer))
            assert rig.core.take_ready_queues() == [1]
            continue
        body = frames.split(b"\n\n", 1)[1]
        got.append(int.from_bytes(body[:4], "little"))
        rig.core.acknowledge(consumer, len(got))
        rig.flush()
    assert got == list(range(60))
    assert loaded
    assert loaded == sorted(loaded), "each once, in the order of the queue"


def test_a_failed_load_gives_the_memory_back(make: Callable[..., CoreRig]) -> None:
    rig = make(slabs_max=7).begin()
    rig.fill(40)
    consumer = rig.consume()
    while rig.core.deliver(consumer, 1, 10**6)[0] != DeliverStatus.ABSENT:
        pass
    free = rig.core.image_statistics().slabs_free
    rig.load(consumer, good=False)
    assert rig.core.image_statistics().slabs_free == free + 1
    assert rig.core.deliver(consumer, 1, 10**6)[0] == DeliverStatus.ABSENT


def test_a_slab_without_live_places_goes_at_once(rig: CoreRig) -> None:
    consumer = rig.consume(AckMode.AUTO)
    for _ in range(30):
        rig.fill(1)
        rig.deliver(consumer)
    rig.flush()
    statistics = rig.core.image_statistics()
    assert statistics.slabs_total - statistics.slabs_free == 1, "the one being filled"


def test_files_that_cancel_others_wait_for_them(rig: CoreRig) -> None:
    rig.core.grow(16)
    rig.add_file()
    consumer = rig.consume()
    rig.fill(12)
    assert rig.core.current_file() == 2
    rig.deliver(consumer)
    rig.core.acknowledge(consumer, 1)
    rig.flush()
    assert rig.core.cancels(2) == [1]
    with pytest.raises(ValueError):
        rig.core.forget_file(1)
    for sequence in range(2, 13):
        if rig.core.live_places(1):
            rig.core.acknowledge(consumer, sequence)
    rig.flush()
    rig.core.forget_file(1)
    assert rig.core.cancels(2) == []
    with pytest.raises(ValueError):
        rig.core.live_places(1)
    with pytest.raises(ValueError):
        rig.core.forget_file(2)


def test_volatile_messages_are_bounded_by_memory(make: Callable[..., CoreRig]) -> None:
    rig = make(slabs_max=3).begin()
    for _ in range(9):
        rig.publish(bytes(20 * KIB), persistent=False)
    with pytest.raises(NoRoom):
        rig.publish(bytes(20 * KIB), persistent=False)
    consumer = rig.consume(AckMode.AUTO)
    assert len(rig.core.deliver(consumer, 1000, 10**9)[2]) > 3 * 20 * KIB
    rig.publish(bytes(20 * KIB), persistent=False)


def test_grow_makes_slabs_ahead_of_need(make: Callable[..., CoreRig]) -> None:
    rig = make(slabs_max=5)
    assert rig.core.grow(3) == 3
    assert rig.core.grow(9) == 2
    assert rig.core.image_statistics().slabs_free == 5


# --- recovery -----------------------------------------------------------------------------------


def test_queues_come_back_as_they_were(rig: CoreRig) -> None:
    for n in range(10):
        rig.publish(b"%d" % n)
    rig.publish(b"lost", persistent=False)
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer, 6)
    for sequence in (1, 2, 4):
        rig.core.acknowledge(consumer, sequence)
    rig.core.give_back(consumer, 3)
    rig.flush()
    again = rig.restored()
    statistics = again.core.queue_statistics(1)
    assert (statistics.head, statistics.tail, statistics.ready) == (3, 11, 7)
    assert again.core.take_ready_queues() == [1]
    again.go_on()
    taker = again.consume()
    assert again.core.deliver(taker, 100, 10**6)[0] == DeliverStatus.ABSENT
    again.load(taker)
    frames = again.deliver(taker)
    assert ids(frames) == [3, 5, 6, 7, 8, 9, 10]
    assert [frame[-1:] for frame in frames] == [b"2", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert b"delivery-count:1\n" in frames[0]
    assert b"redelivered" not in frames[1]
    again.publish(b"new")
    again.flush()
    assert again.blocks(2)[0][0].sequence == again.last.sequence + 1
    assert again.blocks(2)[0][0].previous_crc == again.last.crc
    assert ids(again.deliver(taker)) == [11]


def test_head_passes_over_holes_that_were_restored(rig: CoreRig) -> None:
    for _ in range(6):
        rig.publish()
    rig.flush()
    consumer = rig.consume()
    rig.deliver(consumer)
    for sequence in (1, 3, 4):
        rig.core.acknowledge(consumer, sequence)
    rig.flush()
    again = rig.restored()
    again.go_on()
    taker = again.consume()
    again.deliver(taker)
    again.load(taker)
    for sequence in (2, 5):
        assert ids(again.deliver(taker, 1)) == [sequence]
        assert again.core.queue_statistics(1).head == sequence
        again.core.acknowledge(taker, sequence)
    assert ids(again.deliver(taker, 1)) == [6]
    assert again.core.queue_statistics(1).head == 6
    assert again.core.queue_states() == struct.pack("<IIQQ", 1, 0, 6, 7)


def test_places_of_unknown_queues_are_void(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    rig.core.set_route(rig.route, [1, 2])
    rig.publish()
    rig.flush()
    again = rig.restored()
    assert again.core.live_places(1) == 1


def test_sequences_are_never_used_twice(rig: CoreRig) -> None:
    states = struct.pack("<II", 2, 0) + struct.pack("<IIQQIIQQ", 1, 0, 40, 40, 9, 0, 1, 5)
    rig.publish()
    rig.core.append_record(6, states)
    rig.flush()
    again = rig.restored()
    assert again.core.queue_statistics(1).tail == 40


def test_a_moved_message_counts_once(rig: CoreRig) -> None:
    rig.publish(b"body")
    rig.flush()
    block = bytes(rig.files[1][4096:8192])
    again = CoreRig(type(rig.core), rig.verify, files=0)
    again.core.open_queue(1)
    again.core.restore_file(1, SALT, 256 * KIB)
    again.core.restore_file(2, SALT, 256 * KIB)
    again.core.restore_block(1, 4096, memoryview(block))
    again.core.restore_block(2, 4096, memoryview(block))
    again.core.restore_done()
    assert (again.core.live_places(1), again.core.live_places(2)) == (0, 1)
    assert again.core.queue_statistics(1).live_bytes == len(DESTINATION) + 4


def test_acknowledgements_tie_files_also_after_a_restart(rig: CoreRig) -> None:
    rig.core.grow(16)
    rig.add_file()
    rig.fill(12)
    consumer = rig.consume()
    rig.deliver(consumer)
    rig.core.acknowledge(consumer, 1)
    rig.flush()
    again = rig.restored()
    assert again.core.cancels(2) == [1]
    assert again.core.live_places(1) == rig.core.live_places(1)


def test_records_that_are_not_the_cores_are_handed_over(rig: CoreRig) -> None:
    rig.core.append_record(5, b"f" * 16)
    rig.core.append_record(32, b"p" * 11)
    rig.core.append_record(90, b"u" * 3)
    rig.publish()
    rig.flush()
    again = CoreRig(type(rig.core), rig.verify, files=0)
    again.core.restore_file(1, SALT + 1, 256 * KIB)
    block = memoryview(rig.files[1])[4096:8192]
    assert again.core.restore_block(1, 4096, block) == [
        (5, b"f" * 16), (32, b"p" * 11), (90, b"u" * 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at", "value"),
    [(64, 4), (64, 4000), (64 + 22, 0), (64 + 16, 9), (64 + 4, 0x80 | 1), (64 + 4, 3), (64 + 4, 2)],
)
def test_malformed_records_are_refused(rig: CoreRig, at: int, value: int) -> None:
    rig.publish()
    rig.flush()
    block = bytearray(rig.files[1][4096:8192])
    block[at : at + 2] = (
        value.to_bytes(2, "little") if value > 255 else bytes([value]) + block[at + 1 : at + 2]
    )
    again = CoreRig(type(rig.core), rig.verify, files=0)
    again.core.open_queue(1)
    again.core.restore_file(1, SALT + 1, 256 * KIB)
    with pytest.raises(ValueError):
        again.core.restore_block(1, 4096, memoryview(block))
    assert again.core.live_places(1) == 0


def test_a_declared_number_of_records_takes_no_memory(rig: CoreRig) -> None:
    rig.publish()
    rig.flush()
    block = bytearray(rig.files[1][4096:8192])
    block[36:40] = b"\xff" * 4
    again = CoreRig(type(rig.core), rig.verify, files=0)
    again.core.restore_file(1, SALT + 1, 256 * KIB)
    with pytest.raises(ValueError):
        again.core.restore_block(1, 4096, memoryview(block))


# --- verify_blocks ------------------------------------------------------------------------------


def test_verify_blocks_ends_where_blocks_do(rig: CoreRig) -> None:
    for n in range(4):
        rig.publish(b"%d" % n)
        rig.flush()
    data = memoryview(rig.files[1])[4096:]

    def count(data: memoryview = data, offset: int = 4096, salt: int = SALT + 1,
              file_id: int = 1, limit: int = 99) -> int:  # fmt: skip
        return len(rig.verify(data, offset, salt, file_id, limit))

    assert count() == 4
    assert count(limit=3) == 3
    assert count(limit=0) == 0
    assert count(data[4096:], 8192) == 3
    assert count(data[4096:]) == 0, "another place"
    assert count(salt=SALT) == 0
    assert count(file_id=2) == 0
    assert count(data[:8192]) == 2
    assert count(data[:8191]) == 1
    spoiled = bytearray(data)
    spoiled[2 * 4096 + 80] ^= 1
    assert count(memoryview(spoiled)) == 2

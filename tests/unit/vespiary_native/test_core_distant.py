"""Sequences far apart cost what near ones do, and one that no core has written is rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.page_record import PLACES_MAX, PagedQueue, PagedRecord, encode_paged
from vespiary_codec.journal.record import (
    SEQUENCE_MAX,
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    Place,
    QueuesRecord,
    QueueState,
    Record,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_native.abc import AckMode, Core, NoSequenceLeft, ScanStatus
from vespiary_testkit.core_rig import DESTINATION, CoreRig, ids, send
from vespiary_testkit.journal_blocks import STORY_FILE_BYTES, Story

FAR = 2**62
"""An array by sequence from 1 to here fits into no memory, and a walk step by step does not end."""


def add(*sequences: int, transaction: int = 0) -> AddRecord:
    places = tuple(Place(1, sequence) for sequence in sequences)
    return AddRecord(places, DESTINATION, b"body", 1, transaction=transaction)


def acknowledged(first: int, number: int = 1, transaction: int = 0) -> AckRecord:
    return AckRecord(1, (SequenceRange(first, number),), transaction)


def restored(make: Callable[..., CoreRig], *blocks: tuple[Record | bytes, ...]) -> CoreRig:
    """Return a core that has recovered these blocks and writes to a new file."""
    rig = make(files=0)
    rig.core.open_queue(1)
    story = Story()
    story.file(1)
    for block in blocks:
        story.block(*block)
    for step in story.steps:
        step.tell(rig.core)
        if step.block is not None:
            file = rig.files.setdefault(1, bytearray(STORY_FILE_BYTES))
            file[step.offset : step.offset + len(step.block)] = step.block
    rig.dropped = rig.core.restore_done()
    rig.add_file()
    rig.core.start(len(blocks) + 1, 0, 0)
    rig.route = rig.core.open_route([1])
    rig.connection = rig.connect()
    return rig


def load_file(rig: CoreRig) -> None:
    """Have what was recovered in memory."""
    rig.load_slab(1, 0)


def looked_at(core: Core) -> list[int]:
    return [one.sequence for one in core.look(1, 0, 100, everything=True).messages]


def test_messages_far_apart_are_there_after_a_recovery(make: Callable[..., CoreRig]) -> None:
    rig = restored(make, (add(1), add(FAR), add(2**40)), (add(2**50, FAR - 1),))
    statistics = rig.core.queue_statistics(1)
    assert (statistics.head, statistics.tail, statistics.ready) == (1, FAR + 1, 5)
    load_file(rig)
    assert looked_at(rig.core) == [1, 2**40, 2**50, FAR - 1, FAR]
    consumer = rig.consume()
    assert ids(rig.deliver(consumer)) == [1, 2**40, 2**50, FAR - 1, FAR]
    for sequence in (1, 2**50):
        assert rig.core.acknowledge(consumer, sequence) == 1
    assert rig.core.queue_statistics(1).head == 2**40
    assert rig.core.close_consumer(consumer) == 3
    assert ids(rig.deliver(rig.consume())) == [2**40, FAR - 1, FAR]


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.AUTO])
def test_a_consumer_ends_what_is_far_apart(make: Callable[..., CoreRig], mode: AckMode) -> None:
    rig = restored(make, (add(5), add(FAR)))
    load_file(rig)
    consumer = rig.consume(mode)
    assert ids(rig.deliver(consumer)) == [5, FAR]
    if mode is AckMode.CLIENT:
        assert [one for one, _ in rig.core.held(consumer)] == [5, FAR]
        assert rig.core.acknowledge(consumer, FAR) == 2
    rig.publish()
    rig.flush()
    statistics = rig.core.queue_statistics(1)
    assert (statistics.head, statistics.tail, statistics.ready) == (FAR + 1, FAR + 2, 1)


@pytest.mark.parametrize("way", ["acknowledged", "committed", "purged", "finished"])
def test_nothing_walks_from_one_to_the_other(make: Callable[..., CoreRig], way: str) -> None:
    states = QueuesRecord((QueueState(1, 1, FAR),))
    wide = acknowledged(1, FAR)
    if way == "committed":
        member = acknowledged(1, FAR, transaction=7)
        digest = digest_members([encode_record(member)])
        rig = restored(make, (add(3), states), (member,), (CommitRecord(7, 1, digest),))
    else:
        rig = restored(make, (add(3), states), (wide,) if way == "acknowledged" else (add(FAR),))
    load_file(rig)
    if way == "purged":
        assert rig.core.purge_queue(1) == 2
    elif way == "finished":
        assert rig.core.finish_below(1, FAR, 100) == 1
        assert looked_at(rig.core) == [FAR]
        return
    statistics = rig.core.queue_statistics(1)
    assert statistics.ready == 0
    assert statistics.head == statistics.tail
    assert statistics.tail >= FAR
    rig.publish(b"next")
    rig.flush()
    assert ids(rig.deliver(rig.consume())) == [statistics.tail]


def paged(first: int, count: int) -> bytes:
    return encode_paged(
        PagedRecord(9, 1, 16384, (PagedQueue(1, tuple(range(first, first + count))),))
    )


REJECTED: dict[str, Record | bytes] = {
    "ADD with 0": add(0),
    "ADD beyond the highest": add(SEQUENCE_MAX + 1),
    "the second place of an ADD": add(4, 2**64 - 1),
    "ADD in a transaction": add(2**64 - 1, transaction=7),
    "ACK from beyond the highest": acknowledged(SEQUENCE_MAX + 1),
    "ACK up to beyond the highest": acknowledged(2, SEQUENCE_MAX),
    "ACK of more than there are": acknowledged(1, 2**64 - 1),
    "ACK in a transaction": acknowledged(2, SEQUENCE_MAX, transaction=7),
    "COUNT of 0": CountRecord(1, 1, 0),
    "COUNT beyond the highest": CountRecord(1, 1, SEQUENCE_MAX + 1),
    "tail in QUEUES": QueuesRecord((QueueState(1, 1, SEQUENCE_MAX + 2),)),
    "head in QUEUES": QueuesRecord((QueueState(9, 2**64 - 1, 1),)),
    "too many places in PAGE": paged(1, PLACES_MAX + 1),
}


@pytest.mark.parametrize("record", REJECTED.values(), ids=REJECTED)
def test_what_no_core_has_written_is_rejected(
    make: Callable[..., CoreRig], record: Record | bytes
) -> None:
    with pytest.raises(ValueError):
        restored(make, (add(1),), (record,))


@pytest.mark.parametrize(
    "record",
    [
        acknowledged(1, SEQUENCE_MAX),
        acknowledged(SEQUENCE_MAX),
        CountRecord(1, 1, SEQUENCE_MAX),
        QueuesRecord((QueueState(1, SEQUENCE_MAX + 1, SEQUENCE_MAX + 1),)),
        paged(1, PLACES_MAX),
    ],
)
def test_what_a_core_can_have_written_is_taken(
    make: Callable[..., CoreRig], record: Record | bytes
) -> None:
    restored(make, (add(1),), (record,))


def test_a_queue_ends_with_the_highest_sequence(make: Callable[..., CoreRig]) -> None:
    rig = restored(make, (QueuesRecord((QueueState(1, SEQUENCE_MAX, SEQUENCE_MAX),)),))
    assert rig.publish(b"last") == 1
    rig.flush()
    before = rig.core.queue_statistics(1)
    assert before.tail == SEQUENCE_MAX + 1
    with pytest.raises(NoSequenceLeft):
        rig.publish()
    with pytest.raises(NoSequenceLeft):
        rig.publish(persistent=False)
    # The fast path leaves it to Python, which says why.
    assert rig.scan(send())[0] is ScanStatus.FRAME
    assert rig.core.queue_statistics(1) == before
    consumer = rig.consume()
    assert ids(rig.deliver(consumer)) == [SEQUENCE_MAX]
    assert rig.core.acknowledge(consumer, SEQUENCE_MAX) == 1
    rig.flush()
    # What it has written is good for the next start.
    again = restored(make, (add(SEQUENCE_MAX),), (acknowledged(SEQUENCE_MAX),))
    assert again.core.queue_statistics(1).tail == SEQUENCE_MAX + 1
    with pytest.raises(ValueError):
        again.core.open_queue(2, SEQUENCE_MAX + 2)


def test_a_page_at_a_distance_is_entered_and_left(make: Callable[..., CoreRig]) -> None:
    rig = restored(make, (add(1),), (paged(FAR, 100),), (acknowledged(FAR + 3, 40),))
    statistics = rig.core.queue_statistics(1)
    assert (statistics.paged, statistics.tail) == (60, FAR + 100)


def test_many_open_transactions_are_told_apart(make: Callable[..., CoreRig]) -> None:
    members = [add(number, transaction=number * 2**40) for number in range(1, 301)]
    ends = [
        CommitRecord(one.transaction, 1, digest_members([encode_record(one)]))
        for one in members[::3]
    ]
    groups = [tuple(members[at : at + 50]) for at in range(0, 300, 50)]
    rig = restored(make, *groups, tuple(ends[::-1]))
    assert rig.dropped == 200
    assert rig.core.queue_statistics(1).ready == 100

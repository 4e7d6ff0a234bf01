"""Prepared branches in the core: what they hold, when they let go, and what a restart finds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from vespiary_codec.journal.record import (
    AddRecord,
    CommitRecord,
    CountRecord,
    PrepareRecord,
    RollbackRecord,
    digest_members,
    encode_record,
)
from vespiary_native.abc import AckMode, BranchFacts, BranchMember, DeliverStatus, NoRoom
from vespiary_testkit.core_rig import KIB, CoreRig, ids

ID = 88
DATA = b"whose branch it is"


def prepare(rig: CoreRig, *, acknowledge: tuple[int, int] | None = None, flush: bool = True) -> int:
    """Prepare a branch that adds a message, and acknowledges one (consumer, sequence)."""
    rig.core.begin(ID, 1000, 10, branch=True)
    rig.publish(b"member", transaction=ID)
    if acknowledge is not None:
        assert rig.core.acknowledge(*acknowledge, transaction=ID) == 1
    block = rig.core.prepare(ID, DATA)
    if flush:
        rig.flush()
    return block


def held(rig: CoreRig) -> tuple[int, int]:
    """Prepare a branch between other messages: 1 acknowledged by it, 2 added, 3 plain."""
    rig.publish(b"first")
    rig.flush()
    consumer = rig.consume()
    assert ids(rig.deliver(consumer)) == [1]
    prepare(rig, acknowledge=(consumer, 1))
    rig.publish(b"later")
    rig.flush()
    return consumer, rig.core.queue_statistics(1).live_bytes


def take(rig: CoreRig, consumer: int) -> list[int]:
    """Deliver what there is, and load what is not in memory."""
    taken: list[int] = []
    while True:
        taken += ids(rig.deliver(consumer))
        if rig.core.absent_slab(consumer) == (0, 0):
            return taken
        rig.load(consumer)


def cut_after(rig: CoreRig, kind: type, *, keep: bool) -> None:
    """Cut the file behind (or before) the block that holds the last record of a type."""
    for facts, records in reversed(rig.blocks()):
        if any(isinstance(record, kind) for record in records):
            at = facts.offset + (facts.length if keep else 0)
            rig.files[1][at:] = bytes(len(rig.files[1]) - at)
            return
    raise AssertionError(f"no {kind.__name__} was written")


def test_prepare_writes_members_number_and_digest(rig: CoreRig) -> None:
    block = prepare(rig, flush=False)
    rig.flush()
    (facts, (add, end)), *_ = rig.blocks()
    assert isinstance(add, AddRecord)
    assert add.transaction == ID
    assert end == PrepareRecord(ID, 1, digest_members([encode_record(add)]), DATA)
    assert facts.sequence == block
    assert rig.core.branches() == [BranchFacts(ID, block, 1, 1, 0, True, 0)]


def test_messages_behind_a_prepared_one_are_not_blocked(rig: CoreRig) -> None:
    consumer, _ = held(rig)
    assert ids(rig.deliver(consumer)) == [3]
    counters = rig.core.queue_statistics(1)
    assert (counters.head, counters.prepared, counters.ready, counters.delivering) == (1, 2, 0, 1)
    assert rig.core.branch_members(ID) == [
        BranchMember(1, 2, False, False),
        BranchMember(1, 1, True, False),
    ]


def test_a_commit_makes_its_messages_deliverable_first_in_line_when_it_is_durable(
    rig: CoreRig,
) -> None:
    consumer, _ = held(rig)
    rig.deliver(consumer)
    rig.publish(b"fourth")
    rig.flush()
    rig.core.take_ready_queues()
    rig.core.resolve(ID, commit=True)
    rig.publish(b"fifth")
    assert ids(rig.deliver(consumer)) == [4], "the commit is not durable yet"
    assert rig.core.queue_statistics(1).prepared == 2
    rig.flush()
    assert rig.core.take_ready_queues() == [1]
    assert ids(rig.deliver(consumer)) == [2, 5]
    counters = rig.core.queue_statistics(1)
    assert (counters.prepared, counters.acknowledged, counters.added) == (0, 1, 5)
    assert (counters.redelivered, counters.resolved) == (0, 1)
    assert rig.core.branches() == []


def test_a_commit_keeps_the_order_when_nobody_passed_by(rig: CoreRig) -> None:
    prepare(rig)
    rig.publish(b"second")
    rig.core.resolve(ID, commit=True)
    rig.flush()
    assert ids(rig.deliver(rig.consume())) == [1, 2]


def test_a_rollback_drops_what_was_added_and_gives_back_what_was_acknowledged(
    rig: CoreRig,
) -> None:
    consumer, before = held(rig)
    rig.core.resolve(ID, commit=False)
    assert rig.core.queue_statistics(1).prepared == 2, "the rollback is not durable yet"
    rig.flush()
    first, later = rig.deliver(consumer)
    assert b"message-id:1-1\n" in first
    assert b"delivery-count:1\n" in first
    assert b"message-id:1-3\n" in later
    counters = rig.core.queue_statistics(1)
    assert (counters.redelivered, counters.acknowledged, counters.added) == (1, 0, 2)
    assert counters.resolved == 1
    assert counters.live_bytes < before
    rollback, count = rig.records()[-2:]
    assert isinstance(rollback, RollbackRecord)
    assert (rollback.transaction, rollback.members) == (ID, 2)
    assert count == CountRecord(1, 1, 1)


def test_a_locked_message_has_no_holder_and_its_credit_is_free(rig: CoreRig) -> None:
    rig.publish(b"one")
    rig.publish(b"two")
    rig.flush()
    consumer = rig.consume(credit=1)
    assert ids(rig.deliver(consumer)) == [1]
    prepare(rig, acknowledge=(consumer, 1))
    assert rig.core.holder(rig.connection, 1, 1) == -1
    assert rig.core.acknowledge(consumer, 1) == 0
    assert rig.core.give_back(consumer, 1) == 0
    assert ids(rig.deliver(consumer)) == [2]
    assert rig.core.close_consumer(consumer) == 1


def test_purge_leaves_what_branches_hold(rig: CoreRig) -> None:
    held(rig)
    assert rig.core.purge_queue(1) == 1
    assert rig.core.queue_statistics(1).prepared == 2
    rig.core.resolve(ID, commit=True)
    rig.flush()
    assert ids(rig.deliver(rig.consume())) == [2]


def test_the_outcome_waits_for_the_prepare(rig: CoreRig) -> None:
    prepare(rig, flush=False)
    with pytest.raises(ValueError):
        rig.core.resolve(ID, commit=True)
    rig.flush()
    rig.core.resolve(ID, commit=True)
    with pytest.raises(ValueError):
        rig.core.resolve(ID, commit=False)
    rig.flush()
    with pytest.raises(ValueError):
        rig.core.resolve(ID, commit=True)


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_waits_for_its_own_flush(rig: CoreRig, *, commit: bool) -> None:
    consumer, _ = held(rig)
    rig.publish(b"fourth")
    earlier = rig.write()
    assert earlier is not None
    rig.core.resolve(ID, commit=commit)
    rig.core.write_done(earlier.sequence)
    assert rig.core.queue_statistics(1).prepared == 2
    assert ids(rig.deliver(consumer)) == [3, 4]
    rig.flush()
    assert rig.core.queue_statistics(1).prepared == 0


def test_wrong_order_is_refused(rig: CoreRig) -> None:
    rig.core.begin(1, 100, 1)
    with pytest.raises(ValueError):
        rig.core.prepare(1, b"")
    rig.core.commit(1)
    rig.core.begin(2, 100, 1, branch=True)
    with pytest.raises(ValueError):
        rig.core.commit(2)
    with pytest.raises(ValueError):
        rig.core.prepare(2, bytes(4097))
    rig.core.prepare(2, bytes(4096))
    with pytest.raises(ValueError):
        rig.core.begin(2, 100, 1)
    with pytest.raises(ValueError):
        rig.core.branch_members(9)
    with pytest.raises(ValueError):
        rig.core.branch_data(9)
    with pytest.raises(ValueError):
        rig.core.branches_in(9)


def test_an_outcome_without_room_changes_nothing(make: Callable[..., CoreRig]) -> None:
    rig = make(file_bytes=64 * KIB, files=1).begin()
    prepare(rig)
    for size in (15 * KIB, 0):
        with suppress(NoRoom):
            while True:
                rig.core.append_record(40, bytes(size))
                rig.flush()
    with pytest.raises(NoRoom):
        rig.core.resolve(ID, commit=True)
    assert rig.core.branches()[0].outcome == 0
    rig.add_file()
    rig.core.resolve(ID, commit=True)
    rig.flush()
    assert rig.core.queue_statistics(1).ready == 1


# --- files and queues ---------------------------------------------------------------------------


def test_a_branch_keeps_its_files_until_its_end_is_durable(rig: CoreRig) -> None:
    rig.add_file()
    rig.publish(b"first")
    consumer = rig.consume()
    rig.flush()
    rig.deliver(consumer)
    prepare(rig, acknowledge=(consumer, 1))
    assert rig.core.branches_in(1)
    rig.fill(20, 15 * KIB)
    assert rig.core.current_file() > 1
    assert not rig.core.branches_in(2)
    rig.core.resolve(ID, commit=False)
    assert rig.core.branches_in(1)
    rig.flush()
    assert not rig.core.branches_in(1)
    assert 1 in rig.core.cancels(rig.core.current_file())


def test_each_file_that_a_branch_needs_stays_also_after_a_restart(rig: CoreRig) -> None:
    """The message that it acknowledges, the members, and the PREPARE, each in another file."""
    for _ in range(4):
        rig.add_file()
    rig.publish(b"first")
    consumer = rig.consume()
    rig.flush()
    assert ids(rig.deliver(consumer)) == [1]
    rig.fill(20, 15 * KIB)
    assert rig.core.current_file() == 2
    rig.core.begin(ID, 30 * 15 * KIB, 40, branch=True)
    assert rig.core.acknowledge(consumer, 1, transaction=ID) == 1
    while rig.core.current_file() == 2:
        rig.publish(bytes(15 * KIB), transaction=ID)
    rig.core.prepare(ID, DATA)
    rig.flush()
    for core in (rig.core, rig.restored().core):
        assert all(core.branches_in(file_id) for file_id in (1, 2, 3))
    rig.core.resolve(ID, commit=True)
    rig.flush()
    assert not any(rig.core.branches_in(file_id) for file_id in (1, 2, 3))


def test_a_copied_branch_needs_only_the_files_of_the_copies(rig: CoreRig) -> None:
    """The message that it acknowledges, and its members, stand in two files."""
    for _ in range(6):
        rig.add_file()
    rig.publish(b"first")
    consumer = rig.consume()
    rig.flush()
    assert ids(rig.deliver(consumer)) == [1]
    rig.fill(20, 15 * KIB)
    prepare(rig, acknowledge=(consumer, 1))
    rig.fill(20, 15 * KIB)
    assert rig.core.branches_in(1) == rig.core.branches_in(2) == [ID]
    before = rig.core.live_places(1), rig.core.live_places(2)
    loaded = set()
    while (absent := rig.core.branch_copy(ID, ID + 1)) is not None:
        loaded.add(rig.load_slab(*absent)[0])
    assert loaded == {1, 2}, "these are not in memory"
    rig.flush()
    assert not rig.core.branches_in(1)
    assert not rig.core.branches_in(2)
    assert rig.core.branches_in(rig.core.current_file()) == [ID]
    assert before[0] - rig.core.live_places(1) == 2, "the message and what the branch needs there"
    assert before[1] - rig.core.live_places(2) == 2
    assert {1, 2} <= set(rig.core.cancels(rig.core.current_file()))
    again = rig.restored()
    assert [facts.transaction for facts in again.core.branches()] == [ID + 1]
    assert again.core.branch_data(ID + 1) == DATA
    assert not again.core.branches_in(1)
    assert not again.core.branches_in(2)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_copied_branch_ends_as_any_other(
    rig: CoreRig, *, commit: bool, is_restarted: bool
) -> None:
    consumer, _ = held(rig)
    assert rig.core.branch_copy(ID, ID + 1) is None
    rig.flush()
    if is_restarted:
        rig = rig.restored()
        rig.go_on()
        consumer = rig.consume()
    rig.core.resolve(ID + 1 if is_restarted else ID, commit=commit)
    rig.flush()
    expected = [2, 3] if commit else [1, 3]
    assert sorted(take(rig, consumer)) == expected
    again = rig.restored()
    again.go_on()
    assert again.core.branches() == []
    assert sorted(take(again, again.consume())) == expected


@pytest.mark.parametrize("keep", [True, False])
def test_a_power_cut_around_the_copy_leaves_one_branch(rig: CoreRig, *, keep: bool) -> None:
    held(rig)
    assert rig.core.branch_copy(ID, ID + 1) is None
    rig.flush()
    cut_after(rig, RollbackRecord, keep=keep)
    again = rig.restored()
    (facts,) = again.core.branches()
    assert facts.is_whole
    assert facts.missing == 0
    assert facts.transaction == (ID + 1 if keep else ID)
    again.go_on()
    again.core.resolve(facts.transaction, commit=True)
    again.flush()
    assert sorted(take(again, again.consume())) == [2, 3]


def test_a_branch_that_is_ending_or_not_durable_is_not_copied(rig: CoreRig) -> None:
    prepare(rig, flush=False)
    with pytest.raises(ValueError, match="branch"):
        rig.core.branch_copy(ID, ID + 1)
    rig.flush()
    rig.core.resolve(ID, commit=True)
    with pytest.raises(ValueError, match="branch"):
        rig.core.branch_copy(ID, ID + 1)


def test_a_copied_branch_keeps_a_message_with_several_places_together(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    route = rig.core.open_route([1, 2])
    rig.core.begin(ID, 1000, 10, branch=True)
    rig.core.publish(route, b"", b"both", persistent=True, transaction=ID)
    rig.core.prepare(ID, DATA)
    rig.flush()
    assert rig.core.branch_copy(ID, ID + 1) is None
    rig.flush()
    copies = [
        record
        for _, records in rig.blocks()
        for record in records
        if isinstance(record, AddRecord) and record.transaction == ID + 1
    ]
    assert [len(copy.places) for copy in copies] == [2]
    assert [bytes(copy.body) for copy in copies] == [b"both"]


def test_a_copy_that_begins_in_a_file_that_is_gone_ends_as_it_was_told(
    make: Callable[..., CoreRig],
) -> None:
    """The file with the first member goes before the file with the others and the COMMIT.

    So recovery must see that blocks are missing right before the members that are left: nothing
    else may stand between them.
    """
    straddled = 0
    for count in range(40):
        rig = make(slabs_max=40, files=4).begin()
        rig.publish(bytes(14 * KIB))
        rig.flush()
        consumer = rig.consume()
        assert ids(rig.deliver(consumer)) == [1]
        rig.core.begin(ID, 40 * KIB, 10, branch=True)
        rig.publish(bytes(14 * KIB), transaction=ID)
        rig.publish(bytes(14 * KIB), transaction=ID)
        assert rig.core.acknowledge(consumer, 1, transaction=ID) == 1
        rig.core.prepare(ID, DATA)
        rig.flush()
        rig.fill(count, 8 * KIB)
        while (absent := rig.core.branch_copy(ID, ID + 1)) is not None:
            rig.load_slab(*absent)
        rig.flush()
        rig.core.resolve(ID, commit=True)
        rig.flush()
        places = {
            file_id
            for file_id in rig.files
            for record in rig.records(file_id)
            if getattr(record, "transaction", 0) == ID + 1
        }
        if len(places) > 1:
            straddled += 1
            again = rig.restored(without=tuple(range(1, max(places))))
            assert again.core.branches() == []
    assert straddled, "no count of messages has put the members into two files"


def test_a_prepare_alone_keeps_its_file_also_after_a_restart(rig: CoreRig) -> None:
    """A branch of messages that need not survive is in no journal but by its PREPARE."""
    rig.core.begin(ID, 1000, 10, branch=True)
    rig.publish(b"member", transaction=ID, persistent=False)
    rig.core.prepare(ID, DATA)
    rig.flush()
    assert rig.core.branches_in(1)
    assert rig.core.live_places(1) == 1
    again = rig.restored()
    assert again.core.branches_in(1)
    assert again.core.live_places(1) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_the_file_with_the_end_goes_after_the_file_with_the_prepare(
    rig: CoreRig, *, commit: bool
) -> None:
    rig.add_file()
    prepare(rig)
    rig.fill(20, 15 * KIB)
    rig.core.resolve(ID, commit=commit)
    rig.flush()
    end = rig.core.current_file()
    assert rig.core.cancels(end) == [1], "before anything else there depends on it"
    again = rig.restored()
    assert again.core.cancels(end) == [1]
    rig.core.purge_queue(1)
    rig.flush()
    assert rig.core.live_places(1) == 0
    again = rig.restored()
    assert again.core.branches() == []
    without = rig.restored(without=(1,))
    assert without.core.branches() == []
    assert without.dropped == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepare_alone_goes_before_the_file_with_its_end(rig: CoreRig, *, commit: bool) -> None:
    """No member is in the file of the PREPARE, so nothing else has the file with the end wait.

    Were that file to go first, the branch would be in doubt again, and its coordinator might end
    it the other way.
    """
    rig.add_file()
    rig.publish(b"plain")
    rig.core.begin(ID, 1000, 10, branch=True)
    rig.publish(b"member", transaction=ID, persistent=False)
    rig.core.prepare(ID, DATA)
    rig.flush()
    rig.fill(20, 15 * KIB)
    rig.core.resolve(ID, commit=commit)
    rig.flush()
    end = rig.core.current_file()
    assert end == 2
    assert rig.core.cancels(end) == [1]
    again = rig.restored()
    assert again.core.cancels(end) == [1]
    assert again.core.branches() == []
    assert [facts.transaction for facts in rig.restored(without=(end,)).core.branches()] == [ID]


def test_a_durable_queue_that_a_branch_needs_is_not_dropped(rig: CoreRig) -> None:
    prepare(rig)
    with pytest.raises(ValueError):
        rig.core.drop_queue(1)
    rig.core.resolve(ID, commit=False)
    with pytest.raises(ValueError):
        rig.core.drop_queue(1)
    rig.flush()
    rig.core.drop_queue(1)


def test_a_queue_that_is_not_durable_takes_its_members_along(rig: CoreRig) -> None:
    rig.core.open_queue(2, durable=False)
    rig.core.set_route(rig.route, [1, 2])
    prepare(rig)
    live = rig.core.live_places(1)
    rig.core.drop_queue(2)
    assert rig.core.live_places(1) == live - 1
    rig.core.resolve(ID, commit=True)
    rig.flush()
    assert ids(rig.deliver(rig.consume())) == [1]
    assert rig.core.live_places(1) == 1


def test_messages_that_need_not_survive_are_held_too(rig: CoreRig) -> None:
    rig.core.begin(ID, 1000, 10, branch=True)
    rig.publish(b"volatile", persistent=False, transaction=ID)
    rig.core.prepare(ID, DATA)
    rig.flush()
    consumer = rig.consume(AckMode.AUTO)
    assert rig.core.deliver(consumer, 10, 1000)[0] == DeliverStatus.DRAINED
    rig.core.resolve(ID, commit=True)
    rig.flush()
    assert ids(rig.deliver(consumer)) == [1]


# --- restarts -----------------------------------------------------------------------------------


def test_a_prepared_branch_survives_a_restart(rig: CoreRig) -> None:
    held(rig)
    again = rig.restored()
    assert again.dropped == 0
    assert again.core.branches() == [BranchFacts(ID, 0, 2, 2, 0, True, 0)]
    assert again.core.branch_data(ID) == rig.core.branch_data(ID) == DATA
    counters = again.core.queue_statistics(1)
    assert (counters.ready, counters.prepared, counters.head, counters.tail) == (1, 2, 1, 4)
    assert again.core.branches_in(1)
    again.go_on()
    consumer = again.consume()
    assert take(again, consumer) == [3]
    again.core.resolve(ID, commit=True)
    again.flush()
    assert take(again, consumer) == [2]
    assert again.core.queue_statistics(1).acknowledged == 1
    assert not again.core.branches_in(1)


def test_a_restored_branch_rolls_back_in_line(rig: CoreRig) -> None:
    held(rig)
    again = rig.restored()
    again.go_on()
    again.core.resolve(ID, commit=False)
    again.flush()
    assert take(again, again.consume()) == [1, 3]
    third = again.restored()
    assert third.core.branches() == []
    assert third.core.queue_statistics(1).ready == 2


def test_members_without_a_durable_prepare_are_void(rig: CoreRig) -> None:
    rig.publish(b"plain")
    rig.flush()
    rig.core.begin(ID, 80 * KIB, 3, branch=True)
    for _ in range(3):
        rig.publish(bytes(15 * KIB), transaction=ID)
    rig.core.prepare(ID, DATA)
    rig.flush()
    cut_after(rig, PrepareRecord, keep=False)
    torn = rig.restored()
    assert torn.dropped == 1
    assert torn.core.branches() == []
    assert torn.core.queue_statistics(1).ready == 1


@pytest.mark.parametrize(("commit", "kind"), [(True, CommitRecord), (False, RollbackRecord)])
@pytest.mark.parametrize("is_written", [True, False])
def test_the_outcome_counts_once_it_is_written(
    rig: CoreRig, *, commit: bool, kind: type, is_written: bool
) -> None:
    held(rig)
    rig.core.resolve(ID, commit=commit)
    rig.flush()
    cut_after(rig, kind, keep=is_written)
    again = rig.restored()
    counters = again.core.queue_statistics(1)
    if is_written:
        assert again.core.branches() == []
        # 2 and 3, or 1 and 3
        assert (counters.ready, counters.prepared) == (2, 0)
        assert counters.head == (2 if commit else 1)
    else:
        assert len(again.core.branches()) == 1
        assert (counters.ready, counters.prepared) == (1, 2)


def test_members_of_an_unknown_queue_are_kept_as_missing(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    rig.core.set_route(rig.route, [1, 2])
    prepare(rig)
    again = rig.restored(queues=(1,))
    assert again.core.branches() == [BranchFacts(ID, 0, 1, 2, 1, True, 0)]
    assert again.core.branch_members(ID) == [
        BranchMember(1, 1, False, False),
        BranchMember(2, 1, False, True),
    ]
    assert again.core.branches_in(1)
    none = rig.restored(queues=())
    assert none.core.live_places(1) == 1, "its file stays all the same"


def test_a_prepare_whose_members_do_not_fit_is_kept_and_said(rig: CoreRig) -> None:
    rig.core.begin(ID, 80 * KIB, 4, branch=True)
    for _ in range(4):
        rig.publish(bytes(15 * KIB), transaction=ID)
    rig.core.prepare(ID, DATA)
    rig.flush()
    assert len(rig.blocks()) > 2
    # A journal that was put together wrongly: a block with members was left out at its start.
    again = CoreRig(type(rig.core), rig.verify, files=0)
    again.core.open_queue(1)
    again.core.restore_file(1, 0, len(rig.files[1]))
    sequence = 1
    for facts, _ in rig.blocks()[1:]:
        block = bytearray(rig.files[1][facts.offset : facts.offset + facts.length])
        block[8:16] = sequence.to_bytes(8, "little")
        sequence += 1
        again.core.restore_block(1, facts.offset, memoryview(block))
    assert again.core.restore_done() == 0
    (branch,) = again.core.branches()
    assert not branch.is_whole
    assert branch.places < branch.records == 4
    assert again.core.queue_statistics(1).ready == 0
    assert again.core.branch_data(ID) == DATA

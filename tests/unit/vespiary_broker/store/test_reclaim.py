"""Which files may go, and what the checkpoint says."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.store.reclaim import choosing_files, files_body, files_record, queues_bodies
from vespiary_broker.store.turns import OPERATIONS_MAX
from vespiary_codec.journal.record import decode_file_runs, decode_queue_states
from vespiary_testkit.turn_counter import CountedLooks, ended, turns_of


def choose(
    files: dict[int, tuple[int, list[int]]],
    current: int = 99,
    busy: tuple[int, ...] = (),
    kept: tuple[int, ...] = (),
) -> list[int]:
    """Choose among files given as {id: (live places, cancels)}."""
    gone = [other for _, cancels in files.values() for other in cancels if other not in files]
    assert not gone, "the core lists no file that it forgot"
    return ended(
        choosing_files(
            files,
            current_id=current,
            live_places=lambda file_id: files[file_id][0],
            live_records=lambda file_id: int(file_id in kept),
            cancels=lambda file_id: files[file_id][1],
            is_busy=lambda file_id: file_id in busy,
        )
    )


def test_a_file_with_live_messages_stays():
    assert choose({1: (1, []), 2: (0, [])}) == [2]


def test_a_file_with_kept_records_stays_and_holds_others():
    assert choose({1: (0, []), 2: (0, [1]), 3: (0, [])}, kept=(1,)) == [3]


def test_acknowledgements_stay_as_long_as_what_they_end():
    assert choose({1: (1, []), 2: (0, [1]), 3: (0, [2])}) == []


def test_a_chain_goes_in_order():
    assert choose({3: (0, [2]), 1: (0, []), 2: (0, [1])}) == [1, 2, 3]


def test_the_current_file_and_those_ahead_stay():
    assert choose({1: (0, []), 2: (0, []), 3: (0, [])}, current=2) == [1]
    assert choose({1: (0, []), 2: (0, [])}, current=0) == []


def test_a_file_that_is_being_read_stays_and_holds_others():
    assert choose({1: (0, []), 2: (0, [1]), 3: (0, [])}, busy=(1,)) == [3]


def test_a_file_may_cancel_its_own():
    assert choose({1: (0, [1])}) == [1]


@given(st.data())
def test_nothing_rises_again_whatever_is_freed(data: st.DataObject):
    """At any moment of freeing in order, no acknowledgement is gone before its message."""
    count = data.draw(st.integers(1, 8))
    files = {
        file_id: (
            data.draw(st.integers(0, 1)),
            data.draw(st.lists(st.integers(1, file_id), unique=True)),
        )
        for file_id in range(1, count + 1)
    }
    left = set(files)
    for file_id in choose(files, current=data.draw(st.integers(1, 9))):
        assert files[file_id][0] == 0
        left.discard(file_id)
        assert not set(files[file_id][1]) & left


@given(st.sets(st.integers(1, 60)))
def test_runs_hold_just_the_files(ids: set[int]):
    record = files_record(ids)
    assert {n for n in range(1, 70) if n in record} == ids
    assert decode_file_runs(files_body(ids)) == record.runs
    assert all(a.last + 1 < b.first for a, b in zip(record.runs, record.runs[1:], strict=False))


def test_many_queues_make_several_records():
    states = b"".join(struct.pack("<IIQQ", n, 0, n + 1, n + 2) for n in range(5000))
    bodies = list(queues_bodies(states))
    assert len(bodies) == 3
    assert max(map(len, bodies)) < 56 * 1024
    found = [state for body in bodies for state in decode_queue_states(body)]
    assert [tuple(state) for state in found] == [(n, n + 1, n + 2) for n in range(5000)]
    assert list(queues_bodies(b"")) == []


def test_no_turn_of_a_thousand_files_looks_at_more_than_its_share():
    looks = CountedLooks()
    work = choosing_files(
        range(1, 1001),
        current_id=2000,
        live_places=lambda _: 0,
        live_records=lambda _: 0,
        cancels=lambda file_id: looks.counted(range(1, file_id)),
        is_busy=looks.busy,
    )
    per_turn = turns_of(work, looks)
    assert sum(per_turn) == 999 * 1000 // 2 + 1000
    assert max(per_turn) <= OPERATIONS_MAX + 1000, "one file is never cut"
    assert len(per_turn) > 100


def test_a_file_that_empties_between_two_turns_is_found_the_next_time():
    """What was found before stays true: nothing becomes live in a full file."""
    live = dict.fromkeys(range(1, 2001), 1)
    work = choosing_files(
        live,
        current_id=3000,
        live_places=live.__getitem__,
        live_records=lambda _: 0,
        cancels=lambda _: [],
        is_busy=lambda _: False,
    )
    next(work)
    live.update(dict.fromkeys(live, 0))
    chosen = ended(work)
    assert chosen == list(range(chosen[0], 2001))
    assert 1 < chosen[0] <= OPERATIONS_MAX

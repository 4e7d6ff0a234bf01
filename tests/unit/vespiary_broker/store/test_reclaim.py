"""Which files may go, and what the checkpoint says."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.store.reclaim import choose_files, files_body, files_record, queues_bodies
from vespiary_codec.journal.record import decode_file_runs, decode_queue_states


def choose(
    files: dict[int, tuple[int, list[int]]],
    current: int = 99,
    busy: tuple[int, ...] = (),
    kept: tuple[int, ...] = (),
) -> list[int]:
    """Choose among files given as {id: (live places, cancels)}."""
    gone = [other for _, cancels in files.values() for other in cancels if other not in files]
    assert not gone, "the core lists no file that it forgot"
    return choose_files(
        files,
        current_id=current,
        live_places=lambda file_id: files[file_id][0],
        live_records=lambda file_id: int(file_id in kept),
        cancels=lambda file_id: files[file_id][1],
        is_busy=lambda file_id: file_id in busy,
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

"""Buckets of messages that wait: never late or never early, few, and small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.due_times import DueTimes, step_ms

DAY_MS = 86_400_000


def drain(due: DueTimes, now_ms: int) -> list[tuple[int, int]]:
    """Return (queue, sequence) of all that is due."""
    found: list[tuple[int, int]] = []
    while (taken := due.take_due(now_ms, 3)) is not None:
        key, sequences = taken
        found += [(key.queue_id, sequence) for sequence in sequences]
    return found


def test_nothing_is_due_before_its_time() -> None:
    due = DueTimes()
    assert due.next_ms is None
    due.add_late(1_100, 1, 7, 1_000)
    assert due.next_ms == 1_100
    assert due.take_due(1_099, 10) is None
    assert drain(due, 1_100) == [(1, 7)]
    assert (len(due), due.next_ms) == (0, None)


@given(st.integers(0, DAY_MS * 400), st.integers(0, 2**41))
def test_late_ones_are_never_early_and_hardly_late(wait_ms: int, now_ms: int) -> None:
    due = DueTimes()
    due.add_late(now_ms + wait_ms, 1, 7, now_ms)
    at_ms = due.next_ms
    assert at_ms is not None
    assert now_ms + wait_ms <= at_ms <= now_ms + wait_ms + wait_ms // 64


@given(st.integers(1, DAY_MS * 400), st.integers(0, 2**41))
def test_early_ones_come_nearer_in_few_looks_and_end_exactly(wait_ms: int, now_ms: int) -> None:
    due = DueTimes()
    until_ms = now_ms + wait_ms
    due.add_early(until_ms, 1, 7, now_ms)
    for _ in range(12):
        at_ms = due.next_ms
        assert at_ms is not None
        assert now_ms < at_ms <= until_ms
        taken = due.take_due(at_ms, 1)
        assert taken is not None
        now_ms = at_ms
        if taken[0].is_exact or at_ms == until_ms:
            assert at_ms == until_ms
            return
        due.add_early(until_ms, 1, 7, now_ms)
    raise AssertionError("too many looks")


def test_messages_due_together_share_a_bucket() -> None:
    due = DueTimes()
    for sequence in range(10_000):
        due.add_early(10_000_000 + sequence % 5000, 1, sequence, 0)
    assert len(due._heap) <= 2
    assert len(due) == due.count(1) == 10_000
    assert step_ms(10_000_000) >= 10_000_000 // 128


def test_a_bucket_is_taken_in_parts() -> None:
    due = DueTimes()
    for sequence in range(10):
        due.add_late(50, 1, sequence, 50)
    assert sorted(drain(due, 50)) == [(1, sequence) for sequence in range(10)]


def test_a_queue_is_forgotten_and_others_stay() -> None:
    due = DueTimes()
    due.add_late(5, 1, 7, 0)
    due.add_late(5, 2, 8, 0)
    due.forget(1)
    assert (len(due), due.count(1), due.count(2)) == (1, 0, 1)
    assert drain(due, 9) == [(2, 8)]
    assert due.next_ms is None


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(1, 4))
def test_they_come_in_the_order_in_which_they_were_put_in(adds: list[int], most: int) -> None:
    due = DueTimes()
    put: list[int] = []
    taken: list[int] = []
    for count in adds:
        for _ in range(count):
            put.append(len(put))
            due.add_late(1_100, 1, put[-1], 1_000)
        if (found := due.take_due(1_100, most)) is not None:
            taken += found[1]
        assert len(due) == len(put) - len(taken)
    while (found := due.take_due(1_100, most)) is not None:
        taken += found[1]
    assert taken == put
    assert (len(due), due.next_ms, due._taken) == (0, None, {})


def test_a_queue_that_is_forgotten_halfway_begins_anew() -> None:
    due = DueTimes()
    for sequence in range(10):
        due.add_late(1_100, 1, sequence, 1_000)
    due.take_due(1_100, 3)
    due.forget(1)
    assert due._taken == {}
    due.add_late(1_100, 1, 7, 1_000)
    assert drain(due, 1_100) == [(1, 7)]


def test_what_has_left_waits_no_more() -> None:
    due = DueTimes()
    for sequence in range(10):
        due.add_early(1000, 1, sequence, 0)
    for sequence in (0, 1, 5, 5):
        due.discard(1, sequence)
    assert (len(due), due.count(1)) == (7, 7)
    taken = []
    while (found := due.take_due(5000, 4)) is not None:
        taken += found[1]
    assert (taken, len(due)) == ([2, 3, 4, 6, 7, 8, 9], 0)


def test_one_that_left_and_waits_again_is_due_again() -> None:
    due = DueTimes()
    due.add_early(1000, 1, 7, 0)
    due.add_early(1000, 1, 8, 0)
    due.discard(1, 7)
    due.add_early(2000, 1, 7, 0)
    taken = set()
    while (found := due.take_due(5000, 10)) is not None:
        taken.update(found[1])
    assert taken == {7, 8}


def test_those_that_left_take_no_memory_for_long() -> None:
    due = DueTimes()
    for sequence in range(10_000):
        due.add_early(1_000_000 + sequence, 1, sequence, 0)
    due.add_early(5_000_000, 2, 1, 0)
    for sequence in range(9_990):
        due.discard(1, sequence)
    assert due.count(1) == 10
    assert sum(map(len, due._buckets.values())) < 3000
    for sequence in range(9_990, 10_000):
        due.discard(1, sequence)
    assert (len(due), due.count(1), len(due._buckets)) == (1, 0, 1)
    assert due.take_due(10_000_000, 10) is not None
    assert due.next_ms is None

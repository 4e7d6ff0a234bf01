"""Why messages of a stream are gone: each sequence has the first reason that was noted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.stream_gaps import RUNS_MAX, Gap, GapReason, StreamGaps, runs_of

REASONS = (GapReason.EXPIRED, GapReason.MOVED, GapReason.PURGED)
NOTES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 9), st.sampled_from(REASONS)), max_size=12
)


@given(NOTES, st.integers(0, 30), st.integers(1, 30), st.integers(0, 15))
def test_the_first_reason_of_each_sequence_counts(
    notes: list[tuple[int, int, GapReason]], forgotten: int, first: int, more: int
):
    gaps, model = StreamGaps(), dict[int, GapReason]()
    for begin, length, reason in notes:
        gaps.note_run(begin, begin + length, reason)
        for sequence in range(begin, begin + length + 1):
            model.setdefault(sequence, reason)
    gaps.forget(forgotten)
    found = gaps.explain(first, first + more)
    assert [gap.first for gap in found] == [first, *(gap.last + 1 for gap in found[:-1])]
    assert found[-1].last == first + more
    for gap in found:
        for sequence in range(gap.first, gap.last + 1):
            if sequence > forgotten:
                assert gap.reason == model.get(sequence, GapReason.UNKNOWN)


def test_sequences_are_noted_in_any_order():
    gaps = StreamGaps()
    gaps.note([5, 3, 4, 9, 4], GapReason.REMOVED)
    gaps.note([], GapReason.MOVED)
    assert gaps.explain(3, 9) == [
        Gap(3, 5, "removed"), Gap(6, 8, "unknown"), Gap(9, 9, "removed"),
    ]  # fmt: skip
    assert list(runs_of([1, 2, 2, 4])) == [(1, 2), (4, 4)]
    assert list(runs_of([])) == []


def test_notes_are_bounded_and_the_lowest_go():
    gaps = StreamGaps()
    gaps.note(range(1, 2 * RUNS_MAX + 5, 2), GapReason.EXPIRED)
    assert gaps.explain(1, 1) == [Gap(1, 1, "unknown")]
    assert gaps.explain(5, 5) == [Gap(5, 5, "expired")]

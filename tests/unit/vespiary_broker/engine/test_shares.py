"""Budgets divided among those that need them, and how old the answer may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.shares import PERIOD_S, Share, share_of


def test_who_holds_little_leaves_his_to_the_others() -> None:
    assert share_of([0, 0, 10, 1000, 1000], 1000) == 495
    assert share_of([10, 20], 30) == 30, "all of it while they hold no more"
    assert share_of([5, 5, 5], 2) == 0
    assert share_of([], 7) == 7


@given(st.lists(st.integers(0, 10_000), max_size=50), st.integers(0, 100_000))
def test_a_share_is_the_largest_that_keeps_all_in_the_budget(held: list[int], budget: int) -> None:
    share = share_of(held, budget)
    assert sum(min(size, share) for size in held) <= budget
    if sum(held) > budget:
        assert sum(min(size, share + 1) for size in held) > budget


def test_it_is_measured_again_after_a_while_and_for_another_budget() -> None:
    now_s, measured = 100.0, list[int]()

    def measure(budget: int) -> int:
        measured.append(budget)
        return budget // 2

    share = Share(measure, lambda: now_s)
    assert [share.of(10), share.of(10)] == [5, 5]
    assert measured == [10]
    assert share.of(20) == 10
    now_s += PERIOD_S
    assert share.of(20) == 10
    assert measured == [10, 20, 20]

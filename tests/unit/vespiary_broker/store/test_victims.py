"""Which file is emptied: what comes back against what moving costs, chains included."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from vespiary_broker.store.turns import OPERATIONS_MAX
from vespiary_broker.store.victims import Choice, CompactionRule, FileFacts, choosing_victim
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.turn_counter import CountedLooks, ended, turns_of

SIZE = 1000


def facts(file_id: int, live_bytes: int = 0, *cancels: int, movable: bool = True) -> FileFacts:
    return FileFacts(file_id, SIZE, live_bytes, live_bytes > 0, movable, cancels)


def choose_victim(files: Sequence[FileFacts]) -> Choice:
    return ended(choosing_victim(files))


@pytest.mark.parametrize(
    ("rule", "files", "live_percent", "is_due"),
    [
        ((10, 30), 11, 29, True),
        ((10, 30), 11, 30, False),
        ((10, 30), 10, 0, False),
        ((0, 30), 1000, 0, False),
        ((2, 0), 1000, 0, False),
        ((2, 100), 3, 99, True),
    ],
)
def test_it_is_due_above_the_files_and_below_the_percentage(rule, files, live_percent, is_due):
    size = files * SIZE
    assert CompactionRule(*rule).is_due(files, size, size * live_percent // 100) is is_due


def test_the_file_with_the_least_live_goes_first():
    assert choose_victim([facts(1, 300), facts(2, 50), facts(3, 900)]) == Choice(2, 2, 350)


def test_full_files_and_those_without_anything_live_are_left_alone():
    assert choose_victim([facts(1, 670), facts(2, 1000), facts(3)]) == Choice(None, 0, 0)


def test_a_file_is_worth_what_it_keeps():
    """Its own share is high, but three others wait for it."""
    chain = [facts(1, 900), facts(2, 0, 1), facts(3, 0, 2), facts(4, 0, 3), facts(5, 400)]
    assert choose_victim(chain).victim == 1


def test_what_two_files_keep_is_no_gain_of_either():
    both = [facts(1, 700), facts(2, 700), facts(3, 0, 1, 2)]
    assert choose_victim(both) == Choice(1, 2, 1400), "but together they pay"
    assert choose_victim([*both[:2], facts(3)]) == Choice(None, 0, 0)


def test_a_chain_with_a_full_file_before_it_is_emptied_from_its_old_end():
    chain = [facts(1, 990)] + [facts(number, 50, number - 1) for number in range(2, 10)]
    assert choose_victim(chain) == Choice(1, 9, 990 + 8 * 50)


def test_what_may_not_be_moved_is_no_victim_and_ends_a_chain():
    assert choose_victim([facts(1, 10, movable=False), facts(2, 0, 1)]) == Choice(None, 0, 0)
    chain = [facts(1, 990, movable=False)] + [facts(n, 50, n - 1) for n in range(2, 10)]
    assert choose_victim(chain) == Choice(None, 0, 0)


@pytest.mark.parametrize("case", range(20))
def test_emptying_what_is_chosen_ends_with_two_thirds_live(case: int):
    """A model of the journal: what is emptied stands in full files at the end."""
    chance = random.Random(seed_for(f"victims {case}"))
    files = [
        facts(n, chance.choice([0, 10, 60, 60, 990]), *chance.sample(range(1, n), min(n - 1, 2)))
        for n in range(1, 60)
    ]
    moved = 0
    for _ in range(200):
        choice = choose_victim(files)
        if choice.victim is None:
            break
        assert choice.files
        files = [f._replace(live_bytes=0, is_live=False) if f.file_id == choice.victim else f
                 for f in files]  # fmt: skip
        moved += 1
    live = sum(file.live_bytes for file in files)
    kept: set[int] = set()
    for file in files:
        if file.is_live or any(other in kept for other in file.cancels):
            kept.add(file.file_id)
    assert moved <= 59
    assert live * 3 >= len(kept) * SIZE * 2 - SIZE, f"{live} live in {len(kept)} files"


@pytest.mark.parametrize("is_chain", [False, True])
def test_no_turn_looks_at_more_than_its_share_of_a_thousand_files(is_chain: bool):
    """Each file depends on all before it: half a million dependences."""
    looks = CountedLooks()
    live_bytes = 990 if is_chain else 50
    files = [
        FileFacts(n, SIZE, live_bytes, n % 7 == 1, True, looks.counted(range(1, n)))
        for n in range(1, 1001)
    ]
    per_turn = turns_of(choosing_victim(files), looks)
    assert sum(per_turn) == 999 * 1000 // 2
    assert max(per_turn) <= OPERATIONS_MAX
    assert len(per_turn) >= 999 * 1000 // 2 // OPERATIONS_MAX

"""Sequences on their way out of a queue."""

from __future__ import annotations

import random

import pytest

from vespiary_broker.engine.pending_sequences import PendingSequences
from vespiary_testkit.seeds import seed_for


def test_they_come_in_the_order_of_adding_and_each_once() -> None:
    pending = PendingSequences()
    for sequence in (5, 3, 5, 9):
        pending.add(sequence)
    assert pending.first(3) == [5, 3]
    assert len(pending) == 4
    pending.drop(3, [3])
    assert pending.first(10) == [3, 9]
    pending.drop(10)
    assert (len(pending), pending.first(1)) == (0, [])


def test_one_that_stays_does_not_keep_those_that_passed_it() -> None:
    pending = PendingSequences()
    pending.add(1)
    for number in range(2, 100_000):
        pending.add(number)
        assert pending.first(2) == [1, number]
        pending.drop(2, [1])
    assert len(pending) == 1
    assert len(pending._sequences) <= 2 + 2048


@pytest.mark.parametrize("case", range(20))
def test_against_a_list(case: int) -> None:
    chance = random.Random(seed_for(f"pending sequences {case}"))
    pending, model, number = PendingSequences(), [], 0
    for _ in range(400):
        for _ in range(chance.choice([0, 1, 40, 300])):
            number += 1
            pending.add(number)
            model.append(number)
        most = chance.choice([1, 64, 512])
        batch = pending.first(most)
        assert batch == model[:most]
        left = [each for each in batch if chance.random() < 0.3]
        pending.drop(most, left)
        model[:most] = left
        assert len(pending) == len(model)
    assert len(pending._sequences) <= 2 * len(model) + 2048, "what was taken is given back"

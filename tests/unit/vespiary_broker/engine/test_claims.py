"""What transactions acknowledge counts as asked for no more, until they end, however they end."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.claims import claimed_messages
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.transactions import Acknowledgement, Transaction, Transactions
from vespiary_testkit.engine_rig import Rig

HELD = 6


def holding(rig: Rig, mode: AckMode) -> Consumer:
    """Return a consumer that holds messages 1 to 6."""
    consumer = rig.subscribe(rig.output(), "/queue/a", mode=mode)
    for number in range(HELD):
        rig.send("/queue/a", b"%d" % number)
    rig.turn()
    assert rig.core.held_count(consumer.handle) == HELD
    return consumer


def claimed(rig: Rig, consumer: Consumer) -> int:
    return claimed_messages(rig.core, [consumer])


@pytest.mark.parametrize(
    ("mode", "expected"), [(AckMode.INDIVIDUAL, [1, 2, 3]), (AckMode.CLIENT, [2, 2, 5])]
)
def test_acknowledgements_in_open_transactions_count_until_they_end(
    mode: AckMode, expected: list[int]
) -> None:
    rig = Rig()
    consumer = holding(rig, mode)
    transactions = Transactions(100_000)
    transactions.begin("t")
    transactions.begin("u")
    assert claimed(rig, consumer) == 0
    for (name, sequence), count in zip([("t", 2), ("u", 1), ("t", 5)], expected, strict=True):
        transactions.add(name, Acknowledgement(consumer, sequence))
        assert claimed(rig, consumer) == count
    transactions.abort("t")
    assert claimed(rig, consumer) == 1
    transactions.expire(before_s=1.0)
    assert claimed(rig, consumer) == 0
    assert not consumer.claims


def test_the_claims_of_a_branch_in_parts_add_up_until_they_are_released() -> None:
    rig = Rig()
    one, other = holding(rig, AckMode.INDIVIDUAL), Transaction()
    transactions = Transactions(100_000)
    for sequences in ([1, 2], [4]):
        transactions.begin("t")
        for sequence in sequences:
            transactions.add("t", Acknowledgement(one, sequence))
        other.join(transactions.take("t"))
    assert claimed(rig, one) == 3
    other.claims.release()
    assert not one.claims


def test_a_consumer_claims_no_more_than_it_holds() -> None:
    rig = Rig()
    consumer = holding(rig, AckMode.INDIVIDUAL)
    transactions = Transactions(100_000)
    transactions.begin("t")
    for _ in range(HELD + 1):
        transactions.add("t", Acknowledgement(consumer, 1))
    assert claimed(rig, consumer) == HELD
    consumer.is_open = False
    assert claimed(rig, consumer) == 0

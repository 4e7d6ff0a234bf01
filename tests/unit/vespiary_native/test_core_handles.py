"""Handles of routes, consumers and accounts: the lowest free one; routes of a queue that goes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from vespiary_native.abc import AckMode
from vespiary_testkit.core_rig import CoreRig
from vespiary_testkit.seeds import seed_for


def opener(rig: CoreRig, kind: str) -> tuple[Callable[[], int], Callable[[int], object]]:
    core = rig.core
    if kind == "route":
        return lambda: core.open_route([1]), core.close_route
    if kind == "account":
        return core.open_account, core.close_account
    connection = core.open_connection()
    core.set_ready(connection, 12, (10, 200, 1000, 5000))
    return (
        lambda: core.open_consumer(connection, 1, AckMode.AUTO, 5, b"s", 12),
        core.close_consumer,
    )


@pytest.mark.parametrize("kind", ["route", "account", "consumer"])
def test_the_lowest_free_handle_is_given(rig: CoreRig, kind: str) -> None:
    make, end = opener(rig, kind)
    first = make()
    end(first)
    chance = random.Random(seed_for("handles"))
    taken: set[int] = set()
    for step in range(1500):
        if taken and (chance.random() < 0.45 or step > 1300):
            handle = chance.choice(sorted(taken))
            taken.discard(handle)
            end(handle)
        else:
            free = next(n for n in range(first, first + len(taken) + 1) if n not in taken)
            handle = make()
            assert handle == free
            taken.add(handle)
    for handle in taken:
        end(handle)
    assert make() == first


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_queue_that_goes_leaves_each_of_its_routes(rig: CoreRig, closed_first: bool) -> None:
    core = rig.core
    for queue_id in (6, 7, 8, 9):
        core.open_queue(queue_id, durable=queue_id != 9)
    alone = core.open_route([6])
    both, one, other = core.open_route([7, 8]), core.open_route([7]), core.open_route([9, 8])
    core.set_route(other, [9, 7])
    core.set_route(one, [8])
    core.set_route(one, [7])
    if closed_first:
        core.close_route(both)
    core.drop_queue(6)
    core.drop_queue(7)
    for route in (one, other) if closed_first else (both, one, other):
        core.publish(route, b"destination:x\n", b"", persistent=True)
    assert core.publish(alone, b"destination:x\n", b"", persistent=True) == 0
    rig.flush()
    waiting = {queue_id: core.queue_statistics(queue_id).added for queue_id in (8, 9)}
    assert waiting == {8: 0 if closed_first else 1, 9: 1}
    core.drop_queue(8)
    core.drop_queue(9)
    with pytest.raises(ValueError, match=r"set_route|queue 8"):
        core.set_route(one, [8])

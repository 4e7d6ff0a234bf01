"""Queues with ranks: of those of one client one takes a message, whatever comes and goes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from vespiary_broker.engine.queue_traits import RETIRED, QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import reach_of
from vespiary_broker.engine.wildcards import Pattern
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.seeds import seed_for

MULTICAST = RoutingType.MULTICAST


def make(rig: Rig, client: str, address: str, rank: int | None, *, name: str = "") -> Queue:
    traits = QueueTraits(rank=rank)
    queue: Queue = do(
        rig.registry.create_queue(
            name or f"{client}.{address}", address, MULTICAST, client_id=client, traits=traits
        )
    )
    return queue


def change(rig: Rig, queue: Queue, rank: int | None) -> None:
    do(rig.registry.change_traits(queue, replace(queue.traits, rank=rank)))


def added(rig: Rig, *queues: Queue) -> list[int]:
    rig.journal.flush()
    return [rig.core.queue_statistics(queue.id).added for queue in queues]


def test_the_highest_rank_takes_a_message_and_of_several_the_oldest() -> None:
    rig = Rig()
    low, high, late = make(rig, "c", "a.b", 0), make(rig, "c", "a.*", 2), make(rig, "c", "#", 2)
    other, plain = make(rig, "d", "a.b", 0), make(rig, "c", "a.b", None, name="p")
    retired = make(rig, "c", "*.b", RETIRED)
    queues = [low, high, late, other, plain, retired]
    assert list(reach_of(queues, None).multicast) == [high, other, plain]
    rig.send("/topic/a.b", b"x")
    rig.send("/topic/z", b"x")
    assert added(rig, *queues) == [0, 1, 1, 1, 1, 0]


def test_a_route_that_was_taught_follows() -> None:
    rig = Rig()
    first = make(rig, "c", "a", 1)
    taught = rig.registry.route_of(rig.registry.addresses["a"], MULTICAST).next_handle()
    higher = make(rig, "c", "#", 2)
    rig.core.publish(taught, b"", b"body", persistent=True)
    assert added(rig, first, higher) == [0, 1]
    rig.registry.drop_queue(higher)
    rig.core.publish(taught, b"", b"body", persistent=True)
    assert added(rig, first) == [1]


def test_a_rank_survives_a_restart() -> None:
    rig = Rig()
    queues = [make(rig, "c", "a", rank, name=f"q{rank}") for rank in (0, 2, RETIRED)]
    for queue in queues:
        again = QueueTraits.from_binding(queue.to_binding())
        assert again == queue.traits


@pytest.mark.parametrize("case", range(6))
def test_whatever_comes_and_goes_each_client_gets_a_message_once(case: int) -> None:
    rig, dice = Rig(), random.Random(seed_for(f"ranks {case}"))
    addresses = ["a.b", "a.c", "#", "a.*", "*.b", "a.#"]
    topics = ["a.b", "a.c", "x.b", "x"]
    syntax, queues = rig.registry.syntax, rig.registry.queues
    for step in range(300):
        client, address = dice.choice("cde"), dice.choice(addresses)
        queue = queues.get(f"{client}.{address}")
        if queue is None:
            make(rig, client, address, dice.choice([None, 0, 0, 1, 2]))
        elif dice.random() < 0.5:
            rig.registry.drop_queue(queue)
        else:
            change(rig, queue, dice.choice([None, 0, 1, 2, RETIRED]))
        topic = dice.choice(topics)
        found = [
            each for each in queues.values() if Pattern(each.address.name, syntax).is_match(topic)
        ]
        before = added(rig, *found)
        rig.send(f"/topic/{topic}", b"x")
        took = [
            each for each, count in zip(found, added(rig, *found), strict=True)
            if count != before[found.index(each)]
        ]  # fmt: skip
        wanted = [each for each in found if each.traits.rank is None]
        for name in "cde":
            own = [
                each for each in found if each.client_id == name and each.traits.rank is not None
            ]
            own = [each for each in own if each.traits.rank != RETIRED]
            if own:
                wanted.append(max(own, key=lambda each: (each.traits.rank, -each.id)))
        assert {each.name for each in took} == {each.name for each in wanted}, step
        route = rig.registry.route_of(rig.registry.addresses[topic], MULTICAST)
        assert route.places_max >= len(wanted)

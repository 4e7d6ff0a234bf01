"""Messages that an administrator moves: retry, dead letters, expiry."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.departures import check_departure, leave
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do


def rig_with(**settings: Any) -> tuple[Rig, Queue, Queue]:
    rig = Rig({"#": AddressSettings(**settings)})
    first: Queue = do(rig.registry.create_queue("q", "orders", RoutingType.ANYCAST))
    dead: Queue = do(rig.registry.create_queue("DLQ", "DLQ", RoutingType.ANYCAST))
    return rig, first, dead


def send(rig: Rig, queue: Queue, body: bytes) -> None:
    route = rig.registry.queue_route(queue).next_handle()
    rig.core.publish(route, b"destination:/queue/orders\na:1\n", body, persistent=True)


def move(rig: Rig, queue: Queue, reason: Reason) -> int:
    rig.turn()
    check_departure(rig.engine.fates.mover, queue, reason)
    waiting = rig.core.look(queue.id, 0, 1000).messages
    mover = rig.engine.fates.mover
    count = sum(leave(rig.core, mover, queue, view, reason) for view in waiting)
    while rig.engine.fates.mover.has_work:
        rig.turn()
    rig.turn()
    return count


def bodies(rig: Rig, queue: Queue) -> list[bytes | None]:
    looked = rig.core.look(queue.id, 0, 1000).messages
    return [rig.core.body(queue.id, view.sequence) for view in looked]


def test_to_the_dead_letter_address_and_back() -> None:
    rig, first, dead = rig_with(dead_letter_address="DLQ")
    for number in range(300):
        send(rig, first, b"%d" % number)
    assert move(rig, first, Reason.DELIVERIES) == 300
    assert (bodies(rig, first), len(bodies(rig, dead))) == ([], 300)
    send(rig, dead, b"never moved")
    assert move(rig, dead, Reason.RETRIED) == 300
    assert bodies(rig, dead) == [b"never moved"]
    assert bodies(rig, first) == [b"%d" % number for number in range(300)]
    properties = rig.core.look(first.id, 0, 1).messages[0].properties
    assert properties == b"destination:orders\na:1\n"


def test_a_message_whose_queue_is_gone_stays() -> None:
    rig, first, dead = rig_with(dead_letter_address="DLQ")
    send(rig, first, b"x")
    move(rig, first, Reason.DELIVERIES)
    rig.registry.drop_queue(first)
    move(rig, dead, Reason.RETRIED)
    assert bodies(rig, dead) == [b"x"]
    assert rig.engine.fates.statistics().dead == 1


def test_what_would_be_lost_is_refused() -> None:
    rig, first, _ = rig_with(dead_letter_address="")
    send(rig, first, b"x")
    with pytest.raises(RemoteProtocolError, match="no dead letter address"):
        move(rig, first, Reason.DELIVERIES)
    rig, _, dead = rig_with(dead_letter_address="DLQ")
    send(rig, dead, b"x")
    with pytest.raises(RemoteProtocolError, match="no dead letter address"):
        move(rig, dead, Reason.DELIVERIES)


def test_held_messages_stay_and_the_rest_expires() -> None:
    rig, first, _ = rig_with(expiry_address="EXPIRED")
    output = rig.output()
    rig.subscribe(output, "orders::q", credit=1)
    for number in range(3):
        send(rig, first, b"%d" % number)
    assert move(rig, first, Reason.EXPIRED) == 2
    assert rig.core.queue_statistics(first.id).delivering == 1
    assert bodies(rig, rig.registry.queues["EXPIRED"]) == [b"1", b"2"]


def test_a_message_that_its_queue_does_not_let_in_any_more_stays() -> None:
    rig, first, dead = rig_with(dead_letter_address="DLQ")
    send(rig, first, b"x")
    assert move(rig, first, Reason.DELIVERIES) == 1
    rig.registry.drop_queue(first)
    traits = QueueTraits(selector=compile_filter("a = '2'"))
    first = do(rig.registry.create_queue("q", "orders", RoutingType.ANYCAST, traits=traits))
    assert move(rig, dead, Reason.RETRIED) == 1
    assert (bodies(rig, first), bodies(rig, dead)) == ([], [b"x"])

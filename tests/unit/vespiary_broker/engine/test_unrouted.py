"""Messages that no queue takes, with `send-to-dla-on-no-route`: filters, diverts, transactions."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.transactions import Outgoing, Transaction, prepare, stage
from vespiary_spec.settings import AddressSettings, Divert, RoutingType
from vespiary_testkit.engine_rig import Rig, destination, do

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def rig_with(**settings: Any) -> Rig:
    values = {"dead_letter_address": "DLQ", "send_to_dla_on_no_route": True} | settings
    return Rig({"news": AddressSettings(**values)})


def filtered(rig: Rig, name: str, selector: str, kind: RoutingType = MULTICAST) -> None:
    traits = QueueTraits(selector=compile_filter(selector))
    do(rig.registry.create_queue(name, "news", kind, traits=traits))


def bodies(rig: Rig, name: str) -> list[bytes | None]:
    rig.journal.flush()
    queue = rig.registry.queues.get(name)
    if queue is None:
        return []
    found = rig.core.look(queue.id, 0, 100).messages
    return [rig.core.body(queue.id, view.sequence) for view in found]


@pytest.mark.parametrize("kind", [ANYCAST, MULTICAST])
def test_what_no_filter_takes_is_a_dead_letter(kind: RoutingType) -> None:
    rig = rig_with()
    filtered(rig, "red", "colour = 'red'", kind)
    text = "/queue/news" if kind is ANYCAST else "/topic/news"
    for colour in ("red", "blue", "red", "green"):
        rig.send(text, colour.encode(), colour=colour)
    assert bodies(rig, "red") == [b"red", b"red"]
    assert bodies(rig, "DLQ") == [b"blue", b"green"]
    view = rig.core.look(rig.registry.queues["DLQ"].id, 0, 1).messages[0]
    assert b"_AMQ_ORIG_ADDRESS:news\n" in view.properties
    assert b"destination:DLQ\n" in view.properties


def test_the_filter_of_a_queue_that_is_named_counts_too() -> None:
    rig = rig_with()
    filtered(rig, "red", "colour = 'red'", ANYCAST)
    rig.send("/queue/news::red", b"no", colour="blue")
    rig.send("/queue/news::red", b"yes", colour="red")
    assert (bodies(rig, "red"), bodies(rig, "DLQ")) == ([b"yes"], [b"no"])


def test_without_the_setting_it_is_nowhere() -> None:
    rig = rig_with(send_to_dla_on_no_route=False)
    filtered(rig, "red", "colour = 'red'")
    rig.send("/topic/news", b"no", colour="blue")
    assert bodies(rig, "DLQ") == []
    assert rig.registry.unrouted_messages.total == 1


@pytest.mark.parametrize("selector", ["", "colour = 'blue'"])
def test_what_an_exclusive_divert_leads_nowhere_is_a_dead_letter(selector: str) -> None:
    rig = rig_with()
    do(rig.registry.create_queue("all", "news", MULTICAST))
    do(rig.registry.create_address("desert", {MULTICAST}))
    do(
        rig.registry.diverts.create(
            Divert(
                name="d",
                address="news",
                forwarding_address="desert",
                exclusive=True,
                filter_string=selector,
            )
        )
    )
    rig.send("/topic/news", b"blue", colour="blue")
    rig.send("/topic/news", b"red", colour="red")
    assert bodies(rig, "DLQ") == ([b"blue"] if selector else [b"blue", b"red"])
    assert bodies(rig, "all") == ([b"red"] if selector else [])
    do(rig.registry.create_queue("oasis", "desert", MULTICAST))
    rig.send("/topic/news", b"more blue", colour="blue")
    assert bodies(rig, "oasis") == [b"more blue"]


def test_in_a_transaction_some_may_be_dead_letters() -> None:
    rig = rig_with()
    for name in ("a", "b"):
        do(rig.registry.create_queue(name, "DLQ", MULTICAST))
    filtered(rig, "red", "colour = 'red'")
    transaction = Transaction()
    for colour in ("red", "blue"):
        transaction.sends.append(
            Outgoing(
                destination=destination("/topic/news"),
                properties=f"destination:x\ncolour:{colour}\n".encode(),
                body=colour.encode(),
                is_persistent=True,
            )
        )
    do(prepare(rig.registry, transaction))
    stage(rig.core, rig.registry, rig.duplicates, transaction)
    assert bodies(rig, "red") == [b"red"]
    assert (bodies(rig, "a"), bodies(rig, "b")) == ([b"blue"], [b"blue"])


def test_own_queues_of_the_address_get_unrouted_messages_too() -> None:
    rig = rig_with(auto_create_dead_letter_resources=True)
    filtered(rig, "red", "colour = 'red'")
    rig.send("/topic/news", b"x", colour="blue")
    assert bodies(rig, "DLQ.news") == [b"x"]

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.subscriptions import (
    close_subscription,
    delete_durable_subscription,
)
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do


def test_consumers_share_an_anycast_queue() -> None:
    rig = Rig()
    first = rig.subscribe(rig.output(), "/queue/a")
    second = rig.subscribe(rig.output(), "/queue/a")
    assert first.queue is second.queue
    assert first.queue.consumers == [first, second]
    assert first.queue.is_durable


def test_each_topic_subscriber_has_its_own_queue_that_goes_with_it() -> None:
    rig = Rig()
    outputs = [rig.output(), rig.output()]
    consumers = [rig.subscribe(output, "/topic/a", AckMode.AUTO) for output in outputs]
    assert rig.bindings.snapshot().keys() == {"counter/queue-id"}
    rig.send("/topic/a", b"x")
    rig.turn()
    assert [output.bodies() for output in outputs] == [[b"x"], [b"x"]]
    for consumer in consumers:
        rig.send("/topic/a", b"left behind")
        close_subscription(rig.core, rig.registry, consumer)
        close_subscription(rig.core, rig.registry, consumer)  # a second call does nothing
    assert not rig.registry.queues
    assert not rig.registry.addresses


@pytest.mark.parametrize("name", ["{0}", "a::{0}"])
def test_the_queue_of_a_topic_subscriber_is_for_its_own_connection(name: str) -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/topic/a")
    full = name.format(consumer.queue.name)
    with pytest.raises(RemoteProtocolError, match="was made for another connection alone"):
        rig.subscribe(rig.output(), full if "::" in full else f"a::{full}")
    again = rig.subscribe(output, f"a::{consumer.queue.name}")
    assert again.queue is consumer.queue


def test_a_connection_that_has_ended_gets_no_consumer() -> None:
    rig = Rig()
    do(rig.registry.create_queue("q", "a", RoutingType.ANYCAST))
    output = rig.output()
    output.handle = -1
    with pytest.raises(RemoteProtocolError, match="ended meanwhile"):
        rig.subscribe(output, "/queue/a::q")
    assert not rig.registry.queues["q"].consumers


def test_durable_subscription() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/topic/a", client_id="me", durable_name="sub")
    assert consumer.queue.name == "me.sub"
    with pytest.raises(RemoteProtocolError, match="in use by another connection"):
        rig.subscribe(rig.output(), "/topic/a", client_id="me", durable_name="sub")
    with pytest.raises(RemoteProtocolError, match="in use"):
        delete_durable_subscription(rig.registry, "me", "sub")
    close_subscription(rig.core, rig.registry, consumer)
    rig.send("/topic/a", b"kept")
    output = rig.output()
    again = rig.subscribe(output, "/topic/a", client_id="me", durable_name="sub")
    rig.turn()
    assert output.bodies() == [b"kept"]
    close_subscription(rig.core, rig.registry, again)
    delete_durable_subscription(rig.registry, "me", "sub")
    assert not rig.registry.queues
    with pytest.raises(RemoteProtocolError, match=r"no durable subscription me\.sub"):
        delete_durable_subscription(rig.registry, "me", "sub")


def test_names_that_look_alike_do_not_share_a_subscription() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/topic/a", client_id="a.b", durable_name="c")
    assert consumer.queue.name == "a%2Eb.c"
    with pytest.raises(RemoteProtocolError, match=r"no durable subscription a\.b%2Ec"):
        delete_durable_subscription(rig.registry, "a", "b.c")
    other = rig.subscribe(rig.output(), "/topic/a", client_id="a", durable_name="b.c")
    assert other.queue.name == "a.b%2Ec"
    close_subscription(rig.core, rig.registry, consumer)
    with pytest.raises(RemoteProtocolError, match="belongs to another client"):
        rig.subscribe(rig.output(), "a::a%2Eb.c", client_id="thief")


@pytest.mark.parametrize(
    ("text", "client_id", "reason"),
    [
        ("/topic/a", "", "needs the header client-id"),
        ("/queue/a", "me", "needs a MULTICAST address"),
        ("/topic/a::q", "me", "needs a MULTICAST address"),
    ],
)
def test_refused_durable_subscription(text: str, client_id: str, reason: str) -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError, match=reason):
        rig.subscribe(rig.output(), text, client_id=client_id, durable_name="sub")


def test_anycast_destination_prefers_the_queue_of_its_name() -> None:
    rig = Rig()
    for name in ("first", "a"):
        do(rig.registry.create_queue(name, "a", RoutingType.ANYCAST))
    assert rig.subscribe(rig.output(), "/queue/a").queue.name == "a"
    do(rig.registry.create_queue("z", "b", RoutingType.ANYCAST))
    assert rig.subscribe(rig.output(), "b").queue.name == "z"


def test_switched_off() -> None:
    rig = Rig({"#": AddressSettings(auto_create_addresses=False, auto_create_queues=False)})
    for text in ("/queue/a", "/topic/a", "a::q"):
        with pytest.raises(RemoteProtocolError, match="auto-create-addresses is off"):
            rig.subscribe(rig.output(), text)
    do(rig.registry.create_address("a", {RoutingType.ANYCAST}))
    with pytest.raises(RemoteProtocolError, match="auto-create-queues is off"):
        rig.subscribe(rig.output(), "/queue/a")


def test_a_subscription_to_a_topic_keeps_only_what_its_selector_matches() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/topic/t", selector="colour = 'red'")
    assert consumer.queue.examined is None
    rig.send("/topic/t", b"1", colour="blue")
    rig.send("/topic/t", b"2", colour="red")
    rig.turns()
    assert output.bodies() == [b"2"]
    assert rig.core.queue_statistics(consumer.queue.id).ready == 0


def test_a_durable_subscription_keeps_its_selector() -> None:
    rig = Rig()
    named = {"client_id": "me", "durable_name": "d"}
    consumer = rig.subscribe(rig.output(), "/topic/t", selector="colour = 'red'", **named)
    close_subscription(rig.core, rig.registry, consumer)
    rig.send("/topic/t", b"1", colour="blue")
    rig.send("/topic/t", b"2", colour="red")
    for selector in ("colour = 'blue'", ""):
        with pytest.raises(RemoteProtocolError, match="another selector"):
            rig.subscribe(rig.output(), "/topic/t", selector=selector, **named)
    output = rig.output()
    rig.subscribe(output, "/topic/t", selector=" colour = 'red'", **named)
    rig.turns()
    assert output.bodies() == [b"2"]
    assert rig.bindings.snapshot()[consumer.queue.key]["filter-string"] == "colour = 'red'"


@pytest.mark.parametrize("queue_type", list(RoutingType))
@pytest.mark.parametrize("is_sent_first", [True, False])
def test_a_queue_by_its_full_name_gets_the_default_type_of_queues(
    queue_type: RoutingType, *, is_sent_first: bool
) -> None:
    address_type = next(kind for kind in RoutingType if kind is not queue_type)
    settings = AddressSettings(
        default_queue_routing_type=queue_type, default_address_routing_type=address_type
    )
    rig = Rig({"#": settings})
    if is_sent_first:
        rig.send("orders::q", b"1")
    else:
        rig.subscribe(rig.output(), "orders::q")
    assert rig.registry.queues["q"].routing_type is queue_type
    assert rig.registry.addresses["orders"].routing_types == {queue_type}
    rig.subscribe(rig.output(), "plain")
    assert rig.registry.addresses["plain"].routing_types == {address_type}

import pytest

from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, destination, do

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def test_nothing_there() -> None:
    rig = Rig()
    for text in ("/queue/a", "/topic/a", "a", "a::b"):
        assert find_target(rig.registry, destination(text)) is None


@pytest.mark.parametrize(
    ("text", "queues", "kinds"),
    [
        ("/queue/a", ["a"], {ANYCAST}),
        ("/topic/a", [], {MULTICAST}),
        ("a", ["a"], {ANYCAST}),
        ("a::b", ["b"], {MULTICAST}),
        ("/queue/a::b", ["b"], {ANYCAST}),
    ],
)
def test_automatic_creation(text: str, queues: list[str], kinds: set[RoutingType]) -> None:
    rig = Rig()
    target = do(make_target(rig.registry, destination(text)))
    assert target.is_teachable
    assert find_target(rig.registry, destination(text)) == target
    assert list(rig.registry.queues) == queues
    assert rig.registry.addresses["a"].routing_types == kinds


def test_default_type_of_the_settings() -> None:
    rig = Rig({"b": AddressSettings(default_address_routing_type=MULTICAST)})
    for name in ("a", "b"):
        do(make_target(rig.registry, destination(name)))
    assert list(rig.registry.queues) == ["a"]
    assert rig.registry.addresses["b"].routing_types == {MULTICAST}


def test_existing_address_says_its_type() -> None:
    rig = Rig()
    do(rig.registry.create_queue("other", "a", ANYCAST))
    target = find_target(rig.registry, destination("a"))
    assert target is not None
    rig.core.publish(target.route, b"", b"x", persistent=True)
    rig.journal.flush()
    assert rig.core.queue_statistics(rig.registry.queues["other"].id).ready == 1


def test_other_type_widens_the_address() -> None:
    rig = Rig()
    do(make_target(rig.registry, destination("/queue/a")))
    assert find_target(rig.registry, destination("/topic/a")) is None
    do(make_target(rig.registry, destination("/topic/a")))
    assert rig.registry.addresses["a"].routing_types == {ANYCAST, MULTICAST}


def test_switched_off() -> None:
    rig = Rig({"#": AddressSettings(auto_create_addresses=False, auto_create_queues=False)})
    with pytest.raises(RemoteProtocolError, match="there is no address a, and auto-create-addr"):
        do(make_target(rig.registry, destination("/queue/a")))
    do(rig.registry.create_address("a", {ANYCAST}))
    with pytest.raises(RemoteProtocolError, match="there is no queue a, and auto-create-queues"):
        do(make_target(rig.registry, destination("/queue/a")))
    with pytest.raises(RemoteProtocolError, match=r"does not serve MULTICAST.*allowed: ANYCAST"):
        do(make_target(rig.registry, destination("/topic/a")))
    assert not rig.registry.queues


def test_queue_of_another_address() -> None:
    rig = Rig()
    do(rig.registry.create_queue("q", "a", ANYCAST))
    with pytest.raises(RemoteProtocolError, match="the queue q belongs to the address a"):
        find_target(rig.registry, destination("b::q"))

import pytest

from vespiary_broker.engine import registry as registry_module
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.names import parse_destination
from vespiary_broker.engine.naming import NamingRules, UserLimit
from vespiary_broker.engine.publishing import make_target
from vespiary_broker.engine.queue_traits import QueueTraits, traits_of_user
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.errors import LimitExceeded
from vespiary_spec.settings import Address, AddressSettings, Queue, RoutingType
from vespiary_testkit.engine_rig import Rig, do

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _rig(**rules: object) -> Rig:
    return Rig(naming=NamingRules(**rules))  # type: ignore[arg-type]


def test_an_address_too_many_is_refused_and_nothing_else_suffers() -> None:
    rig = _rig(addresses_max=3)
    for name in ("a", "b", "c"):
        rig.send(f"/queue/{name}", b"kept")
    with pytest.raises(LimitExceeded, match=r"address d .*got 4 addresses.*at most 3 \(max-addr"):
        rig.send("/queue/d", b"x")
    with pytest.raises(LimitExceeded, match="address e"):
        do(rig.registry.create_address("e", {MULTICAST}))
    assert rig.registry.limits.refused == 2
    assert sorted(rig.registry.addresses) == ["a", "b", "c"]
    rig.send("/queue/a", b"kept")
    output = rig.output()
    rig.subscribe(output, "/queue/a", AckMode.AUTO)
    rig.turn()
    assert output.bodies() == [b"kept", b"kept"]


def test_an_address_that_holds_nothing_goes_for_a_new_one() -> None:
    rig = _rig(addresses_max=3)
    for name in ("a", "b", "c", "d", "e"):
        rig.send(f"/topic/{name}", b"nobody listens")
    assert list(rig.registry.addresses) == ["c", "d", "e"]
    do(rig.registry.create_address("made", {MULTICAST}))
    assert list(rig.registry.addresses) == ["d", "e", "made"]
    assert rig.registry.limits.refused == 0


def test_memory_of_many_addresses_is_bounded() -> None:
    rig = _rig(addresses_max=50)
    rig.send("/queue/keep", b"kept")
    for number in range(2000):
        rig.send(f"/topic/t.{number}", b"x")
    assert len(rig.registry.addresses) == 50
    assert len(rig.registry.unused) == 49
    assert "keep" in rig.registry.addresses


def test_unused_addresses_may_be_a_tenth_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "UNUSED_ADDRESSES_MAX", 3)
    rig = _rig(addresses_max=50)
    for number in range(20):
        rig.send(f"/topic/t{number}", b"x")
    assert len(rig.registry.unused) == 5


def test_a_queue_too_many_is_refused_before_anything_is_made() -> None:
    rig = _rig(queues_max=2)
    rig.send("/queue/a", b"x")
    consumer = rig.subscribe(rig.output(), "/topic/t")
    puts = list(rig.bindings.puts)
    with pytest.raises(LimitExceeded, match=r"queue b .*got 3 queues.*at most 2 \(max-queues"):
        rig.send("/queue/b", b"x")
    assert rig.bindings.puts == puts
    assert "b" not in rig.registry.addresses
    close_subscription(rig.core, rig.registry, consumer)
    rig.send("/queue/b", b"x")


def test_a_subscription_too_many_is_refused_before_anything_is_made() -> None:
    rig = _rig(subscriptions_max=2)
    first = rig.subscribe(rig.output(), "/queue/a")
    rig.subscribe(rig.output(), "/queue/a")
    with pytest.raises(LimitExceeded, match=r"got 3 subscriptions .*at most 2 \(max-subscr"):
        rig.subscribe(rig.output(), "/queue/b")
    assert "b" not in rig.registry.addresses
    assert rig.registry.limits.refused == 1
    for _ in range(2):  # closed twice, it counts once
        close_subscription(rig.core, rig.registry, first)
    rig.subscribe(rig.output(), "/queue/b")
    with pytest.raises(LimitExceeded):
        rig.subscribe(rig.output(), "/queue/b")


def test_what_is_configured_is_made_in_any_case() -> None:
    rig = _rig(addresses_max=1, queues_max=1)
    do(rig.registry.configure([Address(name=n, queues=(Queue(name=n),)) for n in "abc"]))
    assert sorted(rig.registry.queues) == ["a", "b", "c"]
    with pytest.raises(LimitExceeded):
        rig.send("/queue/d", b"x")


def _make(rig: Rig, name: str, user: str) -> None:
    destination = parse_destination(
        name, anycast_prefix="/queue/", multicast_prefix="/topic/", user=user
    )
    do(make_target(rig.registry, destination))


def test_queues_are_counted_by_user_over_a_restart() -> None:
    rules = {"users": {"alice": UserLimit(queues_max=2), "#": UserLimit(queues_max=1)}}
    rig = _rig(**rules)
    _make(rig, "/queue/a", "alice")
    _make(rig, "/queue/b", "alice")
    _make(rig, "/queue/c", "bob")
    with pytest.raises(LimitExceeded, match=r"user alice .* d .*got 3 queues.*at most 2"):
        _make(rig, "/queue/d", "alice")
    with pytest.raises(LimitExceeded, match="user bob"):
        _make(rig, "/queue/d", "bob")
    _make(rig, "/queue/e", "carol")
    _make(rig, "/queue/a", "bob")  # it is there
    do(rig.registry.create_queue("by-administrator", "x", ANYCAST))
    again = Rig(bindings=rig.bindings, naming=NamingRules(**rules))  # type: ignore[arg-type]
    for queue_id in durable_queue_ids(rig.bindings.snapshot()):
        again.core.open_queue(queue_id)
    again.registry.restore()
    with pytest.raises(LimitExceeded, match="user alice"):
        _make(again, "/queue/d", "alice")
    again.registry.drop_queue(again.registry.queues["a"])
    _make(again, "/queue/d", "alice")


def test_a_queue_that_is_configured_later_keeps_its_user() -> None:
    rig = _rig(users={"alice": UserLimit(queues_max=1)})
    _make(rig, "/queue/a", "alice")
    do(rig.registry.configure([Address(name="a", queues=(Queue(name="a"),))]))
    assert rig.registry.queues["a"].traits == QueueTraits(is_configured=True, user="alice")
    with pytest.raises(LimitExceeded):
        _make(rig, "/queue/b", "alice")


def test_one_object_for_all_queues_with_nothing_particular() -> None:
    value = {"name": "q", "user": "alice"}
    assert QueueTraits.from_binding(value) is traits_of_user("alice")


def test_sessions_by_user() -> None:
    limits = _rig(users={"alice": UserLimit(sessions_max=2), "#": UserLimit()}).registry.limits
    limits.begin_session("alice")
    limits.begin_session("alice")
    for _ in range(10):
        limits.begin_session("bob")
    with pytest.raises(LimitExceeded, match=r"alice .*got 3 sessions.*at most 2 \(max-sessions"):
        limits.begin_session("alice")
    limits.end_session("alice")
    limits.begin_session("alice")


def test_queues_of_an_address() -> None:
    rig = Rig(settings={"orders.#": AddressSettings(max_address_queues=2)})
    for name in ("a", "b"):
        do(rig.registry.create_queue(name, "orders.eu", ANYCAST))
    with pytest.raises(
        LimitExceeded, match=r"orders.eu has no room for the queue c .*got 3 queues"
    ):
        do(rig.registry.create_queue("c", "orders.eu", ANYCAST))
    assert rig.registry.limits.refused == 1
    output = rig.output()
    with pytest.raises(LimitExceeded, match=r"at most 2 \(max-address-queues\)"):
        rig.subscribe(output, "/topic/orders.eu", AckMode.AUTO)
    do(rig.registry.create_queue("a", "orders.eu", ANYCAST))  # it is there
    do(rig.registry.create_queue("c", "orders.us", ANYCAST))
    configured = [Address(name="orders.eu", queues=(Queue(name="d"),))]
    do(rig.registry.configure(configured))
    assert len(rig.registry.addresses["orders.eu"].queues) == 3
    rig.registry.drop_queue(rig.registry.queues["a"])
    rig.registry.drop_queue(rig.registry.queues["d"])
    do(rig.registry.create_queue("c2", "orders.eu", ANYCAST))


def test_consumers_of_an_address() -> None:
    rig = Rig(settings={"orders": AddressSettings(max_address_consumers=2)})
    output = rig.output()
    first = rig.subscribe(output, "/topic/orders", AckMode.AUTO)
    rig.subscribe(output, "orders::q", AckMode.AUTO)
    with pytest.raises(LimitExceeded, match=r"3 consumers of all its queues.*max-address-consum"):
        rig.subscribe(output, "/queue/orders", AckMode.AUTO)
    rig.subscribe(output, "/queue/other", AckMode.AUTO)
    close_subscription(rig.core, rig.registry, first)
    rig.subscribe(output, "/queue/orders", AckMode.AUTO)

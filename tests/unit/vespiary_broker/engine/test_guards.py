"""What users are given of queues at wildcards that they share, and what they may look at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.guards import Guards
from vespiary_broker.engine.queue_traits import traits_of_user
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.stall_watch import StallWatch
from vespiary_broker.engine.stalls import StallReason, Stalls
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    close_subscription,
    delete_durable_subscription,
    forbidden_consumers,
    open_subscription,
)
from vespiary_broker.engine.users import User
from vespiary_spec.errors import NotPermitted, RemoteProtocolError
from vespiary_spec.settings import Divert, Permission, RoutingType, SecuritySettings
from vespiary_testkit.engine_rig import FakeOutput, Rig, destination, do

EVERYTHING = tuple(permission.value for permission in Permission)


def user(name: str) -> User:
    return User(name, b"", 4096, b"", b"", frozenset((name,)))


def rules(**roles: tuple[str, ...]) -> dict[str, SecuritySettings]:
    """Return rules that permit everything at a match to some users; `hash` is `#`."""
    return {
        match.replace("hash", "#").replace("_", "."): SecuritySettings(
            **dict.fromkeys(EVERYTHING, names)
        )
        for match, names in roles.items()
    }


def made(**roles: tuple[str, ...]) -> Rig:
    rig = Rig(users={name: user(name) for name in ("alice", "bob")})
    change(rig, **roles)
    return rig


def change(rig: Rig, **roles: tuple[str, ...]) -> None:
    rig.registry.permissions.replace(rules(**roles))
    rig.registry.permissions_changed()
    for queue_id in rig.registry.guards.renew():
        rig.dispatcher.poke(queue_id)


def publish(rig: Rig, name: str, kind: RoutingType = RoutingType.MULTICAST) -> None:
    """Publish a message whose body is the name of its address."""
    do(rig.registry.create_address(name, {kind}, is_auto_created=True))
    handle = rig.registry.route_of(rig.registry.addresses[name], kind).next_handle()
    rig.core.publish(handle, f"destination:{name}\n".encode(), name.encode(), persistent=True)


def subscribe(rig: Rig, output: FakeOutput, text: str, who: str, **more: str) -> Consumer:
    request = SubscriptionRequest(
        destination=replace(destination(text), user=who),
        subscription="s",
        header=b"s",
        version=12,
        mode=AckMode.AUTO,
        credit=1000,
        **more,  # type: ignore[arg-type]
    )
    return do(open_subscription(rig.core, rig.registry, output, request))


def bodies(rig: Rig, output: FakeOutput) -> list[bytes]:
    rig.turns()
    return output.bodies()


@dataclass
class View:
    """What a guard looks at."""

    properties: bytes
    protocol: int = 1
    sequence: int = 0
    priority: int = 4
    is_escaped: bool = False


def view(text: str, protocol: int = 1, headers: str = "") -> View:
    return View(f"destination:{text}\n{headers}".encode(), protocol)


def test_a_queue_that_users_share_gives_each_what_it_may_have() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    alice, bob = rig.output(), rig.output()
    subscribe(rig, alice, "/topic/#::shared", "alice")
    consumer = subscribe(rig, bob, "/topic/#::shared", "bob")
    assert consumer.guard is not None
    for _ in range(3):
        publish(rig, "secret")
        publish(rig, "open")
    rig.turns()
    got_alice, got_bob = alice.bodies(), bob.bodies()
    assert got_alice.count(b"secret") == 3
    assert set(got_bob) == {b"open"}
    assert len(got_alice) + len(got_bob) == 6


@pytest.mark.parametrize(
    ("text", "protocol", "is_given"),
    [
        ("/topic/open", 1, True),
        ("/topic/secret", 1, False),
        ("secret", 1, False),
        ("secret::queue", 1, False),
        ("secret", 2, False),
        ("open", 2, True),
        ("/topic/open", 3, True),
        ("/topic/secret", 3, False),
        (" secret", 1, False),
        ("", 1, False),
    ],
)
def test_the_address_is_read_as_the_protocol_wrote_it(
    text: str, protocol: int, is_given: bool
) -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    assert guard.wants(view(text, protocol)) is is_given


def test_where_acceptors_differ_each_reading_has_to_be_permitted() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    rig.registry.guards = Guards(rig.core, rig.registry, [("/queue/", "/topic/"), ("q.", "t.")])
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    assert not guard.wants(view("t.secret"))
    assert not guard.wants(view("/topic/secret"))
    assert guard.wants(view("t.open"))


def test_a_message_without_a_destination_is_withheld() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    assert not guard.wants(View(b"other:open\n"))


def test_what_a_divert_leads_to_a_permitted_address_is_given() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    assert not guard.wants(view("/topic/secret"))
    wanted = Divert(name="d", address="secret", forwarding_address="open")
    do(rig.registry.diverts.create(wanted))
    assert guard.wants(view("/topic/secret"))


@pytest.mark.parametrize(
    ("headers", "priority", "is_given"),
    [("kind:public\n", 4, True), ("kind:secret\n", 4, False), ("", 4, False), ("", 9, True)],
)
def test_a_divert_counts_for_what_its_filter_takes(
    headers: str, priority: int, *, is_given: bool
) -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",), hop=("alice",))
    filter_string = "kind = 'public' OR JMSPriority = 9"
    ways = [("secret", "hop", ""), ("hop", "open", filter_string)]
    for number, (address, target, text) in enumerate(ways):
        wanted = Divert(
            name=f"d{number}", address=address, forwarding_address=target, filter_string=text
        )
        do(rig.registry.diverts.create(wanted))
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    seen = replace(view("/topic/secret", headers=headers), priority=priority)
    assert guard.wants(seen) is is_given
    assert guard.cost_us(seen) > 20.0, "a filter was evaluated"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "filter_string",
    ["AMQSize < 1000", "JMSDeliveryMode = 'NON_PERSISTENT'", "NOT AMQTimestamp > 9"],
)
def test_a_divert_whose_filter_cannot_be_asked_again_counts_for_nothing(filter_string: str) -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    wanted = Divert(
        name="d", address="secret", forwarding_address="open", filter_string=filter_string
    )
    do(rig.registry.diverts.create(wanted))
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    assert not guard.wants(view("/topic/secret"))


def test_what_an_exclusive_divert_takes_meets_no_other() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",), hidden=("alice",))
    rest = {"address": "secret", "forwarding_address": "open"}
    do(rig.registry.diverts.create(Divert(name="all", **rest)))
    rest = {"address": "secret", "forwarding_address": "hidden", "filter_string": "kind = 'a'"}
    do(rig.registry.diverts.create(Divert(name="some", exclusive=True, **rest)))
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    guard = rig.registry.guards.guard_for("bob", consumer.queue)
    assert guard is not None
    assert not guard.wants(view("/topic/secret", headers="kind:a\n"))
    assert guard.wants(view("/topic/secret", headers="kind:b\n"))


def test_who_may_have_all_has_no_guard() -> None:
    rig = made(hash=("alice", "bob"))
    subscribe(rig, rig.output(), "/topic/#::shared", "alice")
    consumer = subscribe(rig, rig.output(), "/topic/#::shared", "bob")
    assert consumer.guard is None
    assert consumer.queue.examined is None
    change(rig, hash=("alice", "bob"), secret=("alice",))
    assert consumer.guard is not None
    assert consumer.queue.examined is not None
    assert not list(forbidden_consumers(rig.registry))
    change(rig, hash=("alice",))
    assert [found for found, _ in forbidden_consumers(rig.registry)] == [consumer]


def test_who_made_a_queue_has_no_guard_where_routes_decide() -> None:
    rig = made(hash=("alice", "bob"))
    output = rig.output()
    consumer = subscribe(rig, output, "/topic/#::own", "bob")
    change(rig, hash=("alice", "bob"), secret=("alice",))
    assert consumer.guard is None
    assert consumer.queue.examined is None
    publish(rig, "secret")
    publish(rig, "open")
    assert bodies(rig, output) == [b"open"]


@pytest.mark.parametrize(
    ("maker", "is_filtered"), [("anonymous", True), ("bob", False)], ids=["adopted", "older"]
)
def test_a_queue_that_gets_a_user_or_is_older_takes_what_that_user_may_have(
    maker: str, *, is_filtered: bool
) -> None:
    rig = made(hash=("alice", "bob", "anonymous"))
    durable = {"client_id": "c", "durable_name": "all"}
    consumer = subscribe(rig, rig.output(), "/topic/#", maker, **durable)
    queue = consumer.queue
    queue.traits = replace(queue.traits, is_filtered=is_filtered)  # as stored by a release before
    close_subscription(rig.core, rig.registry, consumer)
    publish(rig, "secret")
    publish(rig, "open")
    change(rig, hash=("alice", "bob", "anonymous"), secret=("alice", "anonymous"))
    output = rig.output()
    consumer = subscribe(rig, output, "/topic/#", "bob", **durable)
    assert consumer.queue is queue
    assert (queue.traits.user, queue.traits.is_filtered) == ("bob", True)
    added = rig.core.queue_statistics(queue.id).added
    publish(rig, "secret")
    assert rig.core.queue_statistics(queue.id).added == added
    publish(rig, "open")
    assert bodies(rig, output) == [b"open", b"open"]


def test_an_anycast_queue_of_a_wildcard_keeps_what_one_of_its_users_may_not_have() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    bob, alice = rig.output(), rig.output()
    do(rig.registry.create_queue("#", "#", RoutingType.ANYCAST))
    consumer = subscribe(rig, bob, "/queue/#", "bob")
    assert not consumer.queue.traits.is_filtered
    assert consumer.guard is not None
    publish(rig, "secret", RoutingType.ANYCAST)
    assert bodies(rig, bob) == []
    subscribe(rig, alice, "/queue/#", "alice")
    assert bodies(rig, alice) == [b"secret"]


@pytest.mark.parametrize("text", ["/queue/#", "/queue/#::own", "/queue/open.#", "/queue/*.x"])
def test_making_an_anycast_queue_of_a_wildcard_needs_all_that_it_covers(text: str) -> None:
    rig = made(hash=("alice",), open_hash=("alice", "bob"))
    name = text.removeprefix("/queue/").rpartition("::")[2]
    if text == "/queue/open.#":
        assert subscribe(rig, rig.output(), text, "bob").queue.name == name
        return
    with pytest.raises(NotPermitted):
        subscribe(rig, rig.output(), text, "bob")
    assert not rig.registry.queues
    assert not rig.registry.addresses
    alice = subscribe(rig, rig.output(), text, "alice")
    assert subscribe(rig, rig.output(), text, "bob").queue is alice.queue


@pytest.mark.parametrize("lacking", ["consume", "create_durable_queue", "create_address"])
def test_an_anycast_queue_of_a_wildcard_needs_each_permission_everywhere(lacking: str) -> None:
    rig = made(hash=("bob",))
    less = SecuritySettings(
        **{name: ("alice",) if name == lacking else ("bob",) for name in EVERYTHING}
    )
    rig.registry.permissions.replace({**rules(hash=("bob",)), "bank.#": less})
    with pytest.raises(NotPermitted) as refusal:
        subscribe(rig, rig.output(), "/queue/#", "bob")
    assert "bank.#" in str(refusal.value)
    assert not rig.registry.queues
    assert subscribe(rig, rig.output(), "/topic/#", "bob").queue.traits.is_filtered


def test_what_waits_for_a_user_who_may_have_it_counts_as_stalled() -> None:
    rig = made(hash=("alice", "bob"), secret=("alice",))
    stalls = Stalls(rig.engine, lambda _: 0, lambda: None, lambda _: False)
    watch = StallWatch(rig.engine, stalls, lambda: rig.now_s)
    do(rig.registry.create_queue("#", "#", RoutingType.ANYCAST))
    consumer = subscribe(rig, rig.output(), "/queue/#", "bob")
    publish(rig, "secret", RoutingType.ANYCAST)
    rig.turns()
    for _ in range(3):
        rig.now_s += watch.period_s
        list(watch.scan())
    stall = stalls.why(consumer.queue)
    assert stall is not None
    assert stall.reason is StallReason.NO_SELECTOR_MATCH
    assert "its user may not consume it" in stall.text


def test_making_and_ending_a_subscription_needs_a_part_of_the_wildcard() -> None:
    rig = made(open_hash=("bob",))
    output = rig.output()
    consumer = subscribe(rig, output, "/topic/#", "bob", client_id="c", durable_name="all")
    queue = consumer.queue
    assert queue.traits.is_filtered
    with pytest.raises(NotPermitted):
        subscribe(rig, rig.output(), "/topic/news.#", "bob")
    close_subscription(rig.core, rig.registry, consumer)
    with pytest.raises(RemoteProtocolError, match="no durable subscription"):
        delete_durable_subscription(rig.registry, "c", "all", "alice")
    delete_durable_subscription(rig.registry, "c", "all", "bob")
    assert queue.is_deleted


def test_the_durable_queue_of_a_user_who_is_gone_takes_nothing() -> None:
    users = {name: user(name) for name in ("alice", "bob")}
    rig = Rig(users=users)
    change(rig, hash=("alice", "bob"), secret=("alice",))
    durable = {"client_id": "c", "durable_name": "all"}
    consumer = subscribe(rig, rig.output(), "/topic/#", "bob", **durable)
    queue = consumer.queue
    close_subscription(rig.core, rig.registry, consumer)
    publish(rig, "open")
    bob = users.pop("bob")
    rig.registry.permissions_changed()
    for name in ("open", "secret", "new"):
        publish(rig, name)
    assert rig.core.queue_statistics(queue.id).added == 1
    users["bob"] = bob
    rig.registry.permissions_changed()
    for name in ("new", "secret", "newer"):
        publish(rig, name)
    output = rig.output()
    subscribe(rig, output, "/topic/#", "bob", **durable)
    assert bodies(rig, output) == [b"open", b"new", b"newer"]


def test_who_joins_the_shared_queue_of_a_user_who_is_gone_goes_on_with_it() -> None:
    users = {name: user(name) for name in ("alice", "bob")}
    rig = Rig(users=users)
    change(rig, hash=("alice", "bob"), secret=("alice",))
    kind, traits = RoutingType.MULTICAST, traits_of_user("alice")
    queue = do(rig.registry.create_queue("shared", "#", kind, traits=traits))
    publish(rig, "open")
    publish(rig, "secret")
    del users["alice"]
    rig.registry.permissions_changed()
    publish(rig, "open")
    output = rig.output()
    consumer = subscribe(rig, output, "/topic/#::shared", "bob")
    assert consumer.queue is queue
    assert queue.traits.user == "bob"
    publish(rig, "secret")
    publish(rig, "new")
    assert bodies(rig, output) == [b"open", b"new"]


def test_without_users_the_queue_of_one_takes_everything() -> None:
    rig = Rig()
    rig.registry.permissions.replace(rules(hash=("alice",)))
    permissions = rig.registry.permissions
    assert permissions.takes_from("carol", "secret", is_durable=True)
    assert not permissions.takes_from("anonymous", "secret", is_durable=True)


def test_who_may_make_no_queue_for_an_address_gets_no_copies_of_it() -> None:
    rig = Rig(users={"bob": user("bob")})
    everything = dict.fromkeys(EVERYTHING, ("bob",))
    rig.registry.permissions.replace(
        {
            "#": SecuritySettings(**everything),
            "orders": SecuritySettings(consume=("bob",)),
        }
    )
    permissions = rig.registry.permissions
    assert permissions.takes_from("bob", "other", is_durable=False)
    assert not permissions.takes_from("bob", "orders", is_durable=False)

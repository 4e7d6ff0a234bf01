"""Whose queues are: durable subscriptions belong to a user, whatever a client calls itself."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.queue_traits import NO_TRAITS, QueueTraits
from vespiary_broker.engine.subscriptions import (
    close_subscription,
    delete_durable_subscription,
    forbidden_consumers,
)
from vespiary_broker.engine.users import User, make_user
from vespiary_spec.errors import NotOwner, RemoteProtocolError
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import Rig, do

USERS = {
    name: make_user(name, "secret", roles=roles, iterations=4096)
    for name, roles in (("alice", ()), ("bob", ()), ("root", ("admin",)))
}
PRICES = {"text": "/topic/prices", "client_id": "shop", "durable_name": "prices"}


def made(rig: Rig, user: str = "alice") -> None:
    """Have a durable subscription with a message in it, and nobody connected."""
    consumer = rig.subscribe(rig.output(), user=user, **PRICES)
    close_subscription(rig.core, rig.registry, consumer)
    rig.send("/topic/prices", b"kept")


@pytest.mark.parametrize("where", ["/topic/prices", "prices::shop.prices"])
def test_a_durable_subscription_is_for_who_made_it_and_administrators(where: str) -> None:
    rig = Rig(users=USERS)
    made(rig)
    how = {**PRICES, "text": where, "durable_name": "" if "::" in where else "prices"}
    refused = rig.registry.permissions.refused
    with pytest.raises(NotOwner, match=r"shop\.prices belongs to another user"):
        rig.subscribe(rig.output(), user="bob", **how)
    assert rig.registry.permissions.refused == refused + 1, "it is counted"
    with pytest.raises(NotOwner):
        rig.subscribe(rig.output(), user="", **how)
    for user in ("root", "alice"):
        output = rig.output()
        consumer = rig.subscribe(output, user=user, **how)
        rig.turn()
        assert output.bodies() == [b"kept"]
        close_subscription(rig.core, rig.registry, consumer, counted=False)
    assert rig.registry.queues["shop.prices"].traits.user == "alice"


def test_another_selector_of_it_is_not_told() -> None:
    rig = Rig(users=USERS)
    consumer = rig.subscribe(rig.output(), user="alice", selector="secret = 1", **PRICES)
    close_subscription(rig.core, rig.registry, consumer)
    with pytest.raises(NotOwner) as refusal:
        rig.subscribe(rig.output(), user="bob", **PRICES)
    assert "secret = 1" not in str(refusal.value)


def test_it_is_deleted_by_its_owner_or_an_administrator() -> None:
    for user in ("alice", "root"):
        rig = Rig(users=USERS)
        made(rig)
        with pytest.raises(NotOwner):
            delete_durable_subscription(rig.registry, "shop", "prices", "bob")
        assert "shop.prices" in rig.registry.queues
        delete_durable_subscription(rig.registry, "shop", "prices", user)
        assert not rig.registry.queues


def test_without_users_nothing_has_an_owner() -> None:
    rig = Rig()
    made(rig, "anonymous")
    consumer = rig.subscribe(rig.output(), user="somebody", **PRICES)
    assert consumer.queue.traits.user == "anonymous"


@pytest.mark.parametrize("maker", ["", "anonymous"])
def test_one_without_an_owner_belongs_to_the_first_user_who_attaches(maker: str) -> None:
    before = Rig()
    made(before, maker)
    rig = Rig(users=USERS, bindings=before.bindings, journal=before.journal)
    rig.engine.restore()
    consumer = rig.subscribe(rig.output(), user="bob", **PRICES)
    close_subscription(rig.core, rig.registry, consumer)
    with pytest.raises(NotOwner):
        rig.subscribe(rig.output(), user="alice", **PRICES)
    (binding,) = [each for each in rig.bindings.snapshot().values() if "client-id" in each]
    assert binding["user"] == "bob", "over a restart too"


def test_who_comes_without_a_login_takes_nothing_of_a_user() -> None:
    rig = Rig(users=USERS)
    made(rig)
    with pytest.raises(NotOwner):
        rig.subscribe(rig.output(), user="anonymous", **PRICES)


def test_queues_without_a_client_id_have_no_owner() -> None:
    rig = Rig(users=USERS)
    rig.subscribe(rig.output(), "/queue/orders", user="alice")
    assert len(rig.subscribe(rig.output(), "/queue/orders", user="bob").queue.consumers) == 2


def test_who_is_no_administrator_any_more_loses_the_queues_of_others() -> None:
    users: dict[str, User] = dict(USERS)
    rig = Rig(users=users)
    made(rig)
    consumer = rig.subscribe(rig.output(), user="root", **PRICES)
    assert list(forbidden_consumers(rig.registry)) == []
    root = users["root"]
    users["root"] = User("root", root.salt, root.iterations, root.stored_key, root.server_key)
    rig.registry.permissions.forget()
    ((found, error),) = forbidden_consumers(rig.registry)
    assert found is consumer
    assert isinstance(error, NotOwner)


def test_dots_in_names_do_not_make_two_subscriptions_one() -> None:
    rig = Rig(users=USERS)
    one = rig.subscribe(
        rig.output(), "/topic/p", client_id="shop", durable_name="eu.prices", user="alice"
    )
    other = rig.subscribe(
        rig.output(), "/topic/p", client_id="shop.eu", durable_name="prices", user="bob"
    )
    assert (one.queue.name, other.queue.name) == ("shop.eu%2Eprices", "shop%2Eeu.prices")


def test_a_queue_of_an_earlier_version_keeps_its_name() -> None:
    rig = Rig(users=USERS)
    old = do(
        rig.registry.create_queue(
            "shop.eu.prices", "p", RoutingType.MULTICAST, client_id="shop",
            traits=QueueTraits(user="alice"),
        )
    )  # fmt: skip
    rig.send("/topic/p", b"kept")
    output = rig.output()
    other = rig.subscribe(
        rig.output(), "/topic/p", client_id="shop.eu", durable_name="prices", user="alice"
    )
    assert other.queue.name == "shop%2Eeu.prices", "the same name by chance"
    found = rig.subscribe(
        output, "/topic/p", client_id="shop", durable_name="eu.prices", user="alice"
    )
    assert found.queue is old
    rig.turn()
    assert output.bodies() == [b"kept"]
    close_subscription(rig.core, rig.registry, found)
    delete_durable_subscription(rig.registry, "shop", "eu.prices", "alice")
    assert old.is_deleted


@pytest.mark.parametrize("maker", ["alice", "anonymous", ""])
def test_a_binding_of_an_earlier_version_is_read_and_found(maker: str) -> None:
    before = Rig()
    old = do(
        before.registry.create_queue(
            "shop.eu.prices v1", "p", RoutingType.MULTICAST, client_id="shop",
            traits=QueueTraits(user=maker),
        )
    )  # fmt: skip
    binding = {
        "name": "shop.eu.prices v1", "address": "p", "routing-type": "MULTICAST",
        "auto-created": False, "client-id": "shop", **({"user": maker} if maker else {}),
    }  # fmt: skip
    assert before.bindings.snapshot()[old.key] == binding, "as earlier versions write it"
    rig = Rig(users=USERS, bindings=before.bindings, journal=before.journal)
    rig.engine.restore()
    rig.send("/topic/p", b"kept")
    how = {"text": "/topic/p", "client_id": "shop", "durable_name": "eu.prices v1"}
    output = rig.output()
    consumer = rig.subscribe(output, user="alice", **how)
    rig.turn()
    assert output.bodies() == [b"kept"]
    assert list(rig.registry.queues) == ["shop.eu.prices v1"], "no second one"
    close_subscription(rig.core, rig.registry, consumer)
    with pytest.raises(NotOwner):
        rig.subscribe(rig.output(), user="bob", **how)
    assert rig.bindings.snapshot()[old.key]["user"] == "alice"


def test_the_configuration_leaves_a_queue_to_its_owner() -> None:
    before = QueueTraits(user="alice", is_owned=True, protocol="mqtt", max_consumers=1)
    wanted = QueueTraits(is_configured=True, max_consumers=9).owned_as(before)
    assert wanted == QueueTraits(
        user="alice", is_owned=True, protocol="mqtt", is_configured=True, max_consumers=9
    )


def test_long_names_are_names() -> None:
    rig = Rig()
    for name in ("n" * 5000, "n" * 5000 + "m"):
        rig.subscribe(rig.output(), "/topic/p", client_id="shop", durable_name=name)
    assert len(rig.registry.queues) == 2


def test_owner_and_protocol_are_written_down() -> None:
    traits = QueueTraits(user="alice", is_owned=True, protocol="mqtt")
    assert QueueTraits.from_binding(traits.to_binding()) == traits
    assert NO_TRAITS.to_binding() == {}


def test_a_durable_subscription_is_not_that_of_another_protocol() -> None:
    rig = Rig(users=USERS)
    session = do(
        rig.registry.create_queue(
            "shop.prices", "prices", RoutingType.MULTICAST, client_id="shop",
            traits=QueueTraits(user="alice", protocol="mqtt"),
        )
    )  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="no durable subscription"):
        delete_durable_subscription(rig.registry, "shop", "prices", "alice")
    with pytest.raises(RemoteProtocolError, match="a session of another protocol"):
        rig.subscribe(rig.output(), "prices::shop.prices", client_id="shop", user="alice")
    consumer = rig.subscribe(rig.output(), user="alice", **PRICES)
    assert consumer.queue.name == "shop=prices"
    close_subscription(rig.core, rig.registry, consumer)
    assert rig.subscribe(rig.output(), user="alice", **PRICES).queue is consumer.queue
    assert not session.consumers


def test_nobody_is_locked_out_by_a_queue_that_another_user_has_named_so() -> None:
    rig = Rig(users=USERS)
    rig.subscribe(rig.output(), "/topic/other::shop.prices", user="bob")
    consumer = rig.subscribe(rig.output(), user="alice", **PRICES)
    assert consumer.queue.name == "shop=prices"
    assert consumer.queue.address.name == "prices"

"""Whose queues are: durable subscriptions belong to a user, whatever a client calls itself."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.names import check_name
from vespiary_broker.engine.queue_traits import NO_TRAITS, QueueTraits
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscription_names import is_last_name, last_name
from vespiary_broker.engine.subscriptions import (
    close_subscription,
    delete_durable_subscription,
    forbidden_consumers,
)
from vespiary_broker.engine.users import User, make_user
from vespiary_spec.errors import NotOwner, RemoteProtocolError
from vespiary_spec.settings import Permission, RoutingType, SecuritySettings
from vespiary_testkit.engine_rig import Rig, do

USERS = {
    name: make_user(name, "secret", roles=roles, iterations=4096)
    for name, roles in (("alice", ()), ("bob", ()), ("carol", ("apps",)), ("root", ("admin",)))
}
PRICES = {"text": "/topic/prices", "client_id": "shop", "durable_name": "prices"}


def everything(*roles: str) -> SecuritySettings:
    """Return settings that let roles do everything."""
    return SecuritySettings(**{permission.value: roles for permission in Permission})


def made(rig: Rig, user: str = "alice") -> None:
    """Have a durable subscription with a message in it, and nobody connected."""
    consumer = rig.subscribe(rig.output(), user=user, **PRICES)
    close_subscription(rig.core, rig.registry, consumer)
    rig.send("/topic/prices", b"kept")


def others_own(rig: Rig, user: str) -> Consumer:
    """Have a user subscribe by the client id and the name of another one."""
    output = rig.output()
    consumer = rig.subscribe(output, user=user, **PRICES)
    rig.turn()
    assert output.bodies() == [], "it gets nothing that the other one has"
    assert (consumer.queue.traits.user, len(consumer.queue.consumers)) == (user, 1)
    return consumer


@pytest.mark.parametrize("where", ["/topic/prices", "prices::shop.prices"])
def test_a_durable_subscription_is_for_who_made_it_and_administrators(where: str) -> None:
    rig = Rig(users=USERS)
    made(rig)
    how = {**PRICES, "text": where, "durable_name": "" if "::" in where else "prices"}
    refused = rig.registry.permissions.refused
    if "::" in where:
        with pytest.raises(NotOwner, match=r"shop\.prices belongs to another user"):
            rig.subscribe(rig.output(), user="bob", **how)
        assert rig.registry.permissions.refused == refused + 1, "it is counted"
        with pytest.raises(NotOwner):
            rig.subscribe(rig.output(), user="", **how)
    else:
        assert others_own(rig, "bob").queue.name == "shop=prices"
        assert others_own(rig, "").queue.name.startswith("~")
    for user in ("root", "alice"):
        output = rig.output()
        consumer = rig.subscribe(output, user=user, **how)
        rig.turn()
        assert output.bodies() == [b"kept"]
        close_subscription(rig.core, rig.registry, consumer, counted=False)
    assert rig.registry.queues["shop.prices"].traits.user == "alice"


def test_another_selector_or_topic_of_it_is_not_told() -> None:
    rig = Rig(users=USERS)
    consumer = rig.subscribe(rig.output(), user="alice", selector="secret = 1", **PRICES)
    close_subscription(rig.core, rig.registry, consumer)
    others_own(rig, "bob")
    other = {**PRICES, "text": "/topic/other"}
    assert rig.subscribe(rig.output(), user="carol", **other).queue.address.name == "other"


def test_it_is_deleted_by_its_owner_or_an_administrator() -> None:
    for user in ("alice", "root"):
        rig = Rig(users=USERS)
        made(rig)
        with pytest.raises(RemoteProtocolError, match="there is no durable subscription"):
            delete_durable_subscription(rig.registry, "shop", "prices", "bob")
        close_subscription(rig.core, rig.registry, others_own(rig, "bob"))
        delete_durable_subscription(rig.registry, "shop", "prices", "bob")
        assert list(rig.registry.queues) == ["shop.prices"], "each deletes its own"
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
    (binding,) = [each for each in rig.bindings.snapshot().values() if "client-id" in each]
    assert binding["user"] == "bob", "over a restart too"
    others_own(rig, "alice")


def test_who_comes_without_a_login_takes_nothing_of_a_user() -> None:
    rig = Rig(users=USERS)
    made(rig)
    others_own(rig, "anonymous")


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
    assert rig.subscribe(rig.output(), user="bob", **how).queue is not consumer.queue
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


def squatted(users: dict[str, User], **options: Any) -> tuple[Rig, list[Consumer]]:
    """Have bob take both names of alice's subscription."""
    rig = Rig(users=users, **options)
    taken = [rig.subscribe(rig.output(), "/topic/other::shop=prices", user="bob")]
    return rig, [*taken, rig.subscribe(rig.output(), user="bob", **PRICES)]


def test_a_last_name_is_found_after_a_restart_and_when_the_others_are_free() -> None:
    before, taken = squatted(USERS)
    own = before.subscribe(before.output(), user="alice", **PRICES)
    name = own.queue.name
    assert name == last_name("", "alice", "shop.prices")
    before.send("/topic/prices", b"kept")
    for consumer in (own, *taken):
        close_subscription(before.core, before.registry, consumer)
    before.turn()
    rig = Rig(users=USERS, bindings=before.bindings, journal=before.journal)
    rig.engine.restore()
    delete_durable_subscription(rig.registry, "shop", "prices", "bob")
    assert "shop.prices" not in rig.registry.queues
    output = rig.output()
    consumer = rig.subscribe(output, user="alice", **PRICES)
    rig.turn()
    assert (consumer.queue.name, output.bodies()) == (name, [b"kept"])
    close_subscription(rig.core, rig.registry, consumer)
    delete_durable_subscription(rig.registry, "shop", "prices", "alice")
    assert name not in rig.registry.queues
    again = rig.subscribe(rig.output(), user="alice", **PRICES)
    assert again.queue.name in ("shop.prices", "shop=prices"), "the usual one, as it is free"


def test_an_administrator_goes_on_with_its_own_queue_first() -> None:
    rig, _ = squatted(USERS)
    own = do(
        rig.registry.create_queue(
            last_name("", "root", "shop.prices"), "prices", RoutingType.MULTICAST,
            client_id="shop", traits=QueueTraits(user="root"), is_early=True,
        )
    )  # fmt: skip
    assert rig.subscribe(rig.output(), user="root", **PRICES).queue is own


def test_a_queue_of_nobody_keeps_no_user_out_who_may_not_consume_there() -> None:
    rig = Rig(users=USERS)
    rig.registry.permissions.replace(
        {"secret": SecuritySettings(consume=("guests",)), "#": everything("apps")}
    )
    for maker in ("anonymous", ""):
        do(
            rig.registry.create_queue(
                "shop.prices", "secret", RoutingType.MULTICAST, client_id="shop",
                traits=QueueTraits(user=maker), is_trusted=True,
            )
        )  # fmt: skip
        consumer = rig.subscribe(rig.output(), user="carol", **PRICES)
        assert (consumer.queue.name, consumer.queue.address.name) == ("shop=prices", "prices")
        close_subscription(rig.core, rig.registry, consumer)
        for name in ("shop.prices", "shop=prices"):
            rig.registry.drop_queue(rig.registry.queues[name])


def test_names_of_subscriptions_are_free_to_choose_while_nobody_logs_in() -> None:
    rig = Rig()
    rig.subscribe(rig.output(), "/topic/other::~mine", user="anonymous")
    assert "~mine" in rig.registry.queues


def test_a_hash_is_of_protocol_user_client_and_name() -> None:
    names = {
        last_name(protocol, user, usual)
        for protocol in ("", "mqtt")
        for user in ("", "alice", "bob")
        for usual in ("shop.prices", "shop.eu", "n" * 2000)
    }
    assert len(names) == 18
    assert all(check_name(name, "queue") for name in names)
    assert is_last_name(last_name("", "alice", "shop.prices"), "alice", "shop=prices")
    assert not is_last_name(last_name("", "bob", "shop.prices"), "alice", "shop.prices")

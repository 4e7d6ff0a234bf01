"""Permissions of a whole broker with stomp.py: taught senders, changed rules, changed roles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stomp
import yaml

from vespiary_broker.engine.users import User, format_users, make_user
from vespiary_codec.wire.mqtt import (
    Property,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_wire import MqttWire
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.once

PASSWORD = "pass-of-the-test"
ALL = {name: ["apps"] for name in ("send", "consume", "create-address", "create-durable-queue")}


class Client(stomp.ConnectionListener):
    """A client that remembers what it was told."""

    def __init__(self, broker: BrokerProcess, user: str, client_id: str = "") -> None:
        self.errors: list[str] = []
        self.bodies: list[str] = []
        self.receipts: list[str] = []
        self.is_gone = threading.Event()
        self.connection = stomp.Connection12([("127.0.0.1", broker.port("stomp"))])
        self.connection.set_listener("", self)
        headers = {"client-id": client_id} if client_id else {}
        self.connection.connect(user, PASSWORD, wait=True, headers=headers)

    def on_error(self, frame: Any) -> None:
        self.errors.append(f"{frame.headers.get('message', '')} {frame.body}")

    def on_message(self, frame: Any) -> None:
        self.bodies.append(frame.body)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.append(frame.headers["receipt-id"])

    def on_disconnected(self) -> None:
        self.is_gone.set()

    def send(self, to: str, number: int) -> None:
        self.connection.send(to, "x", receipt=str(number), persistent="true")

    def confirmed(self, number: int) -> bool:
        wait_for(lambda: str(number) in self.receipts or bool(self.errors), what="an answer")
        return str(number) in self.receipts


@pytest.fixture
def users(tmp_path: Path) -> Callable[..., None]:
    made = {name: make_user(name, PASSWORD, iterations=4096) for name in ("alice", "bob", "root")}

    def write(**roles: str) -> None:
        found = [
            User(name, one.salt, one.iterations, one.stored_key, one.server_key, frozenset({role}))
            for name, role in roles.items()
            for one in [made[name]]
        ]
        new = tmp_path / "users.new"
        new.write_text(format_users(found))
        new.chmod(0o600)
        new.replace(tmp_path / "users")

    write(alice="apps", bob="other", root="admin")
    return write


@pytest.fixture
def broker(tmp_path: Path, users: Callable[..., None]) -> Iterator[BrokerProcess]:
    rule(tmp_path, {"#": ALL})
    with BrokerProcess(tmp_path / "data", configuration=tmp_path / "broker.yaml") as broker:
        yield broker


def rule(folder: Path, rules: dict[str, Any]) -> None:
    new = folder / "broker.new"
    settings = {"security": {"users-file": str(folder / "users")}, "security-settings": rules}
    new.write_text(yaml.safe_dump(settings))
    new.replace(folder / "broker.yaml")


def test_rules_and_roles_that_change_reach_clients_that_are_connected(
    broker: BrokerProcess, tmp_path: Path, users: Callable[..., None]
) -> None:
    alice, bob, consumer = (Client(broker, name) for name in ("alice", "bob", "alice"))
    bob.send("/queue/orders", 1)
    assert not bob.confirmed(1)
    assert (
        "user bob has no permission send at the address orders: the match # decides"
        in (bob.errors[0])
    )
    assert "VSP-P110" in bob.errors[0]
    for number in range(3):  # the core is taught with the first one
        alice.send("/queue/orders", number)
        assert alice.confirmed(number)
    consumer.connection.subscribe("/queue/orders", id="1", ack="client")
    consumer.send("/queue/other", 1)
    assert consumer.confirmed(1)

    rule(tmp_path, {"#": ALL, "orders": {"send": ["apps"]}})
    assert consumer.is_gone.wait(30), "it may not consume any more"
    assert "consume at the address orders: the match orders decides" in consumer.errors[0]
    alice.send("/queue/orders", 10)
    assert alice.confirmed(10)

    users(alice="other", root="admin")
    wait_for(lambda: _is_refused(alice), what="alice to be refused")
    assert "alice has no permission send at the address orders" in alice.errors[0]


def _is_refused(client: Client) -> bool:
    """Send once more; the change is seen within a second."""
    if client.errors:
        return True
    number = 100 + len(client.receipts)
    client.send("/queue/orders", number)
    return not client.confirmed(number)


FOR_EVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
SECRET = {"secret": {"send": ["apps"], "create-address": ["apps"]}}


def resume(wire: MqttWire, *, clean_start: bool = False) -> None:
    """Log in as alice, with a session that stays."""
    login = {"user_name": "alice", "password": PASSWORD.encode()}
    wire.connect("c", clean_start=clean_start, properties=FOR_EVER, **login)


def topics(wire: MqttWire, end: str) -> list[str]:
    """Return the topics of the messages up to the one that comes last."""
    found: list[str] = []
    while found[-1:] != [end]:
        packet = wire.receive(Publish)
        wire.send(Puback(packet.packet_id))
        found.append(packet.topic)
    return found


@pytest.mark.engine
def test_a_session_gets_of_a_wildcard_what_its_user_may_have(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with MqttWire(broker.port()) as wire:
        resume(wire, clean_start=True)
        wire.send(Subscribe(1, (Subscription("#", 1),)))
        assert wire.receive(Suback).reason_codes == (ReasonCode.GRANTED_QOS_1,)
    alice = Client(broker, "alice")
    for number, name in enumerate(("open", "secret", "secret")):
        alice.send(f"/topic/{name}", number)
        assert alice.confirmed(number)

    rule(tmp_path, {"#": ALL, **SECRET})
    ended = "messages ended that the user of a subscription may not consume any more"
    wait_for(lambda: ended in broker.log.read_text(), what="what may not be had to end")
    for number, name in enumerate(("secret", "more"), 10):
        alice.send(f"/topic/{name}", number)
        assert alice.confirmed(number)
    broker.kill()
    broker.start()
    with MqttWire(broker.port()) as wire:
        resume(wire)
        assert topics(wire, "more") == ["open", "more"]
        alice = Client(broker, "alice")
        for number, name in enumerate(("secret", "last"), 20):
            alice.send(f"/topic/{name}", number)
            assert alice.confirmed(number)
        assert topics(wire, "last") == ["last"]


def durable(client: Client) -> None:
    client.connection.subscribe(
        "/topic/prices", id="1", headers={"durable-subscription-name": "prices", "receipt": "1"}
    )
    assert client.confirmed(1), client.errors


@pytest.mark.engine
def test_names_that_others_take_keep_no_client_out_over_a_kill(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    both = {name: ["apps", "other"] for name in (*ALL, "delete-durable-queue")}
    rule(tmp_path, {"#": both, "other": {**both, "consume": ["other"]}})
    bob = Client(broker, "bob")
    wait_for(lambda: not _is_refused_now(broker), what="the rules to be changed")
    for number, name in enumerate(("shop.prices", "shop=prices"), 1):
        to = f"/topic/other::{name}"
        bob.connection.subscribe(to, id=str(number), headers={"receipt": str(number)})
        assert bob.confirmed(number), bob.errors
    first = Client(broker, "alice", "shop")
    durable(first)
    first.connection.disconnect()
    bob.send("/topic/prices", 9)
    assert bob.confirmed(9)
    broker.kill()
    broker.start()
    again = Client(broker, "alice", "shop")
    durable(again)
    wait_for(lambda: again.bodies == ["x"], what="the message that was kept")
    again.connection.disconnect()
    last = Client(broker, "alice", "shop")
    last.connection.unsubscribe(
        "1", headers={"durable-subscription-name": "prices", "receipt": "2"}
    )
    assert last.confirmed(2), last.errors


def _is_refused_now(broker: BrokerProcess) -> bool:
    client = Client(broker, "bob")
    client.send("/queue/tried", 1)
    is_refused = not client.confirmed(1)
    if not is_refused:
        client.connection.disconnect()
    return is_refused

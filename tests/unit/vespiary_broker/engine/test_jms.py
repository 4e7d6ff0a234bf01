"""JMS objects: names that lead to one thing, kept in step with their journal."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.engine.jms import JNDI_NAMES_MAX, JmsKind, JmsObjects
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryBindings

FACTORY, QUEUE, TOPIC = JmsKind.CONNECTION_FACTORY, JmsKind.QUEUE, JmsKind.TOPIC


def objects(journal: MemoryBindings | None = None, rig: Rig | None = None) -> JmsObjects:
    used = rig or Rig()
    return JmsObjects(journal or MemoryBindings(), used.registry, lock=asyncio.Lock())


def test_destinations_are_addresses() -> None:
    rig = Rig()
    table = objects(rig=rig)
    do(table.create(QUEUE, "orders", ["jms/orders"]))
    do(table.create(TOPIC, "prices"))
    queue = rig.registry.queues["orders"]
    assert (queue.is_durable, queue.routing_type) == (True, RoutingType.ANYCAST)
    assert not queue.is_auto_created, "it stays when nobody uses it"
    assert rig.registry.addresses["prices"].routing_types == {RoutingType.MULTICAST}


def test_the_address_is_there_before_its_entry() -> None:
    rig, journal = Rig(), MemoryBindings()
    table = objects(journal, rig)

    async def scenario() -> None:
        journal.gate = asyncio.Event()
        making = asyncio.create_task(table.create(QUEUE, "orders", ["jms/orders"]))
        for _ in range(10):
            await asyncio.sleep(0)
        assert "queue/orders" in journal.puts
        assert "orders" in rig.registry.queues
        assert table.get(QUEUE, "orders") is None, "not before it is durable"
        assert table.jndi_names() == {}
        journal.gate.set()
        await making
        assert table.jndi_names()["jms/orders"].name == "orders"

    product_loop.run(scenario())


def test_what_was_made_comes_back() -> None:
    journal = MemoryBindings()
    table = objects(journal)
    do(table.create(QUEUE, "orders", ["jms/orders", "orders"]))
    do(table.create(FACTORY, "main", ["cf"], "amqp://localhost:5672"))
    do(table.create(TOPIC, "gone"))
    do(table.forget(TOPIC, "gone"))
    do(table.unbind("orders"))
    rig = Rig()
    again = objects(journal, rig)
    do(again.restore())
    assert again.all(QUEUE) == table.all(QUEUE)
    assert again.all(FACTORY) == table.all(FACTORY)
    assert again.all(TOPIC) == []
    assert set(again.jndi_names()) == {"jms/orders", "cf"}
    assert "orders" in rig.registry.queues, "made again where the bindings lack it"


@pytest.mark.parametrize(
    "value", [{}, {"jndi-names": 7}, ["jndi-names"]], ids=["empty", "number", "list"]
)
def test_a_strange_entry_is_named(value: object) -> None:
    with pytest.raises(ValueError, match="JMS entry queue/q"):
        do(objects(MemoryBindings({"queue/q": value})).restore())
    with pytest.raises(ValueError, match="JMS entry shoe/q"):
        do(objects(MemoryBindings({"shoe/q": {"jndi-names": []}})).restore())


def test_a_jndi_name_leads_to_one_thing() -> None:
    journal = MemoryBindings()
    table = objects(journal)
    do(table.create(QUEUE, "orders", ["name"]))
    with pytest.raises(RemoteProtocolError, match="leads to the queue orders"):
        do(table.create(TOPIC, "prices", ["name"]))
    assert list(journal.snapshot()) == ["queue/orders"]
    again = do(table.create(QUEUE, "orders", ["other", "name"]))
    assert again.jndi_names == ("name", "other")
    do(table.unbind("name"))
    do(table.create(TOPIC, "prices", ["name"]))
    assert table.jndi_names()["name"].kind is TOPIC


def test_making_the_same_again_writes_nothing() -> None:
    journal = MemoryBindings()
    table = objects(journal)
    do(table.create(FACTORY, "main", ["cf"], "amqp://a:5672"))
    do(table.create(FACTORY, "main", ["cf"], "amqp://a:5672"))
    assert journal.puts == ["connection-factory/main"]
    do(table.create(FACTORY, "main", [], "amqp://b:5672"))
    assert table.jndi_names()["cf"].url == "amqp://b:5672"


@pytest.mark.parametrize(
    ("kind", "name", "jndi_names", "url"),
    [
        (QUEUE, "a\tb", [], ""),
        (QUEUE, "", [], ""),
        (QUEUE, "q", [""], ""),
        (QUEUE, "q", [" x"], ""),
        (QUEUE, "q", ["a\nb"], ""),
        (QUEUE, "q", ["x" * 256], ""),
        (QUEUE, "q", [str(number) for number in range(JNDI_NAMES_MAX + 1)], ""),
        (FACTORY, "f", [], ""),
        (FACTORY, "f", [], "http://x"),
        (FACTORY, "f", [], "amqp:"),
        (FACTORY, "f", [], "amqp://a b"),
        (FACTORY, "f", [], "amqp://" + "x" * 3000),
    ],
)
def test_what_may_not_be(kind: JmsKind, name: str, jndi_names: list[str], url: str) -> None:
    rig, journal = Rig(), MemoryBindings()
    with pytest.raises(RemoteProtocolError):
        do(objects(journal, rig).create(kind, name, jndi_names, url))
    assert journal.snapshot() == {}
    assert "q" not in rig.registry.queues


def test_what_is_not_there() -> None:
    table = objects()
    with pytest.raises(RemoteProtocolError, match="no JMS queue"):
        do(table.forget(QUEUE, "q"))
    with pytest.raises(RemoteProtocolError, match="leads nowhere"):
        do(table.unbind("q"))


def test_the_properties_file_escapes_what_java_would_read_otherwise() -> None:
    table = objects()
    do(table.create(QUEUE, "straße", ["a b:c=d#e!f\\g"]))
    do(table.create(FACTORY, "f", ["cf"], "failover:(amqp://a:5672,amqp://b:5672)?x=1"))
    assert table.properties() == (
        "java.naming.factory.initial = org.apache.qpid.jms.jndi.JmsInitialContextFactory\n"
        "queue.a\\ b\\:c\\=d\\#e\\!f\\\\g = stra\\u00dfe\n"
        "connectionfactory.cf = failover:(amqp://a:5672,amqp://b:5672)?x=1\n"
    )

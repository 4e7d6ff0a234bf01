import asyncio

import pytest

from vespiary_broker.app.administration import Administration
from vespiary_broker.app.tasks import Tasks
from vespiary_broker.engine import registry as registry_module
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.errors import JournalFull, RemoteProtocolError
from vespiary_spec.settings import Address, AddressSettings, Queue, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryBindings

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def test_definitions_come_back_from_the_bindings() -> None:
    rig = Rig()
    do(rig.registry.create_address("named", {MULTICAST}))
    do(rig.registry.create_queue("q", "named", MULTICAST, client_id="me"))
    do(rig.registry.create_queue("auto", "auto", ANYCAST, is_auto_created=True))
    do(rig.registry.create_queue("volatile", "auto", ANYCAST, is_durable=False))
    assert durable_queue_ids(rig.bindings.snapshot()) == [1, 2]

    again = Rig(bindings=rig.bindings)
    for queue_id in durable_queue_ids(rig.bindings.snapshot()):
        again.core.open_queue(queue_id)
    again.registry.restore()
    assert list(again.registry.queues) == ["q", "auto"]
    queue = again.registry.queues["q"]
    assert (queue.id, queue.routing_type, queue.client_id) == (1, MULTICAST, "me")
    assert not again.registry.addresses["named"].is_auto_created
    assert again.registry.addresses["auto"].is_auto_created
    fresh = do(again.registry.create_queue("new", "new", ANYCAST))
    assert fresh.id > 3  # the volatile queue's number is not used again


def test_strange_binding_is_named() -> None:
    bindings = MemoryBindings({"queue/7": {"name": "q"}})
    with pytest.raises(ValueError, match="binding queue/7"):
        Rig(bindings=bindings).registry.restore()
    bindings = MemoryBindings({"address/a": {"routing-types": ["SIDEWAYS"], "auto-created": True}})
    with pytest.raises(ValueError, match=r"binding address/a .*SIDEWAYS"):
        Rig(bindings=bindings).registry.restore()


def test_queue_is_bound_before_anything_can_be_sent_to_it() -> None:
    rig = Rig()
    do(rig.registry.create_queue("first", "first", ANYCAST))  # reserves numbers

    async def scenario() -> None:
        rig.bindings.gate = asyncio.Event()
        making = asyncio.create_task(rig.registry.create_queue("q", "q", ANYCAST))
        await asyncio.sleep(0)
        assert rig.bindings.puts[-1] == "queue/2"
        assert "q" not in rig.registry.queues
        rig.bindings.gate.set()
        await making
        assert "q" in rig.registry.queues

    product_loop.run(scenario())


@pytest.mark.parametrize(
    ("address", "kind", "client_id", "reason"),
    [
        ("other", ANYCAST, "", "belongs to the address q"),
        ("q", MULTICAST, "", "exists with routing type ANYCAST"),
        ("q", ANYCAST, "x", "belongs to another subscription"),
    ],
)
def test_name_in_use(address: str, kind: RoutingType, client_id: str, reason: str) -> None:
    rig = Rig()
    first = do(rig.registry.create_queue("q", "q", ANYCAST))
    assert do(rig.registry.create_queue("q", "q", ANYCAST)) is first
    with pytest.raises(RemoteProtocolError, match=reason):
        do(rig.registry.create_queue("q", address, kind, client_id=client_id))


def test_dropped_queue_leaves_tables_core_and_bindings() -> None:
    rig = Rig()
    queue = do(rig.registry.create_queue("q", "q", ANYCAST, is_auto_created=True))
    rig.send("q::q", b"x")
    rig.registry.drop_queue(queue)
    assert not rig.registry.queues
    assert not rig.registry.queues_by_id
    assert not rig.registry.addresses  # it was made for the queue
    assert rig.registry.message_totals() == (1, 0)
    with pytest.raises(ValueError, match="queue"):
        rig.core.queue_statistics(queue.id)
    assert rig.bindings.removals == ["queue/1"]


def test_a_deletion_by_administrators_returns_when_it_is_durable() -> None:
    async def scenario() -> None:
        rig = Rig()
        bindings = rig.bindings
        administration = Administration(Tasks(lambda work: work.close()))
        administration._engine = rig.engine
        await rig.registry.create_queue("q", "a", ANYCAST)
        await rig.registry.create_address("b", {ANYCAST})
        rig.registry._removals._spawn = lambda work: tasks.append(asyncio.ensure_future(work))
        bindings.gate = asyncio.Event()
        tasks: list[asyncio.Future[None]] = []
        deleting = asyncio.create_task(administration.delete_queue("q"))
        rig.registry.drop_address(rig.registry.addresses["b"])
        waiting = asyncio.create_task(rig.registry.wait_removed("address/b"))
        again = asyncio.create_task(rig.registry.create_address("b", {MULTICAST}))
        for _ in range(20):
            await asyncio.sleep(0)
        assert bindings.removals == ["address/b", "queue/1"]
        assert not any(task.done() for task in (deleting, waiting, again))
        assert bindings.puts.count("address/b") == 1, "the old one has to go before the new one"
        bindings.gate.set()
        assert await deleting == 0
        await waiting
        await again
        assert "queue/1" not in bindings.values
        assert bindings.values["address/b"]["routing-types"] == ["MULTICAST"]
        await rig.registry.wait_removed("address/b", "queue/1")
        assert all(task.done() for task in tasks)

    product_loop.run(scenario())


def test_a_removal_is_waited_for_alone_and_its_failure_is_told_whenever_somebody_asks() -> None:
    async def scenario() -> None:
        rig = Rig()
        tasks: list[asyncio.Future[None]] = []
        for name in ("a", "b"):
            await rig.registry.create_queue(name, name, ANYCAST)
        rig.registry._removals._spawn = lambda work: tasks.append(asyncio.ensure_future(work))
        rig.bindings.failure = JournalFull("the disk is full")
        rig.registry.drop_queue(rig.registry.queues["a"])
        await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(JournalFull):
            await rig.registry.wait_removed("queue/1")
        assert "queue/1" in rig.bindings.values
        rig.bindings.failure = None
        rig.bindings.gate = asyncio.Event()
        tasks.clear()
        rig.registry.drop_queue(rig.registry.queues["b"])
        waiting = asyncio.ensure_future(rig.registry.wait_removed("queue/2"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        await rig.registry.wait_removed("queue/7", "address/c")  # nothing of these is under way
        rig.bindings.gate.set()
        await waiting
        await asyncio.gather(*tasks)
        assert set(rig.bindings.values) == {"counter/queue-id"}, "what failed was tried again"
        await rig.registry.wait_removed("queue/1")

    product_loop.run(scenario())


@pytest.mark.parametrize("is_kept", [True, False])
def test_auto_deletion_waits_until_empty_and_unused(is_kept: bool) -> None:
    settings = {"#": AddressSettings(auto_delete_queues=not is_kept)}
    rig = Rig(settings)
    rig.send("/queue/q", b"x")
    first, second = rig.output(), rig.output()
    consumers = [rig.subscribe(output, "/queue/q") for output in (first, second)]
    rig.turn()
    (taker,) = [c for c, o in zip(consumers, (first, second), strict=True) if o.bodies()]
    close_subscription(rig.core, rig.registry, taker)
    assert "q" in rig.registry.queues  # the other one still consumes
    (other,) = [c for c in consumers if c is not taker]
    close_subscription(rig.core, rig.registry, other)
    assert "q" in rig.registry.queues  # not empty
    last = rig.subscribe(rig.output(), "/queue/q", AckMode.AUTO)
    rig.turn()
    rig.dispatcher.poke(last.queue.id)
    rig.turn()
    close_subscription(rig.core, rig.registry, last)
    assert ("q" in rig.registry.queues) is is_kept
    assert ("q" in rig.registry.addresses) is is_kept


def test_made_queues_are_never_deleted_automatically() -> None:
    rig = Rig()
    configured = Address(name="a", queues=(Queue(name="q", routing_type=MULTICAST),))
    do(rig.registry.configure([configured]))
    consumer = rig.subscribe(rig.output(), "a::q", AckMode.AUTO)
    close_subscription(rig.core, rig.registry, consumer)
    assert rig.registry.queues["q"].routing_type is MULTICAST
    assert rig.registry.addresses["a"].routing_types == {MULTICAST}


def test_unused_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "UNUSED_ADDRESSES_MAX", 3)
    rig = Rig()
    for number in range(5):
        rig.send(f"/topic/t{number}", b"x")
    assert list(rig.registry.addresses) == ["t2", "t3", "t4"]


def test_memory_only_broker_journals_nothing() -> None:
    rig = Rig()
    rig.registry._is_persistent = False
    rig.send("/queue/q", b"x")
    assert not rig.core.has_unwritten()


def test_routing_types_of_an_address_are_set_for_good() -> None:
    rig = Rig()
    rig.send("/topic/a", b"x")
    address = rig.registry.addresses["a"]
    do(rig.registry.set_routing_types(address, {ANYCAST, MULTICAST}))
    assert rig.bindings.values["address/a"]["routing-types"] == ["ANYCAST", "MULTICAST"]
    assert not rig.registry.unused
    do(rig.registry.create_queue("q", "a", ANYCAST))
    with pytest.raises(RemoteProtocolError, match="has the queue q, which is ANYCAST"):
        do(rig.registry.set_routing_types(address, {MULTICAST}))
    do(rig.registry.set_routing_types(address, {ANYCAST}))
    assert address.routing_types == {ANYCAST}

import asyncio
import logging

import pytest

from vespiary_broker.engine.config_deletion import delete_unconfigured
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Address, AddressSettings, DeletionPolicy, Queue, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.engine_rig import Rig, do

BEFORE = (
    Address(name="a", queues=(Queue(name="q1"), Queue(name="q2"))),
    Address(name="b", queues=(Queue(name="q3"),)),
)
AFTER = (Address(name="a", queues=(Queue(name="q1"),)),)


def _rig(**settings: DeletionPolicy) -> Rig:
    rig = Rig({"#": AddressSettings(**settings)})  # type: ignore[arg-type]
    do(rig.registry.configure(BEFORE))
    do(rig.registry.create_queue("by-hand", "b", RoutingType.ANYCAST))
    do(rig.registry.create_queue("elsewhere", "c", RoutingType.ANYCAST))
    do(rig.registry.configure(AFTER))
    return rig


@pytest.mark.parametrize(
    ("settings", "queues", "addresses"),
    [
        ({}, ["q1", "q2", "q3", "by-hand", "elsewhere"], ["a", "b", "c"]),
        (
            {"config_delete_queues": DeletionPolicy.FORCE},
            ["q1", "by-hand", "elsewhere"],
            ["a", "b", "c"],
        ),
        (
            {"config_delete_addresses": DeletionPolicy.FORCE},
            ["q1", "q2", "elsewhere"],
            ["a", "c"],
        ),
    ],
)
def test_only_what_was_configured_goes(
    settings: dict[str, DeletionPolicy], queues: list[str], addresses: list[str]
) -> None:
    rig = _rig(**settings)
    rig.send("a::q2", b"a message")
    gone = 8 - len(queues) - len(addresses)
    assert do(delete_unconfigured(rig.registry, AFTER)) == gone
    assert list(rig.registry.queues) == queues
    assert sorted(rig.registry.addresses) == addresses
    assert sum(key.startswith("queue/") for key in rig.bindings.values) == len(queues)
    assert sum(key.startswith("address/") for key in rig.bindings.values) == len(addresses) - 1


def test_an_address_that_exists_keeps_its_types() -> None:
    """A journal from before `default-address-routing-type` was changed, or its default was."""
    rig = Rig()
    do(rig.registry.create_address("news", {RoutingType.MULTICAST}))
    again = Rig(bindings=rig.bindings)
    again.registry.restore()
    names = ("news", "orders")
    do(again.registry.configure([Address(name=name) for name in names]))
    assert [again.registry.addresses[name].routing_types for name in names] == [
        {RoutingType.MULTICAST},
        {RoutingType.ANYCAST},
    ]
    assert all(again.registry.addresses[name].is_configured for name in names)


def test_prepared_messages_keep_queue_and_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = _rig(config_delete_addresses=DeletionPolicy.FORCE)

    def refuse(queue: object) -> None:
        raise RemoteProtocolError("the queue q3 holds messages of prepared transactions")

    rig.registry.check_deletable = refuse  # type: ignore[method-assign,assignment]
    with caplog.at_level(logging.WARNING):
        assert do(delete_unconfigured(rig.registry, AFTER)) == 0
    assert "prepared transactions" in caplog.text
    assert sorted(rig.registry.addresses) == ["a", "b", "c"]


def test_it_returns_when_the_deletion_is_durable() -> None:
    rig = _rig(config_delete_queues=DeletionPolicy.FORCE)
    tasks = []

    async def scenario() -> None:
        rig.registry._removals._spawn = lambda work: tasks.append(asyncio.ensure_future(work))
        rig.bindings.gate = asyncio.Event()
        deleting = asyncio.create_task(delete_unconfigured(rig.registry, AFTER))
        for _ in range(5):
            await asyncio.sleep(0)
        assert "q3" not in rig.registry.queues
        assert rig.bindings.removals
        assert not deleting.done()
        rig.bindings.gate.set()
        assert await deleting == 2
        await asyncio.gather(*tasks)

    product_loop.run(scenario())

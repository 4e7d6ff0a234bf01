"""Links that clients attach again by another connection: they take back what is theirs.

Source: AMQP 1.0 (OASIS, 2012) §2.6.1.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from vespiary_broker.engine.selection.selector import prepare_parser
from vespiary_broker.engine.users import make_user
from vespiary_codec.wire.amqp import (
    Detach,
    Disposition,
    Frame,
    Layer,
    SaslInit,
    SaslOutcome,
    Source,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import Described, Symbol, UInt
from vespiary_spec.settings import AddressSettings
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message, with_rig
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.waiting import WAIT_S

prepare_parser()  # in the test's thread: a session would have one of its own do it
DURABLE = {"source": Source(address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"))}
ONE_CONSUMER = {"#": AddressSettings(default_max_consumers=1)}


async def client(rig: ServerRig, container: str = "me") -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open(container=container)
    await peer.begin()
    return peer


async def fill(rig: ServerRig, address: str, count: int) -> None:
    """Send messages whose bodies count up."""
    peer = await client(rig, "filler")
    await peer.sender(address)
    for number in range(count):
        peer.send(message(b"%d" % number))
    await rig.flush()
    assert peer.all(Disposition)


def bodies(peer: AmqpPeer) -> list[int]:
    return [int(data[-1:]) for _, data in peer.messages()]


def delivering(rig: ServerRig, queue: str) -> int:
    return rig.core.queue_statistics(rig.engine.registry.queues[queue].id).delivering


async def is_stolen_from(peer: AmqpPeer) -> bool:
    """Return whether a client was told that one link of its was stolen, and nothing else."""
    await peer.rig.flush()
    return [each.error.condition for each in peer.all(Detach)] == ["amqp:link:stolen"]


@pytest.mark.parametrize("is_same_connection", [False, True])
@pytest.mark.parametrize("settings", [None, ONE_CONSUMER], ids=["shared", "one-consumer"])
def test_a_second_attach_takes_the_link_and_what_it_held_comes_again_in_order(
    settings: dict[str, Any] | None, is_same_connection: bool
) -> None:
    @with_rig(settings)
    async def scenario(rig: ServerRig) -> None:
        await fill(rig, "/queue/a", 5)
        first = await client(rig)
        await first.receiver("/queue/a", name="mine", credit=3)
        assert bodies(first) == [0, 1, 2]
        if is_same_connection:
            second, channel = first, 1
            await first.begin(channel=1)
        else:
            second, channel = await client(rig), 0
        fields = {"source": Source(address="/queue/a"), "name": "mine", "channel": channel}
        await second.attach(True, 4, **fields)
        assert await is_stolen_from(first)
        assert delivering(rig, "a") == 0
        await second.credit(5, handle=4, channel=channel, next_incoming_id=0)
        assert bodies(second) == [0, 1, 2, 3, 4]
        assert rig.cycle.errors["taken-over"] == 1

    scenario()


@pytest.mark.parametrize("address", ["/topic/t", "/topic/u"], ids=["same", "changed"])
@with_rig()
async def test_a_durable_subscription_goes_to_the_second_link(rig: ServerRig, address: str) -> None:
    first = await client(rig)
    await first.receiver("/topic/t", name="sub", credit=2, **DURABLE)
    await fill(rig, "/topic/t", 3)
    assert bodies(first) == [0, 1]
    second = await client(rig)
    source = Source(address=address, durable=UInt(2), expiry_policy=Symbol("never"))
    answer = await second.receiver(address, name="sub", source=source, credit=5)
    assert answer.source is not None
    assert await is_stolen_from(first)
    assert bodies(second) == ([0, 1, 2] if address == "/topic/t" else [])


@with_rig()
async def test_the_client_that_lost_its_link_goes_on(rig: ServerRig) -> None:
    await fill(rig, "/queue/a", 2)
    first = await client(rig)
    await first.receiver("/queue/a", name="mine", credit=1)
    await first.receiver("/queue/b", name="other", handle=2)
    second = await client(rig)
    await second.receiver("/queue/a", name="mine", credit=5)
    assert await is_stolen_from(first)
    first.settle(0)  # it held this, and does not know yet
    await first.detach(1)
    await fill(rig, "/queue/b", 1)
    await first.credit(1, handle=2)
    assert len(first.messages()) == 2, "one from before, one by the link that it still has"
    assert bodies(second) == [0, 1]
    assert first.peer.connection.is_open
    await first.detach(2)
    await second.detach(1)
    assert not rig.cycle.receivers._links


@pytest.mark.parametrize(
    ("container", "name"), [("other", "mine"), ("me", "other")], ids=["container", "name"]
)
@with_rig()
async def test_other_links_are_left_alone(rig: ServerRig, container: str, name: str) -> None:
    first = await client(rig)
    await first.receiver("/queue/a", name="mine", credit=1)
    second = await client(rig, container)
    await second.receiver("/queue/a", name=name, credit=1)
    await fill(rig, "/queue/a", 2)
    assert sorted(bodies(first) + bodies(second)) == [0, 1]
    assert first.all(Detach) == []


@with_rig()
async def test_members_of_a_shared_subscription_are_left_alone(rig: ServerRig) -> None:
    source = Source(address="/topic/t", capabilities=(Symbol("shared"),))
    first, second = await client(rig), await client(rig)
    for peer in (first, second):
        await peer.receiver("/topic/t", source=source, name="sub", credit=1)
    await fill(rig, "/topic/t", 2)
    assert sorted(bodies(first) + bodies(second)) == [0, 1]


@with_rig()
async def test_a_queue_outlives_the_change_of_its_only_link(rig: ServerRig) -> None:
    await fill(rig, "/queue/a", 1)
    first = await client(rig)
    await first.receiver("/queue/a", name="mine", credit=1)
    first.messages()
    first.settle(0)  # it is empty and was used: without consumers it goes
    await rig.flush()
    queue = rig.engine.registry.queues["a"]
    second = await client(rig)
    await second.receiver("/queue/a", name="mine", credit=1)
    assert await is_stolen_from(first)
    assert rig.engine.registry.queues["a"] is queue
    await fill(rig, "/queue/a", 1)
    assert bodies(second) == [0]
    second.settle(0)
    await second.detach(1)
    await rig.flush()
    assert "a" not in rig.engine.registry.queues


@with_rig()
async def test_a_queue_goes_if_the_link_that_replaced_its_only_one_is_refused(
    rig: ServerRig,
) -> None:
    await fill(rig, "/queue/a", 1)
    first = await client(rig)
    await first.receiver("/queue/a", name="mine", credit=1)
    first.messages()
    first.settle(0)
    await rig.flush()
    queue = rig.engine.registry.queues["a"]
    queue.traits = replace(queue.traits, max_consumers=0)  # since the first link
    second = await client(rig)
    await second.receiver("/queue/a", name="mine", credit=1)
    assert await is_stolen_from(first)
    assert second.all(Detach)
    assert queue.is_deleted


@with_rig()
async def test_a_link_that_is_refused_takes_nothing(rig: ServerRig) -> None:
    await fill(rig, "/queue/a", 1)
    first = await client(rig)
    await first.receiver("/queue/a", name="mine", credit=1)
    second = await client(rig)
    selector = Described(Symbol("apache.org:selector-filter:string"), "a = =")
    wrong = Source(address="/queue/a", filter={Symbol("selector"): selector})
    await second.attach(True, 1, source=wrong, name="mine")
    nowhere = Source(address="")
    await second.attach(True, 2, source=nowhere, name="mine")
    await rig.flush()
    assert len(second.all(Detach)) == 2
    assert bodies(first) == [0]
    assert first.all(Detach) == []


async def log_in(peer: AmqpPeer, name: str) -> None:
    """Log in with the password `secret`, and open the connection."""
    peer.raw(protocol_header(Layer.SASL))
    init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=f"\0{name}\0secret".encode())
    peer.raw(encode_frame(Frame(body=init)))
    async with asyncio.timeout(WAIT_S):
        while not peer.all(SaslOutcome):
            await asyncio.sleep(0.001)
            await peer.rig.settle()
    peer.got.clear()
    await peer.open()
    assert peer.handler.user == name


def test_another_user_takes_nothing() -> None:
    users = {name: make_user(name, "secret", iterations=4096) for name in ("amy", "bob")}

    async def scenario() -> None:
        rig = ServerRig(acceptor=amqp_acceptor(), users=users)
        peers = []
        for name in ("amy", "bob"):
            peer = AmqpPeer(rig)
            await log_in(peer, name)
            await peer.begin()
            peers.append(peer)
        first, second = peers
        await first.receiver("/topic/t", name="sub", **DURABLE)
        answer = await second.receiver("/topic/t", name="sub", **DURABLE)
        assert answer.source is not None, "it has a queue of its own"
        assert len(rig.engine.registry.queues) == 2
        assert second.all(Detach) == []
        await first.receiver("/queue/a", name="mine", handle=5)
        await second.receiver("/queue/a", name="mine", handle=5)
        assert first.all(Detach) == []
        await rig.close()

    product_loop.run(scenario())

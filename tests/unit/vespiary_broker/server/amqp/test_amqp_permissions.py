"""Permissions as AMQP clients meet them: conditions, and nothing made or deleted before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Close,
    Detach,
    Disposition,
    Rejected,
    Source,
    Target,
)
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_spec.settings import Permission, RoutingType, SecuritySettings
from vespiary_testkit.amqp_peer import RECEIVER, SENDER, AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.waiting import WAIT_S

UNAUTHORIZED = "amqp:unauthorized-access"
ALL = {permission.value: ("anonymous",) for permission in Permission}
COPY = Symbol("copy")


def allowed(*but: str) -> SecuritySettings:
    return SecuritySettings(**{name: roles for name, roles in ALL.items() if name not in but})


def rule(rig: ServerRig, **matches: SecuritySettings) -> None:
    rig.engine.registry.permissions.replace({"#": allowed(), **matches})
    rig.cycle.permissions_changed()


async def client(rig: ServerRig, container: str = "me") -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open(container=container)
    await peer.begin()
    return peer


async def refused(peer: AmqpPeer, role: bool, **fields: Any) -> str:
    """Attach a link that is refused; return the condition."""
    await peer.attach(role, 5, **fields)
    await peer.rig.flush()
    found = peer.all(Detach)
    assert len(found) == 1, found
    error = found[0].error
    assert error is not None
    assert "no permission" in (error.description or "")
    return str(error.condition)


def source(address: str | None, **fields: Any) -> dict[str, Any]:
    return {"source": Source(address=address, **fields), "target": Target()}


DURABLE = {"durable": UInt(2), "expiry_policy": Symbol("never")}
SHARED = {**DURABLE, "capabilities": (Symbol("topic"), Symbol("shared"), Symbol("global"))}


@with_rig()
async def test_a_link_that_may_not_send_is_refused(rig: ServerRig) -> None:
    rule(rig, secret=allowed("send"))
    peer = await client(rig)
    fields = {"target": Target(address="/queue/secret"), "source": Source()}
    assert await refused(peer, SENDER, **fields) == UNAUTHORIZED
    assert "secret" not in rig.engine.registry.addresses


@with_rig()
async def test_a_message_is_asked_about_each_time(rig: ServerRig) -> None:
    rule(rig)
    peer = await client(rig)
    await peer.sender("/queue/a")
    await peer.sender(None, handle=1)
    peer.send(message())
    await rig.flush()
    assert isinstance(peer.one(Disposition).state, Accepted)
    rule(rig, a=allowed("send"))
    peer.send(message())
    await rig.flush()
    state = peer.one(Disposition).state
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert str(state.error.condition) == UNAUTHORIZED
    assert rig.core.queue_statistics(rig.engine.registry.queues["a"].id).added == 1


@pytest.mark.parametrize(
    ("missing", "address", "more"),
    [
        ("consume", "/queue/secret", {}),
        ("consume", "/topic/secret", {}),
        ("consume", "/topic/secret", DURABLE),
        ("consume", "/topic/secret", SHARED),
        ("browse", "/queue/secret", {"distribution_mode": COPY}),
        ("create_durable_queue", "/queue/secret", {"distribution_mode": COPY}),
        ("create_durable_queue", "/queue/secret", {}),
        ("create_durable_queue", "/topic/secret", DURABLE),
        ("create_durable_queue", "/topic/secret", SHARED),
        ("create_non_durable_queue", "/topic/secret", {}),
        ("create_address", "/queue/secret", {}),
    ],
)
@with_rig()
async def test_a_link_that_may_not_receive_leaves_nothing(
    rig: ServerRig, missing: str, address: str, more: dict[str, Any]
) -> None:
    rule(rig, secret=allowed(missing))
    peer = await client(rig)
    assert await refused(peer, RECEIVER, **source(address, **more)) == UNAUTHORIZED
    assert not rig.engine.registry.queues


@with_rig()
async def test_who_may_browse_needs_not_send_nor_consume(rig: ServerRig) -> None:
    rule(rig, a=allowed("send", "consume"))
    peer = await client(rig)
    await peer.receiver(None, source=Source(address="/queue/a", distribution_mode=COPY))
    assert "a" in rig.engine.registry.queues


@with_rig()
async def test_a_browser_that_may_not_any_more_shows_nothing(rig: ServerRig) -> None:
    rule(rig)
    filler, peer = await client(rig, "filler"), await client(rig)
    await filler.sender("/queue/a")
    await peer.receiver(None, credit=10, source=Source(address="/queue/a", distribution_mode=COPY))
    rule(rig, a=allowed("browse"))
    filler.send(message())
    await rig.flush()
    got: list[Detach] = []
    async with asyncio.timeout(WAIT_S):
        while not got:  # it looks a few times a second
            await asyncio.sleep(0.01)
            got += peer.all(Detach)
    (found,) = got
    assert found.error is not None
    assert str(found.error.condition) == UNAUTHORIZED
    assert not peer.messages()


@pytest.mark.parametrize("missing", ["consume", "create_address", "create_non_durable_queue"])
@with_rig()
async def test_dynamic_nodes(rig: ServerRig, missing: str) -> None:
    rig.engine.registry.permissions.replace({"#": allowed(missing)})
    peer = await client(rig)
    fields = source(None, dynamic=True, capabilities=(Symbol("queue"),))
    assert await refused(peer, RECEIVER, **fields) == UNAUTHORIZED
    assert not rig.engine.registry.addresses


@with_rig()
async def test_a_dynamic_topic_is_made_by_who_may(rig: ServerRig) -> None:
    rig.engine.registry.permissions.replace({"#": allowed("create_address")})
    peer = await client(rig)
    target = Target(dynamic=True, capabilities=(Symbol("topic"),))
    assert await refused(peer, SENDER, target=target, source=Source()) == UNAUTHORIZED
    assert not rig.engine.registry.addresses


@pytest.mark.parametrize("more", [DURABLE, SHARED])
@with_rig()
async def test_a_subscription_is_deleted_by_who_may(rig: ServerRig, more: dict[str, Any]) -> None:
    rule(rig, news=allowed("delete_durable_queue"))
    peer = await client(rig)
    await peer.receiver(None, source=Source(address="/topic/news", **more))
    (name,) = rig.engine.registry.queues
    await peer.detach(1, closed=True)
    await rig.flush()
    assert name in rig.engine.registry.queues
    found = [each for each in peer.all(Detach) if each.error is not None]
    assert [str(each.error.condition) for each in found if each.error] == [UNAUTHORIZED]


@with_rig()
async def test_a_shared_subscription_of_others_is_not_taken_away(rig: ServerRig) -> None:
    rule(rig, news=allowed("delete_durable_queue"))
    peer = await client(rig)
    await peer.receiver(None, name="s", source=Source(address="/topic/news", **SHARED))
    (name,) = rig.engine.registry.queues
    peer.peer.lose()
    other = await client(rig, "other")
    # The same name for another topic would delete it first.
    fields = source("/topic/sports", **SHARED)
    assert await refused(other, RECEIVER, name="s", **fields) == UNAUTHORIZED
    assert rig.engine.registry.queues[name].address.name == "news"


@with_rig()
async def test_consumers_that_may_not_any_more_are_ended(rig: ServerRig) -> None:
    rule(rig)
    peer = await client(rig)
    await peer.receiver("/queue/a")
    rule(rig, a=allowed("consume"))
    await rig.flush()
    closed = peer.one(Close)
    assert closed.error is not None
    assert str(closed.error.condition) == UNAUTHORIZED


@with_rig()
async def test_what_the_broker_keeps_for_itself_is_not_browsed(rig: ServerRig) -> None:
    await rig.engine.registry.create_queue(
        "$mqtt.x", "$mqtt.x", RoutingType.ANYCAST, traits=QueueTraits(is_internal=True)
    )
    peer = await client(rig)
    await peer.attach(RECEIVER, 5, **source("/queue/$mqtt.x", distribution_mode=COPY))
    assert len(peer.all(Detach)) == 1 or peer.all(Attach) == []


@with_rig()
async def test_nobody_sends_to_sys_topics(rig: ServerRig) -> None:
    """By a link for them, nor by an anonymous one; for the state topics of bridges see MQTT."""
    address = "/topic/$SYS.broker.version"
    peer = await client(rig)
    await peer.attach(SENDER, 5, target=Target(address=address), source=Source())
    await rig.flush()
    (detached,) = peer.all(Detach)
    assert detached.error is not None
    assert "only the broker itself sends" in (detached.error.description or "")
    peer.all(Attach)
    await peer.sender(None)
    peer.send(message(to=address))
    await rig.flush()
    state = peer.one(Disposition).state
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert "only the broker itself sends" in (state.error.description or "")
    assert "$SYS.broker.version" not in rig.engine.registry.addresses


@pytest.mark.parametrize("more", [{}, DURABLE, SHARED])
@with_rig()
async def test_a_wildcard_gives_what_its_user_may_have(
    rig: ServerRig, more: dict[str, Any]
) -> None:
    rule(rig, **{"news.secret": allowed("consume")})
    reader, writer = await client(rig), await client(rig, "writer")
    await reader.receiver(None, credit=10, source=Source(address="/topic/news.#", **more))
    await writer.sender("/topic/news.secret")
    await writer.sender("/topic/news.open", handle=1)
    for handle in (0, 1, 0, 1):
        writer.send(message(b"secret" if handle == 0 else b"open"), handle=handle)
    await rig.flush()
    await rig.flush()
    assert len(reader.messages()) == 2
    assert rig.engine.registry.withheld == 2


@with_rig()
async def test_an_anycast_queue_of_a_wildcard_needs_every_match(rig: ServerRig) -> None:
    rule(rig, **{"news.secret": allowed("consume")})
    reader = await client(rig)
    source = Source(address="news.#", capabilities=(Symbol("queue"),))
    await reader.receiver(None, credit=10, source=source)
    (detached,) = reader.all(Detach)
    assert detached.error is not None
    assert "news.secret" in (detached.error.description or "")
    assert not rig.engine.registry.queues


@with_rig()
async def test_a_browser_is_shown_what_its_user_may_see(rig: ServerRig) -> None:
    kind = RoutingType.MULTICAST
    registry = rig.engine.registry
    await registry.create_queue("all", "news.#", kind)
    rule(rig, **{"news.secret": allowed("browse")})
    for name in ("news.secret", "news.open"):
        await registry.create_address(name, {kind}, is_auto_created=True)
        route = registry.route_of(registry.addresses[name], kind).next_handle()
        lines = f"destination:{name}\n".encode()
        rig.core.publish(route, lines, name.encode(), persistent=True)
    await rig.flush()
    peer = await client(rig)
    where = Source(address="news.#::all", distribution_mode=COPY)
    await peer.receiver(None, credit=10, source=where)
    got: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while not got:
            await asyncio.sleep(0.01)
            got += peer.messages()
    await rig.settle()
    assert len(got + peer.messages()) == 1

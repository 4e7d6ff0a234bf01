"""Permissions in transactions, by the relay, and of subscriptions that are deleted."""

from __future__ import annotations

from vespiary_codec.wire.amqp import (
    Accepted,
    Detach,
    Disposition,
    Rejected,
    Source,
    TransactionalState,
)
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_spec.settings import SecuritySettings
from vespiary_testkit.amqp_peer import AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig

ALL = dict.fromkeys(SecuritySettings.__struct_fields__, ("anonymous",))
UNAUTHORIZED = "amqp:unauthorized-access"
SHARED = Source(
    address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"),
    capabilities=(Symbol("shared"),),
)  # fmt: skip


def without(*names: str) -> SecuritySettings:
    return SecuritySettings(**{name: roles for name, roles in ALL.items() if name not in names})


async def client(rig: ServerRig) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    return peer


@with_rig(security={"#": without(), "secret": without("send")})
async def test_the_relay_rejects_what_may_not_be_sent(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender(None)
    number = peer.handler.transactions.declare()
    state = transactional(number)
    peer.send(message(to="/queue/secret"))
    peer.send(message(to="/queue/open"))
    peer.send(message(to="/queue/secret"), state=state)
    await rig.flush()
    outcomes = {int(one.first): one.state for one in peer.all(Disposition)}
    assert isinstance(outcomes[0], Rejected)
    assert outcomes[0].error.condition == UNAUTHORIZED
    assert isinstance(outcomes[1], Accepted)
    assert outcomes[2].outcome.error.condition == UNAUTHORIZED


def transactional(number: bytes) -> object:
    return TransactionalState(txn_id=number)


@with_rig(security={"#": without("delete_durable_queue")})
async def test_a_subscription_that_may_not_be_deleted_stays(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.receiver("/topic/t", source=SHARED, name="sub")
    await peer.detach(1, closed=True)
    assert peer.one(Detach).error.condition == UNAUTHORIZED
    assert "me.sub" in rig.engine.registry.queues

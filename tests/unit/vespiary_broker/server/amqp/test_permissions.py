"""Permissions of AMQP clients: what each is needed for, and what who lacks it is told."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_codec.wire.amqp import Attach, Detach, Disposition, Rejected, Source, Target
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_spec.settings import SecuritySettings
from vespiary_testkit.amqp_peer import RECEIVER, SENDER, AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig

ALL = dict.fromkeys(SecuritySettings.__struct_fields__, ("anonymous",))
UNAUTHORIZED = "amqp:unauthorized-access"


def without(*names: str) -> SecuritySettings:
    return SecuritySettings(**{name: roles for name, roles in ALL.items() if name not in names})


NO = {
    name: without(name)
    for name in (
        "send", "consume", "browse", "create_address", "create_durable_queue",
        "create_non_durable_queue", "delete_durable_queue",
    )
}  # fmt: skip
DURABLE = Source(address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"))
SHARED = Source(
    address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"),
    capabilities=(Symbol("shared"),),
)  # fmt: skip
COPY = Source(address="/queue/a", distribution_mode=Symbol("copy"))


async def client(rig: ServerRig) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    return peer


async def is_refused(peer: AmqpPeer, role: bool, **fields: Any) -> bool:
    fields.setdefault("source", Source())
    fields.setdefault("target", Target())
    await peer.attach(role, 0, **fields)
    answer = peer.one(Attach)
    told = peer.all(Detach)
    terminus = answer.source if role else answer.target
    assert (terminus is None) is bool(told)
    return bool(told) and told[0].error.condition == UNAUTHORIZED


CASES: list[tuple[str, bool, dict[str, Any]]] = [
    ("send", SENDER, {"target": Target(address="/queue/a")}),
    ("create_address", SENDER, {"target": Target(address="/queue/a")}),
    ("create_durable_queue", SENDER, {"target": Target(address="/queue/a")}),
    ("consume", RECEIVER, {"source": Source(address="/queue/a")}),
    ("consume", RECEIVER, {"source": SHARED}),
    ("browse", RECEIVER, {"source": COPY}),
    ("create_durable_queue", RECEIVER, {"source": DURABLE}),
    ("create_durable_queue", RECEIVER, {"source": SHARED}),
    ("create_non_durable_queue", RECEIVER, {"source": Source(address="/topic/t")}),
    ("create_non_durable_queue", RECEIVER, {"source": Source(dynamic=True)}),
    ("create_address", SENDER,
     {"target": Target(dynamic=True, capabilities=(Symbol("temporary-topic"),))}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_a_permission_is_needed_for(number: int) -> None:
    name, role, fields = CASES[number]

    @with_rig(security={"#": NO[name]})
    async def refused(rig: ServerRig) -> None:
        assert await is_refused(await client(rig), role, **fields)
        assert not rig.engine.registry.queues
        assert not rig.engine.registry.addresses

    @with_rig(security={"#": without()})
    async def permitted(rig: ServerRig) -> None:
        assert not await is_refused(await client(rig), role, **fields)

    refused()
    permitted()


@with_rig(security={"#": without(), "secret": NO["send"]})
async def test_the_relay_rejects_what_may_not_be_sent(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender(None)
    peer.send(message(to="/queue/secret"))
    peer.send(message(to="/queue/open"))
    await rig.flush()
    outcomes = {one.first: one.state for one in peer.all(Disposition)}
    assert isinstance(outcomes[0], Rejected)
    assert outcomes[0].error.condition == UNAUTHORIZED
    assert not isinstance(outcomes[1], Rejected)


@pytest.mark.parametrize("source", [DURABLE, SHARED])
@with_rig(security={"#": NO["delete_durable_queue"]})
async def test_a_subscription_that_may_not_be_deleted_stays(rig: ServerRig, source: Source) -> None:
    peer = await client(rig)
    await peer.receiver("/topic/t", source=source, name="sub")
    await peer.detach(1, closed=True)
    assert peer.one(Detach).error.condition == UNAUTHORIZED
    assert "me.sub" in rig.engine.registry.queues

"""Transactions: what counts, when it is told, and what a rollback gives back."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Rejected,
    Section,
    Source,
    Target,
    TransactionalState,
    Transfer,
    encode_section,
)
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.settings import AddressFullPolicy, AddressSettings
from vespiary_testkit.amqp_peer import SENDER, AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig

FAILS = AddressSettings(max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
COORDINATOR = 9


async def client(rig: ServerRig) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    await peer.attach(SENDER, COORDINATOR, target=Coordinator(), source=Source())
    assert isinstance(peer.one(Attach).target, Coordinator)
    return peer


def value(body: Any) -> bytes:
    return b"\0\x53\x77" + write(body)


async def declare(peer: AmqpPeer) -> bytes:
    peer.send(value(Declare()), handle=COORDINATOR)
    await peer.rig.settle()
    told = peer.one(Disposition)
    assert isinstance(told.state, Declared)
    assert told.settled
    return told.state.txn_id


async def discharge(peer: AmqpPeer, number: bytes, *, fail: bool = False) -> Any:
    peer.send(value(Discharge(txn_id=number, fail=fail)), handle=COORDINATOR)
    await peer.rig.flush()
    return peer.all(Disposition)[-1].state


def statistics(rig: ServerRig, name: str = "a") -> Any:
    return rig.core.queue_statistics(rig.engine.registry.queues[name].id)


@with_rig()
async def test_messages_count_with_the_commit(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    number = await declare(peer)
    for _ in range(3):
        peer.send(message(), state=TransactionalState(txn_id=number))
    await rig.flush()
    told = peer.all(Disposition)
    assert [type(each.state.outcome) for each in told] == [Accepted] * 3
    assert statistics(rig).added == 0
    assert isinstance(await discharge(peer, number), Accepted)
    assert statistics(rig).added == 3


@with_rig()
async def test_a_commit_is_told_behind_the_flush(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    number = await declare(peer)
    peer.send(message(), state=TransactionalState(txn_id=number))
    await rig.settle()
    peer.all(Disposition)
    peer.send(value(Discharge(txn_id=number)), handle=COORDINATOR)
    await rig.settle()
    assert peer.all(Disposition) == []
    rig.journal.flush()
    await rig.settle()
    assert isinstance(peer.one(Disposition).state, Accepted)


@with_rig()
async def test_a_rollback_leaves_nothing(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    number = await declare(peer)
    peer.send(message(), state=TransactionalState(txn_id=number))
    await rig.flush()
    assert isinstance(await discharge(peer, number, fail=True), Accepted)
    assert statistics(rig).added == 0
    assert (await discharge(peer, number)).error.condition == "amqp:transaction:unknown-id"


@pytest.mark.parametrize("fail", [False, True])
@with_rig()
async def test_acknowledgements(rig: ServerRig, fail: bool) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    for _ in range(2):
        peer.send(message())
    await rig.flush()
    peer.all(Disposition)
    await peer.receiver("/queue/a", credit=2)
    assert len(peer.messages()) == 2
    number = await declare(peer)
    peer.settle(0, 1, TransactionalState(txn_id=number, outcome=Accepted()))
    await rig.flush()
    assert statistics(rig).acknowledged == 0
    await discharge(peer, number, fail=fail)
    if fail:
        assert statistics(rig).acknowledged == 0
        await peer.credit(2, count=2)
        assert len(peer.messages()) == 2  # given out again
    else:
        assert statistics(rig).acknowledged == 2


@with_rig()
async def test_unsettled_outcomes_are_settled_by_the_commit(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    peer.send(message())
    await rig.flush()
    peer.all(Disposition)
    await peer.receiver("/queue/a", credit=1)
    peer.messages()
    number = await declare(peer)
    peer.settle(0, state=TransactionalState(txn_id=number, outcome=Accepted()), settled=False)
    await rig.flush()
    assert peer.all(Disposition) == []
    peer.send(value(Discharge(txn_id=number)), handle=COORDINATOR)
    await rig.flush()
    told = peer.all(Disposition)
    assert [(each.role, each.settled) for each in told] == [(SENDER, True), (True, True)]
    assert statistics(rig).acknowledged == 1


@with_rig()
async def test_a_stolen_link_takes_its_acknowledgements_out_of_a_transaction(
    rig: ServerRig,
) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    for number in range(3):
        peer.send(message(b"%d" % number))
    await rig.flush()
    peer.all(Disposition)
    await peer.receiver("/queue/a", handle=2, name="mine", credit=3)
    assert [body[-1:] for _, body in peer.messages()] == [b"0", b"1", b"2"]
    number = await declare(peer)
    peer.settle(0, 1, TransactionalState(txn_id=number, outcome=Accepted()))
    await rig.flush()
    other = await client(rig)
    await other.receiver("/queue/a", handle=2, name="mine", credit=5)
    await rig.flush()
    assert peer.one(Detach).error.condition == "amqp:link:stolen"
    assert [body[-1:] for _, body in other.messages()] == [b"0", b"1", b"2"]
    state = await discharge(peer, number)
    assert isinstance(state, Rejected)
    assert "not held by subscription" in state.error.description
    other.settle(0, 2, Accepted())
    await rig.flush()
    found = statistics(rig)
    assert (found.acknowledged, found.ready, found.delivering) == (3, 0, 0)


@with_rig()
async def test_a_message_that_is_refused_fails_the_commit(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    number = await declare(peer)
    peer.send(message(), state=TransactionalState(txn_id=number))
    peer.send(b"no message", state=TransactionalState(txn_id=number))
    await rig.flush()
    outcomes = [each.state.outcome for each in peer.all(Disposition)]
    assert [type(each) for each in outcomes] == [Accepted, Rejected]
    told = await discharge(peer, number)
    assert isinstance(told, Rejected)
    assert told.error.condition == "amqp:transaction:rollback"
    assert statistics(rig).added == 0


@with_rig({"a": FAILS})
async def test_a_full_address_refuses_the_commit(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    peer.send(message())
    await rig.flush()
    peer.all(Disposition)
    number = await declare(peer)
    peer.send(message(), state=TransactionalState(txn_id=number))
    await rig.flush()
    peer.all(Disposition)
    told = await discharge(peer, number)
    assert told.error.condition == "amqp:transaction:rollback"
    assert "full" in told.error.description
    assert statistics(rig).added == 1


@with_rig()
async def test_several_sessions_share_a_transaction(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.begin(1)
    await peer.attach(SENDER, 0, channel=1, target=target("/queue/a"), source=Source())
    peer.all(Attach)
    await peer.sender("/queue/b", handle=2)
    number = await declare(peer)
    peer.send(message(), handle=2, state=TransactionalState(txn_id=number))
    send_on(peer, 1, number)
    await rig.flush()
    peer.all(Disposition)
    assert isinstance(await discharge(peer, number), Accepted)
    assert (statistics(rig, "a").added, statistics(rig, "b").added) == (1, 1)


def target(address: str) -> Any:
    return Target(address=address)


def send_on(peer: AmqpPeer, channel: int, number: bytes) -> None:
    state = TransactionalState(txn_id=number)
    transfer = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"x", state=state)
    peer.frame(transfer, message(), channel=channel)


@with_rig()
async def test_a_transaction_that_nobody_knows(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.receiver("/queue/a")
    peer.settle(0, state=TransactionalState(txn_id=b"?", outcome=Accepted()))
    await rig.flush()
    assert peer.one(End).error.condition == "amqp:transaction:unknown-id"


@with_rig()
async def test_a_transaction_without_end_is_rolled_back(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    peer.send(message())
    await rig.flush()
    peer.all(Disposition)
    await peer.receiver("/queue/a", credit=1)
    number = await declare(peer)
    peer.settle(0, state=TransactionalState(txn_id=number, outcome=Accepted()))
    await rig.settle()
    assert peer.handler.expire_transactions(rig.cycle.loop.time() + 1) == 1
    await rig.settle()
    told = await discharge(peer, number)
    assert told.error.condition == "amqp:transaction:timeout"
    await peer.credit(1, count=1)
    assert len(peer.messages()) == 2  # the one before, and again


@with_rig()
async def test_a_coordinator_takes_nothing_else(rig: ServerRig) -> None:
    peer = await client(rig)
    peer.send(encode_section(Section.AMQP_VALUE, "commit!"), handle=COORDINATOR)
    await rig.flush()
    assert peer.one(Detach).error.condition == "amqp:not-implemented"

"""Messages that the core sends to AMQP clients by itself, beside those that Python sends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from vespiary_broker.server.amqp.annotations import MESSAGES_MAX, ChangedAnnotations
from vespiary_broker.server.amqp.sending import OutgoingLink
from vespiary_codec.wire.amqp import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    TransactionalState,
    Transfer,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message, with_rig
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.server_rig import ServerRig

PRE_SETTLED = UByte(1)
_AMQP_VALUE = b"\0\x53\x77"


async def client(rig: ServerRig, **begin: Any) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin(**begin)
    return peer


async def fill(rig: ServerRig, *payloads: bytes) -> None:
    """Send messages to the queue `a`."""
    peer = AmqpPeer(rig)
    await peer.open(container="filler")
    await peer.begin()
    await peer.sender("/queue/a")
    for payload in payloads:
        peer.send(payload)
    await rig.flush()


def plain(*numbers: int) -> list[bytes]:
    return [message(b"%d" % number) for number in numbers]


def bodies(peer: AmqpPeer) -> list[bytes]:
    return [read_section(data, sections(data)[-1]) for _, data in peer.messages()]


def link_of(peer: AmqpPeer, handle: int = 1, channel: int = 0) -> OutgoingLink:
    link = peer.handler._sessions[channel]._links[handle]
    assert isinstance(link, OutgoingLink)
    return link


def queue_id(rig: ServerRig) -> int:
    return rig.engine.registry.queues["a"].id


class Encodings:
    """Counts the messages that Python encodes for a link."""

    def __init__(self, link: OutgoingLink) -> None:
        self.by_python = 0
        given = link.given

        def count(sequence: int) -> int:
            self.by_python += 1
            return given(sequence)

        link.given = count  # type: ignore[method-assign]


@with_rig()
async def test_python_makes_nothing_of_what_the_core_sends(rig: ServerRig) -> None:
    await fill(rig, *plain(*range(10)))
    peer = await client(rig)
    await peer.receiver("/queue/a")
    link = link_of(peer)
    encodings = Encodings(link)
    await peer.credit(7)
    assert bodies(peer) == [b"%d" % number for number in range(7)]
    assert (encodings.by_python, link.credit, link.held, link.session.unsettled) == (0, 0, {}, {})
    peer.settle(0, 6)
    await rig.flush()
    assert rig.core.queue_statistics(queue_id(rig)).acknowledged == 7
    await peer.credit(7, count=7, next_incoming_id=7, echo=True)
    assert (link.credit, encodings.by_python) == (4, 0)
    flow = peer.all(Flow)[-1]
    assert (flow.delivery_count, flow.link_credit) in ((7, 7), (10, 4))


async def story(seed: int, *, is_core: bool) -> tuple[list[Any], Any]:
    """Let a client do things by chance; return what it was sent, and what is left.

    The client either closes its window or receives messages of several frames. With both, Python
    may hold a message that the window has no room for, while the core leaves it in the queue, where
    a message of higher priority goes before it: either order is right.
    """
    rig = ServerRig(acceptor=amqp_acceptor())
    if not is_core:
        rig.cycle.annotations.has_any_in = lambda _: True  # type: ignore[method-assign]
    pick = random.Random(seed)
    filler = AmqpPeer(rig)
    await filler.open(container="filler")
    await filler.begin()
    await filler.sender("/queue/a")
    peer = await client(rig, window=50)
    settled = PRE_SETTLED if pick.random() < 0.3 else UByte(2)
    await peer.receiver("/queue/a", snd_settle_mode=settled)
    windows, sizes = pick.choice([([0, 1, 5, 50], [10, 300]), ([1000], [10, 10, 300, 70_000])])
    deliveries = frames = number = 0
    open_ids: list[int] = []
    for _ in range(60):
        act = pick.random()
        if act < 0.4:
            for _ in range(pick.randrange(5)):
                number += 1
                header = {} if pick.random() < 0.8 else {"priority": UByte(pick.randrange(10))}
                size = pick.choice(sizes)
                filler.send(message(b"%d" % number + bytes(size), header=header))
        elif act < 0.7:
            window = pick.choice(windows)
            credit = pick.randrange(6)
            await peer.credit(credit, count=deliveries, next_incoming_id=frames, window=window)
        elif open_ids:
            first = pick.choice(open_ids)
            last = first + pick.choice([0, 0, 3, 1000])
            state = pick.choice([Accepted(), Accepted(), Released(), Rejected(), Modified()])
            peer.settle(first, last, state=state, settled=pick.random() < 0.8)
        await rig.flush()
        sent = [one for one in peer.take() if isinstance(getattr(one, "body", None), Transfer)]
        open_ids = [int(one.body.delivery_id) for one in sent]  # type: ignore[union-attr]
        deliveries, frames = len(set(open_ids)), len(sent)
    left = rig.core.queue_statistics(queue_id(rig))
    await rig.close()
    return peer.take(), left


@pytest.mark.parametrize("case", range(12))
def test_core_and_python_send_the_same(case: int) -> None:
    seed = seed_for(f"amqp sending story {case}")
    by_core = product_loop.run(story(seed, is_core=True))
    by_python = product_loop.run(story(seed, is_core=False))
    assert by_core[0] == by_python[0]
    assert by_core[1] == by_python[1]


@with_rig()
async def test_the_order_holds_whoever_encodes(rig: ServerRig) -> None:
    pick = random.Random(seed_for("amqp core sending"))
    sizes = [70_000 if pick.random() < 0.3 else 0 for _ in range(80)]  # more than a frame
    await fill(rig, *[message(b"%d " % n + b" " * size) for n, size in enumerate(sizes)])
    peer = await client(rig)
    await peer.receiver("/queue/a")
    encodings = Encodings(link_of(peer))
    await peer.credit(100)
    found = peer.messages()
    assert [each.delivery_id for each, _ in found] == [*range(80)]
    numbers = [int(read_section(data, sections(data)[-1]).decode()) for _, data in found]
    assert numbers == [*range(80)]
    assert encodings.by_python == sum(map(bool, sizes))


@with_rig()
async def test_annotations_are_not_lost_on_another_link(rig: ServerRig) -> None:
    await fill(rig, *plain(1, 2))
    peer, other = await client(rig), await client(rig)
    await peer.receiver("/queue/a", credit=1)
    await other.receiver("/queue/a", name="other")
    encodings = Encodings(link_of(other))
    peer.messages()
    peer.settle(0, state=Modified(message_annotations={Symbol("x-why"): "later"}))
    await rig.flush()
    await other.credit(2)
    (_, again), (_, fresh) = other.messages()
    assert b"x-why" in again
    assert b"x-why" not in fresh
    assert encodings.by_python == 2


@with_rig()
async def test_the_core_encodes_again_when_no_annotations_are_left(rig: ServerRig) -> None:
    await fill(rig, *plain(1, 2, 3))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=1)
    encodings = Encodings(link_of(peer))
    peer.messages()
    peer.settle(0, state=Modified(message_annotations={Symbol("x-why"): "later"}))
    await rig.flush()
    await peer.credit(1, count=1, next_incoming_id=1)
    ((_, again),) = peer.messages()
    assert b"x-why" in again
    assert encodings.by_python == 1
    peer.settle(1)
    await rig.flush()
    await peer.credit(2, count=2, next_incoming_id=2)
    assert bodies(peer) == [b"2", b"3"]
    assert encodings.by_python == 1


def test_annotations_tell_of_the_first_and_the_last() -> None:
    known, told = ChangedAnnotations(), []
    action = lambda: told.append(known.has_any_in(1))  # noqa: E731
    known.watch(1, action)
    known.note((1, 5), {Symbol("x-a"): 1})
    known.note((1, 6), {Symbol("x-a"): 1})
    known.note((2, 6), {Symbol("x-a"): 1})
    known.forget((1, 5))
    known.forget((1, 6))
    known.forget((1, 7))
    assert told == [True, False]
    for sequence in range(MESSAGES_MAX):
        known.note((3, sequence), {Symbol("x-a"): 1})
    assert not known.has_any_in(2)
    known.unwatch(1, action)
    known.note((1, 5), {})
    assert told == [True, False]


@with_rig()
async def test_a_window_that_opens_lets_the_core_go_on(rig: ServerRig) -> None:
    await fill(rig, *plain(*range(9)))
    peer = await client(rig, window=3)
    await peer.receiver("/queue/a")
    await peer.credit(100, window=3)
    assert len(peer.messages()) == 3
    await peer.rig.settle()
    assert peer.messages() == []
    peer.frame(
        Flow(next_incoming_id=UInt(3), incoming_window=UInt(4), next_outgoing_id=UInt(0),
             outgoing_window=UInt(1))
    )  # fmt: skip
    await rig.settle()
    assert bodies(peer) == [b"3", b"4", b"5", b"6"]


@with_rig()
async def test_what_was_sent_settled_is_acknowledged(rig: ServerRig) -> None:
    await fill(rig, *plain(1, 2))
    peer = await client(rig)
    await peer.receiver("/queue/a", snd_settle_mode=PRE_SETTLED)
    encodings = Encodings(link_of(peer))
    await peer.credit(5)
    assert [each.settled for each, _ in peer.messages()] == [True, True]
    await rig.flush()
    assert rig.core.queue_statistics(queue_id(rig)).acknowledged == 2
    assert encodings.by_python == 0


@with_rig()
async def test_a_link_that_ends_leaves_nothing_to_settle(rig: ServerRig) -> None:
    await fill(rig, *plain(1, 2))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5)
    assert len(peer.messages()) == 2
    await peer.detach(1)
    peer.settle(0, 1)
    await rig.flush()
    left = rig.core.queue_statistics(queue_id(rig))
    assert (left.acknowledged, left.ready) == (0, 2)
    assert peer.handler._sessions[0].senders == {}


@with_rig(max_unsettled=3)
async def test_no_more_than_may_be_unsettled(rig: ServerRig) -> None:
    await fill(rig, *plain(*range(7)))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=50)
    assert len(peer.messages()) == 3
    peer.settle(1)
    await rig.flush()
    assert bodies(peer) == [b"3"]
    peer.settle(0, state=Rejected())
    await rig.flush()
    assert bodies(peer) == [b"4"]


@pytest.mark.parametrize("fail", [False, True])
def test_what_the_core_sent_is_acknowledged_in_a_transaction(fail: bool) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        await fill(rig, *plain(1, 2, 3))
        peer = await client(rig)
        await peer.receiver("/queue/a", credit=5)
        assert len(peer.messages()) == 3
        await peer.sender(None, handle=9, target=Coordinator())
        peer.send(_AMQP_VALUE + write(Declare()), handle=9)
        await rig.flush()
        (declared,) = [one.state for one in peer.all(Disposition)]
        assert isinstance(declared, Declared)
        peer.settle(0, 1, TransactionalState(txn_id=declared.txn_id, outcome=Accepted()))
        await rig.flush()
        assert rig.core.queue_statistics(queue_id(rig)).acknowledged == 0
        body = Discharge(txn_id=declared.txn_id, fail=fail)
        peer.send(_AMQP_VALUE + write(body), handle=9)
        await rig.flush()
        assert rig.core.queue_statistics(queue_id(rig)).acknowledged == (0 if fail else 2)
        peer.settle(2)
        await rig.flush()
        assert rig.core.queue_statistics(queue_id(rig)).acknowledged == (1 if fail else 3)

    scenario()


@with_rig()
async def test_a_drain_counts_what_the_core_has_sent(rig: ServerRig) -> None:
    await fill(rig, *plain(1, 2))
    peer = await client(rig)
    await peer.receiver("/queue/a")
    await peer.credit(10, drain=True)
    await asyncio.sleep(0.05)
    await rig.settle()
    assert len(peer.messages()) == 2
    (flow,) = peer.all(Flow)
    assert (flow.delivery_count, flow.link_credit, flow.available) == (10, 0, 0)


@with_rig()
async def test_links_of_two_sessions_have_ids_of_their_own(rig: ServerRig) -> None:
    await fill(rig, *plain(*range(4)))
    peer = await client(rig)
    await peer.begin(channel=1)
    await peer.receiver("/queue/a", credit=2)
    await peer.attach(True, 1, channel=1, source=Source(address="/queue/a"), name="other")
    await peer.credit(2, channel=1)
    assert [each.delivery_id for each, _ in peer.messages()] == [0, 1, 0, 1]
    peer.settle(0, 1)
    await rig.flush()
    assert rig.core.queue_statistics(queue_id(rig)).acknowledged == 2
    assert rig.core.queue_statistics(queue_id(rig)).delivering == 2


@with_rig()
async def test_counted_ahead_transfers_leave_behind_the_flush(rig: ServerRig) -> None:
    rig.core.count_deliveries(ahead=True, records_max=1000)
    rig.engine.dispatcher._outflow.is_counting_ahead = True
    await fill(rig, *plain(1, 2))
    peer = await client(rig)
    await peer.receiver("/queue/a")
    encodings = Encodings(link_of(peer))
    await peer.credit(5)
    assert bodies(peer) == []
    await rig.flush()
    assert bodies(peer) == [b"1", b"2"]
    assert encodings.by_python == 0

"""`max-message-size` of clients that receive: what is larger is passed over, for others."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from vespiary_broker.server.amqp import fitting
from vespiary_codec.wire.amqp import Detach, Disposition, Flow, Modified, Source, read_section
from vespiary_codec.wire.amqp import sections as sections_of
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt, ULong
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.amqp_peer import AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig

PRE_SETTLED = UByte(1)
MOST = 300
SMALL, BIG = 20, 400
NON_DESTRUCTIVE = AddressSettings(default_non_destructive=True)


async def client(rig: ServerRig, frame_bytes: int = 64 * 1024, **begin: Any) -> AmqpPeer:
    peer = AmqpPeer(rig, frame_bytes)
    await peer.open()
    await peer.begin(**begin)
    return peer


def numbered(number: int, size: int, **more: Any) -> bytes:
    return message(b"%d" % number + b" " * (size - len(b"%d" % number)), **more)


async def fill(rig: ServerRig, *payloads: bytes, address: str = "/queue/a") -> None:
    peer = AmqpPeer(rig)
    await peer.open(container="filler")
    await peer.begin()
    await peer.sender(address)
    for payload in payloads:
        peer.send(payload)
    await rig.flush()
    assert peer.all(Disposition)
    peer.peer.lose()


def numbers(peer: AmqpPeer) -> list[int]:
    bodies = [read_section(data, sections_of(data)[-1]) for _, data in peer.messages()]
    return [int(body if isinstance(body, str) else body.decode()) for body in bodies]


def statistics(rig: ServerRig, name: str = "a") -> Any:
    return rig.core.queue_statistics(rig.engine.registry.queues[name].id)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("frame_bytes", [512, 64 * 1024])
@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_too_large_stays_for_others(settled: bool, frame_bytes: int, ahead: bool) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        if ahead:
            rig.core.count_deliveries(ahead=True, records_max=1000)
            rig.engine.dispatcher._outflow.is_counting_ahead = True
        sizes = (SMALL, BIG, SMALL, 5000, SMALL)
        await fill(rig, *(numbered(at, size) for at, size in enumerate(sizes)))
        peer = await client(rig, frame_bytes)
        mode = {"snd_settle_mode": PRE_SETTLED} if settled else {}
        await peer.receiver("/queue/a", credit=10, max_message_size=ULong(MOST), **mode)
        await rig.flush()
        await rig.flush()
        assert numbers(peer) == [0, 2, 4]
        if not settled:
            peer.settle(0, 2)
        await rig.flush()
        assert statistics(rig).acknowledged == 3
        assert statistics(rig).delivering == 0
        assert rig.engine.registry.queues["a"].consumers[0].given == 4  # one of them in vain
        other = await client(rig)
        await other.receiver("/queue/a", credit=10)
        await rig.flush()
        got = other.messages()
        assert [len(data) > MOST for _, data in got] == [True, True]
        assert b"\x43" in got[0][1][:12], "it was never delivered"
        assert not rig.engine.dispatcher.has_more

    scenario()


@with_rig()
async def test_a_client_whose_first_message_is_too_large_gets_the_next(rig: ServerRig) -> None:
    """With counts ahead nothing is put where nothing was put before."""
    rig.core.count_deliveries(ahead=True, records_max=1000)
    rig.engine.dispatcher._outflow.is_counting_ahead = True
    await fill(rig, numbered(0, BIG), numbered(1, SMALL))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=10, max_message_size=ULong(MOST))
    await rig.flush()
    await rig.flush()
    assert numbers(peer) == [1]


async def sent_size(rig: ServerRig) -> int:
    """Return the size of the next message, and give it back as if it had not been looked at."""
    other = await client(rig)
    await other.receiver("/queue/a", credit=1)
    ((_, data),) = other.messages()
    await other.detach(1)
    return len(data)


@pytest.mark.parametrize("by_core", [True, False])
def test_the_largest_that_fits_is_given_to_the_byte(by_core: bool) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        await fill(rig, numbered(0, 200, header={} if by_core else {"priority": UByte(6)}))
        size = await sent_size(rig)
        peer = await client(rig)
        await peer.receiver("/queue/a", credit=5, max_message_size=ULong(size - 1))
        assert numbers(peer) == []
        assert statistics(rig).ready == 1
        await peer.receiver("/queue/a", handle=2, credit=5, max_message_size=ULong(size))
        assert numbers(peer) == [0]

    scenario()


@pytest.mark.parametrize("most", [None, 0, 2**64 - 1])
def test_no_limit(most: int | None) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        await fill(rig, numbered(0, 100_000))
        peer = await client(rig)
        size = None if most is None else ULong(most)
        await peer.receiver("/queue/a", credit=5, max_message_size=size)
        assert numbers(peer) == [0]

    scenario()


@with_rig()
async def test_what_comes_later_is_judged_without_being_given(rig: ServerRig) -> None:
    await fill(rig, numbered(0, BIG))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=50, max_message_size=ULong(MOST))
    consumer = rig.engine.registry.queues["a"].consumers[0]
    assert (numbers(peer), consumer.given) == ([], 1)
    near = message(b"9", application={"near": "x" * 280})  # measured: the bound is of no use
    await fill(rig, *(numbered(at, BIG) for at in range(1, 30)), near, numbered(30, SMALL))
    assert numbers(peer) == [30]
    assert consumer.given == 2
    assert statistics(rig).ready == 31
    assert not rig.engine.dispatcher.has_more


@with_rig()
async def test_it_is_said_once_with_measure_and_bound(
    rig: ServerRig, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(rig, numbered(0, BIG), numbered(1, BIG))
    size = await sent_size(rig)
    peer = await client(rig)
    with caplog.at_level(logging.WARNING):
        await peer.receiver("/queue/a", credit=5, max_message_size=ULong(MOST))
    (said,) = [one.getMessage() for one in caplog.records if "max-message-size" in one.message]
    assert f"measured={size} bytes, allowed={MOST} bytes" in said
    assert "link='link-1'" in said


@with_rig()
async def test_a_drain_comes_to_its_end(rig: ServerRig) -> None:
    await fill(rig, numbered(0, BIG), numbered(1, SMALL), numbered(2, BIG))
    peer = await client(rig)
    await peer.receiver("/queue/a", max_message_size=ULong(MOST))
    peer.all(Flow)
    await peer.credit(10, drain=True)
    await asyncio.sleep(0.03)  # it looks again after a hundredth of a second
    await rig.settle()
    assert numbers(peer) == [1]
    flow = peer.one(Flow)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)


@with_rig()
async def test_credit_is_not_used_up_by_what_is_passed_over(rig: ServerRig) -> None:
    await fill(rig, *(numbered(at, BIG) for at in range(5)), *(numbered(at, 9) for at in range(5)))
    peer = await client(rig, window=3)
    await peer.receiver("/queue/a")
    await peer.attach(True, 2, source=Source(address="/queue/a"), max_message_size=ULong(MOST))
    await peer.credit(2, handle=2, window=3)
    assert numbers(peer) == [0, 1]


@with_rig({"#": NON_DESTRUCTIVE})
async def test_a_queue_that_gives_all_to_everybody(rig: ServerRig) -> None:
    await fill(rig, numbered(0, BIG), numbered(1, SMALL), numbered(2, BIG), numbered(3, SMALL))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=1, max_message_size=ULong(MOST))
    assert numbers(peer) == [1]
    await peer.credit(5, count=1)
    assert numbers(peer) == [3]
    assert not rig.engine.dispatcher.has_more
    await peer.receiver("/queue/a", handle=2, credit=9)
    assert numbers(peer) == [0, 1, 2, 3]


@with_rig()
async def test_a_browser_passes_over_as_well(rig: ServerRig) -> None:
    await fill(rig, numbered(0, BIG), numbered(1, SMALL), numbered(2, BIG), numbered(3, SMALL))
    peer = await client(rig)
    source = Source(address="/queue/a", distribution_mode=Symbol("copy"))
    await peer.receiver("/queue/a", source=source, credit=9, max_message_size=ULong(MOST))
    await rig.settle(50)
    assert numbers(peer) == [1, 3]
    assert statistics(rig).ready == 4


@with_rig()
async def test_with_a_selector_and_with_what_a_client_excludes(rig: ServerRig) -> None:
    await fill(rig, numbered(0, BIG), numbered(1, SMALL), numbered(2, SMALL))
    peer = await client(rig)
    await peer.receiver("/queue/a", max_message_size=ULong(MOST), credit=5)
    assert numbers(peer) == [1, 2]
    peer.settle(0, 0, state=Modified(undeliverable_here=True))
    peer.settle(1, 1)
    await rig.flush()
    assert numbers(peer) == []
    assert statistics(rig).ready == 2
    await peer.detach(1)
    await peer.receiver("/queue/a", max_message_size=ULong(MOST), credit=5)
    assert numbers(peer) == [1]


@with_rig()
async def test_a_link_that_goes_meanwhile_takes_nothing_along(rig: ServerRig) -> None:
    await fill(rig, numbered(0, BIG))
    peer = await client(rig)
    await peer.receiver("/queue/a", max_message_size=ULong(MOST))
    failed: list[Any] = []
    rig.cycle.loop.set_exception_handler(lambda _, context: failed.append(context))
    link = peer.handler._sessions[0]._links[1]
    link.credit = 1
    link.refresh()
    rig.engine.dispatcher.dispatch([link.queue_id])
    assert statistics(rig).delivering == 1, "it is held until the dispatch is over"
    await peer.detach(1)
    assert (statistics(rig).ready, failed) == (1, [])


@with_rig()
async def test_a_link_with_too_many_is_detached(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "EXCLUDED_MAX", 3)
    monkeypatch.setattr(fitting.Fitting, "_is_too_large", lambda *_: False)  # nothing is in memory
    await fill(rig, *(numbered(at, BIG) for at in range(5)), numbered(5, SMALL))
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=1, max_message_size=ULong(MOST))
    for _ in range(5):
        await rig.flush()
    detach = peer.one(Detach)
    assert detach.error.condition == "amqp:link:message-size-exceeded"
    assert "more than 3 messages" in detach.error.description
    assert f"at most {MOST} bytes" in detach.error.description
    assert numbers(peer) == []
    assert statistics(rig).ready == 6
    assert not rig.engine.dispatcher.has_more


@with_rig()
async def test_messages_of_other_protocols(rig: ServerRig) -> None:
    stomp = rig.peer()
    await stomp.login()
    for number, size in enumerate((SMALL, BIG, SMALL)):
        body = b"%d" % number + b" " * size
        head = f"SEND\ndestination:/queue/a\npersistent:true\ncontent-length:{len(body)}\n\n"
        stomp.send(head.encode() + body + b"\0")
    await rig.flush()
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5, max_message_size=ULong(MOST))
    assert numbers(peer) == [0, 2]
    assert statistics(rig).ready == 1
    assert UInt(statistics(rig).delivering) == 2

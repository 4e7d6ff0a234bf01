"""What links teach the core, and that nothing else differs: records, credit, windows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vespiary_broker.server.amqp.teaching import Lessons
from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_codec.wire.amqp import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Disposition,
    End,
    Flow,
    Frame,
    Rejected,
    Section,
    TransactionalState,
    Transfer,
    encode_frame,
    encode_section,
)
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import Byte, Symbol, Timestamp, UByte, UInt, ULong
from vespiary_native.abc import AckMode
from vespiary_spec.settings import AddressFullPolicy, AddressSettings, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message, with_rig
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.server_rig import ServerRig

FULL_3 = AddressSettings(max_size_messages=3, address_full_policy=AddressFullPolicy.BLOCK)
STAMPED = AddressSettings(enable_ingress_timestamp=True)
EXPIRING = AddressSettings(expiry_delay=60_000)


async def sender(rig: ServerRig, address: str | None = "/queue/a", **fields: Any) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    await peer.sender(address, **fields)
    return peer


async def taught(rig: ServerRig, data: bytes, **fields: Any) -> AmqpPeer:
    """Return a client that has sent a message thrice: the first makes the queue."""
    peer = await sender(rig, **fields)
    for _ in range(3):
        peer.send(data)
        await rig.flush()
    peer.take()
    peer.got.clear()
    return peer


async def is_python(rig: ServerRig, peer: AmqpPeer, data: bytes, **fields: Any) -> bool:
    """Send a message; return whether Python saw it."""
    frames = rig.cycle.frames
    peer.send(data, **fields)
    await rig.flush()
    assert rig.cycle.frames in (frames, frames + 1)
    return rig.cycle.frames > frames


def ready(rig: ServerRig, name: str = "a") -> int:
    queue = rig.engine.registry.queues[name]
    return rig.core.queue_statistics(queue.id).added


def stored(rig: ServerRig, name: str = "a") -> list[tuple[Any, ...]]:
    """Return what is stored of the messages of a queue."""
    queue, core = rig.engine.registry.queues[name], rig.core
    facts = core.look(queue.id, 0, 10_000).messages
    consumer = core.open_consumer(
        core.open_connection(), queue.id, AckMode.AUTO, 1, b"", STORED_VERSION
    )
    _, _, data = core.deliver(consumer, 10_000, 1 << 30)
    return [
        (one.protocol, one.priority, one.is_escaped, one.properties, one.body, view.is_journalled,
         view.is_special)
        for one, view in zip(read_stored(data), facts, strict=True)
    ]  # fmt: skip


@with_rig()
async def test_the_second_message_in_a_row_teaches(rig: ServerRig) -> None:
    peer = await taught(rig, message(b"0"))
    assert not await is_python(rig, peer, message(b"another body"))
    told = peer.one(Disposition)
    assert (told.first, told.last, told.settled) == (3, None, True)
    assert isinstance(told.state, Accepted)
    assert await is_python(rig, peer, message(b"another body", durable=False))
    assert ready(rig) == 5


@with_rig()
async def test_accepted_by_the_core_comes_behind_the_flush(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    peer.send(message())
    await rig.settle()
    assert peer.all(Disposition) == []  # it is staged, and not durable
    rig.journal.flush()
    await rig.settle()
    assert peer.one(Disposition).first == 3


NEEDS_PYTHON: dict[str, dict[str, Any]] = {
    "a time to live": {"header": {"ttl": UInt(60_000)}},
    "an expiry": {"absolute_expiry_time": Timestamp(2_000_000_000_000)},
    "a priority": {"header": {"priority": UByte(5)}},
    "a group": {"group_id": "g"},
    "a duplicate id": {"application": {"_AMQ_DUPL_ID": "d"}},
    "a value that is a number": {"section": Section.AMQP_VALUE, "body": ULong(7)},
    "no string": {"section": Section.AMQP_VALUE, "body": None},
}


@pytest.mark.parametrize("which", NEEDS_PYTHON)
def test_messages_that_need_python_are_not_taught(which: str) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        fields = dict(NEEDS_PYTHON[which])
        data = message(fields.pop("body", b"body"), **fields)
        peer = await taught(rig, data)
        assert await is_python(rig, peer, data)

    scenario()


@pytest.mark.parametrize("settings", [STAMPED, EXPIRING])
def test_addresses_that_need_python_are_not_taught(settings: AddressSettings) -> None:
    @with_rig({"a": settings})
    async def scenario(rig: ServerRig) -> None:
        peer = await taught(rig, message())
        assert await is_python(rig, peer, message())

    scenario()


@pytest.mark.parametrize("settings", [STAMPED, EXPIRING])
def test_settings_that_need_python_end_what_was_taught(settings: AddressSettings) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        peer = await taught(rig, message())
        assert not await is_python(rig, peer, message())
        rig.engine.registry.change_settings({"a": settings})
        assert await is_python(rig, peer, message())
        assert await is_python(rig, peer, message())

    scenario()


@with_rig()
async def test_a_queue_with_a_filter_is_not_taught(rig: ServerRig) -> None:
    peer = await sender(rig, "/topic/t")
    await peer.receiver("/topic/t", handle=1)
    for _ in range(4):
        peer.send(message())
        await rig.flush()
    assert not await is_python(rig, peer, message())
    traits = peer.handler.traits_with("colour = 'red'")
    await rig.engine.registry.create_queue("red", "t", RoutingType.MULTICAST, traits=traits)
    assert await is_python(rig, peer, message())
    assert await is_python(rig, peer, message())
    assert await is_python(rig, peer, message())


@with_rig()
async def test_who_settles_second_is_not_taught(rig: ServerRig) -> None:
    peer = await taught(rig, message(), rcv_settle_mode=UByte(1))
    assert await is_python(rig, peer, message())
    assert not peer.one(Disposition).settled


@with_rig(max_message_size=1000)
async def test_a_link_whose_messages_may_be_too_large_is_not_taught(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    peer.send(message(b"x" * 1000))
    await rig.flush()
    (told,) = peer.all(Disposition)
    assert isinstance(told.state, Rejected)


@with_rig()
async def test_a_transaction_is_python_s(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    await peer.sender(None, handle=5, target=Coordinator())
    peer.send(b"\0\x53\x77" + write(Declare()), handle=5)
    await rig.flush()
    (declared,) = [each.state for each in peer.all(Disposition) if isinstance(each.state, Declared)]
    before = ready(rig)
    state = TransactionalState(txn_id=declared.txn_id)
    assert await is_python(rig, peer, message(), state=state)
    assert ready(rig) == before
    assert not await is_python(rig, peer, message())


@with_rig()
async def test_pre_settled_messages_are_not_answered(rig: ServerRig) -> None:
    peer = await taught(rig, message(), snd_settle_mode=UByte(1))
    assert not await is_python(rig, peer, message())
    assert peer.all(Disposition) == []
    assert ready(rig) == 4


@with_rig()
async def test_the_anonymous_relay_is_taught_by_address(rig: ServerRig) -> None:
    peer = await sender(rig, None)
    for to in ("/queue/a", "/queue/b"):
        for _ in range(3):
            peer.send(message(to=to))
            await rig.flush()
    assert not await is_python(rig, peer, message(b"1", to="/queue/a"))
    assert not await is_python(rig, peer, message(b"2", to="/queue/b"))
    assert [stored(rig, name)[-1][4] for name in "ab"] == [b"1", b"2"]


# --- what the client is told ----------------------------------------------------------------------


@with_rig(amqp_credits=10, amqp_low_credits=4)
async def test_credit_is_filled_up_as_the_core_uses_it(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    for _ in range(2):
        assert not await is_python(rig, peer, message())
    assert peer.all(Flow) == []
    assert not await is_python(rig, peer, message())
    (given,) = peer.all(Flow)
    assert (given.link_credit, given.delivery_count, given.next_incoming_id) == (10, 6, 6)


@with_rig(amqp_credits=10, amqp_low_credits=0)
async def test_more_than_the_credit_is_refused_behind_what_the_core_took(rig: ServerRig) -> None:
    rig.engine.registry.change_settings({"a": FULL_3})
    peer = await taught(rig, message())
    for _ in range(8):
        peer.send(message())
    await rig.flush()
    assert peer.one(Detach).error.condition == "amqp:link:transfer-limit-exceeded"
    assert ready(rig) == 10


@with_rig(amqp_credits=10_000)
async def test_the_window_is_given_again_as_the_core_uses_it(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    burst(peer, 1020)
    await rig.flush()
    assert peer.all(Flow) == []
    burst(peer, 1028)
    await rig.flush()
    (given,) = peer.all(Flow)
    assert given.handle is None
    assert 1024 < given.next_incoming_id <= 2051  # at the end of a piece that was read
    assert given.incoming_window == 2048
    assert peer.all(End) == []
    assert ready(rig) == 2051
    frames = rig.cycle.frames
    for _ in range(4):
        burst(peer, 1000)
        await rig.flush()
    assert rig.cycle.frames == frames  # and the core has it too
    assert len(peer.all(Disposition)) >= 4


def burst(peer: AmqpPeer, count: int) -> None:
    """Send many in one piece."""
    frames = []
    for _ in range(count):
        number = peer._next_delivery
        peer._next_delivery += 1
        transfer = Transfer(handle=UInt(0), delivery_id=UInt(number), delivery_tag=b"t")
        frames.append(encode_frame(Frame(0, transfer, message())))
    peer.raw(b"".join(frames))


@with_rig(amqp_credits=10_000)
async def test_many_in_one_read_have_one_disposition_and_python_sees_none(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    frames = rig.cycle.frames
    burst(peer, 500)
    await rig.flush()
    assert rig.cycle.frames == frames
    told = peer.all(Disposition)
    assert (told[0].first, told[-1].last) == (3, 502)
    assert len(told) <= 3  # one for each piece that was read
    assert ready(rig) == 503


@with_rig({"a": FULL_3}, amqp_credits=6, amqp_low_credits=1)
async def test_credit_is_withheld_while_the_address_is_full(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    for _ in range(3):
        peer.send(message())
    await rig.flush()
    assert ready(rig) == 6  # what was in flight is taken
    assert peer.all(Flow) == []
    await peer.receiver("/queue/a", credit=10)
    peer.settle(0, 5)
    await rig.flush()
    await rig.settle()
    assert any(flow.handle == 0 and flow.link_credit == 6 for flow in peer.all(Flow))
    peer.send(message())
    await rig.flush()
    assert ready(rig) == 7


@with_rig()
async def test_nothing_is_taken_within_a_delivery_of_many_transfers(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    data = message(b"long")
    first = Transfer(handle=UInt(0), delivery_id=UInt(3), delivery_tag=b"t", more=True)
    peer.frame(first, data[:5])
    peer.frame(Transfer(handle=UInt(0), delivery_id=UInt(4), delivery_tag=b"u"), message())
    await rig.flush()
    assert peer.one(Detach).error.condition == "amqp:not-allowed"
    assert ready(rig) == 3


@with_rig()
async def test_a_handle_that_is_used_again_has_no_lessons(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    await peer.detach(0)
    await peer.sender("/queue/b", name="other")
    for _ in range(3):
        peer.send(message())
        await rig.flush()
    assert not await is_python(rig, peer, message())
    assert (ready(rig), ready(rig, "b")) == (3, 4)
    peer.frame(End())
    await rig.flush()
    await peer.begin()
    await peer.sender("/queue/c", name="third")
    assert await is_python(rig, peer, message())
    assert (ready(rig, "b"), ready(rig, "c")) == (4, 1)


@with_rig()
async def test_a_detach_comes_behind_what_the_core_accepted(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    peer.send(message())
    peer.frame(Detach(handle=UInt(0), closed=True))
    await rig.flush()
    kinds = [type(one.body) for one in peer.take() if isinstance(one, Frame)]
    assert kinds == [Disposition, Detach]


@with_rig()
async def test_a_queue_that_is_deleted_is_made_again(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    registry = rig.engine.registry
    registry.drop_queue(registry.queues["a"])
    await rig.flush()
    for _ in range(3):
        peer.send(message())
        await rig.flush()
    assert ready(rig) == 3
    assert not await is_python(rig, peer, message())


@with_rig()
async def test_without_room_the_connection_waits(rig: ServerRig) -> None:
    peer = await taught(rig, message())
    rig.core.hold_adds(held=True)
    peer.send(message())
    peer.send(message())
    await rig.flush()
    assert ready(rig) == 3
    assert peer.all(Disposition) == []
    rig.core.hold_adds(held=False)
    rig.cycle.on_space()
    await rig.flush()
    assert ready(rig) == 5
    (told,) = peer.all(Disposition)
    assert (told.first, told.last) == (3, 4)


# --- what is stored -------------------------------------------------------------------------------


def jms(prefix: str, number: int) -> dict[str, Any]:
    return {"message_id": f"{prefix}{number:04d}", "creation_time": Timestamp(number + 1000)}


def with_annotations(data: bytes, annotations: bytes) -> bytes:
    """Return a message with annotations behind its header."""
    end = 5 + data[4] if data[3] == 0xC0 else 4  # a list of one byte's size, or an empty one
    return data[:end] + annotations + data[end:]


def stream(pick: random.Random) -> list[bytes]:
    """Return messages of which many are like the one before."""
    annotations = {Symbol("x-opt-jms-msg-type"): Byte(5)}
    annotated = encode_section(Section.MESSAGE_ANNOTATIONS, annotations)
    found: list[bytes] = []
    kinds: list[dict[str, Any]] = [
        {},
        {"durable": False},
        {"subject": "with: colon\nand line"},
        {"application": {"name": "value", "expires": "never", "n": ULong(7)}},
        {"message_id": "fixed:id"},
        {"message_id": ULong(7)},
        {"message_id": b"\1\2"},
        {"to": "/queue/a", "reply_to": "r", "content_type": Symbol("text/plain")},
        {"creation_time": Timestamp(5)},
        {"creation_time": Timestamp(-5)},
    ]
    while len(found) < 200:
        kind = dict(pick.choice(kinds))
        prefix = pick.choice(["ID:a:1:", "ID:", "", "AMQP_", "x_", "ID:é:", "ID:\\"])
        is_jms, is_text = pick.random() < 0.5, pick.random() < 0.5
        is_annotated = pick.random() < 0.3
        section = pick.choice([Section.DATA, Section.AMQP_VALUE])
        size = pick.choice([0, 3, 250, 256, 700])
        for _ in range(pick.choice([1, 2, 10, 20])):
            number = pick.randrange(10_000)
            more = jms(prefix, number) if is_jms else {}
            text = "é" * (size // 2) + f"{number % 7}"
            body = text if is_text and section is Section.AMQP_VALUE else text.encode()
            found.append(
                with_annotations(
                    message(body, section=section, **(kind | more)), annotated * is_annotated
                )
            )
    return found


def record_all(messages: list[bytes], *, teaches: bool) -> tuple[list[tuple[Any, ...]], int]:
    """Return what is stored of messages, and how many frames Python saw."""
    found: list[tuple[Any, ...]] = []
    frames = 0

    async def scenario() -> None:
        nonlocal frames
        rig = ServerRig(acceptor=amqp_acceptor())
        await rig.engine.registry.create_queue("a", "a", RoutingType.ANYCAST)
        peer = await sender(rig)
        for data in messages:
            peer.send(data)
        await rig.flush()
        found.extend(stored(rig))
        told = peer.all(Disposition)
        assert sum((each.last or each.first) - each.first + 1 for each in told) == len(messages)
        frames = rig.cycle.frames
        await rig.close()

    with pytest.MonkeyPatch.context() as patch:
        if not teaches:
            patch.setattr(Lessons, "note", lambda *_: None)
        product_loop.run(scenario())
    return found, frames


@pytest.mark.parametrize("case", range(12))
def test_the_core_stores_what_python_would(case: int) -> None:
    messages = stream(random.Random(seed_for(f"taught messages {case}")))
    by_python, all_frames = record_all(messages, teaches=False)
    by_core, frames = record_all(messages, teaches=True)
    assert by_core == by_python
    assert frames <= all_frames


def test_the_core_takes_what_it_was_taught() -> None:
    messages = stream(random.Random(1))  # fixed: how much there is to learn differs by seed
    _, all_frames = record_all(messages, teaches=False)
    _, frames = record_all(messages, teaches=True)
    assert frames < all_frames - len(messages) // 5


def jms_message(text: str, time_ms: int) -> bytes:
    return message(
        "text", section=Section.AMQP_VALUE, message_id=text, creation_time=Timestamp(time_ms)
    )


@with_rig()
async def test_messages_of_jms_differ_in_id_and_time(rig: ServerRig) -> None:
    peer = await sender(rig)
    for number in range(3):
        peer.send(jms_message(f"ID:c:1-{number}", 1_700_000_000_000 + number))
        await rig.flush()
    assert not await is_python(rig, peer, jms_message("ID:c:1-3", 1_700_000_000_003))
    assert await is_python(rig, peer, jms_message("ID:c:1-10", 1_700_000_000_003))
    assert await is_python(rig, peer, jms_message("ID:d:1-4", 1_700_000_000_003))
    lines = stored(rig)[3][3].partition(b"\0")[0]
    assert b"\nJMSMessageID:ID\\cc\\c1-3\n" in lines
    assert b"\ntimestamp:1700000000003\n" in lines


@with_rig()
async def test_an_id_that_is_spelled_otherwise_is_not_taken_for_another(rig: ServerRig) -> None:
    peer = await sender(rig)
    for number in range(3):
        peer.send(jms_message(f"abcd-{number}", 1))
        await rig.flush()
    assert await is_python(rig, peer, jms_message("AMQP_-3", 1))
    assert not await is_python(rig, peer, jms_message("abcd-4", 1))
    peer.send(jms_message("AMQP_-4"[:6], 1))
    await rig.flush()
    assert b"JMSMessageID:AMQP_STRING\\cAMQP_-" in stored(rig)[3][3]


@with_rig(amqp_credits=10_000)
async def test_who_sends_something_else_each_time_is_looked_at_now_and_then(rig: ServerRig) -> None:
    peer = await sender(rig)
    for number in range(100):
        peer.send(message(subject=f"{number}"))
    await rig.flush()
    for _ in range(64):
        peer.send(message())
    await rig.flush()
    assert not await is_python(rig, peer, message())

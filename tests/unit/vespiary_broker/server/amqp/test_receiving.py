"""Messages from clients: what is accepted when, credit, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Frame,
    Open,
    Rejected,
    Section,
    Source,
    Target,
    Transfer,
    encode_frame,
    encode_section,
)
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt
from vespiary_spec.settings import AddressFullPolicy, AddressSettings
from vespiary_testkit.amqp_peer import RECEIVER, SENDER, AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig

FULL_2 = AddressSettings(max_size_messages=2, address_full_policy=AddressFullPolicy.BLOCK)
FAILS = AddressSettings(max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
CLOSED = AddressSettings(auto_create_addresses=False, auto_create_queues=False)


async def sender(rig: ServerRig, address: str | None = "/queue/a", **fields: Any) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    await peer.sender(address, **fields)
    return peer


def ready(rig: ServerRig, name: str = "a") -> int:
    queue = rig.engine.registry.queues[name]
    return rig.core.queue_statistics(queue.id).added


@with_rig()
async def test_accepted_comes_behind_the_flush(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.send(message())
    await rig.settle()
    assert peer.all(Disposition) == []  # it is staged, and not durable
    rig.journal.flush()
    await rig.settle()
    (told,) = peer.all(Disposition)
    assert (told.role, told.first, told.settled) == (RECEIVER, 0, True)
    assert isinstance(told.state, Accepted)


@with_rig()
async def test_many_in_one_read_are_accepted_by_one_disposition(rig: ServerRig) -> None:
    peer = await sender(rig)
    for _ in range(20):
        peer.send(message())
    await rig.flush()
    told = peer.all(Disposition)
    assert (
        sum((each.last if each.last is not None else each.first) - each.first + 1 for each in told)
        == 20
    )
    assert ready(rig) == 20


@pytest.mark.parametrize(
    ("last", "payload", "answer"),
    [
        (Detach(handle=UInt(0), closed=True), b"", Detach),
        (
            Transfer(handle=UInt(0), delivery_id=UInt(1), settled=True),
            b"\0\x53\x75\xa0\x7fshort",
            Detach,
        ),
        (End(), b"", End),
        (Detach(handle=UInt(7)), b"", End),
        (Close(), b"", Close),
        (Open(container_id="again"), b"", Close),
    ],
    ids=["detach", "detached", "end", "ended", "close", "closed"],
)
@with_rig()
async def test_what_was_taken_is_accepted_before_the_end(
    rig: ServerRig, last: Any, payload: bytes, answer: type
) -> None:
    """Both frames come in one read; the client, or its mistake, ends the link or more."""
    peer = await sender(rig)
    first = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t")
    both = Frame(0, first, message()), Frame(0, last, payload)
    peer.raw(b"".join(map(encode_frame, both)))
    await rig.flush()
    bodies = [each.body for each in peer.take() if isinstance(each, Frame)]
    assert [type(body) for body in bodies if not isinstance(body, Flow)] == [Disposition, answer]


@with_rig()
async def test_pre_settled_is_not_answered(rig: ServerRig) -> None:
    peer = await sender(rig, snd_settle_mode=UByte(1))
    peer.send(message(), settled=True)
    await rig.flush()
    assert peer.all(Disposition) == []
    assert ready(rig) == 1


@with_rig()
async def test_receiver_settles_second(rig: ServerRig) -> None:
    peer = await sender(rig, rcv_settle_mode=UByte(1))
    number = peer.send(message())
    await rig.flush()
    told = peer.one(Disposition)
    assert isinstance(told.state, Accepted)
    assert not told.settled
    peer.frame(Disposition(role=SENDER, first=UInt(number), settled=True))
    await rig.flush()
    assert peer.all(End) == []


@with_rig()
async def test_a_message_in_many_frames(rig: ServerRig) -> None:
    peer = await sender(rig)
    data = message(b"x" * 5000)
    pieces = [data[at : at + 700] for at in range(0, len(data), 700)]
    for at, piece in enumerate(pieces):
        first: dict[str, Any] = {"delivery_id": UInt(0), "delivery_tag": b"t"} if at == 0 else {}
        peer.frame(Transfer(handle=UInt(0), more=at + 1 < len(pieces), **first), piece)
    await rig.flush()
    assert isinstance(peer.one(Disposition).state, Accepted)
    assert ready(rig) == 1


@with_rig()
async def test_an_aborted_delivery_is_nothing(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.frame(
        Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t", more=True), b"\0\x53"
    )
    peer.frame(Transfer(handle=UInt(0), aborted=True))
    await rig.flush()
    assert peer.all(Disposition) == []
    peer._next_delivery = 1
    peer.send(message())
    await rig.flush()
    assert peer.one(Disposition).first == 1
    assert ready(rig) == 1


@with_rig(amqp_credits=10, amqp_low_credits=4)
async def test_credit_is_filled_up_as_it_is_used(rig: ServerRig) -> None:
    peer = await sender(rig)
    (given,) = peer.all(Flow)
    assert (given.link_credit, given.delivery_count) == (10, 0)
    for _ in range(5):
        peer.send(message())
    await rig.flush()
    assert peer.all(Flow) == []
    peer.send(message())
    await rig.flush()
    (given,) = peer.all(Flow)
    assert (given.link_credit, given.delivery_count) == (10, 6)


@with_rig(amqp_credits=2, amqp_low_credits=0)
async def test_more_than_the_credit_detaches_the_link(rig: ServerRig) -> None:
    full = AddressSettings(max_size_messages=1, address_full_policy=AddressFullPolicy.BLOCK)
    rig.engine.registry.change_settings({"a": full})
    peer = await sender(rig)
    for _ in range(3):
        peer.send(message())
    await rig.flush()
    told = peer.one(Detach)
    assert told.error.condition == "amqp:link:transfer-limit-exceeded"
    assert ready(rig) == 2


@with_rig({"a": FULL_2}, amqp_credits=4, amqp_low_credits=1)
async def test_credit_is_withheld_while_the_address_is_full(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.all(Flow)
    for _ in range(4):
        peer.send(message())
    await rig.flush()
    assert peer.all(Flow) == []
    assert ready(rig) == 4  # what was in flight is taken
    assert sum(isinstance(each.state, Accepted) for each in peer.all(Disposition)) >= 1
    await peer.receiver("/queue/a", credit=10)
    peer.settle(0, 3)
    await rig.flush()
    await rig.settle()
    assert any(flow.handle == 0 and flow.link_credit == 4 for flow in peer.all(Flow))


@with_rig({"a": FAILS})
async def test_a_full_address_that_fails_rejects(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.send(message())
    await rig.flush()
    peer.all(Disposition)
    peer.send(message())
    await rig.flush()
    told = peer.one(Disposition)
    assert isinstance(told.state, Rejected)
    assert told.state.error.condition == "amqp:resource-limit-exceeded"
    assert peer.all(Detach) == []


@pytest.mark.parametrize("name", ["AMQ_SCHEDULED_CRON", "x-opt-delivery-repeat"])
@with_rig()
async def test_a_message_that_asks_for_repeated_delivery_is_rejected(
    rig: ServerRig, name: str
) -> None:
    peer = await sender(rig)
    if name.startswith("x-"):
        annotations = encode_section(Section.MESSAGE_ANNOTATIONS, {Symbol(name): 2})
        peer.send(annotations + encode_section(Section.DATA, b"body"))
    else:
        peer.send(message(application={name: "* * * * *"}))
    await rig.flush()
    told = peer.one(Disposition)
    assert isinstance(told.state, Rejected)
    assert told.state.error.condition == "amqp:not-implemented"
    assert name in told.state.error.description
    assert peer.all(Detach) == []


@with_rig()
async def test_the_anonymous_relay(rig: ServerRig) -> None:
    peer = await sender(rig, None)
    peer.send(message(to="/queue/b"))
    peer.send(message())
    await rig.flush()
    states = [each.state for each in peer.all(Disposition)]
    assert sum(isinstance(each, Accepted) for each in states) == 1
    (refused,) = [each for each in states if isinstance(each, Rejected)]
    assert "says not where" in refused.error.description
    assert ready(rig, "b") == 1


@with_rig()
async def test_what_is_no_message_is_rejected(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.send(b"\0\x53\x75\xa0\x7fshort")
    await rig.flush()
    told = peer.one(Disposition)
    assert told.state.error.condition == "amqp:decode-error"


@with_rig()
async def test_pre_settled_garbage_detaches_the_link(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.send(b"\0\x53\x75\xa0\x7fshort", settled=True)
    await rig.flush()
    assert peer.one(Detach).error.condition == "amqp:decode-error"
    peer.frame(Detach(handle=UInt(0), closed=True))
    await peer.sender("/queue/a", handle=0)
    peer.send(message())
    await rig.flush()
    assert isinstance(peer.one(Disposition).state, Accepted)


@pytest.mark.parametrize("size", [2000, 70_000])
@with_rig(max_message_size=1500)
async def test_a_message_larger_than_allowed(rig: ServerRig, size: int) -> None:
    peer = await sender(rig)
    peer.send(message(b"x" * size))
    await rig.flush()
    told = peer.one(Disposition)
    assert told.state.error.condition == "amqp:link:message-size-exceeded"


@with_rig()
async def test_properties_beyond_what_a_record_holds(rig: ServerRig) -> None:
    peer = await sender(rig)
    peer.send(message(application={f"name-{n}": "v" * 50 for n in range(600)}))
    await rig.flush()
    told = peer.one(Disposition)
    assert told.state.error.condition == "amqp:link:message-size-exceeded"
    assert "65535" in told.state.error.description


@with_rig()
async def test_a_dynamic_target_goes_with_its_link(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    target = Target(dynamic=True, capabilities=(Symbol("temporary-queue"),))
    answer = await peer.sender(None, target=target)
    name = answer.target.address
    assert name in rig.engine.registry.queues
    await peer.detach(0)
    assert name not in rig.engine.registry.queues


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_dynamic_node_is_read_by_its_own_connection_alone(kind: str) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        peer, thief = AmqpPeer(rig), AmqpPeer(rig)
        for each in (peer, thief):
            await each.open()
            await each.begin()
        target = Target(dynamic=True, capabilities=(Symbol(f"temporary-{kind}"),))
        node = (await peer.sender(None, target=target)).target.address
        queues = list(rig.engine.registry.queues)
        asked = [
            Source(address=node),
            Source(address=node, distribution_mode=Symbol("copy")),
            Source(address=f"{node}::thief"),
            Source(address=f"/topic/{node}"),
            Source(address=node, capabilities=(Symbol("queue"),)),
            Source(address=node, capabilities=(Symbol("topic"),)),
        ]
        for handle, each in enumerate(asked):
            await thief.attach(RECEIVER, handle, source=each, target=Target())
            assert thief.one(Attach).source is None
            assert "for another connection alone" in thief.one(Detach).error.description
        assert list(rig.engine.registry.queues) == queues, "nothing is made there"
        own = Source(address=node, capabilities=(Symbol(kind),))
        assert (await peer.receiver(node, handle=9, source=own)).source.address == node

    scenario()


@with_rig()
async def test_a_closed_connection_takes_its_nodes_along(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    answer = await peer.sender(None, target=Target(dynamic=True))
    assert answer.target.address in rig.engine.registry.queues
    peer.peer.lose()
    await rig.settle()
    assert answer.target.address not in rig.engine.registry.queues


@with_rig()
async def test_capabilities_say_the_kind(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    topic = Target(address="news", capabilities=(Symbol("topic"),))
    await peer.sender("news", target=topic)
    queue = Target(address="work", capabilities=(Symbol("queue"),))
    await peer.sender("work", handle=2, target=queue)
    types = {name: each.routing_types for name, each in rig.engine.registry.addresses.items()}
    assert [sorted(types[name]) for name in ("news", "work")] == [["MULTICAST"], ["ANYCAST"]]


@with_rig({"#": CLOSED})
async def test_an_address_that_may_not_be_made_is_not_found(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    answer = await peer.sender("/queue/a")
    assert answer.target is None
    told = peer.one(Detach)
    assert told.closed
    assert told.error.condition == "amqp:not-found"


@with_rig()
async def test_a_link_attached_again_takes_the_place_of_the_first(rig: ServerRig) -> None:
    peer = await sender(rig)
    await peer.attach(SENDER, 5, name="link-0", target=Target(address="/queue/a"), source=Source())
    await rig.flush()
    assert peer.one(Detach).error.condition == "amqp:link:stolen"
    assert len(peer.all(Attach)) == 1
    peer.send(message(), handle=5)
    await rig.flush()
    assert isinstance(peer.one(Disposition).state, Accepted)


@with_rig()
async def test_sections_come_out_as_they_went_in(rig: ServerRig) -> None:
    peer = await sender(rig)
    data = message(
        "text", section=Section.AMQP_VALUE, application={"n": UInt(7)}, subject="s",
        header={"priority": UByte(7)},
    )  # fmt: skip
    peer.send(data)
    await rig.flush()
    await peer.receiver("/queue/a", credit=1)
    ((_, got),) = peer.messages()
    assert got[got.index(b"\0\x53\x73") :] == data[data.index(b"\0\x53\x73") :]


@with_rig(max_unsettled=5, amqp_credits=4, amqp_low_credits=3)
async def test_a_sender_that_never_settles_gets_no_more_credit(rig: ServerRig) -> None:
    peer = await sender(rig, rcv_settle_mode=UByte(1))
    for _ in range(20):
        if not peer.all(Flow) and peer._next_delivery:
            break
        for _ in range(4):
            peer.send(message())
        await rig.flush()
    assert ready(rig) <= 12
    peer.frame(Disposition(role=SENDER, first=UInt(0), last=UInt(99), settled=True))
    await rig.flush()
    assert peer.all(Flow)[-1].link_credit == 4

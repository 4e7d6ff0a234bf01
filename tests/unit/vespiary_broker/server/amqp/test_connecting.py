"""Layers, open, begin, close: what a connection of AMQP is told, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scramp import ScramClient

from vespiary_broker.engine.users import make_user
from vespiary_codec.wire.amqp import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Frame,
    FrameDecoder,
    Layer,
    NeedData,
    Open,
    ProtocolHeader,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import Symbol, UInt, UShort
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor, message, with_rig
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.virtual_time import run_virtual
from vespiary_testkit.waiting import WAIT_S


def with_users(test: Any) -> Any:
    """Run a test with a rig that has one user."""

    def run() -> None:
        async def scenario() -> None:
            users = {"ann": make_user("ann", "secret", iterations=4096)}
            rig = ServerRig(acceptor=amqp_acceptor(), users=users)
            await test(rig)
            await rig.close()

        product_loop.run(scenario())

    run.__name__ = test.__name__
    return run


def events(peer: AmqpPeer) -> list[Any]:
    """Return what has come, frames by their bodies."""
    peer.take()
    found, peer.got = peer.got, []
    return [one.body if isinstance(one, Frame) else one for one in found]


async def log_in(peer: AmqpPeer, mechanism: str, response: bytes | None) -> list[Any]:
    peer.raw(protocol_header(Layer.SASL))
    init = SaslInit(mechanism=Symbol(mechanism), initial_response=response)
    peer.raw(encode_frame(Frame(body=init)))
    async with asyncio.timeout(WAIT_S):
        await peer.rig.settle()
        while not any(isinstance(one, SaslOutcome) for one in events_so_far(peer)):
            await asyncio.sleep(0.005)
            await peer.rig.settle()
    return events(peer)


def events_so_far(peer: AmqpPeer) -> list[Any]:
    peer.take()
    return [one.body for one in peer.got if isinstance(one, Frame)]


@with_rig()
async def test_open_tells_what_qpid_jms_looks_for(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    answer = await peer.open()
    assert set(answer.offered_capabilities) == {
        "ANONYMOUS-RELAY", "SHARED-SUBS", "DELAYED_DELIVERY", "sole-connection-for-container",
    }  # fmt: skip
    assert answer.properties["queue-prefix"] == "/queue/"
    assert answer.properties["topic-prefix"] == "/topic/"
    assert (answer.max_frame_size, answer.channel_max) == (128 * 1024, 1023)
    assert answer.idle_time_out == 30_000
    assert peer.handler.protocol == "AMQP 1.0"
    assert peer.handler.client_id == "me"


@with_users
async def test_plain_lets_in(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    header, mechanisms, outcome = await log_in(peer, "PLAIN", b"\0ann\0secret")
    assert header == ProtocolHeader(Layer.SASL)
    offered = tuple(map(Symbol, ("SCRAM-SHA-256", "PLAIN")))
    assert mechanisms == SaslMechanisms(sasl_server_mechanisms=offered)
    assert outcome.code == 0
    await peer.open()
    assert peer.handler.user == "ann"


@pytest.mark.parametrize("password", ["secret", "wrong"])
def test_scram(password: str) -> None:
    async def scenario(rig: ServerRig) -> None:
        peer = AmqpPeer(rig)
        mine = ScramClient(["SCRAM-SHA-256"], "ann", password)
        peer.raw(protocol_header(Layer.SASL))
        first = mine.get_client_first().encode()
        init = SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=first)
        peer.raw(encode_frame(Frame(body=init)))
        await peer.rig.settle()
        challenge = events(peer)[-1]
        assert isinstance(challenge, SaslChallenge)
        mine.set_server_first(challenge.challenge.decode())
        final = SaslResponse(response=mine.get_client_final().encode())
        peer.raw(encode_frame(Frame(body=final)))
        await peer.rig.settle()
        (outcome,) = events(peer)
        assert isinstance(outcome, SaslOutcome)
        assert (outcome.code == 0) is (password == "secret")
        if password == "secret":
            assert outcome.additional_data is not None
            mine.set_server_final(outcome.additional_data.decode())
            await peer.open()
            assert peer.handler.user == "ann"

    with_users(scenario)()


@pytest.mark.parametrize("answers_after_s", [18.0, 22.0])
def test_scram_has_the_time_for_logins_again_once_it_is_answered(answers_after_s: float) -> None:
    async def scenario() -> None:
        users = {"ann": make_user("ann", "secret", iterations=4096)}
        rig = ServerRig(acceptor=amqp_acceptor(), users=users)
        peer = AmqpPeer(rig)
        mine = ScramClient(["SCRAM-SHA-256"], "ann", "secret")
        peer.raw(protocol_header(Layer.SASL))
        await asyncio.sleep(9)
        first = mine.get_client_first().encode()
        init = SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=first)
        peer.raw(encode_frame(Frame(body=init)))
        await rig.settle()
        mine.set_server_first(events(peer)[-1].challenge.decode())
        await asyncio.sleep(answers_after_s - 9)
        is_late = answers_after_s > 20
        assert peer.peer.connection.is_open is not is_late
        if not is_late:
            final = SaslResponse(response=mine.get_client_final().encode())
            peer.raw(encode_frame(Frame(body=final)))
            await rig.settle()
            assert events(peer)[-1].code == 0
        await rig.close()

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0ann\0wrong"),
        ("PLAIN", b"bob\0ann\0secret"),
        ("PLAIN", b"no separators"),
        ("PLAIN", b"\0\xff\xfe\0x"),
        ("ANONYMOUS", b""),
        ("EXTERNAL", b""),
    ],
)
def test_others_stay_out(mechanism: str, response: bytes) -> None:
    async def scenario(rig: ServerRig) -> None:
        peer = AmqpPeer(rig)
        *_, outcome = await log_in(peer, mechanism, response)
        assert isinstance(outcome, SaslOutcome)
        assert outcome.code == 1
        assert not peer.peer.connection.is_open

    with_users(scenario)()


@with_users
async def test_without_sasl_a_client_is_sent_the_header_of_it(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    peer.raw(protocol_header(Layer.AMQP))
    await rig.settle()
    assert peer.transport.data == protocol_header(Layer.SASL)
    assert not peer.peer.connection.is_open


@with_rig()
async def test_anonymous_where_nobody_has_to_log_in(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    *_, outcome = await log_in(peer, "ANONYMOUS", None)
    assert outcome.code == 0
    await peer.open()
    assert peer.handler.user == "anonymous"


@with_rig()
async def test_another_version_is_told_ours(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    peer.raw(b"AMQP\x01\x01\x00\x09")
    await rig.settle()
    assert peer.transport.data == protocol_header(Layer.AMQP)
    assert not peer.peer.connection.is_open


@with_rig()
async def test_a_container_id_in_use(rig: ServerRig) -> None:
    first, second = AmqpPeer(rig), AmqpPeer(rig)
    await first.open(container="one")
    sole = (Symbol("sole-connection-for-container"),)
    answer = await second.open(container="one", desired_capabilities=sole)
    assert answer.properties["amqp:connection-establishment-failed"] is True
    told = second.one(Close)
    assert told.error.condition == "amqp:invalid-field"
    assert told.error.info == {Symbol("invalid-field"): Symbol("container-id")}
    third = AmqpPeer(rig)
    await third.open(container="one")  # it does not ask for that
    assert third.all(Close) == []


@with_rig()
async def test_an_orderly_close(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    peer.frame(Close())
    await rig.flush()
    assert peer.one(Close).error is None
    assert not peer.peer.connection.is_open


@with_rig(channel_max=3)
async def test_channels_are_bounded(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    for channel in range(4):
        answer = await peer.begin(channel)
        assert answer.remote_channel == channel
    peer.frame(
        Begin(next_outgoing_id=UInt(0), incoming_window=UInt(1), outgoing_window=UInt(1)),
        channel=4,
    )
    await rig.flush()
    assert peer.one(Close).error.condition == "amqp:not-allowed"


@with_rig(handle_max=2)
async def test_handles_are_bounded(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    for handle in range(3):
        await peer.sender("/queue/a", handle=handle)
    await peer.attach(False, 3, target=Target(address="/queue/a"), source=Source())
    await rig.flush()
    assert peer.one(Close).error.condition == "amqp:not-allowed"


MISPLACED = [
    ("a transfer without a link", Transfer(handle=UInt(7), delivery_id=UInt(0), delivery_tag=b""),
     End, "amqp:session:unattached-handle"),
    ("a flow without a link",
     Flow(incoming_window=UInt(1), next_outgoing_id=UInt(0), outgoing_window=UInt(0),
          handle=UInt(7)),
     End, "amqp:session:unattached-handle"),
    ("a detach without a link", Detach(handle=UInt(7)), End, "amqp:session:unattached-handle"),
    ("open twice", Open(container_id="x"), Close, "amqp:illegal-state"),
    ("begin twice",
     Begin(next_outgoing_id=UInt(0), incoming_window=UInt(1), outgoing_window=UInt(1)),
     Close, "amqp:not-allowed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "condition"), [one[1:] for one in MISPLACED], ids=[one[0] for one in MISPLACED]
)
@with_rig()
async def test_what_does_not_belong_there(
    rig: ServerRig, body: Any, kind: Any, condition: str
) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    peer.frame(body)
    await rig.flush()
    told = peer.one(kind)
    assert told.error.condition == condition
    assert " " in told.error.description


@with_rig()
async def test_a_session_that_was_ended_leaves_the_others(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin(0)
    await peer.begin(1)
    peer.frame(Detach(handle=UInt(7)), channel=0)
    await rig.flush()
    assert len(peer.all(End)) == 1
    peer.frame(Detach(handle=UInt(7)), channel=0)  # on its way still
    peer.frame(End(), channel=0)
    await peer.begin(0)
    await peer.attach(False, 0, channel=1, target=Target(address="/queue/a"), source=Source())
    assert len(peer.all(Attach)) == 1
    assert peer.peer.connection.is_open


@with_rig()
async def test_a_frame_on_a_channel_without_a_session(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open()
    peer.frame(End(), channel=3)
    await rig.flush()
    assert "channel 3" in peer.one(Close).error.description


@with_rig(runner=run_virtual)
async def test_signs_of_life_are_sent_in_time(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open(idle_time_out=UInt(100))
    before = len(peer.transport.data)
    await asyncio.sleep(0.2)
    sent = peer.transport.data[before:]
    assert sent.count(encode_frame(Frame())) in range(2, 6)


@with_rig(runner=run_virtual, amqp_idle_timeout=60)
async def test_a_silent_client_is_dropped(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    answer = await peer.open()
    assert answer.idle_time_out == 30
    for _ in range(5):
        await asyncio.sleep(0.03)
        peer.raw(encode_frame(Frame()))
    assert peer.peer.connection.is_open
    await asyncio.sleep(0.15)
    await rig.flush()
    assert "nothing came for" in peer.one(Close).error.description


@with_rig()
async def test_all_bytes_one_by_one(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    begin = Begin(next_outgoing_id=UInt(0), incoming_window=UInt(9), outgoing_window=UInt(9))
    attach = Attach(
        name="l", handle=UInt(0), role=False, source=Source(), target=Target(address="/queue/a"),
        initial_delivery_count=UInt(0),
    )  # fmt: skip
    transfer = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t")
    data = protocol_header(Layer.AMQP) + b"".join(
        [
            encode_frame(Frame(body=Open(container_id="me"))),
            encode_frame(Frame(body=begin)),
            encode_frame(Frame(body=attach)),
            encode_frame(Frame(body=transfer, payload=message())),
            encode_frame(Frame(body=Close())),
        ]
    )
    for at in range(len(data)):
        peer.raw(data[at : at + 1])
        await rig.settle(3)
    await rig.flush()
    kinds = [type(one.body).__name__ for one in frames_of(peer.transport.data)]
    assert kinds == ["Open", "Begin", "Attach", "Flow", "Disposition", "Close"]


def frames_of(data: bytes) -> list[Frame]:
    decoder = FrameDecoder()
    decoder.feed(data)
    found = []
    while not isinstance(event := decoder.next_event(), NeedData):
        if isinstance(event, Frame):
            found.append(event)
    return found


@with_rig()
async def test_small_frames_are_refused(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open(max_frame_size=UInt(511))
    assert peer.one(Close).error.condition == "amqp:invalid-field"


@with_rig()
async def test_fewer_channels_than_ours(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    await peer.open(channel_max=UShort(1))
    assert peer.handler.channel_max == 1

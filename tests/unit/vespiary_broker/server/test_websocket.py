"""STOMP through WebSockets over fake transports: frames however cut, bounds, ends."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest
from wsproto.events import BytesMessage, CloseConnection, Ping

from vespiary_broker.engine.users import make_user
from vespiary_broker.server.connection import CHOKE_BYTES
from vespiary_broker.server.websocket.handler import EVENTS_PER_TURN
from vespiary_codec.wire.mqtt import NEED_DATA as MQTT_NEED_DATA
from vespiary_codec.wire.mqtt import (
    Connack,
    Connect,
    MqttDecoder,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.settings import Acceptor, WebSocketLimits
from vespiary_testkit.large_rig import BODY, LargeRig, send
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.virtual_time import run_virtual
from vespiary_testkit.waiting import WAIT_S
from vespiary_testkit.websocket_peer import frame, handshake
from vespiary_testkit.websocket_rig import CONNECT, Client, on_loop

SEND = b"SEND\ndestination:/queue/q\npersistent:true\nreceipt:%d\n\n%s\0"
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:auto\nreceipt:s\n\n\0"


# --- frames however cut -----------------------------------------------------------------------


@pytest.mark.ci
@on_loop()
async def test_cut_at_every_byte(rig: ServerRig) -> None:
    stream = b"".join(
        (
            handshake("v12.stomp"),
            frame(2, CONNECT[:9], is_last=False),
            frame(9, b"in between"),
            frame(0, CONNECT[9:]),
            frame(2, SEND % (1, b"x" * 200) + SEND % (2, b"y")),
            frame(2, SUBSCRIBE),
        )
    )
    for cut in range(1, len(stream)):
        client = Client(rig, "v12.stomp")
        client.arrive(stream[:cut])
        await rig.settle(3)
        client.arrive(stream[cut:])
        await rig.flush()
        data = client.transport.data
        assert data.count(b"101 Switching") == 1, cut
        assert data.count(b"RECEIPT") == 3, cut
        assert data.count(b"MESSAGE\n") >= 2, cut
        assert data.count(b"\x8a\x0ain between") == 1, cut
        client.connection.connection_lost(None)
        await rig.flush()
        for queue in list(rig.engine.registry.queues.values()):
            assert queue.name == "q"


@on_loop()
async def test_one_byte_at_a_time(rig: ServerRig) -> None:
    client = Client(rig, "v12.stomp")
    for byte in client.web.opening + frame(1, CONNECT) + frame(1, SEND % (7, b"x")):
        client.arrive(bytes([byte]))
        await rig.settle(2)
    await rig.flush()
    client.look()
    commands = [message.partition(b"\n")[0] for message in client.web.received().split(b"\0")]
    assert commands == [b"CONNECTED", b"RECEIPT", b""]


@on_loop()
async def test_confirmed_only_when_durable(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(b"".join(SEND % (n, b"x") for n in range(10)))
    assert await client.frames(is_flushed=False) == []
    assert [f.get("receipt-id") for f in await client.frames()] == [str(n) for n in range(10)]


@on_loop()
async def test_text_is_answered_with_text_unless_it_is_none(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open(text=True)
    client.message(SUBSCRIBE.decode())
    await rig.flush()
    client.look()
    assert isinstance(client.web.messages[-1][0], str)
    client.message(SEND % (1, b"\xff\xfe"))  # in binary, as the client has to
    await rig.flush()
    client.look()
    kinds = {
        type(m) for m, _ in client.web.messages if b"\xff" in (m if isinstance(m, bytes) else b"")
    }
    assert kinds == {bytes}
    messages = [f for f in await client.frames() if f.command == "MESSAGE"]
    assert [m.body for m in messages] == [b"\xff\xfe"]


@on_loop()
async def test_binary_is_answered_with_binary(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(SUBSCRIBE)
    await rig.flush()
    client.look()
    assert [type(m) for m, _ in client.web.messages] == [bytes]


@on_loop()
async def test_what_comes_while_a_frame_is_handled_waits_in_order(rig: ServerRig) -> None:
    """A new queue has to be made first; what comes meanwhile, in any message, follows it."""
    client = await Client(rig, "v12.stomp").open()
    sends = [
        b"SEND\ndestination:/queue/new.%d\npersistent:true\nreceipt:%d\n\nx\0" % (n, n)
        for n in range(50)
    ]
    data = b"".join(frame(2, part) for send in sends for part in (send[:20], send[20:]))
    client.arrive(data)
    assert not client.connection.is_taking
    receipts = []
    async with asyncio.timeout(WAIT_S):
        while len(receipts) < 50:
            receipts += [f.get("receipt-id") for f in await client.frames()]
    assert receipts == [str(n) for n in range(50)]


@on_loop(users={"alice": make_user("alice", "secret", iterations=4096)})
async def test_a_message_longer_than_what_is_taken_before_the_login(rig: ServerRig) -> None:
    """The password is looked at in a thread; what the same message has behind it waits."""
    client = Client(rig, "v12.stomp")
    client.arrive(client.web.opening)
    client.look()
    login = b"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:secret\n\n\0"
    client.message(login + b"".join(SEND % (n, b"x" * 1000) for n in range(100)))
    received = b""
    async with asyncio.timeout(WAIT_S):
        while received.count(b"receipt-id") < 100:
            await asyncio.sleep(0.005)
            await rig.flush()
            client.look()
            received += client.web.received()
    assert received.startswith(b"CONNECTED")
    places = [received.index(b"receipt-id:%d\n" % n) for n in range(100)]
    assert places == sorted(places)


@on_loop()
async def test_what_the_inner_handler_leaves_of_a_message_waits(rig: ServerRig) -> None:
    """A frame with a buffer of its own ends amid a message, and its queue has to be made first."""
    client = await Client(rig, "v12.stomp").open()
    head = b"SEND\ndestination:/queue/new\nreceipt:0\ncontent-length:200000\n\n"
    data = head + b"x" * 200_000 + b"\0" + b"".join(SEND % (n, b"y") for n in (1, 2, 3))
    client.message(data[:70_000])
    client.message(data[70_000:])
    assert not client.connection.is_taking
    receipts = []
    for _ in range(20):
        receipts += [f.get("receipt-id") for f in await client.frames()]
    assert receipts == ["0", "1", "2", "3"]


@on_loop()
async def test_many_short_frames_let_others_have_their_turn(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    pings = 4 * EVENTS_PER_TURN
    client.arrive(frame(9, b"p") * pings)
    asyncio.get_running_loop().call_soon(turn)
    client.look()
    assert len(client.web.pongs) == EVENTS_PER_TURN
    assert not client.transport.is_reading_now
    await rig.settle()
    assert turns == 1
    client.look()
    assert len(client.web.pongs) == pings
    assert client.transport.is_reading_now


@on_loop()
async def test_a_flood_of_pings_from_a_client_that_reads_nothing_is_not_read(
    rig: ServerRig,
) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.transport.is_stuck = True
    sent = 0
    while client.transport.is_reading_now and sent < 100_000:
        client.arrive(frame(9, b"p" * 125) * 100)
        await rig.settle(3)
        sent += 100
    assert sent < 100_000
    assert client.transport.unsent < CHOKE_BYTES + 200_000


@on_loop(acceptor=Acceptor(name="all", port=0, web_socket=WebSocketLimits(max_message_size=5000)))
async def test_a_message_that_is_too_large_is_closed_with_1009(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(b"\n" * 5000)
    await rig.settle()
    assert client.connection.is_open
    client.arrive(frame(2, b"\n" * 2500, is_last=False) + frame(0, b"\n" * 2501, is_last=False))
    client.look()
    assert client.web.close is not None
    assert client.web.close.code == 1009
    assert "larger than 5000 bytes" in str(client.web.close.reason)


# --- what is against the rules ----------------------------------------------------------------

WRONG = {
    "unmasked": (frame(2, b"x", is_masked=False), 1002),
    "reserved bit 1": (frame(2, b"x", reserved=4), 1002),
    "reserved bit 2": (frame(2, b"x", reserved=2), 1002),
    "reserved bit 3": (frame(2, b"x", reserved=1), 1002),
    "unknown data opcode": (frame(3, b"x"), 1002),
    "unknown control opcode": (frame(11, b"x"), 1002),
    "ping of 126 bytes": (frame(9, b"x" * 126), 1002),
    "close of 126 bytes": (frame(8, b"\x03\xe8" + b"x" * 124), 1002),
    "fragmented ping": (frame(9, b"x", is_last=False), 1002),
    "negative length": (frame(2, b"x", length=b"\x7f" + b"\xff" * 8), 1002),
    "length of 2**63": (frame(2, b"x", length=b"\x7f\x80" + b"\0" * 7), 1002),
    "long form of a short length": (frame(2, b"x", length=b"\x7e\x00\x01"), 1002),
    "longest form of a short length": (frame(2, b"x", length=b"\x7f" + b"\0" * 7 + b"\1"), 1002),
    "continuation of nothing": (frame(0, b"x"), 1002),
    "a message inside another": (frame(2, b"\n", is_last=False) + frame(2, b"\n"), 1002),
    "close of 1 byte": (frame(8, b"\x03"), 1002),
    "close with 1005": (frame(8, b"\x03\xed"), 1002),
    "close with 999": (frame(8, b"\x03\xe7"), 1002),
    "close with bad UTF-8": (frame(8, b"\x03\xe8\xff"), 1007),
    "text that is no UTF-8": (frame(1, b"SEND\xff\xfe"), 1007),
    "text cut within a character": (frame(1, "ä".encode()[:1]), 1007),
    "text no UTF-8 over fragments": (frame(1, b"\xc3", is_last=False) + frame(0, b"\xc3"), 1007),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_frame_is_closed_with_its_code(case: str) -> None:
    data, code = WRONG[case]

    @on_loop()
    async def scenario(rig: ServerRig) -> None:
        client = await Client(rig, "v12.stomp").open()
        other = await Client(rig, "v12.stomp").open()
        client.arrive(data)
        await rig.settle()
        client.look()
        assert client.web.close is not None, case
        assert client.web.close.code == code
        assert client.web.close.reason
        assert not client.connection.is_open
        other.message(SEND % (1, b"alive"))
        assert [f.command for f in await other.frames()] == ["RECEIPT"]

    scenario()


@on_loop()
async def test_a_declared_length_takes_no_memory(rig: ServerRig) -> None:
    """2**62 bytes are announced: taken are those that come, as the inner protocol's limits say."""
    client = Client(rig, "v12.stomp")
    client.arrive(client.web.opening)
    head = frame(2, b"", length=b"\x7f\x40" + b"\0" * 7)
    client.arrive(head + b"\0" * 10)
    for _ in range(50):
        client.arrive(os.urandom(4096))
    assert not client.connection.is_open


@on_loop()
async def test_a_wrong_stomp_frame_gets_its_error_and_is_closed_with_1008(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(b"SHOUT\n\n\0")
    (error,) = await client.frames()
    assert error.command == "ERROR"
    assert client.web.close is not None
    assert client.web.close.code == 1008
    assert client.web.close.reason == "unknown command 'SHOUT'."


# --- the end ----------------------------------------------------------------------------------


@on_loop()
async def test_disconnect_is_confirmed_and_closed_with_1000(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(SEND % (1, b"x") + b"DISCONNECT\nreceipt:bye\n\n\0")
    assert await client.frames(is_flushed=False) == []
    assert client.web.close is None  # it leaves behind what it confirms
    receipts = [f.get("receipt-id") for f in await client.frames()]
    assert receipts == ["1", "bye"]
    assert client.web.close is not None
    assert client.web.close.code == 1000
    assert not client.transport.is_closed  # the client's answer is waited for
    client.arrive(client.web.send(client.web.close.response()))
    assert client.transport.is_closed


@on_loop()
async def test_what_is_thrown_away_before_the_close_costs_no_answer(rig: ServerRig) -> None:
    """The client is amid a message when the last receipt waits for its flush, and then closes."""
    client = await Client(rig, "v12.stomp").open()
    client.message(SEND % (1, b"x") + b"DISCONNECT\nreceipt:bye\n\n\0")
    await rig.settle()
    late = client.web.send(BytesMessage(b"\n" * 10_000)) + client.web.send(CloseConnection(1000))
    client.arrive(late[:5000])
    await rig.flush()
    assert b"receipt-id:bye" in client.transport.data
    assert not client.transport.is_closed
    client.arrive(late[5000:])
    assert client.transport.is_closed


@on_loop()
async def test_the_clients_close_is_answered_with_its_code(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(SUBSCRIBE)
    await client.frames()
    client.arrive(client.web.send(CloseConnection(4321, "enough")))
    client.look()
    assert client.web.close is not None
    assert client.web.close.code == 4321
    assert client.transport.is_closed
    client.connection.connection_lost(None)
    assert not rig.listener.connections


@on_loop()
async def test_a_close_without_a_code_is_answered(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.arrive(frame(8))
    client.look()
    assert client.web.close is not None
    assert client.transport.is_closed


@on_loop(run_virtual)
async def test_a_client_that_never_answers_the_close_is_cut_off(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.message(b"DISCONNECT\n\n\0")
    await rig.settle()
    client.look()
    assert client.web.close is not None
    client.arrive(frame(9, b"x") * 2000)
    await asyncio.sleep(5)
    assert client.transport.is_aborted


@on_loop()
async def test_a_stopping_broker_goes_away_with_1001(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.connection.refuse("the broker is stopping")
    (error,) = await client.frames()
    assert error.get("message") == "the broker is stopping"
    assert client.web.close is not None
    assert (client.web.close.code, client.web.close.reason) == (1001, "the broker is stopping")


@on_loop()
async def test_a_failure_of_ours_is_1011(rig: ServerRig) -> None:
    client = await Client(rig, "v12.stomp").open()
    client.connection.fail_frame()
    await client.frames()
    assert client.web.close is not None
    assert client.web.close.code == 1011


@on_loop(users={"alice": make_user("alice", "secret", iterations=4096)})
async def test_logins_count_as_they_do_without(rig: ServerRig) -> None:
    client = Client(rig, "v12.stomp")
    client.arrive(client.web.opening)
    client.look()
    client.message(b"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:wrong\n\n\0")
    async with asyncio.timeout(WAIT_S):
        while client.web.close is None:
            await asyncio.sleep(0.005)
            client.look()
    assert client.web.close is not None
    assert client.web.close.reason == "user name or password are wrong."
    assert rig.engine.logins.refused == 1


# --- large messages ---------------------------------------------------------------------------


@on_loop(rig=LargeRig)
async def test_a_large_body_comes_in_many_messages_and_leaves_in_one(rig: LargeRig) -> None:
    rig.disk.capacity_bytes = 1 << 40
    client = await Client(rig, "v12.stomp").open(text=True)
    data = send("large", "r")
    for start in range(0, len(data), 777):
        client.message(data[start : start + 777])
    receipts: list[Frame] = []
    for _ in range(50):
        receipts += await client.frames()
    assert [f.get("receipt-id") for f in receipts] == ["r"]
    client.message("SUBSCRIBE\nid:1\ndestination:/queue/large\nack:auto\n\n\0")
    for _ in range(50):
        await asyncio.sleep(0.002)
        await rig.flush()
        client.look()
    ((message, fragments),) = client.web.messages
    assert fragments > 1
    assert isinstance(message, bytes)  # it is not known to be UTF-8 when its first part leaves
    (frame_out,) = await client.frames()
    assert frame_out.body == BODY


@on_loop(rig=LargeRig)
async def test_pings_are_answered_between_the_fragments(rig: LargeRig) -> None:
    rig.disk.capacity_bytes = 1 << 40
    client = await Client(rig, "v12.stomp").open()
    client.message(send("large", "r"))
    for _ in range(20):
        await client.frames()
    client.transport.is_stuck = True
    client.message(b"SUBSCRIBE\nid:1\ndestination:/queue/large\nack:auto\nreceipt:s\n\n\0")
    for _ in range(20):
        await rig.flush()
    client.arrive(client.web.send(Ping(b"now")))
    client.transport.drain()
    for _ in range(50):
        await asyncio.sleep(0.002)
        await rig.flush()
    frames = await client.frames()
    assert client.web.pongs == [b"now"]
    assert {f.command for f in frames} == {"MESSAGE", "RECEIPT"}
    assert [f.body for f in frames if f.command == "MESSAGE"] == [BODY]


# --- MQTT -----------------------------------------------------------------------------------------


@on_loop(rig=MqttRig)
async def test_each_packet_of_mqtt_is_a_message_of_its_own(rig: MqttRig) -> None:
    """Some clients (Paho C) read one packet per message, and hang on more."""
    client = Client(rig, "mqtt")
    client.arrive(client.web.opening)
    client.look()
    login = encode(Connect(Version.V5, "c"), Version.V5)
    subscribe = Subscribe(1, (Subscription("a", 1), Subscription("b", 2)))
    client.message(login + encode(subscribe, Version.V5))
    await rig.flush()
    for number, qos in enumerate((0, 1, 2, 1, 1), 1):
        sent = Publish(
            "b" if qos == 2 else "a", b"x" * 100 * number, qos, packet_id=number * (qos > 0)
        )
        client.message(encode(sent, Version.V5))
    for _ in range(3):
        await rig.flush()
        client.look()
    kinds = []
    for data, fragments in client.web.messages:
        assert isinstance(data, bytes)
        assert fragments == 1
        decoder = MqttDecoder(role="client", version=Version.V5)
        decoder.feed(data)
        kinds.append(type(decoder.next_packet()))
        assert decoder.next_packet() is MQTT_NEED_DATA
        assert not decoder.is_mid_packet
    counts = Counter(kinds)
    assert counts == {Connack: 1, Suback: 1, Puback: 3, Pubrec: 1, Publish: 5}

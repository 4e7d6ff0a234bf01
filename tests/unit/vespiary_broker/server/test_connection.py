"""Connections and their sessions over fake transports: order, bounds, ends, clocks."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

from vespiary_broker.engine.users import make_user
from vespiary_broker.server.connection import CHOKE_BYTES, OUTPUT_BYTES_MAX
from vespiary_codec.journal.block import HEADER_BYTES, decode_block_header
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import Acceptor, StompLimits
from vespiary_testkit import product_loop
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig
from vespiary_testkit.virtual_time import run_virtual

SEND = b"SEND\ndestination:/queue/q\npersistent:true\nreceipt:%d\n\n%s\0"
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0"


def on_loop(
    runner: Callable[[Any], None] = product_loop.run, **options: Any
) -> Callable[[Callable[[ServerRig], Awaitable[None]]], Any]:
    """Run a test on a loop of its own with a rig."""

    def decorate(test: Callable[[ServerRig], Awaitable[None]]) -> Any:
        @wraps(test)
        def run() -> None:
            async def scenario() -> None:
                made = {key: value() for key, value in options.items()}
                rig = ServerRig(**made)
                await test(rig)
                await rig.close()

            runner(scenario())

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for a fixture `rig`
        return run

    return decorate


@on_loop()
async def test_confirmed_only_when_durable(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(b"".join(SEND % (n, b"x") for n in range(10)))
    await rig.settle()
    assert peer.frames() == []
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == [str(n) for n in range(10)]


def arrivals(rig: ServerRig) -> list[int]:
    """Return when the messages of the next write arrived, as the journal is to keep it."""
    request = rig.journal.core.seal_write()
    assert request is not None
    block = ctypes.string_at(request.address, request.length)
    header = decode_block_header(block, offset=request.offset)
    payload = block[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    rig.journal.core.write_done(request.sequence)
    records = [decode_record(raw) for raw in walk_records(payload, header.records)]
    return [record.arrival_ms for record in records if isinstance(record, AddRecord)]


@on_loop()
async def test_a_message_after_a_long_silence_has_the_time_of_its_own_arrival(
    rig: ServerRig,
) -> None:
    peer = rig.peer()
    await peer.login()
    for data in (SEND % (1, b"the slow way"), SEND % (2, b"by the core's scanner")):
        rig.journal.core.set_time(1_000)  # the last turn was long ago
        before_ms = time.time_ns() // 1_000_000
        peer.send(data)
        await rig.settle()
        (arrived_ms,) = arrivals(rig)
        assert before_ms <= arrived_ms <= time.time_ns() // 1_000_000


@on_loop()
async def test_first_send_goes_the_slow_way_and_teaches_the_core(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(b"".join(SEND % (n, b"x") for n in range(100)))
    await rig.flush()
    assert len(peer.frames()) == 100
    assert rig.cycle.frames == 2  # CONNECT and the first SEND


@pytest.mark.parametrize("destination", [b" /queue/q", b"/queue/q ", b"/queue/ q"])
def test_a_space_before_or_behind_a_destination_makes_no_address(destination: bytes) -> None:
    """Other STOMP versions than 1.0 keep such a space, and nobody would consume there."""

    @on_loop()
    async def scenario(rig: ServerRig) -> None:
        peer = rig.peer()
        await peer.login()
        peer.send(b"SEND\ndestination:%b\npersistent:true\nreceipt:1\n\nx\0" % destination)
        await rig.flush()
        (answer,) = peer.frames()
        assert answer.command == "ERROR"
        assert "begins or ends with a space" in str(answer.get("message"))
        assert not rig.engine.registry.addresses

    scenario()


@on_loop()
async def test_frames_wait_for_a_binding_in_order(rig: ServerRig) -> None:
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    other.send(b"SEND\ndestination:/topic/t\n\n\0")
    await rig.settle()
    rig.bindings.gate = asyncio.Event()
    peer.send(SEND % (1, b"first") + SUBSCRIBE + SEND % (2, b"second"))
    await rig.flush()
    assert peer.frames() == []
    assert not peer.transport.is_reading()
    other.send(b"SEND\ndestination:/topic/t\nreceipt:o\n\n\0")
    await rig.flush()
    assert [frame.get("receipt-id") for frame in other.frames()] == ["o"]
    rig.bindings.gate.set()
    await rig.flush()
    frames = peer.frames()
    assert [f.get("receipt-id") for f in frames if f.command == "RECEIPT"] == ["1", "2"]
    assert [f.body for f in frames if f.command == "MESSAGE"] == [b"first", b"second"]
    assert peer.transport.is_reading()


@on_loop()
async def test_error_comes_behind_the_receipts_before_it(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(SEND % (1, b"x") + SEND % (2, b"x") + b"SHOUT\n\n\0" + SEND % (3, b"x"))
    await rig.settle()
    assert peer.frames() == []
    await rig.flush()
    frames = peer.frames()
    assert [f.command for f in frames] == ["RECEIPT", "RECEIPT", "ERROR"]
    assert peer.transport.is_eof
    assert not peer.transport.is_closed  # it lingers, so that the client can read it
    peer.send(b"whatever else comes is thrown away" * 100)
    assert rig.cycle.errors == {"unknown-command": 1}


@on_loop()
async def test_lost_connection_gives_back(rig: ServerRig) -> None:
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    peer.send(SUBSCRIBE)
    await rig.settle()
    other.send(SEND % (1, b"a") + SEND % (2, b"b"))
    await rig.flush()
    assert len(peer.frames()) == 2
    peer.lose()
    other.frames()
    other.send(SUBSCRIBE)
    await rig.flush()
    assert [(f.body, f.get("redelivered")) for f in other.frames()] == [
        (b"a", "true"),
        (b"b", "true"),
    ]


@on_loop()
async def test_connection_lost_while_a_frame_takes_time(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    handle = peer.connection.handle
    rig.bindings.gate = asyncio.Event()
    peer.send(SUBSCRIBE)
    await rig.settle()
    peer.lose()
    assert handle in rig.cycle.connections  # nobody else may get its handle yet
    rig.bindings.gate.set()
    await rig.settle()
    assert handle not in rig.cycle.connections
    assert rig.registry_queues() == {}


@on_loop()
async def test_client_that_does_not_read_is_not_read(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.transport.is_stuck = True
    receipt = b"r" * 4000
    frame = b"SEND\ndestination:/queue/q\nreceipt:" + receipt + b"\n\n\0"
    sent = 0
    while peer.transport.is_reading() and sent < 10_000:
        peer.send(frame)
        sent += 1
        await rig.settle(4)
    assert CHOKE_BYTES < peer.transport.unsent < CHOKE_BYTES + 10_000
    peer.transport.drain()
    assert peer.transport.is_reading()
    await rig.flush()
    assert len(peer.frames()) == sent


@on_loop()
async def test_messages_stop_at_the_bound_and_go_on(rig: ServerRig) -> None:
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    peer.send(SUBSCRIBE)
    await rig.settle()
    peer.transport.is_stuck = True
    for number in range(100):
        other.send(SEND % (number, b"x" * 10_000))
    await rig.flush()
    assert peer.transport.unsent <= OUTPUT_BYTES_MAX + 20_000
    assert peer.transport.is_reading()  # it may still acknowledge
    while len(peer.transport.data) < 1_000_000:
        peer.transport.drain()
        peer.transport.is_stuck = True
        await rig.settle()
    assert len({f.get("message-id") for f in peer.frames()}) == 100


def _small_journal() -> MemoryJournal:
    return MemoryJournal(files=1, file_bytes=64 * 1024)


@on_loop(journal=_small_journal)
async def test_full_journal_stops_reading_and_loses_nothing(rig: ServerRig) -> None:
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    peer.send(b"".join(SEND % (n, b"x" * 1000) for n in range(200)))
    await rig.flush()
    assert not peer.transport.is_reading()
    assert rig.journal.space_requests > 0
    confirmed = len(peer.frames())
    assert 0 < confirmed < 200
    other.send(b"SEND\ndestination:/topic/t\nreceipt:o\n\n\0")
    await rig.flush()
    assert len(other.frames()) == 1
    for _ in range(6):
        rig.journal.add_file()
        await rig.flush()
    assert confirmed + len(peer.frames()) == 200
    assert peer.transport.is_reading()


@on_loop(journal=_small_journal)
async def test_slow_way_waits_for_room_too(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    transaction = b"BEGIN\ntransaction:t\n\n\0"
    for number in range(8):
        transaction += b"SEND\ndestination:/queue/q%d\ntransaction:t\npersistent:true\n\n%s\0" % (
            number,
            b"x" * 6000,
        )
    peer.send(transaction + b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
    await rig.flush()
    assert peer.frames() == []
    for _ in range(3):
        rig.journal.add_file()
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == ["c"]


@on_loop(journal=_small_journal)
async def test_waiting_for_room_ends_with_the_connection(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(b"".join(SEND % (n, b"\\\\" * 500) for n in range(200)))
    await rig.flush()
    peer.lose()
    assert rig.cycle.touch() is None  # the rig's close checks that nothing is left


def _few() -> Acceptor:
    return Acceptor(name="all", port=0, connections_allowed=1)


@on_loop(acceptor=_few)
async def test_one_too_many(rig: ServerRig) -> None:
    first, second = rig.peer(), rig.peer()
    assert "too many connections (got 2" in second.frames()[0].get("message", "")
    second.send(CONNECT_BYTES)
    second.lose()
    third = rig.peer()
    assert third.frames()[0].command == "ERROR"
    third.lose()
    await first.login()


CONNECT_BYTES = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


def _users() -> dict[str, Any]:
    return {"alice": make_user("alice", "right", iterations=100_000)}


@on_loop(users=_users)
async def test_password_is_checked_away_from_the_loop(rig: ServerRig) -> None:
    peer = rig.peer()
    peer.send(CONNECT_BYTES.replace(b"host:x", b"login:alice\npasscode:right") + SUBSCRIBE)
    await rig.settle()
    assert peer.frames() == []
    assert not peer.transport.is_reading()
    await asyncio.wait(list(rig.tasks))
    (frame,) = peer.frames()
    assert frame.command == "CONNECTED"
    await rig.settle()
    assert list(peer.stomp.session.subscriptions) == ["1"]


@on_loop()
async def test_frame_that_grows_too_slowly(rig: ServerRig) -> None:
    slow, fast = rig.peer(), rig.peer()
    for peer in (slow, fast):
        await peer.login()
        peer.send(b"SEND\ndestination:/queue/q\n\n")
    fast.send(b"x" * 10_000)
    assert rig.cycle.partial == {slow.connection, fast.connection}
    now_s = rig.cycle.loop.time()
    for peer in (slow, fast):
        peer.connection.check_rate(now_s + 4)
    assert slow.connection.is_open
    for peer in (slow, fast):
        peer.connection.check_rate(now_s + 10)
    await rig.flush()
    assert "began 10 seconds ago is not complete" in slow.frames()[0].get("message", "")
    assert fast.connection.is_open
    fast.send(b"\0")
    assert rig.cycle.partial == set()


def _beats() -> Acceptor:
    return Acceptor(name="all", port=0, stomp=StompLimits(heart_beat_min=10))


@on_loop(runner=run_virtual, acceptor=_beats)
async def test_heart_beats(rig: ServerRig) -> None:
    peer = rig.peer()
    frame = await peer.login(heart_beat="20,20")
    assert frame.get("heart-beat") == "10,10"
    for _ in range(10):
        await asyncio.sleep(0.01)
        peer.send(b"\n")
    assert peer.connection.is_open
    peer.frames()
    assert peer.heart_beats >= 4
    await asyncio.sleep(0.1)
    assert not peer.connection.is_open
    await rig.flush()
    assert "no heart-beat" in peer.frames()[-1].get("message", "")


@on_loop()
async def test_failed_journal_tells_everybody_at_once(rig: ServerRig) -> None:
    peers = [rig.peer() for _ in range(3)]
    for peer in peers[:2]:
        await peer.login()
    peers[0].send(SEND % (1, b"never confirmed"))
    await rig.settle()
    rig.cycle.fail("the disk is gone")
    for peer in peers:
        assert [f.get("message") for f in peer.frames()] == ["the disk is gone"]
    late = rig.peer()
    assert late.frames()[0].get("message") == "the disk is gone"
    await rig.flush()
    assert peers[0].frames() == []


@on_loop()
async def test_failure_of_our_own_is_told_and_logged(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()

    def explode(_: object) -> None:
        raise ZeroDivisionError

    peer.stomp.session._handlers["BEGIN"] = explode  # type: ignore[assignment]
    peer.send(b"BEGIN\ntransaction:t\n\n\0")
    await rig.flush()
    assert "its log says why" in peer.frames()[0].get("message", "")
    assert rig.cycle.errors == {"internal": 1}


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_receipt_for_every_kind_of_frame(version: str) -> None:
    async def scenario() -> None:
        rig = ServerRig()
        peer = rig.peer()
        if version == "1.0":
            peer.send(b"CONNECT\n\n\0")
            await rig.settle()
            peer.frames()
            peer.decoder.set_version("1.0")
        else:
            await peer.login(version)
        frames = [
            b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nreceipt:%d\n\n\0",
            b"BEGIN\ntransaction:t\nreceipt:%d\n\n\0",
            b"SEND\ndestination:/queue/q\ntransaction:t\nreceipt:%d\n\nx\0",
            b"ABORT\ntransaction:t\nreceipt:%d\n\n\0",
            b"BEGIN\ntransaction:t\nreceipt:%d\n\n\0",
            b"COMMIT\ntransaction:t\nreceipt:%d\n\n\0",
            b"SEND\ndestination:/queue/q\nreceipt:%d\n\nx\0",
        ]
        for number, frame in enumerate(frames):
            peer.send(frame % number)
            await rig.flush()
        received = peer.frames()
        (message,) = [f for f in received if f.command == "MESSAGE"]
        assert [f.get("receipt-id") for f in received if f.command == "RECEIPT"] == [
            str(number) for number in range(len(frames))
        ]
        ack = {
            "1.0": f"ACK\nmessage-id:{message.get('message-id')}\n",
            "1.1": f"ACK\nmessage-id:{message.get('message-id')}\nsubscription:1\n",
            "1.2": f"ACK\nid:{message.get('ack')}\n",
        }[version]
        peer.send(f"{ack}receipt:ack\n\n\0".encode())
        peer.send(b"UNSUBSCRIBE\nid:1\nreceipt:unsubscribed\n\n\0")
        peer.send(b"DISCONNECT\nreceipt:bye\n\n\0")
        await rig.flush()
        assert [f.get("receipt-id") for f in peer.frames()] == ["ack", "unsubscribed", "bye"]
        assert peer.transport.is_eof
        await rig.close()

    product_loop.run(scenario())


def _calls(work: Callable[[], None]) -> int:
    """Return how many functions of the broker are called, the core's own not counted."""
    count = 0

    def note(frame: Any, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "vespiary_broker" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@on_loop()
async def test_work_does_not_grow_with_the_number_of_plain_messages(rig: ServerRig) -> None:
    """The hot path's rule: nothing in Python for one message (facts: 0.1 to 0.3 µs each)."""
    sender, receiver = rig.peer(), rig.peer()
    await sender.login()
    await receiver.login()
    receiver.send(SUBSCRIBE)
    await rig.settle()
    sender.send(SEND % (0, b"teach"))
    await rig.flush()
    receiver.send(b"ACK\nid:%s\n\n\0" % receiver.frames()[0].get("ack", "").encode())
    await rig.flush()
    calls = []
    for count in (5, 500):
        frames = b"".join(SEND % (n, b"x") for n in range(count))
        made = _calls(lambda frames=frames: sender.send(frames))  # type: ignore[misc]
        made += _calls(rig.cycle._turn)
        made += _calls(rig.journal.flush)
        messages = receiver.frames()
        assert len(messages) == count
        acks = b"".join(b"ACK\nid:%s\n\n\0" % m.get("ack", "").encode() for m in messages)
        made += _calls(lambda acks=acks: receiver.send(acks))  # type: ignore[misc]
        made += _calls(rig.cycle._turn)
        calls.append(made)
        await rig.flush()
        assert len(sender.frames()) >= count
    assert calls[1] <= calls[0] + 2, calls


@on_loop()
async def test_the_clock_confirms_no_disconnect_before_all_is_durable(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(SEND % (1, b"x") + b"DISCONNECT\nreceipt:d\n\n\0")
    await rig.settle()
    assert peer.connection._ending is not None
    peer.connection._ending.expire()  # five seconds later
    assert peer.frames() == [], "the disk hangs: what was sent may be lost"
    await rig.flush()
    assert "d" not in [frame.get("receipt-id") for frame in peer.frames()]


@on_loop()
async def test_the_receipt_of_disconnect_may_have_the_id_of_an_unconfirmed_send(
    rig: ServerRig,
) -> None:
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    peer.send(SEND % (7, b"x"))
    await rig.settle()
    request = rig.core.seal_write()
    assert request is not None
    other.send(SEND % (1, b"y"))
    peer.send(b"DISCONNECT\nreceipt:7\n\n\0")
    await rig.settle()
    rig.core.write_done(request.sequence)
    rig.journal.on_durable()
    await rig.settle()
    assert [frame.get("receipt-id") for frame in peer.frames()] == ["7"], "that of SEND"
    assert not peer.transport.is_eof
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == ["7"], "that of DISCONNECT"
    assert peer.transport.is_eof


DURABLE = b"durable-subscription-name:d\n"


async def _with_durable_subscription(rig: ServerRig) -> Peer:
    """Return a peer that has made a durable subscription, and left it."""
    peer = rig.peer()
    await peer.login(client_id="c")
    peer.send(b"SUBSCRIBE\nid:1\ndestination:/topic/t\n" + DURABLE + b"receipt:s\n\n\0")
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == ["s"]
    assert "c.d" in rig.engine.registry.queues
    rig.bindings.gate = asyncio.Event()
    return peer


@on_loop()
async def test_the_end_of_a_durable_subscription_is_confirmed_when_it_is_durable(
    rig: ServerRig,
) -> None:
    peer = await _with_durable_subscription(rig)
    peer.send(b"UNSUBSCRIBE\nid:1\n" + DURABLE + b"receipt:u\n\n\0")
    peer.send(b"SEND\ndestination:/topic/t\nreceipt:after\n\n\0")
    await rig.flush()
    assert any(key.startswith("queue/") for key in rig.bindings.removals)
    assert peer.frames() == [], "after a power cut now the subscription is back"
    assert rig.bindings.gate is not None
    rig.bindings.gate.set()
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == ["u", "after"]
    assert not any(key.startswith("queue/") for key in rig.bindings.values)


@on_loop()
async def test_an_end_of_a_durable_subscription_that_is_not_written_is_refused(
    rig: ServerRig,
) -> None:
    peer = await _with_durable_subscription(rig)
    rig.bindings.failure = JournalFull("the disk of the bindings is full")
    peer.send(b"UNSUBSCRIBE\nid:1\n" + DURABLE + b"receipt:u\n\n\0")
    await rig.settle()
    assert rig.bindings.gate is not None
    rig.bindings.gate.set()
    await asyncio.gather(*rig.tasks, return_exceptions=True)
    await rig.flush()
    (error,) = peer.frames()
    assert error.command == "ERROR"
    assert error.get("receipt-id") == "u"
    assert "the disk of the bindings is full" in error.get("message", "")

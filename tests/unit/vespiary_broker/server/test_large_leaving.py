"""How a connection ends while a large message is on its way out, and how long the end waits."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from vespiary_broker.server.connection import OUTPUT_BYTES_MAX
from vespiary_broker.server.ending import LINGER_S, STALL_S
from vespiary_spec.settings import RoutingType
from vespiary_testkit.large_rig import BODY, LargeRig, receipts, rigged, send
from vespiary_testkit.server_rig import Peer
from vespiary_testkit.virtual_time import run_virtual

virtually_rigged = partial(rigged, runner=run_virtual)

SIZE_BYTES = 8 * OUTPUT_BYTES_MAX
BIG = BODY * (SIZE_BYTES // len(BODY))


async def reader_of_a_large_message(rig: LargeRig, mode: str = "client-individual") -> Peer:
    """Return a peer that reads no more, and to whom a large message is under way."""
    rig.disk.capacity_bytes = 1 << 40
    sender, reader = rig.peer(), rig.peer()
    await sender.login()
    await reader.login()
    head = f"SEND\ndestination:/queue/q\npersistent:true\ncontent-length:{len(BIG)}\nreceipt:1\n\n"
    sender.send(head.encode() + BIG + b"\0")
    await rig.flush()
    assert receipts(sender) == ["1"]
    reader.transport.is_stuck = True
    reader.send(f"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:{mode}\n\n\0".encode())
    await rig.flush()
    assert OUTPUT_BYTES_MAX < len(reader.transport.data) < len(BIG)
    assert reader.frames() == []
    return reader


async def read_on(rig: LargeRig, reader: Peer) -> None:
    """Have a peer read until nothing more comes."""
    for _ in range(100):
        reader.transport.drain()
        await rig.settle()
        rig.journal.flush()


async def time_passes(seconds: float) -> None:
    """Let time pass, on virtual time, until a peer must have read something."""
    await asyncio.sleep(seconds + 0.1)


@rigged
async def test_who_leaves_gets_the_rest_and_then_its_receipt(rig: LargeRig) -> None:
    reader = await reader_of_a_large_message(rig)
    reader.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    await rig.flush()
    assert not reader.transport.is_closed
    await read_on(rig, reader)
    message, receipt = reader.frames()
    assert (message.command, message.body) == ("MESSAGE", BIG)
    assert (receipt.command, receipt.get("receipt-id")) == ("RECEIPT", "bye")
    assert reader.transport.is_eof


@rigged
async def test_who_errs_gets_the_rest_and_then_the_error(rig: LargeRig) -> None:
    reader = await reader_of_a_large_message(rig)
    reader.send(b"NONSENSE\n\n\0")
    await rig.flush()
    await read_on(rig, reader)
    message, error = reader.frames()
    assert message.body == BIG
    assert error.command == "ERROR"
    assert reader.transport.is_eof


@pytest.mark.parametrize("mode", ["client-individual", "auto"])
def test_what_went_to_who_left_is_given_to_the_next(mode: str) -> None:
    @rigged
    async def scenario(rig: LargeRig) -> None:
        reader = await reader_of_a_large_message(rig, mode)
        reader.send(b"DISCONNECT\nreceipt:bye\n\n\0")
        await rig.flush()
        await read_on(rig, reader)
        assert [frame.command for frame in reader.frames()] == ["MESSAGE", "RECEIPT"]
        other = rig.peer()
        await other.login()
        other.send(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:auto\n\n\0")
        await rig.flush()
        (message,) = other.frames()
        assert message.body == BIG, "nobody acknowledged it"

    scenario()


@rigged
async def test_who_leaves_before_a_byte_of_it_was_sent_gets_its_receipt_alone(
    rig: LargeRig,
) -> None:
    reader = await reader_of_a_large_message(rig)
    other = rig.peer()
    reader.lose()
    await other.login()
    subscribe = b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0"
    other.send(subscribe)
    for _ in range(100):
        if other.connection.is_streaming:
            break
        await rig.settle(1)
    assert other.connection.is_streaming
    assert other.frames() == []
    other.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    await rig.flush()
    assert receipts(other) == ["bye"]
    assert other.transport.is_eof


@virtually_rigged
async def test_who_leaves_and_reads_nothing_is_cut_off_and_who_reads_slowly_is_not(
    rig: LargeRig,
) -> None:
    reader = await reader_of_a_large_message(rig)
    reader.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    await rig.flush()
    reader.transport.drain()
    reader.transport.is_stuck = True
    await rig.settle()
    await time_passes(STALL_S)
    assert not reader.transport.is_aborted, "it has read since the last look"
    await time_passes(STALL_S)
    assert reader.transport.is_aborted


@rigged
async def test_the_brokers_own_reasons_do_not_wait(rig: LargeRig) -> None:
    reader = await reader_of_a_large_message(rig)
    reader.connection.refuse("the broker stops")
    assert reader.transport.is_aborted


@virtually_rigged
async def test_who_has_unread_receipts_is_lingered_for_while_it_reads(rig: LargeRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.transport.is_stuck = True
    peer.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    await rig.flush()
    assert peer.transport.is_eof
    peer.transport.unsent -= 1
    await time_passes(LINGER_S)
    assert not peer.transport.is_aborted, "it has read since the last look"
    await time_passes(LINGER_S)
    assert peer.transport.is_aborted


@pytest.mark.parametrize("is_durable", [True, False])
def test_the_body_goes_with_its_queue(is_durable: bool) -> None:
    """No later frame or flush is needed to have the file removed."""

    @rigged
    async def scenario(rig: LargeRig) -> None:
        registry = rig.engine.registry
        await registry.create_queue("q", "q", RoutingType.ANYCAST, is_durable=is_durable)
        peer = rig.peer()
        await peer.login()
        peer.send(send("q", 1))
        await rig.flush()
        assert receipts(peer) == ["1"]
        assert rig.bodies() == [BODY]
        registry.drop_queue(registry.queues["q"])
        await rig.settle()
        assert rig.bodies() == []

    scenario()

"""What hostile clients of AMQP send: each class of advisories as a test.

None of it may take memory that was not sent, or anything from others; each gets an error of AMQP.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest

from vespiary_codec.wire.amqp import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Frame,
    Layer,
    Open,
    Source,
    Target,
    Transfer,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import Described, Symbol, UInt
from vespiary_testkit.amqp_peer import AmqpPeer, message, with_rig
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.server_rig import ServerRig


async def client(rig: ServerRig) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    return peer


def raw_frame(body: bytes, *, size: int | None = None, offset: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body) if size is None else size, offset, kind, 0) + body


NESTED = b"\xc0" + b"".join(bytes([size, 1, 0xC0]) for size in range(200, 100, -2))
ECHO = encode_frame(
    Frame(
        body=Flow(
            next_incoming_id=UInt(0), incoming_window=UInt(9), next_outgoing_id=UInt(0),
            outgoing_window=UInt(9), handle=UInt(1), link_credit=UInt(0), echo=True,
        )
    )
)  # fmt: skip
SIZES = {
    "size 0": raw_frame(b"", size=0),
    "size below the head": raw_frame(b"", size=7),
    "size of 4 GiB": raw_frame(b"", size=2**32 - 1),
    "size of a signed minimum": raw_frame(b"", size=2**31),
    "offset behind the end": raw_frame(b"\x40", offset=200),
    "offset within the head": raw_frame(b"\x40", offset=1),
    "another type": raw_frame(b"\x40", kind=9),
}
BODIES = {
    "binary of 4 GiB": b"\0\x53\x10\xd0\0\0\0\x09\0\0\0\x01\xb0\xff\xff\xff\xff",
    "list of 4 GiB": b"\0\x53\x10\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
    "a million nulls": b"\0\x53\x10\xf0\0\0\0\x05\0\x0f\x42\x40\x40",
    "a list in a list, deep": b"\0\x53\x10" + b"\xc0\x7f\x01" * 60 + b"\x45",
    "a descriptor of descriptors": b"\0" * 400,
    "a string that is no UTF-8": b"\0\x53\x10\xc0\x05\x01\xa1\x02\xff\xfe",
    "a field too many": b"\0\x53\x18\xc0\x04\x03\x40\x40\x40",
    "an array of unknown codes": b"\0\x53\x10\xc0\x06\x01\xe0\x03\x01\x99\0",
    "a size that is short": b"\0\x53\x10\xc0\x01\x05",
    "an unknown performative": b"\0\x53\x7f\x45",
    "no composite": b"\x54\x07",
    "bytes behind it": b"\0\x53\x18\x45junk",
}


@pytest.mark.parametrize("data", SIZES.values(), ids=SIZES.keys())
@with_rig()
async def test_sizes_that_lie(rig: ServerRig, data: bytes) -> None:
    peer = await client(rig)
    peer.raw(data)
    await rig.flush()
    assert peer.one(Close).error.condition == "amqp:connection:framing-error"
    assert not peer.peer.connection.is_open


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@with_rig()
async def test_values_that_lie(rig: ServerRig, body: bytes) -> None:
    peer = await client(rig)
    tracemalloc.start()
    peer.raw(raw_frame(body))
    await rig.flush()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    told = peer.one(Close)
    assert told.error.condition in ("amqp:decode-error", "amqp:invalid-field")
    assert told.error.description
    assert peak < 4 * 1024 * 1024


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@with_rig()
async def test_before_open_as_well(rig: ServerRig, body: bytes) -> None:
    peer = AmqpPeer(rig)
    peer.raw(protocol_header(Layer.AMQP) + raw_frame(body))
    await rig.flush()
    assert not peer.peer.connection.is_open


@with_rig()
async def test_a_large_frame_before_open(rig: ServerRig) -> None:
    peer = AmqpPeer(rig)
    peer.raw(protocol_header(Layer.AMQP) + raw_frame(b"", size=513))
    await rig.flush()
    assert not peer.peer.connection.is_open


@with_rig()
async def test_huge_maps_in_messages(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    peer.send(message(application={f"k{n}": n for n in range(5000)}))
    peer.send(b"\0\x53\x74" + b"\xd1\0\0\0\x05\xff\xff\xff\xfe\x40" + b"\0\x53\x75\xa0\0")
    await rig.flush()
    told = peer.all(Disposition)
    conditions = {each.state.error.condition for each in told}
    assert conditions <= {"amqp:decode-error", "amqp:link:message-size-exceeded"}
    assert peer.peer.connection.is_open


@with_rig()
async def test_maps_in_every_place_of_an_attach(rig: ServerRig) -> None:
    peer = await client(rig)
    odd: dict[Any, Any] = {Symbol(f"f{n}"): Described(Symbol("x:y"), [n]) for n in range(200)}
    await peer.attach(
        True, 0, source=Source(address="/queue/a", filter=odd, dynamic_node_properties=odd),
        target=Target(), properties=odd, unsettled={b"t": None},
    )  # fmt: skip
    answer = peer.one(Attach)
    assert answer.source.filter is None  # none of them is in place
    assert peer.peer.connection.is_open


NO_NAMES = [
    "", "a\tb", "/queue/", "x" * 5000, "a::b::c", "a::", "/queue/\0", 7, b"bin", "$mqtt.x",
    " ", "/queue/ a", "a ",
]  # fmt: skip


@pytest.mark.parametrize("address", NO_NAMES)
@with_rig()
async def test_addresses_that_are_none(rig: ServerRig, address: Any) -> None:
    peer = await client(rig)
    await peer.attach(True, 0, source=Source(address=address), target=Target())
    assert peer.one(Attach).source is None
    assert peer.one(Detach).error.condition == "amqp:invalid-field"
    assert peer.peer.connection.is_open


@pytest.mark.parametrize("address", [*NO_NAMES[1:], "t.*", "/topic/#"])
@with_rig()
async def test_addresses_that_nobody_can_send_to(rig: ServerRig, address: Any) -> None:
    peer = await client(rig)
    await peer.attach(False, 0, target=Target(address=address), source=Source())
    assert peer.one(Attach).target is None
    assert peer.one(Detach).error.condition == "amqp:invalid-field"
    assert peer.peer.connection.is_open


@with_rig()
async def test_names_that_are_too_long(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.attach(False, 0, name="n" * 2000, target=Target(address="/queue/a"), source=Source())
    assert peer.one(Detach).error.condition == "amqp:invalid-field"
    other = AmqpPeer(rig)
    other.raw(protocol_header(Layer.AMQP) + encode_frame(Frame(body=Open(container_id="c" * 600))))
    await rig.flush()
    assert not other.peer.connection.is_open


@with_rig()
async def test_more_transfers_than_the_window(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    first = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t", more=True)
    peer.frame(first, b"\0")
    for _ in range(3000):
        peer.frame(Transfer(handle=UInt(0), more=True))
    await rig.flush()
    assert peer.peer.connection.is_open  # each is small, and the window is told anew
    assert len(peer.all(Flow)) > 2


@with_rig()
async def test_dispositions_of_everything(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    peer.send(message())
    await rig.flush()
    await peer.receiver("/queue/a", credit=1)
    for first, last in ((0, 2**32 - 1), (2**31, 2**31 - 1), (5, 4), (2**32 - 1, 10)):
        peer.settle(first, last)
    await rig.flush()
    assert peer.peer.connection.is_open


@with_rig()
async def test_credit_beyond_all_bounds(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.receiver("/queue/a")
    for credit, count in ((2**32 - 1, 0), (2**32 - 1, 2**32 - 1), (0, 2**31), (2**31, 2**31)):
        await peer.credit(credit, count=count, window=2**32 - 1, next_incoming_id=count)
    assert peer.peer.connection.is_open


@with_rig()
async def test_a_delivery_that_never_ends(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    piece = b"\0\x53\x77\xb1\x7f\xff\xff\xff" + b"x" * 60_000
    peer.frame(Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t", more=True), piece)
    for _ in range(30):
        peer.frame(Transfer(handle=UInt(0), more=True), piece)
    await rig.flush()
    told = peer.one(Detach)
    assert told.error.condition == "amqp:link:message-size-exceeded"
    assert peer.peer.connection.is_open


@with_rig(handle_max=65_535)
async def test_a_flood_of_links(rig: ServerRig) -> None:
    peer = await client(rig)
    for handle in range(300):
        await peer.attach(True, handle, source=Source(address=f"/queue/q{handle}"), target=Target())
    assert len(peer.all(Attach)) == 300
    peer.frame(End())
    await rig.flush()
    assert rig.engine.registry.limits.subscriptions == 0


@with_rig()
async def test_transfers_cut_at_every_byte_leave_the_others_alone(rig: ServerRig) -> None:
    side = await client(rig)
    await side.sender("/queue/side")
    begin = Begin(next_outgoing_id=UInt(0), incoming_window=UInt(9), outgoing_window=UInt(9))
    data = (
        protocol_header(Layer.AMQP)
        + encode_frame(Frame(body=Open(container_id="cut")))
        + encode_frame(Frame(body=begin))
    )
    for end in range(len(data)):
        peer = AmqpPeer(rig)
        if end:
            peer.raw(data[:end])
        await rig.settle(2)
        peer.peer.lose()
    side.send(message())
    await rig.flush()
    assert len(side.all(Disposition)) == 1


@with_rig()
async def test_a_slow_writer_is_dropped(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.sender("/queue/a")
    transfer = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t")
    peer.raw(encode_frame(Frame(body=transfer, payload=message(b"x" * 5000)))[:100])
    assert peer.peer.connection in rig.cycle.partial
    peer.peer.connection.check_rate(rig.cycle.loop.time() + 60)
    await rig.flush()
    assert "bytes a second" in peer.one(Close).error.description


@pytest.mark.ci
@with_rig()
async def test_a_reader_that_stops_is_not_read_either(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.receiver("/queue/a")
    peer.transport.is_stuck = True
    for _ in range(200):  # each is answered
        peer.raw(ECHO * 100)
        await rig.settle()
        if not peer.transport.is_reading_now:
            break
    assert not peer.transport.is_reading_now
    assert peer.transport.unsent < 2 * 1024 * 1024
    peer.transport.drain()
    await rig.settle()
    assert peer.transport.is_reading_now


@pytest.mark.parametrize("case", range(20))
@with_rig()
async def test_noise(rig: ServerRig, case: int) -> None:
    """Frames with some bytes changed end in an answer, never in a failure of ours."""
    noise = random.Random(seed_for(f"amqp noise {case}"))
    errors_before = rig.cycle.errors["internal"]
    for _ in range(30):
        peer = AmqpPeer(rig)
        await peer.open(container=f"noise-{noise.random()}")
        await peer.begin()
        attach = Attach(
            name="l", handle=UInt(0), role=bool(noise.getrandbits(1)),
            source=Source(address="/queue/a"), target=Target(address="/queue/a"),
            initial_delivery_count=UInt(0),
        )  # fmt: skip
        transfer = Transfer(handle=UInt(0), delivery_id=UInt(0), delivery_tag=b"t")
        frames = bytearray(
            encode_frame(Frame(body=attach))
            + encode_frame(Frame(body=transfer, payload=message(subject="s", application={"a": 1})))
            + encode_frame(Frame(body=Disposition(role=True, first=UInt(0), last=UInt(9))))
        )
        for _ in range(noise.randint(1, 4)):
            frames[noise.randrange(len(frames))] = noise.getrandbits(8)
        peer.raw(bytes(frames))
        await rig.flush()
        if peer.peer.connection.is_open:
            peer.peer.lose()
        await rig.settle()
    assert rig.cycle.errors["internal"] == errors_before

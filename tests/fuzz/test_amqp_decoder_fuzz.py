"""Fuzz target of the AMQP 1.0 decoders: frames, values and the sections of messages.

As a test it runs a bounded number of inputs, and what is kept in its corpus; as a program any
number, at random or guided by coverage (`vespiary_testkit.fuzz_target`).

Whatever the bytes, these hold: only RemoteProtocolError comes out; how the bytes are cut changes
neither the events nor the error; nothing beyond the limits is kept; a frame that was read can be
printed, and is read as the same frame again; the sections of a message stand one behind the other.
"""

from __future__ import annotations

import random
import sys
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.amqp import (
    NEED_DATA,
    Accepted,
    AmqpLimits,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Frame,
    FrameDecoder,
    Header,
    Layer,
    Modified,
    Open,
    ProtocolHeader,
    RemoteProtocolError,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    Violation,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.encoding import encode_value
from vespiary_codec.wire.amqp.messages import (
    MessageProperties,
    Section,
    encode_section,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.values import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    same,
)
from vespiary_testkit.fuzz_target import FuzzTarget, corpus, in_pieces, likely_inputs, main
from vespiary_testkit.seeds import seed_for

LIMITS = AmqpLimits(frame_bytes=2048, depth=5, items=40)
Random = random.Random


def run(pieces: list[bytes]) -> tuple[list[ProtocolHeader | Frame], Any]:
    """Return all events and the error of one decoder."""
    decoder = FrameDecoder(LIMITS)
    events: list[ProtocolHeader | Frame] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (event := decoder.next_event()) is not NEED_DATA:
                events.append(event)
            assert decoder.buffered_bytes <= LIMITS.frame_bytes, "kept more than a frame"
    except RemoteProtocolError as error:
        return events, (error.violation, error.reason, error.condition)
    return events, None


def check_frame(frame: Frame) -> None:
    """Print a frame and read it again."""
    is_sasl = type(frame.body) in (SaslMechanisms, SaslInit, SaslOutcome)
    layer = Layer.SASL if is_sasl else Layer.AMQP
    opening = b"" if is_sasl else encode_frame(Frame(body=Open(container_id="x")))
    decoder = FrameDecoder(AmqpLimits(before_open_bytes=2**20, frame_bytes=2**20))
    decoder.feed(protocol_header(layer) + opening + encode_frame(frame))
    events = []
    while (event := decoder.next_event()) is not NEED_DATA:
        events.append(event)
    again = events[-1]
    assert isinstance(again, Frame)
    assert encode_frame(again) == encode_frame(frame), (frame, again)


def check_message(data: bytes) -> Any:
    """Find the sections of a message and read them; return the violation, if it is none."""
    try:
        found = sections(data, LIMITS)
        values = [read_section(data, each) for each in found]
    except RemoteProtocolError as error:
        return error.violation
    if not found:  # nothing has no section
        assert not data
        return None
    assert found[0].begin == 0
    assert [each.end for each in found] == [*(each.begin for each in found[1:]), len(data)]
    for each, value in zip(found, values, strict=True):
        if each.section not in (Section.HEADER, Section.PROPERTIES, Section.FOOTER):
            again = encode_section(each.section, value)
            is_body = each.section in (Section.DATA, Section.AMQP_SEQUENCE, Section.AMQP_VALUE)
            rest = b"" if is_body else encode_section(Section.DATA, b"")
            assert same(read_section(again, sections(again + rest)[0]), value)
    return None


def check(data: bytes) -> None:
    """Run one input: two bytes that choose what it is and the cuts, then the stream."""
    if len(data) < 2:
        return
    stream = data[2:]
    if data[0] % 4 == 0:
        check_message(stream)
        return
    whole = run([stream])
    cut = run(in_pieces(data[1], stream))
    assert cut == whole or repr(cut) == repr(whole)  # no NaN is equal to itself
    for event in whole[0]:
        if isinstance(event, Frame) and event.body is not None:
            check_frame(event)
            if isinstance(event.body, Transfer):
                check_message(event.payload)


# --- inputs --------------------------------------------------------------------------------------

SIMPLE: list[Any] = [
    None, True, False, 0, 7, -(2**40), UByte(3), UShort(300), UInt(0), UInt(5), UInt(2**31),
    ULong(1), ULong(2**63), Byte(-1), Int(-5), Float(1.5), 2.25, Char("é"), Timestamp(1),
    UUID(int=5), "", "text", "é" * 130, b"", b"bytes", b"b" * 300, Symbol("sym"), Symbol(""),
]  # fmt: skip


def value(source: Random, depth: int = 0) -> Any:
    pick = source.random()
    if depth > 3 or pick < 0.7:
        return source.choice(SIMPLE)
    if pick < 0.8:
        return [value(source, depth + 1) for _ in range(source.choice((0, 1, 3)))]
    if pick < 0.9:
        return mapping(source, depth)
    if pick < 0.95:
        return Described(Symbol("x:y"), value(source, depth + 1))
    return Array(0xA3, [Symbol("a") for _ in range(source.choice((0, 2)))])


def mapping(source: Random, depth: int = 0) -> dict[Any, Any]:
    keys = source.sample(["k", Symbol("s"), "other", Symbol("t")], k=source.choice((0, 1, 2)))
    return {key: value(source, depth + 1) for key in keys}


def message(source: Random) -> bytes:
    parts = []
    if source.random() < 0.5:
        header = Header(durable=source.random() < 0.5, ttl=source.choice((None, UInt(5))))
        parts.append(encode_section(Section.HEADER, header))
    if source.random() < 0.5:
        noted = {Symbol("x-opt-a"): value(source, 1)}
        parts.append(encode_section(Section.MESSAGE_ANNOTATIONS, noted))
    if source.random() < 0.5:
        said = MessageProperties(
            message_id=source.choice(("id", ULong(7), b"x")), to=source.choice((None, "q"))
        )
        parts.append(encode_section(Section.PROPERTIES, said))
    if source.random() < 0.5:
        properties = {"a": source.choice(SIMPLE), "b": source.choice(SIMPLE)}
        parts.append(encode_section(Section.APPLICATION_PROPERTIES, properties))
    body = source.choice((Section.DATA, Section.AMQP_SEQUENCE, Section.AMQP_VALUE))
    content = {Section.DATA: b"payload", Section.AMQP_SEQUENCE: [1, "two"]}
    parts += [encode_section(body, content.get(body, value(source, 1)))] * source.choice((1, 1, 2))
    if source.random() < 0.1:
        source.shuffle(parts)
    return b"".join(parts)


def frame(source: Random) -> bytes:
    handle = UInt(source.choice((0, 1, 2**32 - 1)))
    body: Any = source.choice([
        Begin(next_outgoing_id=UInt(0), incoming_window=UInt(5), outgoing_window=UInt(5)),
        Attach(name="l", handle=handle, role=source.random() < 0.5,
               source=Source(address=value(source, 2), filter=mapping(source)),
               target=Target(address="q"), properties=mapping(source)),
        Flow(incoming_window=UInt(1), next_outgoing_id=UInt(1), outgoing_window=UInt(1),
             handle=handle, link_credit=UInt(9), drain=True),
        Transfer(handle=handle, delivery_id=UInt(1), delivery_tag=b"t", more=False),
        Disposition(role=True, first=UInt(1), settled=True,
                    state=source.choice((Accepted(), Modified(delivery_failed=True)))),
        Detach(handle=handle, closed=True), End(), Close(), None,
    ])  # fmt: skip
    payload = message(source) if isinstance(body, Transfer) else b""
    return encode_frame(Frame(source.choice((0, 1, 65_535)), body, payload))


def random_input(source: Random) -> bytes:
    """Return one input: mostly frames that keep the rules, some of them bent in a place or two."""
    choices = source.randbytes(2)
    if source.random() < 0.03:
        return choices + source.randbytes(source.randrange(60))
    if choices[0] % 4 == 0:
        stream = bytearray(message(source))
    elif source.random() < 0.2:
        init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0u\0p")
        stream = bytearray(protocol_header(Layer.SASL) + encode_frame(Frame(body=init)))
    else:
        stream = bytearray(protocol_header(Layer.AMQP))
        stream += encode_frame(Frame(body=Open(container_id="c", properties=mapping(source))))
        for _ in range(source.randrange(4)):
            stream += frame(source)
    for _ in range(source.choice((0, 0, 1, 1, 2))):
        place = source.randrange(len(stream) + 1)
        bent = source.choice((
            b"\0", b"\xff", b"\x40", b"\x45", source.randbytes(1), b"", encode_value(value(source)),
        ))  # fmt: skip
        stream[place : place + source.randrange(3)] = bent
    return choices + bytes(stream)


@settings(deadline=None, max_examples=200)
@given(st.binary(min_size=2, max_size=80))
def test_any_stream(data: bytes) -> None:
    check(data)


def test_likely_streams() -> None:
    source = random.Random(seed_for("amqp decoder fuzz"))
    count, violations = 0, set()

    def is_enough() -> bool:
        return len(violations & {*Violation}) >= len(Violation) - 4

    for data in likely_inputs(random_input, source, 4000, is_enough):
        check(data)
        if data[0] % 4 == 0:
            violations.add(check_message(data[2:]))
            continue
        events, error = run([data[2:]])
        count += len(events)
        if error is not None:
            violations.add(error[0])
    # Inputs that never get past the first frame would prove nothing.
    assert count > 6000
    assert is_enough(), set(Violation) - violations


WORDS = [
    *(encode_value(each) for each in SIMPLE), encode_value([1, "two"]), encode_value({"k": 1}),
    protocol_header(Layer.AMQP), protocol_header(Layer.SASL), b"\0S", b"\x40",
    b"\x45", b"\xc0", b"\xd0",
    encode_section(Section.DATA, b"x"), encode_section(Section.AMQP_VALUE, None),
    *(encode_frame(Frame(body=each)) for each in (Open(container_id="x"), End(), Close(), None)),
]  # fmt: skip
TARGET = FuzzTarget("amqp_decoder", check, random_input, WORDS, "vespiary_codec.wire.amqp")


def test_a_frame_with_what_is_not_a_number() -> None:
    properties = {Symbol("k"): Float(float("nan"))}
    opening = Frame(body=Open(container_id="c", properties=properties))
    check(b"\1\x50" + protocol_header(Layer.AMQP) + encode_frame(opening))


def test_what_is_kept() -> None:
    for data in corpus(TARGET.name):
        check(data)


if __name__ == "__main__":
    sys.exit(main(TARGET, sys.argv))

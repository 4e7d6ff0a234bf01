"""Frames and performatives of AMQP: octets, round trips, every cut, and what is refused when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.amqp import (
    NEED_DATA,
    OUTCOMES,
    PERFORMATIVES,
    RECEIVER,
    SASL_FRAMES,
    Accepted,
    AmqpLimits,
    Attach,
    Begin,
    Close,
    Condition,
    Coordinator,
    Declare,
    Declared,
    Decoder,
    Detach,
    Discharge,
    Disposition,
    Error,
    Flow,
    Frame,
    FrameDecoder,
    Layer,
    LimitExceeded,
    LocalProtocolError,
    Modified,
    Open,
    ProtocolHeader,
    Received,
    Rejected,
    RemoteProtocolError,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
    Violation,
    encode_frame,
    protocol_header,
    symbols,
)
from vespiary_codec.wire.amqp.composites import _SHAPES, read, write
from vespiary_codec.wire.amqp.values import Described, Symbol, UInt, ULong

AMQP, SASL = protocol_header(Layer.AMQP), protocol_header(Layer.SASL)
OPEN = encode_frame(Frame(0, Open(container_id="c")))


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


def events(pieces: Iterable[bytes], limits: AmqpLimits | None = None) -> list[Any]:
    decoder, found = FrameDecoder(limits), []
    for piece in pieces:
        decoder.feed(piece)
        while (event := decoder.next_event()) is not NEED_DATA:
            found.append(event)
    assert not decoder.is_mid_frame
    return found


def read_composite(data: bytes) -> Any:
    decoder = Decoder(data)
    value = read(decoder)
    decoder.end("the composite")
    return value


def refused(data: bytes, limits: AmqpLimits | None = None) -> RemoteProtocolError:
    """What some bytes are refused for, wherever they are cut."""
    found = []
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        with pytest.raises(RemoteProtocolError) as caught:
            events(pieces, limits)
        found.append(caught.value)
    one, other = found
    assert (one.violation, one.reason) == (other.violation, other.reason)
    return one


# --- octets ---------------------------------------------------------------------------------------


def test_the_headers_of_the_layers() -> None:
    """AMQP 1.0 §2.2 and §5.2.1, §5.3.2."""
    assert octets("414d5150 00 010000") == AMQP
    assert octets("414d5150 03 010000") == SASL
    assert events([protocol_header(Layer.TLS), AMQP]) == [
        ProtocolHeader(Layer.TLS), ProtocolHeader(Layer.AMQP)
    ]  # fmt: skip


def test_an_open_as_written_by_hand() -> None:
    data = octets("00000012 02 00 0000 00 53 10 c0 05 02 a1 01 63 40")
    frame = Frame(0, Open(container_id="c"))
    assert events([AMQP, data]) == [ProtocolHeader(Layer.AMQP), frame]
    assert encode_frame(frame) == octets("00000011 02 00 0000 00 53 10 c0 04 01 a1 01 63")


def test_a_frame_with_an_extended_head_and_a_symbolic_descriptor() -> None:
    body = octets("00 a3 0f 616d71703a636c6f73653a6c697374 45")
    data = octets("00000021 03 00 0007 ffffffff") + body
    assert len(data) == 33 - 2
    data = len(data).to_bytes(4, "big") + data[4:]
    assert events([AMQP, OPEN, data])[-1] == Frame(7, Close())


def test_a_sign_of_life() -> None:
    assert events([AMQP, OPEN, octets("00000008 02 00 0000")])[-1] == Frame(0)
    assert encode_frame(Frame(3)) == octets("00000008 02 00 0003")


def test_the_rest_behind_an_event_is_handed_out() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"AMQP\0\1\0\0" + b"\0\0\0\x08\2\0\0\0" + b"\0\0")
    assert isinstance(decoder.next_event(), ProtocolHeader)
    assert decoder.take_rest() == b"\0\0\0\x08\2\0\0\0\0\0"
    assert decoder.take_rest() == b""
    assert decoder.next_event() is NEED_DATA
    decoder.feed(b"\0\0\0\x08\2\0\0\1")
    assert decoder.next_event() == Frame(1)


def test_a_transfer_has_its_payload_behind_it() -> None:
    frame = Frame(1, Transfer(handle=0, delivery_id=1, delivery_tag=b"t", more=True), b"\0Sx\xff")
    assert events([AMQP, OPEN, encode_frame(frame)])[-1] == frame


def test_a_login_by_sasl() -> None:
    mechanisms = Frame(0, SaslMechanisms(sasl_server_mechanisms=("PLAIN", "ANONYMOUS")))
    outcome = Frame(0, SaslOutcome(code=SaslCode.OK))
    server = SASL + encode_frame(mechanisms) + encode_frame(outcome) + AMQP + OPEN
    assert events([server]) == [
        ProtocolHeader(Layer.SASL), mechanisms, outcome, ProtocolHeader(Layer.AMQP),
        Frame(0, Open(container_id="c")),
    ]  # fmt: skip
    assert encode_frame(mechanisms)[5] == 1, "a frame of SASL has a type of its own"


def test_a_server_says_when_the_clients_next_layer_begins() -> None:
    decoder = FrameDecoder()
    init = Frame(0, SaslInit(mechanism="ANONYMOUS", initial_response=b"x"))
    decoder.feed(SASL + encode_frame(init) + AMQP + OPEN)
    assert decoder.next_event() == ProtocolHeader(Layer.SASL)
    assert decoder.next_event() == init
    decoder.expect_header()
    assert decoder.next_event() == ProtocolHeader(Layer.AMQP)
    with pytest.raises(LocalProtocolError):
        decoder.expect_header()


def test_what_a_client_proves_itself_with_is_not_shown() -> None:
    for frame in (SaslInit(mechanism="PLAIN", initial_response=b"\0u\0secret"),
                  SaslResponse(response=b"secret")):  # fmt: skip
        assert "secret" not in repr(frame)


def test_defaults_take_no_bytes() -> None:
    frame = Attach(name="l", handle=0, role=RECEIVER)
    assert (frame.snd_settle_mode, frame.rcv_settle_mode, frame.incomplete_unsettled) == (
        2,
        0,
        False,
    )
    assert write(frame) == octets("00 53 12 c0 06 03 a1 01 6c 43 41")
    assert read_composite(write(frame)) == frame
    assert write(Accepted()) == octets("00 53 24 45")


def test_one_symbol_or_many() -> None:
    one = octets("00 53 30 c0 04 01 a3 01 61")
    many = octets("00 53 30 c0 08 01 e0 05 01 a3 01 61 40")
    assert read_composite(one) == Coordinator(capabilities=("a",))
    with pytest.raises(RemoteProtocolError):
        read_composite(many)
    for names in ((), ("a",), ("a", "b"), ("x" * 300, "b")):
        made = Coordinator(capabilities=names)
        assert read_composite(write(made)) == made


# --- round trips ----------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
NAMES = st.text(st.characters(max_codepoint=127), max_size=8).map(Symbol)
MAPS = st.dictionaries(NAMES, st.booleans() | TEXTS | st.integers(0, 9).map(UInt), max_size=3)
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "ubyte": st.integers(0, 255),
    "ushort": st.integers(0, 65_535),
    "uint": st.integers(0, 2**32 - 1),
    "ulong": st.integers(0, 2**64 - 1),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "binary": st.binary(max_size=10),
    "string": TEXTS,
    "symbol": NAMES,
    "symbols": st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    "map": MAPS,
    "message-id": st.one_of(TEXTS, st.binary(max_size=9), st.uuids(), st.just(ULong(7))),
}


def made(cls: type) -> st.SearchStrategy[Any]:
    fields = {}
    for name, kind, mandatory, default in _SHAPES[cls].fields:
        values = of_kind(cls, name, kind)
        fields[name] = values if mandatory else st.just(default) | values
    return st.builds(cls, **fields)


def of_kind(cls: type, name: str, kind: str) -> st.SearchStrategy[Any]:
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind == "source":
        return st.deferred(lambda: made(Source))
    if kind == "target|coordinator":
        return st.deferred(lambda: made(Target)) | st.deferred(lambda: made(Coordinator))
    if kind == "error":
        return st.deferred(lambda: made(Error))
    outcomes = st.one_of([st.deferred(lambda one=one: made(one)) for one in OUTCOMES])
    if name == "outcome" or name == "default_outcome":
        return outcomes
    if name == "state":
        states = (Received, Declared, TransactionalState)
        return outcomes | st.one_of([st.deferred(lambda one=one: made(one)) for one in states])
    return TEXTS


@pytest.mark.parametrize("cls", sorted(_SHAPES, key=lambda cls: cls.__name__))
def test_every_composite_there_and_back(cls: type) -> None:
    @settings(deadline=None, max_examples=30)
    @given(made(cls))
    def check(value: Any) -> None:
        assert read_composite(write(value)) == value

    check()


@pytest.mark.ci
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_conversation_cut_anywhere(data: Any) -> None:
    one = st.builds(
        Frame,
        st.integers(0, 65_535),
        st.one_of([made(cls) for cls in PERFORMATIVES if cls is not Open]),
    )
    frames = data.draw(st.lists(one, min_size=1, max_size=3))
    whole = AMQP + OPEN + b"".join(encode_frame(frame) for frame in frames)
    expected = [ProtocolHeader(Layer.AMQP), Frame(0, Open(container_id="c")), *frames]
    assert events([whole]) == expected
    assert events(whole[at : at + 1] for at in range(len(whole))) == expected


def test_transactions_are_spelled_as_the_specification_has_them() -> None:
    assert write(Declare()) == octets("00 53 31 45")
    assert write(Discharge(txn_id=b"\1", fail=True)) == octets("00 53 32 c0 05 02 a0 01 01 41")
    assert write(Declared(txn_id=b"\1")) == octets("00 53 33 c0 04 01 a0 01 01")
    state = TransactionalState(txn_id=b"\1", outcome=Rejected(error=Error(condition="amqp:x")))
    assert read_composite(write(state)) == state


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"HTTP/1.1", b"AMQP\0\0\x09\x01", b"AMQP\1\1\0\0", b"AMQX"])
def test_other_protocols(data: bytes) -> None:
    error = refused(data)
    assert (error.violation, error.condition) == (
        Violation.PROTOCOL_HEADER, Condition.FRAMING_ERROR
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("00000007 02 00 0000", Violation.FRAME_SIZE),
        ("00000000 02 00 0000", Violation.FRAME_SIZE),
        ("00000008 01 00 0000", Violation.DATA_OFFSET),
        ("00000008 03 00 0000", Violation.DATA_OFFSET),
        ("0000000b 02 01 0000 00 53 18", Violation.FRAME_TYPE),
        ("0000000c 02 00 0000 00 53 24 45", Violation.UNKNOWN_DESCRIPTOR),
        ("0000000c 02 00 0000 00 53 99 45", Violation.UNKNOWN_DESCRIPTOR),
        ("00000009 02 00 0000 41", Violation.UNKNOWN_DESCRIPTOR),
        ("0000000d 02 00 0000 00 53 18 45 41", Violation.TRAILING_BYTES),
        ("0000000b 02 00 0000 00 53 18", Violation.TRUNCATED_VALUE),
        ("0000000c 02 00 0000 00 53 10 45", Violation.FIELD_MISSING),
        ("00000010 02 00 0000 00 53 10 c0 03 01 52 07", Violation.FIELD_TYPE),
        ("00000010 02 00 0000 00 53 18 c0 03 02 40 40", Violation.FIELD_COUNT),
        ("00000010 02 00 0000 00 53 18 c0 03 01 52 07", Violation.FIELD_TYPE),
        ("00000011 02 00 0000 00 53 18 c0 04 01 00 53 24", Violation.TRUNCATED_VALUE),
        ("00000012 02 00 0000 00 53 18 c0 05 01 00 53 24 45", Violation.FIELD_TYPE),
    ],
)
def test_frames_that_are_none(text: str, violation: Violation) -> None:
    error = refused(AMQP + OPEN + octets(text))
    assert error.violation is violation
    assert not isinstance(error, LimitExceeded)


def test_a_frame_of_sasl_has_a_body() -> None:
    assert refused(SASL + octets("00000008 02 01 0000")).violation is Violation.FRAME_BODY
    performative = octets("0000000c 02 01 0000 00 53 18 45")
    assert refused(SASL + performative).violation is Violation.UNKNOWN_DESCRIPTOR


def test_errors_are_sentences() -> None:
    error = refused(AMQP + OPEN + octets("00000010 02 00 0000 00 53 10 c0 03 01 52 07"))
    assert error.reason == "container-id of open is a uint; it must be a string"
    assert error.condition is Condition.INVALID_FIELD
    error = refused(AMQP + OPEN + octets("0000000c 02 00 0000 00 53 12 45"))
    assert error.reason == "attach needs name"


def test_before_open_frames_are_small() -> None:
    large = encode_frame(Frame(0, Open(container_id="c" * 600)))
    error = refused(AMQP + large)
    assert isinstance(error, LimitExceeded)
    assert error.violation is Violation.FRAME_BYTES
    mechanisms = SaslMechanisms(sasl_server_mechanisms=("x" * 250, "y" * 250))
    assert isinstance(refused(SASL + encode_frame(Frame(0, mechanisms))), LimitExceeded)
    assert len(events([AMQP, large], AmqpLimits(before_open_bytes=1024))) == 2


def test_a_large_frame_is_refused_by_its_size_alone() -> None:
    limits = AmqpLimits(frame_bytes=1000)
    decoder = FrameDecoder(limits)
    decoder.feed(AMQP + OPEN + octets("000003e8"))
    assert [decoder.next_event() for _ in range(3)][-1] is NEED_DATA
    decoder = FrameDecoder(limits)
    decoder.feed(AMQP + OPEN + octets("000003e9"))
    decoder.next_event()
    decoder.next_event()
    with pytest.raises(LimitExceeded, match=r"of 1001 bytes.*at most 1000"):
        decoder.next_event()
    decoder.feed(AMQP)
    assert not decoder.buffered_bytes
    with pytest.raises(LimitExceeded):
        decoder.next_event()


def test_a_frame_that_the_peer_does_not_take_is_our_own_error() -> None:
    frame = Frame(1, Transfer(handle=0), b"x" * 500)
    assert len(encode_frame(frame, 520)) <= 520
    with pytest.raises(LocalProtocolError, match="transfer has 515 bytes; the peer takes 512"):
        encode_frame(frame, 512)


@pytest.mark.parametrize(
    "frame",
    [Open(container_id=None), Begin(next_outgoing_id=0, incoming_window=-1, outgoing_window=0),
     Detach(handle=2**32), Disposition(role=1, first=0), Transfer(handle=0, delivery_tag="text"),
     Flow(incoming_window=1, next_outgoing_id=1, outgoing_window=None)],
)  # fmt: skip
def test_fields_that_cannot_be_written_are_our_own_error(frame: Any) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(Frame(0, frame))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.sampled_from([AMQP, AMQP + OPEN, SASL, b""]))
def test_whatever_comes_in_is_a_frame_or_a_violation(data: bytes, before: bytes) -> None:
    """No other error, whatever the bytes; and the same however they are cut."""

    def outcome(*pieces: bytes) -> Any:
        decoder, found = FrameDecoder(), []
        try:
            for piece in pieces:
                decoder.feed(piece)
                while (event := decoder.next_event()) is not NEED_DATA:
                    found.append(event)
        except RemoteProtocolError as error:
            return found, error.violation, error.reason
        return found, decoder.buffered_bytes

    whole = before + data
    assert outcome(whole) == outcome(*(whole[at : at + 1] for at in range(len(whole))))


def test_described_values_that_nobody_knows_stay_as_they_are() -> None:
    selector = {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")}
    source = Source(address="q", filter=selector, outcomes=("amqp:accepted:list",))
    assert read_composite(write(source)) == source
    assert len(SASL_FRAMES) == 5
    assert symbols(["a"]).items == [Symbol("a")]
    assert read_composite(write(Modified(message_annotations={Symbol("x"): 1}))) is not None

"""Canonical properties, and message ids."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    Frame,
    LocalProtocolError,
    RemoteProtocolError,
    StompDecoder,
    canonical_properties,
    encode,
    encode_message,
    format_message_id,
    parse_ack_mode,
    parse_message_id,
    parse_properties,
    properties_for_version,
)

TRANSPORT = [
    "receipt",
    "content-length",
    "transaction",
    "message-id",
    "subscription",
    "ack",
    "redelivered",
    "delivery-count",
]


def test_order_and_repeats_stay_and_transport_headers_go():
    headers = [("foo", "1"), ("destination", "/q"), ("foo", "2"), ("persistent", "true")]
    mixed = [*headers[:2], *((name, "x") for name in TRANSPORT), *headers[2:]]
    expected = b"foo:1\ndestination:/q\nfoo:2\npersistent:true\n"
    assert canonical_properties(Frame("SEND", mixed)) == expected
    assert parse_properties(expected) == headers


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_headers_give_the_same_bytes_whatever_the_version(version):
    frame = Frame("SEND", [("destination", "/q/a:b"), ("path", "c:\\x\\n")], b"")
    decoder = StompDecoder()
    decoder.set_version(version)
    decoder.feed(encode(frame, version))
    event = decoder.next_event()
    assert isinstance(event, Frame)
    assert canonical_properties(event) == b"destination:/q/a\\cb\npath:c\\c\\\\x\\\\n\n"


def test_no_properties():
    assert canonical_properties(Frame("SEND", [("receipt", "1")])) == b""
    assert parse_properties(b"") == []
    for version in VERSIONS:
        assert properties_for_version(b"", version) == b""


@pytest.mark.parametrize(
    ("canonical", "for_1_0", "for_1_1"),
    [
        (b"a:b\n", b"a:b\n", b"a:b\n"),
        (rb"a:x\cy" + b"\n", b"a:x:y\n", rb"a:x\cy" + b"\n"),
        (rb"a:x\\y" + b"\n", b"a:x\\y\n", rb"a:x\\y" + b"\n"),
        (rb"a:x\ry" + b"\n", b"a:x y\n", b"a:x\ry\n"),
        (rb"a:x\ny" + b"\n", b"a:x y\n", rb"a:x\ny" + b"\n"),
        (rb"a\n\rb:x" + b"\n", b"a\\n\\rb:x\n", b"a\\n\rb:x\n"),
        (rb"a\cb:x" + b"\n", rb"a\cb:x" + b"\n", rb"a\cb:x" + b"\n"),
        (rb"a\\b:x" + b"\n", rb"a\b:x" + b"\n", rb"a\\b:x" + b"\n"),
        (rb"a:\\r\\n\\c" + b"\n", rb"a:\r\n\c" + b"\n", rb"a:\\r\\n\\c" + b"\n"),
        (rb"a:\\\r" + b"\nb:1\n", b"a:\\ \nb:1\n", b"a:\\\\\r\nb:1\n"),
    ],
)
def test_properties_for_older_versions(canonical, for_1_0, for_1_1):
    assert properties_for_version(canonical, "1.0") == for_1_0
    assert properties_for_version(canonical, "1.1") == for_1_1
    assert properties_for_version(canonical, "1.2") == canonical


@pytest.mark.parametrize(
    "damaged",
    [
        b"a:b",
        b"\n",
        b"a:b\n\n",
        b"ab\n",
        b":b\n",
        b"a:b:c\n",
        b"a:b\rc\n",
        b"a:b\0c\n",
        b"a:\\t\n",
        b"a:\\\n",
        b"a:\xff\n",
    ],
)
def test_damaged_properties(damaged):
    with pytest.raises(LocalProtocolError, match="properties"):
        parse_properties(damaged)


TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15
)
HEADERS = st.lists(st.tuples(TEXT, TEXT | st.just("")), max_size=6).map(
    lambda pairs: [(name, value) for name, value in pairs if name not in TRANSPORT]
)


@settings(deadline=None)
@given(HEADERS)
def test_round_trip(headers):
    assert parse_properties(canonical_properties(Frame("SEND", headers))) == headers


@settings(deadline=None)
@given(HEADERS, st.sampled_from(VERSIONS))
@example([("\n", "\n"), ("\r", "\r"), (":", ":"), ("\\", "\\")], "1.0")
def test_every_consumer_reads_as_many_headers_as_were_sent(headers, version):
    own = [("destination", "d"), ("message-id", "1-1"), ("subscription", "0")]
    headers = [(name, value) for name, value in headers if name.strip(" \t")]
    properties = canonical_properties(Frame("SEND", headers))
    decoder = StompDecoder(role="client")
    decoder.set_version(version)
    decoder.feed(encode_message(own, properties, b"body", version))
    event = decoder.next_event()
    assert isinstance(event, Frame)
    assert decoder.next_event() is NEED_DATA
    assert len(event.headers) == len(own) + 1 + len(headers)
    assert event.body == b"body"
    if version != "1.0":
        assert event.headers[4:] == headers


# --- ids and modes -------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_message_ids_round_trip(queue_id, seq):
    text = format_message_id(queue_id, seq)
    assert text == f"{queue_id}-{seq}"
    assert parse_message_id(text) == (queue_id, seq)


@pytest.mark.parametrize(("queue_id", "seq"), [(-1, 0), (0, -1), (2**32, 0), (0, 2**64)])
def test_message_ids_out_of_range(queue_id, seq):
    with pytest.raises(LocalProtocolError, match="out of range"):
        format_message_id(queue_id, seq)
    with pytest.raises(RemoteProtocolError, match="not a message id"):
        parse_message_id(f"{queue_id}-{seq}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1-",
        "-1",
        "1",
        "1-2-3",
        "01-2",
        "1-02",
        "1-2\n",
        " 1-2",
        "1_2",
        "+1-2",
        "a-b",
        "1-\u0662",
        "ID:host-1-2",
        "9" * 500 + "-1",
    ],
)
def test_only_one_spelling_of_a_message_id(text):
    with pytest.raises(RemoteProtocolError, match="not a message id") as caught:
        parse_message_id(text)
    assert len(caught.value.reason) < 200


@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_ack_modes(mode):
    assert parse_ack_mode(Frame("SUBSCRIBE", [("ack", mode)])) == mode


def test_the_default_ack_mode_is_auto():
    assert parse_ack_mode(Frame("SUBSCRIBE")) == "auto"


@pytest.mark.parametrize("mode", ["", "Auto", "dups-ok", "client individual"])
def test_unknown_ack_modes(mode):
    frame = Frame("SUBSCRIBE", [("ack", mode), ("receipt", "4")])
    with pytest.raises(RemoteProtocolError, match="client-individual") as caught:
        parse_ack_mode(frame)
    assert caught.value.receipt_id == "4"

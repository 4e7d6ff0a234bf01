"""The STOMP decoder: what each version accepts, octet by octet, however it is cut."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vespiary_codec
import vespiary_spec
from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    Frame,
    HeartBeat,
    LocalProtocolError,
    RemoteProtocolError,
    StompDecoder,
    Violation,
    encode,
)
from vespiary_testkit.stomp_decoding import decode, decoder_for, error_of, frame_of, halves, octets

# --- frames ------------------------------------------------------------------------------------

SEND = b"SEND\ndestination:/queue/a\ncontent-length:5\n\nhe\0lo\0"
SESSION = (
    b"SEND\ndestination:/queue/a\nreceipt:1\n\nhello\0\n\n"
    + SEND
    + b"\r\nACK\nid:7-1\nmessage-id:7-1\nsubscription:0\n\n\0BEGIN\ntransaction:t\n\n\0"
)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_with_content_length(version):
    frame = frame_of(SEND, version)
    assert frame == Frame("SEND", [("destination", "/queue/a"), ("content-length", "5")], b"he\0lo")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_without_content_length_ends_at_the_nul(version):
    frames, _, error = decode(b"SEND\ndestination:a\n\none\0SEND\ndestination:b\n\n\0", version)
    assert error is None
    assert [(f.get("destination"), f.body) for f in frames] == [("a", b"one"), ("b", b"")]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_way_to_cut_a_session_in_two(version):
    whole = decode(SESSION, version)
    assert whole[2] is None
    assert len(whole[0]) == 4
    assert whole[1] == 3
    assert decode(SESSION, version, pieces=octets(SESSION)) == whole
    for pieces in halves(SESSION):
        assert decode(SESSION, version, pieces=pieces) == whole


def test_bytearray_and_memoryview_are_copied():
    data = bytearray(SEND)
    decoder = decoder_for("1.2")
    decoder.feed(memoryview(data)[:20])
    decoder.feed(data[20:])
    data[:] = b"?" * len(data)
    event = decoder.next_event()
    assert isinstance(event, Frame)
    assert event.body == b"he\0lo"


def test_the_first_of_a_repeated_header_counts():
    frame = frame_of(b"SEND\ndestination:a\nfoo:World\nfoo:Hello\n\n\0")
    assert frame.get("foo") == "World"
    assert frame.get_all("foo") == ["World", "Hello"]
    assert frame.get("bar") is None
    assert frame.get("bar", "x") == "x"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_blanks_are_part_of_names_and_values(version):
    frame = frame_of(b"SEND\ndestination: a \n key :v\n\n\0", version)
    assert frame.headers == [("destination", " a "), (" key ", "v")]


def test_blanks_are_dropped_in_1_0():
    frame = frame_of(b"SEND\ndestination: /queue/a \ncontent-length: 2\t\n key : v\n\nab\0", "1.0")
    assert frame.headers == [("destination", "/queue/a"), ("content-length", "2"), ("key", "v")]
    assert frame.body == b"ab"


def test_a_second_colon_belongs_to_the_value():
    assert frame_of(b"SEND\ndestination:a:b:c\n\n\0").get("destination") == "a:b:c"


def test_an_empty_value():
    assert frame_of(b"SEND\ndestination:a\nempty:\n\n\0").get("empty") == ""


def test_headers_are_utf8():
    frame = frame_of("SEND\ndestination:größe/✓\nclé:värde\n\n\0".encode())
    assert frame.headers == [("destination", "größe/✓"), ("clé", "värde")]


# --- escapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "wire", "expected"),
    [
        ("1.0", rb"a\n\c\\\r\t", r"a\n\c\\\r\t"),
        ("1.1", rb"a\nb\cc\\n", "a\nb:c\\n"),
        ("1.2", rb"a\nb\cc\\n\r", "a\nb:c\\n\r"),
        ("1.2", rb"\\\\c", r"\\c"),
        ("1.2", rb"\\\c", "\\:"),
    ],
)
def test_escapes(version, wire, expected):
    frame = frame_of(b"SEND\ndestination:a\nkey" + wire + b":" + wire + b"\n\n\0", version)
    assert frame.headers[1] == ("key" + expected, expected)


@pytest.mark.parametrize(
    ("version", "wire"),
    [
        ("1.1", rb"\r"),
        ("1.1", rb"\t"),
        ("1.2", rb"\t"),
        ("1.2", rb"\N"),
        ("1.2", b"\\"),
        ("1.2", rb"\\\ "),
        ("1.2", "\\é".encode()),
    ],
)
@pytest.mark.parametrize("template", [b"key:%s", b"%s:value"])
def test_undefined_escapes(version, wire, template):
    error = error_of(b"SEND\ndestination:a\n" + template % wire + b"\n\n\0", version)
    assert error.violation is Violation.UNDEFINED_ESCAPE
    assert version in error.reason


@pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
def test_a_login_is_never_unescaped(command):
    frame = frame_of(command + b"\npasscode:a\\tb\\c:\\\n\n\0", None)
    assert frame.get("passcode") == "a\\tb\\c:\\"


def test_connected_is_never_unescaped():
    frame = frame_of(b"CONNECTED\nversion:1.2\nsession:a\\qb\n\n\0", None, role="client")
    assert frame.get("session") == "a\\qb"


# --- ends of line ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, *VERSIONS])
def test_crlf_frames_are_read_in_every_version(version):
    command = b"CONNECT" if version is None else b"SEND"
    data = command + b"\r\ndestination:a\r\nk:v\r\n\r\n\0\r\n"
    frames, line_ends, error = decode(data, version)
    assert error is None
    assert frames == [Frame(command.decode(), [("destination", "a"), ("k", "v")])]
    assert line_ends == 1
    assert decode(data, version, pieces=octets(data)) == (frames, line_ends, error)


def test_a_body_of_a_crlf_frame_keeps_its_line_ends():
    frame = frame_of(b"SEND\r\ndestination:a\r\n\r\n\r\nx\r\n\0", "1.1")
    assert frame.body == b"\r\nx\r\n"


def test_line_ends_may_be_mixed_in_1_2():
    assert frame_of(b"SEND\ndestination:a\r\nk:v\n\r\n\0").headers == [
        ("destination", "a"),
        ("k", "v"),
    ]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_carriage_return_is_data_in_a_1_1_frame_with_plain_line_ends(version):
    frame = frame_of(b"SEND\ndestination:a\nk:v\r\nj:x\ry\n\n\0", version)
    assert frame.headers == [("destination", "a"), ("k", "v\r"), ("j", "x\ry")]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_line_of_one_carriage_return_is_not_blank_in_a_frame_with_plain_line_ends(version):
    error = error_of(b"SEND\ndestination:a\n\r\n\0", version)
    assert error.violation is Violation.MALFORMED_HEADER


@pytest.mark.parametrize("version", [None, "1.2"])
def test_a_carriage_return_inside_a_line_is_refused(version):
    command = b"CONNECT" if version is None else b"SEND"
    error = error_of(command + b"\ndestination:a\rb\n\n\0", version)
    assert error.violation is Violation.MALFORMED_HEADER
    assert "carriage return" in error.reason


# --- heart-beats ---------------------------------------------------------------------------------


def test_line_ends_between_frames_are_heart_beats():
    frames, line_ends, error = decode(b"\n\r\n\n" + SEND + b"\n" + SEND + b"\r\n\n")
    assert error is None
    assert len(frames) == 2
    assert line_ends == 6


def test_one_run_of_line_ends_is_one_event():
    decoder = decoder_for("1.2")
    decoder.feed(b"\n" * 50_000)
    assert decoder.next_event() == HeartBeat(50_000)
    assert decoder.next_event() is NEED_DATA


def test_a_line_end_cut_in_two():
    decoder = decoder_for("1.2")
    decoder.feed(b"\r")
    assert decoder.next_event() is NEED_DATA
    decoder.feed(b"\n")
    assert decoder.next_event() == HeartBeat(1)
    assert not decoder.is_mid_frame


# --- the object ----------------------------------------------------------------------------------


def test_an_error_is_final():
    decoder = decoder_for("1.2")
    decoder.feed(SEND + b"NOPE\n\n\0" + SEND)
    assert isinstance(decoder.next_event(), Frame)
    with pytest.raises(RemoteProtocolError) as first:
        decoder.next_event()
    decoder.feed(SEND)
    assert decoder.buffered_bytes == 0
    with pytest.raises(RemoteProtocolError) as second:
        decoder.next_event()
    assert second.value is first.value


def test_the_version_applies_from_the_next_frame_on():
    decoder = StompDecoder()
    decoder.feed(b"CONNECT\naccept-version:1.2\nhost:\\q\n\n\0SEND\ndestination:a\\cb\n\n\0")
    connect = decoder.next_event()
    assert isinstance(connect, Frame)
    assert decoder.version is None
    decoder.set_version("1.2")
    send = decoder.next_event()
    assert isinstance(send, Frame)
    assert send.get("destination") == "a:b"
    assert decoder.version == "1.2"


def test_the_version_is_set_once_and_between_frames():
    decoder = StompDecoder()
    decoder.feed(b"CONNECT\nlogin:a\n")
    assert decoder.next_event() is NEED_DATA
    with pytest.raises(LocalProtocolError, match="inside a frame"):
        decoder.set_version("1.2")
    decoder = decoder_for("1.1")
    with pytest.raises(LocalProtocolError, match=r"is 1\.1 already"):
        decoder.set_version("1.2")


def test_what_is_buffered():
    decoder = decoder_for("1.2")
    assert not decoder.is_mid_frame
    decoder.feed(SEND + SEND[:9])
    assert isinstance(decoder.next_event(), Frame)
    assert decoder.next_event() is NEED_DATA
    assert decoder.buffered_bytes == 9
    assert decoder.is_mid_frame
    decoder.feed(SEND[9:])
    assert isinstance(decoder.next_event(), Frame)
    assert decoder.buffered_bytes == 0
    assert not decoder.is_mid_frame


class CountingBytearray(bytearray):
    """Counts the octets that `find` may look at."""

    examined = 0

    def find(self, sub, start=0, end=None):
        end = len(self) if end is None else min(end, len(self))
        CountingBytearray.examined += max(0, end - start)
        return super().find(sub, start, end)


def test_a_body_is_scanned_once_however_it_arrives():
    decoder = decoder_for("1.2")
    decoder._buffer = CountingBytearray()
    CountingBytearray.examined = 0
    decoder.feed(b"SEND\ndestination:a\n\n")
    for _ in range(1000):
        decoder.feed(b"x" * 100)
        assert decoder.next_event() is NEED_DATA
    assert 100_000 <= CountingBytearray.examined < 110_000


def test_the_codec_runs_on_a_bare_interpreter():
    folders = [
        str(Path(package.__file__).parent.parent) for package in (vespiary_codec, vespiary_spec)
    ]
    code = (
        f"import sys; sys.path[:0] = {folders!r}\n"
        "import vespiary_codec.wire.stomp\n"
        "unwanted = {'asyncio', 'socket', 'logging', 'threading', 'msgspec'}\n"
        "print(sorted(unwanted & sys.modules.keys()))"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"


# --- round trips ---------------------------------------------------------------------------------

TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)
PLAIN = st.text(
    st.characters(exclude_characters="\0\r\n: \t", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
)


def sends(text, length_header):
    headers = st.lists(st.tuples(text, text), max_size=6).map(
        lambda pairs: [(n, v) for n, v in pairs if n not in ("content-length", "destination")]
    )
    return st.builds(
        lambda destination, more, body: Frame(
            "SEND",
            [("destination", destination), *more, *length_header(body)],
            body,
        ),
        text,
        headers,
        st.binary(max_size=80),
    )


def with_length(body):
    return [("content-length", str(len(body)))]


def cut(data, places):
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["1.1", "1.2"]),
    st.lists(sends(TEXT, with_length), min_size=1, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.integers(0, 2),
)
def test_round_trip_however_it_is_cut(version, frames, places, line_ends):
    data = b"".join(encode(frame, version) + b"\n" * line_ends for frame in frames)
    result, beats, error = decode(data, version, pieces=cut(data, places))
    assert error is None
    assert result == frames
    assert beats == line_ends * len(frames)


@settings(deadline=None, max_examples=80)
@given(sends(PLAIN, with_length), st.lists(st.integers(0, 10_000), max_size=12))
def test_round_trip_in_1_0(frame, places):
    data = encode(frame, "1.0")
    result, _, error = decode(data, "1.0", pieces=cut(data, places))
    assert error is None
    assert result == [frame]

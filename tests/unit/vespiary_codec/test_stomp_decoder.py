"""The STOMP decoder: what each version accepts, what it refuses and why, byte by byte."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import vespiary_codec
import vespiary_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    Frame,
    HeartBeat,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    StompDecoder,
    StompLimits,
    Violation,
    encode,
)


def decoder_for(version, *, role="server", limits=None):
    """Return a decoder that has its login behind it, or not if `version` is None."""
    decoder = StompDecoder(limits, role=role)
    if version is not None:
        decoder.set_version(version)
    return decoder


def decode(data, version="1.2", *, role="server", limits=None, pieces=None):
    """Return the frames in `data`, the number of ends of line between them, and the error."""
    decoder = decoder_for(version, role=role, limits=limits)
    frames, line_ends = [], 0
    for piece in [data] if pieces is None else pieces:
        decoder.feed(piece)
        try:
            while (event := decoder.next_event()) is not NEED_DATA:
                if isinstance(event, HeartBeat):
                    line_ends += event.count
                else:
                    frames.append(event)
        except RemoteProtocolError as error:
            return frames, line_ends, error
    return frames, line_ends, None


def octets(data):
    return [data[i : i + 1] for i in range(len(data))]


def frame_of(data, version="1.2", **options):
    frames, _, error = decode(data, version, **options)
    assert error is None
    (frame,) = frames
    return frame


def error_of(data, version="1.2", **options):
    """Return the error, which must be the same for every way to cut the data in two."""
    frames, line_ends, error = decode(data, version, **options)
    assert error is not None, f"accepted: {frames}"
    cuts = [octets(data)] if len(data) > 400 else [octets(data), *halves(data)]
    for pieces in cuts:
        again_frames, again_line_ends, again = decode(data, version, pieces=pieces, **options)
        assert (again_frames, again_line_ends) == (frames, line_ends)
        assert (again.violation, again.reason) == (error.violation, error.reason)
        assert again.receipt_id == error.receipt_id
    assert "\n" not in error.reason
    assert error.reason.isascii()
    return error


def halves(data):
    return [(data[:cut], data[cut:]) for cut in range(len(data) + 1)]


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


# --- commands ----------------------------------------------------------------------------------

CLIENT_1_0 = {"SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "BEGIN", "COMMIT", "ABORT", "DISCONNECT"}
ACCEPTED = {
    ("server", None): {"CONNECT", "STOMP"},
    ("server", "1.0"): CLIENT_1_0,
    ("server", "1.1"): CLIENT_1_0 | {"NACK"},
    ("server", "1.2"): CLIENT_1_0 | {"NACK"},
    ("client", None): {"CONNECTED", "ERROR"},
    ("client", "1.0"): {"MESSAGE", "RECEIPT", "ERROR"},
    ("client", "1.1"): {"MESSAGE", "RECEIPT", "ERROR"},
    ("client", "1.2"): {"MESSAGE", "RECEIPT", "ERROR"},
}
EVERY_COMMAND = sorted(set().union(*ACCEPTED.values()))
EVERY_HEADER = (
    b"destination:d\nid:i\nmessage-id:m\nsubscription:s\ntransaction:t\nreceipt-id:r\nversion:1.2\n"
)


@pytest.mark.parametrize(("role", "version"), ACCEPTED)
@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_which_commands_exist(role, version, command):
    data = command.encode() + b"\n" + EVERY_HEADER + b"\n\0"
    if command in ACCEPTED[role, version]:
        assert frame_of(data, version, role=role).command == command
    else:
        error = error_of(data, version, role=role)
        assert error.violation is Violation.UNEXPECTED_COMMAND
        assert command in error.reason


@pytest.mark.parametrize(
    "line",
    [
        b"FOO",
        b"send",
        b" SEND",
        b"SEND ",
        b"SEND\r\r",
        b"\rSEND",
        b"GET / HTTP/1.1",
        b"GET /a/long/path/to/something HTTP/1.1",
        b"\xff\xfe",
        b"SENDSENDSENDSENDSENDSENDSEND",
    ],
)
@pytest.mark.parametrize("version", [None, *VERSIONS])
def test_unknown_commands(line, version):
    error = error_of(line + b"\n\n\0", version)
    assert error.violation is Violation.UNKNOWN_COMMAND
    assert "unknown command" in error.reason


def test_a_command_line_without_end_is_refused_early():
    decoder = decoder_for(None)
    decoder.feed(b"A" * 16)
    assert decoder.next_event() is NEED_DATA
    decoder.feed(b"A")
    with pytest.raises(RemoteProtocolError, match="unknown command"):
        decoder.next_event()


REQUIRED = {
    ("server", "1.0"): {
        "SEND": ["destination"],
        "SUBSCRIBE": ["destination"],
        "UNSUBSCRIBE": ["id or destination"],
        "ACK": ["message-id"],
    },
    ("server", "1.1"): {
        "SEND": ["destination"],
        "SUBSCRIBE": ["destination", "id"],
        "UNSUBSCRIBE": ["id"],
        "ACK": ["message-id", "subscription"],
        "NACK": ["message-id", "subscription"],
    },
    ("server", "1.2"): {
        "SEND": ["destination"],
        "SUBSCRIBE": ["destination", "id"],
        "UNSUBSCRIBE": ["id"],
        "ACK": ["id"],
        "NACK": ["id"],
    },
    ("client", "1.0"): {"MESSAGE": ["destination", "message-id"], "RECEIPT": ["receipt-id"]},
    ("client", "1.1"): {
        "MESSAGE": ["destination", "message-id", "subscription"],
        "RECEIPT": ["receipt-id"],
    },
}
REQUIRED["client", "1.2"] = REQUIRED["client", "1.1"]
for _version in VERSIONS:
    for _command in ("BEGIN", "COMMIT", "ABORT"):
        REQUIRED["server", _version][_command] = ["transaction"]

REQUIREMENTS = [
    (role, version, command, names)
    for (role, version), commands in REQUIRED.items()
    for command, names in commands.items()
]


@pytest.mark.parametrize(("role", "version", "command", "names"), REQUIREMENTS)
def test_required_headers(role, version, command, names):
    def build(without=None, value="x"):
        lines = [f"{name.split(' ')[0]}:{value}\n" for name in names if name != without]
        return f"{command}\nreceipt:r-9\n{''.join(lines)}\n\0".encode()

    frame_of(build(), version, role=role)
    for name in names:
        missing = error_of(build(without=name), version, role=role)
        assert missing.violation is Violation.MISSING_HEADER
        assert f"{command} has no {name} header" in missing.reason
        assert version in missing.reason
        assert missing.receipt_id == "r-9"
    empty = error_of(build(value=""), version, role=role)
    assert empty.violation is Violation.MISSING_HEADER
    assert "empty" in empty.reason


def test_the_table_of_required_headers_is_whole():
    without = {("server", "DISCONNECT"), ("client", "ERROR")}
    tested = {(role, version, command) for role, version, command, _ in REQUIREMENTS}
    for (role, version), commands in ACCEPTED.items():
        for command in commands:
            if version is not None and (role, command) not in without:
                assert (role, version, command) in tested


def test_unsubscribe_by_destination_in_1_0():
    assert frame_of(b"UNSUBSCRIBE\ndestination:a\n\n\0", "1.0").get("destination") == "a"


# --- bodies --------------------------------------------------------------------------------------

BODYLESS = sorted(ACCEPTED["server", "1.2"] - {"SEND"})


@pytest.mark.parametrize("command", BODYLESS)
@pytest.mark.parametrize("version", ["1.1", "1.2"])
@pytest.mark.parametrize("body", [b"\nx\0", b"content-length:1\n\nx\0", b"\n\n\0"])
def test_a_body_where_none_is_allowed(command, version, body):
    data = command.encode() + b"\nreceipt:5\n" + EVERY_HEADER + body
    error = error_of(data, version)
    assert error.violation is Violation.UNEXPECTED_BODY
    assert error.receipt_id == "5"


@pytest.mark.parametrize("command", sorted(ACCEPTED["server", "1.0"] - {"SEND"}))
def test_such_a_body_is_dropped_in_1_0(command):
    frame = frame_of(command.encode() + b"\n" + EVERY_HEADER + b"\nbody\n\0", "1.0")
    assert frame.body == b""


def test_such_a_body_is_dropped_before_the_login():
    assert frame_of(b"CONNECT\nlogin:a\n\n\n\n\0", None).body == b""


@pytest.mark.parametrize("command", BODYLESS)
def test_an_announced_empty_body_is_no_body(command):
    frame = frame_of(command.encode() + b"\n" + EVERY_HEADER + b"content-length:0\n\n\0")
    assert frame.body == b""


def test_a_large_body_in_small_pieces():
    body = bytes(range(256)) * 2048
    data = encode(Frame("SEND", [("destination", "a")], body), "1.2")
    pieces = [data[i : i + 4099] for i in range(0, len(data), 4099)]
    frames, _, error = decode(data, pieces=pieces)
    assert error is None
    assert frames[0].body == body


@pytest.mark.parametrize(
    "value",
    [
        "-1",
        "-9223372036854775808",
        "+5",
        " 5",
        "5 ",
        "",
        "0x5",
        "5.0",
        "1e3",
        "five",
        "5,5",
        "\u0665",
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_content_length_that_is_no_number(value, version):
    data = f"SEND\ndestination:a\nreceipt:r\ncontent-length:{value}\n\nhello\0".encode()
    error = error_of(data, version)
    assert error.violation is Violation.CONTENT_LENGTH
    assert error.receipt_id == "r"


@pytest.mark.parametrize("value", ["-1", "+5", "5 5", "", "-", "\u0665"])
def test_a_content_length_that_is_no_number_in_1_0(value):
    error = error_of(f"SEND\ndestination:a\ncontent-length:{value}\n\nhello\0".encode(), "1.0")
    assert error.violation is Violation.CONTENT_LENGTH


@pytest.mark.parametrize(
    "value", ["104857601", "4294967296", "18446744073709551616", "9" * 5000, "2147483648"]
)
def test_a_huge_content_length_is_refused_at_the_end_of_the_headers(value):
    error = error_of(f"SEND\ndestination:a\ncontent-length:{value}\n\n".encode())
    assert isinstance(error, LimitExceeded)
    assert error.violation is Violation.BODY_BYTES
    assert "at most 104857600" in error.reason


def test_leading_zeros_are_digits():
    data = b"SEND\ndestination:a\ncontent-length:" + b"0" * 30 + b"5\n\nhello\0"
    assert frame_of(data).body == b"hello"


def test_the_first_content_length_counts():
    assert (
        frame_of(b"SEND\ndestination:a\ncontent-length:1\ncontent-length:-7\n\n\0\0").body == b"\0"
    )


@pytest.mark.parametrize("tail", [b"hellox\0", b"hello\n\0", b"hello" + SEND])
def test_after_the_announced_body_a_nul_must_stand(tail):
    error = error_of(b"SEND\ndestination:a\nreceipt:z\ncontent-length:5\n\n" + tail)
    assert error.violation is Violation.UNTERMINATED_BODY
    assert error.receipt_id == "z"


# --- malformed headers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "violation"),
    [
        (b"no colon here", Violation.MALFORMED_HEADER),
        (b":value", Violation.MALFORMED_HEADER),
        (b" ", Violation.MALFORMED_HEADER),
        (b"key:\xff", Violation.NOT_UTF8),
        (b"\xc3:v", Violation.NOT_UTF8),
        (b"key:\xed\xa0\x80", Violation.NOT_UTF8),
        (b"key:\xc0\x80", Violation.NOT_UTF8),
        (b"key:a\0b", Violation.NUL_IN_HEADERS),
        (b"\0", Violation.NUL_IN_HEADERS),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_malformed_header_lines(line, violation, version):
    error = error_of(b"SEND\ndestination:a\n" + line + b"\n\nbody\0", version)
    assert error.violation is violation


def test_an_empty_name_after_trimming_in_1_0():
    assert error_of(b"SEND\n  :v\n\n\0", "1.0").violation is Violation.MALFORMED_HEADER


@pytest.mark.parametrize("data", [b"\0", b"SE\0", b"SEND\0", b"DISCONNECT\nreceipt:77\n\0"])
def test_a_frame_that_ends_before_its_blank_line(data):
    assert error_of(data).violation is Violation.NUL_IN_HEADERS


# --- limits --------------------------------------------------------------------------------------

SMALL = StompLimits(
    header_count=3,
    header_line_bytes=20,
    header_bytes=60,
    body_bytes=10,
    before_login_bytes=50,
)


def padded(size):
    """Return a header line of `size` octets without its line feed."""
    return b"k:" + b"v" * (size - 2)


def test_header_count():
    head = b"SEND\ndestination:a\n"
    assert len(frame_of(head + b"b:1\nc:2\n\n\0", limits=SMALL).headers) == 3
    error = error_of(head + b"b:1\nc:2\nd:3\n\n\0", limits=SMALL)
    assert isinstance(error, LimitExceeded)
    assert error.violation is Violation.HEADER_COUNT
    assert "at most 3" in error.reason


def test_header_line_bytes():
    head = b"SEND\ndestination:a\n"
    frame_of(head + padded(20) + b"\n\n\0", limits=SMALL)
    error = error_of(head + padded(21) + b"\n\n\0", limits=SMALL)
    assert error.violation is Violation.HEADER_LINE_BYTES
    assert "at least 21" in error.reason
    assert "at most 20" in error.reason


def test_header_bytes():
    head = b"SEND\ndestination:a\n"  # 19 octets, and one for the blank line: 40 are left
    frame_of(head + padded(20) + b"\n" + padded(18) + b"\n\n\0", limits=SMALL)
    error = error_of(head + padded(20) + b"\n" + padded(19) + b"\n\n\0", limits=SMALL)
    assert error.violation is Violation.HEADER_BYTES
    assert "at most 60" in error.reason


def test_body_bytes():
    head = b"SEND\ndestination:a\n"
    frame_of(head + b"\n0123456789\0", limits=SMALL)
    frame_of(head + b"content-length:10\n\n0123456789\0", limits=SMALL)
    for rest in (b"\n0123456789a\0", b"\n0123456789a", b"content-length:11\n\n"):
        error = error_of(head + rest, limits=SMALL)
        assert isinstance(error, LimitExceeded)
        assert error.violation is Violation.BODY_BYTES
        assert "at most 10" in error.reason


def test_limits_before_the_login():
    head = b"CONNECT\nlogin:a\n\n"  # 17 octets
    frame_of(head + b"0123456789\0", None, limits=SMALL)
    tight = StompLimits(before_login_bytes=27)
    frame_of(head + b"123456789\0", None, limits=tight)
    error = error_of(head + b"1234567890\0", None, limits=tight)
    assert error.violation is Violation.BODY_BYTES
    assert "before the login" in error.reason
    frame_of(b"CONNECT\n" + padded(16) + b"\n\n\0", None, limits=tight)
    error = error_of(b"CONNECT\n" + padded(17) + b"\n\n\0", None, limits=tight)
    assert error.violation is Violation.HEADER_BYTES
    assert "before the login" in error.reason


def feed_until_refused(decoder, piece):
    """Feed the same piece again and again; return the error and the octets sent up to it."""
    for count in range(1, 100_000):
        decoder.feed(piece)
        try:
            assert decoder.next_event() is NEED_DATA
        except LimitExceeded as error:
            return error, count * len(piece)
    raise AssertionError("never refused")


@pytest.mark.parametrize(
    ("version", "allowed"), [(None, 8 * 1024), ("1.0", 65536), ("1.1", 65536), ("1.2", 65536)]
)
def test_endless_headers_are_cut_off(version, allowed):
    decoder = decoder_for(version)
    decoder.feed(b"CONNECT\n" if version is None else b"SEND\n")
    error, sent = feed_until_refused(decoder, b"x" * 64 + b":" + b"y" * 934 + b"\n")
    assert error.violation is Violation.HEADER_BYTES
    assert allowed - 1000 < sent <= allowed + 1000
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("version", [None, "1.2"])
def test_an_endless_header_line_is_cut_off(version):
    decoder = decoder_for(version)
    decoder.feed(b"CONNECT\nkey:" if version is None else b"SEND\nkey:")
    error, sent = feed_until_refused(decoder, b"y" * 512)
    assert sent <= 8 * 1024 + 512
    expected = Violation.HEADER_BYTES if version is None else Violation.HEADER_LINE_BYTES
    assert error.violation is expected


def test_a_body_without_nul_is_cut_off():
    decoder = decoder_for("1.2", limits=StompLimits(body_bytes=10_000))
    decoder.feed(b"SEND\ndestination:a\n\n")
    error, sent = feed_until_refused(decoder, b"b" * 512)
    assert error.violation is Violation.BODY_BYTES
    assert sent <= 10_000 + 512


@pytest.mark.parametrize(
    "name",
    ["header_count", "header_line_bytes", "header_bytes", "body_bytes", "before_login_bytes"],
)
def test_limits_have_a_least_value(name):
    with pytest.raises(ValueError, match=name):
        StompLimits(**{name: -1})


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

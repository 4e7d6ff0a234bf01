"""Bodies, malformed headers and limits: what the STOMP decoder refuses, and how early."""

import pytest

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    Frame,
    LimitExceeded,
    StompLimits,
    Violation,
    encode,
)
from vespiary_testkit.stomp_decoding import decode, decoder_for, error_of, frame_of

# --- bodies --------------------------------------------------------------------------------------

BODYLESS_1_0 = ["ABORT", "ACK", "BEGIN", "COMMIT", "DISCONNECT", "SUBSCRIBE", "UNSUBSCRIBE"]
BODYLESS = [*BODYLESS_1_0, "NACK"]
EVERY_HEADER = b"destination:d\nid:i\nmessage-id:m\nsubscription:s\ntransaction:t\n"


@pytest.mark.parametrize("command", BODYLESS)
@pytest.mark.parametrize("version", ["1.1", "1.2"])
@pytest.mark.parametrize("body", [b"\nx\0", b"content-length:1\n\nx\0", b"\n\n\0"])
def test_a_body_where_none_is_allowed(command, version, body):
    data = command.encode() + b"\nreceipt:5\n" + EVERY_HEADER + body
    error = error_of(data, version)
    assert error.violation is Violation.UNEXPECTED_BODY
    assert error.receipt_id == "5"


@pytest.mark.parametrize("command", BODYLESS_1_0)
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
    head = b"SEND\ndestination:a\ncontent-length:"
    assert frame_of(head + b"0" * 17 + b"5\n\nhello\0").body == b"hello"
    error = error_of(head + b"0" * 18 + b"5\n\nhello\0")
    assert error.violation is Violation.BODY_BYTES
    assert "19 digits" in error.reason


def test_the_first_content_length_counts():
    assert (
        frame_of(b"SEND\ndestination:a\ncontent-length:1\ncontent-length:-7\n\n\0\0").body == b"\0"
    )


@pytest.mark.parametrize("tail", [b"hellox\0", b"hello\n\0", b"helloSEND\n\n\0"])
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

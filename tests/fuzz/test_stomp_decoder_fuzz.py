"""Fuzz target of the STOMP decoder.

As a test it runs a bounded number of inputs, and what is kept in its corpus; as a program any
number, at random or guided by coverage (`vespiary_testkit.fuzz_target`).

Whatever the bytes, these hold: only RemoteProtocolError comes out; how the bytes are cut changes
neither the events nor the error; nothing beyond the limits is kept; a frame that was read can be
printed, and is read as the same frame again; its properties survive the journal.
"""

import random
import sys

from hypothesis import example, given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    Frame,
    HeartBeats,
    LocalProtocolError,
    Login,
    RemoteProtocolError,
    StompDecoder,
    StompLimits,
    Violation,
    canonical_properties,
    encode,
    negotiate,
    parse_properties,
    properties_for_version,
)
from vespiary_testkit.fuzz_target import FuzzTarget, corpus, in_pieces, likely_inputs, main
from vespiary_testkit.seeds import seed_for

LIMITS = StompLimits(
    header_count=6,
    header_line_bytes=64,
    header_bytes=160,
    body_bytes=96,
    before_login_bytes=128,
)
LARGEST_FRAME_BYTES = LIMITS.header_bytes + LIMITS.body_bytes + 1
SETTINGS = [(role, version) for role in ("server", "client") for version in (None, *VERSIONS)]


def run(pieces, role, version):
    """Return all frames, the number of ends of line, and the error of one decoder."""
    decoder = StompDecoder(LIMITS, role=role)
    if version is not None:
        decoder.set_version(version)
    frames, line_ends = [], 0
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (event := decoder.next_event()) is not NEED_DATA:
                if isinstance(event, Frame):
                    frames.append((decoder.version, event))
                    if decoder.version is None:
                        log_in(decoder, event)
                else:
                    line_ends += event.count
            assert decoder.buffered_bytes <= LARGEST_FRAME_BYTES, "kept more than a frame"
    except RemoteProtocolError as error:
        return frames, line_ends, (error.violation, error.reason, error.receipt_id)
    return frames, line_ends, None


def log_in(decoder, frame):
    """Set the version that a login asks for, as a broker or a client would."""
    if frame.command in ("CONNECT", "STOMP"):
        answer = negotiate(frame, HeartBeats(10, 10))
        if isinstance(answer, Login):
            decoder.set_version(answer.version)
        else:
            assert encode(answer.frame, "1.0").endswith(b"\0")
    elif frame.command == "CONNECTED" and frame.get("version") in VERSIONS:
        decoder.set_version(frame.get("version"))


def check_frame(frame, role, version):
    """Print a frame and read it again; keep its properties and read them again."""
    kept = [pair for pair in frame.headers if pair[0] != "content-length"]
    try:
        data = encode(Frame(frame.command, kept, frame.body), version or "1.0")
    except LocalProtocolError:
        # An ERROR that a client reads before the login has no escapes, so its reader is milder.
        if version is not None:
            raise
        return
    wide = StompDecoder(role=role)
    if version is not None:
        wide.set_version(version)
    wide.feed(data)
    again = wide.next_event()
    assert isinstance(again, Frame)
    assert again.command == frame.command
    assert again.body == frame.body
    assert [pair for pair in again.headers if pair[0] != "content-length"] == kept
    properties = canonical_properties(frame)
    parsed = parse_properties(properties)
    assert canonical_properties(Frame("SEND", parsed)) == properties
    for consumer in VERSIONS:
        assert properties_for_version(properties, consumer).count(b"\n") == len(parsed)


def check(data):
    """Run one input: two bytes that choose the setting and the cuts, then the stream."""
    if len(data) < 2:
        return
    role, version = SETTINGS[data[0] % len(SETTINGS)]
    stream = data[2:]
    whole = run([stream], role, version)
    assert run(in_pieces(data[1], stream), role, version) == whole
    for spoken, frame in whole[0]:
        check_frame(frame, role, spoken)


# --- inputs --------------------------------------------------------------------------------------

TOKENS = [
    *(b"CONNECT STOMP SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT".split()),
    *(b"CONNECTED MESSAGE RECEIPT ERROR".split()),
    *(b"destination id message-id subscription transaction receipt receipt-id ack".split()),
    *(b"content-length accept-version version heart-beat host".split()),
    *(b"0 1 5 96 97 -1 +5 1.0 1.1 1.2 1.0,1.1,1.2 99999999999999999999 0,0 10,10".split()),
    *(rb"\n \c \r \\ \t".split()),
    *[b"\n", b"\r\n", b"\r", b":", b"\0", b" ", b"\\", b"\xff", "é✓".encode(), b"\n\n", b"\0\n"],
    b"x" * 40,
    b"SEND\ndestination:a\n",
    b"SEND\r\ndestination:a\r\n",
    b"content-length:5\n\nhe\0lo\0",
    b"MESSAGE\ndestination:a\nmessage-id:1-1\nsubscription:0\n",
    b"CONNECT\naccept-version:1.2\n\n\0",
    b"CONNECT\n\n\0",
    b"CONNECTED\nversion:1.1\n\n\0",
    b"ACK\nid:1-1\nmessage-id:1-1\nsubscription:0\n\n\0",
]


COMMANDS = {
    ("server", None): [b"CONNECT", b"STOMP"],
    ("client", None): [b"CONNECTED", b"ERROR"],
    "server": b"SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT".split(),
    "client": b"MESSAGE RECEIPT ERROR".split(),
}
NEEDED = {
    b"SEND": [b"destination"],
    b"SUBSCRIBE": [b"destination", b"id"],
    b"UNSUBSCRIBE": [b"id"],
    b"ACK": [b"id", b"message-id", b"subscription"],
    b"NACK": [b"id", b"message-id", b"subscription"],
    b"BEGIN": [b"transaction"],
    b"COMMIT": [b"transaction"],
    b"ABORT": [b"transaction"],
    b"CONNECT": [b"accept-version"],
    b"STOMP": [b"accept-version"],
    b"CONNECTED": [b"version"],
    b"MESSAGE": [b"destination", b"message-id", b"subscription"],
    b"RECEIPT": [b"receipt-id"],
}
VALUES = [b"1.2", b"1.1", b"1.0", b"a", b"7-1", b"a:b", rb"a\cb\\", rb"\n", b" x ", "é✓".encode()]
RARE = [b"w" * 50, b"", rb"\r", rb"\t", b"\\", b"a\rb", b"\xff", b"a\0b", b"y" * 62]


def header_line(source, name):
    value = source.choice(VALUES if source.random() < 0.95 else RARE)
    return name + b":" + value


def likely_frame(source, command):
    """Return a frame that mostly keeps the rules."""
    line_end = b"\r\n" if source.random() < 0.2 else b"\n"
    lines = [command, *(header_line(source, name) for name in NEEDED.get(command, []))]
    names = source.choices(
        (b"note", rb"k\cy", b"receipt", b"k y"), k=source.choice((0, 0, 1, 2, 5))
    )
    lines += [header_line(source, name) for name in names]
    body = b""
    if command in (b"SEND", b"MESSAGE", b"ERROR") or source.random() < 0.05:
        body = source.choice((b"", b"x", b"he\0lo", b"\n\r\n", b"z" * 96, b"z" * 97))
    length = len(body) if source.random() < 0.95 else source.choice((0, 1, 6, 96, 97, "-1", "+1"))
    if b"\0" in body or source.random() < 0.5:
        lines.append(b"content-length:" + str(length).encode())
    padding = source.choice((b"", b"\n", b"\r\n"))
    return line_end.join(lines) + 2 * line_end + body + b"\0" + padding


def random_input(source):
    """Return one input: mostly frames that keep the rules, some of them bent in a place or two."""
    choices = source.randbytes(2)
    role, version = SETTINGS[choices[0] % len(SETTINGS)]
    if source.random() < 0.1:
        parts = [source.choice(TOKENS) for _ in range(source.randrange(25))]
        return choices + b"".join(parts)
    stream = bytearray()
    if version is None:
        stream += likely_frame(source, source.choice(COMMANDS[role, None]))
    for _ in range(source.randrange(6)):
        stream += likely_frame(source, source.choice(COMMANDS[role]))
    for _ in range(source.choice((0, 0, 1, 2))):
        place = source.randrange(len(stream) + 1)
        token = source.choice(TOKENS) if source.random() < 0.7 else source.randbytes(1)
        stream[place : place + source.randrange(3)] = token
    return choices + bytes(stream)


@settings(deadline=None, max_examples=200)
@given(
    st.binary(min_size=2, max_size=2),
    st.lists(st.sampled_from(TOKENS) | st.binary(max_size=4), max_size=25),
)
@example(b"\x00\x00", [b"CONNECT\naccept-version:1.1\n\n\0SEND\ndestination:a\\cb\n\nx\0"])
@example(b"\x01\x00", [b"\r\nSEND\r\ndestination: a \r\n\r\nbody\r\n\0\r\n"])
@example(b"\x03\x01", [b"SEND\ndestination:\\r\\n\\c\\\\\n\n\0"])
def test_any_stream(choices, tokens):
    check(choices + b"".join(tokens))


def test_likely_streams():
    source = random.Random(seed_for("stomp decoder fuzz"))
    frame_count, violations = 0, set()
    wanted = {*Violation} - {Violation.INVALID_VALUE}

    def is_enough() -> bool:
        return violations >= wanted

    for data in likely_inputs(random_input, source, 3000, is_enough):
        check(data)
        role, version = SETTINGS[data[0] % len(SETTINGS)]
        frames, _, error = run([data[2:]], role, version)
        frame_count += len(frames)
        if error is not None:
            violations.add(error[0])
    # Inputs that never get past the command line would prove nothing.
    assert frame_count > 2000
    assert violations == wanted


TARGET = FuzzTarget(
    "stomp_decoder", check, random_input, [*TOKENS, *VALUES, *RARE], "vespiary_codec.wire.stomp"
)


def test_what_is_kept():
    for data in corpus(TARGET.name):
        check(data)


if __name__ == "__main__":
    sys.exit(main(TARGET, sys.argv))

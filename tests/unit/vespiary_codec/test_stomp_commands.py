"""Which STOMP commands exist in which version, and what each needs."""

import pytest

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    VERSIONS,
    RemoteProtocolError,
    Violation,
)
from vespiary_testkit.stomp_decoding import decoder_for, error_of, frame_of

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

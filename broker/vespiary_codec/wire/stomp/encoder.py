"""The encoder: frames in, bytes out, for servers and for clients.

Owns the way back from `decoder`: whatever it prints, a decoder of the same version reads as the
same frame. It refuses what the version cannot say, so no value can ever turn into another header
or another frame. Must never do I/O. Called by the broker's connection, by the sans-I/O client,
and by the tests of the C encoder, for which it is the specification.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.wire.stomp.commands import BODY_COMMANDS, UNESCAPED_COMMANDS
from vespiary_codec.wire.stomp.errors import LocalProtocolError
from vespiary_codec.wire.stomp.escapes import escape
from vespiary_codec.wire.stomp.frames import Frame, Headers, Version
from vespiary_codec.wire.stomp.properties import properties_for_version

HEART_BEAT: Final = b"\n"
"""What a side sends when it is due and has no frame to send (STOMP 1.2, "Heart-beating")."""

_LONGEST_ERROR_MESSAGE: Final = 1024
_ONE_LINE: Final = str.maketrans({"\r": " ", "\n": " ", "\0": " "})


def encode(frame: Frame, version: Version) -> bytes:
    """Return the octets of a frame, the final NUL included.

    A `content-length` is added to SEND, MESSAGE and ERROR unless the frame has one.

    Args:
        frame: The frame; its headers are printed in order, repeats included.
        version: The version of the connection. For the CONNECT frame, and for an ERROR before the
            version is agreed upon, it is "1.0".

    Raises:
        LocalProtocolError: The version cannot say it: a line feed or a NUL in a header without
            escapes, an empty name, a wrong content-length, a body on a command that has none.
    """
    return b"".join((encode_head(frame, version, len(frame.body)), frame.body, b"\0"))


def encode_head(frame: Frame, version: Version, body_bytes: int) -> bytes:
    """Return the octets of a frame up to its body, which the caller sends with a NUL behind it.

    Args:
        frame: The frame; its own body is passed over.
        version: As for `encode`.
        body_bytes: Octets of the body that will follow.

    Raises:
        LocalProtocolError: As for `encode`.
    """
    command = frame.command
    escapes: Version = "1.0" if command in UNESCAPED_COMMANDS else version
    lines = [command]
    content_length = None
    for name, value in frame.headers:
        lines.append(_header_line(command, name, value, escapes))
        if name == "content-length" and content_length is None:
            content_length = value
    if command in BODY_COMMANDS:
        if content_length is None:
            lines.append(f"content-length:{body_bytes}")
    elif body_bytes:
        raise LocalProtocolError(
            f"{command} has a body of {body_bytes} octets;"
            " only SEND, MESSAGE and ERROR may have one"
        )
    if content_length is not None and content_length != str(body_bytes):
        raise LocalProtocolError(
            f"{command} has content-length {content_length!r} and a body of {body_bytes} octets"
        )
    lines.append("\n")
    return "\n".join(lines).encode()


def _header_line(command: str, name: str, value: str, escapes: Version) -> str:
    if not name:
        raise LocalProtocolError(f"a header of {command} has an empty name")
    line = f"{escape(name, escapes)}:{escape(value, escapes)}"
    if "\0" in line or "\n" in line:
        raise LocalProtocolError(
            f"header {name!r} of {command} contains a line feed or a NUL,"
            f" which STOMP {escapes} cannot say"
        )
    if escapes == "1.0" and ":" in name:
        raise LocalProtocolError(
            f"header name {name!r} of {command} contains a colon, which STOMP 1.0 cannot say"
        )
    if "\r" in line and command in UNESCAPED_COMMANDS:
        raise LocalProtocolError(
            f"header {name!r} of {command} contains a carriage return, which is never escaped there"
        )
    return line


def encode_message(headers: Headers, properties: bytes, body: bytes, version: Version) -> bytes:
    """Return the octets of a MESSAGE frame whose application headers come from the journal.

    Args:
        headers: What the broker itself says: subscription, message-id, ack, redelivered and so
            on. They come first, so that they count even if the producer sent a header of the same
            name.
        properties: The message's properties in their canonical form (see `properties`), the
            destination among them.
        body: The body.
        version: The version of the consumer's connection.

    Raises:
        LocalProtocolError: One of `headers` cannot be said in `version`.
    """
    lines = ["MESSAGE"]
    lines += [_header_line("MESSAGE", name, value, version) for name, value in headers]
    lines.append(f"content-length:{len(body)}\n")
    head = "\n".join(lines).encode()
    return b"".join((head, properties_for_version(properties, version), b"\n", body, b"\0"))


def connected_frame(
    version: Version,
    *,
    server: str,
    session: str,
    heart_beat: tuple[int, int] | None = None,
) -> Frame:
    """Return the CONNECTED frame that accepts a login.

    Args:
        version: The version agreed upon.
        server: Name of the broker, a slash and its version, such as "Vespiary/0.1.0".
        session: Unique id of the session.
        heart_beat: What the broker can send and wants to receive, in milliseconds, 0 for not at
            all; None leaves the header out. Not sent in 1.0, which has none.
    """
    headers = [("version", str(version)), ("session", session), ("server", server)]
    if heart_beat is not None and version != "1.0":
        headers.append(("heart-beat", f"{heart_beat[0]},{heart_beat[1]}"))
    return Frame("CONNECTED", headers)


UNROUTED: Final = ("queues", "0")
"""Header of the receipt of a message that no queue accepted; all others are without it."""


def receipt_frame(receipt_id: str, *, is_unrouted: bool = False) -> Frame:
    """Return the RECEIPT frame that answers a `receipt` header.

    Args:
        receipt_id: Value of that header.
        is_unrouted: Whether it answers a SEND, and no queue accepted its message.
    """
    return Frame("RECEIPT", [("receipt-id", receipt_id), *([UNROUTED] if is_unrouted else [])])


def error_frame(
    message: str,
    detail: str = "",
    receipt_id: str | None = None,
    *,
    version_header: str | None = None,
) -> Frame:
    """Return an ERROR frame; the connection must be closed after it (STOMP 1.2, "ERROR").

    Line ends and NULs in the message become blanks, so that it can be printed before a version is
    agreed upon.

    Args:
        message: One sentence for the `message` header; cut after 1024 characters.
        detail: More lines for the body, or nothing.
        receipt_id: The `receipt` header of the frame that the error is about; None if it had
            none. Left out if it has line ends.
        version_header: Versions for a refused negotiation, separated by commas; None in every
            other case.
    """
    headers = [("message", message.translate(_ONE_LINE)[:_LONGEST_ERROR_MESSAGE])]
    if receipt_id is not None and receipt_id.translate(_ONE_LINE) == receipt_id:
        headers.append(("receipt-id", receipt_id))
    if version_header is not None:
        headers.append(("version", version_header))
    if detail:
        headers.append(("content-type", "text/plain"))
    return Frame("ERROR", headers, detail.encode())

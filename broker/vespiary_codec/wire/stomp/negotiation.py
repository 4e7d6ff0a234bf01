"""Login: which version, which heart-beats.

Owns the arithmetic of CONNECT and CONNECTED for both sides. Must never check a password or look
at a clock: the caller does, with what it finds in the result. Called by the broker's session and
by the sans-I/O client.
Source: STOMP 1.2, "Protocol Negotiation" and "Heart-beating" (same in 1.1).

Where it is milder than the specification: a missing `host` is accepted in 1.1 and 1.2, since
stock clients leave it out and the broker has no virtual hosts; blanks around the versions are
ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vespiary_codec.wire.stomp.encoder import error_frame
from vespiary_codec.wire.stomp.errors import RemoteProtocolError, Violation
from vespiary_codec.wire.stomp.frames import VERSIONS, Frame, Version

MAX_HEART_BEAT_MS: Final = 2**31 - 1
"""Longest interval that a `heart-beat` header may name: a signed 32-bit number elsewhere."""


@dataclass(frozen=True, slots=True)
class HeartBeats:
    """What one side says in its `heart-beat` header.

    Attributes:
        send_ms: Shortest interval between heart-beats that it can send, in milliseconds; 0 if it
            can send none.
        receive_ms: Interval at which it wants to receive them, in milliseconds; 0 if it wants none.
    """

    send_ms: int = 0
    receive_ms: int = 0


@dataclass(frozen=True, slots=True)
class Login:
    """A CONNECT frame that this side understands; whether it is let in is the caller's decision.

    Attributes:
        version: The highest version that both sides speak.
        login: User name; None if there is no such header.
        passcode: Password; None if there is no such header. Never log it.
        host: Virtual host; None if there is no such header.
        client_id: Name of the client for durable subscriptions; None if there is no such header.
        send_ms: The broker must send something at least every so many milliseconds; 0 for never.
        receive_ms: The client will send something at least every so many milliseconds; 0 for never.
    """

    version: Version
    login: str | None
    passcode: str | None
    host: str | None
    client_id: str | None
    send_ms: int
    receive_ms: int

    def __repr__(self) -> str:
        return (
            f"Login(version={self.version!r}, login={self.login!r}, client_id={self.client_id!r})"
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A CONNECT frame that cannot be answered with CONNECTED.

    Attributes:
        reason: One sentence that says why.
        frame: The ERROR frame to send, encoded as version "1.0", before the connection is closed.
    """

    reason: str
    frame: Frame


def parse_heart_beat(text: str) -> HeartBeats:
    """Return what a `heart-beat` header says.

    Args:
        text: Its value: two numbers of milliseconds, 0 to `MAX_HEART_BEAT_MS`, digits only,
            separated by a comma.

    Raises:
        RemoteProtocolError: It is anything else.
    """
    numbers = text.split(",")
    if len(numbers) == 2 and all(n.isascii() and n.isdigit() and len(n) <= 10 for n in numbers):
        send_ms, receive_ms = int(numbers[0]), int(numbers[1])
        if max(send_ms, receive_ms) <= MAX_HEART_BEAT_MS:
            return HeartBeats(send_ms, receive_ms)
    raise RemoteProtocolError(
        Violation.INVALID_VALUE,
        f"heart-beat is {text[:40]!a}; it must be two numbers of milliseconds, 0 to"
        f" {MAX_HEART_BEAT_MS}, separated by a comma",
    )


def agree_heart_beats(ours: HeartBeats, theirs: HeartBeats) -> tuple[int, int]:
    """Return how often each side will send, as seen from our side.

    Args:
        ours: What we say.
        theirs: What the peer says.

    Returns:
        The interval at which we must send and the one at which the peer must, in milliseconds, 0
        for never: the longer of what the sender can and the receiver wants.
    """
    return (
        max(ours.send_ms, theirs.receive_ms) if ours.send_ms and theirs.receive_ms else 0,
        max(theirs.send_ms, ours.receive_ms) if theirs.send_ms and ours.receive_ms else 0,
    )


def negotiate(
    frame: Frame,
    ours: HeartBeats,
    supported: tuple[Version, ...] = VERSIONS,
) -> Login | Refusal:
    """Answer a CONNECT or STOMP frame, on the broker's side.

    Args:
        frame: The frame as decoded before the login: not unescaped, not trimmed. If 1.0 is
            chosen, blanks around its values are dropped here, as a 1.0 decoder does.
        ours: What the broker can send and wants to receive.
        supported: Versions that the broker speaks on this connection, at least one.
    """
    offered = frame.get("accept-version")
    names = ["1.0"] if offered is None else [name.strip(" \t") for name in offered.split(",")]
    common = [version for version in VERSIONS if version in supported and version in names]
    if not common:
        spoken = ",".join(version for version in VERSIONS if version in supported)
        reason = (
            f"no common version: accept-version is {','.join(names)[:80]!a},"
            f" this broker speaks {spoken}"
        )
        detail = f"Supported protocol versions are {spoken.replace(',', ' ')}"
        return Refusal(reason, error_frame(reason, detail, version_header=spoken))
    version = common[-1]

    def header(name: str) -> str | None:
        value = frame.get(name)
        return value.strip(" \t") if value is not None and version == "1.0" else value

    theirs = HeartBeats()
    heart_beat = frame.get("heart-beat")
    if heart_beat is not None and version != "1.0":
        try:
            theirs = parse_heart_beat(heart_beat)
        except RemoteProtocolError as error:
            return Refusal(error.reason, error_frame(error.reason))
    send_ms, receive_ms = agree_heart_beats(ours, theirs)
    return Login(
        version=version,
        login=header("login"),
        passcode=header("passcode"),
        host=header("host"),
        client_id=header("client-id"),
        send_ms=send_ms,
        receive_ms=receive_ms,
    )


def accept_connected(
    frame: Frame, ours: HeartBeats, offered: tuple[Version, ...] = VERSIONS
) -> tuple[Version, int, int]:
    """Read a CONNECTED frame, on the client's side.

    Args:
        frame: The frame.
        ours: What the client said in its CONNECT frame.
        offered: Versions that the client offered.

    Returns:
        The version, the interval at which we must send and the one at which the server will, in
        milliseconds, 0 for never.

    Raises:
        RemoteProtocolError: The server chose a version that was not offered, or its heart-beat
            cannot be read.
    """
    answer = frame.get("version", "1.0").strip(" \t")
    for version in offered:
        if version == answer:
            break
    else:
        raise RemoteProtocolError(
            Violation.INVALID_VALUE,
            f"the server chose version {answer[:40]!a}; offered were {','.join(offered)}",
        )
    heart_beat = frame.get("heart-beat")
    theirs = HeartBeats()
    if heart_beat is not None and version != "1.0":
        theirs = parse_heart_beat(heart_beat)
    return (version, *agree_heart_beats(ours, theirs))

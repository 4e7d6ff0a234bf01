"""Which commands exist in which version, who sends them, what they need.

Owns the tables; has no other logic than looking into them. Read by the decoder, the encoder and
the tests.
Sources: the three specifications, chapters "Client Frames" and "Server Frames" (1.0: "Client
    Commands").
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from vespiary_codec.wire.stomp.errors import RemoteProtocolError, Violation
from vespiary_codec.wire.stomp.frames import VERSIONS, Frame, Version

Role = Literal["server", "client"]
"""Who reads: a server reads what clients send."""

AckMode = Literal["auto", "client", "client-individual"]

_ACK_MODES: Final[tuple[AckMode, ...]] = ("auto", "client", "client-individual")

BODY_COMMANDS: Final = frozenset({"SEND", "MESSAGE", "ERROR"})
"""The only commands that may have a body (STOMP 1.1 and 1.2, "Body")."""

UNESCAPED_COMMANDS: Final = frozenset({"CONNECT", "CONNECTED", "STOMP"})
"""Never escaped, since the version is not agreed upon yet. STOMP is CONNECT under another name."""


class CommandRule(NamedTuple):
    """What a frame of one command must look like.

    Attributes:
        command: Name of the command.
        required: For each required header the names that satisfy it; one of them must be there
            and not empty.
        has_body: Whether a body is allowed.
    """

    command: str
    required: tuple[tuple[str, ...], ...]
    has_body: bool


CommandTable = dict[bytes, CommandRule]

_DESTINATION: Final = (("destination",),)
_TRANSACTION: Final = (("transaction",),)
_SUBSCRIPTION_ID: Final = (("id",),)
_MESSAGE_AND_SUBSCRIPTION: Final = (("message-id",), ("subscription",))

_Requirements = dict[str, tuple[tuple[str, ...], ...]]

# `host` is not in the table although 1.1 and 1.2 require it: stomp.py, among others, leaves it out
# unless it is given a virtual host, and the broker has no virtual hosts that it could pick.
_BEFORE_LOGIN: Final[dict[Role, _Requirements]] = {
    "server": {"CONNECT": (), "STOMP": ()},
    "client": {"CONNECTED": (), "ERROR": ()},
}

_CLIENT_1_0: Final[_Requirements] = {
    "SEND": _DESTINATION,
    "SUBSCRIBE": _DESTINATION,
    "UNSUBSCRIBE": (("id", "destination"),),
    "ACK": (("message-id",),),
    "BEGIN": _TRANSACTION,
    "COMMIT": _TRANSACTION,
    "ABORT": _TRANSACTION,
    "DISCONNECT": (),
}
_CLIENT_1_1: Final[_Requirements] = _CLIENT_1_0 | {
    "SUBSCRIBE": (*_DESTINATION, *_SUBSCRIPTION_ID),
    "UNSUBSCRIBE": _SUBSCRIPTION_ID,
    "ACK": _MESSAGE_AND_SUBSCRIPTION,
    "NACK": _MESSAGE_AND_SUBSCRIPTION,
}
_CLIENT_1_2: Final[_Requirements] = _CLIENT_1_1 | {
    "ACK": _SUBSCRIPTION_ID,
    "NACK": _SUBSCRIPTION_ID,
}
_SERVER_1_0: Final[_Requirements] = {
    "MESSAGE": (*_DESTINATION, ("message-id",)),
    "RECEIPT": (("receipt-id",),),
    "ERROR": (),
}
_SERVER_1_1: Final[_Requirements] = _SERVER_1_0 | {
    "MESSAGE": (*_DESTINATION, ("message-id",), ("subscription",)),
}

_AFTER_LOGIN: Final[dict[tuple[Role, Version], _Requirements]] = {
    ("server", "1.0"): _CLIENT_1_0,
    ("server", "1.1"): _CLIENT_1_1,
    ("server", "1.2"): _CLIENT_1_2,
    ("client", "1.0"): _SERVER_1_0,
    ("client", "1.1"): _SERVER_1_1,
    ("client", "1.2"): _SERVER_1_1,
}


def _table(requirements: _Requirements) -> CommandTable:
    return {
        command.encode(): CommandRule(command, required, command in BODY_COMMANDS)
        for command, required in requirements.items()
    }


_TABLES: Final[dict[tuple[Role, Version | None], CommandTable]] = {
    **{(role, None): _table(requirements) for role, requirements in _BEFORE_LOGIN.items()},
    **{key: _table(requirements) for key, requirements in _AFTER_LOGIN.items()},
}

CLIENT_COMMANDS: Final = frozenset({"CONNECT", "STOMP", *_CLIENT_1_2})
SERVER_COMMANDS: Final = frozenset({"CONNECTED", *_SERVER_1_1})
LONGEST_COMMAND_LINE_BYTES: Final = 16
"""A longer line cannot be a command; UNSUBSCRIBE and a carriage return are 12."""


def commands_for(role: Role, version: Version | None) -> CommandTable:
    """Return the commands that a reader in `role` accepts.

    Args:
        role: Who reads.
        version: The version agreed upon; None before the login.
    """
    return _TABLES[role, version]


def refuse_command(line: bytes, role: Role, version: Version | None) -> RemoteProtocolError:
    """Return the error for a command line that is not in the table of `role` and `version`."""
    command = line.decode("ascii", "backslashreplace")
    if command not in CLIENT_COMMANDS | SERVER_COMMANDS:
        return RemoteProtocolError(Violation.UNKNOWN_COMMAND, f"unknown command {command!a}")
    sent_by_peer = CLIENT_COMMANDS if role == "server" else SERVER_COMMANDS
    if command not in sent_by_peer:
        sender = "servers" if role == "server" else "clients"
        reason = f"{command} is a command that only {sender} send"
    elif version is None:
        first = "CONNECT or STOMP" if role == "server" else "CONNECTED or ERROR"
        reason = f"{command} came before the login: the first frame must be {first}"
    elif command == "NACK":
        reason = f"NACK does not exist in STOMP {version}; it came with STOMP 1.1"
    else:
        reason = f"{command} came a second time: the connection is already logged in"
    return RemoteProtocolError(Violation.UNEXPECTED_COMMAND, reason)


def check_required_headers(frame: Frame, rule: CommandRule, version: Version | None) -> None:
    """Check that every header that the command needs is there and is not empty.

    Args:
        frame: Frame to check; its body is not looked at.
        rule: The rule of its command.
        version: For the message; None before the login.

    Raises:
        RemoteProtocolError: A required header is missing, or the first one of its name is empty.
    """
    for names in rule.required:
        for name in names:
            if frame.get(name):
                break
        else:
            wanted = " or ".join(names)
            is_there = any(frame.get(name) is not None for name in names)
            reason = (
                f"{rule.command} has an empty {wanted} header"
                if is_there
                else f"{rule.command} has no {wanted} header, which STOMP {version} requires"
            )
            raise RemoteProtocolError(
                Violation.MISSING_HEADER, reason, receipt_id=frame.get("receipt")
            )


def parse_ack_mode(frame: Frame) -> AckMode:
    """Return the acknowledgement mode that a SUBSCRIBE frame asks for.

    STOMP 1.0 knows only auto and client; client-individual is accepted there too, as the brokers
    do that 1.0 clients were written for.

    Args:
        frame: A SUBSCRIBE frame.

    Raises:
        RemoteProtocolError: The `ack` header has any other value.
    """
    mode = frame.get("ack", "auto")
    for known in _ACK_MODES:
        if mode == known:
            return known
    raise RemoteProtocolError(
        Violation.INVALID_VALUE,
        f"SUBSCRIBE has ack {mode[:40]!a}; allowed are auto, client and client-individual",
        receipt_id=frame.get("receipt"),
    )


assert all(("server", version) in _AFTER_LOGIN for version in VERSIONS)

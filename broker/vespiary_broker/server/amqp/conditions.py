"""Error conditions: what a client is told in an end, a detach, a close or a rejection.

Owns the symbols that the broker uses and which of our errors has which. Must never end anything.
Called by all modules of this package.

Source: AMQP 1.0 (OASIS, 2012) §2.8.14 to §2.8.18 and §4.5.8.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from vespiary_broker.engine.names import InvalidName
from vespiary_broker.server.protocol_handler import sentence_of
from vespiary_codec.wire.amqp import Error
from vespiary_codec.wire.amqp import RemoteProtocolError as WireError
from vespiary_codec.wire.amqp.values import Symbol
from vespiary_spec.errors import (
    AddressFull,
    DiskFull,
    InvalidSelector,
    JournalFull,
    LimitExceeded,
    LoginRefused,
    NotPermitted,
    RemoteProtocolError,
    VespiaryError,
    XaError,
)

_SENTENCE_CHARACTERS_MAX: Final = 400
"""What fits into any frame, beside the rest: the smallest has 512 bytes."""


class Condition(StrEnum):
    """Conditions of AMQP that decoders do not know."""

    DECODE_ERROR = "amqp:decode-error"
    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LOCKED = "amqp:resource-locked"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    RESOURCE_DELETED = "amqp:resource-deleted"
    ILLEGAL_STATE = "amqp:illegal-state"
    CONNECTION_FORCED = "amqp:connection:forced"
    WINDOW_VIOLATION = "amqp:session:window-violation"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    STOLEN = "amqp:link:stolen"
    DETACH_FORCED = "amqp:link:detach-forced"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
    TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
    TRANSACTION_TIMEOUT = "amqp:transaction:timeout"


class Refused(RemoteProtocolError):  # noqa: N818 (as its kin)
    """A client asks for something that it does not get; says which condition that is.

    Attributes:
        condition: The condition.
        info: More about it, for programs.
    """

    code = RemoteProtocolError.code

    def __init__(
        self,
        condition: str,
        sentence: str,
        *,
        info: dict[Any, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(sentence, **more)
        self.condition = condition
        self.info = info


class SessionRefused(Refused):
    """What ends the session that it is about."""


class ConnectionRefused(Refused):
    """What ends the connection."""


_CONDITIONS: Final[tuple[tuple[type[VespiaryError], Condition], ...]] = (
    (LoginRefused, Condition.UNAUTHORIZED_ACCESS),
    (NotPermitted, Condition.UNAUTHORIZED_ACCESS),
    (InvalidSelector, Condition.INVALID_FIELD),
    (InvalidName, Condition.INVALID_FIELD),
    (AddressFull, Condition.RESOURCE_LIMIT_EXCEEDED),
    (JournalFull, Condition.RESOURCE_LIMIT_EXCEEDED),
    (DiskFull, Condition.RESOURCE_LIMIT_EXCEEDED),
    (LimitExceeded, Condition.RESOURCE_LIMIT_EXCEEDED),
    (XaError, Condition.TRANSACTION_TIMEOUT),
    (RemoteProtocolError, Condition.PRECONDITION_FAILED),
)


def condition_of(error: VespiaryError) -> str:
    """Return the condition of an error."""
    if isinstance(error, WireError | Refused):
        return str(error.condition)
    return next(
        (condition for kind, condition in _CONDITIONS if isinstance(error, kind)),
        Condition.INTERNAL_ERROR,
    )


def error_of(error: VespiaryError) -> Error:
    """Return what a client is told of an error."""
    sentence = error.reason if isinstance(error, WireError) else sentence_of(error)
    return told(condition_of(error), sentence, error.info if isinstance(error, Refused) else None)


def told(condition: str, sentence: str, info: dict[Any, Any] | None = None) -> Error:
    """Return an error for a client.

    Args:
        condition: Its symbol.
        sentence: What people read.
        info: What programs read.
    """
    short = sentence[:_SENTENCE_CHARACTERS_MAX].encode()[:_SENTENCE_CHARACTERS_MAX]
    return Error(
        condition=Symbol(str(condition)), description=short.decode(errors="ignore"), info=info
    )

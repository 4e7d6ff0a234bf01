"""What can go wrong on an AMQP 1.0 connection, and who did it.

Owns the stable names of the rules that a peer can break, and the errors that carry them:

    vespiary_spec.errors.ProtocolError
    ├── LocalProtocolError         our own caller asked for something that AMQP cannot say
    └── RemoteProtocolError
        └── RemoteProtocolError    here: the peer broke a rule of AMQP; has the condition for it
            └── LimitExceeded      here: the rule is a limit of ours

Must never hold the payload of a message. Raised by every module of this package; caught by the
broker's server.
"""

from __future__ import annotations

from enum import StrEnum

from vespiary_spec import errors as spec
from vespiary_spec.errors import LocalProtocolError, ProtocolError

__all__ = [
    "Condition",
    "LimitExceeded",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "Violation",
]


class Condition(StrEnum):
    """Error conditions that a decoder tells of (AMQP 1.0 §2.8.15 and §2.8.16)."""

    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    FRAMING_ERROR = "amqp:connection:framing-error"


class Violation(StrEnum):
    """The rule that a peer broke: a label of metrics, and what a C scanner is compared by."""

    PROTOCOL_HEADER = "protocol-header"
    FRAME_SIZE = "frame-size"
    DATA_OFFSET = "data-offset"
    FRAME_TYPE = "frame-type"
    FRAME_BODY = "frame-body"
    UNKNOWN_TYPE = "unknown-type"
    TRUNCATED_VALUE = "truncated-value"
    SIZE_MISMATCH = "size-mismatch"
    TRAILING_BYTES = "trailing-bytes"
    NOT_UTF8 = "not-utf8"
    NOT_ASCII = "not-ascii"
    INVALID_VALUE = "invalid-value"
    MAP_KEYS = "map-keys"
    UNKNOWN_DESCRIPTOR = "unknown-descriptor"
    FIELD_TYPE = "field-type"
    FIELD_MISSING = "field-missing"
    FIELD_COUNT = "field-count"
    DEPTH = "depth"
    ITEMS = "items"
    FRAME_BYTES = "frame-bytes"
    SECTION_ORDER = "section-order"


class RemoteProtocolError(spec.RemoteProtocolError):
    """The peer broke the protocol: say so in a close, then close the connection.

    Attributes:
        violation: The rule that was broken.
        reason: One sentence for the description of the error: what, measured against allowed.
        condition: The symbol of the error.
    """

    code = spec.RemoteProtocolError.code

    def __init__(
        self, violation: Violation, reason: str, condition: Condition = Condition.DECODE_ERROR
    ) -> None:
        super().__init__(reason)
        self.violation = violation
        self.reason = reason
        self.condition = condition


class LimitExceeded(RemoteProtocolError, spec.LimitExceeded):  # noqa: N818 - as in the spec
    """The peer exceeded a limit of `AmqpLimits`."""

    code = spec.LimitExceeded.code

"""What can go wrong on a STOMP connection, and who did it.

Owns the stable names of the rules that a peer can break, and the errors that carry them:

    vespiary_spec.errors.ProtocolError
    ├── LocalProtocolError         our own caller asked for something that STOMP cannot say
    └── RemoteProtocolError
        └── RemoteProtocolError    here: the peer broke a rule of STOMP; has the sentence for it
            └── LimitExceeded      here: the rule is a limit of ours

Must never hold the payload of a message. Raised by every module of this package; caught by the
broker's server and by the CLI.
"""

from __future__ import annotations

from enum import StrEnum

from vespiary_spec import errors as spec
from vespiary_spec.errors import LocalProtocolError, ProtocolError

__all__ = [
    "LimitExceeded",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "Violation",
]


class Violation(StrEnum):
    """The rule that a peer broke: a label of metrics, and what the C scanner is compared by."""

    UNKNOWN_COMMAND = "unknown-command"
    UNEXPECTED_COMMAND = "unexpected-command"
    MALFORMED_HEADER = "malformed-header"
    UNDEFINED_ESCAPE = "undefined-escape"
    NOT_UTF8 = "not-utf8"
    NUL_IN_HEADERS = "nul-in-headers"
    MISSING_HEADER = "missing-header"
    INVALID_VALUE = "invalid-value"
    CONTENT_LENGTH = "content-length"
    UNTERMINATED_BODY = "unterminated-body"
    UNEXPECTED_BODY = "unexpected-body"
    HEADER_COUNT = "header-count"
    HEADER_LINE_BYTES = "header-line-bytes"
    HEADER_BYTES = "header-bytes"
    BODY_BYTES = "body-bytes"


class RemoteProtocolError(spec.RemoteProtocolError):
    """The peer broke the protocol: answer with an ERROR frame, then close the connection.

    Attributes:
        violation: The rule that was broken.
        reason: One sentence for the `message` header of the ERROR frame: what, measured against
            allowed.
        receipt_id: The `receipt` header of the offending frame, to be repeated as `receipt-id`;
            None if the frame asked for none or broke off before it could be read.
    """

    code = spec.RemoteProtocolError.code

    def __init__(self, violation: Violation, reason: str, *, receipt_id: str | None = None) -> None:
        super().__init__(reason)
        self.violation = violation
        self.reason = reason
        self.receipt_id = receipt_id


class LimitExceeded(RemoteProtocolError, spec.LimitExceeded):  # noqa: N818 - as in the spec
    """The peer exceeded a limit of `StompLimits`."""

    code = spec.LimitExceeded.code

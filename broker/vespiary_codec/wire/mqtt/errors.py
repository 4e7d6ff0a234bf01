"""What can go wrong on an MQTT connection, and who did it.

Owns the stable names of the rules that a peer can break, and the errors that carry them:

    vespiary_spec.errors.ProtocolError
    ├── LocalProtocolError         our own caller asked for something that MQTT cannot say
    └── RemoteProtocolError
        └── RemoteProtocolError    here: the peer broke a rule of MQTT; has the reason code for it
            └── LimitExceeded      here: the rule is a limit of ours

Must never hold the payload of a message. Raised by every module of this package; caught by the
broker's server.
"""

from __future__ import annotations

from enum import StrEnum

from vespiary_codec.wire.mqtt.packet_types import Version
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
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
    """The rule that a peer broke: a label of metrics, and what a C scanner is compared by."""

    UNKNOWN_PROTOCOL = "unknown-protocol"
    UNKNOWN_VERSION = "unknown-version"
    UNEXPECTED_PACKET = "unexpected-packet"
    RESERVED_BITS = "reserved-bits"
    REMAINING_LENGTH = "remaining-length"
    TRUNCATED_FIELD = "truncated-field"
    TRAILING_BYTES = "trailing-bytes"
    NOT_UTF8 = "not-utf8"
    NUL_IN_STRING = "nul-in-string"
    INVALID_QOS = "invalid-qos"
    PACKET_ID = "packet-id"
    TOPIC_NAME = "topic-name"
    TOPIC_FILTER = "topic-filter"
    NOTHING_ASKED = "nothing-asked"
    CONNECT_FLAGS = "connect-flags"
    CLIENT_ID = "client-id"
    REASON_CODE = "reason-code"
    UNKNOWN_PROPERTY = "unknown-property"
    PROPERTY_NOT_ALLOWED = "property-not-allowed"
    REPEATED_PROPERTY = "repeated-property"
    PROPERTY_VALUE = "property-value"
    PROPERTIES_LENGTH = "properties-length"
    PACKET_BYTES = "packet-bytes"
    TOPIC_BYTES = "topic-bytes"
    TOPIC_LEVELS = "topic-levels"
    USER_PROPERTIES = "user-properties"
    FILTERS = "filters"


class RemoteProtocolError(spec.RemoteProtocolError):
    """The peer broke the protocol: say so as its version can, then close the connection.

    Attributes:
        violation: The rule that was broken.
        reason: One sentence: what, measured against allowed. The reason string of MQTT 5.
        reason_code: For the CONNACK or DISCONNECT packet of MQTT 5.
        version: In which a client hears that its CONNECT is refused; None: it is another packet, or
            no version can be told.
    """

    code = spec.RemoteProtocolError.code

    def __init__(
        self,
        violation: Violation,
        reason: str,
        reason_code: ReasonCode = ReasonCode.MALFORMED_PACKET,
    ) -> None:
        super().__init__(reason)
        self.violation = violation
        self.reason = reason
        self.reason_code = reason_code
        self.version: Version | None = None


class LimitExceeded(RemoteProtocolError, spec.LimitExceeded):  # noqa: N818 - as in the spec
    """The peer exceeded a limit of `MqttLimits`."""

    code = spec.LimitExceeded.code

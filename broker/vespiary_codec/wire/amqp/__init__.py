"""AMQP 1.0, sans I/O: types, frames, performatives, SASL, messages.

Owns the protocol as bytes. Must never do I/O, log, or look at a clock, nor know what a session or a
link is: that is the broker's. It is the specification that a C scanner is tested against.

Source: OASIS Advanced Message Queuing Protocol (AMQP) Version 1.0, parts 1 to 5 (2012). Where it
leaves a choice, or stock clients differ from it, the rule is in the docstring of `decoding` or
`frames`.
"""

from vespiary_codec.wire.amqp.composites import name_of
from vespiary_codec.wire.amqp.decoding import Decoder
from vespiary_codec.wire.amqp.delivery import (
    OUTCOMES,
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from vespiary_codec.wire.amqp.encoding import encode_value, symbols
from vespiary_codec.wire.amqp.errors import (
    Condition,
    LimitExceeded,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    Violation,
)
from vespiary_codec.wire.amqp.frames import (
    NEED_DATA,
    Frame,
    FrameDecoder,
    Layer,
    NeedData,
    ProtocolHeader,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.limits import AmqpLimits
from vespiary_codec.wire.amqp.messages import (
    BODIES,
    Found,
    Header,
    MessageProperties,
    Section,
    encode_section,
    read_section,
    read_sections,
    sections,
)
from vespiary_codec.wire.amqp.performatives import (
    PERFORMATIVES,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Transfer,
)
from vespiary_codec.wire.amqp.sasl import (
    SASL_FRAMES,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)

__all__ = [
    "BODIES",
    "NEED_DATA",
    "OUTCOMES",
    "PERFORMATIVES",
    "RECEIVER",
    "SASL_FRAMES",
    "SENDER",
    "Accepted",
    "AmqpLimits",
    "Attach",
    "Begin",
    "Close",
    "Condition",
    "Coordinator",
    "Declare",
    "Declared",
    "Decoder",
    "Detach",
    "Discharge",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Found",
    "Frame",
    "FrameDecoder",
    "Header",
    "Layer",
    "LimitExceeded",
    "LocalProtocolError",
    "MessageProperties",
    "Modified",
    "NeedData",
    "Open",
    "ProtocolError",
    "ProtocolHeader",
    "Received",
    "Rejected",
    "Released",
    "RemoteProtocolError",
    "SaslChallenge",
    "SaslCode",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "SaslResponse",
    "Section",
    "Source",
    "Target",
    "TransactionalState",
    "Transfer",
    "Violation",
    "encode_frame",
    "encode_section",
    "encode_value",
    "name_of",
    "protocol_header",
    "read_section",
    "read_sections",
    "sections",
    "symbols",
]

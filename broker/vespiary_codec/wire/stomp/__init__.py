"""STOMP 1.0, 1.1 and 1.2, sans I/O.

Owns the protocol as bytes: frames from bytes (`StompDecoder`), bytes from frames (`encode`), the
login (`negotiate`), message ids, and the properties that the journal stores. Must never do I/O,
log, or look at a clock. It is the specification that the C scanner and encoder are tested
against, and it runs the broker where there is no C. Called by the broker's server, store and CLI.

Sources: the specifications of STOMP 1.0, 1.1 and 1.2 at stomp.github.io. Where they leave a
    choice, or stock clients differ
from them, the rule is in the docstring of `decoder`, `negotiation` or `properties`.
"""

from vespiary_codec.wire.stomp.client import (
    ClientEvent,
    ClientState,
    Connected,
    Message,
    Receipt,
    ServerError,
    StompClient,
)
from vespiary_codec.wire.stomp.commands import AckMode, Role, parse_ack_mode
from vespiary_codec.wire.stomp.decoder import Head, StompDecoder
from vespiary_codec.wire.stomp.encoder import (
    HEART_BEAT,
    connected_frame,
    encode,
    encode_message,
    error_frame,
    receipt_frame,
)
from vespiary_codec.wire.stomp.errors import (
    LimitExceeded,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    Violation,
)
from vespiary_codec.wire.stomp.frames import (
    NEED_DATA,
    VERSIONS,
    Frame,
    Headers,
    HeartBeat,
    NeedData,
    Version,
)
from vespiary_codec.wire.stomp.limits import StompLimits
from vespiary_codec.wire.stomp.message_ids import format_message_id, parse_message_id
from vespiary_codec.wire.stomp.negotiation import (
    HeartBeats,
    Login,
    Refusal,
    accept_connected,
    agree_heart_beats,
    negotiate,
    parse_heart_beat,
)
from vespiary_codec.wire.stomp.properties import (
    TRANSPORT_HEADERS,
    canonical_properties,
    parse_properties,
    properties_for_version,
)

__all__ = [
    "HEART_BEAT",
    "NEED_DATA",
    "TRANSPORT_HEADERS",
    "VERSIONS",
    "AckMode",
    "ClientEvent",
    "ClientState",
    "Connected",
    "Frame",
    "Head",
    "Headers",
    "HeartBeat",
    "HeartBeats",
    "LimitExceeded",
    "LocalProtocolError",
    "Login",
    "Message",
    "NeedData",
    "ProtocolError",
    "Receipt",
    "Refusal",
    "RemoteProtocolError",
    "Role",
    "ServerError",
    "StompClient",
    "StompDecoder",
    "StompLimits",
    "Version",
    "Violation",
    "accept_connected",
    "agree_heart_beats",
    "canonical_properties",
    "connected_frame",
    "encode",
    "encode_message",
    "error_frame",
    "format_message_id",
    "negotiate",
    "parse_ack_mode",
    "parse_heart_beat",
    "parse_message_id",
    "parse_properties",
    "properties_for_version",
    "receipt_frame",
]

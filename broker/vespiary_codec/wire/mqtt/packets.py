"""MQTT control packets as values.

Owns the data types of the package. Must never parse or print bytes. Used by the decoder, the
encoder and their callers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from vespiary_codec.wire.mqtt.packet_types import Version
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode


class NeedData(enum.Enum):
    """Type of `NEED_DATA`."""

    NEED_DATA = enum.auto()


NEED_DATA: Final = NeedData.NEED_DATA
"""What a decoder answers when it has no complete packet: feed it more bytes."""

# None of these is frozen: a frozen dataclass takes three times as long to make. Treat them as if
# they were.


@dataclass(slots=True)
class Will:
    """The message that a server sends for a client that is gone.

    Attributes:
        topic: Its topic name.
        payload: Its payload.
        qos: 0 to 2.
        retain: Whether it is retained.
        properties: Of the will; empty before MQTT 5.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """A client's first packet.

    Attributes:
        version: The version that it speaks.
        client_id: Its id; empty: the server gives one.
        clean_start: Whether a former session is thrown away (before MQTT 5: clean session).
        keep_alive_s: Seconds between two packets of the client, 0 to 65535; 0: any number.
        will: The message for when it is gone; None: there is none.
        user_name: Its user; None: it names none.
        password: Its password; None: it has none.
        properties: Empty before MQTT 5.
        is_bridge: Whether it says that it is a bridge, as those of mosquitto do in MQTT 3.
    """

    version: Version
    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=dict)
    is_bridge: bool = False


@dataclass(slots=True)
class Connack:
    """A server's answer to CONNECT.

    Attributes:
        reason_code: The outcome. MQTT 3 has five refusals; see `reason_codes`.
        session_present: Whether the server has a session of this client.
        properties: Empty before MQTT 5.
    """

    reason_code: ReasonCode = ReasonCode.SUCCESS
    session_present: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    """A message.

    Attributes:
        topic: Its topic name; empty in MQTT 5 where an alias stands for it.
        payload: Its payload.
        qos: 0 to 2.
        retain: Retained, or sent because it was.
        dup: Maybe sent before.
        packet_id: 1 to 65535; 0 with QoS 0.
        properties: Empty before MQTT 5.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class _Answer:
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


class Puback(_Answer):
    """A message of QoS 1 arrived: `packet_id`, `reason_code`, `properties`."""

    __slots__ = ()


class Pubrec(_Answer):
    """A message of QoS 2 arrived: `packet_id`, `reason_code`, `properties`."""

    __slots__ = ()


class Pubrel(_Answer):
    """A message of QoS 2 is released: `packet_id`, `reason_code`, `properties`."""

    __slots__ = ()


class Pubcomp(_Answer):
    """A message of QoS 2 is done with: `packet_id`, `reason_code`, `properties`."""

    __slots__ = ()


@dataclass(slots=True)
class Subscription:
    """What one topic filter of a SUBSCRIBE asks for.

    Attributes:
        topic_filter: The filter, `$share/…` included.
        qos: The highest QoS that is wanted, 0 to 2.
        no_local: Without what this client sends itself.
        retain_as_published: With the retain flag as it was published.
        retain_handling: 0: send what is retained; 1: if the subscription is new; 2: never.
    """

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """Asks for messages.

    Attributes:
        packet_id: 1 to 65535.
        subscriptions: At least one.
        properties: Empty before MQTT 5.
    """

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Suback:
    """Says what became of each filter of a SUBSCRIBE.

    Attributes:
        packet_id: That of the SUBSCRIBE.
        reason_codes: One for each filter; MQTT 3 has one failure.
        properties: Empty before MQTT 5.
    """

    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    """Ends subscriptions.

    Attributes:
        packet_id: 1 to 65535.
        topic_filters: At least one.
        properties: Empty before MQTT 5.
    """

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsuback:
    """Says what became of each filter of an UNSUBSCRIBE.

    Attributes:
        packet_id: That of the UNSUBSCRIBE.
        reason_codes: One for each filter; empty before MQTT 5.
        properties: Empty before MQTT 5.
    """

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pingreq:
    """A client's sign of life."""


@dataclass(slots=True)
class Pingresp:
    """The answer to it."""


@dataclass(slots=True)
class Disconnect:
    """The last packet.

    Attributes:
        reason_code: Why; before MQTT 5 always `SUCCESS`.
        properties: Empty before MQTT 5.
    """

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    """A step of an extended authentication, MQTT 5 alone.

    Attributes:
        reason_code: Which step.
        properties: Its method and data.
    """

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect | Connack | Publish | Puback | Pubrec | Pubrel | Pubcomp | Subscribe | Suback
    | Unsubscribe | Unsuback | Pingreq | Pingresp | Disconnect | Auth
)  # fmt: skip

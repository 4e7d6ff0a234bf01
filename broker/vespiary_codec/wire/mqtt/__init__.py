"""MQTT 3.1, 3.1.1 and 5, sans I/O.

Owns the protocol as bytes: packets from bytes (`MqttDecoder`), bytes from packets (`encode`), the
text of topics, reason codes and properties. Must never do I/O, log, or look at a clock. It is the
specification that a C scanner is tested against.

Sources: MQTT 5.0 (OASIS, 2019), MQTT 3.1.1 (OASIS, 2014), MQTT 3.1 (IBM and Eurotech, 2010). Where
they leave a choice, or stock clients differ from them, the rule is in the docstring of `decoder`.
"""

from vespiary_codec.wire.mqtt.decoder import MqttDecoder
from vespiary_codec.wire.mqtt.encoder import encode
from vespiary_codec.wire.mqtt.errors import (
    LimitExceeded,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    Violation,
)
from vespiary_codec.wire.mqtt.limits import MqttLimits
from vespiary_codec.wire.mqtt.packet_types import PacketType, Role, Version
from vespiary_codec.wire.mqtt.packets import (
    NEED_DATA,
    Auth,
    Connack,
    Connect,
    Disconnect,
    NeedData,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from vespiary_codec.wire.mqtt.properties import RULES, Kind, Properties, Property
from vespiary_codec.wire.mqtt.reason_codes import (
    ReasonCode,
    connack_reason_code,
    connack_return_code,
)
from vespiary_codec.wire.mqtt.topics import (
    Share,
    check_filter,
    check_topic,
    matches,
    split_share,
)

__all__ = [
    "NEED_DATA",
    "RULES",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Kind",
    "LimitExceeded",
    "LocalProtocolError",
    "MqttDecoder",
    "MqttLimits",
    "NeedData",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Property",
    "ProtocolError",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "RemoteProtocolError",
    "Role",
    "Share",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Version",
    "Violation",
    "Will",
    "check_filter",
    "check_topic",
    "connack_reason_code",
    "connack_return_code",
    "encode",
    "matches",
    "split_share",
]

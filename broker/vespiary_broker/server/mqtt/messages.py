"""One message between MQTT and the journal: what of a PUBLISH is stored how, and back.

Owns the conversion, both ways; a message that came by another protocol is converted by the same
rules. Must never look at subscriptions or sessions. Pure: the clock is an argument. The table for
users is docs/howto/conversion.md.

    MQTT                        stored header lines
    topic name                  destination (an address: `topics`)
    QoS 1, QoS 2                persistent:true, and mqtt-qos:2
    retain                      mqtt-retain:true, as it was published
    message expiry interval     expires (milliseconds since 1970)
    response topic              reply-to (an address)
    correlation data            correlation-id if it is text, else mqtt-correlation-data (base64)
    content type                content-type
    payload format indicator    mqtt-payload-format
    user property               a header of its name; user-property.NAME if that one is taken

A message of another protocol goes out with the QoS that its persistence asks for, its headers as
user properties.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Final, NamedTuple

from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_codec.stored_message import StoredMessage
from vespiary_codec.wire.mqtt import Property
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.stomp.errors import RemoteProtocolError
from vespiary_codec.wire.stomp.escapes import escape, unescape
from vespiary_codec.wire.stomp.properties import BROKER_HEADERS, TRANSPORT_HEADERS

PROTOCOL: Final = 2
"""Code of the sender's protocol in the journal."""
QOS: Final = "mqtt-qos"
RETAIN: Final = "mqtt-retain"
RETAINED: Final = "mqtt-retained"
"""Of a copy that a new subscription gets because the message was retained."""
_CORRELATION_DATA: Final = "mqtt-correlation-data"
_PAYLOAD_FORMAT: Final = "mqtt-payload-format"
USER_PREFIX: Final = "user-property."
_OWN: Final = frozenset(
    {
        "destination", "persistent", "priority", "expires", "reply-to", "correlation-id",
        "content-type", QOS, RETAIN, RETAINED, _CORRELATION_DATA, _PAYLOAD_FORMAT,
    }
)  # fmt: skip
"""Headers that say what MQTT says otherwise."""
_SILENT: Final = frozenset({"destination-type", "JMSExpiration", "_AMQ_DUPL_ID"})
"""Headers of other protocols that mean nothing behind the broker."""
_TAKEN: Final = _OWN | TRANSPORT_HEADERS | _SILENT
"""Names of headers that a user property does not get."""
_TAKEN_BEGINNINGS: Final = (USER_PREFIX, *BROKER_HEADERS)
_PRIORITY_USUAL: Final = 4


def stored_lines(
    topic_address: str, qos: int, *, retain: bool, properties: Properties, topics: TopicMapping
) -> bytes:
    """Return the header lines of a PUBLISH, without its expiry.

    Args:
        topic_address: The address of its topic.
        qos: 0 to 2.
        retain: As it was published.
        properties: Of MQTT 5.
        topics: Says which address a response topic is.
    """
    lines = [f"destination:{escape(topic_address, '1.2')}\n"]
    if qos:
        lines.append("persistent:true\n")
    if qos == 2:
        lines.append(f"{QOS}:2\n")
    if retain:
        lines.append(f"{RETAIN}:true\n")
    if properties:
        lines.extend(
            f"{escape(name, '1.2')}:{escape(value, '1.2')}\n"
            for name, value in _headers_of(properties, topics)
        )
    return "".join(lines).encode()


def _headers_of(properties: Properties, topics: TopicMapping) -> Iterable[tuple[str, str]]:
    """Yield properties of MQTT 5 as headers."""
    response_topic = properties.get(Property.RESPONSE_TOPIC)
    if response_topic is not None:
        yield "reply-to", topics.address_of(str(response_topic))
    content_type = properties.get(Property.CONTENT_TYPE)
    if content_type is not None:
        yield "content-type", str(content_type)
    correlation = properties.get(Property.CORRELATION_DATA)
    if isinstance(correlation, bytes):
        yield _correlation_header(correlation)
    payload_format = properties.get(Property.PAYLOAD_FORMAT_INDICATOR)
    if payload_format is not None:
        yield _PAYLOAD_FORMAT, str(payload_format)
    pairs = properties.get(Property.USER_PROPERTY, ())
    assert not isinstance(pairs, int | str | bytes)
    for pair in pairs:
        assert isinstance(pair, tuple)
        name, value = pair
        is_taken = not name or name in _TAKEN or name.startswith(_TAKEN_BEGINNINGS)
        yield (USER_PREFIX + name if is_taken else name), value


def _correlation_header(data: bytes) -> tuple[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return _CORRELATION_DATA, base64.b64encode(data).decode()
    return "correlation-id", text


class Delivered(NamedTuple):
    """A stored message as MQTT says it.

    Attributes:
        address: Where it was sent to, as its sender wrote it.
        qos: The QoS that it was published with; 2 for a persistent message of another protocol.
        retain: Whether it was published with the retain flag.
        is_retained_copy: Whether it is sent because it was retained.
        properties: Of MQTT 5, without the expiry interval.
        expires_ms: When it expires, milliseconds since 1970; 0: never.
    """

    address: str
    qos: int
    retain: bool
    is_retained_copy: bool
    properties: Properties
    expires_ms: int


def delivered(message: StoredMessage, topics: TopicMapping) -> Delivered:
    """Return what MQTT says of a stored message.

    Args:
        message: The message.
        topics: Says which topic the address of an answer is.
    """
    values: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for name, value in _headers(message):
        if name in _OWN:
            values.setdefault(name, value)
        elif name not in TRANSPORT_HEADERS and name not in _SILENT:
            pairs.append((name.removeprefix(USER_PREFIX), value))
    if message.priority != _PRIORITY_USUAL:
        pairs.append(("priority", str(message.priority)))
    qos = 0
    if values.get("persistent") == "true":
        qos = 2 if message.protocol != PROTOCOL or values.get(QOS) == "2" else 1
    expires = values.get("expires", "")
    return Delivered(
        values.get("destination", ""),
        qos,
        values.get(RETAIN) == "true",
        values.get(RETAINED) == "true",
        _properties_of(values, pairs, topics),
        int(expires) if expires.isdecimal() and expires.isascii() else 0,
    )


def _headers(message: StoredMessage) -> Iterable[tuple[str, str]]:
    """Yield the header lines of a stored message."""
    text = message.properties.partition(b"\0")[0].decode(errors="replace")
    for line in text.split("\n")[:-1]:
        name, _, value = line.partition(":")
        if message.is_escaped and "\\" in line:
            yield _plain(name), _plain(value)
        else:
            yield name, value


def _plain(text: str) -> str:
    try:
        return unescape(text, "1.2")
    except RemoteProtocolError:
        return text  # an escape that nobody knows, of whoever stored it


def _properties_of(
    values: dict[str, str], pairs: list[tuple[str, str]], topics: TopicMapping
) -> Properties:
    made: Properties = {}
    payload_format = values.get(_PAYLOAD_FORMAT, "")
    if payload_format in ("0", "1"):
        made[Property.PAYLOAD_FORMAT_INDICATOR] = int(payload_format)
    if "content-type" in values:
        made[Property.CONTENT_TYPE] = values["content-type"]
    if values.get("reply-to"):
        made[Property.RESPONSE_TOPIC] = topics.topic_of_destination(values["reply-to"])
    if _CORRELATION_DATA in values:
        made[Property.CORRELATION_DATA] = _binary(values[_CORRELATION_DATA])
    elif "correlation-id" in values:
        made[Property.CORRELATION_DATA] = values["correlation-id"].encode()
    if pairs:
        made[Property.USER_PROPERTY] = pairs
    return made


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text.encode()  # of another sender, who means something else by the name

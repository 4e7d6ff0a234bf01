"""A PUBLISH, of a client or out of a will, as a message for the engine.

Owns what clients may publish, and the stamps and times of a message. Must never stage it. Called by
`publishing` and `wills`.

Source: MQTT 5.0 §3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.ingress import ingress_stamp
from vespiary_broker.engine.message_times import NO_TIMES, stamp, times_of_send
from vespiary_broker.engine.names import Destination, Sender, is_reserved
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.server.mqtt.messages import PROTOCOL, stored_lines
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_codec.wire.mqtt import Property, Publish, RemoteProtocolError, Violation
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle


def outgoing_of(
    cycle: Cycle, topics: TopicMapping, packet: Publish, user: str, sender: Sender
) -> Outgoing:
    """Return the message of a PUBLISH.

    Args:
        cycle: What all connections share.
        topics: Says which address a topic is.
        packet: The packet.
        user: In whose name it is sent.
        sender: The client.

    Raises:
        RemoteProtocolError: Clients may not publish to its topic.
    """
    registry = cycle.engine.registry
    address = topics.address_of(packet.topic)
    if is_reserved(address, registry.syntax.delimiter):
        raise RemoteProtocolError(
            Violation.TOPIC_NAME,
            f"the topic is the broker's own: {packet.topic[:60]!r}",
            ReasonCode.NOT_AUTHORIZED,
        )
    # A queue of other protocols takes part; what does not exist yet becomes a topic.
    kind = None if address in registry.addresses else RoutingType.MULTICAST
    settings = registry.settings_for(address)
    now_ms = cycle.engine.fates.clock_ms()
    lines = stored_lines(
        address, packet.qos, retain=packet.retain, properties=packet.properties, topics=topics
    )
    times = times_of_send(_times(packet.properties, now_ms).get, settings, now_ms)
    if times != NO_TIMES:
        cycle.engine.fates.special_sent()
    is_grouped = b"\nJMSXGroupID:" in lines
    return Outgoing(
        destination=Destination(address, None, kind, user, sender),
        properties=ingress_stamp(stamp(lines, times), settings, now_ms),
        body=packet.payload,
        is_persistent=packet.qos > 0,
        is_special=times != NO_TIMES or is_grouped,
        protocol=PROTOCOL,
    )


def _times(properties: Properties, now_ms: int) -> dict[str, str]:
    """Return what properties say of times, as headers of STOMP say it."""
    found: dict[str, str] = {}
    pairs = properties.get(Property.USER_PROPERTY, ())
    assert not isinstance(pairs, int | str | bytes)
    for pair in pairs:
        assert isinstance(pair, tuple)
        found.setdefault(*pair)
    found.pop("expires", None)
    found.pop("JMSExpiration", None)
    interval_s = properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
    if isinstance(interval_s, int):
        found["expires"] = str(now_ms + interval_s * 1000)
    return found

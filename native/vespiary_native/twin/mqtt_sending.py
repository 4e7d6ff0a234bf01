"""MQTT's fast path out: the calls of `abc_mqtt.CoreMqtt`, and what PUBACKs say.

Owns nothing: a mix-in of `TwinCore`, over its tables. Packets and their ids: `mqtt_packets`.
"""

from __future__ import annotations

from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_native.abc_mqtt import MqttEncoding, SentMessage
from vespiary_native.twin import delivery
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection
from vespiary_native.twin.tables import Tables


def take_puback(staging: Staging, connection: Connection, packet_id: int) -> bool:
    """Acknowledge what the core has sent (see `CoreMqtt.take_puback`)."""
    sent = connection.sent.get(packet_id)
    if sent is None:
        return False
    if sent.consumer is not None:
        delivery.acknowledge(staging, sent.consumer, sent.sequence)
    connection.sent.free(packet_id)
    return True


class TwinMqttSending(Tables):
    """The calls; base class of `TwinCore`."""

    def encode_mqtt(self, consumer: int, encoding: MqttEncoding | None) -> None:
        """See `CoreMqtt.encode_mqtt`."""
        known = self._consumer(consumer)
        if encoding is None:
            known.encoding = None
            return
        is_fit = known.version == 0 and known.mode is AckMode.INDIVIDUAL
        if not is_fit or not known.connection.is_mqtt or not 0 <= encoding.qos <= 2:
            raise ValueError(f"messages of consumer {consumer} cannot be encoded: {encoding}")
        known.encoding = encoding

    def deliver_stored(
        self, consumer: int, max_messages: int, max_bytes: int
    ) -> tuple[DeliverStatus, int, bytes]:
        """See `CoreMqtt.deliver_stored`."""
        known = self._consumer(consumer)
        return delivery.deliver(self._staging, known, max_messages, max_bytes, is_stored=True)

    def _client(self, handle: int) -> Connection:
        known = self._connection(handle)
        if not known.is_mqtt:
            raise ValueError(f"connection {handle} is not one of MQTT")
        return known

    def set_window(self, connection: int, messages: int) -> None:
        """See `CoreMqtt.set_window`."""
        self._client(connection).sent.window = messages

    def sent_count(self, connection: int) -> int:
        """See `CoreMqtt.sent_count`."""
        return self._client(connection).sent.out

    def sent(self, connection: int) -> list[SentMessage]:
        """See `CoreMqtt.sent`."""
        return self._client(connection).sent.messages()

    def reserve_packet_id(self, connection: int, packet_id: int, *, reserved: bool) -> None:
        """See `CoreMqtt.reserve_packet_id`."""
        self._client(connection).sent.reserve(packet_id, reserved=reserved)

    def take_packet_id(self, connection: int) -> int:
        """See `CoreMqtt.take_packet_id`."""
        return self._client(connection).sent.take()

    def take_puback(self, connection: int, packet_id: int) -> bool:
        """See `CoreMqtt.take_puback`.

        Durability: durable with the block that is filling.
        """
        return take_puback(self._staging, self._client(connection), packet_id)

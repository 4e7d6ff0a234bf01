"""The contract of `abc_mqtt.CoreMqtt` over the C core (native/src/mqtt_*.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.abc_mqtt import MqttEncoding, MqttLimits, SentMessage
from vespiary_native.answers import DELIVER_STATUS, check
from vespiary_native.core_switching import SCAN_STATUS
from vespiary_native.loader import ffi, lib
from vespiary_native.values import DeliverStatus


class NativeMqtt:
    """See `abc_mqtt.CoreMqtt`."""

    _core: Any
    _frames: Any
    _result: Any

    def set_ready_mqtt(self, connection: int, version: int, limits: MqttLimits) -> None:
        """See `CoreMqtt.set_ready_mqtt`."""
        bad = lib.vespiary_core_set_ready_mqtt(self._core, connection, version, *limits)
        check(bad, "set_ready_mqtt")

    def teach_mqtt(self, connection: int, topic: bytes, address_line: bytes, route: int) -> None:
        """See `CoreMqtt.teach_mqtt`."""
        bad = lib.vespiary_core_teach_mqtt(
            self._core, connection, topic, len(topic), address_line, len(address_line), route
        )
        check(bad, "teach_mqtt")

    def scan_mqtt(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """See `CoreMqtt.scan_mqtt`.

        Durability: what was taken is durable with the block that is filling.
        """
        out = self._result
        bad = lib.vespiary_core_scan_mqtt(self._core, connection, buffer, start, end, out)
        if bad:
            check(bad, "scan_mqtt")
        return SCAN_STATUS[out.status], out.position, out.detail

    def unanswered(self, connection: int) -> int:
        """See `CoreMqtt.unanswered`."""
        return check(lib.vespiary_core_unanswered(self._core, connection), "unanswered")

    # --- messages out -----------------------------------------------------------------------------
    def encode_mqtt(self, consumer: int, encoding: MqttEncoding | None) -> None:
        """See `CoreMqtt.encode_mqtt`."""
        if encoding is None:
            bad = lib.vespiary_core_stop_encoding(self._core, consumer)
        else:
            qos, packet_bytes, topic, stored_below, prefixes = encoding
            before = b"\0".join(prefixes)
            bad = lib.vespiary_core_encode_mqtt(
                *(self._core, consumer, qos, packet_bytes, stored_below),
                *(topic, len(topic), before, len(before)),
            )
        check(bad, f"encode_mqtt({consumer})")

    def deliver_stored(
        self, consumer: int, max_messages: int, max_bytes: int
    ) -> tuple[DeliverStatus, int, bytes]:
        """See `CoreMqtt.deliver_stored`."""
        out, frames = self._result, self._frames
        count = lib.vespiary_core_deliver_stored(
            self._core, consumer, max_messages, max_bytes, out, frames
        )
        check(count, f"deliver_stored({consumer})")
        data = bytes(ffi.buffer(frames[0], out.position)) if count else b""
        return DELIVER_STATUS[out.status], count, data

    def set_window(self, connection: int, messages: int) -> None:
        """See `CoreMqtt.set_window`."""
        check(lib.vespiary_core_set_window(self._core, connection, messages), "set_window")

    def sent_count(self, connection: int) -> int:
        """See `CoreMqtt.sent_count`."""
        return check(lib.vespiary_core_sent_count(self._core, connection), "sent_count")

    def sent(self, connection: int) -> list[SentMessage]:
        """See `CoreMqtt.sent`."""
        room = check(lib.vespiary_core_sent(self._core, connection, ffi.NULL, 0), "sent")
        out = ffi.new("vespiary_sent[]", room)
        lib.vespiary_core_sent(self._core, connection, out, room)
        return [SentMessage(one.packet_id, one.queue_id, one.sequence) for one in out]

    def reserve_packet_id(self, connection: int, packet_id: int, *, reserved: bool) -> None:
        """See `CoreMqtt.reserve_packet_id`."""
        bad = lib.vespiary_core_reserve_packet_id(self._core, connection, packet_id, reserved)
        check(bad, f"reserve_packet_id({packet_id})")

    def take_packet_id(self, connection: int) -> int:
        """See `CoreMqtt.take_packet_id`."""
        return check(lib.vespiary_core_take_packet_id(self._core, connection), "take_packet_id")

    def take_puback(self, connection: int, packet_id: int) -> bool:
        """See `CoreMqtt.take_puback`.

        Durability: durable with the block that is filling.
        """
        taken = lib.vespiary_core_take_puback(self._core, connection, packet_id)
        return bool(check(taken, f"take_puback({packet_id})"))

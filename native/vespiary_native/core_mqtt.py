"""The contract of `abc_mqtt.CoreMqtt` over the C core (native/src/mqtt_scan.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.abc_mqtt import MqttLimits
from vespiary_native.answers import check
from vespiary_native.core_switching import SCAN_STATUS
from vespiary_native.loader import lib


class NativeMqtt:
    """See `abc_mqtt.CoreMqtt`."""

    _core: Any
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

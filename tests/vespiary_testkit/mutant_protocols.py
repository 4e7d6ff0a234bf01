"""Seeded faults of MQTT and AMQP: an answer leaves before what it promises is durable.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_SERVER: Final = "broker/vespiary_broker/server/"
_MQTT: Final = "tests/unit/vespiary_broker/server/mqtt/"
_AMQP: Final = "tests/unit/vespiary_broker/server/amqp/"

PYTHON_PROTOCOLS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "PUBACK before the flush",
        "An MQTT client is told that its message is safe before it is.",
        _SERVER + "mqtt/publishing.py",
        "        self._connection.confirm(data)\n",
        "        self._connection.write(data)\n",
        _MQTT + "test_mqtt_publishing.py::test_puback_leaves_behind_the_flush",
    ),
    Mutant(
        "PUBLISH of QoS 2 before its note",
        "A message of QoS 2 leaves with a packet id that a crash forgets.",
        _SERVER + "mqtt/delivering.py",
        "            self._connection.confirm(data)\n",
        "            self._connection.write(data)\n",
        _MQTT + "test_mqtt_delivering.py::test_qos_2_leaves_once_its_id_is_durable",
    ),
    Mutant(
        "accepted before the flush",
        "An AMQP sender is told that its message is accepted before it is durable.",
        _SERVER + "amqp/handler.py",
        "        self.connection.confirm(encode_frame(Frame(channel, body)))\n",
        "        self.connection.write(encode_frame(Frame(channel, body)))\n",
        _AMQP + "test_receiving.py::test_accepted_comes_behind_the_flush",
    ),
)

NATIVE_PROTOCOLS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "PUBACK of the core before the flush",
        "The core answers a PUBLISH as if nothing of its connection were unwritten.",
        "native/src/stomp_scan.c",
        "    if (block)\n        core->connections[handle].last_block = block;\n"
        "    if (!receipt.data)",
        "    if (!receipt.data)",
        "tests/unit/vespiary_native/test_core_mqtt.py::test_pubacks_leave_behind_the_flush_in_order",
    ),
)

"""MQTT's intake: plain PUBLISHes go to the core, the rest to the handler as decoded packets.

Owns what `server.intake` leaves to the protocol. Owner: its connection.
"""

from __future__ import annotations

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.switching import Switches
from vespiary_broker.server import intake
from vespiary_broker.server.buffers import SharedBuffer
from vespiary_broker.server.intake import Taker
from vespiary_codec.wire.mqtt import (
    MqttDecoder,
    MqttLimits,
    Packet,
    RemoteProtocolError,
    Version,
)
from vespiary_codec.wire.mqtt.packets import NeedData


class Intake(intake.Intake[Packet]):
    """The bytes that one connection received.

    Args:
        core: The core.
        shared: The buffer of all connections.
        taker: The connection.
        limits: Bounds of a packet.
        switches: Choose for messages whose route depends on them.
    """

    _decoder: MqttDecoder

    def __init__(
        self,
        core: Core,
        shared: SharedBuffer,
        taker: Taker[Packet],
        limits: MqttLimits,
        switches: Switches,
    ) -> None:
        super().__init__(core, shared, taker, switches)
        self._limits = limits
        self._decoder = MqttDecoder(limits)

    @property
    def version(self) -> Version | None:
        """The version that CONNECT asks for; None before it."""
        return self._decoder.version

    def set_version(self, version: Version) -> None:
        """Go on behind the login: with the core's scanner, in this version."""
        self._logged_in(MqttDecoder(self._limits, version=version))

    # --- what a packet is -------------------------------------------------------------------------

    def _scan_core(self, buffer: int, position: int, end: int) -> tuple[int, int, int]:
        return self._core.scan_mqtt(self._taker.handle, buffer, position, end)

    def _next_frame(self) -> Packet | None:
        try:
            packet = self._decoder.next_packet()
        except RemoteProtocolError as error:
            self._taker.refuse_error(error)
            return None
        return None if isinstance(packet, NeedData) else packet

    @property
    def _is_mid_frame(self) -> bool:
        return self._decoder.is_mid_packet

    def _scan_again_at(self, length: int) -> int:
        return length + 1  # its length is in its first five bytes

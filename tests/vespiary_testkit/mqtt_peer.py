"""A server of the codec's making that says what a stock client needs to go on: for its tests.

Owns one listener on loopback, one client, and all packets that it got. It is no broker: it gives
each message back to its sender.
"""

from __future__ import annotations

import socket
import threading
from typing import Self

from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    Connack,
    Connect,
    Disconnect,
    MqttDecoder,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Version,
    encode,
)

TIMEOUT_S = 20


class MqttPeer:
    """Answers one client after the other. Owner: the test, with `with`.

    Args:
        of_connack: Properties of its CONNACK, for clients of MQTT 5.
        refusal: What it answers to each login instead.
    """

    def __init__(
        self, of_connack: Properties | None = None, refusal: ReasonCode = ReasonCode.SUCCESS
    ) -> None:
        self.packets: list[Packet] = []
        self._of_connack = of_connack or {}
        self._refusal = refusal
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self._thread = threading.Thread(target=self._serve)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(TIMEOUT_S)
        self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(TIMEOUT_S)
            decoder = MqttDecoder()
            while data := client.recv(65_536):
                decoder.feed(data)
                while not isinstance(packet := decoder.next_packet(), type(NEED_DATA)):
                    self.packets.append(packet)
                    if isinstance(packet, Disconnect):
                        return
                    version = decoder.version
                    assert version is not None
                    answers = self._answers(packet, version)
                    client.sendall(b"".join(encode(one, version) for one in answers))

    def _answers(self, packet: Packet, version: Version) -> list[Packet]:
        match packet:
            case Connect():
                properties = self._of_connack if version is Version.V5 else {}
                return [Connack(self._refusal, properties=properties)]
            case Subscribe():
                granted = tuple(ReasonCode(one.qos) for one in packet.subscriptions)
                return [Suback(packet.packet_id, granted)]
            case Unsubscribe():
                codes = (ReasonCode.SUCCESS,) * len(packet.topic_filters)
                return [Unsuback(packet.packet_id, codes)]
            case Publish():
                return [*self._received(packet), packet]
            case Pubrel():
                return [Pubcomp(packet.packet_id)]
            case Pubrec():
                return [Pubrel(packet.packet_id)]
            case Pingreq():
                return [Pingresp()]
        return []

    @staticmethod
    def _received(packet: Publish) -> list[Packet]:
        answers: list[list[Packet]] = [[], [Puback(packet.packet_id)], [Pubrec(packet.packet_id)]]
        return answers[packet.qos]

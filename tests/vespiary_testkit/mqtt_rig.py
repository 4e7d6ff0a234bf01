"""MQTT clients on a server in one process without sockets: `server_rig` for MQTT.

`MqttRig` has what all MQTT clients share; `MqttClientPeer` is a client on a fake transport that
speaks by the codec, and does nothing that the test does not tell it.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from vespiary_broker.server.connection import Connection
from vespiary_broker.server.listener import Listener
from vespiary_broker.server.mqtt.hub import MqttHub
from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    Connack,
    Connect,
    MqttDecoder,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from vespiary_spec.settings import Acceptor, MqttLimits, Protocol
from vespiary_testkit.server_rig import FakeTransport, ServerRig

P = TypeVar("P")
V3 = Version.V3_1_1
V5 = Version.V5


class MqttRig(ServerRig):
    """A server that speaks MQTT and STOMP, unless told otherwise; make it on a running loop."""

    def __init__(
        self,
        *,
        limits: MqttLimits | None = None,
        protocols: tuple[Protocol, ...] = (Protocol.STOMP, Protocol.MQTT),
        **options: Any,
    ) -> None:
        acceptor = Acceptor(
            name="all",
            port=0,
            protocols=protocols,
            mqtt=limits or MqttLimits(),
        )
        super().__init__(acceptor=acceptor, **options)
        self.hub = self.cycle.mqtt = MqttHub(
            self.cycle, self.bindings, lambda *_: None, ("/queue/", "/topic/")
        )
        self.hub.restore()
        self.hub.start()

    def client(self, version: Version = V5) -> MqttClientPeer:
        """Return a client that has connected its transport and said nothing."""
        return MqttClientPeer(self, self.listener, version)

    async def connected(
        self, client_id: str = "c", version: Version = V5, **fields: Any
    ) -> MqttClientPeer:
        """Return a client that is logged in."""
        client = self.client(version)
        await client.login(client_id, **fields)
        return client

    async def close(self) -> None:
        self.hub.close()
        await super().close()


class MqttClientPeer:
    """One client of the rig."""

    def __init__(self, rig: MqttRig, listener: Listener, version: Version) -> None:
        self.version = version
        self.transport = FakeTransport()
        self.connection = Connection(rig.cycle, listener)
        self.transport.protocol = self.connection
        self._decoder = MqttDecoder(role="client", version=version)
        self._rig = rig
        self._taken = 0
        self.connection.connection_made(self.transport)

    def send(self, *packets: Packet) -> None:
        """Have packets arrive in one piece."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Have bytes arrive."""
        while data:
            view = self.connection.get_buffer(-1)
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def packets(self) -> list[Packet]:
        """Return the packets that came since the last call."""
        self._decoder.feed(self.transport.data[self._taken :])
        self._taken = len(self.transport.data)
        found = []
        while (packet := self._decoder.next_packet()) is not NEED_DATA:
            found.append(packet)
        return found

    def all_of(self, kind: type[P]) -> list[P]:
        """Return the packets that came since the last call, which are all of one type."""
        found = self.packets()
        assert all(isinstance(packet, kind) for packet in found), found
        return found  # type: ignore[return-value]

    def one(self, kind: type[P]) -> P:
        """Return the only packet that came since the last call."""
        (found,) = self.all_of(kind)
        return found

    async def answer(self, kind: type[P]) -> P:
        """Wait for one packet, which may take a thread's time; return it."""
        for _ in range(2000):
            await self._rig.flush()
            if len(self.transport.data) > self._taken:
                break
            await asyncio.sleep(0.005)
        return self.one(kind)

    async def login(self, client_id: str, **fields: Any) -> Connack:
        """Send CONNECT and return its answer, which says yes."""
        self.send(Connect(self.version, client_id, **fields))
        await self._rig.flush()
        answer, *rest = self.packets()
        assert isinstance(answer, Connack)
        assert not answer.reason_code.is_failure, answer
        self.early = rest
        return answer

    async def subscribe(
        self, topic_filter: str, qos: int = 1, properties: Any = None, **options: Any
    ) -> list[Packet]:
        """Subscribe; return what came behind SUBACK."""
        wanted = Subscription(topic_filter, qos, **options)
        self.send(Subscribe(1, (wanted,), properties or {}))
        await self._rig.flush()
        await self._rig.flush()
        found = self.packets()
        answers = [packet for packet in found if isinstance(packet, Suback)]
        assert [list(each.reason_codes) for each in answers] == [[qos]], found
        return [packet for packet in found if not isinstance(packet, Suback)]

    async def received(self) -> list[Publish]:
        """Return the messages that came, once all that is staged is written."""
        await self._rig.flush()
        await self._rig.flush()
        return self.all_of(Publish)

    def lose(self) -> None:
        """Have the connection break."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)

    @property
    def is_ended(self) -> bool:
        """Whether the server has ended the connection."""
        return self.transport.is_eof or self.transport.is_closed

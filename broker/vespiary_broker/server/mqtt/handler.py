"""The MQTT handler of a connection: bytes to packets, packets to those who act, and last words.

Owns the keep alive clock, and which packet goes where. Must never know an address:
`publishing`, `subscribing` and `delivering` do. Owner: its connection.

A packet is handled when the one before it is done (`Connection.perform`); what is received
meanwhile waits in the intake, and reading stops.

Source: MQTT 3.1.1 and 5.0, §3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import MqttLimits as ScanLimits
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.server.mqtt.connecting import Connecting, Login
from vespiary_broker.server.mqtt.intake import COLLECTED_BYTES_MAX, Intake
from vespiary_broker.server.mqtt.reasons import (
    KeepAliveExceeded,
    explained,
    reason_of,
    sentence_for,
)
from vespiary_broker.server.protocol_handler import LargeStart, Refusal, Work
from vespiary_codec.wire.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RemoteProtocolError,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Version,
    Violation,
    encode,
)
from vespiary_codec.wire.mqtt import MqttLimits as CodecLimits
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.publish_head import HEAD_BYTES_MAX
from vespiary_codec.wire.mqtt.reason_codes import ALLOWED, ReasonCode
from vespiary_spec.errors import DiskFull, LoginRefused, VespiaryError
from vespiary_spec.settings import MqttLimits

if TYPE_CHECKING:
    from vespiary_broker.engine.core import LargeDelivery
    from vespiary_broker.engine.queues import Consumer
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import LargeLimits, Listener
    from vespiary_broker.store.large_writer import LargeWriter

_KEEP_ALIVE_SHARE: Final = 1.5
"""Keep alive intervals without a packet after which a client is dropped (§3.1.2.10)."""
_SCANNED_BEGINNING_BYTES: Final = 4096
"""Bytes before a payload up to which the core finds a packet whose payload is not large."""
_NAMES: Final = {Version.V3_1: "MQTT 3.1", Version.V3_1_1: "MQTT 3.1.1", Version.V5: "MQTT 5"}


def packet_bytes_max(limits: MqttLimits, large: LargeLimits | None) -> int:
    """Return the largest packet that a client may send.

    Args:
        limits: Those of the acceptor.
        large: Which payloads go to files; None: none does, so each is in memory.
    """
    if large is None:
        return min(limits.maximum_packet_size, COLLECTED_BYTES_MAX)
    return min(limits.maximum_packet_size, large.size_bytes_max + HEAD_BYTES_MAX)


class MqttHandler:
    """One client's MQTT; keeps `protocol_handler.ProtocolHandler`.

    Owner: its connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """

    def __init__(self, connection: Connection, cycle: Cycle, listener: Listener) -> None:
        assert cycle.mqtt is not None
        limits = listener.acceptor.mqtt
        self._large = listener.large if cycle.large is not None else None
        self.packet_bytes_max = packet_bytes_max(limits, self._large)
        self._connection = connection
        self._cycle = cycle
        self._limits = limits
        self._listener = listener
        self._intake = Intake(
            cycle.core,
            cycle.buffer,
            self,
            CodecLimits(
                packet_bytes=self.packet_bytes_max,
                before_login_bytes=min(self.packet_bytes_max, 64 * 1024),
                topic_bytes=limits.max_topic_size,
                topic_levels=limits.max_topic_levels,
                user_properties=limits.max_user_properties,
            ),
            cycle.engine.registry.switches,
            self._large,
        )
        # What every turn asks for is bound once.
        self.read_view = self._intake.read_view
        self.drop = self._intake.drop
        self.begin = self._intake.begin
        self.block = connection.block
        self.rest = connection.rest
        self.note_partial = connection.note_partial
        self.fail_frame = connection.fail_frame
        self.hold_reading = connection.hold_reading
        self._connecting = Connecting(connection, cycle, cycle.mqtt, listener, self)
        self._login: Login | None = None
        self._version: Version | None = None
        self._keep_alive_s = 0.0
        self._is_closed = False

    # --- what the connection asks -----------------------------------------------------------------

    @property
    def protocol(self) -> str:
        """Name and version; empty before the login."""
        return _NAMES[self._login.version] if self._login is not None else ""

    @property
    def user(self) -> str:
        """Name of the user that it acts for; empty before its password was found to be right."""
        return self._connecting.user

    @property
    def client_id(self) -> str:
        """Name of the client; empty before the login."""
        return self._login.session.client_id if self._login is not None else ""

    @property
    def subscriptions_count(self) -> int:
        """Consumers that the client has."""
        return len(self._login.subscribing) if self._login is not None else 0

    @property
    def is_logged_in(self) -> bool:
        """Whether the login is done."""
        return self._login is not None

    @property
    def min_read_rate(self) -> int:
        """Bytes a second that an incomplete packet has to grow by; 0: any number."""
        return self._limits.min_read_rate

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a packet that is not complete."""
        return self._intake.partial_bytes

    def take(self, nbytes: int) -> None:
        """Take what was read to `read_view`."""
        self._intake.take(nbytes)
        self._see_window()

    def resume(self) -> None:
        """Go on with what was received before the connection stopped taking packets."""
        self._intake.resume()
        self._see_window()

    def _see_window(self) -> None:
        """Send what waits for the window, if the core has taken acknowledgements."""
        login = self._login
        if login is not None and login.deliveries.is_stalled:
            login.deliveries.acknowledged()

    def close(self) -> None:
        """Give back everything that the client holds."""
        if self._login is not None and not self._is_closed:
            self._is_closed = True
            self._connecting.leave(self._login)

    def dismantle(self) -> None:
        """Break the links between its parts."""
        self._intake.dismantle()
        self._connecting.dismantle()
        if self._login is not None:
            self._login.deliveries.dismantle()

    def expire_transactions(self, before_s: float) -> int:  # noqa: ARG002 (MQTT has none)
        """Return 0: MQTT has no transactions."""
        return 0

    def displace(self, consumer: Consumer, sentence: str) -> bool:  # noqa: ARG002
        """Return False: an MQTT session goes as a whole to a connection of its client id."""
        return False

    def refusal(self, error: VespiaryError, cause: object) -> Refusal:  # noqa: ARG002
        """Return the last packet for what the client did: CONNACK, DISCONNECT, or none."""
        code = reason_of(error)
        if self._login is not None and isinstance(error, LoginRefused):
            code = ReasonCode.NOT_AUTHORIZED  # it authenticated again
        kind = error.violation.value if isinstance(error, RemoteProtocolError) else ""
        sentence = sentence_for(error)
        return Refusal(kind or type(error).__name__, sentence, self._last(code, sentence))

    def farewell(self, sentence: str) -> bytes:
        """Return the last packet to a client that did nothing wrong."""
        code = (
            ReasonCode.SERVER_SHUTTING_DOWN
            if self._cycle.is_stopping
            else (
                ReasonCode.SERVER_BUSY if self._login is not None else ReasonCode.SERVER_UNAVAILABLE
            )
        )
        return self._last(code, sentence)

    def _last(self, code: ReasonCode, sentence: str) -> bytes:
        version = self._version
        if self._login is None:
            if version is None:
                return b""
            properties: Properties = {Property.REASON_STRING: sentence}
            code = code if code in ALLOWED[PacketType.CONNACK] else ReasonCode.UNSPECIFIED_ERROR
            is_5 = version is Version.V5
            return encode(Connack(code, properties=properties if is_5 else {}), version)
        if version is not Version.V5:
            return b""
        code = code if code in ALLOWED[PacketType.DISCONNECT] else ReasonCode.UNSPECIFIED_ERROR
        data = encode(Disconnect(code, {Property.REASON_STRING: sentence}), Version.V5)
        if len(data) > self._login.packet_bytes_max:
            data = encode(Disconnect(code), Version.V5)
        return data

    def large_start(self, consumer: Consumer, given: LargeDelivery) -> LargeStart | None:
        """Return how a large message is sent."""
        assert self._login is not None
        subscriber = self._login.subscribing.subscriber_of(consumer)
        return self._login.deliveries.large_start(subscriber, given)

    # --- what the intake asks ---------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """The core's handle of the connection."""
        return self._connection.handle

    @property
    def peer(self) -> str:
        """Where the client is."""
        return self._connection.peer

    @property
    def is_open(self) -> bool:
        """Whether packets are still taken, if not now."""
        return self._connection.is_open

    @property
    def is_taking(self) -> bool:
        """Whether the next packet may be taken now."""
        return self._connection.is_taking

    @property
    def takes_blocked(self) -> bool:
        """Whether a policy decides about packets that find no room."""
        return self._connection.takes_blocked

    def take_frame(self, packet: Packet) -> None:
        """Handle a packet; reading waits if it needs time."""
        self._connection.perform(lambda: self._handle(packet), packet)

    def begin_large(self, packet: Publish, payload_bytes: int) -> LargeWriter | None:
        """Return where the large payload of a PUBLISH goes; None: nowhere, it is passed over.

        Raises:
            VespiaryError: The connection has to end.
        """
        assert self._login is not None
        return self._login.publishing.begin_large(packet, payload_bytes)

    def take_large(self, packet: Publish, writer: LargeWriter | None) -> None:
        """Handle a PUBLISH whose payload has come; reading waits meanwhile."""
        assert self._login is not None
        publishing = self._login.publishing
        self._connection.hold_reading(held=False)
        self._connection.perform(lambda: publishing.publish_large(packet, writer), packet)

    def is_body_dropped(self, packet: Publish, full: DiskFull) -> bool:
        """Return what the policy of its address says of a large payload that finds no room."""
        assert self._login is not None
        return self._login.publishing.is_body_dropped(packet, full)

    def refuse_error(self, error: VespiaryError) -> None:
        """End the connection for what the client did wrong."""
        version = error.version if isinstance(error, RemoteProtocolError) else None
        self._version = self._intake.version or version or self._version
        self._connection.refuse_error(error)

    # --- packets ----------------------------------------------------------------------------------

    def _handle(self, packet: Packet) -> Work:
        """Do what a packet asks for; what is returned is left to do.

        Raises:
            VespiaryError: It cannot be done; the connection has to end.
        """
        login = self._login
        if isinstance(packet, Connect):
            return self._connect(packet)
        if isinstance(packet, Auth):
            return self._connecting.authenticate(packet, login)
        if login is None:  # in the middle of an enhanced authentication (§3.1.4)
            return self._refuse_early(packet)
        if isinstance(packet, Publish):
            return login.publishing.publish(packet)
        if isinstance(packet, Puback):
            login.deliveries.puback(packet)
        elif isinstance(packet, Pubrec):
            login.deliveries.pubrec(packet)
        elif isinstance(packet, Pubcomp):
            login.deliveries.pubcomp(packet)
        elif isinstance(packet, Pubrel):
            return self._release(login, packet)
        elif isinstance(packet, Pingreq):
            self._connection.write(encode(Pingresp(), login.version))
        elif isinstance(packet, Subscribe):
            return self._subscribe(login, packet)
        elif isinstance(packet, Unsubscribe):
            return self._unsubscribe(login, packet)
        elif isinstance(packet, Disconnect):
            self._disconnect(login, packet)
        else:
            raise RemoteProtocolError(
                Violation.UNEXPECTED_PACKET,
                f"{type(packet).__name__.upper()} has no place here",
                ReasonCode.PROTOCOL_ERROR,
            )
        return None

    def _refuse_early(self, packet: Packet) -> Work:
        if isinstance(packet, Disconnect):
            self._connection.end(b"")
            return None
        raise RemoteProtocolError(
            Violation.UNEXPECTED_PACKET,
            f"{type(packet).__name__.upper()} came before the login has ended",
            ReasonCode.PROTOCOL_ERROR,
        )

    def _connect(self, packet: Connect) -> Work:
        if self._version is not None:
            raise RemoteProtocolError(
                Violation.UNEXPECTED_PACKET, "CONNECT came twice", ReasonCode.PROTOCOL_ERROR
            )
        self._version = packet.version
        return self._connecting.connect(packet)

    def logged_in(self, login: Login, keep_alive_s: int) -> None:
        """Leave the login behind.

        Args:
            login: What it has led to.
            keep_alive_s: Seconds between two packets of the client; 0: any number.
        """
        self._login = login
        self._connection.logged_in()
        body_bytes = self._listener.scanned_payload_bytes
        scanned_bytes = self.packet_bytes_max
        if self._large is not None:  # a larger packet may have a payload that goes to a file
            scanned_bytes = min(scanned_bytes, body_bytes + _SCANNED_BEGINNING_BYTES)
        self._intake.set_version(login.version, scanned_bytes)
        limits = ScanLimits(
            packet_bytes=scanned_bytes,
            body_bytes=body_bytes,
            receive_maximum=self._limits.receive_maximum,
        )
        self._cycle.core.set_ready_mqtt(self._connection.handle, login.version, limits)
        self._keep_alive_s = keep_alive_s * _KEEP_ALIVE_SHARE
        if keep_alive_s:
            self._connection.set_deadline("keep alive", self._keep_alive_s, self._check_keep_alive)

    def _check_keep_alive(self, now_s: float) -> None:
        connection = self._connection
        if not connection.is_open:
            return
        if not connection.is_listening:
            connection.heard_at_s = now_s
        wait_s = connection.heard_at_s + self._keep_alive_s - now_s
        if wait_s > 0.001:
            connection.set_deadline("keep alive", wait_s, self._check_keep_alive)
            return
        sentence = f"no packet for {now_s - connection.heard_at_s:.1f} seconds"
        connection.refuse_error(KeepAliveExceeded(sentence, allowed=f"{self._keep_alive_s:g}"))

    def _release(self, login: Login, packet: Pubrel) -> Work:
        try:
            login.publishing.release(packet)
        except NoRoom:
            return self._release_with_room(login, packet)
        return None

    async def _release_with_room(self, login: Login, packet: Pubrel) -> None:
        while self._connection.is_open:
            await self._cycle.space(self._connection)
            try:
                login.publishing.release(packet)
            except NoRoom:
                continue
            return

    async def _subscribe(self, login: Login, packet: Subscribe) -> None:
        outcomes = await login.subscribing.subscribe(packet)
        if not self._connection.is_open:
            return
        answer = Suback(packet.packet_id, tuple(each.code for each in outcomes))
        reason = next((each.reason for each in outcomes if each.reason), "")
        data = explained(answer, reason, login.reason_bytes_max, login.version)
        self._connection.write(data)
        await login.subscribing.send_retained(outcomes)

    async def _unsubscribe(self, login: Login, packet: Unsubscribe) -> None:
        codes = await login.subscribing.unsubscribe(packet)
        if not self._connection.is_open:
            return
        if login.version is not Version.V5:
            codes = ()
        self._connection.write(encode(Unsuback(packet.packet_id, codes), login.version))

    def _disconnect(self, login: Login, packet: Disconnect) -> None:
        """End the connection as the client wants it (§3.14.4)."""
        self._connecting.disconnect(login, packet)
        self._connection.end(b"")

    # --- what the hub asks ------------------------------------------------------------------------

    def session_deleted(self) -> None:
        """End the connection: an administrator has deleted its session."""
        sentence = "an administrator has deleted the session"
        last = self._last(ReasonCode.ADMINISTRATIVE_ACTION, sentence)
        self._connection.end(last, is_patient=False)
        self.close()

    def taken_over(self) -> None:
        """End the connection: another one of the same client id has come."""
        sentence = "another connection has the client id now"
        self._cycle.count_error("session-taken-over")
        self._connection.end(self._last(ReasonCode.SESSION_TAKEN_OVER, sentence), is_patient=False)
        self.close()  # it may be gone, and nobody had the time to see to it

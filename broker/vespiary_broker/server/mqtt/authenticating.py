"""Enhanced authentication of MQTT 5: AUTH packets back and forth until somebody is in, or is not.

Owns one client's way through the mechanism that it chose; the mechanisms are `engine.mechanisms`'.
Owner: the connection.

Source: MQTT 5.0 §4.12 and §3.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.logins import Principal
from vespiary_broker.engine.mechanisms import Challenge, Exchange, Mechanisms, Welcome
from vespiary_broker.server.sasl import respond
from vespiary_codec.wire.mqtt import (
    Auth,
    Property,
    RemoteProtocolError,
    Version,
    Violation,
    encode,
)
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener


class Authentication:
    """The enhanced authentication of one client; it may come again while the client is connected.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
        properties: Of the CONNECT packet, which names the method.

    Raises:
        RemoteProtocolError: The method is not offered.
    """

    def __init__(
        self, connection: Connection, cycle: Cycle, listener: Listener, properties: Properties
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._mechanisms = Mechanisms(cycle.engine.logins, listener.acceptor.sasl_mechanisms)
        self.method = str(properties[Property.AUTHENTICATION_METHOD])
        self._exchange: Exchange | None = self._begin()

    def _begin(self) -> Exchange:
        by_certificate = self._connection.certificate_login
        offered = self._mechanisms.offered(has_certificate=by_certificate is not None)
        if self.method not in offered:
            raise RemoteProtocolError(
                Violation.PROPERTY_VALUE,
                f"there is no authentication method {self.method[:40]!r} here; there are: "
                f"{', '.join(offered)}",
                ReasonCode.BAD_AUTHENTICATION_METHOD,
            )
        return self._mechanisms.begin(self.method, self._connection.peer, by_certificate)

    async def step(self, properties: Properties) -> Welcome | None:
        """Take what the client sent; None: it was asked for more.

        Args:
            properties: Of its CONNECT or AUTH packet.

        Raises:
            LoginRefused: No entry.
            RemoteProtocolError: It names another method than at first.
        """
        if properties.get(Property.AUTHENTICATION_METHOD) != self.method:
            raise RemoteProtocolError(
                Violation.PROPERTY_VALUE,
                f"AUTH names another authentication method than CONNECT, {self.method[:40]!r}",
                ReasonCode.PROTOCOL_ERROR,
            )
        assert self._exchange is not None
        data = properties.get(Property.AUTHENTICATION_DATA)
        assert data is None or isinstance(data, bytes)
        outcome = await respond(self._cycle, self._exchange, data, lambda: self._connection.is_open)
        if isinstance(outcome, Challenge):
            self.send(ReasonCode.CONTINUE_AUTHENTICATION, outcome.data)
            self._connection.renew_login_time()
            return None
        self._exchange = None
        return outcome

    def properties(self, data: bytes) -> Properties:
        """Return what a packet of ours says of it."""
        said: Properties = {Property.AUTHENTICATION_METHOD: self.method}
        if data:
            said[Property.AUTHENTICATION_DATA] = data
        return said

    def send(self, code: ReasonCode, data: bytes) -> None:
        """Send an AUTH packet."""
        if self._connection.is_open:
            self._connection.write(encode(Auth(code, self.properties(data)), Version.V5))

    async def take_again(self, packet: Auth, principal: Principal) -> None:
        """Take an AUTH packet of a client that is logged in (§4.12.1).

        Args:
            packet: The packet.
            principal: Who it is.

        Raises:
            LoginRefused: It is not who it was.
            RemoteProtocolError: It is not its turn.
        """
        is_first = packet.reason_code is ReasonCode.REAUTHENTICATE
        if is_first is (self._exchange is not None):
            raise RemoteProtocolError(
                Violation.UNEXPECTED_PACKET,
                "AUTH comes out of turn",
                ReasonCode.PROTOCOL_ERROR,
            )
        if is_first:
            self._exchange = self._begin()
        welcome = await self.step(packet.properties)
        if welcome is None:
            return
        if welcome.principal.name != principal.name:
            raise RemoteProtocolError(
                Violation.PROPERTY_VALUE,
                "a client that authenticates again has to be who it was",
                ReasonCode.NOT_AUTHORIZED,
            )
        self.send(ReasonCode.SUCCESS, welcome.data)

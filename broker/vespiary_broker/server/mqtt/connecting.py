"""CONNECT and DISCONNECT: from a login to a session, and what a client leaves behind.

Owns the meaning of the CONNECT packet. Owner: the connection.

Order: the password is checked, an earlier connection of the client id is ended, a session that is
to be forgotten goes, a new one that is to stay is written down, and its will, then CONNACK leaves;
then what the session has subscribed to is opened again.

Source: MQTT 5.0 §3.1, §3.2 and §3.14.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.logins import Check, Principal
from vespiary_broker.engine.names import Sender
from vespiary_broker.server.mqtt.authenticating import Authentication
from vespiary_broker.server.mqtt.delivering import PACKET_BYTES_MAX, ClientLimits, Deliveries
from vespiary_broker.server.mqtt.publishing import Publishing
from vespiary_broker.server.mqtt.sessions import NEVER_S, MqttSession
from vespiary_broker.server.mqtt.subscribing import Subscribing
from vespiary_broker.server.mqtt.wills import Will, wait_s
from vespiary_codec.wire.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Property,
    Publish,
    RemoteProtocolError,
    Version,
    Violation,
    encode,
)
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.server.mqtt.handler import MqttHandler
    from vespiary_broker.server.mqtt.hub import MqttHub
    from vespiary_broker.server.protocol_handler import Work

_TWO_BYTES_MAX: Final = 65_535
_TOLD_BYTES_MAX: Final = 268_435_455
"""Largest Maximum Packet Size that Paho's Python client takes: the largest remaining length."""


log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Login:
    """What a login has led to.

    Attributes:
        version: The version that the client speaks.
        session: Its session.
        publishing: What it publishes.
        subscribing: Its subscriptions.
        deliveries: What it is sent.
        packet_bytes_max: Largest packet that it takes.
        reason_bytes_max: Largest answer that may have a reason string; 0: none may.
        will: What it leaves behind; None: nothing.
    """

    version: Version
    session: MqttSession
    publishing: Publishing
    subscribing: Subscribing
    deliveries: Deliveries
    packet_bytes_max: int
    reason_bytes_max: int
    will: Will | None = None


class Connecting:
    """The beginning and the end of one client's connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        hub: What all MQTT clients share.
        listener: The listener that the client came through.
        handler: What it is part of.
    """

    def __init__(
        self,
        connection: Connection,
        cycle: Cycle,
        hub: MqttHub,
        listener: Listener,
        handler: MqttHandler,
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._hub = hub
        self._listener = listener
        self._limits = listener.acceptor.mqtt
        self._handler = handler
        self._is_counted = False
        self._principal = Principal("")
        self._authentication: Authentication | None = None
        self._packet: Connect | None = None  # waits for an enhanced authentication
        self._signature = b""

    # --- CONNECT ----------------------------------------------------------------------------------

    @property
    def user(self) -> str:
        """Name of the user that has logged in; empty before."""
        return self._principal.name

    def connect(self, packet: Connect) -> Work:
        """Take a CONNECT; what is returned is left to do.

        Raises:
            LoginRefused: No entry.
            RemoteProtocolError: It asks for what there is not.
        """
        if Property.AUTHENTICATION_METHOD in packet.properties:
            self._authentication = Authentication(
                self._connection, self._cycle, self._listener, packet.properties
            )
            self._packet = packet
            return self._authenticate(packet.properties)
        by_certificate = self._connection.certificate_login
        if by_certificate is not None and not packet.user_name and not packet.password:
            return self._enter(packet, by_certificate())
        password = None if packet.password is None else packet.password.decode(errors="replace")
        outcome = self._cycle.engine.logins.begin(
            packet.user_name, password, self._connection.peer, self._cycle.loop.time()
        )
        return self._enter(packet, outcome)

    def authenticate(self, packet: Auth, login: Login | None) -> Work:
        """Take an AUTH packet; what is returned is left to do.

        Raises:
            RemoteProtocolError: It has no place here.
        """
        if self._authentication is None:
            raise RemoteProtocolError(
                Violation.UNEXPECTED_PACKET,
                "AUTH without an authentication method in CONNECT",
                ReasonCode.PROTOCOL_ERROR,
            )
        if login is not None:
            return self._authentication.take_again(packet, self._principal)
        return self._authenticate(packet.properties)

    async def _authenticate(self, properties: Properties) -> None:
        """Go on with an enhanced authentication; enter when it has ended well."""
        assert self._authentication is not None
        assert self._packet is not None
        welcome = await self._authentication.step(properties)
        if welcome is not None:
            self._signature = welcome.data
            await self._enter(self._packet, welcome.principal)

    async def _enter(self, packet: Connect, outcome: Principal | Check) -> None:
        principal = self._principal = await self._checked(outcome)
        if not self._connection.is_open:
            return
        self._cycle.engine.registry.limits.begin_session(principal.name)
        self._is_counted = True
        try:
            login = await self._begin(packet, principal.name)
        except BaseException:
            self._end_counting()
            raise
        if login is None:
            self._end_counting()
            return
        login.deliveries.resume()
        await login.subscribing.resume()

    async def _begin(self, packet: Connect, user: str) -> Login | None:
        """Begin or go on with a session, and say so; None: the connection closed first."""
        client_id = packet.client_id or f"auto-{secrets.token_hex(10)}"
        async with self._hub.sessions.lock(client_id):
            session, is_present = await self._session(packet, client_id, user)
            if not self._connection.is_open:
                self._hub.left(session)
                return None
            try:
                login = self._login(packet, session)
                if login.will is not None and session.is_durable:
                    await self._hub.wills.keep(login.will)
            except VespiaryError:
                if is_present:
                    self._hub.left(session)
                else:  # a client that was refused leaves nothing behind
                    await self._hub.sessions.end(session)
                raise
            if not self._connection.is_open:  # it was never told that it is connected
                if login.will is not None:
                    self._hub.wills.drop(login.will)
                self._hub.left(session)
                return None
            session.client = self._handler
            self._handler.logged_in(login, self._keep_alive_s(packet))
            answer = self._connack(packet, session, is_present=is_present)
            self._connection.write(encode(answer, packet.version))
            return login

    async def _checked(self, outcome: Principal | Check) -> Principal:
        if isinstance(outcome, Principal):
            return outcome
        is_good = await self._cycle.passwords.is_good(outcome, lambda: self._connection.is_open)
        logins = self._cycle.engine.logins
        return logins.finish(outcome, is_good=is_good, now_s=self._cycle.loop.time())

    async def _session(
        self, packet: Connect, client_id: str, user: str
    ) -> tuple[MqttSession, bool]:
        """Return the session of a client, and whether it was there.

        That of another user ends, with its connection, if this one may do so.

        Raises:
            RemoteProtocolError: It belongs to another user.
            LimitExceeded: It would be new and outlive its connection, and there are enough.
        """
        sessions, hub = self._hub.sessions, self._hub
        await hub.load_wills()
        known = sessions.get(client_id)
        is_foreign = known is not None and known.user != user and not self._is_adopted(known, user)
        if known is not None and is_foreign and not self._may_end(known, user):
            raise RemoteProtocolError(
                Violation.CLIENT_ID,
                f"the client id {client_id[:60]!r} belongs to another user",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            )
        expiry_s = self._expiry_s(packet)
        is_one_more = expiry_s > 0 and (known is None or not known.is_durable or is_foreign)
        if is_one_more:
            self._check_room(user)  # before anything ends
        if known is not None and known.client is not None:
            known.client.taken_over()
        if known is not None and (packet.clean_start or is_foreign or not known.expiry_s):
            hub.wills.release(client_id)
            await sessions.end(known)
            if is_foreign:
                log.info("session of %r ended by %r client=%r", known.user, user, client_id)
            known = None
        hub.wills.withdraw(client_id)
        if known is not None and known.user != user:
            sessions.adopt(known, user)
        if known is None:
            if is_one_more:
                self._check_room(user)  # others may have come while the one before ended
            return await sessions.begin(client_id, user, expiry_s), False
        await hub.exactly_once.resume(known)
        known.away_since_ms, known.expires_at_s = 0, 0.0
        known.expiry_s = expiry_s
        await sessions.save(known)
        return known, True

    def _is_adopted(self, session: MqttSession, user: str) -> bool:
        """Return whether a session becomes that of a user: it was begun by nobody who logged in.

        A user who may not consume all that it has subscribed to would lose a part of it.
        """
        registry, address_of = self._cycle.engine.registry, self._hub.topics.address_of_filter
        return registry.owners.may_adopt(session.user, user) and all(
            registry.permissions.is_permitted(user, Permission.CONSUME, address_of(topic_filter))
            for topic_filter in (*session.subscriptions, *session.retired)
        )

    def _may_end(self, session: MqttSession, user: str) -> bool:
        """Return whether a user may begin anew with the client id of another one.

        Administrators may. So may all users where that is of a client without a login, and such
        clients come in: each could else take any client id for ever.
        """
        engine = self._cycle.engine
        if engine.registry.permissions.is_administrator(user):
            return True
        is_of_nobody = engine.registry.owners.may_adopt(session.user, user)
        return is_of_nobody and engine.logins.is_login_optional

    def _check_room(self, user: str) -> None:
        limits = self._cycle.engine.registry.limits
        limits.check_durable_session(user, self._limits.max_sessions)

    def _expiry_s(self, packet: Connect) -> int:
        """Return how long a session outlives its connection."""
        if packet.version is Version.V5:
            wanted = packet.properties.get(Property.SESSION_EXPIRY_INTERVAL, 0)
            assert isinstance(wanted, int)
        else:
            wanted = 0 if packet.clean_start else NEVER_S
        return self._bounded(wanted)

    def _bounded(self, wanted_s: int) -> int:
        most_s = self._limits.session_expiry_interval
        return wanted_s if most_s < 0 else min(wanted_s, most_s)

    def _keep_alive_s(self, packet: Connect) -> int:
        most_s = self._limits.server_keep_alive
        if most_s and not 0 < packet.keep_alive_s <= most_s:
            return most_s
        return packet.keep_alive_s

    def _login(self, packet: Connect, session: MqttSession) -> Login:
        """Make what acts for the client."""
        limits, properties = self._limits, packet.properties
        in_flight = _number(properties, Property.RECEIVE_MAXIMUM, _TWO_BYTES_MAX)
        packet_bytes = _number(properties, Property.MAXIMUM_PACKET_SIZE, PACKET_BYTES_MAX)
        aliases = _number(properties, Property.TOPIC_ALIAS_MAXIMUM, 0)
        is_told = packet.version is Version.V5 and _number(
            properties, Property.REQUEST_PROBLEM_INFORMATION, 1
        )
        reason_bytes = packet_bytes if is_told else 0
        sender = Sender(session.client_id)
        deliveries = Deliveries(
            self._connection,
            self._cycle,
            self._hub,
            session,
            packet.version,
            ClientLimits(
                min(in_flight, limits.maximum_in_flight),
                packet_bytes,
                min(aliases, limits.topic_alias_maximum),
            ),
        )
        publishing = Publishing(
            self._connection,
            self._cycle,
            self._hub,
            session,
            packet.version,
            sender,
            limits.receive_maximum,
            limits.topic_alias_maximum,
            reason_bytes,
            self._listener.large,
        )
        subscribing = Subscribing(
            self._connection,
            self._cycle,
            self._hub,
            session,
            deliveries,
            sender,
            limits.max_subscriptions,
            is_bridge=packet.is_bridge,
        )
        login = Login(
            packet.version,
            session,
            publishing,
            subscribing,
            deliveries,
            packet_bytes,
            reason_bytes,
        )
        login.will = self._will(packet, session, publishing)
        return login

    def _will(self, packet: Connect, session: MqttSession, publishing: Publishing) -> Will | None:
        """Return the will of a CONNECT.

        Raises:
            RemoteProtocolError: Clients may not publish to its topic.
        """
        if packet.will is None:
            return None
        will = packet.will
        delay_s = _number(will.properties, Property.WILL_DELAY_INTERVAL, 0)
        kept = dict(will.properties)
        kept.pop(Property.WILL_DELAY_INTERVAL, None)
        said = Publish(will.topic, will.payload, will.qos, will.retain, properties=kept)
        publishing.outgoing(said)  # to refuse what cannot be published

        return Will(session.client_id, session.user, said, delay_s)

    def _connack(self, packet: Connect, session: MqttSession, *, is_present: bool) -> Connack:
        """Return the answer to a CONNECT that was accepted."""
        if packet.version is not Version.V5:
            return Connack(session_present=is_present and packet.version is not Version.V3_1)
        limits = self._limits
        properties: Properties = {
            Property.RECEIVE_MAXIMUM: limits.receive_maximum,
            Property.MAXIMUM_PACKET_SIZE: min(self._handler.packet_bytes_max, _TOLD_BYTES_MAX),
            Property.TOPIC_ALIAS_MAXIMUM: limits.topic_alias_maximum,
        }
        if self._authentication is not None:
            properties |= self._authentication.properties(self._signature)
        asked_s = packet.properties.get(Property.SESSION_EXPIRY_INTERVAL, 0)
        if session.expiry_s != asked_s:
            properties[Property.SESSION_EXPIRY_INTERVAL] = session.expiry_s
        if not packet.client_id:
            properties[Property.ASSIGNED_CLIENT_IDENTIFIER] = session.client_id
        keep_alive_s = self._keep_alive_s(packet)
        if keep_alive_s != packet.keep_alive_s:
            properties[Property.SERVER_KEEP_ALIVE] = keep_alive_s
        return Connack(session_present=is_present, properties=properties)

    # --- the end ----------------------------------------------------------------------------------

    def disconnect(self, login: Login, packet: Disconnect) -> None:
        """Take a DISCONNECT: the will is dropped, unless the client wants it to be sent.

        Raises:
            RemoteProtocolError: It sets an expiry for a session that had none (§3.14.2.2.2).
        """
        expiry_s = packet.properties.get(Property.SESSION_EXPIRY_INTERVAL)
        if isinstance(expiry_s, int):
            if expiry_s and not login.session.expiry_s:
                raise RemoteProtocolError(
                    Violation.PROPERTY_VALUE,
                    "DISCONNECT sets a session expiry interval where CONNECT had none",
                    ReasonCode.PROTOCOL_ERROR,
                )
            login.session.expiry_s = self._bounded(expiry_s)
        if packet.reason_code is ReasonCode.SUCCESS and login.will is not None:
            self._hub.wills.drop(login.will)
            login.will = None

    def leave(self, login: Login) -> None:
        """Give back what the client holds, and begin what follows from its end."""
        session = login.session
        login.publishing.leave()
        login.deliveries.leave()
        login.subscribing.close()
        self._end_counting()
        if session.client is self._handler:
            self._hub.left(session)
        if login.will is not None and not self._cycle.failure:
            self._hub.wills.leave(login.will, wait_s(login.will, session))
            login.will = None

    def dismantle(self) -> None:
        """Let go of the handler, which has this."""
        del self._handler

    def _end_counting(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._cycle.engine.registry.limits.end_session(self._principal.name)


def _number(properties: Properties, name: Property, default: int) -> int:
    value = properties.get(name, default)
    assert isinstance(value, int)
    return value

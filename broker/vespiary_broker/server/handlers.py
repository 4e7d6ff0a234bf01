"""Which handler a protocol has, and the words for a client whose protocol is not known.

Owns the choice. Must never hold a connection. Called by `connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from vespiary_broker.server.amqp.handler import AmqpHandler
from vespiary_broker.server.mqtt.handler import MqttHandler
from vespiary_broker.server.protocol_handler import ProtocolHandler
from vespiary_broker.server.stomp.handler import StompHandler
from vespiary_codec.wire.stomp import encode, error_frame
from vespiary_spec.settings import Protocol

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener


def make_handler(
    protocol: Protocol | None, connection: Connection, cycle: Cycle, listener: Listener
) -> ProtocolHandler:
    """Return the handler of a new connection.

    Args:
        protocol: What the client speaks.
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """
    assert protocol is not None
    return _HANDLERS[protocol](connection, cycle, listener)


_HANDLERS: dict[Protocol, Callable[[Connection, Cycle, Listener], ProtocolHandler]] = {
    Protocol.STOMP: StompHandler,
    Protocol.MQTT: MqttHandler,
    Protocol.AMQP: AmqpHandler,
}


def make_websocket(connection: Connection, cycle: Cycle, listener: Listener) -> ProtocolHandler:
    """Return the handler of a new connection through a WebSocket.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """
    # Not at the top: a broker without WebSockets starts 40 ms earlier.
    from vespiary_broker.server.websocket.handler import WebSocketHandler

    return WebSocketHandler(connection, cycle, listener, make_handler)


def refusal_of_unknown(sentence: str, body: str, protocols: Collection[Protocol]) -> bytes:
    """Return the last words to a client of which nothing is known.

    Args:
        sentence: Why its connection ends.
        body: More about it; empty for nothing.
        protocols: Those that the acceptor speaks; STOMP's words can be read by people, the others
            have none before a login.
    """
    if Protocol.STOMP not in protocols:
        return b""
    return encode(error_frame(sentence, body), "1.0")

"""The opening handshake of a WebSocket: what a client asks for, and why it may not have it.

Owns the choice of the protocol from the subprotocols that are offered, the check of the origin,
and the words of HTTP. Must never keep a connection. Called by `handler`. HTTP itself is read by h11
through wsproto. Source: RFC 6455 §4.2; the subprotocols' names are those of the registry of IANA.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from wsproto import ConnectionType
from wsproto.connection import Connection as Frames
from wsproto.events import AcceptConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError as HandshakeError

from vespiary_broker.server.web_pages import Asked, PageRule
from vespiary_spec.settings import WebSocketLimits

PATH: Final = "/ws"
SUBPROTOCOLS: Final = {
    "v12.stomp": "STOMP",
    "v11.stomp": "STOMP",
    "v10.stomp": "STOMP",
    "mqtt": "MQTT",
    "mqttv3.1": "MQTT",
    "amqp": "AMQP",
}
"""What a subprotocol stands for; it is spoken where the acceptor speaks that."""
_HEAD_END: Final = b"\r\n\r\n"
_NOT_ALLOWED: Final = "pages of this origin may not connect (web-socket.allowed-origins)"


@dataclass(frozen=True, slots=True)
class Opened:
    """A handshake that is done.

    Attributes:
        frames: Reads and makes the frames of the connection.
        answer: What the client is sent.
        protocol: What the subprotocol stands for; empty: the first bytes will tell.
        rest: What came behind the handshake.
    """

    frames: Frames
    answer: bytes
    protocol: str
    rest: bytes


@dataclass(frozen=True, slots=True)
class Declined:
    """A handshake that is refused.

    Attributes:
        reason: Why, as a sentence.
        status: Status code of HTTP.
    """

    reason: str
    status: HTTPStatus = HTTPStatus.BAD_REQUEST

    @property
    def answer(self) -> bytes:
        """What the client is sent."""
        return http_answer(self.status, self.reason)


def http_answer(status: HTTPStatus, sentence: str) -> bytes:
    """Return an answer of HTTP that ends the connection.

    Args:
        status: Its status code.
        sentence: Its body.
    """
    body = f"{sentence}.\n".encode()
    upgrade = "Upgrade: websocket\r\n" if status is HTTPStatus.UPGRADE_REQUIRED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{upgrade}Content-Type: text/plain\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def open_websocket(
    data: bytes, limits: WebSocketLimits, protocols: Collection[str], rule: PageRule
) -> Opened | Declined | None:
    """Return what becomes of a handshake; None: it is not complete.

    Args:
        data: All bytes of the connection so far.
        limits: Bounds, and the origins that are let in.
        protocols: Those that the acceptor speaks.
        rule: Says which of the pages that `*` lets in may connect.
    """
    end = data.find(_HEAD_END)
    if end < 0 and len(data) <= limits.max_header_size:
        return None
    if not 0 <= end <= limits.max_header_size - len(_HEAD_END):
        return Declined(
            f"the handshake is longer than {limits.max_header_size} bytes",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        )
    end += len(_HEAD_END)
    handshake = H11Handshake(ConnectionType.SERVER)
    try:
        handshake.receive_data(data[:end])
        request = next(handshake.events(), None)
    except (HandshakeError, UnicodeError) as error:
        return _not_understood(error)
    if not isinstance(request, Request):
        return Declined("this is no handshake of a WebSocket")
    declined = _check_request(request, limits, rule)
    if declined is not None:
        return declined
    subprotocol = next((s for s in request.subprotocols if SUBPROTOCOLS.get(s) in protocols), None)
    if subprotocol is None and request.subprotocols:
        spoken = ", ".join(name for name, what in SUBPROTOCOLS.items() if what in protocols)
        return Declined(f"none of the subprotocols that were offered is spoken here, but {spoken}")
    answer = handshake.send(AcceptConnection(subprotocol=subprotocol))
    frames = handshake.connection
    assert frames is not None
    return Opened(frames, answer, SUBPROTOCOLS.get(subprotocol or "", ""), data[end:])


def _not_understood(error: Exception) -> Declined:
    """Return the answer to a request that is not what a WebSocket begins with."""
    reason = str(error)
    if "Upgrade" in reason:
        return Declined(
            f"at {PATH} this port speaks WebSocket and nothing else", HTTPStatus.UPGRADE_REQUIRED
        )
    if isinstance(error, UnicodeError):
        reason = "the head of the request is not ASCII"
    return Declined(f"the handshake of the WebSocket is wrong: {reason}")


def _check_request(request: Request, limits: WebSocketLimits, rule: PageRule) -> Declined | None:
    """Return why a well-formed handshake is refused; None if it is not."""
    if request.target.partition("?")[0] != PATH:
        return Declined(f"WebSockets are at {PATH}", HTTPStatus.NOT_FOUND)
    keys = [value for name, value in request.extra_headers if name == b"sec-websocket-key"]
    if len(keys) != 1:
        return Declined("the handshake of the WebSocket is wrong: it has more than one key")
    found: dict[bytes, list[bytes]] = {b"origin": [], b"sec-fetch-site": [], b"user-agent": []}
    for name, value in request.extra_headers:
        if name in found:
            found[name].append(value)
    origins, sites, agents = found.values()
    is_named = is_origin_named(origins, limits.allowed_origins)
    if origins and not is_named and "*" not in limits.allowed_origins:
        return Declined(_NOT_ALLOWED, HTTPStatus.FORBIDDEN)
    # Browsers always send a User-Agent. Some other clients name the broker as their origin.
    if is_named or (origins and not agents):
        asked = Asked(request.host, None)
    else:
        # Browsers send one origin. Two name no page.
        origin = origins[0] if len(origins) == 1 else b"null" if origins else None
        site = sites[0] if sites else b"none"
        asked = Asked(request.host, None if origin is None else _text(origin), _text(site))
    refusal = rule(asked)
    return None if refusal is None else Declined(refusal[1], refusal[0])


def is_origin_named(origins: list[bytes], allowed: Collection[str]) -> bool:
    """Return whether a page comes from an origin that the settings name.

    Args:
        origins: The `Origin` headers; browsers send one, other clients mostly none.
        allowed: Origins that are let in.
    """
    known = {origin.lower().rstrip("/").encode() for origin in allowed}
    return len(origins) == 1 and origins[0].lower() in known


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")

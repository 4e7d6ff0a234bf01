"""The opening handshake of a WebSocket: what a client asks for, and why it may not have it.

Owns the choice of the protocol from the subprotocols that are offered, the check of the origin,
and the words of HTTP. Must never keep a connection. Called by `handler`. HTTP itself is read by h11
through wsproto. Source: RFC 6455 §4.2; the subprotocols' names are those of the registry of IANA.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from wsproto import ConnectionType
from wsproto.connection import Connection as Frames
from wsproto.events import AcceptConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError as HandshakeError

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


class OriginRule(Enum):
    """Which pages `*` lets in, as the value of `allowed-origins`."""

    ANY = "any"
    LOCAL = "local"
    """Those of this machine, and of the place that they connect to: nobody has to log in."""
    SAME = "same"
    """Those of the place that they connect to, as for the rest of the HTTP port, with a login."""


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
    data: bytes, limits: WebSocketLimits, protocols: Collection[str], rule: OriginRule
) -> Opened | Declined | None:
    """Return what becomes of a handshake; None: it is not complete.

    Args:
        data: All bytes of the connection so far.
        limits: Bounds, and the origins that are let in.
        protocols: Those that the acceptor speaks.
        rule: Which pages `*` in the origins lets in.
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


def _check_request(request: Request, limits: WebSocketLimits, rule: OriginRule) -> Declined | None:
    """Return why a well-formed handshake is refused; None if it is not."""
    if request.target.partition("?")[0] != PATH:
        return Declined(f"WebSockets are at {PATH}", HTTPStatus.NOT_FOUND)
    keys = [value for name, value in request.extra_headers if name == b"sec-websocket-key"]
    if len(keys) != 1:
        return Declined("the handshake of the WebSocket is wrong: it has more than one key")
    origins = [value for name, value in request.extra_headers if name == b"origin"]
    allowed = limits.allowed_origins
    if origins and not is_origin_allowed(origins, allowed, request.host, rule):
        why = " while nobody has to log in" if rule is OriginRule.LOCAL and "*" in allowed else ""
        return Declined(
            f"pages of this origin may not connect{why} (web-socket.allowed-origins)",
            HTTPStatus.FORBIDDEN,
        )
    return None


def is_origin_allowed(
    origins: list[bytes],
    allowed: Collection[str],
    host: str = "",
    rule: OriginRule = OriginRule.ANY,
) -> bool:
    """Return whether a page may connect.

    Args:
        origins: The `Origin` headers; browsers send one, other clients mostly none.
        allowed: Origins that are let in, `*` for those of the rule.
        host: The `Host` header.
        rule: Which pages `*` lets in.
    """
    known = {origin.lower().rstrip("/").encode() for origin in allowed}
    if len(origins) == 1 and origins[0].lower() in known:
        return True
    if "*" not in allowed or rule is OriginRule.ANY:
        return "*" in allowed
    try:
        page = urlsplit(origins[0].decode("ascii"))
        page_host, own_host = page.hostname or "", urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if len(origins) != 1:
        return False
    # A name that leads here may be one that a page has made lead here (DNS rebinding).
    is_same = page.netloc == host and (rule is OriginRule.SAME or _is_address(own_host))
    return is_same or (rule is OriginRule.LOCAL and _is_local(page_host))


def _is_address(host: str) -> bool:
    """Return whether a host is no name that anybody could have made lead here."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _is_local(host: str) -> bool:
    """Return whether a host is this machine."""
    return _is_address(host) and (host == "localhost" or ipaddress.ip_address(host).is_loopback)

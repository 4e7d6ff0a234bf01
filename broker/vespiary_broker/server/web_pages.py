"""Which web pages may use the broker: browsers say from which page a request comes.

A page of any site can have a browser send requests to every place that the browser reaches. It gets
no further than a login that somebody has to type, but it must not use what takes no typing: a
broker without logins, or a client certificate of the browser. Its site may also let its own name
lead to the broker (DNS rebinding); the browser then takes the broker for a part of that site.

Owns the rules. Called by `admin.access` and `websocket.handshake`. Source: RFC 6454; the Fetch
standard for `Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

Refusal = tuple[HTTPStatus, str]
"""Why a request is refused: the status, and a sentence without a full stop."""


class Asked(NamedTuple):
    """What a request says about where it wants to go and where it comes from.

    Attributes:
        host: The `Host` header.
        origin: The `Origin` header; None: there is none, as of clients that are no browsers.
        site: The `Sec-Fetch-Site` header; `none` if there is none.
    """

    host: str
    origin: str | None
    site: str = "none"

    @property
    def is_same_place(self) -> bool:
        """Whether the page is one of the place that it asks, by its name."""
        try:
            return self.origin is not None and urlsplit(self.origin).netloc == self.host
        except ValueError:
            return False

    @property
    def is_for_address(self) -> bool:
        """Whether the place is named by its address, which no site can make lead elsewhere."""
        return _is_address(_host_of(f"//{self.host}"))

    @property
    def is_from_loopback(self) -> bool:
        """Whether the page comes from this machine."""
        return self.origin is not None and is_loopback(_host_of(self.origin))


def is_loopback(host: str) -> bool:
    """Return whether a host, as an address or `localhost`, is this machine."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


PageRule = Callable[[Asked], Refusal | None]
"""Returns why a page may not open a WebSocket; None: it may."""


def any_page(_: Asked) -> None:
    """Refuse no page: every client of the WebSocket has to log in with something that it knows."""


def own_pages(asked: Asked, *, is_on_loopback: bool, is_login_optional: bool) -> Refusal | None:
    """Refuse WebSockets at the HTTP port that the rest of it would refuse, and some pages by name.

    Args:
        asked: The request.
        is_on_loopback: Whether the port listens on this machine's own address only.
        is_login_optional: Whether the broker lets clients in without a login.
    """
    refusal = refusal_at_http_port(asked, is_on_loopback=is_on_loopback)
    if refusal is None and is_login_optional and not is_on_loopback:
        return local_pages(asked)
    return refusal


def same_place_pages(asked: Asked) -> Refusal | None:
    """Refuse pages of other places: a browser logs in with its certificate, whatever the page."""
    if asked.origin is None or asked.is_same_place:
        return None
    return HTTPStatus.FORBIDDEN, (
        f"pages of {asked.origin[:200]!r} may not connect with a client certificate; "
        "web-socket.allowed-origins can name them"
    )


def local_pages(asked: Asked) -> Refusal | None:
    """Refuse pages of other sites: nobody has to log in.

    Pages of this machine may connect, such as those of a development server on another port, and
    pages of the place itself if no site can have made its name lead here.
    """
    if asked.origin is None or asked.is_from_loopback:
        return None
    if asked.is_same_place and asked.is_for_address:
        return None
    return HTTPStatus.FORBIDDEN, (
        f"pages of {asked.origin[:200]!r} may not connect while nobody has to log in; "
        "web-socket.allowed-origins can name them"
    )


def refusal_at_http_port(asked: Asked, *, is_on_loopback: bool) -> Refusal | None:
    """Return why a request may not use the HTTP port; None: it may.

    Args:
        asked: The request.
        is_on_loopback: Whether the port listens on this machine's own address only.

    Returns:
        421 for a name that a site may have made lead here, 403 for a page of another place.
    """
    if is_on_loopback and not is_loopback(_host_of(f"//{asked.host}")):
        return (
            HTTPStatus.MISDIRECTED_REQUEST,
            f"This broker listens on loopback and does not answer for {asked.host[:200]!r}: use "
            "127.0.0.1 or localhost",
        )
    if (asked.origin is not None and not asked.is_same_place) or asked.site == "cross-site":
        shown = asked.origin or "another site"
        return HTTPStatus.FORBIDDEN, f"Pages of {shown[:200]!r} may not talk to this broker"
    return None


def _host_of(url: str) -> str:
    """Return the host of a URL, without port and brackets; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True

"""Which listeners a broker has: one for each acceptor, and one for WebSockets on the HTTP port.

Owns what they are made of. Must never open a socket: listeners do. Called by `broker`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vespiary_broker.server.listener import LargeLimits, Listener, Timing
from vespiary_spec.settings import Configuration

HTTP: Final = "http"
"""Name of the listener of the HTTP port."""


def make_listeners(
    configuration: Configuration,
    record_bytes_max: int,
    timing: Timing | None,
    *,
    has_large: bool,
) -> list[Listener]:
    """Return the listeners of the acceptors, not started.

    Args:
        configuration: The settings.
        record_bytes_max: Limit of a record of the journal.
        timing: Times that are no settings.
        has_large: Whether large bodies go to files.
    """
    large = _large_limits(configuration, record_bytes_max) if has_large else None
    return [
        Listener(acceptor, record_bytes_max, timing, large) for acceptor in configuration.acceptors
    ]


def make_http_listener(
    configuration: Configuration,
    record_bytes_max: int,
    timing: Timing | None,
    *,
    has_large: bool,
    port: int,
) -> Listener | None:
    """Return what has the connections that come through WebSockets on the HTTP port.

    It has the settings of the first acceptor that speaks in clear, and all protocols that any
    acceptor speaks.

    Args:
        configuration: The settings.
        record_bytes_max: Limit of a record of the journal.
        timing: Times that are no settings.
        has_large: Whether large bodies go to files.
        port: The port that HTTP is really listened on.

    Returns:
        None if there are to be none, as by default where every acceptor speaks TLS and the HTTP
        port does not: passwords would go in clear here.
    """
    admin, acceptors = configuration.admin, configuration.acceptors
    in_clear = [acceptor for acceptor in acceptors if acceptor.tls is None]
    is_wanted = admin.web_socket_enabled
    is_safe = bool(in_clear) or admin.tls is not None
    if not acceptors or not (is_safe if is_wanted is None else is_wanted):
        return None
    protocols = dict.fromkeys(name for acceptor in acceptors for name in acceptor.protocols)
    acceptor = msgspec.structs.replace(
        (in_clear or acceptors)[0],
        name=HTTP,
        host=admin.host,
        port=port,
        protocols=tuple(protocols),
        tls=admin.tls,
        proxy_protocol=False,
    )
    large = _large_limits(configuration, record_bytes_max) if has_large else None
    return Listener(acceptor, record_bytes_max, timing, large, is_http=True)


def _large_limits(configuration: Configuration, record_bytes_max: int) -> LargeLimits:
    return LargeLimits(
        over_bytes=configuration.min_large_message_size,
        record_bytes_max=record_bytes_max,
        size_bytes_max=configuration.max_large_message_size,
    )

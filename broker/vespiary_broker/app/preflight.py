"""What a start can reject before it opens anything: for `run`, and for `check` without a start.

Owns the list of these checks. What depends on stored queues and messages is left to the start. Must
never change anything: sockets are opened only to see whether an address can be listened on.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from vespiary_broker.admin.server import check_host
from vespiary_broker.admin.tls import ADMIN_TLS
from vespiary_broker.app.filters import check_filters
from vespiary_broker.app.naming import wildcard_syntax
from vespiary_broker.app.retention import retention_folder
from vespiary_broker.app.users_file import UsersFile
from vespiary_broker.engine.diverts import check_diverts
from vespiary_broker.engine.reconfiguration import check_names
from vespiary_broker.server.listener import not_listening
from vespiary_broker.server.tls_contexts import make_tls
from vespiary_spec.settings import Configuration


def check_start(
    configuration: Configuration,
    data: Path,
    users: UsersFile,
    *,
    has_tls_files: bool = True,
) -> None:
    """Reject a configuration with which a broker would not start.

    Args:
        configuration: The configuration; it agrees with itself.
        data: The data folder.
        users: The users file, which is read.
        has_tls_files: Whether TLS files are at hand; else they are not looked at.

    Raises:
        ConfigError: A filter, name, divert, user or TLS file is wrong, or others could use the HTTP
            API without a login.
    """
    check_filters(configuration)
    check_names(configuration)
    check_diverts(configuration.diverts, wildcard_syntax(configuration))
    retention_folder(configuration, data)
    has_users = bool(users.read()) or configuration.security.allow_anonymous
    check_host(configuration.admin.host, has_users=has_users)
    if not has_tls_files:
        return
    for acceptor in configuration.acceptors:
        if acceptor.tls is not None:
            make_tls(acceptor.tls, f"acceptors.{acceptor.name}.tls")
    if configuration.admin.tls is not None:
        make_tls(configuration.admin.tls, ADMIN_TLS)


def check_listening(configuration: Configuration) -> list[str]:
    """Look whether the addresses of all listeners can be listened on.

    Args:
        configuration: The configuration.

    Returns:
        A sentence for each port that is in use, perhaps by the broker itself.

    Raises:
        ConfigError: An address is not one of this machine, or the port may not be taken.
    """
    taken = []
    held: dict[tuple[str, int], str] = {}  # what this configuration itself listens on
    with ExitStack() as sockets:
        for path, host, port in _listeners(configuration):
            other = ""
            try:
                family, _, _, _, address = socket.getaddrinfo(
                    host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                place = (str(address[0]), port)
                other = next((held[each] for each in held if _overlap(each, place)), "")
                sockets.enter_context(socket.create_server(address, family=family))
            except (OSError, UnicodeError) as error:
                if getattr(error, "errno", None) != errno.EADDRINUSE or other:
                    raise not_listening(error, host, port, path=path, other=other) from error
                taken.append(
                    f"{path}: {host}:{port} is in use. Unless this broker uses it, a start "
                    "will be rejected: `vespiary run --port-offset N` moves all ports."
                )
            else:
                held[place] = path
    return taken


def _overlap(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether one of two addresses keeps the other from being listened on.

    Args:
        one: Numeric address and port.
        other: Likewise.
    """
    hosts = [ipaddress.ip_address(host) for host, _ in (one, other)]
    is_same_family = hosts[0].version == hosts[1].version
    has_wildcard = any(host.is_unspecified for host in hosts)
    return one[1] == other[1] and is_same_family and (hosts[0] == hosts[1] or has_wildcard)


def _listeners(configuration: Configuration) -> Iterator[tuple[str, str, int]]:
    for acceptor in configuration.acceptors:
        yield f"acceptors.{acceptor.name}.port", acceptor.host, acceptor.port
    admin = configuration.admin
    yield "admin.port", admin.host, admin.port
    if admin.probe_port is not None:
        yield "admin.probe-port", admin.host, admin.probe_port

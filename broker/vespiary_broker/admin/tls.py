"""TLS of the HTTP port: its files, its handshakes, and whom a client certificate stands for.

Owns the context, which is made anew when the files change, and connections until their handshake is
done. The handshake itself, its clock and its guard against floods are `server.gate`'s, as for
acceptors. Must never look at what is said. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from vespiary_broker.engine.networks import network_of
from vespiary_broker.server.address_limits import AddressLimits
from vespiary_broker.server.certificates import Certificate, certificate_user
from vespiary_broker.server.client_hello import HELLO_BYTES
from vespiary_broker.server.client_lines import ClientLines
from vespiary_broker.server.gate import Gate
from vespiary_broker.server.handshakes import Handshakes
from vespiary_broker.server.tls_contexts import make_tls, tls_files, user_of
from vespiary_broker.server.web_pages import is_loopback
from vespiary_spec.acceptor_tls import HTTP_CERTIFICATE
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Acceptor, AcceptorTls

ADMIN_TLS: Final = "admin.tls"
_HANDSHAKES_MAX: Final = 64
_HANDSHAKE_S: Final = 10


class HttpTls:
    """The certificates of the HTTP port.

    Attributes:
        name: As acceptors have one.
        context: For connections to come; None before `load`.
        certificate: What they are shown, of several what ends first; None before `load`.
        certificate_refused: Why the files as they are now were not taken; empty if they were.

    Args:
        tls: The files.
    """

    name = HTTP_CERTIFICATE

    def __init__(self, tls: AcceptorTls) -> None:
        self.context: ssl.SSLContext | None = None
        self.certificate: Certificate | None = None
        self.certificate_refused = ""
        self._tls = tls

    @property
    def tls_files(self) -> tuple[Path, ...]:
        """The files."""
        return tls_files(self._tls)

    def load(self) -> None:
        """Take the files as they are now.

        Raises:
            ConfigError: One is missing or is not what it should be.
        """
        self.context, self.certificate = make_tls(self._tls, ADMIN_TLS)

    async def reload_tls(self) -> bool:
        """Take the files as they are now for connections to come; those that are open stay.

        Files that cannot be used change nothing: `certificate_refused` says why.

        Returns:
            Whether they were taken.
        """
        try:
            self.load()
        except ConfigError as error:
            self.certificate_refused = str(error)
            return False
        self.certificate_refused = ""
        return True

    def user_of(self, transport: asyncio.Transport | None) -> str:
        """Return the user whom the certificate of a client stands for; empty for nobody."""
        return certificate_user(transport, partial(user_of, tls=self._tls))


class _Host:
    """What a handshake needs of the process, before the broker has started too."""

    def __init__(self, count_error: Callable[[str], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.count_error = count_error
        self.client_lines = ClientLines()
        self.buffer = self
        self.view = memoryview(bytearray(HELLO_BYTES))


class _Adopted:
    """A connection to the HTTP port. What comes in is bounded by its own limits.

    Args:
        protocol: The connection's protocol.
    """

    bytes_in = 0
    is_listening = False

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.connection_lost = protocol.connection_lost


class HttpDoor:
    """Connections in their handshake; what a `Gate` needs of a listener.

    Args:
        tls: The certificates.
        make: Makes the protocol of a connection whose handshake is done.
        room: Returns how many connections may be in their handshake now.
        per_client: Most connections of one network that may be in their handshake. Loopback has no
            bound: who is on the machine, or forwards to it, is not kept out by number.
        count_error: Counts an error of a client by its kind.
    """

    def __init__(
        self,
        tls: HttpTls,
        make: Callable[[], asyncio.Protocol],
        room: Callable[[], int],
        per_client: int,
        count_error: Callable[[str], None],
    ) -> None:
        self.acceptor = Acceptor(name=HttpTls.name, port=0, handshake_timeout=_HANDSHAKE_S)
        self.handshakes = Handshakes(_HANDSHAKES_MAX)
        self.addresses = AddressLimits(HttpTls.name, per_client)
        self._tls = tls
        self._make = make
        self._room = room
        self._host = _Host(count_error)
        self._gates: dict[Gate, None] = {}

    def gate(self) -> Gate:
        """Return the protocol of a new connection."""
        return Gate(self._host, self, self._tls.context)

    def enter(self, gate: Gate) -> bool:
        """Note a new connection; if there are too many, the network with most makes room."""
        if len(self._gates) >= self._room():
            self._oldest_of_most().close()
        self._gates[gate] = None
        if is_loopback(gate.peer):
            self.addresses.exempt(gate)
        return True

    def _oldest_of_most(self) -> Gate:
        networks = {gate: network_of(gate.peer) for gate in self._gates}
        counts = Counter(networks.values())
        return max(self._gates, key=lambda gate: counts[networks[gate]])

    def leave(self, gate: Gate) -> None:
        """Forget a connection whose handshake is done, or that is gone."""
        self._gates.pop(gate, None)
        self.addresses.leave(gate)

    def adopt(
        self,
        cycle: Any,  # noqa: ARG002 (what listeners need)
        transport: asyncio.Transport,
        first: bytes,
        *,
        peer: str = "",  # noqa: ARG002 (the socket's own)
        peer_port: int = 0,  # noqa: ARG002
        is_counted: bool = True,  # noqa: ARG002
    ) -> _Adopted:
        """Take a connection whose handshake is done."""
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if first:
            protocol.data_received(first)
        return _Adopted(protocol)

    def close(self) -> None:
        """End those that are in their handshake."""
        for gate in list(self._gates):
            gate.close()

"""The PROXY protocol, version 2: who a load balancer forwards a connection for.

Owns the layout of the header. Must never read a socket, nor take a byte of what is behind the
header: `BYTES_FIRST` says how many to read, then the header's own length how many more. Called by
`gate`. Source: "The PROXY protocol", versions 1 and 2, of HAProxy, section 2.2.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

from vespiary_spec.errors import LimitExceeded, RemoteProtocolError

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
BYTES_FIRST: Final = 16
REST_BYTES_MAX: Final = 4096
"""Addresses and further facts; what balancers add takes some hundreds."""
_VERSION_1: Final = b"PROXY "
_VERSION: Final = 2
_LOCAL, _PROXY = 0, 1
_UNKNOWN: Final = 0x00
_UNIX: Final = 0x31
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""Bytes of an address, by family and transport: TCP over IPv4 and IPv6."""
_BLOCK_BYTES: Final = {0x00: 0, 0x11: 12, 0x21: 36, 0x31: 216}
_CURE: Final = "have the load balancer send version 2, or turn proxy-protocol of the acceptor off"


def check_begin(data: bytes) -> None:
    """Check the first bytes of a connection as far as they are there.

    Args:
        data: At most the first 16 bytes.

    Raises:
        RemoteProtocolError: They are no header of version 2.
    """
    if not data.startswith(SIGNATURE[: len(data)]):
        is_old = data.startswith(_VERSION_1[: len(data)])
        raise RemoteProtocolError(
            "a header of the PROXY protocol has to come first, "
            + ("and this is one of version 1" if is_old else "and there was none"),
            cure=_CURE,
        )


def rest_bytes(first: bytes) -> int:
    """Return how many bytes follow the first 16.

    Args:
        first: The first 16 bytes.

    Raises:
        RemoteProtocolError: They are no header of version 2.
        LimitExceeded: It is longer than any that a load balancer has reason to send.
    """
    check_begin(first)
    version, family, count = struct.unpack_from("!BBH", first, len(SIGNATURE))
    if version >> 4 != _VERSION or version & 0xF not in (_LOCAL, _PROXY):
        raise RemoteProtocolError(
            "the header of the PROXY protocol is not understood",
            measured=f"version {version >> 4}, command {version & 0xF}",
            allowed="version 2, command LOCAL or PROXY",
        )
    if version & 0xF == _PROXY and count < _BLOCK_BYTES.get(family, 0):
        raise RemoteProtocolError(
            "the header of the PROXY protocol is shorter than its addresses", measured=count
        )
    if count > REST_BYTES_MAX:
        raise LimitExceeded(
            "the header of the PROXY protocol is too long",
            measured=count,
            allowed=f"at most {REST_BYTES_MAX} bytes",
        )
    return int(count)


def peer_of(first: bytes, rest: bytes) -> tuple[str, int]:
    """Return where the connection that is forwarded comes from; what follows it is skipped.

    Args:
        first: The first 16 bytes.
        rest: As many more as `rest_bytes` says.

    Returns:
        Address and port; empty and 0 where the balancer speaks for itself (LOCAL), or does not know
        them.

    Raises:
        RemoteProtocolError: It is of a kind that no TCP connection has.
    """
    command, family = first[len(SIGNATURE)] & 0xF, first[len(SIGNATURE) + 1]
    if command == _LOCAL or family in (_UNKNOWN, _UNIX):
        return "", 0
    if family not in _ADDRESS_BYTES:
        raise RemoteProtocolError(
            "the header of the PROXY protocol is for no TCP connection",
            measured=f"{family:#04x}",
        )
    size = _ADDRESS_BYTES[family]
    (port,) = struct.unpack_from("!H", rest, 2 * size)  # behind both addresses
    return str(ipaddress.ip_address(rest[:size])), port

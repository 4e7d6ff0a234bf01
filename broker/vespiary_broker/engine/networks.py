"""What a client's address counts as, where clients are counted.

Owns the rule alone.
"""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_HOST_BITS: Final = 64


def network_of(peer: str) -> str:
    """Return what a client counts as: its IPv4 address, or the /64 that its IPv6 address is of.

    Whoever has an IPv6 address mostly has all of its /64 (RFC 6177), and may come from another one
    each time. An IPv4 address that is written as one of IPv6 (RFC 4291 §2.5.5.2) is that of IPv4.

    Args:
        peer: Address as a socket or the PROXY protocol has it.

    Returns:
        The network; empty if there is no address: the client was gone before it could be asked.
    """
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    first = int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS
    return f"{ipaddress.IPv6Address(first)}/{128 - _IPV6_HOST_BITS}"

"""The header of the PROXY protocol, version 2: every kind, and what is none."""

import ipaddress
import struct

import pytest

from vespiary_broker.server.proxy_header import (
    BYTES_FIRST,
    REST_BYTES_MAX,
    SIGNATURE,
    check_begin,
    peer_of,
    rest_bytes,
)
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError


def header(
    family: int = 0x11, block: bytes = b"", *, command: int = 0x21, count: int | None = None
) -> bytes:
    first = SIGNATURE + struct.pack("!BBH", command, family, len(block) if count is None else count)
    return first + block


def tcp(source: str) -> bytes:
    """Return the header of a TCP connection."""
    address = ipaddress.ip_address(source)
    target = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    ports = struct.pack("!HH", 40000, 61616)
    return header(0x11 if address.version == 4 else 0x21, address.packed + target.packed + ports)


def read(data: bytes) -> tuple[str, int]:
    first, rest = data[:BYTES_FIRST], data[BYTES_FIRST:]
    assert rest_bytes(first) == len(rest)
    return peer_of(first, rest)


@pytest.mark.parametrize("address", ["192.0.2.7", "255.255.255.255", "2001:db8::7"])
def test_the_address_of_the_client(address: str) -> None:
    assert read(tcp(address)) == (address, 40000)


def test_what_follows_the_addresses_is_skipped() -> None:
    further = b"\x04\x00\x03abc" + b"\x20\x00\x01x"
    block = tcp("192.0.2.7")[BYTES_FIRST:] + further
    assert read(header(0x11, block)) == ("192.0.2.7", 40000)


def test_a_balancer_that_speaks_for_itself_has_no_client() -> None:
    nowhere = ("", 0)
    assert read(header(0x00, command=0x20)) == nowhere
    assert read(header(0x11, tcp("192.0.2.7")[BYTES_FIRST:], command=0x20)) == nowhere
    assert read(header(0x00)) == nowhere
    assert read(header(0x00, b"\x04\x00\x01x")) == nowhere
    assert read(header(0x31, bytes(216))) == nowhere


def test_what_begins_right_may_go_on() -> None:
    whole = tcp("192.0.2.7")
    for count in range(len(SIGNATURE) + 1):
        check_begin(whole[:count])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PROXY TCP4 192.0.2.7", "version 1"),
        (b"P", "version 1"),
        (b"CONNECT\naccept-v", "there was none"),
        (b"\x16\x03\x01", "there was none"),
        (b"\r\n\r\n\0\r\nQUIT\r", "there was none"),
        (b"\r\n\r\nGET", "there was none"),
    ],
)
def test_what_is_no_header_is_refused_at_its_first_wrong_byte(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        check_begin(data)


@pytest.mark.parametrize(
    "first",
    [
        header(command=0x11)[:16],
        header(command=0x31)[:16],
        header(command=0x22)[:16],
        header(command=0x2F)[:16],
        header(0x11, count=11)[:16],
        header(0x21, count=35)[:16],
        header(0x31, count=215)[:16],
        header(0x11, count=0)[:16],
    ],
)
def test_a_wrong_first_part(first: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        rest_bytes(first)


def test_a_declared_length_is_bounded() -> None:
    assert rest_bytes(header(0x11, count=REST_BYTES_MAX)[:16]) == REST_BYTES_MAX
    with pytest.raises(LimitExceeded, match="too long"):
        rest_bytes(header(0x11, count=65535)[:16])


@pytest.mark.parametrize("family", [0x10, 0x12, 0x22, 0x32, 0x01, 0x41, 0xFF])
def test_a_kind_that_no_tcp_connection_has(family: int) -> None:
    with pytest.raises(RemoteProtocolError, match="no TCP"):
        read(header(family, bytes(216)))

"""When a TLS handshake begins: with its whole first message, or what never becomes one."""

from __future__ import annotations

import contextlib
import ssl
import struct

import pytest

from vespiary_broker.server.client_hello import HELLO_BYTES, is_hello_whole


def hello(protocols: int = 0) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([f"protocol-{number:04}" for number in range(protocols)])
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def in_records(data: bytes, size_bytes: int) -> bytes:
    """Return a hello in records of so many bytes."""
    message = data[5:]
    pieces = [message[at : at + size_bytes] for at in range(0, len(message), size_bytes)]
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(piece)) + piece for piece in pieces)


@pytest.mark.ci
@pytest.mark.parametrize("size_bytes", [1, 3, 4, 5, 100, 16384])
def test_it_is_whole_with_its_last_byte(size_bytes: int) -> None:
    data = in_records(hello(), size_bytes)
    data = data[: HELLO_BYTES - 1] if size_bytes > 1 else data
    whole = [end for end in range(len(data) + 1) if is_hello_whole(data[:end])]
    assert whole[0] == min(len(data), HELLO_BYTES)
    assert whole == list(range(whole[0], len(data) + 1))


def test_what_follows_it_does_not_matter() -> None:
    assert is_hello_whole(hello() + b"\x14\x03\x03")


def test_one_that_is_longer_than_what_is_kept_begins() -> None:
    data = hello(600)
    assert len(data) > HELLO_BYTES
    assert not is_hello_whole(data[: HELLO_BYTES - 1])
    assert is_hello_whole(data[:HELLO_BYTES])


@pytest.mark.parametrize(
    "data",
    [
        b"C",
        b"\x80\x2e\x01",
        b"\x16\x02",
        b"\x15\x03\x01",
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\0\4\2",
        b"\x16\x03\x01\0\1\1\x17",
    ],
)
def test_what_cannot_become_one_is_for_openssl(data: bytes) -> None:
    assert is_hello_whole(data)


@pytest.mark.parametrize("data", [b"", b"\x16", b"\x16\x03", b"\x16\x03\x01\0\4\1\0\0"])
def test_a_beginning_is_waited_for(data: bytes) -> None:
    assert not is_hello_whole(data)

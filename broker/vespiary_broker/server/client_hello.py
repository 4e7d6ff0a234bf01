"""The first message of a TLS handshake: whether all of it is there.

Owns how much of it is waited for. Must never judge it: what is wrong with it, OpenSSL says in an
alert. Called by `gate`.
Sources: RFC 8446 §4.1.2 and §5.1; RFC 5246 §6.2.1 and §7.4.
"""

from __future__ import annotations

from typing import Final

HELLO_BYTES: Final = 4 * 1024
"""What is kept of it until it is whole; a longer one begins its handshake with so much."""
_RECORD_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAJOR_VERSION: Final = 3


def is_hello_whole(data: bytes) -> bool:
    """Return whether a handshake may begin with these first bytes.

    Until then it would hold some 40 KiB of OpenSSL's memory for a client that has said nothing.

    Args:
        data: All bytes so far.

    Returns:
        Whether they have a whole ClientHello, or cannot become one, or are as many as are kept.
    """
    if len(data) >= HELLO_BYTES:
        return True
    message = bytearray()
    while data:
        if data[0] != _HANDSHAKE or data[1:2] not in (b"", bytes([_MAJOR_VERSION])):
            return True
        if len(data) < _RECORD_HEAD_BYTES:
            return False
        size_bytes = int.from_bytes(data[3:_RECORD_HEAD_BYTES], "big")
        if size_bytes == 0:
            return True
        end = _RECORD_HEAD_BYTES + size_bytes
        message += data[_RECORD_HEAD_BYTES:end]
        if message and message[0] != _CLIENT_HELLO:
            return True
        if len(message) >= _MESSAGE_HEAD_BYTES:
            wanted_bytes = int.from_bytes(message[1:_MESSAGE_HEAD_BYTES], "big")
            if len(message) - _MESSAGE_HEAD_BYTES >= wanted_bytes:
                return True
        data = data[end:]
    return False

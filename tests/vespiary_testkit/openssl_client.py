"""A TLS client that may do what Python's `ssl` cannot: floods of KeyUpdate and renegotiation.

Calls the public C interface of OpenSSL (libssl.so.3), and checks no certificate.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import struct
from typing import Any, Self

import pytest

from vespiary_testkit.waiting import WAIT_S

TLS_1_2 = 0x0303
TLS_1_3 = 0x0304
_SSL_CTRL_SET_MIN_PROTO_VERSION = 123
_SSL_CTRL_SET_MAX_PROTO_VERSION = 124


def _library() -> Any:
    name = ctypes.util.find_library("ssl")
    if name is None or "so.3" not in name:
        pytest.skip("libssl.so.3 is not installed, by which floods are made")
    library = ctypes.CDLL(name)
    for function, result, arguments in (
        ("TLS_client_method", ctypes.c_void_p, []),
        ("SSL_CTX_new", ctypes.c_void_p, [ctypes.c_void_p]),
        ("SSL_CTX_free", None, [ctypes.c_void_p]),
        (
            "SSL_CTX_ctrl",
            ctypes.c_long,
            [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p],
        ),
        ("SSL_new", ctypes.c_void_p, [ctypes.c_void_p]),
        ("SSL_free", None, [ctypes.c_void_p]),
        ("SSL_set_fd", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
        ("SSL_connect", ctypes.c_int, [ctypes.c_void_p]),
        ("SSL_do_handshake", ctypes.c_int, [ctypes.c_void_p]),
        ("SSL_key_update", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
        ("SSL_renegotiate", ctypes.c_int, [ctypes.c_void_p]),
        ("SSL_write", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        ("SSL_read", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
    ):
        entry = getattr(library, function)
        entry.restype, entry.argtypes = result, arguments
    return library


class OpensslClient:
    """One connection; use it as a context manager.

    Args:
        port: Port on loopback.
        version: The version of TLS to speak.
    """

    def __init__(self, port: int, version: int = TLS_1_3) -> None:
        self._library = library = _library()
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.give_up_after(WAIT_S)
        self._context = library.SSL_CTX_new(library.TLS_client_method())
        for bound in (_SSL_CTRL_SET_MIN_PROTO_VERSION, _SSL_CTRL_SET_MAX_PROTO_VERSION):
            library.SSL_CTX_ctrl(self._context, bound, version, None)
        self._ssl = library.SSL_new(self._context)
        library.SSL_set_fd(self._ssl, self.socket.fileno())
        assert library.SSL_connect(self._ssl) == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.SSL_free(self._ssl)
        self._library.SSL_CTX_free(self._context)
        self.socket.close()

    def give_up_after(self, seconds: float) -> None:
        """Let reading and writing fail after a time."""
        time = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)

    def send(self, data: bytes) -> bool:
        """Send bytes; False if that failed."""
        return int(self._library.SSL_write(self._ssl, data, len(data))) == len(data)

    def receive(self) -> bytes:
        """Return what comes next; empty if nothing does."""
        room = ctypes.create_string_buffer(65536)
        count = self._library.SSL_read(self._ssl, room, len(room))
        return room.raw[: max(count, 0)]

    def update_keys(self) -> bool:
        """Change our key, and have the other side change its own; False if that failed."""
        library = self._library
        return bool(
            library.SSL_key_update(self._ssl, 1) and library.SSL_do_handshake(self._ssl) == 1
        )

    def renegotiate(self) -> bool:
        """Ask for another handshake (TLS 1.2); False if that failed."""
        library = self._library
        is_asked = library.SSL_renegotiate(self._ssl) and library.SSL_do_handshake(self._ssl) == 1
        return bool(is_asked)

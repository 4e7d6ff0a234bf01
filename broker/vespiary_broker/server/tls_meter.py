"""What comes of TLS against what comes out of it: a flood of records without content ends.

Owns the account of one connection. A client may send records that hold nothing for us (KeyUpdate
of TLS 1.3): each costs the processor tens of microseconds and an answer, OpenSSL takes any number
of them, and nobody above hears of it. So what is received is charged, and content pays for it. Must
never look into a record. Sits between a transport and the loop's TLS protocol; called by `gate`.

The smallest record with content is one byte in 23; the account pays for more than that, so no
client that says something is cut off, however little it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

CREDIT_BYTES: Final = 16 * 1024
"""What may come without content: a handshake with certificates is some KiB."""
PAID_PER_BYTE: Final = 32
"""Bytes of records that a byte of content pays for."""
_READ_BYTES_MIN: Final = 4 * 1024


class TlsMeter(asyncio.BufferedProtocol):
    """Hands on to the TLS protocol of one connection what its transport says.

    Owner: the event loop.

    Args:
        inner: The loop's TLS protocol.
        content_bytes: Returns how many bytes of content there were so far.
        is_paused: Returns whether content is not read now: records wait for it then.
        cut: Ends the connection.
    """

    def __init__(
        self,
        inner: Any,
        content_bytes: Callable[[], int],
        is_paused: Callable[[], bool],
        cut: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._content_bytes = content_bytes
        self._is_paused = is_paused
        self._cut = cut
        self._credit = CREDIT_BYTES
        self._paid = 0
        self._is_bulk = False  # the last read was mostly content

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go; few, while they have not shown to be worth it."""
        view = memoryview(self._inner.get_buffer(sizehint))
        return view if self._is_bulk else view[: max(self._credit, _READ_BYTES_MIN)]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what was read, and charge it."""
        self._credit -= nbytes
        self._inner.buffer_updated(nbytes)
        content = self._content_bytes()
        found_bytes, self._paid = content - self._paid, content
        self._is_bulk = found_bytes * 2 >= nbytes
        self._credit = min(self._credit + found_bytes * PAID_PER_BYTE, CREDIT_BYTES)
        if self._credit < 0 and not self._is_paused():
            self._cut()

    def eof_received(self) -> bool | None:
        """Hand on the end of what comes."""
        ended: bool | None = self._inner.eof_received()
        return ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on the end."""
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on that the client reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that it has caught up."""
        self._inner.resume_writing()

"""Reading one large body: piece by piece, in a thread, with its checksum.

Owns one open file. A body may be removed while it is read: the open file keeps its bytes. Must
never block the event loop. Made by `LargeMessages.read`; called by the server's connections.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Final

from vespiary_broker.store.disk import DiskFile
from vespiary_codec.checksum import crc32c
from vespiary_native.abc import LargeBody
from vespiary_spec.errors import LargeMessageDamaged, NativeError

if TYPE_CHECKING:
    from vespiary_broker.store.large_messages import LargeMessages

PIECE_BYTES: Final = 256 * 1024
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The process or the machine is short of something: that says nothing of the file."""


class LargeReader:
    """One body on its way to a consumer. Owner: the task that streams it.

    Args:
        store: The store.
        body: The body.
        file: Its file, open.
    """

    def __init__(self, store: LargeMessages, body: LargeBody, file: DiskFile) -> None:
        self._store = store
        self._body = body
        self._file: DiskFile | None = file
        self._position = 0
        self._crc = 0

    @classmethod
    async def open(cls, store: LargeMessages, body: LargeBody) -> LargeReader:
        """Open a body.

        Raises:
            LargeMessageDamaged: The file is missing, cannot be read, or has another size.
            NativeError: It cannot be opened now.
        """
        return await store.in_thread(lambda: cls._open(store, body))

    @classmethod
    def _open(cls, store: LargeMessages, body: LargeBody) -> LargeReader:
        try:
            path = store.path(body.large_id)
            file = store.disk.open(path, is_direct=False, is_readonly=True)
        except NativeError as error:
            if error.errno in _PASSING:
                raise
            raise LargeMessageDamaged("a large message's file cannot be opened") from error
        size_bytes = file.size_bytes()
        if size_bytes != body.size_bytes:
            file.close()
            raise LargeMessageDamaged(
                "a large message's file has another size",
                measured=f"{size_bytes} bytes",
                allowed=f"{body.size_bytes} bytes",
            )
        return cls(store, body, file)

    async def next_piece(self) -> bytes:
        """Return the next bytes of the body, nothing at its end.

        The last piece comes only if the whole body has its checksum.

        Raises:
            LargeMessageDamaged: The file cannot be read, ends too early, or has another checksum.
        """
        if self._position == self._body.size_bytes:
            return b""
        try:
            return await self._store.in_thread(self._read)
        except LargeMessageDamaged as error:
            self._store.note_damaged(self._body.large_id, str(error))
            raise

    async def read_at(self, offset: int, max_bytes: int) -> bytes:
        """Return bytes from the middle of the body; its checksum is not looked at.

        Args:
            offset: The first one; behind the end there is nothing.
            max_bytes: Most bytes.

        Raises:
            LargeMessageDamaged: The file cannot be read, or ends too early.
        """
        count = max(0, min(max_bytes, self._body.size_bytes - offset))
        if not count:
            return b""
        try:
            return await self._store.in_thread(lambda: self._read_at(offset, count))
        except LargeMessageDamaged as error:
            self._store.note_damaged(self._body.large_id, str(error))
            raise

    def _read_at(self, offset: int, count: int) -> bytes:
        """Read so many bytes; blocks."""
        assert self._file is not None
        piece, done = bytearray(count), 0
        while done < count:
            try:
                read = self._file.read_into(memoryview(piece)[done:], offset + done)
            except NativeError as error:
                raise LargeMessageDamaged("a large message's file cannot be read") from error
            if not read:
                raise LargeMessageDamaged("a large message's file ends too early", measured=done)
            done += read
        return bytes(piece)

    def _read(self) -> bytes:
        """Read a piece; blocks."""
        assert self._file is not None
        left = self._body.size_bytes - self._position
        piece = bytearray(min(PIECE_BYTES, left))
        try:
            count = self._file.read_into(memoryview(piece), self._position)
        except NativeError as error:
            raise LargeMessageDamaged("a large message's file cannot be read") from error
        if count < len(piece):
            raise LargeMessageDamaged("a large message's file ends too early", measured=count)
        self._position += count
        self._crc = crc32c(piece, self._crc)
        if self._position == self._body.size_bytes and self._crc != self._body.crc:
            raise LargeMessageDamaged(
                "a large message's file has another checksum",
                measured=f"{self._crc:08x}",
                allowed=f"{self._body.crc:08x}",
            )
        return bytes(piece)

    def close(self) -> None:
        """Let the file go."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(NativeError):  # it was only read
                file.close()

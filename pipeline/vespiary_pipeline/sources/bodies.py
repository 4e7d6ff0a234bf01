"""Bodies of large messages, which stand in files of their own (journal-format §3.5).

Owns reading and checking one. Must never raise because of one body: what is wrong with it is a
sentence for its row. Called by `sources.batches`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.file_forms import kept_body_parts
from vespiary_codec.journal.large_reference import (
    LargeReference,
    body_name,
    decode_large_reference,
)
from vespiary_pipeline.files import open_file, read_at
from vespiary_spec.errors import NativeError

_PIECE_BYTES: Final = 1024 * 1024
NO_FOLDER: Final = "no folder of large bodies is there: name it with largeMessages"
UNREADABLE: Final = "the body can't be read"
NOT_THERE: Final = f"{UNREADABLE}: {os.strerror(errno.ENOENT)}"
"""In the sentences of bodies of which nothing is known, and of those that are missing."""


class _Wrong(Exception):  # noqa: N818 (a state of a body, and never raised to a caller)
    """Something is wrong with a body: a sentence."""


class LargeBodies:
    """Reads bodies from folders: a broker's, or one beside kept copies. Owner: the task.

    Args:
        folders: The folders; the first that has a body counts.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._kept: dict[int, Path] | None = None

    def __call__(self, reference: bytes, _row: int) -> bytes | str:
        """Return a body, or a sentence that says why it can't be given.

        Args:
            reference: The 24 bytes that the record has in its place.
        """
        found = decode_large_reference(reference)
        try:
            return b"".join(self._pieces(found, found.size_bytes))
        except _Wrong as wrong:
            return str(wrong)

    def check(self, reference: bytes) -> str:
        """Return what is wrong with a body, empty if nothing; it is never in memory whole.

        Args:
            reference: The 24 bytes that the record has in its place.
        """
        try:
            for _ in self._pieces(decode_large_reference(reference), _PIECE_BYTES):
                pass
        except _Wrong as wrong:
            return str(wrong)
        return ""

    def _pieces(self, found: LargeReference, piece_bytes: int) -> Iterator[bytes]:
        """Yield the pieces of a body.

        Raises:
            _Wrong: It can't be read, or is not what its record says; told behind the last piece.
        """
        if not self._folders:
            raise _Wrong(NO_FOLDER)
        path = self._path(found.large_id)
        crc = done = 0
        try:
            descriptor = open_file(path)
            try:
                size = os.fstat(descriptor).st_size
                while size == found.size_bytes and done < size:
                    piece = read_at(descriptor, min(piece_bytes, size - done), done, path)
                    if not piece:
                        size = done  # it was cut off meanwhile
                    crc, done = crc32c(piece, crc), done + len(piece)
                    yield piece
            finally:
                os.close(descriptor)
        except NativeError as error:
            raise _Wrong(f"{path}: {UNREADABLE}: {error.strerror}") from error
        if size != found.size_bytes:
            raise _Wrong(
                f"{path}: the body has {size} bytes, and its record says {found.size_bytes}"
            )
        if crc != found.crc:
            raise _Wrong(f"{path}: the body is damaged: its checksum is not that of its record")

    def _path(self, large_id: int) -> Path:
        paths = [folder / body_name(large_id) for folder in self._folders]
        there = next((path for path in paths if path.exists()), None)
        return there or self._kept_bodies().get(large_id, paths[0])

    def _kept_bodies(self) -> dict[int, Path]:
        """Return the bodies that a retention put aside, by id: the time is in their names too."""
        if self._kept is None:
            self._kept = {}
            for folder in self._folders:
                for entry in os.scandir(folder):
                    if parts := kept_body_parts(entry.name):
                        self._kept.setdefault(parts[1], Path(entry.path))
        return self._kept

"""Bodies of large messages, which stand in files of their own (journal-format §3.5).

Owns reading and checking one. Must never raise because of one body: what is wrong with it is a
sentence for its row. Called by `sources.batches`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.file_forms import kept_body_parts
from vespiary_codec.journal.large_reference import body_name, decode_large_reference


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
            reference: The 24 bytes that a record has in its place.
        """
        if not self._folders:
            return "no folder of large bodies is there: name it with largeMessages"
        found = decode_large_reference(reference)
        path = self._path(found.large_id)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                body = file.read(found.size_bytes) if size == found.size_bytes else b""
        except OSError as error:
            return f"{path}: the body can't be read: {os.strerror(error.errno or 0)}"
        if len(body) != found.size_bytes:
            return f"{path}: the body has {size} bytes, and its record says {found.size_bytes}"
        if crc32c(body) != found.crc:
            return f"{path}: the body is damaged: its checksum is not that of its record"
        return body

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

"""Bodies of large messages, which stand in files of their own (journal-format §3.5).

Owns reading and checking one. Must never raise because of one body: what is wrong with it is a
sentence for its row. Called by `sources.batches`.
"""

from __future__ import annotations

import os
from pathlib import Path

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.large_reference import body_name, decode_large_reference


class LargeBodies:
    """Reads bodies from a folder. Owner: the task.

    Args:
        folder: The folder; None: there is none.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def __call__(self, reference: bytes, _row: int) -> bytes | str:
        """Return a body, or a sentence that says why it can't be given.

        Args:
            reference: The 24 bytes that a record has in its place.
        """
        if self._folder is None:
            return "no folder of large bodies is there: name it with largeMessages"
        found = decode_large_reference(reference)
        path = Path(self._folder) / body_name(found.large_id)
        try:
            body = path.read_bytes()
        except OSError as error:
            return f"{path}: the body can't be read: {os.strerror(error.errno or 0)}"
        if len(body) != found.size_bytes:
            return f"{path}: the body has {len(body)} bytes, and its record says {found.size_bytes}"
        if crc32c(body) != found.crc:
            return f"{path}: the body is damaged: its checksum is not that of its record"
        return body

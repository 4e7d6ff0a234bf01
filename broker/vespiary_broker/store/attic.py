"""Files that a crash left unfinished: removed when they hold nothing, else kept as they are.

Owns: the folder `attic` beside a journal's files, and the proof that a file is blank. Must never
delete or overwrite a file that holds a byte which is not zero. Called by `files`, in the worker
thread.
"""

from __future__ import annotations

import logging
from pathlib import Path

from vespiary_broker.store.disk import DiskLike
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import (
    CHECKED_BYTES,
    HEADER_BYTES,
    FileState,
    decode_file_header,
)
from vespiary_native.memory import AlignedBuffer

logger = logging.getLogger(__name__)

ATTIC = "attic"
_WINDOW_BYTES = 256 * 1024


class Attic:
    """The attic of one journal. Owner: the journal's worker thread."""

    def __init__(self, folder: Path, disk: DiskLike, files_max: int) -> None:
        """Prepare; the folder is made when it is needed.

        Args:
            folder: The journal's folder.
            disk: The file system.
            files_max: Files kept in the attic (`journal-max-attic-files`).
        """
        self._folder = folder
        self._disk = disk
        self._files_max = files_max

    def clear_unfinished(self, path: Path) -> None:
        """Deal with a file that a crash left unfinished.

        It was never used, since use begins with its final name. So its bytes ought to be zeros
        behind a free header, and then it is removed. Holds it anything else, then it is not what it
        seems: it goes to the attic, or stays where it is when that is full.

        Raises:
            NativeError: It can't be read, removed or moved.

        Durability: on return the removal or the move survives a power cut.
        """
        if not self._is_blank(path):
            self.take(path)
            return
        logger.info("%s is removed: it was being made, and holds nothing", path)
        self._disk.remove(path)
        self._disk.flush_folder(self._folder)

    def _is_blank(self, path: Path) -> bool:
        """Whether a file holds nothing but zeros behind a free header or none."""
        handle = self._disk.open(path, is_direct=False, is_readonly=True)
        try:
            buffer = AlignedBuffer(_WINDOW_BYTES).memoryview
            for offset in range(0, handle.size_bytes(), _WINDOW_BYTES):
                window = buffer[: handle.read_into(buffer, offset)]
                if not offset and _is_free_header(window):
                    window = window[HEADER_BYTES:]
                if any(window.tobytes()):
                    return False
            return True
        finally:
            handle.close()

    def take(self, path: Path) -> bool:
        """Move a file out of the way that is no file of the journal.

        Returns:
            Whether there was room in the attic; else it stays where it is.

        Raises:
            NativeError: The move failed.

        Durability: on return the move survives a power cut.
        """
        attic = self._folder / ATTIC
        self._disk.make_folder(attic)
        kept = self._disk.names(attic)
        if len(kept) >= self._files_max:
            logger.warning(
                "%s stays where it is: %s is full (%d files, journal-max-attic-files)",
                path,
                attic,
                len(kept),
            )
            return False
        target = attic / path.name
        suffix = 1
        while target.name in kept:
            target = attic / f"{path.name}.{suffix}"
            suffix += 1
        self._disk.rename(path, target)
        self._disk.flush_folder(attic)
        self._disk.flush_folder(self._folder)
        logger.warning("%s is no file of the journal: moved to %s", path, target)
        return True


def _is_free_header(data: memoryview) -> bool:
    """Whether a file begins with a header that says free, and nothing more in its block."""
    try:
        header = decode_file_header(data)
    except JournalFormatError:
        return False
    return (
        header is not None
        and header.state is FileState.FREE
        and not any(data[CHECKED_BYTES:HEADER_BYTES])
    )

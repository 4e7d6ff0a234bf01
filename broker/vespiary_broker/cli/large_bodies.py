"""Where the replay finds the bodies of large messages: beside the copies, or with the broker.

Owns: which file holds a body, and its check before anything of it is sent. Must never write. Called
by `replaying`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from vespiary_broker.store.body_files import FOLDER_NAME, read_body
from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.retention_bodies import find_bodies
from vespiary_codec.journal.large_reference import (
    LargeReference,
    body_name,
    decode_large_reference,
)
from vespiary_codec.journal.record import AddRecord
from vespiary_spec.errors import CorruptRecord

_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LargeBodies:
    """The bodies that a replay can have.

    Attributes:
        retention: The folder of copies.
        kept: Files beside the copies, by id.
        folder: The broker's folder, for those of messages that are still live.
        disk: The file system; only read.
    """

    retention: Path
    kept: dict[int, Path]
    folder: Path
    disk: DiskLike

    @classmethod
    def find(cls, retention: Path, folder: Path | None) -> Self:
        """Look for bodies.

        Args:
            retention: The folder of copies.
            folder: The broker's folder of large messages; None takes the one beside the copies.
        """
        beside = retention.absolute().parent / FOLDER_NAME
        disk = Disk()
        place = beside if folder is None else folder
        return cls(retention, find_bodies(retention, disk), place, disk)

    def what_is_wrong(self, add: AddRecord) -> str:
        """Read the body of a message; return what is wrong with it, or nothing."""
        reference = decode_large_reference(add.body)
        path = self._path(reference)
        what = read_body(self.disk, path, reference, lambda _, __: None)
        return f"its body {path}: {what}" if what else ""

    def size_bytes(self, add: AddRecord) -> int:
        """Return the size of a message's body."""
        return decode_large_reference(add.body).size_bytes

    def pieces(self, add: AddRecord) -> Iterator[bytes]:
        """Yield the body of a message, which was whole a moment ago.

        Raises:
            CorruptRecord: It has become shorter; what was sent of it has no end.
            NativeError: It can't be read.
        """
        reference = decode_large_reference(add.body)
        path = self._path(reference)
        file = self.disk.open(path, is_direct=False, is_readonly=True)
        piece = memoryview(bytearray(_PIECE_BYTES))
        offset = 0
        try:
            while offset < reference.size_bytes:
                count = file.read_into(piece[: reference.size_bytes - offset], offset)
                if not count:
                    raise CorruptRecord(
                        "the body of a large message changes while it is read",
                        where=str(path),
                        measured=f"{offset} bytes",
                        allowed=f"{reference.size_bytes} bytes",
                    )
                yield bytes(piece[:count])
                offset += count
        finally:
            file.close()

    def _path(self, reference: LargeReference) -> Path:
        beside = self.folder / body_name(reference.large_id)
        if reference.large_id not in self.kept and not beside.exists():
            # A running broker may have put it aside since.
            self.kept.update(find_bodies(self.retention, self.disk))
        return self.kept.get(reference.large_id, beside)

"""Records of the message journal that Python owns and that must survive their file.

Owns: the contract between the journal and whoever keeps such records (the duplicate ids of
`vespiary_broker.engine.duplicates`), the keeper of none, and the sink that hands them over during a
recovery. The core passes such records through: it knows neither their layout nor whether they still
matter, so it cannot keep their file. Must never free a file or write by itself. Called by `keeper`
and the compaction (`live_records`, `live_bytes`, `rewrite`, `forget_file`) and by `opening`
(`restore`).
"""

from __future__ import annotations

from typing import Protocol

from vespiary_native.abc import Core

KEPT_TURN_BYTES = 32 * 1024
"""Kept records that are appended again in one turn of the event loop: one to two milliseconds."""


class KeptRecords(Protocol):
    """Whoever keeps records in the message journal. Owner: the event loop's thread.

    A file with live records is not freed, exactly like one with live messages. Which records are
    live is the owner's to say; rewriting one makes the old one dead at once, since the checkpoint
    that lets the old file go stands behind the new record in the journal.
    """

    def restore(self, file_id: int, type_: int, body: bytes) -> None:
        """Take a record that a recovery found, in journal order; in the worker thread.

        Args:
            file_id: The file that it stands in.
            type_: Its type; those of others are passed over.
            body: What follows the first 8 bytes.

        Raises:
            ValueError: It is malformed.
        """

    def live_records(self, file_id: int) -> int:
        """Return the number of records in the file that must survive."""

    def live_bytes(self, file_id: int) -> int:
        """Return about how many bytes they take."""

    def rewrite(self, file_id: int, limit_bytes: int) -> bool:
        """Append the live records of a file again, at the journal's end.

        Args:
            file_id: The file.
            limit_bytes: Stop after about this many bytes; call again for the rest. However few they
                are, a call looks at a bounded number of records.

        Returns:
            Whether no live record is left in the file. False also where there was no room.

        Durability: none by itself. The file may be freed once a checkpoint behind the new records
            is durable.
        """

    def forget_file(self, file_id: int) -> None:
        """Forget a file that was freed; it has no live records."""


class NothingKept:
    """The owner of no records."""

    # ruff: noqa: ARG002 (the contract's arguments)

    def restore(self, file_id: int, type_: int, body: bytes) -> None:
        """See `KeptRecords.restore`: a record that nobody keeps is passed over."""

    def live_records(self, file_id: int) -> int:
        """See `KeptRecords.live_records`."""
        return 0

    def live_bytes(self, file_id: int) -> int:
        """See `KeptRecords.live_bytes`."""
        return 0

    def rewrite(self, file_id: int, limit_bytes: int) -> bool:
        """See `KeptRecords.rewrite`."""
        return True

    def forget_file(self, file_id: int) -> None:
        """See `KeptRecords.forget_file`."""


class KeptSink:
    """A recovery's sink: the core, and behind it the owner of what the core does not keep.

    Args:
        core: The core.
        kept: The owner.
    """

    def __init__(self, core: Core, kept: KeptRecords) -> None:
        self._core = core
        self._kept = kept

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """See `recovery.Sink.restore_file`."""
        self._core.restore_file(file_id, salt, size_bytes)

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """See `recovery.Sink.restore_block`."""
        others = self._core.restore_block(file_id, offset, block)
        for type_, body in others:
            self._kept.restore(file_id, type_, body)
        return others

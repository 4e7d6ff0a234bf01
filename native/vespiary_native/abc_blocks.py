"""The contract of the walk over blocks: which of the bytes of a file are valid blocks.

Owns the Protocol alone. Both implementations of the core have one; `abc` exports it.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_native.values import BlockFacts


class BlockVerifier(Protocol):
    """The type of `vespiary_native.choice.block_verifier()`, which both implementations have."""

    def __call__(
        self, data: memoryview, offset: int, salt: int, file_id: int, limit: int
    ) -> list[BlockFacts]:
        """Walk blocks while they are valid and whole; the first that is not ends the list.

        A seal ends it too. Whether sequences and the chain go on is for the caller to compare.

        Args:
            data: Bytes of the file from `offset` on, at a block's start.
            offset: File offset of `data[0]`.
            salt: The file's salt.
            file_id: The file's id.
            limit: At most this many blocks.
        """
        ...

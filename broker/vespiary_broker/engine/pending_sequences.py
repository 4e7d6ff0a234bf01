"""Messages of one queue that wait for their turn to leave it: eight bytes for each.

Owns the order. Must never call the core. A million messages may expire in the same second, so there
is no object for a message here. Used by `moves`; owner: the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Final

_MOVE_DOWN_MIN: Final = 1024


class PendingSequences:
    """Sequences in the order of adding; one that was added twice may come twice."""

    __slots__ = ("_sequences", "_taken")

    def __init__(self) -> None:
        self._sequences = array("Q")
        self._taken = 0

    def __len__(self) -> int:
        return len(self._sequences) - self._taken

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences[self._taken :]

    def add(self, sequence: int) -> None:
        """Put a sequence behind all others."""
        self._sequences.append(sequence)

    def first(self, most: int) -> list[int]:
        """Return the first ones, each once; fewer than `most` if some come twice.

        Args:
            most: 1 or more.
        """
        return list(dict.fromkeys(self._sequences[self._taken : self._taken + most]))

    def drop(self, most: int, left: Iterable[int] = ()) -> None:
        """Forget what `first` returned for the same number, but what is left of it.

        Args:
            most: As for `first`.
            left: Sequences that stay in front, in their order.
        """
        self._taken = min(self._taken + most, len(self._sequences))
        again = array("Q", left)
        if again:
            start = self._taken - len(again)
            self._sequences[start : self._taken] = again
            self._taken = start
        if self._taken > _MOVE_DOWN_MIN and 2 * self._taken >= len(self._sequences):
            del self._sequences[: self._taken]  # costs no more than what was taken
            self._taken = 0

    def clear(self) -> list[int]:
        """Forget all; return what there was."""
        left = list(chain(self._sequences[self._taken :]))
        self._sequences, self._taken = array("Q"), 0
        return left

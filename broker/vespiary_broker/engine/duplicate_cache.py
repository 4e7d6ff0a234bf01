"""The duplicate ids of one address: a window of the highest numbers.

Owns the window. Must never know the journal: `duplicates` says in which file an id stands. Used by
`duplicates`.

An id costs its bytes object, an entry of a dictionary, and two pointers: the ids themselves are in
the dictionary and in the window, the numbers follow from the place in the window, and the ids of
files are shared. 20 000 ids of 36 characters take 2.3 MB. The window is a list whose front is cut
off now and then, and no deque: a window of a million is looked at in pieces, from its middle on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

_BLANK = b""
_GONE_SHARE = 8
"""The front is cut off when it is this part of the window: an eighth more memory at most."""


class AddressCache:
    """The ids of one address. Owner: as for `DuplicateIds`.

    Invariant: `_ids[_gone + i]` has the number `_first + i`; blanks are numbers without an id, and
    what stands before `_gone`. `_seen` has the ids of `_ids`, each once.

    Args:
        size: Ids that are remembered; 0 remembers none, and only counts.
        following: Number of the first id.

    Attributes:
        size: As given.
        discarded: Messages that were discarded.
    """

    __slots__ = ("_files", "_first", "_found", "_gone", "_ids", "_seen", "discarded", "size")

    def __init__(self, size: int, following: int = 1) -> None:
        self.size = size
        self.discarded = 0
        self._first = following
        self._gone = 0
        self._ids: list[bytes] = []
        self._files: list[int] = []
        self._seen: dict[bytes, None] = {}
        self._found: dict[int, tuple[bytes, int]] = {}

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._seen)

    def __contains__(self, text: object) -> bool:
        """Whether an id is remembered."""
        return text in self._seen

    @property
    def first(self) -> int:
        """The lowest number of the window; above `last` if that is empty."""
        return self._first

    @property
    def last(self) -> int:
        """The highest number given so far; 0 if there was none."""
        return self._first + len(self._ids) - self._gone - 1

    def add(self, number: int, text: bytes, file_id: int) -> list[tuple[int, bytes]]:
        """Remember an id; return those that it displaces, each with its file.

        Args:
            number: Its number, the one after `last`.
            text: The id, not remembered yet.
            file_id: File of its record; 0 if it has none.
        """
        assert number == self.last + 1
        assert text not in self._seen
        self._ids.append(text)
        self._files.append(file_id)
        self._seen[text] = None
        gone = []
        while len(self._ids) - self._gone > self.size:
            gone.append(self._pop())
        return [(old_file, old) for old_file, old in gone if old]

    def _pop(self) -> tuple[int, bytes]:
        old, old_file = self._ids[self._gone], self._files[self._gone]
        self._ids[self._gone] = _BLANK
        self._gone += 1
        self._first += 1
        self._seen.pop(old, None)
        if self._gone * _GONE_SHARE > len(self._ids):
            del self._ids[: self._gone], self._files[: self._gone]
            self._gone = 0
        return old_file, old

    def move(self, number: int, file_id: int) -> None:
        """Note that an id stands in another file now."""
        self._files[self._gone + number - self._first] = file_id

    def entries(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield number, id and file of all ids, oldest first."""
        for index in range(self._gone, len(self._ids)):
            if self._ids[index]:
                yield self._first + index - self._gone, self._ids[index], self._files[index]

    def standing_in(
        self, file_id: int, number: int, *, size_bytes: int, overhead_bytes: int, looked_at: int
    ) -> tuple[list[tuple[int, bytes]], int]:
        """Return ids that stand in a file, and the number at which to go on.

        Args:
            file_id: The file.
            number: Number to begin with, `first` or a higher one.
            size_bytes: Stop when the ids are this long.
            overhead_bytes: Counted for each beside its bytes.
            looked_at: Stop after this many numbers.
        """
        found: list[tuple[int, bytes]] = []
        index = self._gone + number - self._first
        for text, stands_in in zip(
            self._ids[index : index + looked_at],
            self._files[index : index + looked_at],
            strict=True,
        ):
            if stands_in == file_id and text:
                found.append((number, text))
                size_bytes -= len(text) + overhead_bytes
            number += 1
            if size_bytes <= 0:
                break
        return found, number

    def newest(self, limit: int) -> list[bytes]:
        """Return up to `limit` ids, newest first."""
        return list(islice((text for text in reversed(self._ids) if text), limit))

    # --- recovery -------------------------------------------------------------------------------

    def restore(self, number: int, text: bytes, file_id: int) -> None:
        """Take an id that a recovery found; of one number the latest record counts."""
        self._found[number] = (text, file_id)
        if len(self._found) > 2 * self.size + 1024:
            self._forget_low()

    def _forget_low(self) -> None:
        """Keep what may count: the highest numbers, and the highest alone where none counts."""
        for number in sorted(self._found)[: -max(self.size, 1)]:
            del self._found[number]

    def settle(self, floor: int) -> None:
        """Make what was found the window.

        Args:
            floor: Numbers up to this one are void.
        """
        found, self._found = self._found, {}
        last = max(max(found, default=0), floor)
        first = max(last - self.size, floor, min(found, default=last + 1) - 1) + 1
        self._first = first
        numbers = range(first, last + 1)
        self._seen = {found[number][0]: None for number in numbers if number in found}
        latest = {found[number][0]: number for number in numbers if number in found}
        for number in numbers:
            text, file_id = found.get(number, (_BLANK, 0))
            if text and latest[text] != number:
                text, file_id = _BLANK, 0  # displaced once, and seen again since
            self._ids.append(text)
            self._files.append(file_id)

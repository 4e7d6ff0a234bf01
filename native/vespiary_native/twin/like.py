"""The parts of a LIKE pattern, found in a text: the twin of `like.c`.

Owns the same search, with one whole number for the bits of a part. Must never look at a place of
the text twice. Used by `vespiary_native.like`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class _Search(NamedTuple):
    """One part.

    Attributes:
        masks: For each of its characters the places where it stands, and those of any character.
        anything: The places of any character.
        last: Its last place.
    """

    masks: dict[str, int]
    anything: int
    last: int


def finder_of(parts: Sequence[Sequence[str | None]]) -> Callable[[str, int, int], bool]:
    """See `vespiary_native.like.finder_of`."""
    searches = [_search(part) for part in parts]

    def find(text: str, begin: int, end: int) -> bool:
        for search in searches:
            begin = _found(search, text, begin, end)
            if begin < 0:
                return False
        return True

    return find


def _search(part: Sequence[str | None]) -> _Search:
    anything = sum(1 << index for index, character in enumerate(part) if character is None)
    masks: dict[str, int] = {}
    for index, character in enumerate(part):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << index
    return _Search(masks, anything, 1 << len(part) - 1)


def _found(search: _Search, text: str, begin: int, end: int) -> int:
    """Return where the first match of a part ends; -1: there is none."""
    masks, anything, last = search
    state = 0
    for index in range(begin, end):
        state = (state << 1 | 1) & masks.get(text[index], anything)
        if state & last:
            return index + 1
    return -1

"""The parts of a LIKE pattern between its first and last `%`, found in a text by C or by its twin.

Owns the choice (see `loader`), and the way of a text into C. Must never look at a place of the text
twice. Made by the broker's selectors, for patterns in which such a part has a `_`; what has none is
found by `str.find`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from vespiary_native import loader

PART_CHARACTERS_MAX: Final = 1024
"""Longest part."""
_ANY: Final = 0xFFFFFFFF

Part = Sequence[str | None]
"""Characters; None stands for any one."""


def finder_of(parts: Sequence[Part]) -> Callable[[str, int, int], bool]:
    """Return a function (text, from, to) that says whether all parts are found there, in order.

    Args:
        parts: The parts, of 1 to `PART_CHARACTERS_MAX` characters each.

    Raises:
        ValueError: A part is empty, or too long.
        MemoryError: There is no memory.
    """
    if not all(0 < len(part) <= PART_CHARACTERS_MAX for part in parts):
        raise ValueError(f"a part must have 1 to {PART_CHARACTERS_MAX} characters")
    if not loader.is_native():
        from vespiary_native.twin.like import finder_of as twin_finder

        return twin_finder(parts)
    ffi, lib = loader.ffi, loader.lib
    characters = [_ANY if one is None else ord(one) for one in chain.from_iterable(parts)]
    like = lib.vespiary_like_open(characters, [len(part) for part in parts], len(parts))
    if like == ffi.NULL:
        raise MemoryError("no memory for a LIKE pattern")
    like = ffi.gc(like, lib.vespiary_like_close)

    def find(text: str, begin: int, end: int) -> bool:
        points = ffi.from_buffer("uint32_t[]", text.encode("utf-32-le", "surrogatepass"))
        return bool(lib.vespiary_like_match(like, points, begin, end))

    return find

"""LIKE: patterns with `%` (any characters, or none) and `_` (one character).

Owns the matching, and what it costs. Must never go back over what it has matched: with the parts
between the `%` taken leftmost, a match is found without that if there is one, so no pattern takes
more than one pass over the value. A regular expression for all of a pattern would try each place of
each `.*` against all the others. Parts without `_` are found by the text's own search, parts with
`_` by Shift-And, which is C's (`vespiary_native.like`). Called by `compiling` and `possibility`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from vespiary_native.like import finder_of

PATTERN_CHARACTERS_MAX: Final = 1024
"""Longest pattern."""
_FIND_CHARACTERS_MAX: Final = 32
"""Longest text that `str.find` looks for: it may take the product of both lengths for longer ones,
and the search of `re` for a plain text, which goes over the value once, does not."""
_LITERAL_US: Final = 0.2
_PASS_US: Final = 250.0
_WORD_US: Final = 70.0
_WORD_CHARACTERS: Final = 64

_OF: Final[dict[str, str | None]] = {"_": None}
_Part = list[str | None]
"""Characters; None stands for any one."""


class PatternError(ValueError):
    """A pattern is wrong; the text says how."""


@lru_cache(maxsize=128)
def compile_like(pattern: str, escape: str = "") -> Callable[[str], bool]:
    """Return a function that says whether a text matches a pattern.

    Args:
        pattern: The pattern, at most `PATTERN_CHARACTERS_MAX` characters.
        escape: Character that makes the next one mean itself; empty for none.

    Raises:
        PatternError: It is too long, or the escape character stands before nothing that it could
            escape.
    """
    parts = _parts_of(pattern, escape)
    if len(parts) == 1:
        return _whole(parts[0])
    first, *middle, last = parts
    starts, ends = _anchored(first), _anchored(last)
    start_length, end_length = len(first), len(last)
    shortest = sum(map(len, parts))
    is_found = _finder([part for part in middle if part])

    def matches(text: str) -> bool:
        if len(text) < shortest or not starts(text, 0):
            return False
        end = len(text) - end_length
        return ends(text, end) and is_found(text, start_length, end)

    return matches


def cost_us(pattern: str, escape: str = "") -> float:
    """Return what a match costs at most, in microseconds, with a value of 64 KiB.

    Args:
        pattern: A pattern that was compiled.
        escape: As there.
    """
    first, *others = _parts_of(pattern, escape)
    anchored = [first, others.pop()] if others else [first]
    cost = sum(1 + _LITERAL_US * (1 + part.count(None)) for part in anchored)
    middle = [part for part in others if part]
    if middle:
        cost += _PASS_US + len(middle)
    if any(None in part for part in middle):
        cost += _WORD_US * -(-max(map(len, middle)) // _WORD_CHARACTERS)
    return cost


def _parts_of(pattern: str, escape: str) -> list[_Part]:
    """Return what stands between the `%`, in order; one part if there is none."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise PatternError(
            f"the pattern has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} are allowed"
        )
    if not escape or escape not in pattern:
        return [[_OF.get(one, one) for one in text] for text in pattern.split("%")]
    parts: list[_Part] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise PatternError(
                    f"the escape character {escape!a} may stand only before %, _ and itself"
                )
            parts[-1].append(escaped)
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    return parts


def beginning_of(pattern: str, escape: str = "") -> tuple[str, bool]:
    """Return how every text that matches begins.

    Args:
        pattern: A pattern that was compiled.
        escape: As there.

    Returns:
        The beginning, and whether nothing may follow it.
    """
    first, *others = _parts_of(pattern, escape)
    end = first.index(None) if None in first else len(first)
    return "".join(map(str, first[:end])), not others and end == len(first)


def _literals(part: _Part) -> list[tuple[int, str]]:
    """Return the texts between the `_` of a part, and where in it they stand."""
    found: list[tuple[int, str]] = []
    begin = 0
    for end in [*(index for index, one in enumerate(part) if one is None), len(part)]:
        if end > begin:
            found.append((begin, "".join(map(str, part[begin:end]))))
        begin = end + 1
    return found


def _anchored(part: _Part) -> Callable[[str, int], bool]:
    literals = _literals(part)
    if not literals:
        return lambda _text, _position: True
    if len(literals) == 1:
        offset, literal = literals[0]
        return lambda text, position: text.startswith(literal, position + offset)
    return lambda text, position: all(
        text.startswith(literal, position + offset) for offset, literal in literals
    )


def _whole(part: _Part) -> Callable[[str], bool]:
    if None not in part:
        return "".join(map(str, part)).__eq__
    length, fits = len(part), _anchored(part)
    return lambda text: len(text) == length and fits(text, 0)


def _finder(parts: list[_Part]) -> Callable[[str, int, int], bool]:
    """Return a function (text, from, to) that says whether all parts are there, in order."""
    if not parts:
        return lambda _text, _position, _end: True
    if any(None in part for part in parts):
        return finder_of(parts)
    searches = [_search("".join(map(str, part))) for part in parts]

    def is_found(text: str, position: int, end: int) -> bool:
        for search in searches:
            position = search(text, position, end)
            if position < 0:
                return False
        return True

    return is_found


def _search(literal: str) -> Callable[[str, int, int], int]:
    """Return a search: (text, from, to) to the end of the first match, or -1."""
    length = len(literal)
    if length > _FIND_CHARACTERS_MAX:
        search = re.compile(re.escape(literal)).search

        def find_long(text: str, position: int, end: int) -> int:
            found = search(text, position, end)
            return found.end() if found is not None else -1

        return find_long

    def find(text: str, position: int, end: int) -> int:
        found = text.find(literal, position, end)
        return found + length if found >= 0 else -1

    return find

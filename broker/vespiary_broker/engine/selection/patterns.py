"""LIKE: patterns with `%` (any characters, or none) and `_` (one character).

Owns the matching. Must never go back over what it has matched: with the parts between the `%` taken
leftmost, a match is found without that if there is one, so no pattern takes more than one pass over
the value. Regular expressions would try each place of each `.*` against all the others.
Called by `compiling`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PATTERN_CHARACTERS_MAX: Final = 1024
"""Longest pattern; with headers of 64 KiB a search takes some 10 ms at the worst."""

_Part = list[str | None]
"""Characters; None stands for any one."""


class PatternError(ValueError):
    """A pattern is wrong; the text says how."""


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
    searches = [_search(part) for part in middle if part]

    def matches(text: str) -> bool:
        if len(text) < shortest or not starts(text, 0):
            return False
        end = len(text) - end_length
        if not ends(text, end):
            return False
        position = start_length
        for search in searches:
            position = search(text, position, end)
            if position < 0:
                return False
        return True

    return matches


def _parts_of(pattern: str, escape: str) -> list[_Part]:
    """Return what stands between the `%`, in order; one part if there is none."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise PatternError(
            f"the pattern has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} are allowed"
        )
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
    text = ""
    for index, character in enumerate([*part, None]):
        if character is not None:
            text += character
        elif text:
            found.append((index - len(text), text))
            text = ""
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


def _search(part: _Part) -> Callable[[str, int, int], int]:
    """Return a search: (text, from, to) to the end of the first match, or -1."""
    length = len(part)
    if None not in part:
        literal = "".join(map(str, part))

        def find(text: str, position: int, end: int) -> int:
            found = text.find(literal, position, end)
            return found + length if found >= 0 else -1

        return find
    return _shifting(part)


def _shifting(part: _Part) -> Callable[[str, int, int], int]:
    """Search with one bit for each character of the part that matches so far (Shift-And)."""
    anything = sum(1 << index for index, character in enumerate(part) if character is None)
    masks: dict[str, int] = {}
    for index, character in enumerate(part):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << index
    last = 1 << len(part) - 1

    def find(text: str, position: int, end: int) -> int:
        state = 0
        for index in range(position, end):
            state = (state << 1 | 1) & masks.get(text[index], anything)
            if state & last:
                return index + 1
        return -1

    return find

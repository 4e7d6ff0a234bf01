"""Numbers, times and names as people read them, safe to put anywhere.

Owns: units, rounding, what becomes of characters that a page or a terminal must not get. Names are
data of strangers: control characters and marks that turn the direction of text are replaced. Must
never mark up: that is `markup`. Called by all of this package.
"""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import Final

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_COUNT_UNITS: Final = ("", "k", "M", "G", "T", "P", "E")
_SPANS: Final = (
    (86400.0, "d", "day"),
    (3600.0, "h", "hour"),
    (60.0, "min", "minute"),
    (1.0, "s", "second"),
)
_TURNS: Final = frozenset(
    "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_YEAR_S: Final = 365 * 86400.0
_TEN: Final = 10
_HUNDRED: Final = 100


def clean(name: str) -> str:
    """Return a name without what could harm a page or a terminal; each such character becomes �."""
    return "".join(
        "�"
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        or c in _TURNS
        or ord(c) & 0xFFFE == 0xFFFE
        else c
        for c in name
    )


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0
        if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def shorten(name: str, width: int) -> str:
    """Return a clean name of at most so many columns, with … in its middle if it was longer.

    Args:
        name: Any text.
        width: Columns, at least 1.
    """
    name = clean(name)
    if cells(name) <= width:
        return name
    head, tail, taken = "", "", 1
    front, back = 0, len(name)
    while front < back:
        is_head = cells(head) <= cells(tail)
        c = name[front] if is_head else name[back - 1]
        if taken + cells(c) > width:
            break
        taken += cells(c)
        if is_head:
            head, front = head + c, front + 1
        else:
            tail, back = c + tail, back - 1
    return f"{head}…{tail}"


def count(number: float) -> str:
    """Return a whole number with separators, as `1 234 567` with thin no-break spaces."""
    return f"{round(number):,}".replace(",", "\u202f")


def plural(number: float, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 file`, `28 files`."""
    return f"{count(number)} {one if round(number) == 1 else many or one + 's'}"


def _digits(value: float) -> str:
    if value < _TEN and value != int(value):
        return f"{value:.1f}"
    return f"{value:.0f}"


def short_count(number: float) -> str:
    """Return a number in at most about five characters: `950`, `1.2k`, `35M`."""
    step = 0
    value = float(number)
    while abs(value) >= 999.5 and step < len(_COUNT_UNITS) - 1:
        value, step = value / 1000, step + 1
    text = _digits(abs(value)).removesuffix(".0")
    return f"{'-' if number < 0 else ''}{text}{_COUNT_UNITS[step]}"


def size(number: float) -> str:
    """Return bytes in binary units: `0 B`, `1.5 KiB`, `28 MiB`."""
    step = 0
    value = float(number)
    while abs(value) >= 1023.5 and step < len(_BYTE_UNITS) - 1:
        value, step = value / 1024, step + 1
    text = _digits(abs(value)).removesuffix(".0")
    return f"{'-' if number < 0 else ''}{text} {_BYTE_UNITS[step]}"


def share(part: float, whole: float) -> str:
    """Return a part in percent, `-` of nothing; some is never 0 %, less than all never 100 %."""
    if whole <= 0:
        return "-"
    percent = _HUNDRED * part / whole
    if 0 < percent < 1:
        return "< 1 %"
    if _HUNDRED - 1 < percent < _HUNDRED:
        return "> 99 %"
    return f"{percent:.0f} %"


def span(seconds: float) -> str:
    """Return a length of time in its largest unit, spelled out: `4 days`, `0.3 seconds`."""
    if abs(seconds) >= 2 * _YEAR_S:
        return f"{count(seconds / _YEAR_S)} years"
    for unit, _, name in _SPANS:
        if abs(seconds) >= 2 * unit or unit == 1:
            value = seconds / unit
            text = _digits(value) if unit == 1 and abs(value) < _TEN else count(value)
            return f"{text} {name}{'' if text in ('1', '1.0') else 's'}"
    raise AssertionError(seconds)


def short_span(seconds: float) -> str:
    """Return an edge of a bin of ages: `10 s`, `6 h`, `7 d`."""
    for unit, short, _ in _SPANS:
        if abs(seconds) >= unit:
            return f"{_digits(seconds / unit).removesuffix('.0')} {short}"
    return f"{_digits(seconds)} s" if seconds else "0"


def instant(at: datetime | None) -> str:
    """Return a time in UTC to the second, `-` for none."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def age_s(at: datetime | None, now: datetime) -> float:
    """Return seconds from a time until now; NaN for none, negative if the clock was wrong."""
    return math.nan if at is None else (now - at).total_seconds()


def age(at: datetime | None, now: datetime) -> str:
    """Return how old something is: `4 days`, `-` for none, `in the future` by clock skew."""
    seconds = age_s(at, now)
    if math.isnan(seconds):
        return "-"
    return "in the future" if seconds < 0 else span(seconds)

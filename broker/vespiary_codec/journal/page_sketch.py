"""The sketch of a page: what its messages' headers may hold, in 2 KiB (journal-format §7.4).

Owns the encoding, and what can be told from it. Must never say that a value is in no message when
it is in one: all that is kept is a bound or a Bloom filter, so "no" is certain and "yes" is not.
Made by `vespiary_native.page_sketch` when a page is written; it stands in the page's header. Read
by those who would else have to read the page.

Layout:

    0    48 bytes: version, flags, number of names, bounds of priority, time, size, expiry
    48   per name: 8 bytes (lengths, flags), 16 bytes lowest and highest number (with flag 2),
         the name, the lowest and the highest text (with flag 16), the filter
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from vespiary_codec.checksum import crc32c

SKETCH_VERSION: Final = 1
SKETCH_BYTES_MAX: Final = 2048
NAMES_MAX: Final = 32
NAME_BYTES_MAX: Final = 255
BOUND_BYTES: Final = 32
"""So much of the lowest and the highest text is kept."""
FILTER_BYTES_MIN: Final = 8
FILTER_BYTES_MAX: Final = 1024
FILTER_PROBES: Final = 6
NO_EXPIRY_MS: Final = 2**64 - 1

IS_COMPLETE: Final = 1
"""Flag of a sketch: a name that is not in it stands in no message."""

IN_ALL: Final = 1
HAS_NUMBERS: Final = 2
HAS_OTHERS: Final = 4
IS_WHOLE: Final = 8
HAS_BOUNDS: Final = 16
"""Flags of a name."""

SKETCH: Final = struct.Struct("<BBBBBBHQQQQQ")
"""version, flags, lowest and highest priority, flags that all records have, flags that any has,
number of names, first and last time of arrival, least and greatest size, first expiry."""

NAME: Final = struct.Struct("<BBBBHH")
"""length of the name, flags, length of the lowest text, of the highest, of the filter, zero."""

NUMBERS: Final = struct.Struct("<dd")
"""lowest, highest."""

_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_WORD: Final = 0xFFFFFFFF


def probes(text: bytes) -> list[int]:
    """Return the bits of a text in a filter, before they are cut to its size (a power of two)."""
    mixed = crc32c(text) * _MULTIPLIER
    start, step = mixed & _WORD, mixed >> 32 & _WORD | 1
    return [start + number * step for number in range(FILTER_PROBES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSketch:
    """What the values of one header may be.

    Attributes:
        is_in_all: Every message has it.
        numbers: Lowest and highest of those values that can be read as numbers; None: none can.
        has_others: Some value is a text that is no number.
        is_whole: All numbers are written as whole ones, in the shortest way.
        low: The first 32 bytes of the lowest text; None: not known.
        high: Those of the highest.
        bloom: The filter of all texts; empty: there is none.
    """

    is_in_all: bool
    numbers: tuple[float, float] | None
    has_others: bool
    is_whole: bool
    low: bytes | None
    high: bytes | None
    bloom: bytes

    def may_equal(self, text: bytes) -> bool:
        """Whether a value may be this text."""
        if self.low is not None and self.high is not None:
            cut = text[:BOUND_BYTES]
            if cut < self.low or cut > self.high:
                return False
        if not self.bloom:
            return True
        mask = len(self.bloom) * 8 - 1
        return all(self.bloom[(bit & mask) >> 3] >> (bit & 7) & 1 for bit in probes(text))

    def may_begin(self, prefix: bytes) -> bool:
        """Whether a value may begin so."""
        if self.low is None or self.high is None:
            return True
        cut = prefix[:BOUND_BYTES]
        return self.low[: len(cut)] <= cut <= self.high

    @property
    def only(self) -> bytes | None:
        """The one text that all values are; None: there are others, or they are not known."""
        is_known = self.low is not None and len(self.low) < BOUND_BYTES
        return self.low if is_known and self.low == self.high else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSketch:
    """What the messages of a page may be.

    Attributes:
        is_complete: A name that is not in `names` stands in no message.
        priorities: Lowest and highest.
        flags_of_all: Flags that all records have.
        flags_of_any: Flags that a record has.
        times_ms: First and last time of arrival, milliseconds since 1970.
        sizes_bytes: Least and greatest length of headers and body.
        first_expiry_ms: No message expires earlier; `NO_EXPIRY_MS`: none does.
        names: Headers by name.
    """

    is_complete: bool
    priorities: tuple[int, int]
    flags_of_all: int
    flags_of_any: int
    times_ms: tuple[int, int]
    sizes_bytes: tuple[int, int]
    first_expiry_ms: int
    names: dict[bytes, NameSketch]


def sketch_room(address_bytes: int, header_bytes: int) -> int:
    """Return how large the sketch in a page's header may be.

    Args:
        address_bytes: Length of the page's address.
        header_bytes: What else the header holds.
    """
    room = min(SKETCH_BYTES_MAX, header_bytes - address_bytes)
    return room if room >= SKETCH.size else 0


def decode_page_sketch(data: bytes) -> PageSketch | None:
    """Return a sketch; None if it is none that this version can read.

    Args:
        data: As it stands in a header whose checksum was found right.
    """
    if len(data) < SKETCH.size or data[0] != SKETCH_VERSION:
        return None
    _, flags, *fields = SKETCH.unpack_from(data)
    lowest, highest, of_all, of_any, count, first, last, least, most, expiry = fields
    names: dict[bytes, NameSketch] = {}
    at = SKETCH.size
    try:
        for _ in range(count):
            at = _decode_name(data, at, names)
    except struct.error:
        return None
    if at != len(data):
        return None
    return PageSketch(
        is_complete=bool(flags & IS_COMPLETE),
        priorities=(lowest, highest),
        flags_of_all=of_all,
        flags_of_any=of_any,
        times_ms=(first, last),
        sizes_bytes=(least, most),
        first_expiry_ms=expiry,
        names=names,
    )


def _decode_name(data: bytes, at: int, names: dict[bytes, NameSketch]) -> int:
    """Decode what stands at an offset; return where the next one does."""
    length, flags, low_bytes, high_bytes, filter_bytes, _ = NAME.unpack_from(data, at)
    at += NAME.size
    numbers = None
    if flags & HAS_NUMBERS:
        numbers = NUMBERS.unpack_from(data, at)
        at += NUMBERS.size
    low_at = at + length
    high_at = low_at + low_bytes
    filter_at = high_at + high_bytes
    has_bounds = bool(flags & HAS_BOUNDS)
    names[data[at:low_at]] = NameSketch(
        is_in_all=bool(flags & IN_ALL),
        numbers=numbers,
        has_others=bool(flags & HAS_OTHERS),
        is_whole=bool(flags & IS_WHOLE),
        low=data[low_at:high_at] if has_bounds else None,
        high=data[high_at:filter_at] if has_bounds else None,
        bloom=data[filter_at : filter_at + filter_bytes],
    )
    end: int = filter_at + filter_bytes
    return end

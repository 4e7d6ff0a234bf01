"""The sketch of a page, in Python: the specification of `native/src/page_sketch.c`.

Owns the way from a page's records to its sketch (bytes: journal-format §7.4). Pure. What selectors
read is written here a second time, since this package must not know the engine: a test holds both
against each other.

Names with a backslash are left out: a selector that asks for such a name, or one with a colon or an
end of line in it, is never answered by a sketch. So the name of a line is what it says, and no
escapes have to be looked at in it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vespiary_codec.journal.page import PLACE, QUEUE, RECORD, TRAILER, TRAILER_BYTES, TRAILER_MAGIC
from vespiary_codec.journal.page_sketch import (
    BOUND_BYTES,
    FILTER_BYTES_MAX,
    FILTER_BYTES_MIN,
    HAS_BOUNDS,
    HAS_NUMBERS,
    HAS_OTHERS,
    IN_ALL,
    IS_COMPLETE,
    IS_WHOLE,
    NAME,
    NAME_BYTES_MAX,
    NAMES_MAX,
    NO_EXPIRY_MS,
    NUMBERS,
    SKETCH,
    SKETCH_VERSION,
    probes,
)
from vespiary_codec.journal.record import ADD
from vespiary_codec.journal.record import PLACE as RECORD_PLACE
from vespiary_codec.journal.record_types import RecordFlag
from vespiary_native.values_pages import PageView

_STOMP: Final = 1
_NUMBER: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SHORTEST: Final = re.compile(rb"0|-?[1-9][0-9]{0,17}")
_NUMBER_CHARACTERS_MAX: Final = 64
_EXPIRY_DIGITS: Final = 18
_EXPIRY_MAX: Final = 10**18
_EXACT_MAX: Final = 2.0**53
_FILTER_SMALL: Final = 64
_ESCAPE: Final = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"c": b":", b"r": b"\r", b"\\": b"\\"}


class _Message(NamedTuple):
    """A record: its row in the index, when it came, its properties."""

    flags: int
    priority: int
    size_bytes: int
    time_ms: int
    properties: bytes


def page_sketch(pieces: Sequence[PageView], room: int) -> bytes:
    """Return the sketch of a page (see `vespiary_native.page_sketch`)."""
    footer_piece = pieces[-1] if pieces else None
    if footer_piece is None or len(footer_piece.data) < TRAILER_BYTES:
        raise ValueError("the parts are no page")
    footer = footer_piece.data
    fields = TRAILER.unpack_from(footer, len(footer) - TRAILER_BYTES)
    queues, places, records = fields[6], fields[7], fields[8]
    start = queues * QUEUE.size + places * PLACE.size
    end = start + records * RECORD.size
    if (fields[0], fields[4]) != (TRAILER_MAGIC, footer_piece.offset) or (
        end > len(footer) - TRAILER_BYTES
    ):
        raise ValueError("the parts are no page")
    if room < SKETCH.size or not records:
        return b""
    messages: list[_Message] = []
    for row in RECORD.iter_unpack(footer[start:end]):
        record = _memory(pieces, row[0], ADD.size + row[3] * RECORD_PLACE.size + row[2])
        if row[6] != _STOMP:
            return b""  # its properties are no lines
        (time_ms,) = struct.unpack_from("<Q", record, 8)
        properties = bytes(record[ADD.size + row[3] * RECORD_PLACE.size :])
        messages.append(_Message(row[4], row[5], row[1] + row[2], time_ms, properties))
    return _Sketching(messages).encode(room)


def _memory(pieces: Sequence[PageView], offset: int, length: int) -> memoryview:
    for piece in pieces:
        at = offset - piece.offset
        if at >= 0 and at + length <= len(piece.data):
            return piece.data[at : at + length]
    raise ValueError(f"no part has the record at {offset}")


class _Name:
    """What is known of one header."""

    def __init__(self) -> None:
        self.count = 0
        self.latest = -1
        self.values: set[bytes] = set()
        self.numbers: tuple[float, float] | None = None
        self.has_others = False
        self.is_whole = True
        self.has_bounds = False
        self.bloom = b""

    def note(self, value: bytes) -> None:
        """Take note of a value that was not there before."""
        self.values.add(value)
        number = _number_of(value)
        if number is None:
            self.has_others = True
            return
        self.is_whole = self.is_whole and _SHORTEST.fullmatch(value) is not None
        is_exact = abs(number) < _EXACT_MAX
        low = number if is_exact else math.nextafter(number, -math.inf)
        high = number if is_exact else math.nextafter(number, math.inf)
        lowest, highest = self.numbers or (low, high)
        self.numbers = (min(lowest, low), max(highest, high))  # 0 and -0: the former stays, as in C

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """Return the lowest and the highest text, as far as they are kept."""
        return min(self.values)[:BOUND_BYTES], max(self.values)[:BOUND_BYTES]

    def filter(self) -> bytes:
        """Return the smallest filter with at most half of its bits set; empty: there is none."""
        bits = 0
        size = FILTER_BYTES_MAX * 8
        for value in self.values:
            for bit in probes(value):
                bits |= 1 << (bit & size - 1)
        if bits.bit_count() * 2 > size:
            return b""
        while size > FILTER_BYTES_MIN * 8:
            half = size // 2
            folded = bits >> half | bits & (1 << half) - 1
            if folded.bit_count() * 2 > half:
                break
            bits, size = folded, half
        return bits.to_bytes(size // 8, "little")


def _number_of(value: bytes) -> float | None:
    """Return the number that a selector reads in a value, as a double."""
    if len(value) > _NUMBER_CHARACTERS_MAX:
        return None
    text = value.strip(b" \t")
    return float(text) if _NUMBER.fullmatch(text) else None


def _unescaped(value: bytes) -> bytes:
    """Return a value without escapes; as it is if one of them is none."""
    if any(found not in _ESCAPES for found in _ESCAPE.findall(value)):
        return value
    return _ESCAPE.sub(lambda found: _ESCAPES[found[1]], value)


def _lines(properties: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and values that a selector may ask for."""
    for line in properties.split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon and name and b"\\" not in name:
            yield name, value


class _Sketching:
    """All that a sketch is made of."""

    def __init__(self, messages: list[_Message]) -> None:
        self._messages = messages
        self._names: dict[bytes, _Name] = {}
        self._is_complete = True
        self._expiry_ms = NO_EXPIRY_MS
        for number, message in enumerate(messages):
            for name, value in _lines(message.properties):
                if name == b"expires" and message.flags & RecordFlag.SPECIAL:
                    self._note_expiry(value)
                self._note(number, message, name, value)

    def _note_expiry(self, value: bytes) -> None:
        if value.isdigit():
            digits = value.lstrip(b"0")
            expiry_ms = int(digits or b"0") if len(digits) <= _EXPIRY_DIGITS else _EXPIRY_MAX
            self._expiry_ms = min(self._expiry_ms, expiry_ms or NO_EXPIRY_MS)

    def _note(self, number: int, message: _Message, name: bytes, value: bytes) -> None:
        facts = self._names.get(name)
        if facts is None:
            if len(self._names) == NAMES_MAX or len(name) > NAME_BYTES_MAX:
                self._is_complete = False
                return
            facts = self._names[name] = _Name()
        if facts.latest == number:
            return  # the first of a name counts
        facts.latest = number
        facts.count += 1
        if message.flags & RecordFlag.ESCAPED and b"\\" in value:
            value = _unescaped(value)
        if value not in facts.values:
            facts.note(value)

    def _choose(self, left: int) -> None:
        """Decide what the room is used for."""
        for number, (name, facts) in enumerate(list(self._names.items())):
            size = NAME.size + len(name) + (NUMBERS.size if facts.numbers else 0)
            if size > left:
                self._is_complete = False
                self._names = dict(list(self._names.items())[:number])
                break
            left -= size
        for facts in self._names.values():
            facts.bloom = facts.filter()
        size = FILTER_BYTES_MIN
        while size <= _FILTER_SMALL:
            left = self._take_filters(size, left)
            size *= 2
        for facts in self._names.values():
            both = sum(map(len, facts.bounds))
            facts.has_bounds = both <= left
            left -= both if facts.has_bounds else 0
        while size <= FILTER_BYTES_MAX:
            left = self._take_filters(size, left)
            size *= 2

    def _take_filters(self, size: int, left: int) -> int:
        for facts in self._names.values():
            if len(facts.bloom) == size:
                if size <= left:
                    left -= size
                else:
                    facts.bloom = b""
        return left

    def encode(self, room: int) -> bytes:
        """Return the sketch, of at most `room` bytes."""
        self._choose(room - SKETCH.size)
        messages = self._messages
        of_all, of_any = 0xFF, 0
        for message in messages:
            of_all &= message.flags
            of_any |= message.flags
        priorities = [message.priority for message in messages]
        times = [message.time_ms for message in messages]
        sizes = [message.size_bytes for message in messages]
        head = SKETCH.pack(
            SKETCH_VERSION,
            IS_COMPLETE if self._is_complete else 0,
            min(priorities),
            max(priorities),
            of_all,
            of_any,
            len(self._names),
            min(times),
            max(times),
            min(sizes),
            max(sizes),
            self._expiry_ms,
        )
        return head + b"".join(self._encode_name(*item) for item in self._names.items())

    def _encode_name(self, name: bytes, facts: _Name) -> bytes:
        low, high = facts.bounds if facts.has_bounds else (b"", b"")
        flags = (
            (IN_ALL if facts.count == len(self._messages) else 0)
            | (HAS_NUMBERS if facts.numbers else 0)
            | (HAS_OTHERS if facts.has_others else 0)
            | (IS_WHOLE if facts.is_whole else 0)
            | (HAS_BOUNDS if facts.has_bounds else 0)
        )
        head = NAME.pack(len(name), flags, len(low), len(high), len(facts.bloom), 0)
        numbers = NUMBERS.pack(*facts.numbers) if facts.numbers else b""
        return head + numbers + name + low + high + facts.bloom

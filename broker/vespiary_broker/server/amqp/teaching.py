"""What a link teaches the core: messages that say the same before their bodies as the one before.

Owns the choice of what is taught, and what may differ between such messages: the end of a
message-id, and a creation-time, as stock clients of JMS give each message another one. Must never
teach what needs Python for each message. Called by `receiving`; owner: its connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from vespiary_broker.engine.core import (
    ENCODED_ID,
    LESSON_BYTES_MAX,
    TIME_BYTES,
    AmqpLesson,
    AmqpRange,
)
from vespiary_broker.engine.message_times import NO_TIMES
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.server.amqp.storing import BEFORE_BODY, BODY_HEAD_BYTES, Taken
from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Decoder,
    Found,
    MessageProperties,
    read_sections,
)
from vespiary_codec.wire.amqp.native_part import NATIVE
from vespiary_codec.wire.stomp.properties import NATIVE as NATIVE_MARK

PATIENCE: Final = 16
"""Messages that were different from the one before, until only some are looked at."""
ROUND: Final = 64
"""Of so many two are looked at then."""

_ID_LINE: Final = b"\nJMSMessageID:"
_TIME_LINE: Final = b"\ntimestamp:"
_PLAIN_END: Final = re.compile(rb"[0-9A-Za-z_-]+\Z")
_CREATION_TIME: Final = 9
"""Its place among the fields of the properties."""
_SHORT_STRING: Final = 0xA1
_SHORT_LIST: Final = 0xC0
_EMPTY_LIST: Final = 0x45


class Lessons:
    """Finds what one link may teach.

    Args:
        limits: How much of each value is read.
    """

    def __init__(self, limits: AmqpLimits) -> None:
        self._limits = limits
        self._last: tuple[bytes, tuple[AmqpRange, ...]] | None = None
        self._misses = self._seen = 0

    def note(
        self,
        key: bytes,
        taken: Taken,
        message: Outgoing,
        target: Target,
        teach: Callable[[AmqpLesson], None],
    ) -> None:
        """Look at a message that was sent; teach what follows if it is like the one before.

        Args:
            key: It, up to and with the format code of its body's value; empty: it has no such body.
            taken: It, read.
            message: It, as it was sent.
            target: Where it went.
            teach: Teaches the core; not kept, since who teaches has this.
        """
        self._seen += 1
        if self._misses > PATIENCE and self._seen % ROUND > 1:
            return
        if not key or not is_plain(taken, message, target):
            self._last = None
            return
        ranges = tuple(differing(key, message.properties, self._limits))
        found = _masked(key, ranges), ranges
        if found != self._last:
            self._last = found
            self._misses += 1
            return
        self._misses = 0
        if len(key) + len(message.properties) <= LESSON_BYTES_MAX:
            teach(
                AmqpLesson(
                    key,
                    message.properties,
                    target.taught_handle,
                    message.is_persistent,
                    message.is_escaped,
                    ranges,
                )
            )


def is_plain(taken: Taken, message: Outgoing, target: Target) -> bool:
    """Whether nothing about messages like this one, or their address, needs Python for each.

    Args:
        taken: The message, read.
        message: The message, as it was sent.
        target: Where it went.
    """
    return (
        target.is_teachable
        and target.switch is None
        and not message.is_special
        and not message.duplicate_id
        and message.large is None
        and taken.times(0) == NO_TIMES
    )


def differing(key: bytes, stored: bytes, limits: AmqpLimits) -> Iterator[AmqpRange]:
    """Yield what may differ between messages: the end of a message-id, a creation-time.

    Args:
        key: A message up to and with the format code of its body's value.
        stored: What is stored of that: lines, NUL and native part.
        limits: How much of each value is read.
    """
    native_at = stored.index(NATIVE_MARK) + len(NATIVE_MARK) + NATIVE.size
    for place, value in read_sections(key[:-BODY_HEAD_BYTES], limits):
        if isinstance(value, MessageProperties):
            fields = _fields(key, place, limits)
            shift = native_at - place.begin
            if type(value.message_id) is str:
                yield from _end_of_id(key, stored, fields[0], shift)
            if value.creation_time is not None and value.creation_time >= 0:
                at, _ = fields[_CREATION_TIME]
                begin, end = _line(stored, _TIME_LINE)
                digits = str(int(value.creation_time)).encode()
                if stored[begin:end] == digits:
                    first = at + 1
                    yield AmqpRange(first, TIME_BYTES, begin, len(digits), first + shift, True)
        if place.section in BEFORE_BODY:
            native_at += place.end - place.begin


def _end_of_id(
    key: bytes, stored: bytes, field: tuple[int, int], shift: int
) -> Iterator[AmqpRange]:
    """Yield the characters at the end of a message-id that look the same in its line."""
    at, end = field
    text_at = at + (2 if key[at] == _SHORT_STRING else 5)
    found = _PLAIN_END.search(key[text_at:end])
    if found is None or found[0].startswith(ENCODED_ID):
        return
    length = len(found[0])
    begin, line_end = _line(stored, _ID_LINE)
    if begin <= line_end - length and stored[line_end - length : line_end] == found[0]:
        first = end - length
        yield AmqpRange(first, length, line_end - length, length, first + shift)


def _line(stored: bytes, start: bytes) -> tuple[int, int]:
    """Return where the value of a header line begins and ends; (0, 0): there is none."""
    at = stored.find(start)
    return (0, 0) if at < 0 else (at + len(start), stored.index(b"\n", at + 1))


def _fields(data: bytes, place: Found, limits: AmqpLimits) -> list[tuple[int, int]]:
    """Return where the fields of a section begin and end."""
    if data[place.value] == _EMPTY_LIST:
        return []
    decoder = Decoder(data, limits, place.value + (3 if data[place.value] == _SHORT_LIST else 9))
    found = []
    while decoder.at < place.end:
        begin = decoder.at
        decoder.value()
        found.append((begin, decoder.at))
    return found


def _masked(key: bytes, ranges: tuple[AmqpRange, ...]) -> bytes:
    """Return a key without what may differ."""
    masked = bytearray(key)
    for one in ranges:
        masked[one.at : one.at + one.length] = bytes(one.length)
    return bytes(masked)

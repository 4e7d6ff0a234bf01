"""What the core keeps of the sessions of a connection of AMQP, and of the links in them.

Owns the lessons: what messages say before their bodies, and what is stored of that. Never touches
a queue. Used by `amqp` and `amqp_sending`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vespiary_native.abc_amqp import (
    ENCODED_ID,
    LESSON_BYTES_MAX,
    LESSONS_BYTES_MAX,
    LESSONS_MAX,
    RANGES_MAX,
    STORED_BYTES_MAX,
    TIME_BYTES,
    AmqpLesson,
    AmqpRange,
)
from vespiary_native.twin.amqp_transfers import Outgoing

if TYPE_CHECKING:
    from vespiary_native.twin.state import Route

_BODY_HEAD_BYTES: Final = 4
_BODY_HEADS: Final = tuple(
    b"\0\x53" + bytes(each)
    for each in ((0x75, 0xA0), (0x75, 0xB0), (0x77, 0xA0), (0x77, 0xB0), (0x77, 0xA1), (0x77, 0xB1))
)
_STRINGS: Final = (0xA1, 0xB1)
_LONG: Final = 0xB0
_DIGITS_MAX: Final = 19
_TIME_MAX: Final = 2**63 - 1
_PLAIN: Final = re.compile(rb"[0-9A-Za-z_-]*")


class Lesson:
    """One lesson, and its route.

    Attributes:
        said: It.
        route: Where its messages go.
    """

    __slots__ = ("_code", "_key", "_segments", "route", "said")

    def __init__(self, said: AmqpLesson, route: Route) -> None:
        self.said = said
        self.route = route
        key = self._key = said.key
        self._code = key[-1]
        ends = [0, *(one.at + one.length for one in said.ranges)]
        begins = [*(one.at for one in said.ranges), len(key)]
        self._segments = [(at, key[at:end]) for at, end in zip(ends, begins, strict=True)]

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return len(self._key) + len(self.said.stored)

    def is_key(self, data: bytes) -> bool:
        """Whether bytes are a key, up to what may differ."""
        if not self.said.ranges:
            return data.startswith(self._key)
        return all(data.startswith(one, at) for at, one in self._segments) and all(
            _is_in(one, data[one.at : one.at + one.length]) for one in self.said.ranges
        )

    def body_of(self, data: bytes) -> bytes | None:
        """Return the value behind a key; None: it is not all that there is, or no text."""
        at = len(self._key)
        width = 1 if self._code < _LONG else 4
        body = data[at + width :]
        if len(data) < at + width or int.from_bytes(data[at : at + width], "big") != len(body):
            return None
        if self._code in _STRINGS:
            try:
                body.decode()
            except UnicodeDecodeError:
                return None
        return body

    def stored(self, data: bytes) -> bytes:
        """Return what is stored of a message in front of its body."""
        if not self.said.ranges:
            return self.said.stored
        made = bytearray(self.said.stored)
        for one in self.said.ranges:
            found = data[one.at : one.at + one.length]
            text = b"%d" % int.from_bytes(found, "big") if one.is_time else found
            made[one.native_at : one.native_at + one.length] = found
            made[one.line_at : one.line_at + one.line_length] = text
        return bytes(made)


def _is_in(which: AmqpRange, found: bytes) -> bool:
    """Whether bytes may stand in a range."""
    if which.is_time:
        value = int.from_bytes(found, "big")
        return value <= _TIME_MAX and len(str(value)) == which.line_length
    return bool(_PLAIN.fullmatch(found)) and not found.startswith(ENCODED_ID)


def check_lesson(said: AmqpLesson) -> None:
    """Refuse a lesson that is not what its class says.

    Raises:
        ValueError: It is not.
    """
    key, stored, ranges = said.key, said.stored, said.ranges
    if not key.endswith(_BODY_HEADS):
        raise ValueError(f"a key does not end with the head of a body: {key[-_BODY_HEAD_BYTES:]!r}")
    if len(stored) > STORED_BYTES_MAX or len(key) + len(stored) > LESSON_BYTES_MAX:
        raise ValueError(f"a lesson of {len(key)} and {len(stored)} bytes is too large")
    if len(ranges) > RANGES_MAX:
        raise ValueError(f"{len(ranges)} ranges; at most {RANGES_MAX} are allowed")
    at = 0
    for one in ranges:
        if one.is_time:
            is_shaped = one.length == TIME_BYTES and 1 <= one.line_length <= _DIGITS_MAX
        else:
            is_shaped = one.length > 0 and one.line_length == one.length
        if not is_shaped or one.at < at or one.at + one.length > len(key) - _BODY_HEAD_BYTES:
            raise ValueError(f"{one} in a key of {len(key)} bytes, from {at} on")
        if max(one.line_at + one.line_length, one.native_at + one.length) > len(stored):
            raise ValueError(f"{one} in {len(stored)} bytes that are stored")
        at = one.at + one.length


class AmqpLink:
    """A link by which the client sends.

    Attributes:
        channel: Of its session.
        handle: Its handle.
        credit: Messages of it that the core may take.
        is_settled: Whether all of its deliveries are.
        lessons: What was taught for it.
    """

    __slots__ = ("_last", "_next", "channel", "credit", "handle", "is_settled", "lessons")

    def __init__(self, channel: int, handle: int) -> None:
        self.channel, self.handle = channel, handle
        self.credit = 0
        self.is_settled = False
        self.lessons: list[Lesson] = []
        self._next = self._last = 0

    @property
    def size_bytes(self) -> int:
        """What its lessons count for."""
        return sum(one.size_bytes for one in self.lessons)

    def find(self, data: bytes) -> tuple[Lesson, bytes] | None:
        """Return the lesson that a message is one of, and its body; None: it is none."""
        count = len(self.lessons)
        for number in ((self._last + each) % count for each in range(count)):
            known = self.lessons[number]
            if len(data) > len(known.said.key) and known.is_key(data):
                body = known.body_of(data)
                if body is None:
                    return None
                self._last = number
                return known, body
        return None

    def teach(self, made: Lesson, others_bytes: int) -> bool:
        """Take in a lesson; False: there is no room for it.

        Args:
            made: The lesson.
            others_bytes: What those of the connection's other links count for.
        """
        lessons, key = self.lessons, made.said.key
        for number, known in enumerate(lessons):
            if len(known.said.key) == len(key) and known.is_key(key):
                lessons[number] = made
                break
        else:
            if len(lessons) < LESSONS_MAX:
                lessons.append(made)
            else:
                lessons[self._next] = made
                self._next = (self._next + 1) % LESSONS_MAX
        if others_bytes + self.size_bytes > LESSONS_BYTES_MAX:
            lessons.clear()
            self._next = self._last = 0
            if others_bytes + made.size_bytes > LESSONS_BYTES_MAX:
                return False
            lessons.append(made)
        return True


class AmqpSession:
    """One session.

    Attributes:
        window: Transfers of the client that the core may take.
        links: Those that are known, by handle.
        out: What it sends.
    """

    def __init__(self) -> None:
        self.window = 0
        self.links: dict[int, AmqpLink] = {}
        self.out = Outgoing()

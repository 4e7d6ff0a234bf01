"""Lanes: the messages that one selector matches, in the order in which they are to be given.

Owns the order (higher priority first, within one the lower sequence) and how far a lane has looked.
Must never call the core, and never keeps what does not match. Used by `examined`.

A message is one integer, its key: how far it is below priority 9, then its sequence. So a heap of
plain integers has the order, returned messages find their place again, and a key costs 44 bytes.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from vespiary_broker.engine.core import MessageView
from vespiary_codec.journal.page_sketch import PageSketch

SEQUENCE_BITS: Final = 56
SEQUENCE_MASK: Final = (1 << SEQUENCE_BITS) - 1
OWNED_FACTOR: Final = 10
"""A lane looks past so many times its own keys for owners that take none: others are behind."""
RAISED_PRIORITY: Final = 5
"""Messages with this priority or a higher one are looked for ahead of others."""
_PRIORITY_KEYS: Final = tuple((9 - priority) << SEQUENCE_BITS for priority in range(10))

_RAISED_KEYS_END: Final = _PRIORITY_KEYS[RAISED_PRIORITY - 1]


def key_of(priority: int, sequence: int) -> int:
    """Return the key of a message; the lowest of several is given first.

    Args:
        priority: 0 to 9.
        sequence: Its sequence in its queue, below 2**56.
    """
    return _PRIORITY_KEYS[priority] | sequence


class Match(Protocol):
    """Decides which messages a consumer wants."""

    @property
    def text(self) -> str:
        """The selector as it was written; equal texts want the same."""

    def wants(self, message: MessageView) -> bool:
        """Return whether a message matches."""

    def cost_us(self, message: MessageView) -> float:
        """Return about what `wants` costs at most, in microseconds."""

    def may_match(self, sketch: PageSketch) -> bool:
        """Return whether a message of a page may match; False: none does."""


class Lane:
    """What one selector matches and nobody was given yet, as far as was looked.

    Attributes:
        match: The selector; None matches all.
        cursor: Next sequence to look at.
        keys: Keys of what matched, a heap. Some may be stale: given by another lane.
        users: Consumers that take from it.
        raised: Number of its keys of priority 9, 8, … down to the lowest one that is raised.
        owned: Messages of groups that came out of it and wait for their owners.
        is_filling: Whether it looks on; not while it is full.
        is_stuck: Whether it met a slab that is not in memory in this turn.
        is_primed: Whether it was full, or at the queue's end, since it began.
    """

    __slots__ = (
        "cursor", "is_filling", "is_primed", "is_stuck", "keys", "match", "owned", "raised",
        "users",
    )  # fmt: skip

    def __init__(self, match: Match | None) -> None:
        self.match = match
        self.users = 0
        self.keys: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget all and look again from the queue's head."""
        self.keys.clear()
        self.owned = 0
        self.raised = [0] * (10 - RAISED_PRIORITY)
        self.cursor = 0
        self.is_filling = True
        self.is_primed = False
        self.is_stuck = False

    def push(self, key: int) -> None:
        """Take in a message."""
        heappush(self.keys, key)
        if key < _RAISED_KEYS_END:
            self.raised[key >> SEQUENCE_BITS] += 1

    def pop(self) -> int:
        """Return the key of the message that is next, and forget it."""
        key = heappop(self.keys)
        if key < _RAISED_KEYS_END:
            self.raised[key >> SEQUENCE_BITS] -= 1
        return key

    def pop_many(self, count: int) -> list[int]:
        """Return the keys of the messages that are next, in order, and forget them.

        Args:
            count: How many, if there are so many.
        """
        keys = self.keys
        found = [heappop(keys) for _ in range(min(count, len(keys)))]
        for key in found:
            if key >= _RAISED_KEYS_END:
                break
            self.raised[key >> SEQUENCE_BITS] -= 1
        return found

    def merge(self, keys: list[int]) -> None:
        """Take back keys that waited for an owner, in any order."""
        self.owned -= len(keys)
        self.keys.extend(keys)
        for key in keys:
            if key < _RAISED_KEYS_END:
                self.raised[key >> SEQUENCE_BITS] += 1
        heapify(self.keys)

    def has_enough(self, priority: int, keys_max: int) -> bool:
        """Whether it has so much of a raised priority, or above, that others of it may wait."""
        return 2 * sum(self.raised[: 10 - priority]) >= keys_max

    def note_size(self, keys_max: int, owned_max: int) -> None:
        """Stop looking on when it is full, and go on when half of that has left.

        Args:
            keys_max: Keys that it may hold before it looks no further.
            owned_max: Messages that may wait for owners before it looks no further.
        """
        if len(self.keys) >= keys_max or self.owned >= owned_max:
            self.is_filling = False
            self.is_primed = True
        elif len(self.keys) * 2 <= keys_max and self.owned < owned_max:
            self.is_filling = True

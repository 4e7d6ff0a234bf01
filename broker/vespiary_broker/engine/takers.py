"""Consumers of an examined queue as its index knows them, and what is taken off it for them.

Owns no state of its own; `examined` does, and it alone changes these. Owner: the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from vespiary_broker.engine.groups import Group
from vespiary_broker.engine.lanes import SEQUENCE_MASK, Lane

_SIZE_FIRST: Final = 8


@dataclass(eq=False, slots=True)
class Batch:
    """Messages that were taken off the index for a consumer.

    Attributes:
        keys: Their keys, in the order of giving.
        fresh: Groups that the consumer got with them, and the index of the message.
        first_key: Header that its only message has to carry; empty for none.
    """

    keys: list[int] = field(default_factory=list)
    fresh: dict[Group, int] = field(default_factory=dict)
    first_key: str = ""

    @property
    def sequences(self) -> list[int]:
        """Their sequences."""
        return [key & SEQUENCE_MASK for key in self.keys]


@dataclass(eq=False, slots=True)
class Taker:
    """What the index knows of a consumer.

    Attributes:
        lane: The lane that it takes from.
        own: Keys of messages in groups that are its own, a heap.
        groups: Groups that are its own.
        size: How many messages to take for it at once: it adapts to its credit.
    """

    lane: Lane
    own: list[int] = field(default_factory=list)
    groups: int = 0
    size: int = _SIZE_FIRST

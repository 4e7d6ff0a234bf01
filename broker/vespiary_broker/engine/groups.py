"""Message groups: all messages of a group go to one consumer, for as long as it is there.

Owns which group belongs to whom. Must never look at a queue: `examined` asks for each message that
is in a group, when it is its turn. Owner: the event loop.

A group gets its consumer with the first message that one of them takes. It loses it when the
consumer closes, when a message with `JMSXGroupSeq` -1 was given out, or when a consumer comes and
`group-rebalance` is on. With buckets several groups share one fate, so memory is bounded: at most
`GROUPS_MAX` groups are known one by one, the others share as many buckets.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final
from zlib import crc32

from vespiary_codec.wire.stomp.properties import lines_in

if TYPE_CHECKING:
    from vespiary_broker.engine.queues import Consumer

GROUPS_MAX: Final = 65_536
GROUP_ID: Final = b"JMSXGroupID"
GROUP_SEQUENCE: Final = b"JMSXGroupSeq"
_ID_START: Final = GROUP_ID + b":"
_ID_LINE: Final = b"\n" + _ID_START
_LAST_LINE: Final = b"\n" + GROUP_SEQUENCE + b":-1\n"

Group = bytes | int
"""A group by its id, or the number of the bucket that it falls into."""


def group_id_of(properties: bytes) -> bytes:
    """Return the id of the group that a message belongs to; empty for none.

    Args:
        properties: As stored, escapes and all: equal ids are written the same.
    """
    if properties.startswith(_ID_START):
        start = len(_ID_START)
    else:
        start = lines_in(properties).find(_ID_LINE) + len(_ID_LINE)
        if start < len(_ID_LINE):
            return b""
    return properties[start : properties.index(b"\n", start)]


def closes_group(properties: bytes) -> bool:
    """Whether a message is the last one of its group."""
    return _LAST_LINE[1:] in properties and _LAST_LINE in b"\n" + lines_in(properties)


class Groups:
    """The groups of one queue.

    Args:
        buckets: Groups share this many fates; -1: each has its own, 0: there are no groups.
    """

    def __init__(self, buckets: int = -1) -> None:
        self._owners: dict[Group, Consumer] = {}
        self._buckets = buckets
        self._is_crowded = False  # once and for all, or a group might have two consumers

    def __len__(self) -> int:
        return len(self._owners)

    def group_of(self, properties: bytes) -> Group | None:
        """Return the group of a message; None when it is in none."""
        if self._buckets == 0:
            return None
        group_id = group_id_of(properties)
        if not group_id:
            return None
        if self._buckets > 0:
            return crc32(group_id) % self._buckets
        if len(self._owners) >= GROUPS_MAX:
            self._is_crowded = True
        if self._is_crowded and group_id not in self._owners:
            return crc32(group_id) % GROUPS_MAX
        return group_id

    def owner(self, group: Group) -> Consumer | None:
        """Return the consumer that a group belongs to; None while it has none."""
        return self._owners.get(group)

    def owned(self, start: int, limit: int) -> list[tuple[Group, Consumer]]:
        """Return groups that belong to a consumer, with it, in the order in which they began.

        Args:
            start: How many to pass over.
            limit: Most of them.
        """
        return list(islice(self._owners.items(), start, start + limit))

    def assign(self, group: Group, consumer: Consumer) -> None:
        """Give a group to a consumer."""
        self._owners[group] = consumer

    def release(self, group: Group) -> None:
        """Let a group have another consumer from now on."""
        self._owners.pop(group, None)

    def release_all(self, consumer: Consumer | None = None) -> None:
        """Let all groups of a consumer, or of all, have others from now on."""
        if consumer is None:
            self._owners.clear()
        else:
            kept = {group: own for group, own in self._owners.items() if own is not consumer}
            self._owners = kept

"""Upkeep: messages that a queue gives up by itself, because newer ones have come.

Owns the rules of ring queues (so many messages, the oldest go) and of last-value queues (of each
value of a header the latest message). Must never touch what a consumer holds: the core passes over
it. Such a queue may be plain for its consumers; `dispatch` has it kept up before it gives
anything, also without consumers. Owner: the event loop.

Durability: what is given up is journalled as an acknowledgement is. After a crash before that is
durable it is there again, and is given up again with the queue's next turn.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Protocol

from vespiary_broker.engine.core import Core, MessageView, NoRoom
from vespiary_broker.engine.message_times import read_times
from vespiary_broker.engine.queue_kinds import QueueKind
from vespiary_codec.wire.stomp.properties import lines_in

LAST_VALUE_KEY: Final = "_AMQ_LVQ_NAME"
"""Header whose value counts when the queue names no other."""
ALWAYS_MS: Final = 2**63
"""A time at which everything is due."""
_LOOK_MESSAGES: Final = 256
_LOOK_COST: Final = 16
_FORGET_ABOVE: Final = 4096


class Upkeep(Protocol):
    """One rule of one queue.

    Attributes:
        absent: Place of the slab that must be loaded to go on; None for none.
        is_starved: Whether there was no room in the journal.
        replaced: Messages given up so far.
    """

    absent: tuple[int, int] | None
    is_starved: bool
    replaced: int

    def tend(self, budget: int, now_ms: int = ALWAYS_MS) -> int:
        """Give up what is to go.

        Args:
            budget: Messages that may be looked at, about.
            now_ms: Milliseconds since 1970: what is scheduled for later does not count yet.

        Returns:
            How many it was, with something for each call of the core; not below `budget` if there
            is more to do.

        Durability: durable with the block that is filling.
        """


def upkeeps_of(core: Core, queue_id: int, kind: QueueKind) -> tuple[Upkeep, ...]:
    """Return the rules that a queue of a kind has."""
    rules: list[Upkeep] = []
    if kind.last_value:
        rules.append(LastValues(core, queue_id, kind.last_value_key or LAST_VALUE_KEY))
    if kind.ring_size >= 0:
        rules.append(Ring(core, queue_id, kind.ring_size))
    return tuple(rules)


class _Rule:
    """What the rules share: ending messages."""

    def __init__(self, core: Core, queue_id: int) -> None:
        self.absent: tuple[int, int] | None = None
        self.is_starved = False
        self.replaced = 0
        self._core = core
        self._queue_id = queue_id
        self._doomed: list[int] = []

    def _end_doomed(self) -> bool:
        """End what is to go; return whether all of it is ended.

        Durability: durable with the block that is filling.
        """
        self.is_starved = False
        if self._doomed:
            try:
                self.replaced += self._core.finish(self._queue_id, self._doomed)
            except NoRoom:
                self.is_starved = True  # those before are ended, and are passed over next time
                return False
            self._doomed = []
        return True


class Ring(_Rule):
    """A ring queue: at most so many messages wait; what consumers hold does not count.

    Args:
        core: The core.
        queue_id: The queue.
        size: Messages that may wait.
    """

    def __init__(self, core: Core, queue_id: int, size: int) -> None:
        super().__init__(core, queue_id)
        self._size = size

    def tend(self, budget: int, now_ms: int = ALWAYS_MS) -> int:  # noqa: ARG002
        """See `Upkeep.tend`."""
        used = 0
        while used < budget:
            self.absent = None
            if not self._end_doomed():
                break
            excess = self._core.queue_statistics(self._queue_id).ready - self._size
            if excess <= 0:
                break
            found = self._core.look(self._queue_id, 0, min(excess, _LOOK_MESSAGES))
            self._doomed = [message.sequence for message in found.messages]
            if not self._doomed:
                self.absent = found.absent
                break
            used += len(self._doomed) + _LOOK_COST
        return used


class LastValues(_Rule):
    """A last-value queue: of messages with the same value of a header, the latest stays.

    Those without the header stay all. An older one that a consumer holds stays with it, and goes if
    it comes back. A scheduled one counts from its time on, as if it came then: until that the value
    stays that was there, and what came meanwhile is older (as in the reference system).

    Args:
        core: The core.
        queue_id: The queue.
        key: Name of the header.
    """

    def __init__(self, core: Core, queue_id: int, key: str) -> None:
        super().__init__(core, queue_id)
        self._line = f"\n{key}:".encode()
        self._latest: dict[bytes, int] = {}
        self._scheduled: list[tuple[int, int]] = []  # (when, sequence), a heap
        self._ranks: dict[int, int] = {}  # as if they had these sequences: what was scheduled
        self._cursor = 0
        self._returned_at = -1  # where the walk over returned messages is; -1: it has ended
        self._came_back = (0, 0)
        self._resolved = self._paged = 0

    def tend(self, budget: int, now_ms: int = ALWAYS_MS) -> int:
        """See `Upkeep.tend`."""
        self.absent = None
        statistics = self._core.queue_statistics(self._queue_id)
        live = statistics.ready + statistics.delivering + statistics.aside + statistics.prepared
        is_crowded = len(self._latest) > 2 * live + _FORGET_ABOVE  # most of it is acknowledged
        is_late = statistics.resolved != self._resolved or statistics.paged < self._paged
        if is_crowded or is_late:
            # What branches or pages held is there where it stands, maybe before the cursor.
            self._latest.clear()
            self._scheduled.clear()
            if is_crowded:
                self._ranks.clear()
            self._cursor = 0
        self._resolved, self._paged = statistics.resolved, statistics.paged
        came_back = (statistics.redelivered, statistics.put_back)
        if came_back != self._came_back:
            self._came_back = came_back
            self._returned_at = 0
        used = 0
        while used < budget and self._end_doomed():
            if self._cursor < statistics.available:
                used += self._look(now_ms, is_returned=False)
            elif self._scheduled and self._scheduled[0][0] <= now_ms:
                used += self._look_at_due(statistics.available)
            elif self._returned_at >= 0:
                used += self._look(now_ms, is_returned=True)
                if self._returned_at >= statistics.available:
                    self._returned_at = -1
            else:
                break
            if self.absent is not None:
                break
        return used

    def _look_at_due(self, rank: int) -> int:
        """Let a message count whose time has come, as if it came now."""
        when_ms, sequence = heappop(self._scheduled)
        found = self._core.look(self._queue_id, sequence, 1, everything=True)
        for message in found.messages:
            if message.sequence == sequence:
                self._ranks[sequence] = rank
                self._note(message, ALWAYS_MS)
                return _LOOK_COST
        if found.absent is not None:
            heappush(self._scheduled, (when_ms, sequence))
            self.absent = found.absent
        return _LOOK_COST

    def _look(self, now_ms: int, *, is_returned: bool) -> int:
        core = self._core
        if is_returned:
            found = core.look(self._queue_id, self._returned_at, _LOOK_MESSAGES, returned_only=True)
            self._returned_at = found.next_sequence
        else:
            found = core.look(self._queue_id, self._cursor, _LOOK_MESSAGES, everything=True)
            self._cursor = found.next_sequence
        for message in found.messages:
            self._note(message, now_ms)
        self.absent = found.absent
        return len(found.messages) + _LOOK_COST

    def _rank(self, sequence: int) -> int:
        return self._ranks.get(sequence, sequence)

    def _note(self, message: MessageView, now_ms: int) -> None:
        lines = b"\n" + lines_in(message.properties)
        start = lines.find(self._line)
        if start < 0:
            return
        start += len(self._line)
        value = lines[start : lines.index(b"\n", start)]
        sequence = message.sequence
        if message.is_special:
            due_ms = read_times(message.properties).deliver_at_ms
            if due_ms > now_ms:
                heappush(self._scheduled, (due_ms, sequence))
                return
        latest = self._latest.get(value, 0)
        if latest and self._rank(sequence) < self._rank(latest):
            self._doomed.append(sequence)
        elif sequence != latest:
            if latest:
                self._doomed.append(latest)
            self._latest[value] = sequence

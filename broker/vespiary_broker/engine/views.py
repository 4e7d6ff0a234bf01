"""What each consumer of a non-destructive queue has seen of it.

Owns the positions: how far a consumer has got, and what it was given and has not acknowledged.
Must never call what ends, moves or gives out a message: in such a queue consumers take nothing, so
the core knows of no holder. Nothing of it is written down: who comes, or comes again, begins with
the first message. Used by `view_giver`, and by the sessions for ACK and NACK; owner: the event
loop.

A position is a cursor. Three things stand before a cursor and are due nevertheless, each in a heap
that is empty otherwise: what the consumer gave back (NACK), what was scheduled when the cursor
passed, and what a prepared branch had added then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import AckMode, Core, QueueStatistics
from vespiary_broker.engine.page_walk import PageWalk

if TYPE_CHECKING:
    from vespiary_broker.engine.queues import Consumer, Queue

HELD_MAX: Final = 20_000
"""Messages that one consumer may hold unacknowledged, whatever its credit: each takes memory."""
LOOK_FIRST: Final = 8


@dataclass(eq=False, slots=True)
class View:
    """What one consumer has seen.

    Attributes:
        header: Value of the `subscription` header of its messages, escaped for its version.
        version: Its version of the protocol: 10, 11, 12.
        mode: Acknowledgement mode.
        credit: Messages that it may hold.
        attempts_max: How often it is given one message; -1: without end.
        cursor: Next sequence to look at.
        batch: Messages to look at in one go: it adapts to what the connection takes.
        acknowledged: Messages that it has acknowledged, or got in mode AUTO.
        skipped: Messages that it gave back too often, and is not given again.
        walk: Its walk over ring and pages of the queue, from `Views.open` on.
    """

    header: bytes
    version: int
    mode: AckMode
    credit: int
    attempts_max: int = -1
    cursor: int = 0
    batch: int = LOOK_FIRST
    acknowledged: int = 0
    skipped: int = 0
    walk: PageWalk = field(init=False)
    _behind: list[int] = field(default_factory=list)
    _held: dict[int, None] = field(default_factory=dict)
    _attempts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.credit = min(self.credit, HELD_MAX)

    @property
    def room(self) -> int:
        """Messages that it may be given now."""
        return HELD_MAX if self.mode is AckMode.AUTO else self.credit - len(self._held)

    @property
    def held(self) -> int:
        """Messages that it was given and has not acknowledged."""
        return len(self._held)

    def holds(self, sequence: int) -> bool:
        """Whether it was given a message, and has not acknowledged it."""
        return sequence in self._held

    @property
    def behind(self) -> int:
        """The first message before the cursor that is due; 0: there is none."""
        return self._behind[0] if self._behind else 0

    def pop_behind(self) -> None:
        """Forget the message that `behind` named."""
        heappop(self._behind)

    def note_behind(self, sequence: int) -> None:
        """Have a message be given, if the cursor has passed it."""
        if sequence < self.cursor and sequence not in self._held:
            heappush(self._behind, sequence)

    def attempts(self, sequence: int) -> int:
        """Return how often it gave a message back."""
        return self._attempts.get(sequence, 0)

    def given(self, sequence: int) -> None:
        """Note that it was given a message."""
        if self.mode is AckMode.AUTO:
            self.acknowledged += 1
        else:
            self._held[sequence] = None

    def acknowledge(self, sequence: int) -> int:
        """Take an ACK; return how many messages it was for, 0: it does not hold that one.

        Args:
            sequence: The message; CLIENT: and all that were given before it.
        """
        done = self._release(sequence)
        self.acknowledged += len(done)
        for one in done:
            self._attempts.pop(one, None)
        return len(done)

    def give_back(self, sequence: int) -> int:
        """Take a NACK; return how many messages it was for, 0: it does not hold that one.

        They are given again, to this consumer alone, until that was done `attempts_max` times.
        """
        done = self._release(sequence)
        for one in done:
            attempts = self._attempts.pop(one, 0) + 1
            if 0 < self.attempts_max <= attempts:
                self.skipped += 1
            else:
                self._attempts[one] = attempts
                heappush(self._behind, one)
        return len(done)

    def _release(self, sequence: int) -> list[int]:
        """Take what an ACK or a NACK means off what is held."""
        held = self._held
        if sequence not in held:
            return []
        if self.mode is not AckMode.CLIENT:
            del held[sequence]
            return [sequence]
        done = []
        for one in held:
            done.append(one)
            if one == sequence:
                break
        for one in done:
            del held[one]
        return done


def show_released(queues: Mapping[int, Queue], queue_id: int, sequences: Iterable[int]) -> None:
    """Have scheduled messages that are due be given to those who have passed them."""
    queue = queues.get(queue_id)
    if queue is not None and queue.views is not None:
        queue.views.note_behind(sequences)


class Views:
    """The views of all consumers of one queue.

    Args:
        core: The core.
        queue_id: The queue.
    """

    def __init__(self, core: Core, queue_id: int) -> None:
        self._core = core
        self._queue_id = queue_id
        self._views: dict[Consumer, View] = {}
        self._doubtful: frozenset[int] = frozenset()  # what prepared branches have added
        self._branches = (0, 0)

    def open(self, consumer: Consumer, view: View) -> None:
        """Let a consumer see the queue, from its first message on."""
        view.walk = PageWalk(self._core, self._queue_id)
        consumer.view = view
        self._views[consumer] = view

    def close(self, consumer: Consumer) -> None:
        """Forget a consumer that was closed."""
        self._views.pop(consumer).walk.leave()

    def note_behind(self, sequences: Iterable[int]) -> None:
        """Have messages be given to those who have passed them: they were not to be given then."""
        for sequence in sequences:
            for view in self._views.values():
                view.note_behind(sequence)

    def note_branches(self, statistics: QueueStatistics) -> None:
        """Find out what branches have left in the queue; to be called before a cursor moves.

        Args:
            statistics: Of the queue, now.
        """
        now = (statistics.prepared, statistics.resolved)
        if now == self._branches:
            return
        self._branches = now
        before, self._doubtful = self._doubtful, self._in_branches()
        self.note_behind(before - self._doubtful)

    def _in_branches(self) -> frozenset[int]:
        core, queue_id = self._core, self._queue_id
        return frozenset(
            member.sequence
            for branch in core.branches()
            for member in core.branch_members(branch.transaction)
            if member.queue_id == queue_id and not member.is_acknowledgement
        )

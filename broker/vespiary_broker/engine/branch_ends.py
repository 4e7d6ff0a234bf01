"""What prepared branches let go of in a queue that Python looks at.

Owns which messages of the queue branches hold, and those that came out of them and were not looked
at yet: a branch that ends leaves its messages where they stand, which may be before the cursors of
the lanes. Each of them is looked at by itself, so a queue with millions of messages is not looked
through again whenever an XA client commits. Must never give a message. Used by `examined`; owner:
the event loop.

The core says how many messages branches have left in the queue. What was found must come to as
many; where it does not (a branch came and went between two looks, or what it left has gone since),
nothing is known, and the queue begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heapify, heappop
from typing import Final, NamedTuple

from vespiary_broker.engine.core import Core, MessageView, QueueStatistics
from vespiary_broker.engine.lanes import RAISED_PRIORITY, Lane
from vespiary_broker.engine.page_walk import PageWalk

_LOOK_COST: Final = 16


class Looked(NamedTuple):
    """What one look came to.

    Attributes:
        cost: In messages looked at.
        absent: Slab that is needed first; None for none.
        is_waiting: A footer is needed first, and being read.
    """

    cost: int
    absent: tuple[int, int] | None
    is_waiting: bool


class BranchEnds:
    """See the module's docstring.

    Attributes:
        pending: Messages that ended branches held, and that are to be looked at: a heap.

    Args:
        core: The core.
        queue_id: The queue.
        statistics: Of the queue, now: whatever is there will be looked at in any case.
    """

    def __init__(self, core: Core, queue_id: int, statistics: QueueStatistics) -> None:
        self.pending: list[int] = []
        self._core = core
        self._queue_id = queue_id
        self._seen = (statistics.prepared, statistics.paged_prepared, statistics.resolved)
        self._members = self._in_branches({})
        self._owed = 0  # messages that branches have left here and were not found yet
        self._is_lost = False

    @property
    def is_busy(self) -> bool:
        """Whether there is something to look at before anything else may be given."""
        return bool(self.pending) or self._is_lost

    def note(self, statistics: QueueStatistics) -> bool:
        """Take note of branches that were prepared, or ended.

        Args:
            statistics: Of the queue, now.

        Returns:
            Whether something is there again of which nothing is known: all is to be looked at anew.
        """
        now = (statistics.prepared, statistics.paged_prepared, statistics.resolved)
        if now != self._seen:
            self._owed += now[-1] - self._seen[-1]
            self._seen = now
            before, self._members = self._members, self._in_branches(self._members)
            for number in before.keys() - self._members.keys():
                self.pending += before[number]
            heapify(self.pending)
            self._check()
        if not self._is_lost:
            return False
        self._is_lost, self._owed = False, 0
        self.pending.clear()
        return True

    def look(
        self,
        walk: PageWalk,
        lanes: Collection[Lane],
        returned: Collection[int],
        wanting: Callable[[list[Lane], MessageView], list[Lane] | None],
        take_in: Callable[[list[Lane], MessageView], None],
        budget: int,
    ) -> Looked:
        """Look at the first of the messages that are pending.

        Args:
            walk: The walk over the queue.
            lanes: All lanes of the queue.
            returned: What was looked at as it came back, and stands in the lanes already.
            wanting: Returns those of some lanes that want a message; None: there is no time now.
            take_in: Puts a message into lanes that want it.
            budget: How many, about.
        """
        cost = 0
        while self.pending and cost < budget:
            cost += _LOOK_COST
            pending = len(self.pending)
            absent, is_waiting = self._look_at_first(walk, lanes, returned, wanting, take_in)
            if absent is not None or is_waiting or len(self.pending) == pending:
                return Looked(cost, absent, is_waiting)
        return Looked(cost, None, is_waiting=False)

    def _look_at_first(
        self,
        walk: PageWalk,
        lanes: Collection[Lane],
        returned: Collection[int],
        wanting: Callable[[list[Lane], MessageView], list[Lane] | None],
        take_in: Callable[[list[Lane], MessageView], None],
    ) -> tuple[tuple[int, int] | None, bool]:
        """Look at one message; return what is needed first. Without time it stays pending."""
        sequence = self.pending[0]
        walk.forget()  # it may stand where a page had nothing
        seen = walk.look(sequence, 1)
        if seen.is_waiting or (seen.absent is not None and not seen.messages):
            return seen.absent, seen.is_waiting
        for message in seen.messages:
            if message.sequence != sequence:
                continue
            if sequence not in returned:
                # What is raised may stand behind a lane, and before the search for its priority.
                is_raised = message.priority >= RAISED_PRIORITY
                behind = [lane for lane in lanes if is_raised or sequence < lane.cursor]
                wanted = wanting(behind, message)
                if wanted is None:
                    return None, False
                for one, takers in walk.in_ring([(message, wanted)], seen.page_of):
                    take_in(takers, one)
            self._owed -= 1
        heappop(self.pending)
        self._check()
        return None, False

    def _check(self) -> None:
        """Find out, when nothing is pending, whether all was found."""
        self._is_lost = self._is_lost or self._owed < 0 or (not self.pending and self._owed != 0)

    def _in_branches(self, known: dict[int, list[int]]) -> dict[int, list[int]]:
        """Return what branches hold of the queue, by their number."""
        if not self._seen[0] and not self._seen[1]:
            return {}
        held: dict[int, list[int]] = {}
        for facts in self._core.branches():
            number = facts.transaction
            if number in known:
                held[number] = known[number]
                continue
            held[number] = [
                member.sequence
                for member in self._core.branch_members(number)
                if member.queue_id == self._queue_id
            ]
        return held

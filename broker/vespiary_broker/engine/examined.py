"""An examined queue: one whose messages Python looks at before it decides who gets which.

Owns the index: what was looked at and given to nobody yet, in one lane for each selector. Must
never do I/O, and never gives a message itself (`examined_giver` does). A queue is examined only
while something asks for it (`Queue.examined`); a plain one costs nothing of this. Owner: the event
loop.

How it looks
    Each lane has a cursor of its own. Lanes at the same place look together, so in a queue whose
    consumers keep up each message is read once, and each selector is asked once. A consumer that
    comes later begins at the head, and joins the others when it has caught up.
    A lane stops at its bound (`KEYS_MAX` for all lanes of a queue) and looks on when half has left.
    Messages of groups whose owner takes none now are passed, ten times as many (while the address
    pages: as many, for the memory's sake); then others wait.
    What a selector does not match is not kept, so a match behind a million others is found in many
    short turns and without memory.
    A message that comes back (NACK, a lost connection, a branch that was rolled back) stands before
    the cursors: whenever that may have happened, the core is asked for the returned ones alone.

Pages
    What stands in closed pages is looked at there (`page_walk`), and only what a lane takes in
    comes into the ring. So messages that nobody wants, and those behind a full lane, need no
    memory, and may be moved to pages although the queue is examined (`indexed` has to stay).
    Where lanes are full or pages are closed, messages of raised priority are looked for ahead of
    all others, as far as the queue goes (`_look_for_raised`).

Order
    Higher priorities first, within one the lower sequence, also among returned ones: nothing is
    given before the returned ones were looked at, and a lane without a selector gives nothing
    before it has looked as far as it may. Messages of low priority wait in a lane with those of
    ordinary priority behind them: beyond a full lane, the latter wait for their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from vespiary_broker.engine.branch_ends import BranchEnds
from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.delivery_counts import is_retired
from vespiary_broker.engine.groups import Group, Groups, closes_group
from vespiary_broker.engine.index_bounds import IndexBounds
from vespiary_broker.engine.lanes import SEQUENCE_MASK, Lane, key_of
from vespiary_broker.engine.page_walk import ClosedPages, PageWalk
from vespiary_broker.engine.queue_kinds import QueueKind
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.raised import RaisedSearch
from vespiary_broker.engine.settling import NOT_TO_BE_GIVEN, Judge
from vespiary_broker.engine.takers import Batch, Taker
from vespiary_broker.engine.turn_time import TurnTime

KEYS_MAX: Final = 20_000
"""Messages that the lanes of one queue may hold together before they look no further."""
_LOOK_MESSAGES: Final = 256
_LOOK_COST: Final = 16
_JUDGE_COST: Final = 16
"""A look at nothing counts as much as one at so many messages."""
_SIZE_MAX: Final = 256
_GROUPS_A_STEP: Final = 8
"""A consumer with few groups gets one new one at a time, so that all get their share."""
_KEYS_EXPLAINED: Final = 1024
_PLAIN_AFTER: Final = 1024
"""Ordinary messages in a row after which an examined queue may become plain again."""


class ExaminedQueue:
    """The index of one queue.

    Invariant: every deliverable message of the queue is at or behind a lane's cursor, or in that
        lane, or does not match its selector, or is about to be asked for (`look_at_returned`).

    Attributes:
        absent: Place of the slab that must be loaded before the look can go on; None for none.
        groups: Which group of messages belongs to which consumer.

    Args:
        core: The core.
        queue: The queue.
        judge: Decides about special messages; None: they are given like all others.
    """

    def __init__(self, core: Core, queue: Queue, judge: Judge | None = None) -> None:
        self.absent: tuple[int, int] | None = None
        self._core = core
        self._queue_id = queue.id
        self._queue = queue
        self._judge = judge
        self._expires: dict[int, int] = {}  # of messages in the index that expire
        self._lanes: dict[str, Lane] = {}
        self._takers: dict[Consumer, Taker] = {}
        self._kind = queue.kind
        self.groups = Groups(queue.kind.group_buckets)
        self._is_rebalancing = False  # nothing is given until all is acknowledged
        self._group_of: dict[int, Group] = {}  # of the messages in the index, by sequence
        self._has_left = False  # messages of groups whose owner takes from another lane
        self._closing: set[int] = set()  # those that are the last of their group
        self._walk = PageWalk(core, queue.id)
        self._bounds = IndexBounds(KEYS_MAX)
        self._raised = RaisedSearch()
        self._is_raising = False  # it has not come to its end, and nothing is given
        self._is_waiting = False  # for a footer that is being read
        self._available = 0
        self._has_staged = False
        first = core.queue_statistics(queue.id)
        self._ends, self._paged = BranchEnds(core, queue.id, first), first.paged
        self._came_back = (first.redelivered, first.put_back)
        self._returned_at = 0  # where the walk over returned messages is; -1: it has ended
        self._returned: set[int] = set()  # those that it found, and nobody was given
        self._ordinary_run = _PLAIN_AFTER
        self._share = TurnTime().share(queue)  # of the turn in which it looks
        self._verdicts: dict[str, bool] = {}  # of the message at which time ended
        self._verdicts_of = -1
        for consumer in queue.consumers:
            self._enter(consumer)

    # --- who takes ------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Take note of a consumer that was opened; it stands in the queue's rota."""
        self._enter(consumer)
        tiers = self._queue.rota.tiers
        if self.groups and len(tiers) == 1 and len(tiers[0]) < len(self._takers):
            self.rebalance()  # one consumer is served alone, and owners that are not get nothing
        elif self._kind.group_rebalance and self.groups:
            if self._kind.group_rebalance_pause_dispatch:
                self._is_rebalancing = True
            else:
                self.rebalance()

    def kind_changed(self, kind: QueueKind) -> None:
        """Take note that the queue is of another kind now."""
        before, self._kind = self._kind, kind
        if kind.group_buckets != before.group_buckets:
            self.rebalance()  # as groups were told apart until now
            self.groups = Groups(kind.group_buckets)
            self._reset()
        elif kind.exclusive is not before.exclusive and self.groups:
            self.rebalance()  # owners that are not served any more would get nothing

    def rebalance(self) -> None:
        """Let all groups find their consumers anew; the queue is to be served."""
        self._is_rebalancing = False
        self.groups.release_all()
        for taker in self._takers.values():
            taker.groups = 0
            taker.lane.merge(taker.own)
            taker.own.clear()
        self._find_left()

    def _enter(self, consumer: Consumer) -> None:
        wanted = consumer.wanted
        text = wanted.text if wanted is not None else ""
        lane = self._lanes.get(text)
        if lane is None:
            lane = self._lanes[text] = Lane(wanted)
            self._raised.reset()
            self._lanes_changed()
        lane.users += 1
        self._takers[consumer] = Taker(lane)

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer that was closed; what it held is looked at again."""
        taker = self._takers.pop(consumer)
        lane = taker.lane
        lane.users -= 1
        self.groups.release_all(consumer)
        lane.merge(taker.own)
        self._find_left()
        if not lane.users:
            del self._lanes[lane.match.text if lane.match is not None else ""]
            self._lanes_changed()
            self._forget(lane)
        self.look_at_returned()

    def _forget(self, lane: Lane) -> None:
        """Drop what is known of messages that stood in a lane that is gone, and in no other."""
        if not (self._expires or self._group_of or self._closing):
            return
        others = [one.keys for one in self._lanes.values()]
        others += [taker.own for taker in self._takers.values()]
        known = {key & SEQUENCE_MASK for keys in others for key in keys}
        for sequence in {key & SEQUENCE_MASK for key in lane.keys} - known:
            self._expires.pop(sequence, None)
            self._group_of.pop(sequence, None)
            self._closing.discard(sequence)

    def _find_left(self) -> None:
        """Look anew for what lanes have left to the owner of a group in another lane."""
        if self._has_left:
            self._reset()

    def _reset(self) -> None:
        """Begin to look anew."""
        self._has_left = False
        self._walk.forget()
        self._raised.reset()
        self._returned.clear()
        self._group_of.clear()
        self._expires.clear()
        self._closing.clear()
        for lane in self._lanes.values():
            lane.reset()
        for taker in self._takers.values():
            taker.own.clear()

    def _lanes_changed(self) -> None:
        self._bounds.refresh(len(self._lanes), has_pages=self._walk.has_pages)

    # --- memory ---------------------------------------------------------------------------------

    def limit(self, messages: int = KEYS_MAX) -> bool:
        """Bound what the index holds, so that the rest can leave the memory.

        Args:
            messages: How many messages, about; `KEYS_MAX` and above: it need not be bounded any
                more, once nothing stands in pages.

        Returns:
            Whether it held far more, and begins anew: the queue is to be served.
        """
        if not self._bounds.tell(messages):
            return False
        self._lanes_changed()
        most = 2 * (self._bounds.keys + _LOOK_MESSAGES)
        is_too_long = any(len(lane.keys) + lane.owned > most for lane in self._lanes.values())
        if is_too_long:
            self._reset()
        return is_too_long

    def indexed(self) -> list[int]:
        """Return the sequences that must stay in the ring: nobody would look at them again."""
        keys = [key for lane in self._lanes.values() for key in lane.keys]
        for taker in self._takers.values():
            keys += taker.own
        return [key & SEQUENCE_MASK for key in keys]

    @property
    def unlooked_from(self) -> int:
        """Return the sequence from which on hardly any message is in the index."""
        return max((lane.cursor for lane in self._lanes.values() if lane.match is None), default=0)

    # --- looking --------------------------------------------------------------------------------

    def look_at_returned(self) -> None:
        """Look at the returned messages in the next turn: there may be others than before."""
        self._returned_at = 0

    @property
    def has_unlooked(self) -> bool:
        """Whether there is more to look at now."""
        if self.absent is not None or self._is_waiting:
            return False
        if self._returned_at >= 0 or self._is_raising or self._ends.is_busy:
            return True
        return any(self._looks_on(lane) for lane in self._lanes.values())

    def _looks_on(self, lane: Lane) -> bool:
        lane.note_size(self._bounds.keys, self._bounds.owned)
        if lane.cursor >= self._available or not lane.is_filling:
            return False
        return not (lane.is_stuck and lane.keys)

    @property
    def may_give(self) -> bool:
        """Whether all returned messages have been looked at, and groups need not wait."""
        if self._ends.is_busy:
            return False
        return self._returned_at < 0 and not self._is_rebalancing and not self._is_raising

    @property
    def is_plain(self) -> bool:
        """Whether nothing asks for the queue to be examined any more."""
        if self._ordinary_run < _PLAIN_AFTER or not self.may_give:
            return False
        if self.groups or self._has_staged or self._walk.has_pages:
            return False  # what is left in pages that were looked through may be damaged
        available = self._available
        return all(
            lane.match is None and not lane.keys and lane.cursor >= available
            for lane in self._lanes.values()
        )

    def look(
        self, budget: int, pages: ClosedPages | None = None, turn_time: TurnTime | None = None
    ) -> int:
        """Look at messages that were not looked at yet, as far as there is time.

        Args:
            budget: How many, about.
            pages: What is known of pages; None: all of the queue stands in its ring.
            turn_time: What this turn of the loop has for selectors; None: there is no bound.

        Returns:
            How many it was, with something for each call of the core.
        """
        self._share = share = (turn_time or TurnTime()).share(self._queue)
        try:
            return self._look(budget, pages)
        finally:
            share.end()

    def _look(self, budget: int, pages: ClosedPages | None) -> int:
        statistics = self._core.queue_statistics(self._queue_id)
        self._available = statistics.available
        self._has_staged = statistics.tail != statistics.available
        if self._is_rebalancing and not statistics.delivering:
            self.rebalance()
        is_opened = pages is None and statistics.paged < self._paged
        if self._ends.note(statistics) or is_opened:
            # What pages held, or unknown branches, is there now, maybe before the cursors.
            self._reset()
        self._walk.refresh(pages, statistics.paged)
        self._lanes_changed()
        self._paged = statistics.paged
        came_back = (statistics.redelivered, statistics.put_back)
        if came_back != self._came_back:
            self._came_back = came_back
            self.look_at_returned()
        self.absent, self._is_waiting = None, False
        self._bound()
        looked = 0
        while looked < budget and self._returned_at >= 0 and self._may_look:
            looked += self._look_at_returned(budget - looked)
        if self._ends.pending and self._returned_at < 0 and self._share.has_time:
            more, self.absent, self._is_waiting = self._ends.look(
                self._walk, self._lanes.values(), self._returned, self._wanting, self._take_in,
                budget - looked,
            )  # fmt: skip
            looked += more
        self._is_raising = self._looks_for_raised()
        while looked < budget and self._is_raising and self._may_look:
            looked += self._look_for_raised(budget - looked)
            self._is_raising = self._looks_for_raised()
        if self._is_raising:
            return looked
        while looked < budget and self._returned_at < 0 and self._may_look:
            lanes, stop = self._laggards()
            if not lanes:
                break
            looked += self._advance(lanes, stop, budget - looked)
        self._laggards()  # what is full by now, or has come to the end, is given in this turn
        return looked

    def _look_at_returned(self, budget: int) -> int:
        found = self._core.look(
            self._queue_id, self._returned_at, min(_LOOK_MESSAGES, budget), returned_only=True
        )
        returned = self._returned
        for message in found.messages:
            sequence = message.sequence
            if sequence in returned:
                continue
            lanes = [lane for lane in self._lanes.values() if sequence < lane.cursor]
            wanting = self._wanting(lanes, message)
            if wanting is None:
                self._returned_at = sequence
                return _LOOK_COST
            if message.is_special and not self._is_to_be_given(message):
                continue
            returned.add(sequence)
            for lane in wanting:
                self._index(lane, message)
        self.absent = found.absent
        is_over = found.next_sequence >= self._available
        self._returned_at = -1 if is_over else found.next_sequence
        return len(found.messages) + _LOOK_COST

    def _looks_for_raised(self) -> bool:
        """Whether messages of raised priority may stand where no lane has looked, or will soon."""
        lanes = self._lanes.values()
        if self._returned_at >= 0 or (
            not self._walk.has_pages and all(lane.is_filling for lane in lanes)
        ):
            return False
        level = self._raised.level(min((lane.cursor for lane in lanes), default=0), self._available)
        # With enough of them, which are the first of all, the search need not go on now.
        return level > 0 and not any(lane.has_enough(level, self._bounds.keys) for lane in lanes)

    def _look_for_raised(self, budget: int) -> int:
        """Take in messages of raised priority from where lanes have not looked yet."""
        lanes = list(self._lanes.values())
        level = self._raised.level(min(lane.cursor for lane in lanes), self._available)
        at = self._raised.cursors[level]
        matches = [lane.match for lane in lanes]
        seen = self._walk.look(at, self._look_size(budget), least=level, matches=matches)
        # Higher ones are in the lanes that want them.
        found = [message for message in seen.messages if message.priority == level]
        judged, left_at = self._judged(lanes, found)
        for message, wanting in self._walk.in_ring(judged, seen.page_of):
            self._take_in([lane for lane in wanting if lane.cursor <= message.sequence], message)
        if left_at is None:
            self._raised.cursors[level] = seen.next_sequence
            self.absent, self._is_waiting = seen.absent, seen.is_waiting
        else:
            self._raised.cursors[level] = left_at
        return len(seen.messages) + _LOOK_COST + _JUDGE_COST * seen.judged

    def _look_size(self, budget: int) -> int:
        """Return how many messages to look at at once: a lane is overfull by no more than that."""
        return min(max(_LOOK_MESSAGES, self._bounds.keys // 4), budget)

    def _take_in(self, lanes: list[Lane], message: MessageView) -> None:
        """Put a message into lanes that want it, if it may be given at all."""
        if message.deliveries and is_retired(self._judge, self._queue, message):
            return
        if message.is_special and not self._is_to_be_given(message):
            return
        for lane in lanes:
            self._index(lane, message)

    @property
    def _may_look(self) -> bool:
        """Whether nothing is missing to look on."""
        return self.absent is None and not self._is_waiting and self._share.has_time

    def _judged(
        self, lanes: list[Lane], found: list[MessageView]
    ) -> tuple[list[tuple[MessageView, list[Lane]]], int | None]:
        """Return messages with the lanes that want them, and the sequence where time ended."""
        judged: list[tuple[MessageView, list[Lane]]] = []
        for message in found:
            wanting = self._wanting(lanes, message)
            if wanting is None:
                return judged, message.sequence
            judged.append((message, wanting))
        return judged, None

    def _wanting(self, lanes: list[Lane], message: MessageView) -> list[Lane] | None:
        """Return those of some lanes that want a message; None: there is no time now.

        What was found by then is kept, so thousands of selectors come to an end over some turns.
        """
        known = self._verdicts if self._verdicts_of == message.sequence else {}
        share, wanting = self._share, []
        for lane in lanes:
            match = lane.match
            if match is None:
                wanting.append(lane)
                continue
            verdict = known.get(match.text)
            if verdict is None:
                if not share.has_time:
                    self._verdicts, self._verdicts_of = known, message.sequence
                    return None
                verdict = known[match.text] = match.wants(message)
                share.did(match.cost_us(message))
            if verdict:
                wanting.append(lane)
        if self._verdicts_of == message.sequence:
            self._verdicts_of = -1  # it may come back, and be judged otherwise
        return wanting

    def _laggards(self) -> tuple[list[Lane], int]:
        """Return the lanes that are farthest behind, and where the next one stands."""
        available = self._available
        filling = []
        for lane in self._lanes.values():
            if self._looks_on(lane):
                filling.append(lane)
            elif lane.cursor >= available:
                lane.is_primed = True
        if not filling:
            return filling, available
        first = min(lane.cursor for lane in filling)
        lanes = [lane for lane in filling if lane.cursor == first]
        stop = min((lane.cursor for lane in filling if lane.cursor > first), default=available)
        return lanes, stop

    def _advance(self, lanes: list[Lane], stop: int, budget: int) -> int:
        """Have lanes that stand at one place look on, together, up to a sequence."""
        matches = [lane.match for lane in lanes]
        seen = self._walk.look(lanes[0].cursor, self._look_size(budget), matches=matches)
        end, found = min(seen.next_sequence, stop), seen.messages
        if end < seen.next_sequence:
            found = [message for message in found if message.sequence < end]
        judged, left_at = self._judged(lanes, found)
        if left_at is not None:
            end = left_at
        for message, wanting in self._walk.in_ring(judged, seen.page_of):
            if message.is_special:
                self._ordinary_run = 0
            else:
                self._ordinary_run += 1
            if message.is_returned:
                self._returned.add(message.sequence)
            self._take_in(wanting, message)
        for lane in lanes:
            lane.cursor = end
        if end == seen.next_sequence and (seen.absent is not None or seen.is_waiting):
            for lane in lanes:  # what has something to give does not ask for more
                lane.is_stuck = lane.is_primed = True
            if not all(lane.keys for lane in lanes):
                self.absent, self._is_waiting = seen.absent, seen.is_waiting
        return len(seen.messages) + _LOOK_COST + _JUDGE_COST * seen.judged

    def _is_to_be_given(self, message: MessageView) -> bool:
        """Whether a special message may be given: it is neither scheduled nor has it expired."""
        if self._judge is None:
            return True
        before_ms = self._judge.settle(self._queue, message)
        if before_ms == NOT_TO_BE_GIVEN:
            return False
        if before_ms:
            self._expires[message.sequence] = before_ms
        return True

    def _is_over(self, sequence: int) -> bool:
        """Whether a message has expired since it was looked at; then it leaves the queue."""
        expires_ms = self._expires.get(sequence, 0)
        if not expires_ms or self._judge is None or expires_ms > self._judge.now_ms():
            return False
        found = self._core.look(self._queue_id, sequence, 1)
        for message in found.messages:
            if message.sequence == sequence:
                return self._judge.settle(self._queue, message) == NOT_TO_BE_GIVEN
        return found.absent is None  # else whoever gives it will have it loaded, and ask again

    def _bound(self) -> None:
        """Begin anew where what came back has made a lane too long."""
        for lane in self._lanes.values():
            lane.is_stuck = False
        longest = max((len(lane.keys) for lane in self._lanes.values()), default=0)
        if longest > 4 * (self._bounds.keys + _LOOK_MESSAGES) or len(self._returned) > 2 * KEYS_MAX:
            self._reset()

    def _index(self, lane: Lane, message: MessageView) -> None:
        lane.push(key_of(message.priority, message.sequence))
        if message.is_special:
            group = self.groups.group_of(message.properties)
            if group is not None:
                self._group_of[message.sequence] = group
                if closes_group(message.properties):
                    self._closing.add(message.sequence)

    # --- taking ---------------------------------------------------------------------------------

    def waiting(self, consumer: Consumer) -> int:
        """Return how many messages there are for a consumer, about."""
        taker = self._takers[consumer]
        return len(taker.lane.keys) + len(taker.own)

    def blocking_owners(self, takers: Collection[Consumer]) -> list[Consumer]:
        """Return the owners of the groups that all messages in the index belong to.

        Args:
            takers: Consumers that would take messages; those that nobody would take are passed
                over, and of each selector the first `_KEYS_EXPLAINED` count for all.

        Returns:
            None of them if a message may go to one of `takers`.
        """
        owners = {one: None for one, taker in self._takers.items() if taker.own}
        for lane in {self._takers[consumer].lane: None for consumer in takers}:
            for key in islice(lane.keys, _KEYS_EXPLAINED):
                group = self._group_of.get(key & SEQUENCE_MASK)
                owner = None if group is None else self.groups.owner(group)
                if owner is None:
                    return []
                owners[owner] = None
        return [] if any(owner in takers for owner in owners) else list(owners)

    @property
    def has_left(self) -> bool:
        """Whether messages of groups were passed over whose owner takes with another selector."""
        return self._has_left

    @property
    def is_rebalancing(self) -> bool:
        """Whether nothing is given until all messages are acknowledged."""
        return self._is_rebalancing

    def take(self, consumer: Consumer, count: int) -> Batch:
        """Take the next messages for a consumer off the index.

        Args:
            consumer: The consumer.
            count: How many at most.

        Returns:
            None of them when there are none, or too little was looked at; to be ended by `settle`.
        """
        taker = self._takers[consumer]
        lane, own = taker.lane, taker.own
        batch = Batch()
        if lane.match is None and not lane.is_primed:
            return batch
        count = min(count, taker.size)
        fresh_max = count if len(self._takers) == 1 else 1 + taker.groups // _GROUPS_A_STEP
        if not (own or self._group_of or self._expires):
            batch.keys = lane.pop_many(count)
            return batch
        keys, taken = lane.keys, batch.keys
        while len(taken) < count:
            if own and not (keys and keys[0] < own[0]):
                key = heappop(own)
                lane.owned -= 1
            elif keys:
                key = lane.pop()
                if self._group_of and not self._is_takers(consumer, taker, key, batch):
                    continue
                if len(batch.fresh) > fresh_max:
                    self._put_back_fresh(taker, key, batch)
                    break
                if batch.fresh and self._kind.group_first_key:
                    if taken:
                        self._put_back_fresh(taker, key, batch)
                    else:
                        taken.append(key)
                        batch.first_key = self._kind.group_first_key
                    break
            else:
                break
            if self._expires and self._is_over(key & SEQUENCE_MASK):
                del self._expires[key & SEQUENCE_MASK]
                continue
            taken.append(key)
            if self._closing and key & SEQUENCE_MASK in self._closing:
                break
        return batch

    def _is_takers(self, consumer: Consumer, taker: Taker, key: int, batch: Batch) -> bool:
        """Whether a message is in no group, or in one that is this consumer's, or is from now."""
        group = self._group_of.get(key & SEQUENCE_MASK)
        if group is None:
            return True
        owner = self.groups.owner(group)
        if owner is None:
            self.groups.assign(group, consumer)
            taker.groups += 1
            batch.fresh[group] = len(batch.keys)
            return True
        if owner is consumer:
            return True
        other = self._takers[owner]
        if other.lane is taker.lane:
            heappush(other.own, key)
            taker.lane.owned += 1
        else:  # the owner finds it in its own lane, if its selector wants it
            self._has_left = True
        return False

    def _put_back_fresh(self, taker: Taker, key: int, batch: Batch) -> None:
        """Leave a message to another consumer: this one has got enough new groups for now."""
        group, _ = batch.fresh.popitem()
        self.groups.release(group)
        taker.groups -= 1
        taker.lane.push(key)

    def settle(self, consumer: Consumer, batch: Batch, passed: int) -> None:
        """Put back what a consumer was not given after all.

        Args:
            consumer: The consumer.
            batch: What was taken for it.
            passed: How many of them, from the first on, were given or cannot be given any more.
        """
        taker, keys = self._takers[consumer], batch.keys
        if passed < len(keys):
            taker.size = passed + 1
        elif passed == taker.size:
            taker.size = min(2 * passed, _SIZE_MAX)
        if self._returned:
            self._returned.difference_update([key & SEQUENCE_MASK for key in keys[:passed]])
        if self._expires:
            for key in keys[:passed]:
                self._expires.pop(key & SEQUENCE_MASK, None)
        if self._group_of:
            self._settle_groups(taker, batch, passed)
        else:
            for key in keys[passed:]:
                taker.lane.push(key)

    def _settle_groups(self, taker: Taker, batch: Batch, passed: int) -> None:
        group_of = self._group_of
        is_any_closed = False
        for key in batch.keys[:passed]:
            sequence = key & SEQUENCE_MASK
            group = group_of.pop(sequence, None)
            if sequence in self._closing:
                self._closing.discard(sequence)
                assert group is not None
                self.groups.release(group)
                taker.groups -= 1
                is_any_closed = True
        for group, index in batch.fresh.items():
            if index >= passed:
                self.groups.release(group)
                taker.groups -= 1
        for key in batch.keys[passed:]:
            taker.lane.push(key)
        if is_any_closed:
            taker.lane.merge(taker.own)
            taker.own.clear()
            self._find_left()


def examine_anew(
    core: Core, judge: Judge | None, consumer: Consumer, change: Callable[[], None]
) -> None:
    """Change what a consumer wants; its queue is examined from then on, unless it has views.

    Args:
        core: The core.
        judge: Decides about special messages.
        consumer: The consumer.
        change: Changes it.
    """
    queue = consumer.queue
    if queue.examined is not None:
        queue.examined.remove(consumer)
    change()
    if queue.examined is not None:
        queue.examined.add(consumer)
    elif queue.views is None:
        queue.examined = ExaminedQueue(core, queue, judge)

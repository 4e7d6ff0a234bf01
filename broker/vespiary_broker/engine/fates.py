"""What becomes of messages that are not simply given to the next consumer.

Owns the decision about special messages (those with a time to live, or scheduled ones), and the
timing of all that moves, waits and expires. The parts: `redelivery` takes messages back, `schedule`
holds those whose time has not come, `expiry` looks for those whose time is over, `moves` takes
messages out of their queues, `dead_letters` says where to. Plain messages never come here.

Called by dispatch for each special message that is next (`settle`), by the server's cycle once a
turn (`work`) and when `next_ms` is reached; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from vespiary_broker.engine.clocks import Clocks
from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.expiry import ExpiryScan
from vespiary_broker.engine.message_times import NO_TIMES, MessageTimes, read_times
from vespiary_broker.engine.moves import Mover, Reason
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.redelivery import Redelivery
from vespiary_broker.engine.schedule import Schedule
from vespiary_broker.engine.settling import NOT_TO_BE_GIVEN
from vespiary_broker.engine.turn_time import Share, TurnTime

_ARRIVED_A_TURN: Final = 64
_DONE: Final = (0, 0)
_CROWD_MESSAGES: Final = 4096
"""So many messages of a queue may be on their way out before the scan finds more of them."""
_LATE_MS: Final = 20
_LOOK_US: Final = 50.0
_RELEASES_A_TURN: Final = 8
_RELEASE_US: Final = 100.0


class Verdict(Enum):
    """What to do with a message whose turn it is."""

    GIVE = "give"
    ASIDE = "aside"
    END = "end"


class Fate(NamedTuple):
    """The decision about a message.

    Attributes:
        verdict: What to do.
        until_ms: GIVE: when it expires, 0 never. ASIDE: when it may be given.
    """

    verdict: Verdict
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FateStatistics:
    """What became of messages since the start.

    Attributes:
        dead: Dead letters: moved to the dead letter address.
        dead_dropped: Messages dropped after too many deliveries.
        expired: Expired messages that were moved to the expiry address.
        expired_dropped: Expired messages that were dropped.
        scheduled: Messages that wait for their time now.
        delayed: Messages that wait for their redelivery delay now.
        dead_kept: How often messages stayed after too many deliveries: they had nowhere to go.
        unmovable: How often messages could not be moved and are delivered again.
        unreadable_parts: Parts of files that cannot be read: nothing expires or is moved there.
    """

    dead: int
    dead_dropped: int
    expired: int
    expired_dropped: int
    scheduled: int
    delayed: int
    dead_kept: int
    unmovable: int
    unreadable_parts: int


class Fates:
    """Decides about special messages, and drives what waits.

    Attributes:
        mover: Takes messages out of queues.
        redelivery: Takes messages back.
        schedule: Holds messages whose time has not come.
        clock_ms: Milliseconds since 1970.
        is_owed: Whether an expired message must still be delivered.
        wake: Called when there is something to do and no turn may come by itself; the server sets
            it.

    Args:
        core: The core.
        queues: Queues by number.
        mover: Takes messages out of queues.
        redelivery: Takes messages back.
        load_slab: Begins to read a slab that is not in memory.
        clocks: The clocks.
        scan_period_ms: Time between two scans for expired messages; 0 or less: they stay until it
            is their turn.
        turn_time: What a turn of the loop has for the looks at messages; None: there is no bound.
    """

    def __init__(
        self,
        core: Core,
        queues: Mapping[int, Queue],
        mover: Mover,
        redelivery: Redelivery,
        *,
        load_slab: Callable[[int, int], None],
        clocks: Clocks,
        scan_period_ms: int,
        turn_time: TurnTime | None = None,
    ) -> None:
        self.mover = mover
        self.redelivery = redelivery
        self.schedule = Schedule(core, load_slab, mover.unreadable)
        self.wake: Callable[[], None] = lambda: None
        self._core = core
        self._queues = queues
        self._load_slab = load_slab
        self.clock_ms = clocks.wall_ms
        self.is_owed: Callable[[Queue, MessageView], bool] = lambda _queue, _view: False
        self._steady_ms = steady_ms = clocks.steady_ms
        self._period_ms = scan_period_ms
        self._turn_time = turn_time or TurnTime()
        self._expiry = ExpiryScan(
            core,
            queues,
            self.meet,
            clocks.wall_ms,
            unreadable=mover.unreadable,
            is_crowded=lambda queue_id: (
                mover.pending_for(queue_id, Reason.EXPIRED) >= _CROWD_MESSAGES
            ),
        )
        self._scan: Iterator[tuple[int, int] | None] | None = None
        self._slab: tuple[int, int] | None = None
        self._is_late_scan = False
        self._next_full_ms = steady_ms() + scan_period_ms
        self._scan_at_ms: int | None = steady_ms()  # what was restored is looked through at once
        self._has_specials = False
        self._arrived: dict[int, None] = {}

    # --- one message ----------------------------------------------------------------------------

    @staticmethod
    def _fate(times: MessageTimes, now_ms: int) -> Fate:
        if 0 < times.expires_ms <= now_ms:
            return Fate(Verdict.END)
        if times.deliver_at_ms > now_ms:
            return Fate(Verdict.ASIDE, times.deliver_at_ms)
        return Fate(Verdict.GIVE, times.expires_ms)

    def now_ms(self) -> int:
        """Return the clock (see `settling.Judge`)."""
        return self.clock_ms()

    def is_due(self, view: MessageView) -> bool:
        """Whether a special message has expired, or is scheduled (see `settling.Judge`)."""
        fate = self._fate(read_times(view.properties), self.clock_ms())
        return fate.verdict is not Verdict.GIVE

    def settle(self, queue: Queue, view: MessageView) -> int:
        """Decide about a deliverable special message, and do what is decided.

        Args:
            queue: Its queue.
            view: The message.

        Returns:
            `NOT_TO_BE_GIVEN`: it was set aside, and is no longer deliverable. Else it may be given
            before this time (milliseconds since 1970), 0: at any time.
        """
        times = read_times(view.properties)
        if times is NO_TIMES:
            return 0
        now_ms = self.clock_ms()
        fate = self._fate(times, now_ms)
        if fate.verdict is Verdict.GIVE:
            return fate.until_ms
        if fate.verdict is Verdict.END and self.is_owed(queue, view):
            return 0
        self._leave(queue, view, fate, now_ms)
        return NOT_TO_BE_GIVEN

    def retire(self, queue: Queue, sequence: int) -> bool:
        """Take a deliverable message away that was delivered too often (see `settling.Judge`)."""
        if not self._core.set_aside(queue.id, sequence):
            return False
        self.mover.add(queue, sequence, Reason.DELIVERIES)
        return True

    def _leave(self, queue: Queue, view: MessageView, fate: Fate, now_ms: int) -> None:
        if fate.verdict is Verdict.ASIDE:
            self.schedule.hold(queue.id, view.sequence, fate.until_ms, now_ms)
        elif self._core.set_aside(queue.id, view.sequence):
            self.mover.add(queue, view.sequence, Reason.EXPIRED)

    def meet(self, queue: Queue, view: MessageView, times: MessageTimes, now_ms: int) -> bool:
        """Do what is due with a message that the scan met; return whether it leaves its queue."""
        self._has_specials = True
        if view.is_held:
            return False
        fate = self._fate(times, now_ms)
        if fate.verdict is Verdict.END:
            if self._period_ms <= 0 or self.is_owed(queue, view):
                return False
            if view.is_aside:  # scheduled, or delayed: it expires there
                if times.deliver_at_ms > now_ms:
                    self.schedule.discard_left(queue.id, [view.sequence])
                self.mover.add(queue, view.sequence, Reason.EXPIRED)
            else:
                self._leave(queue, view, fate, now_ms)
            return True
        if fate.verdict is Verdict.ASIDE and not view.is_aside:
            self._leave(queue, view, fate, now_ms)
        return False

    # --- what goes on by itself -----------------------------------------------------------------

    def special_sent(self) -> None:
        """Note that special messages come in, also to queues that nobody consumes from."""
        self._has_specials = True

    def arrived(self, queue_ids: Iterable[int]) -> None:
        """Look soon at what came into queues that nobody consumes from.

        Args:
            queue_ids: Queues that gained messages.
        """
        if self._has_specials:
            for queue_id in queue_ids:
                queue = self._queues.get(queue_id)
                if queue is not None and not queue.consumers:
                    self._arrived[queue_id] = None

    def work(self) -> bool:
        """Do what is due, a bounded part of it; return whether anything was staged."""
        now_ms = self.clock_ms()
        self.redelivery.put_back_due()
        self._release_due(now_ms)
        if self._scan is None and self._scan_at_ms is not None:
            self._begin_scan()
        if self._arrived:
            share = self._turn_time.share(self)
            self._look_at_arrived(share)
            share.end()
        if self._is_scanning:  # waits for its own turns: what arrives may take all of each
            share = self._turn_time.share(self._expiry)
            if share.has_time:
                self._step()
            share.end()
        return self.mover.work()

    def _release_due(self, now_ms: int) -> None:
        """Let messages be delivered whose time has come, a bounded part of them."""
        next_ms = self.schedule.waiting.next_ms
        if next_ms is None or next_ms > now_ms:
            return
        share = self._turn_time.share(self.schedule)
        for _ in range(_RELEASES_A_TURN):
            if not share.has_time or not self.schedule.release_due(now_ms):
                break
            share.did(_RELEASE_US)
        share.end()

    def _begin_scan(self) -> None:
        """Begin a scan if it is time: of all queues, or of those that the last one left early."""
        steady_ms = self._steady_ms()
        if self._scan_at_ms is None or self._scan_at_ms > steady_ms:
            return
        self._scan_at_ms = None
        late = list(self._expiry.late)
        if self._is_late_scan and steady_ms < self._next_full_ms:
            self._scan = self._expiry.scan(late)
            return
        self._next_full_ms = steady_ms + self._period_ms
        self._scan = self._expiry.scan()

    def _end_scan(self) -> None:
        self._scan = None
        self._is_late_scan = bool(self._expiry.late)
        if self._is_late_scan:
            self._scan_at_ms = self._steady_ms() + _LATE_MS
        elif self._period_ms > 0:
            self._scan_at_ms = max(self._next_full_ms, self._steady_ms() + _LATE_MS)

    def _step(self) -> None:
        """Go on with the scan, a few dozen messages."""
        assert self._scan is not None
        try:
            self._slab = next(self._scan)
        except StopIteration:
            self._end_scan()
            return
        if self._slab is not None:
            self._load_slab(*self._slab)

    def _look_at_arrived(self, share: Share) -> None:
        """Look at what came into queues that nobody consumes from, a bounded part of it."""
        for queue_id in list(islice(self._arrived, _ARRIVED_A_TURN)):
            if not share.has_time:
                return
            share.did(_LOOK_US)
            del self._arrived[queue_id]
            queue = self._queues.get(queue_id)
            if queue is None:
                continue
            # What is not in memory the scan will load.
            if next(self._expiry.discover(queue), _DONE) is None:
                self._arrived[queue_id] = None  # the rest in another turn, behind the others
                return

    @property
    def _is_scanning(self) -> bool:
        return self._scan is not None and self._slab is None

    @property
    def has_more(self) -> bool:
        """Whether `work` has something to do in the next turn of the loop."""
        if self._is_scanning or self._arrived or self.mover.has_work:
            return True
        next_ms = self.next_ms
        return next_ms is not None and next_ms <= self.clock_ms()

    @property
    def next_ms(self) -> int | None:
        """When `work` has something to do, by the clock as it is set now; None: never."""
        steady = (self.redelivery.next_ms, self._scan_at_ms, self.mover.next_ms)
        ahead_ms = self.clock_ms() - self._steady_ms()
        times = [time + ahead_ms for time in steady if time is not None]
        scheduled_ms = self.schedule.waiting.next_ms
        if scheduled_ms is not None:
            times.append(scheduled_ms)
        return min(times, default=None)

    def go_on(self) -> None:
        """Try again what waited for room in the journal, for memory or for a place."""
        self.mover.go_on()

    def place_made(self) -> None:
        """Go on with what waited for a place to be made, in a turn that may come for nothing else.

        Also when it could not be made: that decides as well.
        """
        self.go_on()
        self.wake()

    def slab_loaded(self, file_id: int, slab: int) -> None:
        """Go on with what waited for a slab; also when it could not be loaded: it is tried again.

        Args:
            file_id: The file.
            slab: Index of the slab.
        """
        self.mover.go_on()
        if self._slab == (file_id, slab):
            self._slab = None

    @property
    def has_specials(self) -> bool:
        """Whether any special message was met or sent since the start."""
        return self._has_specials

    def suspect(self, queue_id: int, first: int, last: int) -> None:
        """Have the scan look at a part of a queue that came back from a page."""
        self._expiry.suspect(queue_id, first, last)

    def slab_lost(self, file_id: int, slab: int) -> bool:
        """Go on without a slab that does not verify any more: what stands there stays there.

        Args:
            file_id: The file.
            slab: Index of the slab.

        Returns:
            Whether that is news.
        """
        is_new = self.mover.unreadable.add((file_id, slab))
        self.slab_loaded(file_id, slab)
        return is_new

    def slab_not_read(self, file_id: int, slab: int) -> None:
        """Have the scan go on with other queues: a slab was not read, and is tried again.

        Args:
            file_id: The file.
            slab: Index of the slab.
        """
        if self._slab == (file_id, slab):
            self._expiry.give_up()
            self._slab = None

    def forget(self, queue_id: int) -> None:
        """Forget all that waits in a queue: it is gone, or empty."""
        self.mover.forget(queue_id)
        self.redelivery.forget(queue_id)
        self.schedule.waiting.forget(queue_id)
        self._expiry.forget(queue_id)
        self._arrived.pop(queue_id, None)

    def statistics(self) -> FateStatistics:
        """Return the counters."""
        moved, dropped = self.mover.moved, self.mover.dropped
        return FateStatistics(
            dead=moved[Reason.DELIVERIES],
            dead_dropped=dropped[Reason.DELIVERIES],
            expired=moved[Reason.EXPIRED],
            expired_dropped=dropped[Reason.EXPIRED],
            scheduled=len(self.schedule.waiting),
            delayed=len(self.redelivery.delayed) + len(self.redelivery.kept),
            dead_kept=self.mover.kept[Reason.DELIVERIES],
            unmovable=self.mover.unmovable.total(),
            unreadable_parts=len(self.mover.unreadable),
        )

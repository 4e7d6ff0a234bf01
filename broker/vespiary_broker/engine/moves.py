"""Messages on their way out of a queue by no consumer: dead letters, expired, moved by hand.

Owns the messages that were set aside to be moved or dropped, and the moving: all of a batch is one
transaction that ends them in their queue and publishes them where they go, so after any crash each
is in one of the two, and never in none. A large message takes its body along: the file gets a place
in the other queue before it loses the one here. What finds no room in the journal waits for it. A
turn does a bounded part, one queue after the other, however many messages wait here, and however
large they are or many filters decide about them (`turn_time`).
Must never decide where something goes: `dead_letters` does. Called by `fates`, `redelivery` and the
admin API; owner: the event loop.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, LargeBody, MessageView, NoRoom
from vespiary_broker.engine.message_times import MessageTimes, expiry, stamp
from vespiary_broker.engine.obstacles import (
    NO_DEAD_LETTER_ADDRESS,
    NO_ROOM,
    NOT_MADE,
    Obstacle,
    full,
    rejected,
    too_large,
    untaken,
)
from vespiary_broker.engine.open_transaction import aborted_on_failure
from vespiary_broker.engine.original_headers import moved_properties, returned_properties
from vespiary_broker.engine.pending_sequences import PendingSequences
from vespiary_broker.engine.property_lines import is_escaped, value_of
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.routing import NOWHERE, Route
from vespiary_broker.engine.stream_gaps import GapReason
from vespiary_broker.engine.transactions import transaction_bytes
from vespiary_broker.engine.turn_time import Share, TurnTime
from vespiary_broker.engine.unreadable_parts import UnreadableParts
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.record import ADD, PLACE, TRANSACTION
from vespiary_spec.settings import AddressSettings

BATCH_MESSAGES: Final = 64
BATCH_BYTES: Final = 256 * 1024
_DROP_AT_ONCE: Final = 512
_DROPS_A_MOVE: Final = 8
_TURN_MOVES: Final = 64
_LATER_MS: Final = 1000
_SILENT_MS: Final = 60_000
_TOO_LARGE: Final = "its record has no room for another place"
_PROPERTIES_BYTES_MAX: Final = 65535
_NOTES_MAX: Final = 65_536
_PRIORITY: Final = 4
_BATCH_US: Final = 1000.0

log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a message leaves its queue."""

    DELIVERIES = "deliveries"
    EXPIRED = "expired"
    RETRIED = "retried"


_GAPS: Final = {
    Reason.DELIVERIES: GapReason.DEAD_LETTER,
    Reason.EXPIRED: GapReason.EXPIRED,
    Reason.RETRIED: GapReason.MOVED,
}


class Place(NamedTuple):
    """Where messages go.

    Attributes:
        address: Name of the address.
        route: The route there.
        origin: Address that messages have to name as their origin there; empty: any.
        expiry: Settings that say when messages expire there; None: they do not.
    """

    address: str
    route: Route
    origin: str = ""
    expiry: AddressSettings | None = None


class Shed(NamedTuple):
    """A place that is full and drops what comes.

    Attributes:
        address: Name of the address.
        note: Counts messages that it has dropped.
    """

    address: str
    note: Callable[[int], None]


class NoPlace(StrEnum):
    """Why messages do not go anywhere now."""

    DROPPED = "dropped"  # there is nowhere to go
    KEPT = "kept"  # they stay where they are, and are delivered again
    WAITING = "waiting"  # the place is being made; `Mover.go_on` follows
    LATER = "later"  # the place could not be had: they wait here until it is tried again
    FULL = "full"  # the place has no room: they wait here until it has
    REFUSED = "refused"  # the place is full and refuses them: they stay, and are delivered again


class Places(Protocol):
    """Decides where messages go."""

    def target(self, queue: Queue, reason: Reason, to: str = "") -> str:
        """Return the name of the address or queue that messages would go to, for people."""

    def find(self, queue: Queue, reason: Reason, to: str = "") -> Place | Shed | NoPlace:
        """Return where messages of a queue go.

        Args:
            queue: Their queue.
            reason: Why they leave it.
            to: The queue that they were in before, if they go back.
        """


_Key = tuple[int, Reason, str]


@dataclass(eq=False, slots=True)
class _Work:
    """Messages of one queue that leave it for one reason."""

    queue: Queue
    reason: Reason
    to: str
    sequences: PendingSequences = field(default_factory=PendingSequences)
    published: int = 0  # it is at its new place already, and has to be ended here
    is_waiting: bool = False
    is_moving: bool = False
    begun_ms: int = 0  # when its first message was begun with, which takes long; 0: it was not
    obstacle: Obstacle | None = None  # what it waits for, if that may take long

    @property
    def count(self) -> int:
        return len(self.sequences) + bool(self.published)


class _Moved:
    """A message at its new place, as filters there see it (`switching.SentMessage`)."""

    __slots__ = ("body", "is_escaped", "is_persistent", "large", "priority", "properties")

    def __init__(self, view: MessageView, properties: bytes, body: bytes) -> None:
        self.properties = properties
        self.body = body
        self.priority = view.priority
        self.is_persistent = view.is_journalled
        self.is_escaped = is_escaped(properties)
        self.large: LargeBody | None = None
        if view.is_large:
            reference = decode_large_reference(body)
            self.large = LargeBody(reference.large_id, reference.size_bytes, reference.crc)


def _is_ordered(view: MessageView, properties: bytes) -> bool:
    """Whether a message has its place by more than its sequence, so that Python looks at it."""
    return view.priority != _PRIORITY or value_of(properties, b"JMSXGroupID") is not None


class _Gathered(NamedTuple):
    """A message that is ready to be moved, and the core's route for it."""

    handle: int
    view: MessageView
    properties: bytes
    body: bytes
    is_expiring: bool


class Mover:
    """Moves messages out of their queues, or drops them.

    Attributes:
        moved: Messages moved, by reason.
        dropped: Messages dropped, by reason.
        kept: Messages that are delivered again since they have nowhere to go, by reason.
        unmovable: How often messages could not be moved and are delivered again, by reason.
        unreadable: Parts of files that no message can be moved out of.
        places: Decides where they go; set by who puts the engine together.
        keep: Has a message delivered again, given how often it was; set likewise.
        on_no_room: Called when something waits for room in the journal.

    Args:
        core: The core.
        transaction_room_bytes: Room in the journal that each transaction finds sooner or later.
        load_slab: Begins to read a slab that is not in memory.
        clock_ms: Milliseconds since 1970.
        steady_ms: Milliseconds of a clock that nobody sets.
        turn_time: What a turn of the loop has for this; None: there is no bound.
    """

    def __init__(
        self,
        core: Core,
        *,
        transaction_room_bytes: int,
        load_slab: Callable[[int, int], None],
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        turn_time: TurnTime | None = None,
    ) -> None:
        self.moved: Counter[Reason] = Counter()
        self.dropped: Counter[Reason] = Counter()
        self.kept: Counter[Reason] = Counter()
        self.unmovable: Counter[Reason] = Counter()
        self.unreadable = UnreadableParts()
        self.places: Places | None = None
        self.keep: Callable[[Queue, int, int, int], None] = self._put_back
        self.on_no_room: Callable[[], None] = lambda: None
        self._core = core
        self._room_bytes = transaction_room_bytes
        self._batch_bytes = min(BATCH_BYTES, transaction_room_bytes // 4)
        self._load_slab = load_slab
        self._clock_ms = clock_ms
        self._steady_ms = steady_ms
        self._turn_time = turn_time or TurnTime()
        self._work: dict[_Key, _Work] = {}
        self._active: dict[_Key, None] = {}  # what does not wait; those that come next come first
        self._counts: Counter[int] = Counter()  # works of each queue
        self._told: set[tuple[int, Reason]] = set()
        self._silent_until_ms: dict[int, int] = {}
        self._notes: dict[tuple[int, int], bytes] = {}
        self._obstacles: dict[int, Obstacle] = {}  # why messages of a queue were kept, lately
        self._retry_ms: int | None = None

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something now."""
        return bool(self._active)

    @property
    def next_ms(self) -> int | None:
        """When something is to be tried again, by the steady clock; None: nothing."""
        return self._retry_ms

    def pending(self, queue_id: int) -> int:
        """Return how many messages of a queue are set aside to leave it."""
        if queue_id not in self._counts:
            return 0
        return sum(work.count for (queue, _, _), work in self._work.items() if queue == queue_id)

    def is_leaving(self, queue_id: int, sequence: int) -> bool:
        """Whether a message is set aside to leave its queue; costs a look at all that are."""
        return queue_id in self._counts and any(
            queue == queue_id and sequence in work.sequences
            for (queue, _, _), work in self._work.items()
        )

    def pending_for(self, queue_id: int, reason: Reason) -> int:
        """Return how many messages of a queue are set aside to leave it for a reason."""
        work = self._work.get((queue_id, reason, ""))
        return 0 if work is None else work.count

    def hindered(self, queue_id: int) -> tuple[int, Obstacle | None]:
        """Return how many messages of a queue wait here for what may take long, and for what."""
        if queue_id not in self._counts:
            return 0, None
        works = [
            work
            for (queue, _, _), work in self._work.items()
            if queue == queue_id and work.obstacle is not None
        ]
        return sum(work.count for work in works), works[0].obstacle if works else None

    def obstacle(self, queue_id: int) -> Obstacle | None:
        """Return why messages of a queue were kept that could not be moved; None: none were."""
        return self._obstacles.get(queue_id)

    def add(
        self, queue: Queue, sequence: int, reason: Reason, to: str = "", note: bytes = b""
    ) -> None:
        """Have a message that is set aside leave its queue.

        Args:
            queue: Its queue.
            sequence: Its sequence there.
            reason: Why.
            to: The queue that it was in before, if it goes back.
            note: Header lines that it gets at its new place; not kept over a restart.
        """
        if note and len(self._notes) < _NOTES_MAX:
            self._notes[queue.id, sequence] = note
        key = (queue.id, reason, to)
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = _Work(queue, reason, to)
            self._counts[queue.id] += 1
            self._active[key] = None
        work.sequences.add(sequence)

    def forget(self, queue_id: int) -> None:
        """Forget the messages of a queue: it is gone."""
        if self._counts.pop(queue_id, 0):
            for key in [key for key in self._work if key[0] == queue_id]:
                del self._work[key]
                self._active.pop(key, None)
        for key_of_note in [key for key in self._notes if key[0] == queue_id]:
            del self._notes[key_of_note]
        self._silent_until_ms.pop(queue_id, None)
        self._obstacles.pop(queue_id, None)
        for reason in Reason:
            self._told.discard((queue_id, reason))

    def go_on(self) -> None:
        """Try again what waited: for room, for memory, or for a place to be made."""
        if len(self._active) < len(self._work):
            for key, work in self._work.items():
                work.is_waiting = False
                self._active.setdefault(key)

    def work(self) -> bool:
        """Stage the next batches, a bounded part; return whether anything was staged.

        Durability: a batch is in its new place or in its old one after any crash.
        """
        if self._retry_ms is not None and self._retry_ms <= self._steady_ms():
            self._retry_ms = None
            self.go_on()
        if not self._active:
            return False
        share = self._turn_time.share(self)
        try:
            return self._work_in_time(share)
        finally:
            share.end()

    def _work_in_time(self, share: Share) -> bool:
        is_staged = False
        left = _TURN_MOVES
        for key in list(islice(self._active, _TURN_MOVES)):
            if not share.has_time:
                break
            work = self._work[key]
            before = work.count
            is_staged |= self._advance(work, share)
            share.did(_BATCH_US)
            del self._active[key]
            if not work.count:
                self._end_work(key)
            elif not work.is_waiting:
                self._active[key] = None  # behind all others
            done = max(before - work.count, 1)
            left -= done if work.is_moving else -(-done // _DROPS_A_MOVE)
            if left <= 0:
                break
        return is_staged

    def _end_work(self, key: _Key) -> None:
        del self._work[key]
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]

    def _advance(self, work: _Work, share: Share) -> bool:
        assert self.places is not None
        work.obstacle = None
        try:
            if work.published:
                self._end_published(work)
            place = self.places.find(work.queue, work.reason, work.to)
            work.is_moving = isinstance(place, Place)
            if not work.is_moving:
                work.begun_ms = 0
            if isinstance(place, Place):
                return self._move(work, place, share)
            if isinstance(place, Shed):
                return self._shed(work, place)
            if place in (NoPlace.KEPT, NoPlace.REFUSED):
                return self._keep(work, is_refused=place is NoPlace.REFUSED)
            if place is NoPlace.DROPPED:
                return self._drop(work)
        except NoRoom:
            work.is_waiting = True
            work.obstacle = NO_ROOM
            self.on_no_room()
            return False
        work.is_waiting = True
        if place is NoPlace.FULL:
            work.obstacle = full(self._target(work))
        elif place is NoPlace.LATER:
            work.obstacle = NOT_MADE
        if place in (NoPlace.LATER, NoPlace.FULL) and self._retry_ms is None:
            self._retry_ms = self._steady_ms() + _LATER_MS
        return False

    def _target(self, work: _Work) -> str:
        assert self.places is not None
        return self.places.target(work.queue, work.reason, work.to)

    def _keep(self, work: _Work, *, is_refused: bool) -> bool:
        """Let messages be delivered again that have nowhere else to be."""
        self._obstacles[work.queue.id] = (
            full(self._target(work)) if is_refused else NO_DEAD_LETTER_ADDRESS
        )
        if work.reason is Reason.DELIVERIES and self._is_untold(work):
            log.warning(
                "messages that were delivered too often stay, since %s; they are delivered again, "
                "less and less often queue=%s",
                "their dead letter address is full and refuses them"
                if is_refused
                else "there is no dead letter address to move them to",
                work.queue.name,
            )
        for sequence in work.sequences.first(BATCH_MESSAGES):
            look = self._core.look(work.queue.id, sequence, 1, everything=True)
            found = look.messages and look.messages[0].sequence == sequence
            # How often one that is not in memory was delivered is not worth a read.
            self._keep_one(work, sequence, look.messages[0].deliveries if found else 0)
        work.sequences.drop(BATCH_MESSAGES)
        return False

    def _keep_one(self, work: _Work, sequence: int, deliveries: int) -> None:
        self.kept[work.reason] += 1
        if work.reason is Reason.RETRIED:
            self._put_back(work.queue, sequence, deliveries, 0)
        else:
            self.keep(work.queue, sequence, deliveries, 0)

    def _put_back(self, queue: Queue, sequence: int, _deliveries: int, _least_ms: int) -> None:
        self._core.put_back(queue.id, sequence)

    def _drop(self, work: _Work) -> bool:
        ended = self._end(work, work.sequences.first(_DROP_AT_ONCE))
        work.sequences.drop(_DROP_AT_ONCE)
        if ended and self._is_untold(work):
            setting = "expiry-address" if work.reason is Reason.EXPIRED else "dead-letter-address"
            log.warning(
                "messages are deleted, since they %s and their address has no %s "
                "queue=%s address=%s",
                "have expired" if work.reason is Reason.EXPIRED else "were delivered too often",
                setting,
                work.queue.name,
                work.queue.address.name,
            )
        return True

    def _shed(self, work: _Work, place: Shed) -> bool:
        """Drop messages whose place is full and drops what comes."""
        place.note(self._end(work, work.sequences.first(_DROP_AT_ONCE)))
        work.sequences.drop(_DROP_AT_ONCE)
        return True

    def _end(self, work: _Work, batch: list[int]) -> int:
        """End messages without a new place; return how many there were."""
        queue = work.queue
        before = self._core.queue_statistics(queue.id).acknowledged
        try:
            self._core.finish(queue.id, batch)
        finally:
            ended = self._core.queue_statistics(queue.id).acknowledged - before
            self.dropped[work.reason] += ended
            queue.count_departed(work.reason, ended)
            queue.note_left(_GAPS[work.reason], batch)
        return ended

    def _is_untold(self, work: _Work) -> bool:
        """Whether nobody was told yet what becomes of such messages; from now on somebody was."""
        key = (work.queue.id, work.reason)
        if key in self._told:
            return False
        self._told.add(key)
        return True

    # --- moving ---------------------------------------------------------------------------------

    def _move(self, work: _Work, place: Place, share: Share) -> bool:
        batch = work.sequences.first(BATCH_MESSAGES)
        done: set[int] = set()
        try:
            return self._move_batch(work, place, batch, done, share)
        finally:
            work.sequences.drop(BATCH_MESSAGES, [each for each in batch if each not in done])

    def _move_batch(
        self, work: _Work, place: Place, batch: list[int], done: set[int], share: Share
    ) -> bool:
        """Move what is in memory of a batch; notes in `done` what needs nothing more."""
        gathered: list[_Gathered] = []
        untaken: list[MessageView] = []
        who = (Mover, work.queue.id, work.reason, work.to)
        # What its filters have said so far holds for the message as it was then: with its times.
        now_ms, work.begun_ms = work.begun_ms or self._clock_ms(), 0
        for view, properties, body in self._gather(work, place, batch, done, now_ms):
            # Each batch has time for one filter at least, so it comes to its end: the clock is
            # looked at behind it, not behind the copying of the message.
            handle = place.route.handle_in_time(_Moved(view, properties, body), who, share)
            if handle is None:  # in the next turn
                work.begun_ms = 0 if gathered or untaken else now_ms
                break
            if handle == NOWHERE:
                untaken.append(view)
            else:
                is_expiring = place.expiry is not None and properties is not view.properties
                gathered.append(_Gathered(handle, view, properties, body, is_expiring))
        if untaken:
            self._stay(work, place, untaken)
            done.update(view.sequence for view in untaken)
        if not gathered:
            return bool(untaken)
        size_bytes = sum(len(each.properties) + len(each.body) for each in gathered)
        records = len(gathered) * (1 + max(1, place.route.places_max))
        if transaction_bytes(size_bytes, records) > self._room_bytes:
            self._move_alone(work, place, gathered[0], done)
            return True
        try:
            self._stage(work, place, gathered, done)
        except ValueError:
            self._move_one_by_one(work, place, gathered, done)
        return True

    def _stage(self, work: _Work, place: Place, gathered: list[_Gathered], done: set[int]) -> None:
        """Stage messages at their new place and their end here as one transaction.

        Raises:
            NoRoom: The journal has none now; nothing was changed.
            ValueError: The core does not take a message; nothing was changed.

        Durability: after any crash all of them are at their new place, or none of them.
        """
        number = secrets.randbits(63) + 1
        size_bytes = sum(len(each.properties) + len(each.body) for each in gathered)
        sequences = [each.view.sequence for each in gathered]
        self._core.begin(number, size_bytes, len(gathered) * (1 + max(1, place.route.places_max)))
        with aborted_on_failure(self._core, number):
            for each in gathered:
                self._publish(each, number)
            self._core.finish(work.queue.id, sequences, transaction=number)
            self._core.commit(number)
        done.update(sequences)
        for sequence in sequences if self._notes else ():
            self._notes.pop((work.queue.id, sequence), None)
        self.moved[work.reason] += len(gathered)
        work.queue.count_departed(work.reason, len(gathered))
        work.queue.note_left(_GAPS[work.reason], sequences)

    def _move_one_by_one(
        self, work: _Work, place: Place, gathered: list[_Gathered], done: set[int]
    ) -> None:
        """Move those of a batch that can be moved: one that cannot does not keep the others."""
        for each in gathered:
            try:
                self._stage(work, place, [each], done)
            except ValueError as error:
                done.add(each.view.sequence)
                self._return(work, place, each.view, rejected, str(error))

    def _return(
        self,
        work: _Work,
        place: Place,
        view: MessageView,
        obstacle: Callable[[str, str], Obstacle],
        why: str,
    ) -> None:
        """Have a message delivered again that cannot be moved; say so once a minute."""
        self._obstacles[work.queue.id] = obstacle(work.to or place.address, why)
        self.unmovable[work.reason] += 1
        work.queue.unmovable += 1
        self._notes.pop((work.queue.id, view.sequence), None)
        if work.reason is Reason.RETRIED:
            self._put_back(work.queue, view.sequence, view.deliveries, 0)
        else:
            # An expired one comes back as soon as somebody looks at it.
            least_ms = _SILENT_MS if work.reason is Reason.EXPIRED else _LATER_MS
            self.keep(work.queue, view.sequence, view.deliveries, least_ms)
        now_ms = self._steady_ms()
        if now_ms < self._silent_until_ms.get(work.queue.id, now_ms):
            return
        self._silent_until_ms[work.queue.id] = now_ms + _SILENT_MS
        log.error(
            "messages cannot be moved and are delivered again: consume or remove them, or give them"
            " another place to go queue=%s to=%s sequence=%d unmovable=%d reason=%r",
            work.queue.name,
            work.to or place.address,
            view.sequence,
            work.queue.unmovable,
            why,
        )

    def _move_alone(self, work: _Work, place: Place, one: _Gathered, done: set[int]) -> None:
        """Move a message that fits no transaction.

        It is published first, so a crash in between leaves it in both places rather than in none.
        Without room for its end it is not published again: that is tried on its own then.
        """
        try:
            self._publish(one, 0)
        except ValueError as error:
            done.add(one.view.sequence)
            self._return(work, place, one.view, rejected, str(error))
            return
        work.published = one.view.sequence
        done.add(one.view.sequence)
        self._end_published(work)

    def _end_published(self, work: _Work) -> None:
        """End a message that is at its new place."""
        self._core.finish(work.queue.id, [work.published])
        work.queue.note_left(_GAPS[work.reason], [work.published])
        work.published = 0
        self.moved[work.reason] += 1
        work.queue.count_departed(work.reason, 1)

    def _stay(self, work: _Work, place: Place, views: list[MessageView]) -> None:
        """Leave messages where they are that no queue takes; what has expired is dropped."""
        is_expired = work.reason is Reason.EXPIRED
        if self._is_untold(work):
            log.warning(
                "messages %s, since no queue there takes them queue=%s to=%s",
                "that have expired are dropped" if is_expired else "stay where they are",
                work.queue.name,
                work.to or place.address,
            )
        if is_expired:
            self._end(work, [view.sequence for view in views])
            return
        self._obstacles[work.queue.id] = untaken(work.to or place.address)
        for view in views:
            self._keep_one(work, view.sequence, view.deliveries)

    def _publish(self, one: _Gathered, number: int) -> None:
        view = one.view
        self._core.publish(
            one.handle,
            one.properties,
            one.body,
            persistent=view.is_journalled,
            protocol=view.protocol,
            priority=view.priority,
            escaped=is_escaped(one.properties),
            large=view.is_large,
            special=one.is_expiring or (view.is_special and _is_ordered(view, one.properties)),
            transaction=number,
        )

    def _gather(
        self, work: _Work, place: Place, batch: list[int], done: set[int], now_ms: int
    ) -> Iterator[tuple[MessageView, bytes, bytes]]:
        """Yield messages with their properties and bodies there, as far as they are in memory."""
        is_found, size_bytes = False, 0
        for sequence in batch:
            view = self._view(work, sequence)
            if view is None:
                if work.is_waiting:
                    break
                done.add(sequence)
                continue
            body = self._core.body(work.queue.id, sequence)
            if body is None:
                if self._load(work, self._core.absent_for(work.queue.id, sequence)):
                    break
                done.add(sequence)
                continue
            properties = self._properties(work, view, place, now_ms)
            if not self._fits(properties, body, place):
                properties = view.properties
                if not self._fits(properties, body, place):
                    done.add(sequence)
                    self._return(work, place, view, too_large, _TOO_LARGE)
                    continue
            size_bytes += len(properties) + len(body)
            if is_found and size_bytes > self._batch_bytes:
                break
            is_found = True
            yield view, properties, body
        if is_found:
            work.is_waiting = False  # what is missing is asked for again behind these

    def _properties(self, work: _Work, view: MessageView, place: Place, now_ms: int) -> bytes:
        if work.reason is Reason.RETRIED:
            return returned_properties(view.properties, place.address)
        expired_ms = now_ms if work.reason is Reason.EXPIRED else 0
        moved = moved_properties(view, work.queue, place.address, expired_ms, origin=place.origin)
        moved = self._notes.get((work.queue.id, view.sequence), b"") + moved
        if place.expiry is None:
            return moved
        return stamp(moved, MessageTimes(expiry(place.expiry, 0, now_ms), 0))

    def _view(self, work: _Work, sequence: int) -> MessageView | None:
        """Return a message that still waits here; None if it does not, or has to be loaded."""
        look = self._core.look(work.queue.id, sequence, 1, everything=True)
        if look.absent is not None and look.next_sequence <= sequence:
            self._load(work, look.absent)
            return None
        view = look.messages[0] if look.messages else None
        if view is None or view.sequence != sequence or view.is_held:
            return None
        return view

    def _load(self, work: _Work, place: tuple[int, int]) -> bool:
        """Have a slab loaded and wait for it; False: it will never come, so this message stays."""
        if place in self.unreadable:
            return False
        work.is_waiting = True
        if place[0]:
            self._load_slab(*place)
        return True

    def _fits(self, properties: bytes, body: bytes, place: Place) -> bool:
        size_bytes = ADD.size + TRANSACTION.size + place.route.places_max * PLACE.size
        size_bytes += len(properties) + len(body)
        return (
            size_bytes <= self._core.record_bytes_max and len(properties) <= _PROPERTIES_BYTES_MAX
        )

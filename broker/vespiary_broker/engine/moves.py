"""Messages on their way out of a queue by no consumer: dead letters, expired, moved by hand.

Owns the messages that were set aside to be moved or dropped, and the moving: all of a batch is one
transaction that ends them in their queue and publishes them where they go, so after any crash each
is in one of the two, and never in none. A large message takes its body along: the file gets a place
in the other queue before it loses the one here. What finds no room in the journal waits for it.
Must never decide where something goes: `dead_letters` does. Called by `fates`, `redelivery` and the
admin API; owner: the event loop.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, LargeBody, MessageView, NoRoom
from vespiary_broker.engine.original_headers import moved_properties, returned_properties
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.transactions import transaction_bytes
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.record import ADD, PLACE, TRANSACTION

BATCH_MESSAGES: Final = 64
BATCH_BYTES: Final = 256 * 1024
_DROP_AT_ONCE: Final = 512
_PROPERTIES_BYTES_MAX: Final = 65535
_PRIORITY: Final = 4

log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a message leaves its queue."""

    DELIVERIES = "deliveries"
    EXPIRED = "expired"
    RETRIED = "retried"


class Place(NamedTuple):
    """Where messages go.

    Attributes:
        address: Name of the address.
        route: The route there.
        origin: Address that messages have to name as their origin there; empty: any.
    """

    address: str
    route: Route
    origin: str = ""


class NoPlace(StrEnum):
    """Why messages do not go anywhere now."""

    DROPPED = "dropped"  # there is nowhere to go
    KEPT = "kept"  # they stay where they are
    WAITING = "waiting"  # the place is being made; `Mover.place_made` follows


class Places(Protocol):
    """Decides where messages go."""

    def find(self, queue: Queue, reason: Reason, to: str = "") -> Place | NoPlace:
        """Return where messages of a queue go.

        Args:
            queue: Their queue.
            reason: Why they leave it.
            to: The queue that they were in before, if they go back.
        """


@dataclass(eq=False, slots=True)
class _Work:
    """Messages of one queue that leave it for one reason."""

    queue: Queue
    reason: Reason
    to: str
    sequences: dict[int, None] = field(default_factory=dict)  # in order, each once
    is_waiting: bool = False


class _Moved:
    """A message at its new place, as filters there see it (`switching.SentMessage`)."""

    __slots__ = ("body", "is_escaped", "is_persistent", "large", "priority", "properties")

    def __init__(self, view: MessageView, properties: bytes, body: bytes) -> None:
        self.properties = properties
        self.body = body
        self.priority = view.priority
        self.is_persistent = view.is_journalled
        self.is_escaped = b"\\" in properties
        self.large: LargeBody | None = None
        if view.is_large:
            reference = decode_large_reference(body)
            self.large = LargeBody(reference.large_id, reference.size_bytes, reference.crc)


def _is_ordered(view: MessageView, properties: bytes) -> bool:
    """Whether a message has its place by more than its sequence, so that Python looks at it."""
    return view.priority != _PRIORITY or value_of(properties, b"JMSXGroupID") is not None


class Mover:
    """Moves messages out of their queues, or drops them.

    Attributes:
        moved: Messages moved, by reason.
        dropped: Messages dropped, by reason.
        places: Decides where they go; set by who puts the engine together.
        on_no_room: Called when something waits for room in the journal.

    Args:
        core: The core.
        transaction_room_bytes: Room in the journal that each transaction finds sooner or later.
        load_slab: Begins to read a slab that is not in memory.
        clock_ms: Milliseconds since 1970.
    """

    def __init__(
        self,
        core: Core,
        *,
        transaction_room_bytes: int,
        load_slab: Callable[[int, int], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.moved: Counter[Reason] = Counter()
        self.dropped: Counter[Reason] = Counter()
        self.places: Places | None = None
        self.on_no_room: Callable[[], None] = lambda: None
        self._core = core
        self._room_bytes = transaction_room_bytes
        self._batch_bytes = min(BATCH_BYTES, transaction_room_bytes // 4)
        self._load_slab = load_slab
        self._clock_ms = clock_ms
        self._work: dict[tuple[int, Reason, str], _Work] = {}
        self._told: set[tuple[int, Reason]] = set()

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something now."""
        return any(not work.is_waiting for work in self._work.values())

    def pending(self, queue_id: int) -> int:
        """Return how many messages of a queue are set aside to leave it."""
        return sum(len(w.sequences) for (queue, _, _), w in self._work.items() if queue == queue_id)

    def add(self, queue: Queue, sequence: int, reason: Reason, to: str = "") -> None:
        """Have a message that is set aside leave its queue.

        Args:
            queue: Its queue.
            sequence: Its sequence there.
            reason: Why.
            to: The queue that it was in before, if it goes back.
        """
        key = (queue.id, reason, to)
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = _Work(queue, reason, to)
        work.sequences[sequence] = None

    def forget(self, queue_id: int) -> None:
        """Forget the messages of a queue: it is gone."""
        for key in [key for key in self._work if key[0] == queue_id]:
            del self._work[key]
        for reason in Reason:
            self._told.discard((queue_id, reason))

    def go_on(self) -> None:
        """Try again what waited: for room, for memory, or for a place to be made."""
        for work in self._work.values():
            work.is_waiting = False

    def work(self) -> bool:
        """Stage one batch of each queue; return whether anything was staged.

        Durability: a batch is in its new place or in its old one after any crash.
        """
        is_staged = False
        for key, work in list(self._work.items()):
            if not work.is_waiting:
                is_staged |= self._advance(work)
                if not work.sequences:
                    self._work.pop(key, None)
        return is_staged

    def _advance(self, work: _Work) -> bool:
        assert self.places is not None
        place = self.places.find(work.queue, work.reason, work.to)
        if place is NoPlace.WAITING:
            work.is_waiting = True
            return False
        try:
            if isinstance(place, Place):
                return self._move(work, place)
            if place is NoPlace.KEPT:
                return self._keep(work)
            return self._drop(work)
        except NoRoom:
            work.is_waiting = True
            self.on_no_room()
            return False

    def _keep(self, work: _Work) -> bool:
        """Let messages be delivered again that have nowhere else to be."""
        for sequence in work.sequences:
            self._core.put_back(work.queue.id, sequence)
        work.sequences.clear()
        return False

    def _drop(self, work: _Work) -> bool:
        ended = self._end(work, list(islice(work.sequences, _DROP_AT_ONCE)))
        if ended and self._is_untold(work):
            setting = "expiry-address" if work.reason is Reason.EXPIRED else "dead-letter-address"
            log.warning(
                "messages are dropped, since they %s and their address has no %s that takes them "
                "queue=%s address=%s",
                "have expired" if work.reason is Reason.EXPIRED else "were delivered too often",
                setting,
                work.queue.name,
                work.queue.address.name,
            )
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
        for sequence in batch:
            del work.sequences[sequence]
        return ended

    def _is_untold(self, work: _Work) -> bool:
        """Whether nobody was told yet what becomes of such messages; from now on somebody was."""
        key = (work.queue.id, work.reason)
        if key in self._told:
            return False
        self._told.add(key)
        return True

    # --- moving ---------------------------------------------------------------------------------

    def _move(self, work: _Work, place: Place) -> bool:
        gathered, untaken = [], []
        for view, properties, body in self._gather(work, place):
            handle = self._handle(place.route, view, properties, body)
            if handle is None:
                untaken.append(view.sequence)
            else:
                gathered.append((handle, view, properties, body))
        if untaken:
            self._stay(work, place, untaken)
        if not gathered:
            return bool(untaken)
        size_bytes = sum(len(properties) + len(body) for _, _, properties, body in gathered)
        records = len(gathered) * (1 + max(1, place.route.places_max))
        number = secrets.randbits(63) + 1
        if transaction_bytes(size_bytes, records) <= self._room_bytes:
            self._core.begin(number, size_bytes, records)
        else:
            # It fits no transaction. It is published first, so a crash in between leaves it in
            # both places rather than in none.
            number = 0
            del gathered[1:]
        for handle, view, properties, body in gathered:
            self._publish(handle, view, properties, body, number)
        self._core.finish(
            work.queue.id, [view.sequence for _, view, _, _ in gathered], transaction=number
        )
        if number:
            self._core.commit(number)
        for _, view, _, _ in gathered:
            del work.sequences[view.sequence]
        self.moved[work.reason] += len(gathered)
        return True

    @staticmethod
    def _handle(route: Route, view: MessageView, properties: bytes, body: bytes) -> int | None:
        """Return the core's route for a message; None: no queue there takes it."""
        if not route.places_max:
            return None
        if route.switch is None:
            return route.next_handle()
        handle = route.switch.handle_for(_Moved(view, properties, body))
        return None if route.switch.is_nowhere(handle) else handle

    def _stay(self, work: _Work, place: Place, sequences: list[int]) -> None:
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
            self._end(work, sequences)
            return
        for sequence in sequences:
            self._core.put_back(work.queue.id, sequence)
            del work.sequences[sequence]

    def _publish(
        self, handle: int, view: MessageView, properties: bytes, body: bytes, number: int
    ) -> None:
        self._core.publish(
            handle,
            properties,
            body,
            persistent=view.is_journalled,
            protocol=view.protocol,
            priority=view.priority,
            escaped=b"\\" in properties,
            large=view.is_large,
            special=view.is_special and _is_ordered(view, properties),
            transaction=number,
        )

    def _gather(self, work: _Work, place: Place) -> list[tuple[MessageView, bytes, bytes]]:
        """Return the next messages with their properties and bodies there, as far as in memory."""
        found: list[tuple[MessageView, bytes, bytes]] = []
        size_bytes = 0
        now_ms = self._clock_ms()
        for sequence in list(islice(work.sequences, BATCH_MESSAGES)):
            view = self._view(work, sequence)
            if view is None:
                if work.is_waiting:
                    break
                del work.sequences[sequence]
                continue
            body = self._core.body(work.queue.id, sequence)
            if body is None:
                self._load(work, *self._core.absent_for(work.queue.id, sequence))
                break
            properties = self._properties(work, view, place, now_ms)
            if not self._fits(properties, body, place):
                properties = view.properties
                if not self._fits(properties, body, place):
                    self._tell_too_large(work, view)
                    del work.sequences[sequence]
                    continue
            size_bytes += len(properties) + len(body)
            if found and size_bytes > self._batch_bytes:
                break
            found.append((view, properties, body))
        if found:
            work.is_waiting = False  # what is missing is asked for again behind these
        return found

    @staticmethod
    def _properties(work: _Work, view: MessageView, place: Place, now_ms: int) -> bytes:
        if work.reason is Reason.RETRIED:
            return returned_properties(view.properties, place.address)
        expired_ms = now_ms if work.reason is Reason.EXPIRED else 0
        return moved_properties(view, work.queue, place.address, expired_ms, origin=place.origin)

    def _view(self, work: _Work, sequence: int) -> MessageView | None:
        """Return a message that still waits here; None if it does not, or has to be loaded."""
        look = self._core.look(work.queue.id, sequence, 1, everything=True)
        if look.absent is not None:
            self._load(work, *look.absent)
            return None
        view = look.messages[0] if look.messages else None
        if view is None or view.sequence != sequence or view.is_held:
            return None
        return view

    def _load(self, work: _Work, file_id: int, slab: int) -> None:
        work.is_waiting = True
        if file_id:
            self._load_slab(file_id, slab)

    def _fits(self, properties: bytes, body: bytes, place: Place) -> bool:
        size_bytes = ADD.size + TRANSACTION.size + place.route.places_max * PLACE.size
        size_bytes += len(properties) + len(body)
        return (
            size_bytes <= self._core.record_bytes_max and len(properties) <= _PROPERTIES_BYTES_MAX
        )

    def _tell_too_large(self, work: _Work, view: MessageView) -> None:
        """Say that a message stays, since no record holds it with its new place."""
        log.error(
            "a message cannot be moved, since it has no room for another place in its record; it "
            "stays set aside until the next start queue=%s sequence=%d",
            work.queue.name,
            view.sequence,
        )

"""Messages that an administrator has staged anew: moved, copied, with another expiry or priority.

Owns what such a message looks like at its new place, and the staging: all of a batch is one
transaction that publishes the messages and ends the old ones, so after any crash each is there
once. A large message takes its body along: the file gets a place more before it loses the old one.
Must never choose messages or wait for anything: `app.message_acts` does. Owner: the event loop.

A message gets another `message-id`, and stands at the end of its queue, as in the reference system.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, LargeBody, MessageView
from vespiary_broker.engine.message_times import NO_TIMES, MessageTimes, read_times, stamp
from vespiary_broker.engine.open_transaction import aborted_on_failure
from vespiary_broker.engine.original_headers import acquired_properties, moved_properties
from vespiary_broker.engine.property_lines import (
    is_escaped,
    lines_of,
    value_of,
    with_lines,
    without,
)
from vespiary_broker.engine.queues import CHANGED, MOVED, Queue
from vespiary_broker.engine.routing import NOWHERE, Route
from vespiary_broker.engine.stream_gaps import GapReason
from vespiary_broker.engine.transactions import transaction_bytes
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.record import ADD, PLACE, TRANSACTION

BATCH_BYTES: Final = 256 * 1024
PRIORITY_DEFAULT: Final = 4
_PROPERTIES_BYTES_MAX: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What becomes of messages.

    Attributes:
        target: The queue that they go to; their own when only something about them changes.
        is_move: They name where they come from, so that `retry` brings them back.
        is_copy: The old ones stay.
        expires_ms: When they expire from now on, milliseconds since 1970, 0 never; None: as before.
        priority: Their priority from now on; None: as before.
        is_due: They are scheduled no more.
    """

    target: Queue
    is_move: bool = False
    is_copy: bool = False
    expires_ms: int | None = None
    priority: int | None = None
    is_due: bool = False

    def properties_of(self, view: MessageView, queue: Queue) -> bytes:
        """Return the properties of a message at its new place.

        Args:
            view: The message.
            queue: The queue that it stands in.
        """
        properties = view.properties
        if view.deliveries:
            properties = acquired_properties(properties)
        times = read_times(properties)
        if self.is_move:
            properties = moved_properties(view, queue, self.target.address.name)
        elif self.target is not queue:
            destination = lines_of([("destination", self.target.address.name)])
            properties = destination + without(properties, (b"destination",))
        if self.expires_ms is not None:
            times = MessageTimes(self.expires_ms, times.deliver_at_ms)
        if self.is_due:
            times = MessageTimes(times.expires_ms, 0)
        if self.priority is not None:
            properties = without(properties, (b"priority",))
            if self.priority != PRIORITY_DEFAULT:
                properties = with_lines(properties, [("priority", str(self.priority))])
        return stamp(properties, times)


class Staged(NamedTuple):
    """What one call of `restage` did.

    Attributes:
        looked: Messages that it is done with, from the first one on.
        messages: Those of them that stand at their new place.
        has_times: Whether one of them expires or is scheduled.
        absent: Slab that the next one needs; None: nothing is missing.
    """

    looked: int
    messages: int
    has_times: bool
    absent: tuple[int, int] | None


class Source(Protocol):
    """Where messages stand: in memory, or in a page that is closed."""

    def body(self, sequence: int) -> bytes | None:
        """Return a stored body; None: the message went, or its slab is not in memory."""

    def take_in(self, sequences: Iterable[int]) -> None:
        """Have messages stand in memory, where they can be ended."""


class _Restaged:
    """A message at its new place, as filters there see it (`switching.SentMessage`)."""

    __slots__ = ("body", "is_escaped", "is_persistent", "large", "priority", "properties", "view")

    def __init__(self, view: MessageView, properties: bytes, body: bytes, priority: int) -> None:
        self.view = view
        self.properties = properties
        self.body = body
        self.priority = priority
        self.is_persistent = view.is_journalled
        self.is_escaped = is_escaped(properties)
        self.large: LargeBody | None = None
        if view.is_large:
            reference = decode_large_reference(body)
            self.large = LargeBody(reference.large_id, reference.size_bytes, reference.crc)

    @property
    def size_bytes(self) -> int:
        return len(self.properties) + len(self.body)

    @property
    def is_ordered(self) -> bool:
        has_group = value_of(self.properties, b"JMSXGroupID") is not None
        return self.priority != PRIORITY_DEFAULT or has_group


class Restager:
    """Stages messages of one queue anew.

    Args:
        core: The core.
        queue: The queue that they stand in.
        rewrite: What becomes of them.
        route: The route to the target.
        source: Has seen the messages.
        room_bytes: Room in the journal that each transaction finds sooner or later.
    """

    def __init__(
        self,
        core: Core,
        queue: Queue,
        rewrite: Rewrite,
        route: Route,
        source: Source,
        *,
        room_bytes: int,
    ) -> None:
        self._core = core
        self._source = source
        self._queue = queue
        self._rewrite = rewrite
        self._route = route
        self._who = (Restager, queue.id)
        self._room_bytes = room_bytes
        self._batch_bytes = min(BATCH_BYTES, room_bytes // 4)

    def restage(self, views: Sequence[MessageView]) -> Staged:
        """Stage the first of some messages anew, as many as fit into one batch and one turn.

        What the filter of the target does not let in stays, and so does what has no room for its
        new properties.

        Args:
            views: Deliverable or scheduled messages, seen in this turn of the event loop; one or
                more.

        Raises:
            NoRoom: The journal has none now; nothing was changed.

        Durability: after any crash all of the batch is at its new place, or none of it.
        """
        batch: list[tuple[int, _Restaged]] = []
        looked, size_bytes, has_times = 0, 0, False
        absent = None
        for view in views:
            body = self._source.body(view.sequence)
            if body is None:
                absent = self._core.absent_for(self._queue.id, view.sequence)
                break
            message = self._message(view, body)
            if batch and size_bytes + message.size_bytes > self._batch_bytes:
                break
            handle = (
                self._route.handle_in_time(message, self._who) if self._fits(message) else NOWHERE
            )
            if handle is None:
                break
            looked += 1
            if handle != NOWHERE:
                batch.append((handle, message))
                size_bytes += message.size_bytes
                has_times |= read_times(message.properties) != NO_TIMES
        if batch:
            self._stage(batch, size_bytes)
        return Staged(looked, len(batch), has_times, absent)

    def _message(self, view: MessageView, body: bytes) -> _Restaged:
        rewrite = self._rewrite
        properties = rewrite.properties_of(view, self._queue)
        priority = view.priority if rewrite.priority is None else rewrite.priority
        return _Restaged(view, properties, body, priority)

    def _fits(self, message: _Restaged) -> bool:
        size_bytes = ADD.size + TRANSACTION.size + PLACE.size + message.size_bytes
        return (
            len(message.properties) <= _PROPERTIES_BYTES_MAX
            and size_bytes <= self._core.record_bytes_max
            and transaction_bytes(message.size_bytes, 2) <= self._room_bytes
        )

    def _stage(self, batch: list[tuple[int, _Restaged]], size_bytes: int) -> None:
        sequences = [message.view.sequence for _, message in batch]
        if not self._rewrite.is_copy:
            self._source.take_in(sequences)
        number = secrets.randbits(63) + 1
        self._core.begin(number, size_bytes, 2 * len(batch))
        with aborted_on_failure(self._core, number):
            for handle, message in batch:
                times = read_times(message.properties)
                self._core.publish(
                    handle,
                    message.properties,
                    message.body,
                    persistent=message.is_persistent,
                    protocol=message.view.protocol,
                    priority=message.priority,
                    escaped=message.is_escaped,
                    large=message.view.is_large,
                    special=times != NO_TIMES or message.is_ordered,
                    transaction=number,
                )
            if not self._rewrite.is_copy:
                self._core.finish(self._queue.id, sequences, transaction=number)
            self._core.commit(number)
        if not self._rewrite.is_copy:
            self._queue.note_left(GapReason.MOVED, sequences)
            is_same = self._rewrite.target is self._queue
            self._queue.count_departed(CHANGED if is_same else MOVED, len(batch))

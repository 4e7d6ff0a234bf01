"""Messages that another broker hands over: into the same queue here, each of them once.

Owns the staging: messages and the ids by which they are known stand in one transaction, so after
any crash both are there or neither, and a batch that comes again, because its sender did not hear
that it was taken, adds nothing. Must never decide whether an address has room, and never wait:
`app.transfers` does. Owner: the event loop.

The id of a message is its sender's own, the queue's number there and the sequence, none of which is
ever used twice. The ids of each sender have a cache of their own, of `IDS_MAX`, whatever
`id-cache-size` says: a sender has fewer than that under way at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vespiary_broker.engine.core import Core, LargeBody
from vespiary_broker.engine.duplicates import DuplicateIds, member_of
from vespiary_broker.engine.large_bodies import reference_of
from vespiary_broker.engine.open_transaction import aborted_on_failure
from vespiary_broker.engine.original_headers import acquired_properties
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.routing import NOWHERE
from vespiary_broker.engine.transactions import transaction_bytes
from vespiary_codec.journal.record import ADD, PLACE, TRANSACTION, RecordType
from vespiary_codec.journal.transfer import TransferFlag, TransferMessage
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError

IDS_MAX: Final = 50_000
CACHE_PREFIX: Final = "$transfer/"
_ID_BYTES: Final = 48
_PROPERTIES_BYTES_MAX: Final = 65535


class Origin(NamedTuple):
    """Where messages come from.

    Attributes:
        broker: Id of the broker.
        queue_id: Number of the queue there.
    """

    broker: str
    queue_id: int

    @property
    def cache(self) -> str:
        """Name of the cache of its ids."""
        return f"{CACHE_PREFIX}{self.broker}"

    def id_of(self, sequence: int) -> bytes:
        """Return the id of a message."""
        return f"{self.queue_id}-{sequence}".encode()


class Taken(NamedTuple):
    """What became of messages.

    Attributes:
        taken: Those that are in the queue now.
        seen: Those that had come before.
        left: Those at the end that nothing was done with.
    """

    taken: int
    seen: int
    left: int = 0


class _Sent:
    """A message as filters see it (`switching.SentMessage`)."""

    __slots__ = ("body", "is_escaped", "is_persistent", "large", "priority", "properties")

    def __init__(self, message: TransferMessage, large: LargeBody | None) -> None:
        self.properties = message.properties
        if message.deliveries:  # which begin at 0 here
            self.properties = acquired_properties(message.properties)
        self.body = message.body if large is None else reference_of(large)
        self.priority = message.priority
        self.is_persistent = bool(message.flags & TransferFlag.JOURNALLED)
        self.is_escaped = bool(message.flags & TransferFlag.ESCAPED)
        self.large = large


class TransferIntake:
    """Stages what another broker hands over.

    Args:
        core: The core.
        registry: What exists.
        duplicates: The ids.
    """

    def __init__(self, core: Core, registry: Registry, duplicates: DuplicateIds) -> None:
        self._core = core
        self._registry = registry
        self._duplicates = duplicates

    def is_seen(self, origin: Origin, sequence: int) -> bool:
        """Whether a message has come before."""
        return self._duplicates.is_seen(origin.cache, origin.id_of(sequence))

    def pieces(self, messages: Sequence[TransferMessage]) -> Iterator[list[TransferMessage]]:
        """Yield messages in groups that each find room in the journal sooner or later."""
        most_bytes = self._registry.transaction_room_bytes // 4
        group: list[TransferMessage] = []
        size_bytes = 0
        for message in messages:
            own_bytes = message.size_bytes + 4 * _ID_BYTES
            if group and size_bytes + own_bytes > most_bytes:
                yield group
                group, size_bytes = [], 0
            group.append(message)
            size_bytes += own_bytes
        if group:
            yield group

    def stage(
        self,
        queue: Queue,
        origin: Origin,
        messages: Sequence[TransferMessage],
        large: LargeBody | None = None,
    ) -> Taken:
        """Stage messages as one transaction; those that came before are passed over.

        Where the queue has a filter, these are the first of them, as many as this turn of the loop
        has time for; the others are `left`.

        Args:
            queue: Where they go.
            origin: Where they come from.
            messages: One of the groups of `pieces`.
            large: Body of the only message, if it is large.

        Raises:
            NoRoom: There is none now; nothing was changed.
            LimitExceeded: A message never fits into this journal; nothing was changed.
            RemoteProtocolError: The queue's filter does not take a message; nothing was changed.

        Durability: none by itself; after any crash all of them are in the queue, or none.
        """
        routed, left = self._routed(queue, origin, messages, large)
        seen = len(messages) - len(routed) - left
        if not routed:
            return Taken(0, seen, left)
        fresh, sent, handles = zip(*routed, strict=True)
        number = secrets.randbits(63) + 1
        numbered = self._duplicates.numbered(
            (origin.cache, origin.id_of(one.sequence), self._is_kept(queue, one)) for one in fresh
        )
        members = [
            (record, member_of(record, number) if stays else None) for record, stays in numbered
        ]
        size_bytes = sum(len(one.properties) + len(one.body) for one in sent)
        size_bytes += sum(len(member[0]) for _, member in members if member is not None)
        places = self._registry.queue_route(queue).places_max
        records = len(fresh) * (1 + max(1, places)) + len(members)
        self._check(sent, size_bytes, records, places)
        self._core.begin(number, size_bytes, records)
        with aborted_on_failure(self._core, number):
            for one, handle, message in zip(fresh, handles, sent, strict=True):
                self._core.publish(
                    handle,
                    message.properties,
                    message.body,
                    persistent=message.is_persistent,
                    protocol=one.protocol,
                    priority=one.priority,
                    escaped=message.is_escaped,
                    large=large is not None,
                    special=bool(one.flags & TransferFlag.SPECIAL),
                    transaction=number,
                )
            entered = [(record, self._append(member)) for record, member in members]
            self._core.commit(number)
        self._duplicates.enter(entered)
        if large is not None and self._registry.large_bodies is not None:
            self._registry.large_bodies.adopt(large)
        return Taken(len(fresh), seen, left)

    def _routed(
        self,
        queue: Queue,
        origin: Origin,
        messages: Sequence[TransferMessage],
        large: LargeBody | None,
    ) -> tuple[list[tuple[TransferMessage, _Sent, int]], int]:
        """Return new messages with their routes, and how many this turn has no time for."""
        routed: list[tuple[TransferMessage, _Sent, int]] = []
        for index, one in enumerate(messages):
            if self.is_seen(origin, one.sequence):
                continue
            message = _Sent(one, large)
            handle = self._handle(queue, message)
            if handle is None:
                return routed, len(messages) - index
            routed.append((one, message, handle))
        return routed, 0

    def _is_kept(self, queue: Queue, message: TransferMessage) -> bool:
        return queue.is_durable and bool(message.flags & TransferFlag.JOURNALLED)

    def _append(self, member: tuple[bytes, int] | None) -> int:
        if member is None:
            return 0
        body, flags = member
        self._core.append_record(RecordType.DUPLICATE, body, flags=flags)
        return self._core.current_file()

    def _handle(self, queue: Queue, message: _Sent) -> int | None:
        """Return the core's route for a message; None: this turn has no time for the filter.

        Raises:
            RemoteProtocolError: The queue does not take it.
        """
        who = (TransferIntake, queue.id)
        handle = self._registry.queue_route(queue).handle_in_time(message, who)
        if handle == NOWHERE:
            raise RemoteProtocolError(
                f"the queue {queue.name} does not take a message that is handed over",
                measured=queue.traits.filter_string or "it is purged without consumers",
                cure="change its filter, or take the message out of the other broker",
            )
        return handle

    def _check(self, sent: Sequence[_Sent], size_bytes: int, records: int, places: int) -> None:
        """Refuse what never fits, before the core has an open transaction."""
        for one in sent:
            own_bytes = ADD.size + TRANSACTION.size + max(places, 1) * PLACE.size
            own_bytes += len(one.properties) + len(one.body)
            if own_bytes > self._core.record_bytes_max:
                raise LimitExceeded(
                    "a message that is handed over is too large for this journal",
                    measured=f"{own_bytes} bytes with its properties",
                    allowed=f"at most {self._core.record_bytes_max} bytes",
                    cure="raise journal-buffer-size",
                )
            if len(one.properties) > _PROPERTIES_BYTES_MAX:
                raise LimitExceeded("a message that is handed over has too many properties")
        room_bytes = self._registry.transaction_room_bytes
        if transaction_bytes(size_bytes, records) > room_bytes:
            raise LimitExceeded(
                "a message that is handed over is too large for this journal",
                measured=f"{size_bytes} bytes",
                allowed=f"what fits into {room_bytes} bytes with its id",
                cure="raise journal-file-size",
            )

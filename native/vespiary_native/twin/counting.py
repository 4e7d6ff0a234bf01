"""How often messages were given out: what of it stands in the journal, and when.

Owns COUNT records. Never decides what becomes of a message. Called by the parts of the twin that
give messages and take them back (see `abc_counts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vespiary_codec.journal.record import COUNT, RecordType
from vespiary_native.abc import NoRoom
from vespiary_native.twin.image import JournalFile
from vespiary_native.twin.state import DELIVERIES_MAX, Connection, Consumer, Message, Queue
from vespiary_native.twin.tables import Tables

if TYPE_CHECKING:
    from vespiary_native.twin.staging import Staging


class Counting:
    """Counts deliveries.

    Attributes:
        is_ahead: A message is counted in the journal before it is given out.
        records_max: The highest count that is journalled; None: any is.
        consumers: All consumers by handle.

    Args:
        staging: Where records go.
    """

    def __init__(self, staging: Staging) -> None:
        self.is_ahead = False
        self.records_max: int | None = None
        self.consumers: Mapping[int, Consumer] = {}
        self._staging = staging

    def _is_recorded(self, deliveries: int) -> bool:
        return self.records_max is None or deliveries <= self.records_max

    def _is_held(self, queue: Queue, sequence: int) -> bool:
        return any(one.queue is queue and sequence in one.held for one in self.consumers.values())

    def journalled(self, queue: Queue, sequence: int) -> int:
        """Return how often a live message was given out, as the journal is to say it."""
        deliveries = queue.deliveries_of(sequence)
        after = min(deliveries + 1, DELIVERIES_MAX)
        if self.is_ahead and self._is_recorded(after) and self._is_held(queue, sequence):
            return after
        return deliveries

    def ahead(self, queue: Queue, sequence: int, message: Message) -> bool:
        """Count a message that a consumer is about to be given.

        Returns:
            False: there is no room for the record, so it is not given.
        """
        after = min(queue.deliveries.get(sequence, 0) + 1, DELIVERIES_MAX)
        if not self.is_ahead or not self._is_recorded(after):
            return True
        if self._staging.is_journalled(queue, message):
            try:
                self.record(queue, sequence, after, message[0].file)
            except NoRoom:
                return False
        return True

    def give_back(self, queue: Queue, sequence: int, message: Message, *, is_counted: bool) -> None:
        """Return a message that was given out; a lost count is no lost message."""
        queue.give_back(sequence)
        before = queue.deliveries.get(sequence, 0)
        deliveries = queue.count_delivery(sequence) if is_counted else before
        if is_counted is self.is_ahead:
            return  # the journal says so already
        recorded = deliveries if is_counted else min(before + 1, DELIVERIES_MAX)
        if self._is_recorded(recorded) and self._staging.is_journalled(queue, message):
            with contextlib.suppress(NoRoom):
                self.record(queue, sequence, deliveries, message[0].file)

    def count_delivery(self, queue: Queue, sequence: int) -> None:
        """Count a message that a branch gives back as delivered once more."""
        deliveries = min(queue.deliveries_of(sequence) + 1, DELIVERIES_MAX)
        message = queue.entries.get(sequence)
        extent = queue.extents.holding(sequence)
        if message is not None:
            queue.deliveries[sequence] = deliveries
            is_journalled = self._staging.is_journalled(queue, message)
            file = message[0].file if is_journalled and self._is_recorded(deliveries) else None
        elif extent is not None:
            extent.deliveries[sequence] = deliveries
            file = extent.page if queue.is_durable else None
        if file is not None:
            with contextlib.suppress(NoRoom):
                self.record(queue, sequence, deliveries, file)

    def record(
        self, queue: Queue, sequence: int, deliveries: int, file: JournalFile | None
    ) -> None:
        """Stage how often a journalled message was given out.

        Raises:
            NoRoom: No slab or no file for the record.
        """
        blocks = self._staging.blocks
        at = blocks.place(COUNT.size)
        COUNT.pack_into(
            blocks.view, at, COUNT.size, RecordType.COUNT, 0, 0,
            queue.queue_id, deliveries, sequence,
        )  # fmt: skip
        own = blocks.slab.file
        if own is not None and file is not None and own is not file:
            own.cancels.add(file)  # the count stays as long as the message's record does


class TwinCounts(Tables):
    """See `abc_counts.CoreCounts`: a mix-in of `TwinCore`."""

    _connections: dict[int, Connection]

    def count_deliveries(self, *, ahead: bool, records_max: int | None) -> None:
        """See `CoreCounts.count_deliveries`."""
        self._staging.counting.is_ahead = ahead
        self._staging.counting.records_max = records_max
        self._staging.counting.consumers = self._consumers

    def limit_deliveries(self, queue_id: int, attempts: int) -> None:
        """See `CoreCounts.limit_deliveries`."""
        queue = self._queue(queue_id)
        queue.attempts_max = attempts
        self._staging.queue_ready(queue)

    def output_waiting(self, connection: int) -> int:
        """See `CoreCounts.output_waiting`."""
        known = self._connections.get(connection)
        if known is None:
            raise ValueError(f"connection {connection} is not open")
        return self._staging.output_waiting(known)

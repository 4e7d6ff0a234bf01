"""What the API says of message counters.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `counters` and
`counter_routes`.
"""

from __future__ import annotations

from vespiary_broker.admin.journal_records import Record


class Counts(Record, frozen=True):
    """What was counted in some time.

    Attributes:
        added: Messages that came in.
        delivered: Messages given to consumers, again those that came back.
        acknowledged: Messages that consumers acknowledged, or that were purged, removed, replaced.
        expired: Messages that expired.
        killed: Dead letters.
    """

    added: int
    delivered: int
    acknowledged: int
    expired: int
    killed: int


class HourCounts(Record, frozen=True):
    """An hour in which something happened.

    Attributes:
        hour: 0 to 23, of UTC.
        counts: What happened.
    """

    hour: int
    counts: Counts


class DayCounts(Record, frozen=True):
    """A day on which something happened.

    Attributes:
        date: Such as `2026-11-22`, of UTC.
        counts: What happened.
        hours: By hour; those in which nothing happened are left out.
    """

    date: str
    counts: Counts
    hours: tuple[HourCounts, ...]


class MessageCounter(Record, frozen=True):
    """The counter of a queue or of an address, as the last sample found it.

    Attributes:
        name: Name of the queue or of the address.
        added: Messages that came in since the start, or since it was reset.
        delivered: Messages given to consumers, again those that came back.
        acknowledged: Messages that consumers acknowledged, or that were purged, removed, replaced.
        expired: Messages that expired.
        killed: Dead letters.
        added_delta: As `added`, between the last two samples.
        delivered_delta: As `delivered`, between the last two samples.
        acknowledged_delta: As `acknowledged`, between the last two samples.
        expired_delta: As `expired`, between the last two samples.
        killed_delta: As `killed`, between the last two samples.
        last_add_ms: Sample that found the last message added, milliseconds since 1970; 0 for none.
        last_ack_ms: Sample that found the last one acknowledged; 0 for none.
        updated_ms: The last sample; 0 before the first.
        days: The history, oldest day first.
    """

    name: str
    added: int
    delivered: int
    acknowledged: int
    expired: int
    killed: int
    added_delta: int
    delivered_delta: int
    acknowledged_delta: int
    expired_delta: int
    killed_delta: int
    last_add_ms: int
    last_ack_ms: int
    updated_ms: int
    days: tuple[DayCounts, ...]

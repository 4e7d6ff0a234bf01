"""What the broker counts as a whole, on its way to the API's `Broker` and to the metrics.

Owns the records. Must never hold behaviour. Called by `handlers` and `metrics`.
"""

from __future__ import annotations

from vespiary_broker.admin import memory_records, records
from vespiary_broker.admin.mqtt_records import Mqtt
from vespiary_broker.admin.naming_records import Naming
from vespiary_broker.admin.slow_consumer_records import SlowConsumers


class Transactions(records.Record, frozen=True):
    """Distributed transactions, and what timed out.

    Attributes:
        prepared: Prepared branches, those in quarantine included.
        quarantined: Prepared branches of which something is missing.
        heuristic: Outcomes that an administrator decided and nobody has forgotten.
        oldest_prepared_s: Age of the oldest prepared branch in seconds, 0 without any.
        timed_out: Transactions rolled back because they took too long, since the start.
    """

    prepared: int
    quarantined: int
    heuristic: int
    oldest_prepared_s: float
    timed_out: int


class Fates(records.Record, frozen=True):
    """What became of messages that were not simply consumed, since the start.

    Attributes:
        dead: Dead letters that were moved to the dead letter address.
        dead_dropped: Messages dropped after too many deliveries.
        expired: Expired messages that were moved to the expiry address.
        dead_kept: How often messages stayed after too many deliveries: they had nowhere to go.
        unmovable: How often messages could not be moved and are delivered again.
        unreadable_parts: Parts of files that cannot be read: nothing expires or is moved there.
        expired_dropped: Expired messages that were dropped.
        scheduled: Messages that wait for their time now.
        delayed: Messages that wait for their redelivery delay now.
    """

    dead: int
    dead_dropped: int
    expired: int
    expired_dropped: int
    dead_kept: int
    unmovable: int
    unreadable_parts: int
    scheduled: int
    delayed: int


class Statistics(records.Record, frozen=True):
    """What the broker counts as a whole; its parts go into `Broker` and the metrics.

    Attributes:
        is_ready: Whether it takes messages.
        not_ready_reason: Why not.
        uptime_s: Seconds since it became ready.
        listeners: Its listeners.
        connections_total: Connections ever made.
        frames: Frames that the fast path left to Python.
        messages_in: Messages that came into queues.
        messages_out: Messages given to consumers.
        messages_acknowledged: Messages acknowledged.
        errors: Errors that clients caused, by kind.
        logins_refused: Logins refused.
        logins_delayed: Logins that had to wait after failed ones.
        transactions: Distributed transactions, and what timed out.
        duplicates_discarded: Messages discarded for an id seen before.
        duplicate_ids: Duplicate ids remembered, over all addresses.
        messages_dropped: Messages dropped because the disk was full.
        fates: What became of dead letters, expired, delayed and scheduled messages.
        slow_consumers: Consumers that were found to be slow.
        messages_unrouted: Messages that no queue accepted.
        messages_unrouted_by_address: The same by address, most first.
        filter_waits: How often filters, moves, scans and subscriptions waited for another turn.
        journal_waiters: Those who wait because no journal file can be made.
        naming: Limits of addresses and queues, and what went by itself.
        memory: What messages take in memory, and full addresses.
        large: Large messages; None without persistence.
        paging: Pages; None without persistence.
        mqtt: What MQTT clients have; None while the broker starts.
    """

    is_ready: bool
    not_ready_reason: str
    uptime_s: float
    listeners: tuple[records.Listener, ...]
    connections_total: int
    frames: int
    messages_in: int
    messages_out: int
    messages_acknowledged: int
    errors: dict[str, int]
    logins_refused: int
    logins_delayed: int
    messages_dropped: int
    fates: Fates
    slow_consumers: SlowConsumers
    messages_unrouted: int
    messages_unrouted_by_address: dict[str, int]
    filter_waits: int
    transactions: Transactions
    duplicates_discarded: int
    duplicate_ids: int
    journal_waiters: int
    naming: Naming
    memory: memory_records.Memory
    large: records.LargeMessages | None = None
    paging: records.Paging | None = None
    mqtt: Mqtt | None = None

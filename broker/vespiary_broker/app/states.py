"""What a broker looks like now: frozen records for the API, the metrics and tests.

Owns the records and how they are gathered. Must never change anything. Called by `broker`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from vespiary_broker.app.memory_states import (
    AddressMemoryState,
    MemoryState,
    address_memory,
    memory_state,
)
from vespiary_broker.engine.queues import CHANGED

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.branches import BranchStatistics
    from vespiary_broker.engine.core import Core
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.fates import FateStatistics
    from vespiary_broker.engine.queues import Consumer, Queue
    from vespiary_broker.engine.slow_consumers import SlowConsumerStatistics
    from vespiary_broker.engine.stalls import Stall, Stalls
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.server.mqtt.hub import MqttStatistics
    from vespiary_broker.store.counters import JournalStatistics
from vespiary_broker.engine.automatic_deletion import (
    deletion_delay_ms,
    deletion_messages_max,
    may_delete_queue,
)
from vespiary_broker.engine.consumer_credit import remaining_credit
from vespiary_broker.engine.limits import NamingStatistics
from vespiary_broker.engine.queue_kinds import QueueKind
from vespiary_broker.store.large_messages import LargeMessageStatistics
from vespiary_broker.store.paging.pager import PagingStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """One consumer.

    Attributes:
        queue: Name of its queue.
        subscription: Id that the client gave it.
        mode: `auto`, `client` or `individual`.
        credit: Messages that its client takes now, beyond those that it holds; None: any number.
        connection: Number of its connection.
        selector: What it wants; empty for everything.
        priority: Its consumer priority.
        is_exclusive: Whether it asked to be the only one that is served.
        delivering: Messages that it was given and has not acknowledged.
        delivered: Messages that it was given so far, again those that came back.
        acknowledged: Messages of these that it acknowledged.
    """

    queue: str
    subscription: str
    mode: str
    credit: int | None
    connection: int
    selector: str
    priority: int
    is_exclusive: bool
    delivering: int
    delivered: int
    acknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState(QueueKind):
    """One queue, and what kind it is.

    Attributes:
        id: Its number.
        name: Its name.
        address: Name of its address.
        routing_type: ANYCAST or MULTICAST.
        is_durable: Whether it survives a restart.
        is_auto_created: Whether a client's use made it.
        is_temporary: Whether it goes with its consumer.
        filter_string: Selector that messages have to pass to come in; empty for none.
        is_configured: Whether it stands in the configuration.
        is_paused: Whether its consumers get nothing for now: it was paused, or its address.
        max_consumers: Most consumers at a time; -1 for any number.
        purge_on_no_consumers: Whether it is emptied when its last consumer goes.
        auto_delete: Whether it goes by itself when it is not used any more.
        auto_delete_delay: Milliseconds that it has to be without consumers for that.
        auto_delete_message_count: Messages that it may hold then; -1 for any number.
        user: Who made it; empty for nobody who is counted.
        consumers: Number of consumers.
        messages: Messages in it, those given out included.
        ready: Messages that wait for a consumer.
        delivering: Messages given out and not acknowledged.
        prepared: Messages that prepared transactions have added or acknowledged.
        aside: Messages that nobody is given now: scheduled ones, those that wait for their
            redelivery delay, and those on their way to another address.
        scheduled: Messages that wait for the time for which they were sent.
        paged: Messages in pages.
        oldest_age_s: Seconds since its oldest message came; None: it has none, or it was not read.
        oldest_damage: Why its oldest message cannot be read; empty: it can.
        in_per_s: Messages that came in per second, lately; None: not known yet.
        out_per_s: Messages that left it per second, lately; None: not known yet.
        added: Messages that ever came in since the start.
        acknowledged: Messages that were acknowledged since the start.
        redelivered: Messages that were given back since the start.
        unmovable: How often messages could not be moved elsewhere and are delivered again.
        live_bytes: Bytes of the messages in it.
        stall: Why it is not moving; None: it is, or it is empty.
    """

    id: int
    name: str
    address: str
    routing_type: str
    is_durable: bool
    is_auto_created: bool
    is_temporary: bool
    filter_string: str
    is_configured: bool
    is_paused: bool
    max_consumers: int
    purge_on_no_consumers: bool
    auto_delete: bool = False
    auto_delete_delay: int = 0
    auto_delete_message_count: int = 0
    user: str
    consumers: int
    messages: int
    ready: int
    delivering: int
    prepared: int
    aside: int
    scheduled: int
    paged: int = 0
    oldest_age_s: float | None = None
    oldest_damage: str = ""
    in_per_s: float | None = None
    out_per_s: float | None = None
    added: int
    acknowledged: int
    redelivered: int
    unmovable: int = 0
    live_bytes: int
    stall: Stall | None = None

    @property
    def state(self) -> str:
        """What it does: `idle` without messages, `running`, or why it is not moving."""
        if self.stall is not None:
            return str(self.stall.reason)
        return "running" if self.messages else "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressState:
    """One address.

    Attributes:
        name: Its name.
        routing_types: Types that it serves.
        is_auto_created: Whether a client's use made it.
        is_paused: Whether none of its queues gives its consumers anything for now.
        queues: Names of its queues.
        messages: Messages in all of them.
        messages_unrouted: Messages sent there that no queue accepted, since the start.
        memory: What its messages take, its limits and its policy; None: it has no queues.
        stall: Why it is not moving; None: it takes messages.
    """

    name: str
    routing_types: tuple[str, ...]
    is_auto_created: bool
    is_paused: bool
    queues: tuple[str, ...]
    messages: int
    messages_unrouted: int
    memory: AddressMemoryState | None = None
    stall: Stall | None = None

    @property
    def state(self) -> str:
        """What it does: `running`, or why it is not moving."""
        return "running" if self.stall is None else str(self.stall.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionState:
    """One connection.

    Attributes:
        id: Its number while it lasts.
        listener: Name of its listener.
        peer: Address of the client's machine.
        peer_port: Port that it comes from; 0: not known.
        user: Who logged in; empty before the login.
        client_id: Name that the client gave itself.
        protocol: Protocol and version; empty before the login.
        subscriptions: Number of its subscriptions.
        age_s: Seconds since it was made.
        idle_s: Seconds since something was heard from it.
        bytes_in: Bytes received.
        unsent_bytes: Bytes that wait to be sent.
        is_client_closed: Whether its client has closed its side, and what it sent waits for room.
    """

    id: int
    listener: str
    peer: str
    peer_port: int = 0
    user: str
    client_id: str
    protocol: str
    subscriptions: int
    age_s: float
    idle_s: float
    bytes_in: int
    unsent_bytes: int
    is_client_closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerState:
    """One listener.

    Attributes:
        name: Its name.
        host: Address that it listens on.
        port: Port that it listens on.
        protocols: Protocols that it speaks.
        is_tls: Whether it speaks TLS.
        connections: Open connections.
    """

    name: str
    host: str
    port: int
    protocols: tuple[str, ...]
    is_tls: bool
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """The whole broker.

    Attributes:
        is_ready: Whether it takes messages.
        not_ready_reason: Why not, as one sentence; empty while it is ready.
        uptime_s: Seconds since it became ready.
        listeners: Its listeners.
        connections_total: Connections ever made.
        frames: Frames that the core left to Python (the plain ones are not counted).
        messages_in: Messages that came into queues since the start, one for each queue.
        messages_out: Messages given to consumers since the start.
        messages_acknowledged: Messages acknowledged since the start.
        errors: Errors that clients caused, by kind.
        logins_refused: Logins refused.
        logins_delayed: Logins that had to wait after failed ones.
        transactions: Distributed transactions, and what timed out.
        duplicates_discarded: Messages discarded since the start, for an id seen before.
        duplicate_ids: Duplicate ids remembered, over all addresses.
        messages_dropped: Messages dropped because the disk was full.
        fates: What became of dead letters, expired, delayed and scheduled messages.
        slow_consumers: Consumers that were found to be slow.
        messages_unrouted: Messages that no queue accepted.
        messages_unrouted_by_address: The same by address, most first.
        filter_waits: How often filters, moves, scans and subscriptions waited for another turn.
        journal: The message journal.
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
    listeners: tuple[ListenerState, ...]
    connections_total: int
    frames: int
    messages_in: int
    messages_out: int
    messages_acknowledged: int
    errors: dict[str, int]
    logins_refused: int
    logins_delayed: int
    transactions: BranchStatistics
    duplicates_discarded: int
    duplicate_ids: int
    messages_dropped: int
    fates: FateStatistics
    slow_consumers: SlowConsumerStatistics
    messages_unrouted: int
    messages_unrouted_by_address: dict[str, int]
    filter_waits: int
    journal: JournalStatistics
    journal_waiters: int
    naming: NamingStatistics
    memory: MemoryState
    large: LargeMessageStatistics | None = None
    paging: PagingStatistics | None = None
    mqtt: MqttStatistics | None = None


def queue_state(engine: Engine, queue: Queue, stalls: Stalls | None = None) -> QueueState:
    """Return the state of one queue.

    Args:
        engine: The engine.
        queue: The queue.
        stalls: Says why it is not moving; None leaves that out.
    """
    counters = engine.core.queue_statistics(queue.id)
    rates = engine.rates.of(queue)
    oldest = engine.oldest.find(queue)
    settings = engine.registry.settings_for(queue.address.name)
    return QueueState(
        id=queue.id,
        name=queue.name,
        address=queue.address.name,
        routing_type=str(queue.routing_type),
        is_durable=queue.is_durable,
        is_auto_created=queue.is_auto_created,
        is_temporary=queue.is_temporary,
        filter_string=queue.traits.filter_string,
        is_configured=queue.traits.is_configured,
        is_paused=queue.is_held,
        max_consumers=engine.registry.usage.max_consumers(queue),
        purge_on_no_consumers=engine.registry.usage.is_purged_when_unused(queue),
        auto_delete=may_delete_queue(queue, settings),
        auto_delete_delay=deletion_delay_ms(queue, settings),
        auto_delete_message_count=deletion_messages_max(queue, settings),
        user=queue.traits.user,
        consumers=len(queue.consumers),
        messages=_messages(engine, queue),
        ready=counters.ready,
        delivering=counters.delivering,
        prepared=counters.prepared + counters.paged_prepared,
        aside=counters.aside,
        scheduled=engine.fates.schedule.waiting.count(queue.id),
        paged=counters.paged,
        oldest_age_s=_age_s(engine, oldest.time_ms),
        oldest_damage=oldest.damage,
        in_per_s=None if rates is None else rates.in_per_s,
        out_per_s=None if rates is None else rates.out_per_s,
        added=counters.added - queue.departed(CHANGED),
        acknowledged=counters.acknowledged - queue.departed_in_all,
        redelivered=counters.redelivered,
        unmovable=queue.unmovable,
        live_bytes=counters.live_bytes,
        stall=None if stalls is None else stalls.why(queue),
        **asdict(queue.kind),
    )


def _messages(engine: Engine, queue: Queue) -> int:
    """Return how many messages a queue has, those given out and not yet durable included."""
    counters = engine.core.queue_statistics(queue.id)
    in_memory = counters.ready + counters.delivering + counters.prepared + counters.aside
    return in_memory + counters.paged + counters.tail - counters.available


def _age_s(engine: Engine, time_ms: int) -> float | None:
    """Return the age of what came at a time, in milliseconds since 1970; None: 0 was given."""
    return max(engine.fates.clock_ms() - time_ms, 0) / 1000 if time_ms else None


def address_state(engine: Engine, cycle: Cycle, address: Address) -> AddressState:
    """Return the state of one address."""
    return AddressState(
        name=address.name,
        routing_types=tuple(sorted(str(kind) for kind in address.routing_types)),
        is_auto_created=address.is_auto_created,
        is_paused=address.is_paused,
        queues=tuple(address.queues),
        messages=sum(_messages(engine, queue) for queue in address.queues.values()),
        messages_unrouted=engine.registry.unrouted_messages.count_of(address.name),
        memory=address_memory(engine, cycle, address.name),
        stall=cycle.stalls.why(address),
    )


def consumer_statistics(core: Core, consumer: Consumer) -> ConsumerStatistics:
    """Return the state of one consumer."""
    view = consumer.view
    held = core.held_count(consumer.handle) if view is None else view.held
    given_for_good = consumer.given - consumer.given_back - held
    return ConsumerStatistics(
        queue=consumer.queue.name,
        subscription=consumer.subscription,
        mode=consumer.mode.name.lower(),
        credit=remaining_credit(core, consumer),
        connection=consumer.output.handle,
        selector=consumer.match.text if consumer.match is not None else "",
        priority=consumer.priority,
        is_exclusive=consumer.is_exclusive,
        delivering=held,
        delivered=consumer.given,
        acknowledged=given_for_good if view is None else view.acknowledged,
    )


def connection_state(connection: Connection, now_s: float) -> ConnectionState:
    """Return the state of one connection.

    Args:
        connection: The connection.
        now_s: The loop's clock.
    """
    handler = connection.handler
    return ConnectionState(
        id=connection.handle,
        listener=connection.listener.acceptor.name,
        peer=connection.peer,
        peer_port=connection.peer_port,
        user=handler.user if handler is not None else "",
        client_id=handler.client_id if handler is not None else "",
        protocol=handler.protocol if handler is not None else "",
        subscriptions=handler.subscriptions_count if handler is not None else 0,
        age_s=now_s - connection.connected_at_s,
        idle_s=now_s - connection.heard_at_s,
        bytes_in=connection.bytes_in,
        unsent_bytes=connection.unsent_bytes,
        is_client_closed=connection.is_client_closed,
    )


def listener_state(listener: Listener) -> ListenerState:
    """Return the state of one listener."""
    acceptor = listener.acceptor
    return ListenerState(
        name=acceptor.name,
        host=acceptor.host,
        port=listener.port,
        protocols=tuple(str(protocol).lower() for protocol in acceptor.protocols),
        is_tls=acceptor.tls is not None,
        connections=len(listener.connections),
    )


def broker_statistics(
    engine: Engine,
    cycle: Cycle,
    listeners: tuple[Listener, ...],
    journal: JournalStatistics,
    *,
    not_ready_reason: str,
    uptime_s: float,
    paging: PagingStatistics | None = None,
) -> BrokerStatistics:
    """Return the state of the whole broker."""
    registry = engine.registry
    added, acknowledged = registry.message_totals()
    return BrokerStatistics(
        is_ready=not not_ready_reason,
        not_ready_reason=not_ready_reason,
        uptime_s=uptime_s,
        listeners=tuple(listener_state(listener) for listener in listeners),
        connections_total=cycle.connections_total,
        frames=cycle.frames,
        messages_in=added,
        messages_out=engine.dispatcher.messages_out,
        messages_acknowledged=acknowledged,
        errors=dict(cycle.errors),
        logins_refused=engine.logins.refused,
        logins_delayed=engine.logins.delayed,
        transactions=engine.branches.statistics(),
        duplicates_discarded=engine.duplicates.discarded,
        duplicate_ids=engine.duplicates.count,
        messages_dropped=engine.full_disk.dropped_count,
        fates=engine.fates.statistics(),
        slow_consumers=engine.slow_consumers.statistics(),
        messages_unrouted=registry.unrouted_messages.total,
        messages_unrouted_by_address=registry.unrouted_messages.by_address(),
        filter_waits=engine.turn_time.waits,
        journal=journal,
        journal_waiters=cycle.journal_waiters,
        naming=NamingStatistics(
            addresses_max=registry.limits.addresses_max,
            queues_max=registry.limits.queues_max,
            refused=registry.limits.refused,
            permissions_refused=registry.permissions.refused,
            permissions_withheld=registry.withheld,
            throttled=registry.limits.rates.throttled,
            addresses_deleted=engine.reaper.addresses_deleted,
            queues_deleted=engine.reaper.queues_deleted,
        ),
        memory=memory_state(engine, cycle),
        large=cycle.large.statistics() if cycle.large is not None else None,
        paging=paging,
        mqtt=cycle.mqtt.statistics() if cycle.mqtt is not None else None,
    )

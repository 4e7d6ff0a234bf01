"""What the API shows and takes: the records behind its JSON, in camelCase.

Owns the names that scripts rely on; the OpenAPI document is made from the docstrings here. Must
never hold logic. Filled by attribute from the states of `app`. Called by `handlers`, `metrics`,
`openapi`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vespiary_broker.admin.journal_records import Aio as Aio
from vespiary_broker.admin.journal_records import Body as Body
from vespiary_broker.admin.journal_records import Compaction as Compaction
from vespiary_broker.admin.journal_records import Files as Files
from vespiary_broker.admin.journal_records import Histogram as Histogram
from vespiary_broker.admin.journal_records import Image as Image
from vespiary_broker.admin.journal_records import Journal as Journal
from vespiary_broker.admin.journal_records import JournalFile as JournalFile
from vespiary_broker.admin.journal_records import JournalFilePage as JournalFilePage
from vespiary_broker.admin.journal_records import Ownership as Ownership
from vespiary_broker.admin.journal_records import Record as Record
from vespiary_broker.admin.journal_records import Retention as Retention
from vespiary_broker.admin.kind_records import QueueFields, QueueKindShown
from vespiary_broker.admin.large_records import LargeMessages as LargeMessages
from vespiary_broker.admin.memory_records import AddressMemory as AddressMemory
from vespiary_broker.admin.paging_records import Paging as Paging
from vespiary_spec import limits
from vespiary_spec.settings import RoutingType

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.ADDRESS_NAME_CHARACTERS_MAX)]


class Stall(Record, frozen=True):
    """Why a queue or an address is not moving.

    Attributes:
        reason: One of `full`, `paused`, `scheduled`, `paged`, `no-consumers`, `no-credit`,
            `no-selector-match`, `group-owner`, `exclusive-consumer`, `disk`, `memory`,
            `rate-limit` and `unmovable`.
        text: The reason as a sentence.
        cure: What to do next.
        blocked_producers: Producers that wait for the address.
    """

    reason: str
    text: str
    cure: str
    blocked_producers: int


class StalledPlace(Record, frozen=True):
    """A queue or an address that is not moving.

    Attributes:
        kind: `queue` or `address`.
        name: Its name.
        address: Name of its address; of an address its own.
        stall: Why.
        age_s: Seconds since that was found first; all are looked at every 5 s.
    """

    kind: str
    name: str
    address: str
    stall: Stall
    age_s: float


class Listener(Record, frozen=True):
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


class Broker(Record, frozen=True):
    """A broker; counters begin at its start.

    Attributes:
        version: Its version.
        is_ready: Whether it takes messages.
        not_ready_reason: Why not, as one sentence; empty while it is ready.
        journal_failed_reason: The failure that fenced a journal, so that nothing is confirmed any
            more; empty while they work.
        journal_blocked_reason: Why producers wait for room in the journal, as one sentence; empty
            while there is room.
        journal_blocked_producers: Producers that wait for that room.
        uptime_s: Seconds since it became ready.
        data_directory: Its data folder.
        engine: Effective journal engine: ASYNCIO, IO_URING, NIO or MEMORY.
        durability: What a confirm is worth: D0, D1 or D2.
        listeners: Its listeners.
        addresses: Number of addresses.
        queues: Number of queues.
        connections_total: Connections ever made.
        messages_in: Messages that came into queues, one for each queue.
        messages_out: Messages given to consumers.
        messages_acknowledged: Messages acknowledged.
        client_errors: Errors that clients caused, by kind.
        logins_refused: Logins refused.
        messages_dropped: Messages dropped because the disk was full.
        messages_dropped_address_full: Messages dropped because an address was full.
        messages_unmovable: How often messages could not be moved and are delivered again.
        messages_unrouted: Messages that no queue accepted.
        messages_unrouted_by_address: The same by address, most first.
        large_messages: Large messages; null without persistence.
        paging: Messages in page files; null without persistence.
        stalled_queues: Queues that were not moving when all were last looked at, by reason.
        stalled_addresses: The same of addresses.
        stalls: At most 20 addresses and queues that are not moving now: full addresses, then other
            addresses, queues, and addresses that wait for the disk. Of each kind, what has been so
            for longest comes first.
    """

    version: str
    is_ready: bool
    not_ready_reason: str
    uptime_s: float
    data_directory: str
    engine: str
    durability: str
    listeners: tuple[Listener, ...]
    addresses: int
    queues: int
    connections_total: int
    messages_in: int
    messages_out: int
    messages_acknowledged: int
    client_errors: dict[str, int]
    logins_refused: int
    messages_dropped: int
    messages_dropped_address_full: int
    messages_unmovable: int
    messages_unrouted: int
    messages_unrouted_by_address: dict[str, int]
    journal_failed_reason: str = ""
    journal_blocked_reason: str = ""
    journal_blocked_producers: int = 0
    large_messages: LargeMessages | None = None
    paging: Paging | None = None
    stalled_queues: dict[str, int] = {}  # noqa: RUF012  (msgspec copies it)
    stalled_addresses: dict[str, int] = {}  # noqa: RUF012
    stalls: tuple[StalledPlace, ...] = ()


class Queue(QueueKindShown, frozen=True):
    """A queue; counters begin at the broker's start.

    Attributes:
        name: Its name, unique in the broker.
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
        oldest_age_s: Seconds since its oldest message came; null if it has none. Where that message
            is not in memory it has to be read: a list reads for 16 queues, and others are null.
        oldest_damage: Why the age is not known: the page or journal file of that message is
            damaged. Empty: it is not.
        in_per_s: Messages that came in per second, in the last 5 s; null until that is known.
        out_per_s: Messages that left it per second (acknowledged, expired, moved, removed), in the
            last 5 s; null until that is known.
        added: Messages that came in.
        acknowledged: Messages that were acknowledged.
        redelivered: Messages that were given back.
        unmovable: How often messages could not be moved elsewhere and are delivered again.
        live_bytes: Bytes of the messages in it.
        state: `idle` without messages, `running`, or the reason why it is not moving.
        stall: Why it is not moving; null: it is, or it has nothing to give.
    """

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
    user: str
    consumers: int
    messages: int
    ready: int
    delivering: int
    prepared: int
    aside: int
    scheduled: int
    paged: int
    oldest_age_s: float | None
    oldest_damage: str
    in_per_s: float | None
    out_per_s: float | None
    added: int
    acknowledged: int
    redelivered: int
    unmovable: int
    live_bytes: int
    state: str
    stall: Stall | None


class Address(Record, frozen=True):
    """An address.

    Attributes:
        name: Its name.
        routing_types: Routing types that it serves.
        is_auto_created: Whether a client's use made it.
        is_paused: Whether none of its queues gives its consumers anything for now.
        queues: Names of its queues.
        messages: Messages in all of them.
        messages_unrouted: Messages sent there that no queue accepted, since the broker's start.
        memory: What its messages take, its limits and its policy; null if it has no queues.
        state: `running`, or the reason why it is not moving.
        stall: Why it is not moving: it is full, or producers wait for it; null: it takes messages.
    """

    name: str
    routing_types: tuple[str, ...]
    is_auto_created: bool
    is_paused: bool
    queues: tuple[str, ...]
    messages: int
    messages_unrouted: int
    memory: AddressMemory | None
    state: str
    stall: Stall | None


SettingValue = bool | int | float | str | None
"""The value of a setting as the API shows it."""


class EffectiveSetting(Record, frozen=True):
    """A setting that holds for an address.

    Attributes:
        name: Its name in the configuration, as `max-size-bytes`.
        value: Its value; null: it is left open.
        match: The match of `address-settings` that says so; null: none does, it is the default.
    """

    name: str
    value: SettingValue
    match: str | None


class EffectiveSettings(Record, frozen=True):
    """All settings that hold for an address.

    Attributes:
        items: The settings, by name.
    """

    items: tuple[EffectiveSetting, ...]


class Connection(Record, frozen=True):
    """A client's connection.

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
    peer_port: int
    user: str
    client_id: str
    protocol: str
    subscriptions: int
    age_s: float
    idle_s: float
    bytes_in: int
    unsent_bytes: int
    is_client_closed: bool


class Consumer(Record, frozen=True):
    """A consumer.

    Attributes:
        queue: Name of its queue.
        subscription: Id that the client gave it.
        mode: `auto`, `client` or `individual`.
        credit: Messages that its client takes now, beyond those that it holds: the credit of an
            AMQP link, what is left of `prefetch-count` (STOMP) or of Receive Maximum (MQTT, shared
            by the subscriptions of a client); null: any number.
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


class DuplicateIds(Record, frozen=True):
    """The duplicate ids that an address remembers.

    Attributes:
        address: Name of the address.
        size: Ids that are remembered at most.
        ids: Ids that are remembered.
        discarded: Messages discarded since the start, for an id seen before.
        newest: The newest ids, newest first; the query says how many.
    """

    address: str
    size: int
    ids: int
    discarded: int
    newest: tuple[str, ...]


class Forgotten(Record, frozen=True):
    """Duplicate ids that were forgotten.

    Attributes:
        ids: Number of ids.
    """

    ids: int


class BrokerPage(Record, frozen=True):
    """Brokers that this one knows: itself.

    Attributes:
        items: The brokers.
        next: Always null.
    """

    items: tuple[Broker, ...]
    next: str | None = None


class QueuePage(Record, frozen=True):
    """Some queues, by name.

    Attributes:
        items: The queues.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Queue, ...]
    next: str | None


class AddressPage(Record, frozen=True):
    """Some addresses, by name.

    Attributes:
        items: The addresses.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Address, ...]
    next: str | None


class ConnectionPage(Record, frozen=True):
    """Some connections, by number.

    Attributes:
        items: The connections.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Connection, ...]
    next: str | None


class ConsumerPage(Record, frozen=True):
    """Some consumers, by connection and subscription.

    Attributes:
        items: The consumers.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Consumer, ...]
    next: str | None


class Removed(Record, frozen=True):
    """What a deletion or a purge removed.

    Attributes:
        messages: Number of messages.
    """

    messages: int


class NewAddress(Body, frozen=True):
    """An address to make.

    Attributes:
        name: Its name.
        routing_types: Routing types to serve; one that exists is widened by them.
    """

    name: Name
    routing_types: Annotated[tuple[RoutingType, ...], msgspec.Meta(min_length=1)] = (
        RoutingType.ANYCAST,
    )


class NewQueue(QueueFields, frozen=True, kw_only=True):
    """A queue to make.

    Attributes:
        name: Its name, unique in the broker.
        address: Name of its address, which is made if need be; null for one of the queue's name.
        routing_type: ANYCAST: each message goes to one consumer. MULTICAST: a subscription.
        durable: Whether queue and messages survive a restart.
        filter_string: Selector that messages have to pass to come in; empty for none.
        max_consumers: Most consumers at a time, -1 for any number; null: the settings say.
        purge_on_no_consumers: Whether it is emptied when its last consumer goes, and takes nothing
            until the next one comes; null: the settings say.
    """

    name: Name
    address: Name | None = None
    routing_type: RoutingType = RoutingType.ANYCAST
    durable: bool = True
    filter_string: str = ""


class JmsObject(Record, frozen=True):
    """A JMS queue, topic or connection factory that was made through the API.

    Attributes:
        kind: `queue`, `topic` or `connection-factory`.
        name: Its name; a destination's is that of its address.
        jndi_names: JNDI names that lead to it.
        url: Where a connection factory connects to; empty for destinations.
    """

    kind: str
    name: str
    jndi_names: tuple[str, ...]
    url: str


class JmsPage(Record, frozen=True):
    """Some JMS objects of one kind, by name.

    Attributes:
        items: The objects.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[JmsObject, ...]
    next: str | None


class JndiName(Record, frozen=True):
    """A JNDI name.

    Attributes:
        jndi_name: The name.
        kind: Kind of what it leads to: `queue`, `topic` or `connection-factory`.
        name: Name of what it leads to.
    """

    jndi_name: str
    kind: str
    name: str


class JndiPage(Record, frozen=True):
    """Some JNDI names, in order.

    Attributes:
        items: The names.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[JndiName, ...]
    next: str | None


class NewJmsDestination(Body, frozen=True):
    """A JMS queue or topic to make, or to give more JNDI names.

    Attributes:
        name: Its name; the address of that name is made if need be.
        jndi_names: JNDI names to bind it to.
    """

    name: Name
    jndi_names: tuple[str, ...] = ()


class NewConnectionFactory(Body, frozen=True):
    """A connection factory to make, to give more JNDI names, or another URL.

    Attributes:
        name: Its name.
        url: Where it connects to, such as `amqp://broker:5672` or `failover:(amqp://a,amqp://b)`.
        jndi_names: JNDI names to bind it to.
    """

    name: Name
    url: str
    jndi_names: tuple[str, ...] = ()


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, as RFC 9457 has it.

    Attributes:
        type: `urn:vespiary:error:CODE` of docs/reference/errors.md, or `about:blank`.
        title: The meaning of the status.
        status: The status again.
        detail: A sentence: what, where, measured against allowed, what to do.
        instance: Path of the request.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str

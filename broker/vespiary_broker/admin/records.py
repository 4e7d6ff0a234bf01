"""What the API shows and takes: the records behind its JSON, in camelCase.

Owns the names that scripts rely on; the OpenAPI document is made from the docstrings here. Must
never hold logic. Filled by attribute from the states of `app`. Called by `handlers`, `metrics`,
`openapi`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.settings import RoutingType

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.ADDRESS_NAME_CHARACTERS_MAX)]


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all records share."""


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What all request bodies share."""


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


class Files(Record, frozen=True):
    """Files of a journal by state.

    Attributes:
        active: In use, those made ready ahead of need included.
        ahead: Made ready, not yet begun.
        free: Kept for use again.
        bytes_on_disk: Size of all of them.
        pinned: Of the active ones, full files without a live message, which wait for older files.
    """

    active: int
    ahead: int
    free: int
    bytes_on_disk: int
    pinned: int


class Histogram(Record, frozen=True):
    """How often a value lay where.

    Attributes:
        bounds: Upper bounds of the buckets.
        counts: Values by bucket; one more than there are bounds.
        total: Sum of the values.
    """

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int


class Image(Record, frozen=True):
    """The journal's image in memory; a slab is its unit.

    Attributes:
        slabs_total: Slabs allocated.
        slabs_free: Those of them that hold nothing.
        slabs_max: Most that will be allocated.
    """

    slabs_total: int
    slabs_free: int
    slabs_max: int


class Aio(Record, frozen=True):
    """Asynchronous I/O of the machine.

    Attributes:
        max_nr: `fs.aio-max-nr`; null if it cannot be read.
        nr: `fs.aio-nr`, in use by everyone; null if it cannot be read.
        demand: Requests that this broker reserves.
    """

    max_nr: int | None
    nr: int | None
    demand: int


class Retention(Record, frozen=True):
    """Kept copies of full journal files.

    Attributes:
        copies: Copies in the folder.
        copies_bytes: Size of them.
        files_waiting: Full journal files without a copy: they can't be freed.
        copied: Copies made since the start.
        removed: Copies removed since the start, by age or size.
        blocked_reason: Why copies wait; null while they are made.
    """

    copies: int
    copies_bytes: int
    files_waiting: int
    copied: int
    removed: int
    blocked_reason: str | None


class Compaction(Record, frozen=True):
    """Compaction of the journal: moving messages out of nearly empty files.

    Attributes:
        is_running: Whether files are being emptied now.
        waiting_files: Files that are worth emptying.
        waiting_bytes: What is live in them.
        files: Files that were emptied.
        moved_bytes: Bytes written for that.
        moved_messages: Messages that were moved, one for each queue that they are in.
    """

    is_running: bool
    waiting_files: int
    waiting_bytes: int
    files: int
    moved_bytes: int
    moved_messages: int


class Journal(Record, frozen=True):
    """The message journal; counters begin at the broker's start.

    Attributes:
        engine: Effective engine: ASYNCIO, IO_URING, NIO or MEMORY.
        asked_engine: Engine of the configuration.
        fallback_reason: Why the two differ; null if they do not.
        durability: What a confirm is worth: D0 memory, D1 survives kill -9, D2 survives power loss.
        writes: Writes that ended well.
        written_bytes: Bytes of these, padding included.
        blocks: Blocks of these.
        records: Records added.
        payload_bytes: Bytes of these.
        flush_bounds_us: Upper bounds of the buckets of `flushCounts`, in microseconds.
        flush_counts: Writes by the time they took; one bucket more than there are bounds.
        flush_sum_us: Sum of these times, in microseconds.
        slab_loads: Parts of files that were read back into memory.
        files: Files by state.
        image: Its image in memory.
        files_made: Files created.
        preallocation_fallbacks: Of these, made by another strategy than the one asked for.
        files_reclaimed: Files freed.
        sequence_durable: Highest durable block.
        unwritten_bytes: Sealed and not yet durable.
        live_bytes: What is live in the files.
        live_percent: Its share of the files in use, those ahead excepted.
        compaction: Moving messages out of nearly empty files.
        failed_reason: The failure that fenced the journal; null while it works.
        blocked_reason: Why no file can be made; null while there is room.
        retention: Kept copies of full files; null where none are kept.
        append_us: Microseconds from when the first record of a write was staged until all of them
            were durable, for each write.
        write_records: Records of each write.
        write_bytes: Bytes of each write.
        recovery_s: Seconds that reading the journal back took at the start.
        requests_in_flight: Reads and writes that the disk has to end.
        requests_max: Most of them at once.
        aio: Asynchronous I/O of the machine.
    """

    engine: str
    asked_engine: str
    fallback_reason: str | None
    durability: str
    writes: int
    written_bytes: int
    blocks: int
    records: int
    payload_bytes: int
    flush_bounds_us: tuple[int, ...]
    flush_counts: tuple[int, ...]
    flush_sum_us: int
    slab_loads: int
    files: Files
    image: Image
    files_made: int
    preallocation_fallbacks: int
    files_reclaimed: int
    sequence_durable: int
    unwritten_bytes: int
    live_bytes: int
    live_percent: float
    compaction: Compaction
    failed_reason: str | None
    blocked_reason: str | None
    retention: Retention | None
    append_us: Histogram
    write_records: Histogram
    write_bytes: Histogram
    recovery_s: float
    requests_in_flight: int
    requests_max: int
    aio: Aio


class Broker(Record, frozen=True):
    """A broker; counters begin at its start.

    Attributes:
        version: Its version.
        is_ready: Whether it takes messages.
        not_ready_reason: Why not, as one sentence; empty while it is ready.
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


class Queue(Record, frozen=True):
    """A queue; counters begin at the broker's start.

    Attributes:
        name: Its name, unique in the broker.
        address: Name of its address.
        routing_type: ANYCAST or MULTICAST.
        is_durable: Whether it survives a restart.
        is_auto_created: Whether a client's use made it.
        is_temporary: Whether it goes with its consumer.
        consumers: Number of consumers.
        messages: Messages in it, those given out included.
        ready: Messages that wait for a consumer.
        delivering: Messages given out and not acknowledged.
        prepared: Messages that prepared transactions have added or acknowledged.
        added: Messages that came in.
        acknowledged: Messages that were acknowledged.
        redelivered: Messages that were given back.
        live_bytes: Bytes of the messages in it.
    """

    name: str
    address: str
    routing_type: str
    is_durable: bool
    is_auto_created: bool
    is_temporary: bool
    consumers: int
    messages: int
    ready: int
    delivering: int
    prepared: int
    added: int
    acknowledged: int
    redelivered: int
    live_bytes: int


class Address(Record, frozen=True):
    """An address.

    Attributes:
        name: Its name.
        routing_types: Routing types that it serves.
        is_auto_created: Whether a client's use made it.
        queues: Names of its queues.
        messages: Messages in all of them.
    """

    name: str
    routing_types: tuple[str, ...]
    is_auto_created: bool
    queues: tuple[str, ...]
    messages: int


class Connection(Record, frozen=True):
    """A client's connection.

    Attributes:
        id: Its number while it lasts.
        listener: Name of its listener.
        peer: Address of the client's machine.
        user: Who logged in; empty before the login.
        client_id: Name that the client gave itself.
        protocol: Protocol and version; empty before the login.
        subscriptions: Number of its subscriptions.
        age_s: Seconds since it was made.
        idle_s: Seconds since something was heard from it.
        bytes_in: Bytes received.
        unsent_bytes: Bytes that wait to be sent.
    """

    id: int
    listener: str
    peer: str
    user: str
    client_id: str
    protocol: str
    subscriptions: int
    age_s: float
    idle_s: float
    bytes_in: int
    unsent_bytes: int


class Consumer(Record, frozen=True):
    """A consumer.

    Attributes:
        queue: Name of its queue.
        subscription: Id that the client gave it.
        mode: `auto`, `client` or `individual`.
        credit: Messages that may be out unacknowledged.
        connection: Number of its connection.
    """

    queue: str
    subscription: str
    mode: str
    credit: int
    connection: int


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


class NewQueue(Body, frozen=True):
    """A queue to make.

    Attributes:
        name: Its name, unique in the broker.
        address: Name of its address, which is made if need be; null for one of the queue's name.
        routing_type: ANYCAST: each message goes to one consumer. MULTICAST: a subscription.
        durable: Whether queue and messages survive a restart.
    """

    name: Name
    address: Name | None = None
    routing_type: RoutingType = RoutingType.ANYCAST
    durable: bool = True


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

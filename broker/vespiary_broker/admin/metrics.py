"""Metrics in Prometheus' formats, made when they are asked for from records that others count.

Owns names, labels and units; docs/howto/metrics.md lists them, and a test compares. Nothing is
counted here, so a message costs nothing: the parts of the broker count anyway, `gather` copies the
figures on the event loop in small steps, and `render` makes the text of them in a thread. Must
never hold more than one scrape. Called by `endpoints`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from vespiary_broker.admin import (
    configuration_records,
    large_records,
    memory_records,
    mqtt_records,
    naming_records,
    paging_records,
    records,
    slow_consumer_records,
    statistics_records,
    stream_records,
    volumes,
)
from vespiary_broker.admin.configuration import configuration_record
from vespiary_broker.admin.handlers import journal_record, queue_records, shown
from vespiary_broker.admin.ports import Broker
from vespiary_broker.engine.stalls import StallReason
from vespiary_spec.version import VERSION

QUEUES_MAX: Final = 2000
"""Queues, and addresses, with series of their own; those with the least are in the totals alone."""
_PREFIX: Final = "vespiary"
_STEP: Final = 128
"""Addresses looked at in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The figures of one moment.

    Attributes:
        ready: Whether the broker takes messages.
        statistics: The broker as a whole; None until the journal was read.
        journal: The journal; None until it was read.
        queues: The fullest queues, without temporary ones.
        lasting_queues: Number of queues, without temporary ones.
        temporary_queues: Number of temporary queues.
        addresses: Number of addresses.
        connections: Open connections by listener, protocol and user's presence.
        memory: The addresses whose messages take most.
        stalled_queues: Queues that are not moving, by reason.
        stalled_addresses: Addresses that are not moving, by reason.
        address_stalls: Such addresses with series of their own, and their reasons.
        configuration: The configuration in effect.
        volumes: How full the volumes are.
        streams: Queues that are read by ranges.
        unrouted: Messages that no queue accepted, by address.
    """

    ready: bool
    statistics: statistics_records.Statistics | None = None
    journal: records.Journal | None = None
    queues: tuple[records.Queue, ...] = ()
    lasting_queues: int = 0
    temporary_queues: int = 0
    addresses: int = 0
    connections: tuple[tuple[str, str, int], ...] = ()
    memory: tuple[memory_records.AddressMemory, ...] = ()
    stalled_queues: Mapping[str, int] = field(default_factory=dict)
    stalled_addresses: Mapping[str, int] = field(default_factory=dict)
    address_stalls: tuple[tuple[str, str], ...] = ()
    configuration: configuration_records.Configuration | None = None
    volumes: tuple[volumes.Volume, ...] = ()
    streams: tuple[stream_records.Stream, ...] = ()
    unrouted: tuple[tuple[str, int], ...] = ()


async def gather(broker: Broker, space: volumes.Volumes | None = None) -> Scrape:
    """Copy the figures; messages have their turn in between.

    Args:
        broker: The broker.
        space: How full its volumes are; None leaves it out.
    """
    is_ready = not broker.not_ready_reason
    spaces = () if space is None else await space.records()
    if broker.logins is None:
        return Scrape(is_ready, volumes=spaces)
    queues = await queue_records(broker, broker.queue_names())
    lasting = [queue for queue in queues if not queue.is_temporary]
    lasting_count = len(lasting)
    lasting = await _series(broker, lasting)
    memory, stalls = await _addresses(broker)
    connections: Counter[tuple[str, str]] = Counter()
    for state in broker.connections():
        connection: Any = state
        connections[connection.listener, connection.protocol or "none"] += 1
    statistics = shown(broker.statistics(), statistics_records.Statistics)
    unrouted = statistics.messages_unrouted_by_address.items()
    return Scrape(
        is_ready,
        statistics,
        journal_record(broker),
        tuple(lasting),
        lasting_count,
        len(queues) - lasting_count,
        len(broker.address_names()),
        tuple((*key, count) for key, count in sorted(connections.items())),
        memory,
        Counter(queue.stall.reason for queue in queues if queue.stall is not None),
        Counter(reason for _, reason in stalls),
        tuple(stall for stall in stalls if broker.has_metrics(stall[0]))[:QUEUES_MAX],
        configuration_record(broker),
        spaces,
        _streams(broker),
        tuple((name, count) for name, count in unrouted if broker.has_metrics(name)),
    )


def _streams(broker: Broker) -> tuple[stream_records.Stream, ...]:
    states = (broker.streams.get(name) for name in broker.streams.names()[:QUEUES_MAX])
    return tuple(shown(state, stream_records.Stream) for state in states if state is not None)


async def _series(broker: Broker, queues: list[records.Queue]) -> list[records.Queue]:
    """Return the fullest queues that have series; messages have their turn in between."""
    if len(queues) > QUEUES_MAX:
        queues = await asyncio.to_thread(
            sorted, queues, key=lambda queue: (-queue.messages, queue.name)
        )
    found = []
    for index, queue in enumerate(queues):
        if index % _STEP == _STEP - 1:
            await asyncio.sleep(0)
        if broker.has_metrics(queue.address):
            found.append(queue)
            if len(found) == QUEUES_MAX:
                break
    return found


async def _addresses(
    broker: Broker,
) -> tuple[tuple[memory_records.AddressMemory, ...], list[tuple[str, str]]]:
    """Return the addresses whose messages take most, and why which addresses are not moving.

    Messages have their turn in between.
    """
    found = []
    stalls: list[tuple[str, str]] = []
    for index, name in enumerate(broker.address_names()):
        if index % _STEP == _STEP - 1:
            await asyncio.sleep(0)
        state: Any = broker.address(name)
        if state is None:
            continue
        if state.stall is not None:
            stalls.append((name, str(state.stall.reason)))
        if state.memory is not None and broker.has_metrics(name):
            found.append(shown(state.memory, memory_records.AddressMemory))
    found.sort(key=lambda address: (-address.size_bytes, address.name))
    return tuple(found[:QUEUES_MAX]), stalls


def render(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """Return the text of a scrape and its media type.

    Args:
        scrape: The figures.
        accept: The Accept header of the request; empty for plain text.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(ScrapeCollector(scrape))
    encoder, media_type = choose_encoder(accept)
    return encoder(registry), media_type


class ScrapeCollector(Collector):
    """Hands one scrape to prometheus_client.

    Args:
        scrape: The figures.
    """

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        scrape = self._scrape
        yield _info("build", "What runs here.", {"version": VERSION})
        yield _gauge("ready", "1 while the broker takes messages.", int(scrape.ready))
        if scrape.statistics is not None:
            yield from _broker(scrape, scrape.statistics)
            yield from naming_records.metrics_of(scrape.statistics.naming, _PREFIX)
            if scrape.statistics.large is not None:
                yield from large_records.metrics_of(scrape.statistics.large, _PREFIX)
            if scrape.statistics.paging is not None:
                yield from paging_records.metrics_of(scrape.statistics.paging, _PREFIX)
            if scrape.statistics.mqtt is not None:
                yield from mqtt_records.metrics_of(scrape.statistics.mqtt, _PREFIX)
            yield from memory_records.metrics_of(scrape.statistics.memory, scrape.memory, _PREFIX)
            yield from _queues(scrape.queues)
            yield from _stalls(scrape)
            yield from stream_records.metrics_of(scrape.streams, _PREFIX)
        if scrape.configuration is not None:
            yield from configuration_records.metrics_of(scrape.configuration, _PREFIX)
        if scrape.volumes:
            yield from volumes.metrics_of(scrape.volumes, _PREFIX)
        if scrape.journal is not None:
            yield from _journal(scrape.journal)
            yield from _aio(scrape.journal.aio)
            if scrape.journal.retention is not None:
                yield from _retention(scrape.journal.retention)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _info(name: str, text: str, labels: dict[str, str]) -> Metric:
    return InfoMetricFamily(f"{_PREFIX}_{name}", text, value=labels)


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: list[tuple[tuple[str, ...], float]],
) -> Metric:
    family = kind(f"{_PREFIX}_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _broker(scrape: Scrape, statistics: statistics_records.Statistics) -> Iterator[Metric]:
    yield _gauge("uptime_seconds", "Seconds since the broker became ready.", statistics.uptime_s)
    yield _counter(
        "messages_in", "Messages that came into queues, one for each.", statistics.messages_in
    )
    yield _counter("messages_out", "Messages given to consumers.", statistics.messages_out)
    yield _counter(
        "messages_acknowledged", "Messages acknowledged.", statistics.messages_acknowledged
    )
    yield _counter(
        "slow_path_frames",
        "Frames of clients that the fast path left to Python.",
        statistics.frames,
    )
    yield _labelled(
        GaugeMetricFamily,
        "connections",
        "Open connections; protocol is none before the login.",
        ("listener", "protocol"),
        [((listener, protocol), count) for listener, protocol, count in scrape.connections],
    )
    yield _gauge(
        "journal_blocked_producers",
        "Producers that wait because no journal file can be made.",
        statistics.journal_waiters,
    )
    yield _counter("connections_opened", "Connections ever made.", statistics.connections_total)
    yield _labelled(
        CounterMetricFamily,
        "client_errors",
        "Errors that clients caused and were told.",
        ("kind",),
        [((kind,), count) for kind, count in sorted(statistics.errors.items())],
    )
    yield _counter("logins_refused", "Logins refused.", statistics.logins_refused)
    yield _counter("logins_delayed", "Logins delayed after failures.", statistics.logins_delayed)
    yield from _transactions(statistics.transactions)
    yield from _fates(statistics.fates)
    yield from slow_consumer_records.metrics_of(statistics.slow_consumers, _PREFIX)
    yield _counter(
        "duplicates_discarded",
        "Messages discarded because their duplicate id was seen before.",
        statistics.duplicates_discarded,
    )
    yield _gauge(
        "duplicate_ids", "Duplicate ids remembered, all addresses.", statistics.duplicate_ids
    )
    yield _counter(
        "messages_dropped",
        "Messages dropped because the disk was full and their disk-full-policy is DROP.",
        statistics.messages_dropped,
    )
    yield from _unrouted(scrape, statistics)
    yield _counter(
        "filter_waits",
        "How often filters, moves, scans and subscriptions waited for another turn of the loop.",
        statistics.filter_waits,
    )
    yield _gauge("addresses", "Addresses.", scrape.addresses)
    yield _gauge("queues", "Queues, without temporary ones.", scrape.lasting_queues)
    yield _gauge("temporary_queues", "Queues that go with their consumer.", scrape.temporary_queues)


def _unrouted(scrape: Scrape, statistics: statistics_records.Statistics) -> Iterator[Metric]:
    yield _counter(
        "messages_unrouted",
        "Messages that no queue accepted.",
        statistics.messages_unrouted,
    )
    yield _labelled(
        CounterMetricFamily,
        "address_messages_unrouted",
        "Messages that no queue accepted, by the address that they were sent to.",
        ("address",),
        [((name,), count) for name, count in scrape.unrouted],
    )


def _transactions(transactions: statistics_records.Transactions) -> Iterator[Metric]:
    for name, text, value in (
        ("prepared_transactions", "Prepared branches: in doubt.", transactions.prepared),
        (
            "quarantined_transactions",
            "Prepared branches of which something is missing.",
            transactions.quarantined,
        ),
        (
            "heuristic_transactions",
            "Branches that an administrator decided and nobody has forgotten.",
            transactions.heuristic,
        ),
        (
            "oldest_prepared_transaction_seconds",
            "Age of the oldest prepared branch.",
            transactions.oldest_prepared_s,
        ),
    ):
        yield _gauge(name, text, value)
    yield _counter(
        "transactions_timed_out",
        "Transactions rolled back because they took too long.",
        transactions.timed_out,
    )


def _fates(fates: statistics_records.Fates) -> Iterator[Metric]:
    for name, text, value in (
        ("dead_letters", "Messages moved to a dead letter address.", fates.dead),
        (
            "dead_letters_dropped",
            "Messages dropped after too many deliveries: no dead letter address takes them.",
            fates.dead_dropped,
        ),
        (
            "dead_letters_kept",
            "How often messages stayed after too many deliveries: they have nowhere to go.",
            fates.dead_kept,
        ),
        (
            "messages_unmovable",
            "How often messages could not be moved and are delivered again: the log says why.",
            fates.unmovable,
        ),
        ("messages_expired", "Expired messages moved to an expiry address.", fates.expired),
        (
            "messages_expired_dropped",
            "Expired messages dropped: no expiry address takes them.",
            fates.expired_dropped,
        ),
    ):
        yield _counter(name, text, value)
    yield _gauge(
        "delayed_messages", "Messages that wait for their redelivery delay.", fates.delayed
    )
    yield _gauge(
        "unreadable_parts",
        "Parts of journal and page files that do not verify: their messages stay.",
        fates.unreadable_parts,
    )


_QUEUE_GAUGES: Final = (
    ("messages", "messages", "Messages in the queue, those given out included."),
    ("ready", "ready_messages", "Messages that wait for a consumer."),
    ("delivering", "delivering_messages", "Messages given out and not acknowledged."),
    ("prepared", "prepared_messages", "Messages that prepared transactions hold."),
    ("aside", "aside_messages", "Messages that nobody is given now; scheduled ones are of them."),
    ("scheduled", "scheduled_messages", "Messages that wait for the time they were sent for."),
    ("paged", "paged_messages", "Messages of the queue in pages."),
    ("consumers", "consumers", "Consumers."),
    ("live_bytes", "bytes", "Bytes of the messages in the queue."),
)
_QUEUE_COUNTERS: Final = (
    ("added", "messages_in", "Messages that came into the queue."),
    ("acknowledged", "messages_acknowledged", "Messages acknowledged."),
    ("redelivered", "messages_redelivered", "Messages given back by consumers."),
)


def _queues(queues: tuple[records.Queue, ...]) -> Iterator[Metric]:
    labels = [(queue.address, queue.name) for queue in queues]
    for kind, fields in (
        (GaugeMetricFamily, _QUEUE_GAUGES),
        (CounterMetricFamily, _QUEUE_COUNTERS),
    ):
        for attribute, name, text in fields:
            values = [float(getattr(queue, attribute)) for queue in queues]
            yield _labelled(
                kind,
                f"queue_{name}",
                text,
                ("address", "queue"),
                list(zip(labels, values, strict=True)),
            )


def _stalls(scrape: Scrape) -> Iterator[Metric]:
    """Yield what is not moving: how many for each reason, and which."""
    for kind, counts, one in (
        ("queues", scrape.stalled_queues, "Queues"),
        ("addresses", scrape.stalled_addresses, "Addresses"),
    ):
        yield _labelled(
            GaugeMetricFamily,
            f"stalled_{kind}",
            f"{one} that are not moving.",
            ("reason",),
            [((str(reason),), float(counts.get(reason, 0))) for reason in StallReason],
        )
    yield _labelled(
        GaugeMetricFamily,
        "queue_stalled",
        "1 while the queue is not moving.",
        ("address", "queue", "reason"),
        [
            ((queue.address, queue.name, queue.stall.reason), 1.0)
            for queue in scrape.queues
            if queue.stall is not None
        ],
    )
    yield _labelled(
        GaugeMetricFamily,
        "address_stalled",
        "1 while the address is not moving: see `reason`.",
        ("address", "reason"),
        [(stall, 1.0) for stall in scrape.address_stalls],
    )
    yield _labelled(
        GaugeMetricFamily,
        "queue_oldest_message_age_seconds",
        "Age of the oldest message of the queue; left out where it has to be read first.",
        ("address", "queue"),
        [
            ((queue.address, queue.name), queue.oldest_age_s)
            for queue in scrape.queues
            if queue.oldest_age_s is not None
        ],
    )
    yield _labelled(
        GaugeMetricFamily,
        "queue_oldest_message_damaged",
        "1 while the oldest message of the queue cannot be read: its page or file is damaged.",
        ("address", "queue"),
        [((queue.address, queue.name), 1.0) for queue in scrape.queues if queue.oldest_damage],
    )


def _journal(journal: records.Journal) -> Iterator[Metric]:
    yield _info(
        "journal",
        "Effective and asked journal engine, and what a confirm is worth.",
        {
            "engine": journal.engine,
            "asked_engine": journal.asked_engine,
            "durability": journal.durability,
        },
    )
    yield _gauge(
        "journal_engine_is_fallback",
        "1 while the engine is not the one asked for.",
        int(journal.fallback_reason is not None),
    )
    yield _gauge(
        "journal_fenced",
        "1 once a failed write has ended the journal; nothing is confirmed any more.",
        int(journal.failed_reason is not None),
    )
    if journal.ownership is not None:
        yield _gauge(
            "journal_ownership_epoch",
            "Number of this owner of the journal; one more with every start.",
            journal.ownership.epoch,
        )
        yield _gauge(
            "journal_ownership_age_seconds",
            "Seconds since the latest good look at the ownership block began.",
            journal.ownership.age_s,
        )
        yield _gauge(
            "journal_ownership_waiting",
            "1 while confirms wait for a look at the ownership block.",
            int(journal.ownership.waiting_reason is not None),
        )
    yield _gauge(
        "journal_blocked",
        "1 while no file can be made, so that producers wait.",
        int(journal.blocked_reason is not None),
    )
    yield _gauge("journal_reserve_bytes", "What the disk reserve takes.", journal.reserve_bytes)
    yield _gauge(
        "journal_reserve_owed_bytes",
        "What the disk reserve gave up for a start on a full disk, and has to get back.",
        journal.reserve_owed_bytes,
    )
    for name, text, value in (
        ("writes", "Writes that ended well.", journal.writes),
        ("written_bytes", "Bytes written, padding included.", journal.written_bytes),
        ("blocks", "Blocks written.", journal.blocks),
        (
            "records",
            "Records added; by writes this is the size of a group commit.",
            journal.records,
        ),
        ("payload_bytes", "Bytes of records.", journal.payload_bytes),
        ("slab_loads", "Parts of files read back into memory.", journal.slab_loads),
        ("files_made", "Files created.", journal.files_made),
        (
            "preallocation_fallbacks",
            "Files made by another strategy than the one asked for.",
            journal.preallocation_fallbacks,
        ),
        ("files_reclaimed", "Files freed.", journal.files_reclaimed),
    ):
        yield _counter(f"journal_{name}", text, value)
    yield from _writes(journal)
    yield from _files(journal)


def _files(journal: records.Journal) -> Iterator[Metric]:
    files = journal.files
    yield _labelled(
        GaugeMetricFamily,
        "journal_files",
        "Files by state.",
        ("state",),
        [
            (("active",), files.active - files.ahead - files.pinned),
            (("pinned",), files.pinned),
            (("ahead",), files.ahead),
            (("free",), files.free),
        ],
    )
    yield from _compaction(journal)
    image = journal.image
    yield _labelled(
        GaugeMetricFamily,
        "journal_image_slabs",
        "Slabs of the journal's image in memory by state.",
        ("state",),
        [(("used",), image.slabs_total - image.slabs_free), (("free",), image.slabs_free)],
    )
    yield _gauge("journal_image_slabs_max", "Most slabs that the image may take.", image.slabs_max)
    yield _gauge("journal_disk_bytes", "Size of all files.", files.bytes_on_disk)
    yield _gauge("journal_unwritten_bytes", "Sealed and not yet durable.", journal.unwritten_bytes)


def _retention(kept: records.Retention) -> Iterator[Metric]:
    is_blocked = int(kept.blocked_reason is not None)
    yield _gauge("retention_copies", "Kept copies of journal files.", kept.copies)
    yield _gauge("retention_bytes", "Size of all kept copies.", kept.copies_bytes)
    yield _gauge(
        "retention_files_waiting",
        "Full journal files that can't be freed before they are copied.",
        kept.files_waiting,
    )
    yield _gauge("retention_bodies", "Kept bodies of large messages.", kept.bodies)
    yield _gauge("retention_bodies_bytes", "Size of all kept bodies.", kept.bodies_bytes)
    yield _gauge(
        "retention_bodies_waiting",
        "Bodies that nobody needs and that can't be removed before they are copied.",
        kept.bodies_waiting,
    )
    yield _gauge("retention_blocked", "1 while copies can't be made.", is_blocked)
    yield _counter("retention_copied", "Copies made.", kept.copied)
    yield _counter("retention_removed", "Copies removed, by age or size.", kept.removed)


def _compaction(journal: records.Journal) -> Iterator[Metric]:
    counts = journal.compaction
    yield _gauge("journal_live_bytes", "What is live in the files.", journal.live_bytes)
    yield _gauge(
        "journal_live_ratio", "Live share of the files in use.", journal.live_percent / 100
    )
    for name, text, value in (
        ("running", "1 while files are being emptied.", int(counts.is_running)),
        ("waiting_files", "Files that are worth emptying.", counts.waiting_files),
        ("waiting_bytes", "What is live in them.", counts.waiting_bytes),
    ):
        yield _gauge(f"journal_compaction_{name}", text, value)
    for name, text, value in (
        ("files", "Files emptied by compaction.", counts.files),
        ("moved_bytes", "Bytes written by compaction.", counts.moved_bytes),
        ("moved_messages", "Messages moved by compaction.", counts.moved_messages),
    ):
        yield _counter(f"journal_compaction_{name}", text, value)


def _writes(journal: records.Journal) -> Iterator[Metric]:
    """Yield what is counted for each write."""
    yield _gauge(
        "journal_write_amplification",
        "Bytes written for each byte of records, since the start; 0 before the first.",
        journal.written_bytes / journal.payload_bytes if journal.payload_bytes else 0.0,
    )
    yield _gauge(
        "journal_recovery_seconds",
        "Seconds that reading the journal back took at the start.",
        journal.recovery_s,
    )
    yield _gauge(
        "journal_requests_in_flight",
        "Reads and writes that the disk has to end.",
        journal.requests_in_flight,
    )
    yield _gauge("journal_requests_max", "Most reads and writes in flight.", journal.requests_max)
    yield _flushes(journal)
    for histogram, name, text, scale in (
        (
            journal.append_us,
            "append_seconds",
            "Time from when the first record of a write was staged until all were durable.",
            1e6,
        ),
        (
            journal.compaction.step_us,
            "compaction_step_seconds",
            "Time for which compaction, or a checkpoint that frees files, held the event loop.",
            1e6,
        ),
        (journal.write_records, "write_records", "Records of each write.", 1),
        (journal.write_bytes, "write_bytes", "Bytes of each write, padding included.", 1),
    ):
        yield _histogram(f"journal_{name}", text, histogram, scale)


def _histogram(name: str, text: str, histogram: records.Histogram, scale: float) -> Metric:
    """Return a histogram of values that are divided by `scale`."""
    bounds = [str(bound / scale) for bound in histogram.bounds]
    buckets = list(zip([*bounds, "+Inf"], accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(
        f"{_PREFIX}_{name}", text, buckets=buckets, sum_value=histogram.total / scale
    )


def _flushes(journal: records.Journal) -> Metric:
    """Return the histogram of writes with their flush."""
    histogram = records.Histogram(
        bounds=journal.flush_bounds_us, counts=journal.flush_counts, total=journal.flush_sum_us
    )
    text = "Time of a write from submission until it is durable."
    return _histogram("journal_flush_seconds", text, histogram, 1e6)


def _aio(aio: records.Aio) -> Iterator[Metric]:
    for name, text, value in (
        ("aio_max_nr", "fs.aio-max-nr of the machine.", aio.max_nr),
        ("aio_nr", "fs.aio-nr of the machine: requests reserved by everyone.", aio.nr),
        ("aio_demand", "Requests that this broker reserves.", aio.demand),
    ):
        if value is not None:
            yield _gauge(name, text, value)

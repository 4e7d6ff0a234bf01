"""What the API shows of the memory of messages and of full addresses, and their metrics.

Owns the names. Must never hold logic. Used by `records`, `statistics_records` and `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vespiary_broker.admin.journal_records import Record

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class AddressMemory(Record, frozen=True):
    """What the messages of an address take in memory.

    Attributes:
        name: The address.
        policy: Its address-full-policy.
        size_bytes: What its messages take.
        messages: Their number; one in several queues counts once.
        max_bytes: Its max-size-bytes; None for none.
        max_messages: Its max-size-messages; None for none.
        is_full: Whether its policy holds now.
        is_paging: Whether its messages are to leave the memory.
        blocked_producers: Producers that wait for it.
        blocked_producers_closed: Those of them whose clients have closed their side.
        dropped: Messages dropped because it was full.
        page_full_policy: What becomes of messages while memory and pages are full; None for none.
        is_page_full: Whether its pages may not grow.
        page_limit_bytes: What its page files may take; None for no limit.
        page_limit_messages: What a queue may have in pages; None for no limit.
        pages_bytes: What its page files take; None where there is no limit on them.
        pages_messages: The most that one of its queues has in pages that are not open; likewise.
    """

    name: str
    policy: str
    size_bytes: int
    messages: int
    max_bytes: int | None
    max_messages: int | None
    is_full: bool
    is_paging: bool
    blocked_producers: int
    blocked_producers_closed: int
    dropped: int
    page_full_policy: str | None
    is_page_full: bool
    page_limit_bytes: int | None
    page_limit_messages: int | None
    pages_bytes: int | None
    pages_messages: int | None


class Memory(Record, frozen=True):
    """What the messages of all addresses take in memory.

    Attributes:
        size_bytes: What they take.
        messages: Their number.
        max_bytes: `global-max-size` as it holds.
        max_messages: `global-max-messages`; None for none.
        is_full: Whether all addresses that have messages are full.
        paging_addresses: Addresses whose messages are to leave the memory.
        page_full_addresses: Addresses whose pages may not grow: page-limit-* is reached.
        page_modes: How often an address began to page.
        blocked_producers: Producers that wait.
        blocked_producers_closed: Those of them whose clients have closed their side.
        waits: How often a producer began to wait.
        refused: Messages and transactions refused because an address was full.
        dropped: Messages dropped because an address was full.
    """

    size_bytes: int
    messages: int
    max_bytes: int | None
    max_messages: int | None
    is_full: bool
    paging_addresses: int
    page_full_addresses: int
    page_modes: int
    blocked_producers: int
    blocked_producers_closed: int
    waits: int
    refused: int
    dropped: int


def metrics_of(memory: Memory, addresses: Iterable[AddressMemory], prefix: str) -> Iterator[Metric]:
    """Yield the metrics.

    Args:
        memory: Of all addresses.
        addresses: Of those that have series of their own.
        prefix: Beginning of their names.
    """
    # A broker starts without it: only a scrape pays for the import.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text, value in (
        ("memory_bytes", "What messages take in memory.", memory.size_bytes),
        ("memory_limit_bytes", "What they may take: global-max-size.", memory.max_bytes),
        ("memory_messages", "Messages in memory.", memory.messages),
        ("memory_limit_messages", "How many they may be.", memory.max_messages),
        ("memory_full", "1 while every address with messages is full.", int(memory.is_full)),
        (
            "paging_addresses",
            "Addresses whose messages are to leave the memory.",
            memory.paging_addresses,
        ),
        (
            "page_full_addresses",
            "Addresses whose pages may not grow: page-limit-bytes or -messages is reached.",
            memory.page_full_addresses,
        ),
        (
            "blocked_producers",
            "Producers that wait because an address is full.",
            memory.blocked_producers,
        ),
        (
            "blocked_producers_closed",
            "Blocked producers whose clients have closed their side of the connection.",
            memory.blocked_producers_closed,
        ),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"{prefix}_{name}", text, value=value)
    for name, text, value in (
        ("producer_waits", "How often a producer began to wait.", memory.waits),
        ("page_modes", "How often an address began to page.", memory.page_modes),
        (
            "address_full_refused",
            "Messages and transactions refused because an address was full.",
            memory.refused,
        ),
    ):
        yield CounterMetricFamily(f"{prefix}_{name}", text, value=value)
    yield from _of_addresses(tuple(addresses), prefix)


def _of_addresses(addresses: tuple[AddressMemory, ...], prefix: str) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, field, text in (
        ("bytes", "size_bytes", "What the messages of the address take in memory."),
        ("limit_bytes", "max_bytes", "What they may take: max-size-bytes."),
        ("messages", "messages", "Messages of the address in memory."),
        ("limit_messages", "max_messages", "How many they may be: max-size-messages."),
        ("full", "is_full", "1 while the address is full."),
        ("paging", "is_paging", "1 while its messages are to leave the memory."),
        ("page_full", "is_page_full", "1 while its pages may not grow."),
        ("pages_bytes", "pages_bytes", "What its page files take, if there is a limit on them."),
        ("pages_messages", "pages_messages", "Most messages that a queue has in pages, likewise."),
        ("page_limit_bytes", "page_limit_bytes", "What its page files may take."),
        ("page_limit_messages", "page_limit_messages", "What a queue may have in pages."),
        ("blocked_producers", "blocked_producers", "Producers that wait for the address."),
        (
            "blocked_producers_closed",
            "blocked_producers_closed",
            "Blocked producers of the address whose clients have closed their side of the "
            "connection.",
        ),
    ):
        gauge = GaugeMetricFamily(f"{prefix}_address_{name}", text, labels=("address",))
        for address in addresses:
            value = getattr(address, field)
            if value is not None:
                gauge.add_metric((address.name,), float(value))
        yield gauge
    dropped = CounterMetricFamily(
        f"{prefix}_address_full_dropped",
        "Messages dropped because the address was full.",
        labels=("address",),
    )
    for address in addresses:
        dropped.add_metric((address.name,), float(address.dropped))
    yield dropped

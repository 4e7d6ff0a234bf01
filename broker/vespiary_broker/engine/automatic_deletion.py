"""When queues and addresses go by themselves: the reference system's rules, and the scan for that.

Owns the rules as functions of what was measured, and the walk over all that exists. Must never
wait: a scan is a generator of short steps. Called by `usage` when a consumer goes, and by the
server's timer every `address-queue-scan-period`; owner: the event loop.

A queue goes when all of this holds: it may (it says so; else it was created by
use, or `auto-delete-created-queues` holds); it has no consumer, and had none for the delay; it
holds no more messages than allowed, and none that a prepared branch has added or acknowledged; and
it was used, or that does not matter. An address goes when it was created by use, is not paused, has
no queue, and had none for its delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.core import QueueStatistics
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.engine.registry import Registry
    from vespiary_spec.settings import AddressSettings

STEP_ITEMS: Final = 500
"""Queues or addresses that one step of a scan looks at: about a millisecond."""


def can_go(queue: Queue) -> bool:
    """Return whether a queue is one that nobody counts on, so it may be told to go by itself."""
    traits = queue.traits
    kept = queue.client_id or traits.is_configured or traits.is_internal or queue.is_temporary
    return not kept


def deletion_delay_ms(queue: Queue, settings: AddressSettings) -> int:
    """Return how long a queue has to be without consumers before it goes by itself."""
    own, default = queue.traits.auto_delete_delay_ms, settings.auto_delete_queues_delay
    assert default is not None
    return default if own is None else own


def deletion_messages_max(queue: Queue, settings: AddressSettings) -> int:
    """Return how many messages a queue that goes by itself may hold; -1 for any number."""
    own = queue.traits.auto_delete_message_count
    default = settings.auto_delete_queues_message_count
    assert default is not None
    return default if own is None else own


def may_delete_queue(queue: Queue, settings: AddressSettings) -> bool:
    """Return whether a queue is one of those that go by themselves.

    Durable subscriptions, configured queues, and those that a stream reads never do: who has them
    counts on them.
    """
    traits = queue.traits
    if not can_go(queue) or queue.stream is not None:
        return False
    if traits.auto_delete is not None:
        return traits.auto_delete
    if queue.is_auto_created:
        return bool(settings.auto_delete_queues)
    return bool(settings.auto_delete_created_queues)


def is_queue_due(
    queue: Queue, settings: AddressSettings, counters: QueueStatistics, now_s: float
) -> bool:
    """Return whether a queue without consumers goes now.

    Args:
        queue: A queue that `may_delete_queue`.
        settings: The settings of its address.
        counters: Its counters.
        now_s: The monotonic clock that `queue.idle_since_s` was read from.
    """
    was_used = queue.was_used or counters.added > 0
    if not was_used and not settings.auto_delete_queues_skip_usage_check:
        return False
    if now_s - queue.idle_since_s < deletion_delay_ms(queue, settings) / 1000:
        return False
    if counters.prepared or counters.paged_prepared:  # a coordinator was promised what they hold
        return False
    allowed = deletion_messages_max(queue, settings)
    if counters.head == counters.tail or allowed == -1:
        return True
    messages = counters.ready + counters.delivering + counters.aside + counters.paged
    messages += counters.tail - counters.available
    return 0 < messages <= allowed


def is_address_due(address: Address, settings: AddressSettings, now_s: float) -> bool:
    """Return whether an address without queues goes now.

    Args:
        address: An address without queues.
        settings: Its settings.
        now_s: The monotonic clock that `address.idle_since_s` was read from.
    """
    assert settings.auto_delete_addresses_delay is not None
    if not address.is_auto_created or address.is_paused or not settings.auto_delete_addresses:
        return False
    if not address.was_used and not settings.auto_delete_addresses_skip_usage_check:
        return False
    return now_s - address.idle_since_s >= settings.auto_delete_addresses_delay / 1000


class Reaper:
    """Looks for what is to go, a little at a time.

    Args:
        registry: Addresses and queues.
        clock_s: The monotonic clock that the registry has too.
        period_s: Seconds between two scans; 0 for none.
    """

    def __init__(
        self, registry: Registry, clock_s: Callable[[], float], period_s: float = 30.0
    ) -> None:
        self.period_s = period_s
        self.queues_deleted = 0
        self.addresses_deleted = 0
        self._registry = registry
        self._clock_s = clock_s

    def scan(self) -> Iterator[int]:
        """Look at everything once.

        Yields:
            After each step, how many queues and addresses have gone in it.
        """
        names = iter(list(self._registry.queues))
        while step := list(islice(names, STEP_ITEMS)):
            yield self._look_at_queues(step)
        names = iter(list(self._registry.unused))
        while step := list(islice(names, STEP_ITEMS)):
            yield self._look_at_addresses(step)

    def _look_at_queues(self, names: list[str]) -> int:
        before = self.queues_deleted
        now_s = self._clock_s()
        for name in names:
            queue = self._registry.queues.get(name)
            if queue is not None and not queue.consumers:
                self.queues_deleted += self._registry.usage.settle(queue, now_s)
        return self.queues_deleted - before

    def _look_at_addresses(self, names: list[str]) -> int:
        before = self.addresses_deleted
        now_s = self._clock_s()
        for name in names:
            address = self._registry.addresses.get(name)
            if (
                address is not None
                and not address.queues
                and is_address_due(address, self._registry.settings_for(name), now_s)
            ):
                self._registry.drop_address(address)
                self.addresses_deleted += 1
        return self.addresses_deleted - before

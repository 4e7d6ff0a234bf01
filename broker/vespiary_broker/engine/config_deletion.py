"""What was configured and is not any more: left alone, or deleted, as settings say.

Owns `config-delete-addresses`, `config-delete-queues` and `config-delete-diverts`. Must never
touch what was made by other ways than the configuration. Called by `app` at the start, before
clients come, and by `reconfiguration` while they are there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.registry import Registry
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Address as ConfiguredAddress
from vespiary_spec.settings import DeletionPolicy
from vespiary_spec.settings import Divert as ConfiguredDivert

log = logging.getLogger(__name__)


async def configure_diverts(registry: Registry, configured: Sequence[ConfiguredDivert]) -> None:
    """Make the diverts of the configuration, and delete those that it had and has no more.

    Args:
        registry: Addresses and their settings.
        configured: `diverts` of the configuration.

    Raises:
        ConfigError: One cannot be made.

    Durability: on return all of it survives a power loss.
    """
    await registry.diverts.configure(configured, partial(_deletes_diverts, registry))


def _deletes_diverts(registry: Registry, address: str) -> bool:
    return registry.settings_for(address).config_delete_diverts is DeletionPolicy.FORCE


def unconfigured(registry: Registry, configured: Iterable[ConfiguredAddress]) -> list[str]:
    """Return what the configuration had and has no more, and what is there all the same.

    Args:
        registry: Addresses and queues.
        configured: `addresses` of the configuration.

    Returns:
        Such as `queue orders`, sorted.
    """
    configured = list(configured)
    names = {address.name for address in configured}
    queue_names = {queue.name for address in configured for queue in address.queues}
    addresses = (a for a in registry.addresses.values() if a.is_configured and a.name not in names)
    queues = (
        queue
        for queue in registry.queues.values()
        if queue.traits.is_configured and queue.name not in queue_names
    )
    return sorted(
        [*(f"address {a.name}" for a in addresses), *(f"queue {queue.name}" for queue in queues)]
    )


async def delete_unconfigured(registry: Registry, configured: Iterable[ConfiguredAddress]) -> int:
    """Delete addresses and queues that the configuration had and has no more.

    Queues that prepared transactions need stay, which is logged: the next start tries again.
    Consumers of a queue that goes are disconnected.

    Args:
        registry: Addresses and queues.
        configured: `addresses` of the configuration.

    Returns:
        Number of addresses and queues that were deleted.

    Raises:
        JournalError: A removal could not be stored.

    Durability: on return they will not come back after a power loss.
    """
    configured = list(configured)
    names = {address.name for address in configured}
    queue_names = {queue.name for address in configured for queue in address.queues}
    addresses = list(registry.addresses.values())
    going = [
        queue
        for address in addresses
        for queue in _leaving_queues(registry, address, names, queue_names)
        if _is_deletable(registry, queue)
    ]
    await registry.before_deletion(going)
    gone = [key for queue in going if queue.is_deleted for key in _drop_queue(registry, queue)]
    for address in addresses:
        # Again: clients may have made other queues meanwhile.
        for queue in _leaving_queues(registry, address, names, queue_names):
            gone += _drop_queue(registry, queue)
        if _is_leaving(registry, address, names):
            gone += _drop_address(registry, address)
    await registry.wait_removed(*gone)
    return len(gone)


def _is_leaving(registry: Registry, address: Address, names: Collection[str]) -> bool:
    """Return whether an address is to be deleted."""
    policy = registry.settings_for(address.name).config_delete_addresses
    is_gone = address.is_configured and address.name not in names
    return is_gone and policy is DeletionPolicy.FORCE


def _leaving_queues(
    registry: Registry, address: Address, names: Collection[str], queue_names: Collection[str]
) -> list[Queue]:
    """Return the queues of an address that are to be deleted."""
    if _is_leaving(registry, address, names):
        return list(address.queues.values())
    if registry.settings_for(address.name).config_delete_queues is not DeletionPolicy.FORCE:
        return []
    return [
        queue
        for queue in address.queues.values()
        if queue.traits.is_configured and queue.name not in queue_names
    ]


def _is_deletable(registry: Registry, queue: Queue) -> bool:
    try:
        registry.check_deletable(queue)
    except RemoteProtocolError:  # `_drop_queue` says so
        return False
    return True


def _drop_queue(registry: Registry, queue: Queue) -> list[str]:
    """Delete a queue; return its key, nothing if it stays."""
    try:
        if not queue.is_deleted:
            registry.check_deletable(queue)
    except RemoteProtocolError as error:
        log.warning("a queue that is not configured any more stays: %s", error)
        return []
    log.info("queue deleted, it is not configured any more name=%r", queue.name)
    for consumer in list(queue.consumers):
        consumer.output.refuse(f"the queue {queue.name} is not configured any more")
    if not queue.is_deleted:  # a session or the last consumer may have taken it along
        registry.drop_queue(queue)
    return [queue.key]


def _drop_address(registry: Registry, address: Address) -> list[str]:
    """Delete an address without queues; return its key, nothing if it stays."""
    if address.queues:
        return []
    log.info("address deleted, it is not configured any more name=%r", address.name)
    if registry.addresses.get(address.name) is address:
        registry.drop_address(address)
    return [address.key]

"""Another configuration for an engine at work: what can be refused is, before anything changes.

Owns the order in which settings by address, addresses, queues, diverts and limits change under
clients. Must never read files. Called by `app.reloading`; owner: the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.config_deletion import (
    configure_diverts,
    delete_unconfigured,
    unconfigured,
)
from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.foreign_names import warn_of_foreign_names
from vespiary_broker.engine.names import check_name
from vespiary_broker.engine.queue_changes import check_kind
from vespiary_broker.engine.queue_kinds import QueueKind, kind_of
from vespiary_broker.engine.queue_traits import QueueTraits, configured_traits
from vespiary_broker.engine.queues import Queue
from vespiary_spec.errors import ConfigError, RemoteProtocolError
from vespiary_spec.settings import Configuration

log = logging.getLogger(__name__)


def check_names(wanted: Configuration) -> None:
    """Refuse names of addresses and queues that no broker takes, and filters that are none.

    Args:
        wanted: The configuration.

    Raises:
        ConfigError: With the path of the address.
    """
    for index, address in enumerate(wanted.addresses):
        try:
            check_name(address.name, "address")
            for queue in address.queues:
                check_name(queue.name, "queue")
                configured_traits(queue, address.name)
        except RemoteProtocolError as error:
            raise ConfigError(str(error), path=f"addresses[{index}]") from error


def check(engine: Engine, wanted: Configuration) -> None:
    """Refuse a configuration that an engine cannot be given as it is now.

    Args:
        engine: The engine.
        wanted: The configuration; it agrees with itself.

    Raises:
        ConfigError: A queue exists otherwise, or cannot become what it is to be while it is in
            use; or a divert cannot be made.
    """
    check_names(wanted)
    registry = engine.registry
    traits: dict[str, QueueTraits] = {}
    for index, address in enumerate(wanted.addresses):
        for queue in address.queues:
            found = registry.queue_of(address.name, queue.name)
            traits[queue.name] = configured_traits(queue, address.name)
            if found is not None and found.routing_type is not queue.routing_type:
                raise ConfigError(
                    f"the queue {queue.name} exists with another routing type",
                    path=f"addresses[{index}]",
                    value=str(queue.routing_type),
                    allowed=str(found.routing_type),
                    cure="delete it first, or take another name",
                )
    table = AddressSettingsTable(wanted.address_settings, registry.syntax)
    for queue_id, after in _kinds(engine, table, traits):
        found = registry.queues_by_id[queue_id]
        try:
            check_kind(engine.core, found, after)
        except RemoteProtocolError as error:
            raise ConfigError(str(error), path="address-settings") from error

    def is_deleted(address: str) -> bool:
        policy = table.settings_for(address).config_delete_diverts
        return policy is not None and policy.name == "FORCE"

    registry.diverts.check_configured(wanted.diverts, is_deleted)


def _kinds(
    engine: Engine, table: AddressSettingsTable, traits: dict[str, QueueTraits]
) -> Iterator[tuple[int, QueueKind]]:
    """Yield what kind each queue is to be."""
    for queue in engine.registry.queues.values():
        if not queue.traits.is_internal:
            own = traits.get(queue.name, queue.traits)
            yield queue.id, kind_of(table.settings_for(queue.address.name), own.kind)


async def apply(engine: Engine, wanted: Configuration) -> tuple[str, ...]:
    """Give an engine another configuration; `check` has found nothing against it.

    Args:
        engine: The engine.
        wanted: The configuration.

    Returns:
        What is not configured any more and stays, such as `queue orders`.

    Raises:
        ConfigError: Something came in between.
        JournalError: What was made could not be stored. What came before it holds.

    Durability: on return what was made survives a power loss, and what was deleted is gone.
    """
    registry = engine.registry
    registry.permissions.replace(wanted.security_settings)
    registry.change_settings(wanted.address_settings)
    engine.slow_consumers.settings_changed()
    try:
        for address in wanted.addresses:
            for queue in address.queues:
                found = registry.queues.get(queue.name)
                if found is not None:
                    await _change(engine, found, configured_traits(queue, address.name))
        await registry.configure(wanted.addresses)
    except RemoteProtocolError as error:
        raise ConfigError(str(error), path="addresses") from error
    await configure_diverts(registry, wanted.diverts)
    await delete_unconfigured(registry, wanted.addresses)
    warn_of_foreign_names(registry.addresses, wanted)
    await registry.retroactive.begin()
    for queue_id in registry.queues_by_id:
        engine.dispatcher.poke(queue_id)
    kept = unconfigured(registry, wanted.addresses)
    kept += [
        f"divert {name}"
        for name in registry.diverts.names
        if name not in {each.name for each in wanted.diverts} and _is_configured(engine, name)
    ]
    for name in kept:
        log.info("not configured any more, and kept name=%r", name)
    return tuple(kept)


def _is_configured(engine: Engine, name: str) -> bool:
    divert = engine.registry.diverts.get(name)
    return divert is not None and divert.is_configured


async def _change(engine: Engine, queue: Queue, traits: QueueTraits) -> None:
    """Give a queue that is there the traits of its configuration, if it can take them now."""
    registry = engine.registry
    check_kind(engine.core, queue, kind_of(registry.settings_for(queue.address.name), traits.kind))
    await registry.change_traits(queue, traits.owned_as(queue.traits))
    if not queue.is_deleted and not queue.consumers:
        registry.usage.purge_closed(queue)

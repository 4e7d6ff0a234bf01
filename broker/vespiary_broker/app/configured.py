"""What stands in the configuration, made at a start: addresses, queues, diverts.

Owns the order of it. Must never hold a rule: the engine's registry has those. Called by `broker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from vespiary_broker.engine.config_deletion import configure_diverts, delete_unconfigured
from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.foreign_names import warn_of_foreign_names
from vespiary_spec.settings import Configuration

_WAIT_S: Final = 0.005
"""How long who waits for memory, room or the disk waits until it looks again."""


async def configure(
    engine: Engine, configuration: Configuration, load_slab: Callable[[int, int], None]
) -> None:
    """Make what stands in the configuration.

    Nobody is let in before: permissions are among it.

    Args:
        engine: The engine.
        configuration: The configuration.
        load_slab: Brings a part of a queue back into memory.

    Raises:
        VespiaryError: Something of it can't be made.
    """
    registry = engine.registry
    registry.permissions.replace(configuration.security_settings)
    registry.ask_again()
    registry.retroactive.waits_with(lambda: asyncio.sleep(_WAIT_S), load_slab)
    await registry.configure(configuration.addresses)
    await configure_diverts(registry, configuration.diverts)
    warn_of_foreign_names(registry.addresses, configuration)


async def remove_unconfigured(engine: Engine, configuration: Configuration) -> None:
    """Delete what does not stand in the configuration any more, before clients come.

    The MQTT sessions have to be there: those that lose a queue end.

    Args:
        engine: The engine.
        configuration: The configuration.

    Raises:
        JournalError: A removal could not be stored.

    Durability: on return nothing of it comes back after a power loss.
    """
    registry = engine.registry
    await delete_unconfigured(registry, configuration.addresses)
    await registry.retroactive.begin()

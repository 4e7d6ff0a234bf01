"""The duplicate ids of a broker, as its configuration wants them.

Owns the way from the settings to the caches. Must never hold state. Called by `broker`, before the
journal is read: the caches are filled by its recovery.
"""

from __future__ import annotations

from collections.abc import Callable

from vespiary_broker.app.naming import wildcard_syntax
from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.transfers import CACHE_PREFIX, IDS_MAX
from vespiary_spec.settings import Configuration


def make_duplicate_ids(configuration: Configuration) -> DuplicateIds:
    """Return empty caches of the sizes that the configuration says."""
    is_persistent = configuration.persist_id_cache and configuration.persistence_enabled
    return DuplicateIds(sizes_of(configuration), is_persistent=is_persistent)


def sizes_of(configuration: Configuration) -> Callable[[str], int]:
    """Return how many ids addresses remember: their own `id-cache-size` before the broker's."""
    table = AddressSettingsTable(configuration.address_settings, wildcard_syntax(configuration))

    def size_for(address: str) -> int:
        if address.startswith(CACHE_PREFIX):
            return IDS_MAX
        own = table.settings_for(address).id_cache_size
        return configuration.id_cache_size if own is None or own < 0 else own

    return size_for

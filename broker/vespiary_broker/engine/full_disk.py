"""What becomes of a message that finds no room on a full disk: `disk-full-policy` by address.

Owns the decision and the count of what was dropped. Must never be asked about a message that may
still find room: the core knows, and says NoRoom; of large bodies their writer does. Called by
the server's sessions and connections; owner: the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_spec.errors import JournalFull, VespiaryError
from vespiary_spec.settings import DiskFullPolicy

_NAMED_MAX: Final = 1000
"""Addresses whose drops are counted and logged apart; those beyond share one count."""
_OTHERS: Final = "(others)"

log = logging.getLogger(__name__)


class FullDisk:
    """Decides about messages while no journal file can be made.

    Attributes:
        dropped: Messages dropped, by address.

    Args:
        settings: Settings by address.
    """

    def __init__(self, settings: AddressSettingsTable) -> None:
        self.dropped: Counter[str] = Counter()
        self._settings = settings
        self._logged: set[str] = set()

    @property
    def has_policies(self) -> bool:
        """Whether any address has another policy than to wait."""
        return self._settings.has_disk_full_policies

    @property
    def dropped_count(self) -> int:
        """Messages dropped in all."""
        return self.dropped.total()

    def begin(self) -> None:
        """Log drops again: the disk was not full in between."""
        self._logged.clear()

    def is_dropped(self, address: str, reason: VespiaryError) -> bool:
        """Decide about a message that found no room.

        Args:
            address: Where it goes.
            reason: What is full: no journal file can be made, or no large body be stored.

        Returns:
            True if it is dropped, and counted; False if its sender waits.

        Raises:
            JournalFull: It is refused.

        Durability: a dropped message is confirmed and lost, as `DROP` asks for.
        """
        policy = self._settings.settings_for(address).disk_full_policy
        if policy is DiskFullPolicy.FAIL:
            raise JournalFull(
                f"the disk is full, and the disk-full-policy of the address {address} is FAIL",
                measured=reason.measured,
                allowed=reason.allowed,
                cure="send again when messages were consumed or the volume was enlarged",
            )
        if policy is not DiskFullPolicy.DROP:
            return False
        name = address if address in self.dropped or len(self.dropped) < _NAMED_MAX else _OTHERS
        self.dropped[name] += 1
        if name not in self._logged:
            self._logged.add(name)
            log.warning(
                "messages are dropped, since the disk is full and their disk-full-policy is DROP "
                "address=%s reason=%r",
                name,
                str(reason),
            )
        return True

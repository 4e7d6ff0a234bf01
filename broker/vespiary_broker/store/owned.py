"""What the stores of a broker are opened with under the lease of its journal.

Owns the joining of lease, disks and rings. Called by `app`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from vespiary_broker.store.bindings import BindingsParts
from vespiary_broker.store.counters import LeaseState
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.lease import Lease
from vespiary_broker.store.lock import LentLock
from vespiary_broker.store.opening import OpeningParts
from vespiary_native.abc_ring import Ring
from vespiary_spec.errors import OwnershipLost


class Ownership:
    """What a broker has of its journal; without persistence there is nothing to own.

    Attributes:
        journal_parts: What the message journal is opened with.
        bindings_parts: What the bindings and the JMS journal are opened with.
        disk: For what is changed beside them.
    """

    def __init__(
        self,
        lease: Lease | None = None,
        lock: LentLock | None = None,
        journal_parts: OpeningParts | None = None,
        bindings_parts: BindingsParts | None = None,
    ) -> None:
        self._lease = lease
        self.journal_parts = journal_parts or OpeningParts()
        self.bindings_parts = bindings_parts or BindingsParts()
        self.disk = Disk()
        if lease is None:
            return
        self.disk = lease.disk
        self.journal_parts = replace(
            self.journal_parts,
            lock=lock,
            disk=_guarded(self.journal_parts.disk, lease),
            open_ring=partial(_leased_journal_ring, self.journal_parts.open_ring, lease),
        )
        self.bindings_parts = replace(
            self.bindings_parts,
            disk=_guarded(self.bindings_parts.disk, lease),
            open_ring=partial(_leased_ring, self.bindings_parts.open_ring, lease),
        )

    @property
    def state(self) -> LeaseState | None:
        """How it stands; None without persistence."""
        return None if self._lease is None else self._lease.state()

    def tell(self, on_lost: Callable[[OwnershipLost], None]) -> None:
        """Have a function called when the journal is another's."""
        if self._lease is not None:
            self._lease.on_lost = on_lost


def _guarded(disk: Any, lease: Lease) -> Any:
    """Return a disk that changes nothing once the lease is over; a test's disk is left as it is."""
    return lease.disk if type(disk) is Disk else disk


def _leased_journal_ring(
    open_ring: Callable[..., tuple[Ring, str | None]], lease: Lease, *arguments: Any, **names: Any
) -> tuple[Ring, str | None]:
    ring, reason = open_ring(*arguments, **names)
    return lease.leased(ring), reason


def _leased_ring(open_ring: Callable[[], Ring], lease: Lease) -> Ring:
    return lease.leased(open_ring())

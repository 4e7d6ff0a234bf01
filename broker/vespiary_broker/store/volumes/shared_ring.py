"""One ring for the trials of all volumes: the kernel takes 30 ms to give one back.

Owns: the ring that was opened last, until `close`. A ring on which a trial's write is still under
way is closed with that trial, since only closing waits for it. Must never be used by two trials at
once. Called by `verification`.
"""

from __future__ import annotations

from vespiary_broker.store.volumes.probe import OpenRing, Ring


class _Lent:
    """A ring while one trial has it."""

    def __init__(self, ring: Ring, depth: int) -> None:
        self.ring = ring
        self.depth = depth
        self.is_open = True
        self._under_way = 0

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        /,
        *,
        durable: bool = True,
    ) -> None:
        """See `probe.Ring`."""
        self.ring.submit_write(fd, buffer_address, length, offset, token, durable=durable)
        self._under_way += 1

    def fileno(self) -> int:
        """See `probe.Ring`."""
        return self.ring.fileno()

    def completions(self) -> list[tuple[int, int]]:
        """See `probe.Ring`."""
        found = self.ring.completions()
        self._under_way -= len(found)
        return found

    def close(self) -> None:
        """Give the ring back; wait for what is under way, and then it is not used again."""
        if self._under_way:
            self.is_open = False
            self.ring.close()


class SharedRing:
    """Lends a ring to one trial after another.

    Args:
        open_ring: Opens a ring of that depth.
    """

    def __init__(self, open_ring: OpenRing) -> None:
        self._open_ring = open_ring
        self._lent: _Lent | None = None

    def open(self, depth: int) -> Ring:
        """Return a ring of that depth or more; the trial before has given it back.

        Args:
            depth: Operations in flight; a ring that is less deep is closed first.

        Raises:
            ImportError: As of `open_ring`.
            OSError: As of `open_ring`.
        """
        if self._lent is not None and self._lent.is_open and self._lent.depth >= depth:
            return self._lent
        self.close()  # first: `fs.aio-max-nr` may have room for one of them alone
        self._lent = _Lent(self._open_ring(depth), depth)
        return self._lent

    def close(self) -> None:
        """Close the ring, if one is open."""
        lent, self._lent = self._lent, None
        if lent is not None and lent.is_open:
            lent.is_open = False
            lent.ring.close()

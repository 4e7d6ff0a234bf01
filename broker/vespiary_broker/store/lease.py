"""The lease of a journal's owner: how long ago the ownership block was read, and what that allows.

Owns: the thread that reads the block every third of the lease; the rule that a confirm leaves only
while the latest good look is younger than the lease, or began after the flush behind the confirm;
and the end of it all when the block is another's. `LeasedRing` keeps the rule for whatever is
written through a ring, `Lease.require` for whatever else changes the disk. Must never block the
event loop, and never take a journal back. Called by `app`, which hands its parts to the journals.

Why this is enough: another broker writes its claim, waits longer than the lease, and only then
reads the journal. A look that began before the claim was written allows confirms until the lease
runs out, and all that these confirm is on the disk by then. So it does not matter how late a
confirm *leaves*: what it speaks of was durable before the other one began to read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from vespiary_broker.store.counters import LeaseState
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.ownership import Claim, lost, release
from vespiary_native.abc_ring import BytesLike, Ring
from vespiary_spec.errors import NativeError, OwnershipLost, VespiaryError

logger = logging.getLogger(__name__)

_CHECKS_IN_LEASE = 3
_WRITE_SHARE = 2 / 3
"""Of the lease, in which writes may begin: the rest is theirs to reach the disk."""
_JOIN_S = 1.0
_LOST = -errno.ESTALE


class Lease:
    """The ownership of a running broker. Owner: the event loop; its thread looks.

    Attributes:
        disk: A file system that lets nobody change anything while the lease has run out.
        is_lost: The journal is another's; set on the event loop, after `on_lost` was called.
        on_lost: Called once, on the event loop.
    """

    def __init__(self, claim: Claim, loop: asyncio.AbstractEventLoop) -> None:
        """Take a finished claim; `start` begins to watch over it.

        Args:
            claim: Finished.
            loop: Where `on_lost` is called and rings are.
        """
        options = claim.options
        self._claim = claim
        self._loop = loop
        self._clock_s = options.clock_s
        self._lease_s = options.lease_s
        self.disk = Disk(self.require)
        self.is_lost = False
        self.on_lost: Callable[[OwnershipLost], None] = lambda _: None
        self._error: OwnershipLost | None = None
        self._read_error: VespiaryError | None = None
        self._rings: set[LeasedRing] = set()
        self._is_holding = False
        self._is_closing = False
        self._bell = threading.Event()
        self._looked = threading.Condition()
        self._note(claim.checked_s)
        self._thread = threading.Thread(target=self._run, name="journal-owner", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    # --- what it allows ---------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the time by the clock of the lease."""
        return self._clock_s()

    def may_confirm(self) -> bool:
        """Whether confirms may leave now."""
        return self._clock_s() < self._confirm_until_s

    def covers(self, flushed_s: float) -> bool:
        """Whether a look that found the block ours began at that time or later."""
        return flushed_s <= self.checked_s

    def may_write(self) -> bool:
        """Whether a write may begin now: it has time to reach the disk within the lease."""
        return self._clock_s() < self._write_until_s

    def require(self) -> None:
        """Wait until something may be changed on the disk; for threads that may block.

        Raises:
            OwnershipLost: It never may again.
        """
        while not self.may_write() or self._error is not None:
            if self._error is not None:
                raise self._error
            self._bell.set()
            with self._looked:
                self._looked.wait(self._lease_s / _CHECKS_IN_LEASE)

    def state(self) -> LeaseState:
        """Return how it stands, for the metrics and the probes."""
        age_s = max(self._clock_s() - self.checked_s, 0.0)
        return LeaseState(
            self._claim.block.epoch, self._lease_s, age_s, self._waiting_reason(age_s)
        )

    def _waiting_reason(self, age_s: float) -> str | None:
        if self._error is not None:
            return str(self._error)
        if age_s < self._lease_s:
            return None
        why = f" ({self._read_error})" if self._read_error is not None else ""
        return (
            f"confirms wait: {self._claim.file.path} was last read {age_s:.1f} s ago, allowed are "
            f"{self._lease_s:g} s (journal-ownership-lease); look at the disk{why}"
        )

    # --- looking ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._bell.wait(self._lease_s / _CHECKS_IN_LEASE)
            self._bell.clear()
            if self._is_closing or not self.look():
                return

    def look(self) -> bool:
        """Read the block; blocks. Called by the thread, and by tests.

        Returns:
            Whether there is reason to look again: False if it is another's.
        """
        begun_s = self._clock_s()
        try:
            found = self._claim.file.read()
        except VespiaryError as error:
            self._read_error = error
            return True
        if found != self._claim.data:
            self._error = lost(self._claim.file.path, found)
            self._tell(self._lose)
        else:
            self._read_error = None
            self._note(begun_s)
            if self._is_holding:
                self._tell(self._wake)
        with self._looked:
            self._looked.notify_all()
        return self._error is None

    def _note(self, checked_s: float) -> None:
        self.checked_s = checked_s
        self._confirm_until_s = checked_s + self._lease_s
        self._write_until_s = checked_s + self._lease_s * _WRITE_SHARE

    def _tell(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback)

    def _lose(self) -> None:
        assert self._error is not None
        self.on_lost(self._error)
        self.is_lost = True  # now: the journals know why their writes fail
        self._wake()

    # --- rings ------------------------------------------------------------------------------------

    def leased(self, ring: Ring) -> LeasedRing:
        """Return a ring that keeps the rule."""
        made = LeasedRing(ring, self)
        self._rings.add(made)
        return made

    def forget(self, ring: LeasedRing) -> None:
        """Let go of a ring that is closed."""
        self._rings.discard(ring)

    def hold(self) -> None:
        """Say that something waits for the next look, and have it made now."""
        if not self._is_holding:
            self._is_holding = True
            age_s = self._clock_s() - self.checked_s
            logger.warning(
                "writes and confirms wait for a look at %s: the last one was %.1f s ago, allowed "
                "are %g s (journal-ownership-lease)",
                *(self._claim.file.path, age_s, self._lease_s),
            )
        self._bell.set()

    def _wake(self) -> None:
        self._is_holding = False
        for ring in tuple(self._rings):
            ring.wake()

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the journal: everything is durable and closed; blocks.

        Durability: on return the next owner need not wait, unless the block was lost or the disk
        would not take the word: then it is logged.
        """
        self._is_closing = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        try:
            if self._error is None and not self._thread.is_alive():
                release(self._claim)
        except VespiaryError as error:
            logger.warning("the journal is not released, so the next owner waits: %s", error)
        finally:
            if not self._thread.is_alive():  # else it reads there still: its end frees the file
                self._claim.file.close()
            self._claim.lock.close()


class _Held(NamedTuple):
    """A completion that came in when the lease had run out."""

    flushed_s: float
    token: int
    result: int


class _Waiting(NamedTuple):
    """A write that was handed in when the lease was old."""

    token: int
    submit: Callable[[], None]


class LeasedRing:
    """A ring whose completions count only under the lease. Owner: as the ring within.

    A write that is handed in while the lease is old is begun after the next look; a completion
    that comes in while it has run out is handed on after a look that began later. Once the journal
    is another's, all of them end with -ESTALE.
    """

    def __init__(self, ring: Ring, lease: Lease) -> None:
        """Not for callers: `Lease.leased` makes them."""
        self._ring = ring
        self._lease = lease
        self._held: deque[_Held] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._is_closed = False

    @property
    def name(self) -> str:
        """Engine as users write it."""
        return self._ring.name

    @property
    def depth(self) -> int:
        """Requests that may be outstanding at once."""
        return self._ring.depth

    @property
    def outstanding(self) -> int:
        """Requests whose completions were not yet handed on."""
        return self._ring.outstanding + len(self._held) + len(self._waiting)

    def fileno(self) -> int:
        """Return the eventfd."""
        return self._ring.fileno()

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        *,
        durable: bool = True,
    ) -> None:
        """Start to write, or do so after the next look: see `Ring.submit_write`.

        Durability: as there, and the completion says that no other owner had begun to read.
        """
        submit = self._ring.submit_write
        if self._may_begin():
            submit(fd, buffer_address, length, offset, token, durable=durable)
            return
        self._wait(
            token, lambda: submit(fd, buffer_address, length, offset, token, durable=durable)
        )

    def submit_write_buffer(
        self, fd: int, buf: BytesLike, offset: int, token: int, *, durable: bool = True
    ) -> None:
        """Start to write, or do so after the next look: see `Ring.submit_write_buffer`.

        Durability: as for `submit_write`.
        """
        submit = self._ring.submit_write_buffer
        if self._may_begin():
            submit(fd, buf, offset, token, durable=durable)
            return
        self._wait(token, lambda: submit(fd, buf, offset, token, durable=durable))

    def submit_read(
        self, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        """Start to read: whoever owns the journal, that harms nobody."""
        self._ring.submit_read(fd, buffer_address, length, offset, token)

    def submit_sync(self, fd: int, token: int) -> None:
        """Start a flush: see `Ring.submit_sync`."""
        self._ring.submit_sync(fd, token)

    def _may_begin(self) -> bool:
        return not self._waiting and not self._lease.is_lost and self._lease.may_write()

    def _wait(self, token: int, submit: Callable[[], None]) -> None:
        self._waiting.append(_Waiting(token, submit))
        if self._lease.is_lost:
            self.wake()
        else:
            self._lease.hold()

    def completions(self) -> list[tuple[int, int]]:
        """Take what has ended and may be acted on: see `Ring.completions`.

        Durability: a write handed on here was durable before any other owner began to read.
        """
        found = self._ring.completions()
        if not self._held and not self._waiting and self._lease.may_confirm():
            return found
        now_s = self._lease.now_s()
        self._held.extend(_Held(now_s, token, result) for token, result in found)
        if self._lease.is_lost:
            return self._give_up()
        ready = []
        while self._held and (
            self._lease.covers(self._held[0].flushed_s) or self._lease.may_confirm()
        ):
            held = self._held.popleft()
            ready.append((held.token, held.result))
        ready += self._begin_waiting()
        if self._held or self._waiting:
            self._lease.hold()
        return ready

    def _begin_waiting(self) -> list[tuple[int, int]]:
        """Begin the writes that waited for a look, if that is still young.

        A process that was stopped behind the look must not write now: somebody else may have
        claimed the journal since, and waited its lease out.

        Returns:
            The ends of those that can't be begun.
        """
        ended = []
        while self._waiting and self._lease.may_write():
            waiting = self._waiting.popleft()
            try:
                waiting.submit()
            except NativeError as error:
                ended.append((waiting.token, -(error.errno or errno.EIO)))
        return ended

    def _give_up(self) -> list[tuple[int, int]]:
        tokens = [held.token for held in self._held]
        tokens += [waiting.token for waiting in self._waiting]
        self._held.clear()
        self._waiting.clear()
        return [(token, _LOST) for token in tokens]

    def wake(self) -> None:
        """Have `completions` called soon."""
        if not self._is_closed:
            os.eventfd_write(self._ring.fileno(), 1)

    def close(self) -> None:
        """Wait for everything outstanding, then free the ring; what was held is lost."""
        self._is_closed = True
        self._lease.forget(self)
        self._ring.close()

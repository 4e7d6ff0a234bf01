"""What becomes of queues as consumers come and go: their number, purging, deletion.

Owns these rules. Must never make a queue. Called by `subscriptions`, `automatic_deletion` and
`registry`; owner: the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.automatic_deletion import is_queue_due, may_delete_queue
from vespiary_broker.engine.branch_holds import held_by_branches
from vespiary_broker.engine.core import Core, NoRoom
from vespiary_broker.engine.large_bodies import Quarantine
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.ports import Spawn
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.reach import reach_of_queue
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.engine.registry import Registry

DROPPED_MAX: Final = 8
"""Temporary queues that are dropped in one turn at most: a client may go that had thousands."""


class Usage:
    """The rules, for all queues of a registry.

    Args:
        core: The core.
        registry: Addresses and queues.
        quarantine: Holds messages whose body is lost.
        rules: The clock, and how others get their turn.
        spawn: Drops in the background what is too much for one turn.
    """

    def __init__(
        self,
        core: Core,
        registry: Registry,
        quarantine: Quarantine,
        rules: NamingRules,
        spawn: Spawn,
    ) -> None:
        self._core = core
        self._registry = registry
        self._quarantine = quarantine
        self._clock_s = rules.clock_s
        self._pause = rules.pause
        self._spawn = spawn
        self._dropped = 0  # in this turn
        self._left: deque[Queue] = deque()
        self._is_dropping = False

    def is_purged_when_unused(self, queue: Queue) -> bool:
        """Return whether a queue is emptied when its last consumer goes; not under a stream."""
        if queue.stream is not None:
            return False
        own = queue.traits.is_purged_when_unused
        settings = self._registry.settings_for(queue.address.name)
        return bool(settings.default_purge_on_no_consumers if own is None else own)

    def check_consumers(self, queue: Queue) -> None:
        """Refuse one more consumer than a queue, or its address, may have.

        Raises:
            RemoteProtocolError: The queue has as many as it may.
            LimitExceeded: The address has.
        """
        allowed = self.max_consumers(queue)
        if 0 <= allowed <= len(queue.consumers):
            raise RemoteProtocolError(
                f"the queue {queue.name} has as many consumers as it may",
                measured=len(queue.consumers) + 1,
                allowed=f"at most {allowed} (max-consumers)",
                cure="wait until one goes, or raise max-consumers of the queue",
            )
        address = queue.address
        most = self._registry.settings_for(address.name).max_address_consumers
        assert most is not None
        if most < 0:
            return
        count = sum(len(each.consumers) for each in address.queues.values())
        if most <= count:
            self._registry.limits.refused += 1
            raise LimitExceeded(
                f"the address {address.name} has as many consumers as it may",
                measured=f"{count + 1} consumers of all its queues",
                allowed=f"at most {most} (max-address-consumers)",
                cure="wait until one goes, or raise max-address-consumers",
            )

    def check_queue(self, name: str, address: str, user: str) -> None:
        """Refuse one more queue than there may be.

        Args:
            name: Its name.
            address: Name of its address.
            user: Who makes it; empty for nobody who is counted.

        Raises:
            LimitExceeded: There is no room, in all, for the user, or in the address.
        """
        registry = self._registry
        registry.limits.check_queue(name, user, len(registry.queues))
        owner = registry.addresses.get(address)
        most = registry.settings_for(address).max_address_queues
        assert most is not None
        count = 0 if owner is None else len(owner.queues)
        if 0 <= most <= count:
            registry.limits.refused += 1
            raise LimitExceeded(
                f"the address {address} has no room for the queue {name}",
                measured=f"{count + 1} queues",
                allowed=f"at most {most} (max-address-queues)",
                cure="delete some, or raise max-address-queues",
            )

    def consumer_opened(self, consumer: Consumer) -> None:
        """Note that a queue has a consumer: one that takes nothing without does so again."""
        queue = consumer.queue
        queue.was_used = True
        self.open_or_close(queue)

    def open_or_close(self, queue: Queue) -> None:
        """Let a queue take messages, or not, after what it depends on has changed."""
        is_open = bool(queue.consumers) or not self.is_purged_when_unused(queue)
        if is_open is queue.is_open:
            return
        queue.is_open = is_open
        self._registry.refresh_routes(queue.address)
        if queue.route is not None:
            queue.route.lead(reach_of_queue(queue))

    def consumer_closed(self, consumer: Consumer) -> None:
        """Purge or delete the consumer's queue if nothing keeps its messages, or it, any more.

        Args:
            consumer: A consumer that was closed in the core and taken off its queue.
        """
        self._lose_last(consumer.queue)

    @contextmanager
    def awaiting(self, queue: Queue) -> Iterator[None]:
        """Keep a queue whose consumers are closed here: another is opened next, unless this raises.

        Args:
            queue: The queue; it may be deleted.
        """
        had_consumers = bool(queue.consumers)
        queue.is_awaited = True
        try:
            yield
        except BaseException:
            queue.is_awaited = False
            if had_consumers:
                self._lose_last(queue)
            raise
        queue.is_awaited = False

    def _lose_last(self, queue: Queue) -> None:
        if queue.is_deleted or queue.is_awaited or queue.consumers:
            return
        queue.idle_since_s = self._clock_s()
        if queue.is_temporary:
            self._drop(queue)
            return
        self.open_or_close(queue)
        self.settle(queue, queue.idle_since_s)

    def _drop(self, queue: Queue) -> None:
        """Drop a temporary queue; later if many were dropped in this turn."""
        if self._left or not self._is_dropped(queue):
            self._left.append(queue)
        if not self._is_dropping:
            self._is_dropping = True
            self._spawn(self._drop_left())

    async def _drop_left(self) -> None:
        """Drop the rest, so many in each turn, and count anew in the next one."""
        try:
            await self._pause()
            self._dropped = 0
            while self._left:
                queue = self._left[0]
                if queue.is_deleted or queue.consumers or self._is_dropped(queue):
                    self._left.popleft()
                else:
                    await self._pause()
                    self._dropped = 0
        finally:
            self._is_dropping = False

    def _is_dropped(self, queue: Queue) -> bool:
        """Drop a queue if this turn has time for it; return whether it had."""
        share = self._registry.switches.turn_time.share(self)
        has_time = self._dropped < DROPPED_MAX and share.has_time
        if has_time:
            self._dropped += 1
            self._registry.drop_queue(queue)
        share.end()
        return has_time

    def purge_closed(self, queue: Queue) -> None:
        """Empty a queue if it is one of those that take nothing without consumers.

        Durability: as of acknowledgements.
        """
        if not queue.is_open:
            self._quarantine.release(queue.id)
            with suppress(NoRoom):  # the rest goes with the next scan
                self._core.purge_queue(queue.id)

    def max_consumers(self, queue: Queue) -> int:
        """Return how many consumers a queue may have; -1 for any number."""
        own = queue.traits.max_consumers
        found = self._registry.settings_for(queue.address.name).default_max_consumers
        assert found is not None
        return found if own is None else own

    def settle(self, queue: Queue, now_s: float) -> bool:
        """Purge a queue without consumers and delete it, whatever of it is due.

        Args:
            queue: A queue without consumers.
            now_s: The registry's clock.

        Returns:
            Whether it was deleted.

        Durability: as of acknowledgements, and as of `drop_queue`.
        """
        settings = self._registry.settings_for(queue.address.name)
        self.purge_closed(queue)
        if not may_delete_queue(queue, settings):
            return False
        if not is_queue_due(queue, settings, self._core.queue_statistics(queue.id), now_s):
            return False
        if held_by_branches(self._core, queue.id):
            return False
        self._registry.drop_queue(queue)
        return True
